"""Rows of block hashes as one 64-bit column.

The one idea: an id is only ever compared, so any lossless 64-bit code will do: unsigned 64-bit hashes keep their bits,
text is numbered; anything else is refused rather than cut. Both codes use the same numbers, so a file has ids of one
type.

    >>> column = HashIds()
    >>> column.add([1, 2**64 - 1])
    True
    >>> column.columns()[1].tolist()
    [0, 2]
"""

from __future__ import annotations

import json
import re
from array import array
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from workloads.readers.common import Rows
from workloads.readers.values import NOT_JSON, short

CHUNK_IDS = 1 << 15  #: ids that are held as Python objects at a time: what a processor's cache holds
EXPECTED = "a list of block ids: whole numbers from 0 to 2^64 - 1, or text"


TYPES = {int: "a whole number from 0 to 2^64 - 1", str: "text"}


class IdCodes:
    """The code of every id of one file; its first id decides whether they are whole numbers or text."""

    def __init__(self, kind: type | None = None) -> None:
        self._kind = kind
        self._numbers: dict[str, int] = {}

    def are_numbers(self) -> bool:
        """Whether ids are whole numbers; from now on they are, where none has been seen."""
        self._kind = self._kind or int
        return self._kind is int

    def column(self, ids: list[Any]) -> np.ndarray | None:
        """int64 [len(ids)], or None when an id is neither whole number nor text, or not what the ids before it are."""
        if not ids:
            return np.zeros(0, np.int64)
        kinds = set(map(type, ids))  # type, not isinstance: True is no id
        kind = self._kind or next(iter(kinds))
        if kinds != {kind} or kind not in TYPES:
            return None
        codes = [self._numbers.setdefault(name, len(self._numbers)) for name in ids] if kind is str else ids
        try:
            column = np.array(codes, np.int64)
        except OverflowError:  # hashes beyond 2^63: their bits
            if min(codes) < 0 or max(codes) >= 2**64:
                return None
            column = np.array(codes, np.uint64).view(np.int64)
        else:
            if column.min() < 0:
                return None
        self._kind = kind
        return column

    def problem(self, ids: Any) -> tuple[str, Any, str] | None:
        """(field, value, expectation) of the first thing wrong with a row's `hash_ids`; None when they can be read."""
        if type(ids) is not list:
            return "hash_ids", ids, EXPECTED
        probe = IdCodes(self._kind)
        for i, value in enumerate(ids):
            if probe.column([value]) is None:
                mixed = probe._kind is not None and type(value) in (*TYPES, bool) and type(value) is not probe._kind
                if mixed or short(ids).endswith("..."):
                    like = (
                        f"{TYPES[probe._kind]} like the ids before it: a file has ids of one type"
                        if probe._kind
                        else " or ".join(TYPES.values())
                    )
                    return f"hash_ids[{i}]", value, like
                return "hash_ids", ids, EXPECTED
        return None


