"""Miss counts of libCacheSim on two small traces: the numbers tests/test_policies.py compares our policies with.

Run where libcachesim 0.3.5 is installed (it is no dependency of kvcast); it prints the table the test holds.

    python tools/libcachesim_goldens.py
"""

from __future__ import annotations

import random

CAPACITIES = (100, 400)
REQUESTS = 20_000


def zipf(seed: int = 1, objects: int = 2000, exponent: float = 0.9) -> list[int]:
    """Independent draws, popularity ~ rank ** -exponent."""
    weights = [(rank + 1) ** -exponent for rank in range(objects)]
    return random.Random(seed).choices(range(objects), weights, k=REQUESTS)


def scans(seed: int = 2) -> list[int]:
    """A popular set, broken by scans of objects asked for once or twice, and a popular set that moves."""
    rng, trace, fresh = random.Random(seed), [], 1_000_000
    while len(trace) < REQUESTS:
        base = 300 * (len(trace) // 5000)
        trace += [base + min(int(rng.expovariate(1 / 60)), 800) for _ in range(rng.randint(50, 400))]
        length = rng.randint(20, 300)
        trace += [fresh + i for i in range(length)] * rng.choice([1, 1, 2])
        fresh += length
    return trace[:REQUESTS]


TRACES = {"zipf": zipf, "scans": scans}


def main() -> None:
    import libcachesim

    kinds = {
        "lru": libcachesim.LRU,
        "fifo": libcachesim.FIFO,
        "lfu": libcachesim.LFU,
        "s3fifo": libcachesim.S3FIFO,
        "sieve": libcachesim.Sieve,
        "arc": libcachesim.ARC,
        "lruk": libcachesim.LRUK,
        "wtinylfu": libcachesim.WTinyLFU,
        "gdsf": libcachesim.GDSF,
        "slru": libcachesim.SLRU,
    }
    for policy, kind in kinds.items():
        for name, make in TRACES.items():
            print(f'    ("{policy}", "{name}"): {[misses(kind, make(), capacity) for capacity in CAPACITIES]},')


def misses(kind: type, trace: list[int], capacity: int) -> int:
    import libcachesim

    cache, missed = kind(capacity), 0
    for obj in trace:
        request = libcachesim.Request()
        request.obj_id, request.obj_size = obj + 1, 1
        missed += not cache.get(request)
    return missed


if __name__ == "__main__":
    main()
