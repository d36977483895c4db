"""Rows of block hashes as one 64-bit column.

The one idea: an id is only ever compared, so any lossless 64-bit code will do: unsigned 64-bit hashes keep their bits,
text is numbered; anything else is refused rather than cut.

    >>> column = HashIds()
    >>> column.add([1, 2**64 - 1])
    True
    >>> column.columns()[1].tolist()
    [0, 2]
"""
from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from workloads.readers.common import Rows

CHUNK_ROWS = 8192  #: rows whose ids are held as Python objects at a time
EXPECTED = "a list of block ids: whole numbers from 0 to 2^64 - 1, or text"


def as_column(ids: list[Any], numbers: dict[str, int]) -> np.ndarray | None:
    """int64 [len(ids)] of the ids, text numbered through `numbers`; None when an id is neither."""
    try:
        column = np.array(ids if ids else np.zeros(0, np.int64))
        if column.dtype.kind in "fO" and set(map(type, ids)) == {int}:
            column = np.array(ids, np.uint64)  # ids on both sides of 2^63: numpy alone would make them floats
    except (ValueError, OverflowError):
        return None
    if column.dtype.kind == "U" and set(map(type, ids)) == {str}:
        return np.array([numbers.setdefault(name, len(numbers)) for name in ids], np.int64)
    if column.dtype.kind not in "iu" or column.ndim != 1 or (column.dtype.kind == "i" and len(column) and column.min() < 0):
        return None
    return column.astype(np.uint64, copy=False).view(np.int64)


class HashIds:
    """Collects the id lists of rows; `add` says at once or at the end of a chunk whether they are ids."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._pending: list[list[Any]] = []
        self._chunks: list[np.ndarray] = []
        self._numbers: dict[str, int] = {}

    def add(self, ids: Any) -> bool:
        """False when the row is no list, or when its chunk holds a bad id (`bad_row` then finds it)."""
        if type(ids) is not list:
            return False
        self.lengths.append(len(ids))
        self._pending.append(ids)
        return len(self._pending) < CHUNK_ROWS or self._flush()

    def _flush(self) -> bool:
        column = as_column(list(chain.from_iterable(self._pending)), self._numbers)
        if column is None:
            return False
        self._chunks.append(column)
        self._pending = []
        return True

    def bad_row(self) -> tuple[int, list[Any]] | None:
        """(row, its ids) of the first row among the pending ones that cannot be read; None when only their mix is wrong."""
        first = len(self.lengths) - len(self._pending)
        for i, ids in enumerate(self._pending):
            if as_column(ids, {}) is None:
                return first + i, ids
        return (first, self._pending[0]) if self._pending and not self._flush() else None

    def columns(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids int64 flat, offsets int64 [rows + 1]), or None when the last chunk holds a bad id."""
        if not self._flush():
            return None
        return np.concatenate(self._chunks), np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))


def fail_on_ids(rows: Rows, ids: HashIds, record: dict[str, Any]) -> NoReturn:
    """Name the row whose ids could not be read: the current one (`record`) or one still pending."""
    found = ids.bad_row()
    if found is None:
        rows.fail("hash_ids", record.get("hash_ids"), EXPECTED)
    rows.fail("hash_ids", found[1], EXPECTED, rows.number[found[0]])


_HASH_IDS = re.compile(rb'"hash_ids"\s*:\s*\[')


class IdRows:
    """The hash_ids lists of one session, 98 % of its text, decoded apart.

    Nearly every list begins with the whole list before it, so only the rest of it needs decoding.
    """

    def __init__(self) -> None:
        self._text, self._ids = b"", np.zeros(0, np.int64)
        self._rows: list[np.ndarray | None] = []
        self._refused: dict[int, bytes] = {}  # place -> text of a list whose items are no ids
        self._numbers: dict[str, int] = {}

    def taken_out_of(self, document: bytes) -> bytes:
        """The document with every flat list of ids replaced by a list of one number, its place here."""
        kept, done = [], 0
        for found in _HASH_IDS.finditer(document):
            end = document.find(b"]", found.end())
            text = document[found.end() : end]
            if end >= 0 and b"[" not in text:
                kept += [document[done : found.end()], b"%d" % self._take(text)]
                done = end
        return b"".join([*kept, document[done:]])

    def get(self, listed: Any) -> np.ndarray | None:
        """int64 ids of what now stands for a list that was taken out, None when its items are no ids."""
        return self._rows[listed[0]] if type(listed) is list and len(listed) == 1 and type(listed[0]) is int else None

    def as_written(self, listed: Any) -> Any:
        """What the file says where `get` found no ids, for an error line."""
        return self._refused[listed[0]].decode(errors="replace") if type(listed) is list and len(listed) == 1 and type(listed[0]) is int else listed

    def _take(self, text: bytes) -> int:
        """Decode one list; returns its place."""
        known = self._ids if self._text and text.startswith(self._text + b",") else np.zeros(0, np.int64)
        rest = json.loads(b"[" + text[len(self._text) + 1 if len(known) else 0 :] + b"]")
        ids = as_column(rest, self._numbers)
        if ids is not None:
            self._text, self._ids = text, np.concatenate((known, ids))
        else:
            self._refused[len(self._rows)] = b"[" + text + b"]"
        self._rows.append(None if ids is None else self._ids)
        return len(self._rows) - 1
