"""Cache-only replay: what one prefix cache would hit if requests came one after another, without time.

The one idea: the cache is *runs* on the workload's prefix tree. A run is an interval of a node's blocks that share one
rank (they were last touched, or inserted, together), so serving a 100k-token prompt costs a few run visits at any
block size, not thousands of block visits.

The cache is flat: it knows no tree when it evicts. Request by request, in order of time: the hit is the longest
contiguous run of leading resident blocks; then every block of the prompt is touched or inserted, tail to head (the
head is the most recent); then the lowest-ranked blocks are evicted down to the capacity. Outputs are not inserted and
nothing is pinned; for what an engine does, simulate.

    >>> from sim.kvcache.replay import replay
    >>> replay(workload, "lru", capacity_blocks=10_000, rule="full-blocks", block_size=16).hit_ratio_tokens
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from sim.kvcache.leaf_first import leaf_first
from sim.kvcache.policies import name_of
from sim.kvcache.rows import LEAF_FIRST, RULES, ReplayResult, checked_size, hit_row
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.transform import order_taken

Rank = Any  # totally ordered; the lowest rank is evicted first, equal ranks (one request's blocks) deepest first


def _lru(rank: Rank | None, now: int) -> Rank:
    """Least recently used goes first."""
    return now


def _fifo(rank: Rank | None, now: int) -> Rank:
    """First in goes first; a hit changes nothing."""
    return now if rank is None else rank


def _lfu(rank: Rank | None, now: int) -> Rank:
    """Fewest uses since insertion goes first, ties by oldest touch."""
    return (1 if rank is None else rank[0] + 1, now)


POLICIES: dict[str, Callable[[Rank | None, int], Rank]] = {"lru": _lru, "fifo": _fifo, "lfu": _lfu}
"""A policy gives a block's rank after request `now` used it; `rank` is the old one, None on insertion. A use must
never lower a rank: the eviction heap relies on it."""


class _Run:
    """Resident blocks [lo, hi) of one node, all of one rank. Empty (lo == hi) once evicted or merged away."""

    __slots__ = ("hi", "lo", "rank")

    def __init__(self, lo: int, hi: int, rank: Rank) -> None:
        self.lo, self.hi, self.rank = lo, hi, rank


class _FlatCache:
    """Runs by node, and one heap entry per run.

    A heap entry may hold an outdated, lower rank: it is put right when it reaches the top, so a hit pushes nothing.
    """

    def __init__(self, touch: Callable[[Rank | None, int], Rank], capacity: int | None) -> None:
        self.touch, self.capacity = touch, capacity
        self.used = 0
        self.runs: dict[Any, list[_Run]] = {}
        self.heap: list[tuple[Rank, int, int, _Run]] = []  # rank, -first block, serial number, run
        self.serial = count()

    def use(self, node: Any, lo: int, hi: int, now: int) -> int:
        """Touch or insert blocks [lo, hi) of a node that starts at `lo`; return how many leading ones were resident."""
        old = self.runs.get(node, [])
        if len(old) == 1 and old[0].lo == lo and old[0].hi == hi:  # by far the most frequent case
            old[0].rank = self.touch(old[0].rank, now)
            return hi - lo
        out: list[_Run] = []
        beyond = [run for run in old if run.lo >= hi and run.lo < run.hi]
        at = resident = lo  # [lo, at) is done; [lo, resident) was there before
        for run in old:
            if run.lo == run.hi or run.lo >= hi:
                continue
            if run.lo == resident:
                resident = min(run.hi, hi)
            if at < run.lo:
                self._append(out, self.insert(at, run.lo, now))
            beyond[:0] = self._touch_below(run, hi, now)
            at = run.hi
            self._append(out, run)
        if at < hi:
            self._append(out, self.insert(at, hi, now))
        self.runs[node] = out + beyond
        return resident - lo

    def insert(self, lo: int, hi: int, now: int) -> _Run:
        """Make blocks [lo, hi) resident as a new run; the caller keeps it if it can be hit again."""
        self.used += hi - lo
        return self._new(lo, hi, self.touch(None, now))

    def _new(self, lo: int, hi: int, rank: Rank) -> _Run:
        run = _Run(lo, hi, rank)
        if self.capacity is not None:
            heappush(self.heap, (rank, -lo, next(self.serial), run))
        return run

    def _touch_below(self, run: _Run, hi: int, now: int) -> list[_Run]:
        """Touch the run's blocks below `hi`; return the untouched rest, if that now ranks differently, as a run of its
        own."""
        before, run.rank = run.rank, self.touch(run.rank, now)
        if run.hi <= hi or run.rank == before:
            return []
        rest = self._new(hi, run.hi, before)
        run.hi = hi
        return [rest]

    @staticmethod
    def _append(out: list[_Run], run: _Run) -> None:
        """Append the next run of a path without gaps; merge it into the one before when nothing tells their blocks
        apart."""
        if out and out[-1].rank == run.rank:
            out[-1].hi, run.hi = run.hi, run.lo
        else:
            out.append(run)

    def evict(self) -> None:
        """Drop the lowest-ranked blocks, of a run the deepest first, until the capacity is kept."""
        if self.capacity is None:
            return
        heap, excess = self.heap, self.used - self.capacity
        while excess > 0:
            rank, depth, serial, run = heap[0]
            if run.lo == run.hi:
                heappop(heap)
            elif run.rank != rank:
                heapreplace(heap, (run.rank, depth, serial, run))
            else:
                taken = min(excess, run.hi - run.lo)
                run.hi -= taken
                excess -= taken
                self.used -= taken


class _Paths:
    """Prompts as block intervals on tree nodes, for one block size and rule.

    A block belongs to the node that holds its last token, so node i owns blocks [start // b, end // b). A partial
    tail is shared only by prompts that end at the same token of the same node: a pseudo node (node, prompt tokens).
    """

    def __init__(self, workload: Workload, block_size: int, partial_tails: bool) -> None:
        tree = workload.tree
        self.block_size, self.partial_tails = block_size, partial_tails
        self.parent: list[int] = tree.parent.tolist()
        self.end: list[int] = tree.end.tolist()  # tokens
        self.lo: list[int] = (tree.start // block_size).tolist()  # blocks
        self.hi: list[int] = (tree.end // block_size).tolist()

    def nodes(self, leaf: int, full: int) -> list[int]:
        """The nodes that own some of the first `full` blocks, from `leaf` up to the root."""
        parent, lo, hi, path = self.parent, self.lo, self.hi, []
        while leaf >= 0:
            if lo[leaf] < hi[leaf] and lo[leaf] < full:
                path.append(leaf)
            leaf = parent[leaf]
        return path

    def shared_tail(self, leaf: int, prompt: int) -> tuple[int, int] | None:
        """Identity of the prompt's partial tail block; None if it has none or if no other prompt can have the same."""
        if not self.partial_tails or prompt % self.block_size == 0 or prompt > self.end[leaf]:
            return None
        while self.end[self.parent[leaf]] >= prompt:  # a root ends at 0: the climb stops below it
            leaf = self.parent[leaf]
        return leaf, prompt


def _serve(cache: _FlatCache, paths: _Paths, leaf: int, prompt: int, now: int) -> int:
    """Use the blocks of one prompt, then evict; return the number of leading resident blocks."""
    full, partial = divmod(prompt, paths.block_size)
    hit = at = 0  # blocks [0, at) are used
    for node in reversed(paths.nodes(leaf, full)):
        lo, end = paths.lo[node], min(paths.hi[node], full)
        resident = cache.use(node, lo, end, now)
        if hit == lo:
            hit += resident
        at = end
    tail = paths.shared_tail(leaf, prompt)
    if tail is not None:
        resident = cache.use(tail, full, full + 1, now)
        if hit == full:
            hit += resident
    else:
        if paths.partial_tails and partial:
            full += 1
        if at < full:
            cache.insert(at, full, now)  # the prompt's own: nobody will look it up
    cache.evict()
    return hit


def replay(
    workload: Workload,
    policy: str | type,
    capacity_blocks: int | None,
    rule: str,
    block_size: int | None = None,
    order: str = "time",
) -> ReplayResult:
    """Replay a workload's prompts through one flat cache of `capacity_blocks` blocks.

    policy: a name in POLICIES. capacity_blocks: None = unlimited (then every policy hits the same). rule: one of RULES,
    or leaf-first with any policy of the engine, by name or as its class. block_size: tokens; None takes the block size
    of the trace's own hashes. order: "time", as the requests would start, or "file", row by row
    (`workloads.transform.order_taken`). Raises InputError on anything else."""
    if rule == LEAF_FIRST:
        return leaf_first(workload, policy, capacity_blocks, block_size, order=order)
    policy = name_of(policy)
    touch, size = _checked(workload, policy, capacity_blocks, rule, block_size)
    if capacity_blocks is None:
        touch = _fifo  # nothing is evicted: the policy that does least stands for all
    cache = _FlatCache(touch, capacity_blocks)
    partial_tails = rule == "all-ids"
    paths = _Paths(workload, size, partial_tails)
    prompt, (rows, how) = workload.prompt_tokens, order_taken(workload, order)
    requests = zip(workload.leaf[rows].tolist(), prompt[rows].tolist(), strict=True)
    depth = np.empty(len(workload), np.int64)
    depth[rows] = np.fromiter(
        (_serve(cache, paths, leaf, p, now) for now, (leaf, p) in enumerate(requests)), np.int64, len(workload)
    )
    if partial_tails:
        total, tokens = -(-prompt // size), np.minimum(depth * size, prompt)
    else:
        total, depth = prompt // size, np.minimum(depth, (prompt - 1) // size)
        tokens = depth * size
    return ReplayResult(
        policy,
        capacity_blocks,
        rule,
        size,
        int(depth.sum()),
        int(total.sum()),
        int(tokens.sum()),
        int(prompt.sum()),
        depth,
        how,
    )


def hit_rate_curve(
    workload: Workload,
    capacities: Iterable[int | None],
    policy: str | type,
    rule: str,
    block_size: int | None = None,
    order: str = "time",
) -> list[dict[str, Any]]:
    """One row per capacity (None = unlimited), ready for a table: what `replay` hit, with rule, block size and order
    beside it."""
    rows = []
    for capacity in capacities:
        result = replay(workload, policy, capacity, rule, block_size, order)
        counts = (result.hit_blocks, result.total_blocks, result.hit_tokens)
        rows.append(hit_row(workload, result.policy, rule, result.block_size, capacity, *counts, result.order))
    return rows


class _Checked(NamedTuple):
    touch: Callable[[Rank | None, int], Rank]
    block_size: int


def _checked(workload: Workload, policy: str, capacity: int | None, rule: str, block_size: int | None) -> _Checked:
    """The policy's function and the block size in tokens, or one clear line about what is wrong."""
    _one_of("policy", policy, tuple(POLICIES), "; other policies need the rule leaf-first")
    _one_of("rule", rule, (*RULES, LEAF_FIRST))
    return _Checked(POLICIES[policy], checked_size(workload, capacity, block_size))


def _one_of(field: str, value: str, allowed: tuple[str, ...], otherwise: str = "") -> None:
    if value not in allowed:
        close = difflib.get_close_matches(value, allowed, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise InputError(f"{field} = {value!r}, expected one of {', '.join(allowed)}{otherwise}{hint}")
