"""What every reader needs: rows with their line numbers, checked columns, and a reading report that reconciles.

The one idea: a reader collects plain lists, and `Rows` turns them into numpy columns while checking them; the first bad
value is reported as one line naming file, row, field, value and what was expected.

    rows = Rows(path); prompt = rows.integers("input_length", values, low=1); rows.report(requests=len(prompt))
"""
from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from workloads.columns import PrefixTree
from workloads.errors import InputError


class Rows:
    """One trace file while it is read: row numbers of what is kept, counts of what is skipped, notes, content hash."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.number: list[int] = []  #: 1-based file row of every kept request
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        self.read = 0
        self._number_types: tuple[type, ...] = (int, float)
        self._hash = hashlib.sha256()
        if not self.path.exists():
            raise InputError(f"{self.path}: no such file, expected a trace")

    # ---- reading ----

    def json_lines(self) -> Iterator[dict[str, Any]]:
        """Yield one object a line; the caller answers with keep() or skip() for each."""
        with self.path.open("rb") as file:
            for self._line, text in enumerate(file, 1):
                self._hash.update(text)
                if text.isspace():
                    continue
                self.read += 1
                try:
                    row = json.loads(text)
                except (json.JSONDecodeError, UnicodeDecodeError) as problem:
                    self._not_json(text, problem)
                if type(row) is not dict:
                    raise InputError(f"{self.path}, row {self._line}: {_short(row)}, expected a JSON object")
                yield row
        self._not_empty()

    def csv_records(self, required: tuple[str, ...]) -> Iterator[dict[str, str]]:
        """Yield one dict a data row, by column name; blank lines end nothing and count as nothing."""
        self._number_types = (str,)
        content = self.hashed(self.path.read_bytes())
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as problem:
            raise InputError(f"{self.path}: not text ({problem.reason} at byte {problem.start}), expected CSV with columns {', '.join(required)}") from None
        lines = csv.reader(io.StringIO(text))
        header = [name.strip() for name in next(lines, [])]
        if not header:
            raise InputError(f"{self.path}: the file is empty, expected CSV with columns {', '.join(required)}")
        missing = [name for name in required if name not in header]
        if missing:
            raise InputError(f"{self.path}, row 1: no column {missing[0]!r} among {', '.join(map(repr, header))[:200]}, expected {', '.join(required)}")
        for values in lines:
            self._line = lines.line_num
            if not values:
                continue
            self.read += 1
            if len(values) != len(header):
                raise InputError(f"{self.path}, row {self._line}: {len(values)} fields, expected {len(header)}")
            yield dict(zip(header, values, strict=True))
        self._not_empty()

    def hashed(self, content: bytes) -> bytes:
        """Count `content` into the source's hash and hand it back."""
        self._hash.update(content)
        return content

    @property
    def row(self) -> int:
        """1-based file row that is being read."""
        return self._line

    def keep(self) -> None:
        self.number.append(self._line)

    def skip(self, reason: str) -> None:
        self.skipped[reason] += 1

    def _not_empty(self) -> None:
        if not self.read:
            raise InputError(f"{self.path}: the file holds no rows, expected at least one request")

    def _not_json(self, text: bytes, problem: Exception) -> NoReturn:
        if b"\0" in text[:1000]:
            raise InputError(f"{self.path}, row {self._line}: binary data, expected one JSON object a line") from None
        where = f"column {problem.colno}" if isinstance(problem, json.JSONDecodeError) else "not UTF-8"
        raise InputError(f"{self.path}, row {self._line}: not a whole JSON object ({where}): {_short(text.decode(errors='replace'))}, expected one object a line") from None

    # ---- checking ----

    def fail(self, field: str, value: Any, expected: str, row: int | None = None) -> NoReturn:
        """Raise for a value of the current row, or of file row `row`."""
        raise InputError(f"{self.path}, row {self._line if row is None else row}: {field} = {_short(value)}, expected {expected}")

    def need(self, record: dict[str, Any], field: str) -> Any:
        """The field's value in the current row, or one clear line that it is missing."""
        try:
            return record[field]
        except KeyError:
            names = ", ".join(list(record)[:12])
            raise InputError(f"{self.path}, row {self._line}: no field {field!r} among {names}") from None

    def integers(self, field: str, values: list[Any], low: int) -> np.ndarray:
        """int64 column of whole numbers >= low, one a kept row; text counts as a number in CSV, not in JSON."""
        if set(map(type, values)) <= {int}:
            try:
                column = np.array(values, np.int64)
            except OverflowError:
                column = None
        else:
            column = None
        if column is None:
            column = np.array([self._integer(field, v, i, low) for i, v in enumerate(values)], np.int64)
        bad = np.flatnonzero(column < low)
        if len(bad):
            self.fail(field, values[bad[0]], f"a whole number of at least {low}", self.number[bad[0]])
        return column

    def _integer(self, field: str, value: Any, index: int, low: int) -> int:
        try:
            number = float(value) if type(value) in self._number_types else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not number.is_integer() or abs(number) >= 2**53:
            self.fail(field, value, f"a whole number of at least {low}", self.number[index])
        return int(number)

    def seconds(self, field: str, values: list[Any], per_second: float) -> np.ndarray:
        """float64 column of finite times >= 0, converted to seconds by dividing by `per_second`."""
        column = np.empty(len(values))
        for i, value in enumerate(values):
            try:
                column[i] = float(value) if type(value) in self._number_types else math.nan
            except (ValueError, OverflowError):
                column[i] = math.nan
        bad = np.flatnonzero(~np.isfinite(column) | (column < 0))
        if len(bad):
            self.fail(field, values[bad[0]], "a finite number of at least 0", self.number[bad[0]])
        return column / per_second

    # ---- reporting ----

    def note(self, line: str) -> None:
        self.notes.append(line)

    def source(self) -> str:
        return f"{self.path.name} (sha256 {self._hash.hexdigest()})"

    def report(self, requests: int) -> tuple[str, ...]:
        """The notes of the Workload; the first line reconciles rows with requests and skips."""
        skipped = sum(self.skipped.values())
        if self.read != requests + skipped:
            raise AssertionError(f"{self.path}: read {self.read} rows, but {requests} requests + {skipped} skipped")
        if not requests:
            raise InputError(f"{self.path}: all {self.read} rows were skipped ({_reasons(self.skipped)}), expected at least one request")
        why = f" ({_reasons(self.skipped)})" if skipped else ""
        return (f"rows read {self.read} = requests {requests} + skipped {skipped}{why}", *self.notes)


