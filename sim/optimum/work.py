"""Prefill work saved: an upper bound proved by prices, a feasible schedule, and the gap between them.

A deep block costs more to compute than a shallow one, so the most hits are not the most work saved, and keeping the
deep ones requires keeping all above them. No fast exact method is known; a linear program bounds it from above.

The one idea: the bound's proof is a *price* per block at some slots. For any prices >= 0

    work saved <= sum of price x idle capacity + per request the best start of (work - prices of the slots crossed)

so the solver need not be trusted: `price_bound` recomputes the right-hand side in numpy. The program looks only at
slots that matter, at first the checkpoints of the most hits (sim.optimum.prices).

    >>> result = most_work(items, capacity, block_work(items, 16, depth_weight=1 / 60), most_hits(items, capacity).checkpoints)
    >>> result.saved / result.bound
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.optimum.items import Items
from sim.optimum.prices import Work, lowest_prices

WEIGHT_TOKENS = 512
"""`depth_weight` is the extra cost of a token, relative to the first one, per this many tokens before it."""


def block_work(block_size: int, depth_weight: float) -> Work:
    """FLOPs of prefill: linear layers cost the same for every token, attention grows with the tokens before it.

    depth_weight: about 1/60 for Llama-3.1-8B (2 FLOPs a parameter against 4 x layers x heads x head size a context
    token)."""
    return Work(depth_weight * block_size / WEIGHT_TOKENS)


@dataclass(frozen=True)
class MostWork:
    """A bound with its proof, and a schedule that comes near it."""

    bound: float  #: no schedule saves more
    slots: np.ndarray  #: int64 [k], slots with a price
    prices: np.ndarray  #: float64 [k]
    kept: np.ndarray  #: int64 [items], a feasible schedule
    saved: float  #: what it saves

    @property
    def gap(self) -> float:
        """Share of the bound that is not shown to be reachable."""
        return max(0.0, 1 - self.saved / self.bound) if self.bound else 0.0


def price_bound(items: Items, capacity: np.ndarray, work: Work, slots: np.ndarray, prices: np.ndarray) -> float:
    """Upper bound on the work saved, valid for any prices; slots int64 [k] ascending, prices float64 [k] >= 0."""
    if np.any(prices < 0) or np.any(np.diff(slots) <= 0):
        raise ValueError("prices must not be negative, their slots must be ascending")
    paid = np.concatenate(([0.0], np.cumsum(prices)))
    crossed = np.maximum(paid[np.searchsorted(slots, items.end)] - paid[np.searchsorted(slots, items.start)], 0.0)
    profit = work.of(items.lo, items.hi) - crossed * items.amount
    return float(prices @ capacity[slots]) + _best_starts(items.request, profit) + free_work(items, work)


def free_work(items: Items, work: Work) -> float:
    return float(work.of(np.zeros_like(items.free), items.free).sum())


def _best_starts(request: np.ndarray, profit: np.ndarray) -> float:
    """Sum over requests of the best sum of leading items, 0 for none. Work a block grows along a run: its ends
    suffice."""
    if not len(request):
        return 0.0
    first = np.flatnonzero(np.append(True, request[1:] != request[:-1]))
    running = np.cumsum(profit)
    before = np.append(0.0, running[first[1:] - 1])
    return float(np.maximum(np.maximum.reduceat(running, first) - before, 0.0).sum())


def most_work(items: Items, capacity: np.ndarray, work: Work, checkpoints: np.ndarray) -> MostWork:
    """Bound and schedule; checkpoints: where to look first (those of the most hits), any slots will do."""
    slots, prices, share = lowest_prices(items, capacity, work, checkpoints)
    kept = _rounded(items, capacity, share)
    return MostWork(price_bound(items, capacity, work, slots, prices), slots, prices, kept, work_of(items, work, kept))


def work_of(items: Items, work: Work, kept: np.ndarray) -> float:
    """Work saved by a schedule in which a start of every request's items is kept."""
    depth = items.depth(kept)
    return float(work.of(np.zeros_like(depth), depth).sum())


def _rounded(items: Items, capacity: np.ndarray, share: np.ndarray) -> np.ndarray:
    """A feasible schedule near the program's shares: what it keeps whole, then as much as fits, its largest shares
    first."""
    kept = np.where(share > 1 - 1e-6, items.amount, 0)
    slack = capacity - items.load(kept, len(capacity))
    if np.any(slack < 0):  # the program was stopped before it fitted everywhere
        kept, slack = np.zeros_like(kept), capacity.copy()
    order = np.lexsort((items.lo, -share))
    while True:
        before = kept.sum()
        _fill(items, kept, slack, order[kept[order] < items.amount[order]])
        if kept.sum() == before:
            return kept


def _fill(items: Items, kept: np.ndarray, slack: np.ndarray, order: np.ndarray) -> None:
    """Keep more of the items, in the given order, where all above is kept and room is left."""
    start, end, request, amount = items.start, items.end, items.request, items.amount
    for i in order.tolist():
        if i and request[i - 1] == request[i] and kept[i - 1] < amount[i - 1]:
            continue
        room = slack[start[i] : end[i]]
        more = min(int(amount[i] - kept[i]), int(room.min(initial=amount[i])))
        kept[i] += more
        room -= more
