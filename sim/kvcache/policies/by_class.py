"""Policies that tell requests apart: how long they are retained, who pays for them, how likely their class is to
return.

The one idea: leaves of one kind are a group in order of release, and the groups' oldest leaves are compared when memory
is wanted. Time is that of the last admission or release on the replica, so it stands still while requests only decode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sim.kvcache.policies.base import Asking, Key, Policy, Run, World, expect

BINS = 24
"""Of ages: below 1 s, then each twice as long; the last one has no end (97 days and more)."""


def _by_name(given: Mapping[str, float] | None, names: Iterable[str], default: float, what: str) -> list[float]:
    """One value per name. Raises ValueError for a name nobody has."""
    given, names = dict(given or {}), list(names)
    for name, value in given.items():
        if name not in names:
            raise ValueError(f"no {what} is called {name!r} (there are: {', '.join(names)})")
        expect(
            not isinstance(value, bool) and isinstance(value, int | float) and value >= 0,
            name,
            value,
            "a number of 0 or more",
        )
    return [float(given.get(name, default)) for name in names]


class Ttl(Policy):
    """Leaves not used within their retention go first, the one that expired first before others; then LRU.

    Every use starts the retention again: `ttl_s` seconds, or what `classes` gives for the request's workload class
    ({agent = 3600}). Blocks that different classes use keep the longest. An expired block still hits until it is
    evicted."""

    def __init__(self, world: World, ttl_s: float = 300.0, classes: Mapping[str, float] | None = None) -> None:
        super().__init__(world)
        expect(ttl_s >= 0, "ttl_s", ttl_s, "0 or more")
        self.class_id = world.workload.column("class_id").data
        self.ttl_s = _by_name(classes, world.workload.class_names, ttl_s, "workload class")

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = (self.ttl_s[self.class_id[request.id]], 0.0)

    def on_hit(self, run: Run, request: Asking) -> None:
        run.state = (max(run.state[0], self.ttl_s[self.class_id[request.id]]), 0.0)

    def on_release(self, run: Run, request: Asking) -> None:
        run.state = (run.state[0], self.now_s + run.state[0])

    def group(self, run: Run) -> float:
        return run.state[0]

    def key(self, run: Run) -> Key:
        return run.released, run.state[1]

    def victim(self, heads: Mapping[Any, Key]) -> float:
        expired = [group for group in heads if heads[group][1] <= self.now_s]
        if expired:
            return min(expired, key=lambda group: (heads[group][1], heads[group]))
        return min(heads, key=heads.__getitem__)


class Quota(Policy):
    """Leaves of tenants above their quota go first, the least recently used of them all; when nobody is, LRU.

    A block is its inserter's, and counts from its first release until it is evicted. `shares` of the cache by tenant
    name; who is not named gets `share`, by default an equal part.
    """

    def __init__(self, world: World, shares: Mapping[str, float] | None = None, share: float | None = None) -> None:
        super().__init__(world)
        expect(share is None or share >= 0, "share", share, "0 or more")
        names = world.workload.tenant_names
        self.tenant_id = world.workload.column("tenant_id").data
        by_name = _by_name(shares, names, 1 / len(names) if share is None else share, "tenant")
        self.quota = [int(share * world.capacity_blocks) for share in by_name]
        self.blocks = [0] * len(names)

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = (self.tenant_id[request.id], False)

    def on_first_release(self, run: Run, request: Asking) -> None:
        tenant, _ = run.state
        self.blocks[tenant] += len(run)
        run.state = (tenant, True)

    def group(self, run: Run) -> int:
        return run.state[0]

    def victim(self, heads: Mapping[Any, Key]) -> int:
        over = [tenant for tenant in heads if self.blocks[tenant] > self.quota[tenant]]
        return min(over or heads, key=heads.__getitem__)

    def span(self, run: Run) -> int:
        over = self.blocks[run.state[0]] - self.quota[run.state[0]]
        return over if over > 0 else len(run)

    def on_evict(self, run: Run, n: int) -> None:
        self.blocks[run.state[0]] -= n


class WorkloadAware(Policy):
    """The class whose oldest leaf is least likely to be used again loses it; ties, and classes nobody knows yet, by
    LRU.

    The probability is learned in the run: idle spans of blocks by the class of their last user and by age (doubling
    bins), each ended by a use or by an eviction. A bin's hazard is uses / spans that reached it, and a leaf of some
    age is used again with 1 - product of (1 - hazard) over its bin and later ones. Blocks weigh alike.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        classes = len(world.workload.class_names)
        self.class_id = world.workload.column("class_id").data
        self.reached = [[0] * BINS for _ in range(classes)]
        self.used = [[0] * BINS for _ in range(classes)]

    @staticmethod
    def bin(age_s: float) -> int:
        return min(int(age_s).bit_length(), BINS - 1)

    def _end(self, run: Run, blocks: int, used: bool) -> None:
        """An idle span of these blocks is over."""
        kind, since_s = run.state
        last = self.bin(self.now_s - since_s)
        for i in range(last + 1):
            self.reached[kind][i] += blocks
        self.used[kind][last] += blocks if used else 0

    def chance(self, kind: int, age_s: float) -> float:
        """Probability that an idle block of this class and age is used again."""
        lost = 1.0
        for reached, used in zip(
            self.reached[kind][self.bin(age_s) :], self.used[kind][self.bin(age_s) :], strict=True
        ):
            lost *= 1 - used / reached if reached else 1.0
        return 1 - lost

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = (self.class_id[request.id], None)

    def on_hit(self, run: Run, request: Asking) -> None:
        if run.state[1] is not None:
            self._end(run, len(run), True)
        run.state = (self.class_id[request.id], None)

    def on_release(self, run: Run, request: Asking) -> None:
        run.state = (run.state[0], self.now_s)

    def group(self, run: Run) -> int:
        return run.state[0]

    def key(self, run: Run) -> Key:
        return run.released, run.state[1]

    def victim(self, heads: Mapping[Any, Key]) -> int:
        return min(heads, key=lambda kind: (self.chance(kind, self.now_s - heads[kind][1]), heads[kind]))

    def on_evict(self, run: Run, n: int) -> None:
        self._end(run, n, False)
