"""What every reader needs: rows with their line numbers, checked columns, and a reading report that reconciles.

The one idea: a reader collects plain lists, and `Rows` turns them into numpy columns while checking them; the first bad
value is reported as one line naming file, row, field, value and what was expected.

    rows = Rows(path); prompt = rows.integers("input_length", values, low=1); rows.report(requests=len(prompt))
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Iterator, MutableSequence, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from workloads.columns import PrefixTree
from workloads.errors import InputError, on_one_line
from workloads.limits import MAX_SECONDS, MAX_TOKENS, WITHIN
from workloads.readers import units
from workloads.readers.collected import Collected
from workloads.readers.container import Contents, look
from workloads.readers.records import Taken, document, objects, records
from workloads.readers.values import as_float, number, short, trace_file

MAX_CLASSES = 1000  #: the rarest beyond that are one class, "other"
MAX_CLOCK_S = 1e10  #: clock times that are no whole numbers: a float resolves 2 microseconds there


class Rows:
    """One trace file while it is read: row numbers of what is kept, counts of what is skipped, notes, content hash."""

    def __init__(self, path: str | Path, timestamp_unit: str = "") -> None:
        """timestamp_unit: s, ms, us or ns, of every time in the file; "" for the format's own."""
        self.path = trace_file(path)
        self.timestamp_unit = timestamp_unit
        self.number: MutableSequence[int] = array("q")  #: 1-based file row of every kept request
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        self.read = 0
        self._line = 0
        self._hash = hashlib.sha256()

    # ---- reading ----

    def records(self, needed: tuple[str, ...] = (), taken: Taken = None) -> Iterator[dict[str, Any]]:
        """Yield one dict a row, whatever holds them; the caller answers with keep() or skip() for each. `needed`:
        columns that a table must have. `taken`: who takes many lines at once instead (`records.Taken`) and answers for
        each of their rows too."""
        contents = look(self.path)
        self._note_packed(contents)

        def counted(lines: bytes, before: int) -> int:
            count = taken(lines, before) if taken is not None else 0
            self.read += count
            return count

        for at, row in records(self.path, contents, needed, self._hash.update, taken and counted):
            self._line = at
            self.read += 1
            yield row
        self._not_empty()

    def document(self) -> dict[str, Any]:
        """The one JSON object that a file is; its parts are counted by `each`, or by the caller."""
        self._note_packed(look(self.path))
        whole = document(self.path, self._hash.update)
        if type(whole) is not dict:
            raise InputError(f"{self.path}: {short(whole)}, expected one JSON object")
        return whole

    def objects(self) -> list[dict[str, Any]]:
        """The JSON objects that a file is, one after another: each whole in memory, however large; counted as
        `document`'s."""
        self._note_packed(look(self.path))
        return objects(self.path, self._hash.update)

    def each(self, items: Any, field: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list in the document, which count as rows; keep() or skip() for each."""
        if type(items) is not list:
            raise InputError(f"{self.path}: {field} = {short(items)}, expected a list of objects")
        for at, row in enumerate(items, 1):
            self._line = at
            self.read += 1
            if type(row) is not dict:
                self.fail(field, row, "an object")
            yield row
        self._not_empty()

    def _note_packed(self, contents: Contents) -> None:
        if contents.packed:
            self.note(f"packed: {contents.words}; the hash is of what it holds")

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

    def keep_all(self, numbers: np.ndarray) -> None:
        """File rows int64 [n] that were taken as they are."""
        self.number.extend(numbers.tolist())

    def skip(self, reason: str, count: int = 1) -> None:
        self.skipped[reason] += count

    def _not_empty(self) -> None:
        if not self.read:
            raise InputError(f"{self.path}: the file holds no rows, expected at least one request")

    # ---- checking ----

    def fail(self, field: str, value: Any, expected: str, row: int | None = None) -> NoReturn:
        """Raise for a value of the current row, or of file row `row`."""
        where = f"{self.path}, row {self._line if row is None else row}"
        raise InputError(f"{where}: {on_one_line(field)} = {short(value)}, expected {expected}")

    def need(self, record: dict[str, Any], field: str) -> Any:
        """The field's value in the current row, or one clear line that it is missing."""
        try:
            return record[field]
        except KeyError:
            names = on_one_line(", ".join(list(record)[:12]))
            raise InputError(f"{self.path}, row {self._line}: no field {field!r} among {names}") from None

    def integers(self, field: str, values: Sequence[Any], low: int) -> np.ndarray:
        """int64 column of whole numbers from `low` to 1e9, one a kept row; a number's text counts as the number."""
        column = self._numbers(values)
        bad = np.flatnonzero(~((column >= low) & (column <= MAX_TOKENS) & (column == np.floor(column))))
        if len(bad):
            at = bad[0]
            expected = f"at most {MAX_TOKENS}" if column[at] > MAX_TOKENS else f"a whole number of at least {low}"
            self.fail(field, values[at], expected, self.number[at])
        return column.astype(np.int64)

    def is_zero(self, value: Any) -> bool:
        """Whether a count is a number and 0 (also "00" and "0.0"): a request that generated nothing."""
        return number(value) == 0

    def _numbers(self, values: Sequence[Any]) -> np.ndarray:
        """int64 where all values are whole numbers that fit, else float64 with NaN for what is no number."""
        if isinstance(values, Collected) and (whole := values.integers()) is not None:
            return whole
        numbers = values if set(map(type, values)) == {int} else [number(value) for value in values]
        try:
            return np.array(numbers, np.int64 if set(map(type, numbers)) <= {int} else np.float64)
        except OverflowError:
            return np.array([as_float(n) for n in numbers])

    def clock(
        self,
        field: str,
        values: Sequence[Any],
        per_second: float,
        file_rows: Sequence[int] | None = None,
        why: str = "the format's documentation",
        sure: bool = False,
    ) -> np.ndarray:
        """float64 column of seconds since the earliest: recorded times >= 0 of any clock that ticks `per_second` times
        a second (or `timestamp_unit`, where it is set), or times of day as text. The unit and why are noted; what
        leaves it in doubt is a question (`units.doubt`).

        Whole numbers are subtracted as such, so nanoseconds since 1970 keep all their digits. `file_rows`: those of
        the values, where they are not the kept ones. `sure`: nothing leaves it in doubt, as when a benchmark that sends
        all at once wrote the times.
        """
        file_rows = self.number if file_rows is None else file_rows
        if any(type(value) is not int and type(value) is not float for value in values) and units.is_wall_clock(values):
            return self.wall_clock(field, values, file_rows)
        column = self._numbers(values)
        bad = ~(np.isfinite(column) & (column >= 0))
        first = values[int(bad.argmax())] if bad.any() else None
        text = type(first) is str and np.isnan(number(first))
        day = ", or a time like 2023-11-16 18:17:03.9799600" if text else ""
        self._refuse(field, values, bad, f"a finite number of at least 0{day}", file_rows)
        own = next(unit for unit, ticks in units.PER_SECOND.items() if ticks == per_second)
        unit, why = units.unit_of(field, values, column, own, self.timestamp_unit, why)
        per_second = units.PER_SECOND[unit]
        if not sure and (question := units.question(field, column, unit, why)):
            raise InputError(f"{self.path}: {question}")
        if column.dtype == np.float64:
            self._refuse(
                field,
                values,
                column > MAX_CLOCK_S * per_second,
                f"a time that a float resolves, at most {MAX_CLOCK_S * per_second:g}",
                file_rows,
            )
        elapsed = from_first(column, self, field, per_second, file_rows, values)
        self.note(f"time unit: {field} in {unit} ({why}){units.pace(elapsed)}")
        return elapsed

    def wall_clock(self, field: str, values: Sequence[Any], file_rows: Sequence[int] | None = None) -> np.ndarray:
        """float64 seconds since the earliest of times of day as text."""
        if self.timestamp_unit:
            self.fail(
                "[workload] timestamp_unit", self.timestamp_unit, f"none: {field} = {short(values[0])} is a time of day"
            )
        file_rows = self.number if file_rows is None else file_rows
        times = []
        for value, row in zip(values, file_rows, strict=True):
            time = units.wall_clock_ns(value)
            if time is None:
                self.fail(field, value, "a time like 2023-11-16 18:17:03.9799600", row)
            times.append(time)
        earliest = min(times, default=0)
        late = next((i for i, time in enumerate(times) if time - earliest > MAX_SECONDS * 10**9), None)
        if late is not None:
            self.fail(field, values[late], f"{WITHIN} after the earliest time in the file", file_rows[late])
        elapsed = np.array([time - earliest for time in times], np.int64) / 1e9
        self.note("times count from the earliest request; the file holds wall clock times")
        self.note(f"time unit: {field} is a time of day (its text){units.pace(elapsed)}")
        return elapsed

    def no_times(self, n: int) -> np.ndarray:
        """float64 [n] of NaN, for a file without times: `load` runs it at a fixed concurrency or at a rate, or says
        that it takes one of them."""
        self.note(NO_TIMES)
        return np.full(n, np.nan)

    def seconds(self, field: str, values: Sequence[Any], per_second: float) -> np.ndarray:
        """float64 column of finite times >= 0, converted to seconds by dividing by `per_second`."""
        column = self._numbers(values)
        self._refuse(
            field, values, ~(np.isfinite(column) & (column >= 0)), "a finite number of at least 0", self.number
        )
        return column / per_second

    def durations(self, field: str, values: Sequence[Any], per_second: float) -> np.ndarray:
        """As `seconds`, none longer than 1e9 s."""
        column = self.seconds(field, values, per_second)
        self._refuse(field, values, column > MAX_SECONDS, WITHIN, self.number)
        return column

    def _refuse(
        self, field: str, values: Sequence[Any], bad: np.ndarray, expected: str, file_rows: Sequence[int]
    ) -> None:
        if bad.any():
            at = int(bad.argmax())
            self.fail(field, values[at], expected, file_rows[at])

    # ---- reporting ----

    def note(self, line: str) -> None:
        self.notes.append(on_one_line(line))

    def source(self) -> str:
        return f"{self.path.name} (sha256 {self._hash.hexdigest()})"

    def report(self, requests: int) -> tuple[str, ...]:
        """The notes of the Workload; the first line reconciles rows with requests and skips."""
        if not self.read:
            raise InputError(f"{self.path}: the file holds no requests, expected at least one")
        skipped = sum(self.skipped.values())
        if self.read != requests + skipped:
            raise AssertionError(f"{self.path}: read {self.read} rows, but {requests} requests + {skipped} skipped")
        if not requests:
            raise InputError(
                f"{self.path}: all {self.read} rows were skipped ({_reasons(self.skipped)}), expected at least one"
                " request"
            )
        why = f" ({_reasons(self.skipped)})" if skipped else ""
        return (f"rows read {self.read} = requests {requests} + skipped {skipped}{why}", *self.notes)


def _reasons(counts: Counter[str]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(counts.items()))


def from_first(
    times: np.ndarray,
    rows: Rows,
    field: str = "timestamp",
    per_second: float = 1,
    file_rows: Sequence[int] | None = None,
    shown: Sequence[Any] | None = None,
) -> np.ndarray:
    """float64 seconds since the earliest of `times` [n] (int64 or float64, `per_second` to the second); says so when
    that moved them. InputError for one more than 1e9 s later, in `file_rows` (default: the kept rows), as `shown`
    there."""
    if not len(times):
        return times.astype(np.float64)
    start = times.min()
    elapsed = (times - start) / per_second
    late = np.flatnonzero(~(elapsed <= MAX_SECONDS))
    if len(late):
        row = (rows.number if file_rows is None else file_rows)[late[0]]
        rows.fail(
            field,
            times[late[0]].item() if shown is None else shown[late[0]],
            f"{WITHIN} after the earliest time in the file",
            row,
        )
    if start:
        rows.note(f"times count from the earliest request, {start / per_second:.10g} s in the file")
    return elapsed


_FAILED = re.compile(r"(fail|error|time.?out|cancel|abort|reject|refus)", re.ASCII | re.IGNORECASE)
_SUCCESS = ("success", "ok", "succeeded")
_STATUS = ("status_code", "http_status", "status", "response_code", "code")
_ERROR = ("error", "error_message", "error_code", "exception")
_SAYS = {*_SUCCESS, *_STATUS, *_ERROR}
_NOTHING = ("null", "None", "none", "nan", "NaN", "false", "False", "0", "{}", "[]")


def failure(record: dict[str, Any]) -> str:
    """Why a row says of itself that it is no served request: success, status or error; "" for one that is."""
    if _SAYS.isdisjoint(record):
        return ""
    for name in _SUCCESS:
        if record.get(name) in (False, 0, "false", "False", "FALSE", "0"):
            return f"{name} = false"
    for name in _STATUS:
        value = record.get(name)
        if type(value) is str and _FAILED.match(value):
            return f"{name} = {value[:20]}"
        if 400 <= number(value) < 600:
            return f"{name} = {value}"
    for name in _ERROR:
        if record.get(name) and record[name] not in _NOTHING:
            return f"{name} is set"
    return ""


def classes(names: list[str], rows: Rows, what: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """(class_id int16 [n], class names in order); the rarest beyond MAX_CLASSES become "other", with a note."""
    count = Counter(names)
    kept = sorted(count)
    if len(count) > MAX_CLASSES:
        kept = sorted({*sorted(count, key=lambda name: (-count[name], name))[: MAX_CLASSES - 1], "other"})
        rows.note(
            f"{what}: {len(count)} distinct ones, the {len(set(count) - set(kept))} with the fewest requests are the"
            " class 'other'"
        )
    code = {name: i for i, name in enumerate(kept)}
    other = code.get("other", -1)
    return np.array([code.get(name, other) for name in names], np.int16), tuple(kept)


def note_ties(arrival_s: np.ndarray, rows: Rows) -> None:
    """Report tied and quantised timestamps and order: they make bursts that nobody sent."""
    times, counts = np.unique(arrival_s, return_counts=True)
    if len(times) < len(arrival_s):
        gap = f", distinct times are at least {np.diff(times).min():.6g} s apart" if len(times) > 1 else ""
        rows.note(
            f"timestamps: {len(arrival_s) - len(times)} of {len(arrival_s)} requests tie with an earlier one, up to"
            f" {counts.max()} at once{gap}; ties keep file order (jitter_s spreads them)"
        )
    backwards = int((np.diff(arrival_s) < 0).sum())
    if backwards:
        rows.note(f"timestamps: {backwards} rows are earlier than the row before; requests keep file order as their id")


NO_TIMES = "the file holds no times: requests are in file order, and arrive at a fixed concurrency or at a rate you set"

NO_IDENTITY = (
    "this format says nothing about shared text: the hit rate is 0 because no prefix identity was recorded, not because"
    " caching would not help"
)


def nothing_shared(n: int) -> tuple[PrefixTree, np.ndarray]:
    """The tree of n requests without prefix identity: a bare root."""
    return PrefixTree(np.array([-1], np.int32), np.zeros(1, np.int64), np.zeros(1, np.int16)), np.zeros(n, np.int32)
