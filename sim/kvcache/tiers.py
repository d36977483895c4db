"""Cache tiers below the GPU's memory: host DRAM, then SSD or remote storage.

The one idea: a tier is where evicted blocks go on living, in the order they fell. With on-evict writing a block is in
one place at a time, so the GPU's queue and a tier's are two halves of one longer queue: with a free link they are one
bigger cache, exactly. What a request finds below is loaded when that ends sooner than computing it again would.

    run(workload, EngineParams(kv_blocks=25_000, tiers=(TierParams("dram", 200_000, 64e9, block_bytes=2**21),)),
    step_time)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, pairwise
from math import inf
from operator import attrgetter
from typing import NamedTuple, Protocol

from sim.kvcache.chains import Path
from sim.kvcache.replay import POLICIES, Rank
from sim.recording import TierUse
from sim.scenario import TierParams

_lo = attrgetter("lo")


def seconds(size: float, bytes_s: float) -> float:
    """What a link needs for so many bytes; without bandwidth it never ends."""
    return size / bytes_s if bytes_s else inf


RANKS: dict[str, Callable[[Rank | None, int], Rank]] = {
    **POLICIES,
    "mru": lambda rank, now: -now,
    "filo": lambda rank, now: -now if rank is None else rank,
    "slru": lambda rank, now: (rank is not None, now),
    "lruk": lambda rank, now: (False, now, now) if rank is None else (True, rank[-1], now),
}
"""Policy of a tier -> a block's rank after its write (rank None) or use `now`; the lowest goes first, of equal ones the
deepest.

