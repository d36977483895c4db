"""Items: what a cache has to carry across time to have a hit.

The one idea: an *item* is the idle span of a run of blocks, from their last release to their next acquisition. Kept for
the whole span it gives its blocks' hits at the end; dropped anywhere in it, it gives none. Time is numbered slots, and
at every slot the kept items that cross it must fit the idle capacity there. Everything about a capacity rule is in
which slots an item crosses and what capacity they have:

    bypass       slot t = after request t; capacity C. Blocks may be dropped as soon as their request has ended.
    must-insert  slot t = while request t is served; capacity C - its path. Its own path is resident and crosses
    nothing.
    pinned       slots between the cache events of a timed run; capacity C - blocks in use (sim.optimum.schedule).

Items are runs of blocks on the prefix tree, so their number hardly depends on the block size.

    >>> items, capacity = bypass(touches(workload, "full-blocks", 16), 320_000)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.kvcache.rows import RULES
from sim.kvcache.visits import node_visits
from sim.paths import climb
from workloads.columns import Workload
from workloads.errors import InputError

NEVER = np.iinfo(np.int64).max >> 1
"""Time of a release that does not come."""


@dataclass(frozen=True)
class Items:
    """Columns int64 [m], sorted by (request, lo). The items of a request and its `free` blocks tile a start of its
    path."""

    request: np.ndarray  #: whom they would give a hit
    lo: np.ndarray  #: blocks [lo, hi) of that request's path
    hi: np.ndarray
    start: np.ndarray  #: slots start <= x < end are crossed; none when start >= end
    end: np.ndarray
    free: np.ndarray  #: int64 [n requests], leading blocks that are hit whatever is kept

    @property
    def amount(self) -> np.ndarray:
        """Blocks: memory while kept, hits at the end."""
        return self.hi - self.lo

    def __len__(self) -> int:
        return len(self.request)

    def depth(self, kept: np.ndarray) -> np.ndarray:
        """int64 [n requests]: blocks hit, when `kept` blocks of every item are (a start of every request's items)."""
        return self.free + np.bincount(self.request, weights=kept, minlength=len(self.free)).astype(np.int64)

    def load(self, kept: np.ndarray, n_slots: int) -> np.ndarray:
        """int64 [n_slots]: kept blocks that cross each slot."""
        crosses = self.start < self.end
        change = np.zeros(n_slots + 1, np.int64)
        np.add.at(change, self.start[crosses], kept[crosses])
        np.subtract.at(change, self.end[crosses], kept[crosses])
        return np.cumsum(change)[:n_slots]


@dataclass(frozen=True)
class Touches:
    """Uses of blocks that were used before, in a fixed order of requests; columns int64 [m] sorted by (request, lo)."""

    request: np.ndarray  #: position in the order, as are all request numbers here
    previous: np.ndarray  #: the last earlier request that used these blocks
    lo: np.ndarray
    hi: np.ndarray
    length: np.ndarray  #: int64 [n], blocks of each request's path
    limit: np.ndarray  #: int64 [n], blocks of it that count as a hit at most


@dataclass(frozen=True)
class Visits:
    """Which requests hold blocks of which node, and when; columns [m] sorted by (node, since)."""

    node: np.ndarray
    lo: np.ndarray  #: first block of the node
    request: np.ndarray
    since: np.ndarray  #: time of the acquisition; no two are equal in a node
    until: np.ndarray  #: time of the release, NEVER without
    held: np.ndarray  #: blocks [lo, held) of the path are held meanwhile


def touches(workload: Workload, rule: str, block_size: int) -> Touches:
    """Touches of a replay (sim.kvcache.replay) of the workload's prompts in row order under a counting rule."""
    if rule not in RULES:
        raise InputError(f"rule = {rule!r}, expected one of {', '.join(RULES)}")
    prompt = workload.prompt_tokens
    rows, full = np.arange(len(workload)), prompt // block_size
    visits = [node_visits(workload, rows, full, block_size)]
    length = limit = full
    if rule == "all-ids":
        visits.append(_partial_tails(workload, block_size))
        length = limit = -(-prompt // block_size)
    else:
        limit = (prompt - 1) // block_size
    return touches_in_order([(row, node, lo, held) for row, node, lo, held in visits], length, limit)


def touches_in_order(
    parts: list[tuple[np.ndarray, ...]], length: np.ndarray, limit: np.ndarray, cut: np.ndarray | None = None
) -> Touches:
    """Touches of requests numbered in their order; parts are (request, node, first block, end block) columns.

    cut: int64 [n], no run reaches from before this block of its previous request's path to beyond it.
    """
    request, node, lo, held = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    visits = sorted_visits(node, lo, request, request, request, held)
    visit, last, lo, hi = spans(visits)
    request = visits.request[visit]
    if cut is not None:
        request, last, lo, hi = _cut(request, last, lo, hi, cut[last])
    request, last, lo, hi = joined(request, last, lo, hi, None if cut is None else cut)
    return Touches(request, last, lo, hi, length, limit)


def _partial_tails(workload: Workload, block_size: int) -> tuple[np.ndarray, ...]:
    """The partial last blocks as nodes of their own: shared by prompts that end at the same token of the same node."""
    tree, prompt = workload.tree, workload.prompt_tokens
    rows = np.flatnonzero((prompt % block_size > 0) & (prompt <= tree.end[workload.leaf]))
    node = climb(tree, tree.start, workload.leaf[rows], prompt[rows])
    ends = np.stack((node, prompt[rows]))
    tail = np.unique(ends, axis=1, return_inverse=True)[1].reshape(-1) if len(rows) else rows
    full = prompt[rows] // block_size
    return rows, len(tree) + tail, full, full + 1


def sorted_visits(
    node: np.ndarray, lo: np.ndarray, request: np.ndarray, since: np.ndarray, until: np.ndarray, held: np.ndarray
) -> Visits:
    order = np.lexsort((since, node))
    return Visits(*(column[order] for column in (node, lo, request, since, until, held)))


def spans(visits: Visits) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(visit, last release, lo, hi) of the blocks of each visit that an earlier visit held.

    A release after the visit's acquisition says that the blocks are in use then.
    """
    n = len(visits.node)
    if not n:
        return (np.empty(0, np.int64),) * 4
    first = np.append(True, visits.node[1:] != visits.node[:-1])
    group = np.cumsum(first) - 1
    begin = np.flatnonzero(first)
    uniform = np.minimum.reduceat(visits.held, begin) == np.maximum.reduceat(visits.held, begin)
    simple = np.flatnonzero(uniform[group] & ~first)
    parts: list[tuple[np.ndarray, ...]] = [
        (simple, _latest_release(visits, group)[simple], visits.lo[simple], visits.held[simple])
    ]
    mixed = np.flatnonzero(~uniform)
    if len(mixed):
        parts.append(_mixed_spans(visits, begin[mixed], np.append(begin, n)[mixed + 1]))
    visit, last, lo, hi = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return visit, last, lo, hi


def _latest_release(visits: Visits, group: np.ndarray) -> np.ndarray:
    """Latest `until` of the earlier visits of each visit's node (of no meaning for a node's first)."""
    times, rank = np.unique(
        visits.until, return_inverse=True
    )  # small numbers, so that one running maximum serves all groups
    running = np.maximum.accumulate(group * len(times) + rank)
    return times[np.append(0, running[:-1]) % len(times)]


def _mixed_spans(visits: Visits, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, ...]:
    """Nodes of which some visits hold only a shallow part: a list of (end block, last release), shallow to deep, per
    node."""
    los, untils, helds = visits.lo.tolist(), visits.until.tolist(), visits.held.tolist()
    out: list[tuple[int, int, int, int]] = []
    for a, b in zip(begin.tolist(), end.tolist(), strict=True):
        levels: list[tuple[int, int]] = []
        for visit in range(a, b):
            at, held, until = los[visit], helds[visit], untils[visit]
            after: list[tuple[int, int]] = []
            for level_end, last in levels:
                if at < held:
                    to = min(level_end, held)
                    out.append((visit, last, at, to))
                    _raise(after, to, max(last, until))
                    at = to
                if at < level_end:
                    _raise(after, level_end, last)
                    at = level_end
            if at < held:
                _raise(after, held, until)
            levels = after
    return tuple(np.array(out, np.int64).reshape(-1, 4).T)


def _raise(levels: list[tuple[int, int]], to: int, last: int) -> None:
    """Append a level, as one with the level above when both were released together."""
    if levels and levels[-1][1] == last:
        levels[-1] = (to, last)
    else:
        levels.append((to, last))


def _cut(
    request: np.ndarray, last: np.ndarray, lo: np.ndarray, hi: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Runs with those that `at` falls into as two."""
    inside = (lo < at) & (at < hi)
    lo = np.concatenate((lo, at[inside]))
    hi = np.concatenate((np.where(inside, at, hi), hi[inside]))
    return np.append(request, request[inside]), np.append(last, last[inside]), lo, hi


def joined(
    request: np.ndarray, last: np.ndarray, lo: np.ndarray, hi: np.ndarray, cut: np.ndarray | None = None
) -> tuple[np.ndarray, ...]:
    """Sorted by (request, lo), with neighbours on a path that were released together as one run: (request, last, lo,
    hi).

    cut: no run is joined across this block of the path of request `last`.
    """
    order = np.lexsort((lo, request))
    request, last, lo, hi = request[order], last[order], lo[order], hi[order]
    if not len(request):
        return request, last, lo, hi
    apart = (request[1:] != request[:-1]) | (last[1:] != last[:-1]) | (lo[1:] != hi[:-1])
    if cut is not None:
        apart |= lo[1:] == cut[last[1:]]
    first = np.append(True, apart)
    final = np.append(np.flatnonzero(first)[1:] - 1, len(request) - 1)
    return request[first], last[first], lo[first], hi[final]


# ---- capacity rules of a fixed order ----


def bypass(used: Touches, capacity_blocks: int) -> tuple[Items, np.ndarray]:
    """Items and the capacity of every slot when a request need not leave its blocks behind."""
    hi = np.minimum(used.hi, used.limit[used.request])
    items = _items(used, hi, used.previous, used.request)
    return items, np.full(len(used.length), capacity_blocks, np.int64)


def must_insert(used: Touches, capacity_blocks: int) -> tuple[Items, np.ndarray]:
    """The same when a request's whole path (the first `capacity_blocks` of it) is resident while it is served."""
    hi = np.minimum(used.hi, np.minimum(used.limit, capacity_blocks)[used.request])
    items = _items(used, hi, used.previous + 1, used.request)
    return items, np.maximum(capacity_blocks - used.length, 0)


CAPACITY_RULES = {"bypass": bypass, "must-insert": must_insert}


def _items(used: Touches, hi: np.ndarray, start: np.ndarray, end: np.ndarray) -> Items:
    some = used.lo < hi
    return Items(
        used.request[some], used.lo[some], hi[some], start[some], end[some], np.zeros(len(used.length), np.int64)
    )


def blocks_needed(items: Items, capacity: np.ndarray, capacity_blocks: int) -> int:
    """Smallest memory, in blocks, at which nothing has to be dropped; `capacity` is that of `capacity_blocks`.

    For the items of an unlimited cache: use a `capacity_blocks` above the longest path.
    """
    load = items.load(items.amount, len(capacity))
    crowded = load > 0
    return int(max(np.max(load[crowded] + capacity_blocks - capacity[crowded], initial=0), items.hi.max(initial=0)))
