"""Most hits any eviction can have, exactly, with a certificate that proves it.

The one idea: every block of an item is worth one hit, so at a slot that is too full the item to drop is the one that
ends last (farthest next use): it is in the way of every other one from there on. Ties go deepest first. Whoever asks
for a block asks for its parent, so a parent is never dropped before its child, with no rule to say so.

The certificate is a list of checkpoints, slots that no kept item crosses two of: "at these moments at most this much
could be carried across, so at least so many misses were forced". Going back over the drops: the last one is a
checkpoint, then always the latest earlier one whose dropped item does not reach the checkpoint just found. There the
kept items are full, and every dropped item crosses a checkpoint, so the bound equals what the sweep kept. It is the
integral dual of the packing problem; `sim.optimum.check` verifies it without trusting this file.

    >>> best = most_hits(items, capacity)
    >>> check(items, capacity, best.kept, best.checkpoints) == best.hits
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from sim.optimum.items import Items


@dataclass(frozen=True)
class MostHits:
    """A schedule with the most hits, and why there is none better."""

    kept: np.ndarray  #: int64 [items], the first `kept` blocks of each item are kept
    depth: np.ndarray  #: int64 [n requests], blocks hit
    checkpoints: np.ndarray  #: int64 [k], slots, ascending

    @property
    def hits(self) -> int:
        return int(self.depth.sum())


def most_hits(items: Items, capacity: np.ndarray) -> MostHits:
    """Keep what is needed soonest; capacity: int64 [slots], blocks. O((items + drops) log items)."""
    kept = items.amount.copy()
    crowded = np.flatnonzero(items.load(kept, len(capacity)) > capacity)
    slots, ends = _drop_at(crowded, items, capacity, kept)
    return MostHits(kept, items.depth(kept), _checkpoints(slots, ends))


def _drop_at(crowded: np.ndarray, items: Items, capacity: np.ndarray, kept: np.ndarray) -> tuple[list[int], list[int]]:
    """Lower `kept` until it fits at the crowded slots; per slot with a drop, the soonest end of what was dropped
    there."""
    over = items.load(kept, len(capacity))[crowded] - capacity[crowded]
    crossing = np.flatnonzero(items.start < items.end)
    by_start = crossing[np.argsort(items.start[crossing], kind="stable")]
    by_end = by_start[np.lexsort((-items.lo[by_start], -items.end[by_start]))]  # the order of dropping
    place = np.empty(len(items), np.int64)
    place[by_end] = np.arange(len(by_end))
    arrived = np.searchsorted(items.start[by_start], crowded, side="right").tolist()
    entering, drop_order, end = place[by_start].tolist(), by_end.tolist(), items.end.tolist()
    left = kept.tolist()
    heap: list[int] = []
    gone: list[tuple[int, int]] = []  # heap of (end, blocks) of what was dropped and would still cross
    missing = at = 0
    slots, ends = [], []
    for slot, excess, to in zip(crowded.tolist(), over.tolist(), arrived, strict=True):
        if to - at > len(heap):
            heap += entering[at:to]
            heapify(heap)
        else:
            for i in range(at, to):
                heappush(heap, entering[i])
        at = to
        while gone and gone[0][0] <= slot:
            missing -= heappop(gone)[1]
        excess -= missing
        if excess <= 0:
            continue
        while excess > 0:
            item = drop_order[heap[0]]
            dropped = min(excess, left[item])
            left[item] -= dropped
            if not left[item]:
                heappop(heap)
            heappush(gone, (end[item], dropped))
            missing += dropped
            excess -= dropped
        slots.append(slot)
        ends.append(end[item])
    kept[:] = left
    return slots, ends


def _checkpoints(slots: list[int], ends: list[int]) -> np.ndarray:
    """Backwards: a drop's slot, when its dropped item does not reach the checkpoint found before."""
    found: list[int] = []
    for slot, end in zip(reversed(slots), reversed(ends), strict=True):
        if not found or end <= found[-1]:
            found.append(slot)
    return np.array(found[::-1], np.int64)