class HashIds:
    """Collects the id lists of rows; `add` says at once or at the end of a chunk whether they are ids."""

    def __init__(self) -> None:
        self.lengths = array("q")
        self._pending: list[list[Any]] = []
        self._waiting = 0  # ids of them, and rows
        self._flat = array("i")  # it grows in place, which arrays of numpy do not; "q" once an id needs it
        self._codes = IdCodes()

    def add(self, ids: Any) -> bool:
        """False when the row is no list, or when its chunk holds a bad id (`fail_on_ids` then finds it)."""
        if type(ids) is not list:
            return False
        self.lengths.append(len(ids))
        self._pending.append(ids)
        self._waiting += len(ids) + 1
        return self._waiting < CHUNK_IDS or self._flush()

    def take(self, ids: np.ndarray, counts: np.ndarray) -> bool:
        """Rows whose ids (int64 [sum of counts], none negative) are known to be whole numbers; False, and nothing is
        taken, where the file's are text or a row before them has a bad one."""
        if not (self._flush() and self._codes.are_numbers()):
            return False
        self.lengths.extend(counts.tolist())
        self._append(ids)
        return True

    def _flush(self) -> bool:
        column = self._codes.column(list(chain.from_iterable(self._pending)))
        if column is None:
            return False
        self._append(column)
        self._pending, self._waiting = [], 0
        return True

    def _append(self, column: np.ndarray) -> None:
        if self._flat.typecode == "i" and not np.array_equal(column, column.astype(np.int32)):
            self._flat = array("q", self._flat)
        self._flat.frombytes(column.astype(self._flat.typecode).tobytes())

    def problem(self) -> tuple[int, tuple[str, Any, str]] | None:
        """(row, what is wrong) of the first pending row that cannot be read."""
        first = len(self.lengths) - len(self._pending)
        for i, ids in enumerate(self._pending):
            if self._codes.column(ids) is None:
                return first + i, self._codes.problem(ids) or ("hash_ids", ids, EXPECTED)
        return None

    def columns(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids int32 or int64 flat, offsets int64 [rows + 1]), or None when the last chunk holds a bad id."""
        if not self._flush():
            return None
        flat = np.frombuffer(self._flat, self._flat.typecode) if self._flat else np.zeros(0, np.int64)
        return flat, np.concatenate(([0], np.cumsum(np.array(self.lengths, np.int64))))


def fail_on_ids(rows: Rows, ids: HashIds, record: dict[str, Any]) -> NoReturn:
    """Name the row whose ids could not be read: the current one (`record`) or one still pending."""
    found = ids.problem()
    if found is None:
        rows.fail("hash_ids", record.get("hash_ids"), EXPECTED)
    rows.fail(*found[1], rows.number[found[0]])


_HASH_IDS = re.compile(rb'"hash_ids"\s*:\s*\[')


class IdRows:
    """The hash_ids lists of one session, 98 % of its text, decoded apart.

    Nearly every list begins with the whole list before it, so only the rest of it needs decoding. A list that was taken
    out leaves a list of one negative number, which no id is; a list that was not (nested, or text with brackets) stays.
    """

    def __init__(self, codes: IdCodes | None = None) -> None:
        self._text, self._ids = b"", np.zeros(0, np.int64)
        self._rows: list[np.ndarray | None] = []
        self._refused: dict[int, list[Any]] = {}  # place -> a list whose items are no ids
        self._codes = codes or IdCodes()

    def taken_out_of(self, document: bytes) -> bytes:
        """The document with every flat list of ids replaced by a list of one negative number, which `get` knows."""
        kept, done = [], 0
        for found in _HASH_IDS.finditer(document):
            end = document.find(b"]", found.end())
            text = document[found.end() : end]
            place = self._take(text) if end >= 0 and b"[" not in text else None
            if place is not None:
                kept += [document[done : found.end()], b"%d" % (-1 - place)]
                done = end
        return b"".join([*kept, document[done:]])

    def get(self, listed: Any) -> np.ndarray | None:
        """int64 ids of a list, or of what now stands for one that was taken out; None when its items are no ids."""
        place = self._place(listed)
        if place is not None:
            return self._rows[place]
        return self._codes.column(listed) if type(listed) is list else None

    def problem(self, listed: Any) -> tuple[str, Any, str]:
        """(field, value, expectation) for an error line where `get` found no ids."""
        place = self._place(listed)
        ids = listed if place is None else self._refused[place]
        return self._codes.problem(ids) or ("hash_ids", ids, EXPECTED)

    def _place(self, listed: Any) -> int | None:
        if type(listed) is list and len(listed) == 1 and type(listed[0]) is int and -len(self._rows) <= listed[0] < 0:
            return -1 - listed[0]
        return None

    def _take(self, text: bytes) -> int | None:
        """Decode one list; returns its place, or None when it is not all of one."""
        known = self._ids if self._text and text.startswith(self._text + b",") else np.zeros(0, np.int64)
        new = text[len(self._text) + 1 if len(known) else 0 :]
        try:
            rest = json.loads(b"[" + new + b"]")
        except NOT_JSON:
            return None
        if len(known) and not rest:
            return None  # a comma, and nothing after it
        ids = self._codes.column(rest)
        if ids is not None:
            self._text, self._ids = text, np.concatenate((known, ids))
        else:
            self._refused[len(self._rows)] = json.loads(b"[" + text + b"]")
        self._rows.append(None if ids is None else self._ids)
        return len(self._rows) - 1
