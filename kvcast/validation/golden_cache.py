"""golden-cache: hit rates of the public Mooncake traces, counted by others, to four digits.

Rule all-ids counts every 512-token block id; rule full-blocks what an engine can reuse. Cache alone, file order, no
time.

    $ kvcast validate golden-cache
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvcast.validation import Outcome, required
from workloads.config import WorkloadConfig

CAPACITIES = (None, 1_000, 3_000, 10_000, 30_000, 100_000)
ALL_IDS = {
    ("conversation", "lru"): (0.3664, 0.0445, 0.0653, 0.2116, 0.3257, 0.3637),
    ("conversation", "fifo"): (0.3664, 0.0436, 0.0633, 0.1813, 0.2937, 0.3563),
    ("conversation", "lfu"): (0.3664, 0.0481, 0.0750, 0.1317, 0.2760, 0.3631),
    ("synthetic", "lru"): (0.6396, 0.0841, 0.1906, 0.4239, 0.6242, 0.6396),
    ("synthetic", "fifo"): (0.6396, 0.0842, 0.1857, 0.3986, 0.5941, 0.6396),
    ("synthetic", "lfu"): (0.6396, 0.0418, 0.1288, 0.3585, 0.6260, 0.6396),
}
"""Recorded matched ids / all ids, by capacity in blocks (None: unlimited)."""

FULL_BLOCKS_LRU = {
    "conversation": {
        None: (0.3819, 0.3734),
        1_000: (0.0470, 0.0459),
        10_000: (0.2243, 0.2193),
        30_000: (0.3448, 0.3371),
        100_000: (0.3795, 0.3710),
    },
    "synthetic": {None: (0.6594, 0.6504), 10_000: (0.4492, 0.4430), 30_000: (0.6476, 0.6388)},
}
"""Recorded (blocks, tokens) hit rates under LRU."""


def run(data_dir: Path, **_: Any) -> Outcome:
    from kvcast.api import load_workload
    from sim.kvcache.replay import replay

    lines, wrong, total = [], 0, 0
    for trace in ("conversation", "synthetic"):
        path = required(data_dir / "traces" / "mooncake" / f"{trace}_trace.jsonl")
        workload = load_workload(WorkloadConfig(trace=str(path), format="mooncake"))
        compared: list[tuple[str, tuple[float, ...], list[float]]] = []
        for (name, policy), recorded in ALL_IDS.items():
            if name == trace:
                found = [replay(workload, policy, capacity, "all-ids").hit_ratio_blocks for capacity in CAPACITIES]
                compared.append((f"{trace} {policy} all-ids", recorded, found))
        for capacity, recorded_pair in FULL_BLOCKS_LRU[trace].items():
            result = replay(workload, "lru", capacity, "full-blocks")
            label = f"{trace} lru full-blocks {'unlimited' if capacity is None else capacity} (blocks, tokens)"
            compared.append((label, recorded_pair, [result.hit_ratio_blocks, result.hit_ratio_tokens]))
        for label, truth, found in compared:
            different = sum(f"{a:.4f}" != f"{b:.4f}" for a, b in zip(truth, found, strict=True))
            wrong, total = wrong + different, total + len(found)
            lines.append(
                f"{label}: {' '.join(f'{value:.4f}' for value in found)}" + (f"  recorded {truth}" if different else "")
            )
    lines.append(f"{total} figures, {wrong} differ from the recorded ones in four digits")
    return Outcome("golden-cache", wrong == 0, lines, {"figures": total, "different": wrong})