def _reasons(counts: Counter[str]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(counts.items()))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def from_first(arrival_s: np.ndarray, rows: Rows) -> np.ndarray:
    """Times counted from the earliest one; says so when that moved them."""
    start = float(arrival_s.min(initial=np.inf))
    if len(arrival_s) and start:
        rows.note(f"times count from the earliest request, {start:.10g} s in the file")
        return arrival_s - start
    return arrival_s


def note_ties(arrival_s: np.ndarray, rows: Rows) -> None:
    """Report tied and quantised timestamps and order: they make bursts that nobody sent."""
    times, counts = np.unique(arrival_s, return_counts=True)
    if len(times) < len(arrival_s):
        gap = f", distinct times are at least {np.diff(times).min():.6g} s apart" if len(times) > 1 else ""
        rows.note(
            f"timestamps: {len(arrival_s) - len(times)} of {len(arrival_s)} requests tie with an earlier one, up to {counts.max()} at once{gap}; "
            "ties keep file order (jitter_s spreads them)"
        )
    backwards = int((np.diff(arrival_s) < 0).sum())
    if backwards:
        rows.note(f"timestamps: {backwards} rows are earlier than the row before; requests keep file order as their id")


NO_IDENTITY = "this format says nothing about shared text: the hit rate is 0 because no prefix identity was recorded, not because caching would not help"


def nothing_shared(n: int) -> tuple[PrefixTree, np.ndarray]:
    """The tree of n requests without prefix identity: a bare root."""
    return PrefixTree(np.array([-1], np.int32), np.zeros(1, np.int64), np.zeros(1, np.int16)), np.zeros(n, np.int32)
