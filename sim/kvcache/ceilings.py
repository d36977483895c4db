"""What requests would have hit had nothing ever been evicted, on this replica and on all of them as one cache.

The one idea: a cache that never evicts is one number for each chain, the deepest block ever entered. A stretch of
prefill steps enters its blocks when it is over, so what it has entered by now is said by its step ends (`Coming`)."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from sim.kvcache.chains import Path


class Seen:
    """Deepest block ever entered of each chain that requests share."""

    def __init__(self, n_shared: int, fleet: dict[int, int]) -> None:
        self.here: dict[int, int] = {}
        self.fleet = fleet  # of all replicas
        self._n_shared = n_shared

    def enter(self, node_id: int, hi: int) -> None:
        if node_id < self._n_shared:
            if self.here.get(node_id, 0) < hi:
                self.here[node_id] = hi
            if self.fleet.get(node_id, 0) < hi:
                self.fleet[node_id] = hi

    def enter_here(self, node_id: int, hi: int) -> None:
        """What other replicas learn of later."""
        if node_id < self._n_shared and self.here.get(node_id, 0) < hi:
            self.here[node_id] = hi

    def enter_elsewhere(self, node_id: int, hi: int) -> None:
        """On another replica."""
        if self.fleet.get(node_id, 0) < hi:
            self.fleet[node_id] = hi

    def ceilings(self, path: Path, hit: int, limit: int) -> tuple[int, int]:
        """Blocks hit here and in the fleet, at most `limit`; the first `hit` of them are known, and `path` is what goes
        beyond."""
        return depth_of(self.here, path, hit, limit), depth_of(self.fleet, path, hit, limit)


def depth_of(seen: dict[int, int], path: Path, pos: int, limit: int) -> int:
    """Blocks of a path that were seen, at most `limit`; the first `pos` are known, and `path` goes on from there."""
    for node_id, hi in path:
        depth = seen.get(node_id, 0)
        if depth < hi:
            return min(max(pos, depth), limit)
        pos = hi
        if pos >= limit:
            return limit
    return min(pos, limit)


class Coming(NamedTuple):
    """What a stretch of prefill steps on one replica enters, known from its start: others may ask before it is over."""

    replica: int
    computed: int  #: tokens, with those of its first step
    tokens: int  #: of each later step
    ends_s: array[float]  #: of its steps; the next one enters its blocks when it begins

    def depth(self, now_s: float, turn: int, block_size: int) -> int:
        """Blocks entered by now, `turn` being the last replica that has had its turn at this very time."""
        begun = bisect_right if self.replica <= turn else bisect_left
        later = min(begun(self.ends_s, now_s), len(self.ends_s) - 1)
        return (self.computed + later * self.tokens) // block_size


class UnderWay:
    """Stretches of prefill steps under way on all replicas, at most one on each; `begin` and `end` come in pairs."""

    def __init__(self) -> None:
        self._on_node: dict[int, list[tuple[int, Coming]]] = {}  # (end block, what)
        self._paths: dict[int, tuple[Path, Coming]] = {}  # of each replica

    def begin(self, path: Path, coming: Coming) -> None:
        self._paths[coming.replica] = path, coming
        for node_id, hi in path:
            self._on_node.setdefault(node_id, []).append((hi, coming))

    def end(self, replica: int) -> None:
        path, coming = self._paths.pop(replica)
        for node_id, hi in path:
            others = self._on_node[node_id]
            others.remove((hi, coming))
            if not others:
                del self._on_node[node_id]

    def drop(self, replica: int) -> None:
        """Whatever the replica was at is lost."""
        if replica in self._paths:
            self.end(replica)

    def depth(self, node_id: int, now_s: float, turn: int, block_size: int) -> int:
        """Deepest block of a chain that has been entered by now."""
        deepest = 0
        for hi, coming in self._on_node.get(node_id, ()):
            deepest = max(deepest, min(hi, coming.depth(now_s, turn, block_size)))
        return deepest
