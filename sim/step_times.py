"""When the steps of a replica ended, and how their times were known: nine bytes a step, or about one and a half.

The one idea: a decode grows by a token a step and its time with it, so the ends of a stretch are a parabola but for
rounding. Read as whole numbers, the bits of consecutive ends have third differences of a few units: one byte each, with
the others listed, and most of those bytes equal. Nothing is rounded: what comes back is the same to the last bit.

    >>> times = StepTimes(packs=True); times.extend(ends_s, codes); times.ends_s()
"""

from __future__ import annotations

import zlib
from array import array

import numpy as np

BLOCK = 4096
"""Steps that are packed together."""
HEAD = 3
"""Ends that a block keeps as they are."""
SMALL = 127


class StepTimes:
    """Grows at its end. packs: keep all but the newest steps packed."""

    def __init__(self, packs: bool = False) -> None:
        self.packs = packs
        self._blocks: list[bytes] = []
        self._ends, self._codes = array("d"), bytearray()  # of the steps after the blocks

    def __len__(self) -> int:
        return BLOCK * len(self._blocks) + len(self._ends)

    def extend(self, ends_s: array[float], codes: bytes) -> None:
        """Steps that follow; codes: into calibrate.latency.COVERAGE, one a step."""
        self._ends += ends_s
        self._codes += codes
        if self.packs and len(self._ends) >= 2 * BLOCK:  # the newest are looked up
            self.close()

    def end_s(self, step: int) -> float:
        """End of one step."""
        block, place = divmod(step, BLOCK)
        if block < len(self._blocks):
            return float(_unpacked(self._blocks[block])[0][place])
        return self._ends[step - BLOCK * len(self._blocks)]

    def ends_s(self) -> np.ndarray:
        """float64 [steps]"""
        tail = np.frombuffer(self._ends, np.float64) if self._ends else np.empty(0)
        return np.concatenate([*(_unpacked(block)[0] for block in self._blocks), tail]) if self._blocks else tail

    def codes(self) -> np.ndarray:
        """int8 [steps]"""
        tail = np.frombuffer(self._codes, np.int8)
        return np.concatenate([*(_unpacked(block)[1] for block in self._blocks), tail]) if self._blocks else tail

    def close(self) -> None:
        """No more follow soon."""
        while self.packs and len(self._ends) >= BLOCK:
            self._blocks.append(_packed(np.array(self._ends[:BLOCK]), bytes(self._codes[:BLOCK])))
            del self._ends[:BLOCK], self._codes[:BLOCK]


def _packed(ends_s: np.ndarray, codes: bytes) -> bytes:
    bits = ends_s.view(np.int64)
    third = np.diff(bits, HEAD)
    large = np.flatnonzero(np.abs(third) > SMALL)
    small = third.astype(np.int8)
    small[large] = 0
    parts = (codes, small.tobytes(), bits[:HEAD].tobytes(), large.astype(np.int16).tobytes(), third[large].tobytes())
    return zlib.compress(b"".join(parts), 1)


def _unpacked(block: bytes) -> tuple[np.ndarray, np.ndarray]:
    """float64 and int8 [BLOCK]"""
    data = zlib.decompress(block)
    codes, third = (
        np.frombuffer(data, np.int8, BLOCK),
        np.frombuffer(data, np.int8, BLOCK - HEAD, BLOCK).astype(np.int64),
    )
    at = 2 * BLOCK - HEAD
    head = np.frombuffer(data[at : at + 8 * HEAD], np.int64)
    listed = data[at + 8 * HEAD :]
    n = len(listed) // 10
    third[np.frombuffer(listed[: 2 * n], np.int16)] = np.frombuffer(listed[2 * n :], np.int64)
    bits = third
    for order in reversed(range(HEAD)):
        bits = np.cumsum(np.concatenate([np.diff(head, order)[:1], bits]))
    return bits.view(np.float64), codes
