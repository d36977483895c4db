"""Columns of many requests in little memory: made when they are asked for, worked through in blocks.

The one idea: of ten million requests a column of numbers takes 76 MiB, so what follows from others is kept as how it
follows, and what needs several columns beside each other looks at BLOCK requests at a time.

    >>> columns = Columns({"arrival_s": arrival_s, "ttft_s": partial(minus, first_token_s, arrival_s)})
    >>> columns["ttft_s"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

BLOCK = 1 << 16
"""Requests worked out together: only a bound on memory."""

ALL = slice(None)
Made = Callable[[slice], np.ndarray]
"""Makes a part of a column."""


class Columns(Mapping[str, np.ndarray]):
    """Columns by name; those given as a function are made whenever they are asked for, and not kept. As a table:
    pyarrow.table(columns), pandas.DataFrame(dict(columns))."""

    def __init__(self, columns: Mapping[str, np.ndarray | Made]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._part(name, ALL)

    def _part(self, name: str, part: slice) -> np.ndarray:
        column = self._columns[name]
        return column(part) if callable(column) else column[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __repr__(self) -> str:
        rows = next((len(self[name]) for name in self), 0)
        return f"Columns({rows:,} rows: {', '.join(self)})"

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """What pyarrow.table and its like ask for: all columns, made at once."""
        import pyarrow as pa

        return pa.table(dict(self)).__arrow_c_stream__(requested_schema)

    def __array__(self, *asked: object, **more: object) -> NoReturn:
        """Columns of several types are no array; pandas, which looks for one, would else take the names for rows."""
        raise TypeError("columns are no array: expected one of them, columns[name], or dict(columns)")

    def __reduce__(self) -> tuple[type[Columns], tuple[dict[str, np.ndarray]]]:
        return Columns, (dict(self),)  # without what they are made of

    def part(self, part: slice) -> dict[str, np.ndarray]:
        """Those rows of all columns."""
        return {name: self._part(name, part) for name in self}

    def given(self) -> dict[str, np.ndarray | Made]:
        """What each is, or how it is made."""
        return dict(self._columns)


def part_of(columns: Mapping[str, np.ndarray], part: slice) -> dict[str, np.ndarray]:
    """Those rows of all columns, whether or not they are `Columns`."""
    if isinstance(columns, Columns):
        return columns.part(part)
    return {name: column[part] for name, column in columns.items()}


def minus(a: np.ndarray, b: np.ndarray, part: slice) -> np.ndarray:
    """a - b"""
    return a[part] - b[part]


def blocks(n: int) -> Iterator[slice]:
    """The slices of 0 to n, BLOCK long but the last."""
    return (slice(at, min(at + BLOCK, n)) for at in range(0, n, BLOCK))


def dense(ids: np.ndarray) -> np.ndarray:
    """int32 [n], in the order of whole numbers [n] and not far above n, to count by: `ids` themselves where they are
    that, else the place of each among those that differ."""
    if len(ids) and (ids.min() < 0 or ids.max() > 4 * len(ids)):
        ids = np.unique(ids, return_inverse=True)[1]
    return ids.astype(np.int32)


def all_or(some: np.ndarray) -> np.ndarray | slice:
    """What takes those that are True, bool [n], out of a column: a view where they are all."""
    return ALL if some.all() else some


def summed_by(group: np.ndarray, numbers: np.ndarray, groups: int) -> np.ndarray:
    """int64 [groups]: sums of whole numbers [n] by their group [n], of those with one of 0 and more. Exact below
    2**53."""
    total = np.zeros(groups + 1)
    for part in blocks(len(group)):
        total += np.bincount(group[part] + 1, weights=numbers[part], minlength=groups + 1)
    return total[1:].astype(np.int64)
