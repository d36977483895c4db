"""Arrays of keys -> small whole numbers that are equal where the keys are.

The one idea: whoever only compares ids may number them anew, as narrow as they are many.

    >>> numbered(np.array([2**62, 7, 2**62])).tolist()
    [1, 0, 1]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

PART = 1 << 20  #: values that are sorted at a time
PAGE_BITS = 4  #: of a value, below those that number its page


def codes_in(code: np.ndarray) -> int:
    return int(code.max()) + 1 if len(code) else 0


def numbered(values: np.ndarray) -> np.ndarray:
    """Equal values get equal numbers in [0, about len), int32 if those fit; not necessarily consecutive."""
    if not len(values):
        return np.zeros(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low < _most(values):
        small = integer(high - low)
        if low == 0 and values.dtype == small:
            return values
        numbers = np.empty(len(values), small)
        np.subtract(values, low, out=numbers, dtype=np.int64, casting="unsafe")
        return numbers
    clustered = paged(values, low, high) if (high - low) >> PAGE_BITS < _most(values) else None
    return clustered if clustered is not None else ranked(values.astype(np.int64, copy=False))


def _most(values: np.ndarray) -> int:
    """The largest number that so many values may get."""
    return 4 * len(values) + 1024


def paged(values: np.ndarray, low: int, high: int) -> np.ndarray | None:
    """The same for int64 values that lie in clusters: pages of 16 values each that hold any are numbered. None when
    they are too many."""
    pages = np.zeros(((high - low) >> PAGE_BITS) + 1, bool)
    for at in range(0, len(values), PART):
        pages[(values[at : at + PART].astype(np.int64) - low) >> PAGE_BITS] = True
    begins = np.cumsum(pages, dtype=integer(len(pages) << PAGE_BITS)) - 1 << PAGE_BITS
    if begins[-1] >= _most(values):
        return None
    numbers = np.empty(len(values), integer(_most(values) + (1 << PAGE_BITS)))
    for at in range(0, len(values), PART):
        beyond = values[at : at + PART].astype(np.int64) - low
        numbers[at : at + PART] = begins[beyond >> PAGE_BITS] + (beyond & (1 << PAGE_BITS) - 1)
    return numbers


def ranked(values: np.ndarray) -> np.ndarray:
    """The same for int64 values that lie anywhere: they are sorted part by part."""
    numbers = np.empty(len(values), integer(len(values)))
    parts, count = min(len(values) // PART + 1, 255), 0
    part = np.zeros(len(values), np.uint8)
    if parts > 1:
        for at in range(0, len(values), PART):
            mixed = values[at : at + PART].view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # neighbours fall apart
            part[at : at + PART] = (mixed >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)
    for i in range(parts):
        mine = np.flatnonzero(part == i)
        distinct, inverse = np.unique(values[mine], return_inverse=True)
        numbers[mine] = inverse + count
        count += len(distinct)
    return numbers


def integer(most: int) -> type[np.signedinteger]:
    """The integers that hold numbers up to `most`."""
    return np.int32 if most < 2**31 else np.int64


def numbered_pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Numbers of the pairs (a[i], b[i])."""
    b = numbered(b)
    return numbered(numbered(a).astype(np.int64) * max(codes_in(b), 1) + b)


def hashables_numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def positions(offsets: np.ndarray) -> np.ndarray:
    """Index of every entry inside its row, int64 [offsets[-1]]."""
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def changes(values: np.ndarray) -> np.ndarray:
    """True where a value differs from the one before it."""
    changed = np.ones(len(values), bool)
    changed[1:] = values[1:] != values[:-1]
    return changed
