"""The values of one field of all rows, as the file has them: a list that keeps runs of whole numbers at 8 bytes each.

The one idea: nearly all values of a trace are whole numbers, and a Python object each is five times as large. What is
no whole number stays the object that it is, for the error line that names it.

    >>> values = Collected(); values.append(3); values.append(0.5); values[0], list(values), values.integers()
    (3, [3, 0.5], None)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

CHUNK_ROWS = 8192


class Collected(Sequence[Any]):
    """`append` and read; values are not replaced."""

    def __init__(self) -> None:
        self._chunks: list[np.ndarray | list[Any]] = []  # CHUNK_ROWS each
        self._open: list[Any] = []

    def append(self, value: Any) -> None:
        self._open.append(value)
        if len(self._open) == CHUNK_ROWS:
            self._chunks.append(_packed(self._open))
            self._open = []

    def extend(self, values: Sequence[Any]) -> None:
        self._open += values
        while len(self._open) >= CHUNK_ROWS:
            self._chunks.append(_packed(self._open[:CHUNK_ROWS]))
            del self._open[:CHUNK_ROWS]

    def integers(self) -> np.ndarray | None:
        """int64 [n], or None where a value is no whole number of 64 bits."""
        chunks = [*self._chunks, _packed(self._open)] if self._open or not self._chunks else self._chunks
        arrays = [chunk for chunk in chunks if isinstance(chunk, np.ndarray)]
        return np.concatenate(arrays) if len(arrays) == len(chunks) else None

    def __len__(self) -> int:
        return len(self._chunks) * CHUNK_ROWS + len(self._open)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return list(self)[at]
        place = range(len(self))[at]
        chunk, i = divmod(place, CHUNK_ROWS)
        value = (self._chunks[chunk] if chunk < len(self._chunks) else self._open)[i]
        return value.item() if isinstance(value, np.generic) else value

    def __iter__(self) -> Iterator[Any]:
        for chunk in self._chunks:
            yield from chunk.tolist() if isinstance(chunk, np.ndarray) else chunk
        yield from self._open


def _packed(values: list[Any]) -> np.ndarray | list[Any]:
    if set(map(type, values)) <= {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return values
