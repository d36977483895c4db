"""Prices of memory: the linear program behind the bound on prefill work.

The one idea: one variable per run says which share of it is kept, one per slot says how full the slot is, so a run
costs two entries however many slots it crosses; a run is kept at most as much as the one above it on its request's
path. The price of a slot is the dual of its capacity. Only slots that matter are in the program: slots that its
solution overfills are added, the worst of each stretch, until there are none (each round's prices are valid already).

scipy's HiGHS solves it; it is imported only here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.optimum.items import Items

ROUNDS = 30
"""Most rounds of adding slots; five are usual."""
EXCESS_BLOCKS = 1e-6
"""A slot is overfilled beyond this."""


@dataclass(frozen=True)
class Work:
    """Cost of blocks: that of block k is 1 + slope k (unit: a block at depth 0)."""

    slope: float

    def of(self, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Sum over the blocks [lo, hi)."""
        return (hi - lo) * (1 + self.slope * (lo + hi - 1) / 2)


def lowest_prices(
    items: Items, capacity: np.ndarray, work: Work, slots: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(slots, prices, share of every item that is kept), from a first guess at the slots that matter."""
    slots = np.unique(slots).astype(np.int64)
    for _ in range(ROUNDS):
        prices, share = _solve(items, capacity, work, slots)
        excess = _load(items, share, len(capacity)) - capacity
        if not np.any(excess > EXCESS_BLOCKS):
            break
        slots = np.union1d(slots, _worst_of_stretches(excess))
    else:
        prices, share = _solve(items, capacity, work, slots)
    return slots, prices, share


def _load(items: Items, share: np.ndarray, n_slots: int) -> np.ndarray:
    """float64 [n_slots]; `Items.load` counts whole blocks."""
    crosses = items.start < items.end
    blocks = (share * items.amount)[crosses]
    change = np.bincount(items.start[crosses], blocks, n_slots + 1) - np.bincount(
        items.end[crosses], blocks, n_slots + 1
    )
    return np.cumsum(change)[:n_slots]


def _worst_of_stretches(excess: np.ndarray) -> np.ndarray:
    """The fullest slot of each stretch of overfilled ones."""
    over = np.flatnonzero(excess > EXCESS_BLOCKS)
    stretch = np.cumsum(np.append(True, np.diff(over) > 1)) - 1
    order = np.lexsort((-excess[over], stretch))
    return over[order][np.append(True, np.diff(stretch[order]) > 0)]


def _solve(items: Items, capacity: np.ndarray, work: Work, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(prices [slots], shares [items]) of the program with these slots."""
    if not len(slots) or not len(items):
        return np.zeros(len(slots)), np.ones(len(items))
    runs = _Runs(items, work, slots)
    n_shares, n_slots = len(runs.work), len(slots)
    solution = runs.solve(np.concatenate((np.ones(n_shares), capacity[slots])), n_slots)
    prices = np.maximum(-solution.upper.marginals[n_shares:], 0.0)
    return prices, solution.x[:n_shares][runs.of_item]


class _Runs:
    """Items of a request that cross the same chosen slots as one: work grows with depth, so they are kept to the same
    share."""

    def __init__(self, items: Items, work: Work, slots: np.ndarray) -> None:
        first, last = np.searchsorted(slots, items.start), np.searchsorted(slots, items.end)
        crosses = first < last
        first, last = np.where(crosses, first, 0), np.where(crosses, last, 0)
        changes = [column[1:] != column[:-1] for column in (items.request, first, last)]
        new = np.append(True, changes[0] | changes[1] | changes[2])
        at = np.flatnonzero(new)
        self.of_item = np.cumsum(new) - 1
        self.work = np.add.reduceat(work.of(items.lo, items.hi), at)
        self.blocks = np.add.reduceat(items.amount, at).astype(float)
        self.first, self.last = first[at], last[at]
        self.below = np.flatnonzero(items.request[at][1:] == items.request[at][:-1]) + 1  # those with a run above

    def solve(self, upper: np.ndarray, n_slots: int):  # type: ignore[no-untyped-def]  # scipy's OptimizeResult
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix

        n, slot = len(self.work), np.arange(n_slots)
        enters = np.flatnonzero(self.first < self.last)
        leaves = enters[self.last[enters] < n_slots]
        # fullness of a slot = fullness of the one before + what enters - what leaves
        row = np.concatenate((slot, slot[1:], self.first[enters], self.last[leaves]))
        column = np.concatenate((n + slot, n + slot[:-1], enters, leaves))
        value = np.concatenate((np.ones(n_slots), -np.ones(n_slots - 1), -self.blocks[enters], self.blocks[leaves]))
        balance = csr_matrix((value, (row, column)), (n_slots, len(upper)))
        rule = np.arange(len(self.below))
        value = np.repeat([1.0, -1.0], len(rule))
        at_most_above = csr_matrix(
            (value, (np.tile(rule, 2), np.concatenate((self.below, self.below - 1)))), (len(rule), len(upper))
        )
        solution = linprog(
            np.concatenate((-self.work, np.zeros(n_slots))),
            A_eq=balance,
            b_eq=np.zeros(n_slots),
            A_ub=at_most_above,
            b_ub=np.zeros(len(rule)),
            bounds=np.stack((np.zeros(len(upper)), upper), axis=1),
            method="highs",
        )
        if solution.status:
            raise RuntimeError(f"linear program of {n} runs and {n_slots} slots: {solution.message}")
        return solution