These are all that follow from a block's own writes and uses. Queues with second chances, and policies that ask whose a
block is, have no meaning here: a tier holds blocks, not the requests they came from.
"""


class Run:
    """Blocks [lo, hi) of one node with one rank. Empty (lo == hi) once it has left."""

    __slots__ = ("hi", "lo", "node", "rank")

    def __init__(self, node: int, lo: int, hi: int, rank: Rank) -> None:
        self.node, self.lo, self.hi, self.rank = node, lo, hi, rank


class Tier:
    """One tier of one replica: its blocks, lowest rank and then deepest first to go, and the link that loads them."""

    def __init__(self, params: TierParams) -> None:
        self.p = params
        self.through = params.write == "write-through"
        self.used = self.written = self.loaded = self.taken_out = self.dropped = 0  # blocks
        self.link_free_s = 0.0
        self.busy_s = 0.0
        self._rank = RANKS[params.policy]
        self._runs: dict[int, list[Run]] = {}  # node -> its runs by depth
        self._heap: list[tuple[Rank, int, int, Run]] = []  # rank, -lo, serial number, run
        self._serial = count()
        self._stamp = 0
        self._last = (-1, -1)  # where eviction, and where entry, would continue what was put last

    def reach(self, node: int, pos: int, limit: int) -> int:
        """End of the blocks of `node` stored without a hole from `pos` on, at most `limit`; `pos` when it is not
        stored."""
        for run in self._runs.get(node, ()):
            if run.lo > pos or pos >= limit:
                break
            pos = max(pos, run.hi)
        return min(pos, limit)

    def put(self, node: int, lo: int, hi: int, entering: bool = False) -> list[tuple[int, int, int]]:
        """Store or touch blocks; what had to go for them, (node, lo, hi) each. Evictions come deepest first, entries
        shallow first."""
        if not entering and self.used + hi - lo > self.p.blocks and self._holds_some(node, lo, hi) and hi - lo > 1:
            return [
                gone for block in range(hi - 1, lo - 1, -1) for gone in self.put(node, block, block + 1)
            ]  # an old copy may go for a deeper one
        if (lo if entering else hi) != self._last[entering]:
            self._stamp += (
                1  # blocks that continue those put last share their stamp: deepest first is their order anyway
            )
        self._last = (-1, hi) if entering else (lo, -1)
        pos = lo
        for a, b, rank in self._carve(node, lo, hi):
            self._write(node, pos, a)
            self._add(node, a, b, self._rank(rank, self._stamp))
            pos = b
        self._write(node, pos, hi)
        return self._shed()

    def touch(self, path: Path, end: int) -> None:
        """A request lets go of the first `end` blocks of its path."""
        self._stamp += 1
        self._last = (-1, -1)
        lo = 0
        for node, hi in path:
            hi = min(hi, end)
            for a, b, rank in self._carve(node, lo, hi):
                self._add(node, a, b, self._rank(rank, self._stamp))
            lo = hi

    def remove(self, node: int, lo: int, hi: int) -> None:
        """Forget blocks that are there."""
        self.taken_out += sum(b - a for a, b, _ in self._carve(node, lo, hi))

    def transfer_s(self, blocks: int) -> float:
        """Seconds the link needs to load blocks."""
        return self.p.latency_s + seconds(blocks * self.p.block_bytes, self.p.bandwidth_bytes_s)

    def ready_s(self, blocks: int, now_s: float) -> float:
        """When a load of so many blocks that is asked for now would be complete: one transfer at a time."""
        return max(now_s, self.link_free_s) + self.transfer_s(blocks)

    def load(self, blocks: int, now_s: float) -> None:
        self.link_free_s = self.ready_s(blocks, now_s)
        self.busy_s += self.transfer_s(blocks)
        self.loaded += blocks

    # -- runs -------------------------------------------------------------------------------------------------------
    def _write(self, node: int, lo: int, hi: int) -> None:
        if lo < hi:
            self.written += hi - lo
            self._add(node, lo, hi, self._rank(None, self._stamp))

    def _add(self, node: int, lo: int, hi: int, rank: Rank) -> None:
        runs = self._runs.setdefault(node, [])
        self.used += hi - lo
        i = bisect_left(runs, lo, key=_lo)
        if i < len(runs) and runs[i].lo == hi and runs[i].rank == rank:
            runs[i].lo = lo
        elif i and runs[i - 1].hi == lo and runs[i - 1].rank == rank:
            runs[i - 1].hi = hi
        else:
            runs.insert(i, self._new(node, lo, hi, rank))

    def _new(self, node: int, lo: int, hi: int, rank: Rank) -> Run:
        run = Run(node, lo, hi, rank)
        if len(self._heap) > 1000 + 8 * len(
            self._runs
        ):  # mostly runs that were loaded: a tier that never fills must not grow
            self._heap = [entry for entry in self._heap if entry[3].lo < entry[3].hi]
            heapify(self._heap)
        heappush(self._heap, (rank, -lo, next(self._serial), run))
        return run

    def _holds_some(self, node: int, lo: int, hi: int) -> bool:
        return any(run.lo < hi and lo < run.hi for run in self._runs.get(node, ()))

    def _carve(self, node: int, lo: int, hi: int) -> list[tuple[int, int, Rank]]:
        """Cut blocks [lo, hi) out: the (lo, hi, rank) of those that were there, by depth."""
        gone: list[tuple[int, int, Rank]] = []
        kept: list[Run] = []
        for run in self._runs.get(node, ()):
            a, b = max(run.lo, lo), min(run.hi, hi)
            if a >= b:
                kept.append(run)
                continue
            gone.append((a, b, run.rank))
            if run.lo < a:
                kept.append(self._new(node, run.lo, a, run.rank))
            if b < run.hi:
                kept.append(self._new(node, b, run.hi, run.rank))
            run.lo = run.hi
        if gone:
            self.used -= sum(b - a for a, b, _ in gone)
            self._keep(node, kept)
        return gone

    def _keep(self, node: int, runs: list[Run]) -> None:
        if runs:
            self._runs[node] = runs
        else:
            del self._runs[node]

    def _shed(self) -> list[tuple[int, int, int]]:
        fallen = []
        while self.used > self.p.blocks:
            run = self._heap[0][3]
            if run.lo == run.hi:
                heappop(self._heap)
                continue
            n = min(self.used - self.p.blocks, run.hi - run.lo)
            run.hi -= n
            self.used -= n
            self.dropped += n
            fallen.append((run.node, run.hi, run.hi + n))
            if run.lo == run.hi:
                heappop(self._heap)
                self._keep(run.node, [r for r in self._runs[run.node] if r is not run])
        return fallen

    def settle(self) -> None:
        """A step has ended. Nobody else looks at a tier of one's own."""

    def use(self) -> TierUse:
        """What it has done so far."""
        return TierUse(
            self.p.name,
            self.p.blocks,
            self.p.block_bytes,
            self.p.bandwidth_bytes_s,
            self.loaded,
            self.written,
            self.dropped,
            self.used,
            self.busy_s,
            self.loaded * self.p.block_bytes,
            self.written * self.p.block_bytes,
        )

    def check(self) -> None:
        """Raise AssertionError unless every block written is here, was taken out, or was dropped."""
        for node, runs in self._runs.items():
            assert runs, node
            assert all(r.node == node and r.lo < r.hi for r in runs), node
            assert all(a.hi <= b.lo for a, b in pairwise(runs)), node
        assert self.used == sum(r.hi - r.lo for runs in self._runs.values() for r in runs) <= self.p.blocks
        assert self.written == self.used + self.taken_out + self.dropped


