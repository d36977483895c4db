"""Lines of JSON that hold the same few whole numbers and one list of them, as columns: no Python object a value.

The one idea: without its digits every such line is the same text but for the list's commas. Where that is so, and
digits are in every place for a number and nowhere else, the lines are JSON, and their numbers are read as one text of
numbers. All else (a sign, a fraction, an empty list, another field, other spaces) is for who reads row by row.

    >>> PlainLines(("at", "ids"), listed="ids").read(b'{"at": 7, "ids": [1, 2]}').columns
    {'at': array([7]), 'ids': array([1, 2])}
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from workloads.readers.values import NOT_JSON

DIGITS = b"0123456789"
STYLES = ((b", ", b": "), (b",", b":"))
"""What stands between two values and behind a name: as json.dumps writes by itself, and without spaces."""
MOST = np.iinfo(np.int64).max
"""What 64 bits cannot hold is read as this."""
_DIGIT, _BEFORE, _BEHIND, _ZERO = 1, 2, 4, 8
_NUMBERS = bytes(byte if byte in DIGITS else ord(" ") for byte in range(256))


class Plain(NamedTuple):
    """Rows as columns of whole numbers of at least 0."""

    columns: dict[str, np.ndarray]  #: int64 [rows]; of the list int64 [sum of counts], one row behind the other
    counts: np.ndarray  #: int64 [rows], numbers in a row's list, at least 1


class _Shape(NamedTuple):
    """A line without its digits: `before`, then `between` for each two numbers of the list, then `behind`."""

    names: list[str]
    before: bytes
    between: bytes
    behind: bytes
    signs: bytes  #: 256 flags: what may stand before a number, behind one, in one


class PlainLines:
    """Reads lines that hold `names`, in any order that all have; `listed` is the one whose value is a list."""

    def __init__(self, names: Collection[str], listed: str) -> None:
        self._names, self._listed = set(names), listed

    def read(self, lines: bytes) -> Plain | None:
        """The rows of whole lines, or None where one of them is not plain."""
        lines = lines if lines.endswith(b"\n") else lines + b"\n"
        shape = self._shape(lines[: lines.index(b"\n")])
        counts = None if shape is None else _counts(lines.translate(None, DIGITS), shape)
        if shape is None or counts is None or not _only_between(lines, shape.signs):
            return None
        numbers = np.fromstring(lines.translate(_NUMBERS), np.int64, sep=" ")
        width = len(shape.names) - 1 + counts
        if len(numbers) != width.sum() or numbers.max() == MOST:
            return None
        at, listed, columns = np.cumsum(width) - width, np.ones(len(numbers), bool), {}
        for name in shape.names:
            if name == self._listed:
                at = at + counts
                continue
            columns[name] = numbers[at]
            listed[at] = False
            at = at + 1
        return Plain(columns | {self._listed: numbers[listed]}, counts)

    def _shape(self, line: bytes) -> _Shape | None:
        """What all lines must be like that are like this one."""
        try:
            row = json.loads(line)
        except NOT_JSON:
            return None
        if type(row) is not dict or set(row) != self._names:
            return None
        for comma, colon in STYLES:
            fields = [b'"%s"' % name.encode() + colon + b"[]" * (name == self._listed) for name in row]
            before, behind = (b"{" + comma.join(fields) + b"}\n").split(b"[]")
            if line.translate(None, DIGITS).startswith(before):
                return _Shape(list(row), before + b"[", comma, b"]" + behind, _signs(colon[-1:] + comma[-1:] + b"["))
        return None


def _signs(before: bytes) -> bytes:
    flags = dict.fromkeys(DIGITS, _DIGIT | _BEFORE | _BEHIND)
    flags[ord("0")] |= _ZERO
    for signs, flag in ((before, _BEFORE), (b",]}", _BEHIND)):
        for sign in signs:
            flags[sign] = flags.get(sign, 0) | flag
    return bytes(flags.get(byte, 0) for byte in range(256))


def _counts(undigited: bytes, shape: _Shape) -> np.ndarray | None:
    """int64 [rows]: places in each row's list; None where a line is not of the shape."""
    first, *rest = undigited.split(shape.before)
    sizes = np.fromiter(map(len, rest), np.int64, len(rest))
    commas = (sizes - len(shape.behind)) // len(shape.between)
    like = {shape.between * count + shape.behind for count in np.unique(commas).tolist()}
    return None if first or not set(rest) <= like else commas + 1


def _only_between(lines: bytes, signs: bytes) -> bool:
    """Whether each run of digits is between what may stand before and behind a number, and begins with a 0 only where
    it is one digit. That and as many runs as places: each place has one number, and digits are nowhere else."""
    flags = np.frombuffer(lines.translate(signs), np.uint8)
    digit = flags & _DIGIT
    astray = (digit[1:] & ~(flags[:-1] // _BEFORE)) | (digit[:-1] & ~(flags[1:] // _BEHIND))
    zeros = (flags[1:-1] // _ZERO) & digit[2:] & ~digit[:-2]
    return not (astray.any() or (zeros & 1).any())
