"""Rows of numbers that grow at their end, each column packed for itself: a long run has many.

The one idea: most columns are small whole numbers or times that follow on each other; with the bytes of their doubles
sorted by place, most of those are equal. What comes back is the same to the last bit.

    >>> rows = Rows(2, packs=True); rows.add(0.5, 3); rows.column(1)
    array([3.])
"""

from __future__ import annotations

import zlib
from array import array
from struct import pack

import numpy as np

BLOCK = 512
"""Rows that are packed together."""


class Rows:
    """packs: keep all but the newest rows packed."""

    def __init__(self, width: int, packs: bool = False) -> None:
        self.width, self.packs = width, packs
        self._blocks: list[list[bytes]] = [[] for _ in range(width)]
        self._new = array("d")
        self._format = f"{width}d"

    def __len__(self) -> int:
        return len(self._blocks[0]) * BLOCK + len(self._new) // self.width

    def add(self, *numbers: float) -> None:
        """One row; whole numbers are exact below 2**53."""
        self._new.frombytes(pack(self._format, *numbers))
        if self.packs and len(self._new) == self.width * BLOCK:
            for blocks, column in zip(self._blocks, self._unpacked().T, strict=True):
                blocks.append(zlib.compress(column.copy().view(np.uint8).reshape(-1, 8).T.tobytes(), 1))
            self._new = array("d")

    def last(self, column: int) -> float:
        """Of the newest row; 0 where there is none."""
        if self._new:
            return self._new[column - self.width]
        return float(self.column(column)[-1]) if len(self) else 0.0

    def column(self, column: int) -> np.ndarray:
        """float64 [rows]"""
        packed = (np.frombuffer(zlib.decompress(block), np.uint8) for block in self._blocks[column])
        parts = [np.ascontiguousarray(planes.reshape(8, -1).T).view(np.float64)[:, 0] for planes in packed]
        return np.concatenate([*parts, self._unpacked()[:, column]])

    def _unpacked(self) -> np.ndarray:
        return np.array(self._new, np.float64).reshape(-1, self.width)
