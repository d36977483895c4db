"""The independent checker: a schedule is feasible, and no schedule can have more. It trusts nothing but the items.

Upper bound, valid for any checkpoints: an item that crosses one takes memory there, so

    hits <= free blocks + idle capacity at the checkpoints + blocks of the items that cross no checkpoint

O(items log items); it shares no code with the sweep.

    python -m pytest tests/test_optimum.py
"""

from __future__ import annotations

import numpy as np

from sim.optimum.items import Items


class CertificateError(ValueError):
    """A schedule that is impossible, or a certificate that is none."""


def check(items: Items, capacity: np.ndarray, kept: np.ndarray, checkpoints: np.ndarray) -> int:
    """The proven upper bound on hit blocks. Raises CertificateError when `kept` is impossible or its hits exceed the
    bound.

    capacity: int64 [slots]; kept: int64 [items]; checkpoints: distinct slots. Equal to the hits of `kept`: it is
    optimal."""
    feasible(items, capacity, kept)
    bound = upper_bound(items, capacity, checkpoints)
    hits = int(items.free.sum()) + int(kept.sum())
    if hits > bound:
        raise CertificateError(
            f"{hits} hits exceed the bound {bound}: the items or the capacity are not what was solved"
        )
    return bound


def upper_bound(items: Items, capacity: np.ndarray, checkpoints: np.ndarray) -> int:
    """Hits that no schedule exceeds."""
    points = np.unique(checkpoints)
    if len(points) != len(checkpoints):
        raise CertificateError("a checkpoint is listed twice")
    if len(points) and not 0 <= points[0] <= points[-1] < len(capacity):
        raise CertificateError(f"checkpoints {points[0]} to {points[-1]}, expected slots of [0, {len(capacity)})")
    crossed = np.searchsorted(points, items.end, side="left") - np.searchsorted(points, items.start, side="left")
    return int(items.free.sum()) + int(capacity[points].sum()) + int((items.hi - items.lo)[crossed <= 0].sum())


def feasible(items: Items, capacity: np.ndarray, kept: np.ndarray) -> None:
    """Raise CertificateError unless what is kept fits everywhere and is a leading run of every request's path."""
    amount = items.hi - items.lo
    if len(kept) != len(amount) or np.any(kept < 0) or np.any(kept > amount):
        raise CertificateError("kept blocks of an item must lie between 0 and its blocks")
    _check_tiling(items)
    crosses = items.start < items.end
    slots = np.concatenate((items.start[crosses], items.end[crosses]))
    blocks = np.concatenate((kept[crosses], -kept[crosses]))
    order = np.argsort(slots, kind="stable")
    load = np.concatenate(([0], np.cumsum(blocks[order])))
    at = load[np.searchsorted(slots[order], np.arange(len(capacity)), side="right")]
    if np.any(at > capacity):
        slot = int(np.flatnonzero(at > capacity)[0])
        raise CertificateError(f"slot {slot}: {at[slot]} blocks kept, expected at most {capacity[slot]}")
    same = items.request[1:] == items.request[:-1]
    hole = same & (kept[:-1] < amount[:-1]) & (kept[1:] > 0)
    if hole.any():
        raise CertificateError(f"request {items.request[1:][hole][0]}: a block is kept whose parent is not")


def _check_tiling(items: Items) -> None:
    """A request's free blocks and its items, in this order, cover [0, deepest hi) without a gap."""
    first = np.append(True, items.request[1:] != items.request[:-1]) if len(items) else np.empty(0, bool)
    above = np.where(first, items.free[items.request], np.append(0, items.hi[:-1])[: len(items)])
    if np.any(items.lo != above) or np.any(items.hi <= items.lo) or np.any(np.diff(items.request) < 0):
        raise CertificateError("items of a request must follow each other along its path")