class TierLike(Protocol):
    """A tier as its replica sees it: its own, or its way to a store of the fleet."""

    p: TierParams
    through: bool

    def reach(self, node: int, pos: int, limit: int) -> int: ...

    def put(self, node: int, lo: int, hi: int, entering: bool = False) -> list[tuple[int, int, int]]: ...

    def touch(self, path: Path, end: int) -> None: ...

    def remove(self, node: int, lo: int, hi: int) -> None: ...

    def ready_s(self, blocks: int, now_s: float) -> float: ...

    def load(self, blocks: int, now_s: float) -> None: ...

    def settle(self) -> None: ...

    def use(self) -> TierUse: ...

    def check(self) -> None: ...


class Load(NamedTuple):
    """What to bring up for one request, and when it would be there."""

    parts: list[tuple[int, int, int, int]]  #: (tier, node, lo, hi), shallow to deep
    blocks: list[int]  #: per tier
    ready_s: float

    @property
    def total(self) -> int:
        return sum(self.blocks)


class Tiers:
    """The tiers of one replica, nearest first, and the loads under way. The cache tells what is evicted, entered and
    released."""

    def __init__(
        self,
        params: Sequence[TierParams],
        prefill_s: Callable[[int, int], float],
        block_size: int,
        shelves: Mapping[str, TierLike] | None = None,
    ) -> None:
        """prefill_s(cached, known): seconds of computing a prompt's tokens [cached, known) with nothing else on the
        replica. shelves: its ways to stores of the fleet (sim.kvcache.store), by name; other tiers are its own."""
        self.tiers: list[TierLike] = [(shelves or {}).get(p.name) or Tier(p) for p in params]
        self.prefetch = any(p.prefetch for p in params)
        self._through = [t for t in self.tiers if t.through]
        self._once = [t for t in self.tiers if not t.through]
        self._prefill_s = prefill_s
        self._b = block_size
        self._under_way: list[tuple[float, int, int, int]] = []  # ready at, node, lo, hi

    # -- from the cache ---------------------------------------------------------------------------------------------
    def evicted(self, node: int, lo: int, hi: int) -> None:
        """The GPU's memory gives these blocks away."""
        self._fall(0, node, lo, hi)

    def entered(self, node: int, lo: int, hi: int) -> None:
        """These blocks are in the GPU's memory now: computed, or loaded."""
        for tier in self._once:
            tier.remove(node, lo, hi)
        if self.tiers[0].through:
            self._put(0, node, lo, hi, True)

    def released(self, path: Path, end: int) -> None:
        """A request lets go of the first `end` blocks of its path."""
        for tier in self._through:
            tier.touch(path, end)

    def _fall(self, k: int, node: int, lo: int, hi: int) -> None:
        if k < len(self.tiers) and not self.tiers[k].through:
            self._put(k, node, lo, hi, False)

    def _put(self, k: int, node: int, lo: int, hi: int, entering: bool) -> None:
        fallen = self.tiers[k].put(node, lo, hi, entering)
        if k + 1 < len(self.tiers) and self.tiers[k + 1].through:
            self._put(k + 1, node, lo, hi, entering)
        for part in fallen:
            self._fall(k + 1, *part)

    # -- for the scheduler ------------------------------------------------------------------------------------------
    def plan(self, path: Path, hit: int, limit: int, known: int, now_s: float, prefetch: bool = False) -> Load | None:
        """The load that saves a request the most time, None when computing is sooner. Changes nothing.

        Within a tier the time saved is convex in the blocks loaded (attention makes deep tokens dearer, a transfer is
        linear), so the best load ends where the tier changes or where nothing more is found.
        """
        parts = self._found(path, hit, limit, prefetch)
        if not parts:
            return None
        whole_s = self._prefill_s(hit * self._b, known)
        blocks = [0] * len(self.tiers)
        best, most_s = None, 0.0
        for i, (k, _, lo, hi) in enumerate(parts):
            blocks[k] += hi - lo
            if i + 1 < len(parts) and parts[i + 1][0] == k:
                continue
            ready_s = max(tier.ready_s(n, now_s) for tier, n in zip(self.tiers, blocks, strict=True) if n)
            saved_s = whole_s - self._prefill_s(hi * self._b, known) - (ready_s - now_s)
            if saved_s >= most_s:
                best, most_s = Load(parts[: i + 1], list(blocks), ready_s), saved_s
        return best

    def _found(self, path: Path, pos: int, limit: int, prefetch: bool) -> list[tuple[int, int, int, int]]:
        """Where the blocks of a path after `pos` are, up to the first that no tier has."""
        parts: list[tuple[int, int, int, int]] = []
        for node, end in path:
            end = min(end, limit)
            while pos < end:
                k, reach = next(
                    ((k, r) for k, t in enumerate(self.tiers) if (r := t.reach(node, pos, end)) > pos), (-1, pos)
                )
                if k < 0 or (prefetch and not self.tiers[k].p.prefetch):
                    return parts
                parts.append((k, node, pos, reach))
                pos = reach
        return parts

    def fetch(self, load: Load, now_s: float) -> None:
        """Start a planned load; on-evict tiers give the blocks away. The caller takes memory and enters them
        afterwards."""
        for k, node, lo, hi in load.parts:
            if not self.tiers[k].through:
                self.tiers[k].remove(node, lo, hi)
            if load.ready_s > now_s:
                self._under_way.append((load.ready_s, node, lo, hi))
        for tier, n in zip(self.tiers, load.blocks, strict=True):
            if n:
                tier.load(n, now_s)

    def hits_ready_s(self, path: Path, hit: int, now_s: float) -> float:
        """When the first `hit` blocks of a path, all in the GPU's memory or on their way there, have arrived."""
        if not self._under_way:
            return now_s
        self._under_way = [load for load in self._under_way if load[0] > now_s]
        nodes, depth = set(), 0
        for node, end in path:
            if depth >= hit:
                break
            nodes.add(node)
            depth = end
        return max((ready for ready, node, lo, _ in self._under_way if node in nodes and lo < hit), default=now_s)

    def settle(self) -> None:
        """The step is over: what it has computed is there for others."""
        for tier in self.tiers:
            tier.settle()

    def use(self) -> list[TierUse]:
        """What each tier has done so far."""
        return [tier.use() for tier in self.tiers]

    def check(self) -> None:
        for tier in self.tiers:
            tier.check()
