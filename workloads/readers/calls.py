"""Logs of calls that were made: benchmark results, spend logs, traces of an application; one record a request.

The one idea: a format is a `CallLog`: where its records lie, what one record says (a `Call`, or why it is none), and
what its clock counts. Reading a log as a trace and taking the times it measured (`measured.py`) are the same walk.

    LOG = CallLog(Call("prompt_tokens", "completion_tokens", "startTime"), recognised, records, call)
    looks_like, read = LOG.looks_like, LOG.read
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workloads.columns import Workload
from workloads.errors import InputError
from workloads.limits import MAX_TOKENS
from workloads.readers.common import NO_IDENTITY, Rows, classes, note_ties, nothing_shared
from workloads.readers.head import Head
from workloads.readers.lengths import numbered
from workloads.readers.paths import at
from workloads.readers.private import PrivateRows
from workloads.readers.units import PER_SECOND, wall_clock_ns
from workloads.readers.values import as_float, number, short

Record = dict[str, Any]
_NAME = re.compile(rb'"(\w+)"\s*:')


FAILED, NOTHING = "it failed", "zero output"
"""Why a record of a call without an answer is skipped."""


class NoRequestsError(InputError):
    """A result of aggregates only: it is no trace, and its `summary` can still be compared with."""


class Call(NamedTuple):
    """What a record says about one request, as it stands there; None or "" for what it does not say."""

    prompt: Any  #: tokens
    output: Any  #: tokens
    time: Any = None  #: when it was sent: a number of the log's clock, or a date with a time
    group: Any = ""  #: its class: a model, a strategy
    session: Any = ""
    cached: Any = None  #: prompt tokens that the server said came from its cache
    counted: Any = None  #: prompt tokens as the server counted them, where `prompt` is the client's count
    more: Any = None  #: what else the format's own reader needs


class Timing(NamedTuple):
    """What was measured of one request, in seconds; None for what was not."""

    ttft_s: Any = None  #: from sending it to its first token
    e2e_s: Any = None  #: from sending it to its end
    tpot_s: Any = None  #: mean time between tokens after the first; None: (e2e - ttft) / (output - 1)
    gaps_s: Sequence[Any] = ()  #: between one token and the next, where each was recorded


class Walk:
    """The requests of a log, as one list a field of `Call`, in file order."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.timings: list[Timing] = []
        self._columns: tuple[list[Any], ...] = tuple([] for _ in Call._fields)
        self._append = [column.append for column in self._columns]
        self._groups = self.column("group")
        self._same: dict[str, str] = {}  # a class's name is one text in memory, however many rows have it

    def __len__(self) -> int:
        return len(self._columns[0])

    def column(self, name: str) -> list[Any]:
        return self._columns[Call._fields.index(name)]

    def add(self, call: Call) -> None:
        for append, value in zip(self._append, call, strict=True):
            append(value)
        group = str(call.group) if call.group else "all"
        self._groups[-1] = self._same.setdefault(group, group)

    def of_run(self, name: str | None) -> Walk:
        """The same of one run, of a file whose classes are runs; InputError when it is not said which."""
        groups = self.column("group")
        names = list(dict.fromkeys(groups))
        if name is None and len(names) < 2:
            return self
        if name not in names:
            raise InputError(
                f"{self.rows.path}: {len(names)} runs, expected the name of one: {', '.join(map(short, names))}"
            )
        kept = [i for i, group in enumerate(groups) if group == name]
        one = Walk(self.rows)
        one._columns = tuple([column[i] for i in kept] for column in self._columns)
        one.timings = [self.timings[i] for i in kept]
        self.rows.number = [self.rows.number[i] for i in kept]
        return one

    @property
    def has_times(self) -> bool:
        return any(time is not None and time != "" for time in self.column("time"))


class LogRows(PrivateRows):
    """Rows of a log, which may hold texts: a row that is none is not shown, and the counts and times of one are."""

    fail = Rows.fail


@dataclass(frozen=True)
class CallLog:
    """A format: where its records lie and what one says."""

    names: Call  #: what the format calls the fields, for error lines
    recognised: Callable[[Head], str | None]  #: why a file with this head is one of the format
    records: Callable[[Rows], Iterable[Record]]
    call: Callable[[Record], Call | str]  #: or why the record is no request that was answered
    unit: str = ""  #: of its clock, where that is a number; "": it holds dates
    why: str = "it is documented so"  #: how the unit is known
    timing: Callable[[Record], Timing] | None = None  #: None: the format holds no measured times
    summary: Callable[[Rows], dict[str, float]] | None = None  #: its own aggregates, by vLLM's names
    groups: str = "models"  #: what its classes are
    are_runs: bool = False  #: a class is a run of its own: what they measured is no one distribution
    notes: tuple[str, ...] = ()  #: what to know about every file of the format

    def looks_like(self, head: Head) -> str | None:
        return self.recognised(head)

    def walk(self, rows: Rows, timed: bool = False) -> Walk:
        """Every request that was answered. timed: with what was measured of it."""
        walk = Walk(rows)
        for record in self.records(rows):
            call = self.call(record)
            reason = call if isinstance(call, str) else _unanswered(call)
            if reason:
                rows.skip(reason)
                continue
            rows.keep()
            walk.add(call)  # type: ignore[arg-type]  # a text is a reason
            if timed and self.timing:
                walk.timings.append(self.timing(record))
        return walk

    def read(self, path: str | Path, timestamp_unit: str = "") -> Workload:
        """Requests in file order; `timestamp_unit` (s, ms, us, ns) instead of the format's own."""
        return self.read_walk(path, timestamp_unit)[0]

    def read_walk(self, path: str | Path, timestamp_unit: str = "") -> tuple[Workload, Walk]:
        """The same, with what was read."""
        walk = self.walk(LogRows(path, timestamp_unit))
        rows, n = walk.rows, len(walk)
        prompt, output = self.tokens(walk)
        arrival_s = self.clock(walk)
        for line in (*self.notes, *_server_notes(walk, prompt), NO_IDENTITY):
            rows.note(line)
        class_id, class_names = classes(walk.column("group"), rows, self.groups)
        sessions = [str(name or "") for name in walk.column("session")]
        grouped = len(set(filter(None, sessions))) < sum(map(bool, sessions))
        if grouped:
            rows.note(f"{self.names.session} groups requests here; when they arrive stays as recorded")
        notes = rows.report(n)
        tree, leaf = nothing_shared(n)
        workload = Workload(
            tree=tree,
            arrival_s=arrival_s,
            prompt_tokens=prompt,
            output_tokens=output,
            leaf=leaf,
            class_id=class_id,
            class_names=class_names,
            class_slo=("",) * len(class_names),
            session_id=numbered(sessions) if grouped else None,
            prefix_identity=False,
            source=rows.source(),
            notes=notes,
        )
        return workload, walk

    def tokens(self, walk: Walk) -> tuple[np.ndarray, np.ndarray]:
        """(prompt, output), int64 [n] each."""
        return (
            walk.rows.integers(self.names.prompt, walk.column("prompt"), low=1),
            walk.rows.integers(self.names.output, walk.column("output"), low=1),
        )

    def clock(self, walk: Walk) -> np.ndarray:
        """float64 [n], seconds since the earliest request; NaN where the file has no times."""
        rows, field, times = walk.rows, self.names.time, walk.column("time")
        if not walk.has_times:
            return rows.no_times(len(times))
        if not (self.unit or rows.timestamp_unit) and not math.isnan(as_float(number(times[0]))):
            rows.fail(field, times[0], "a date with a time, or timestamp_unit = s, ms, us or ns", rows.number[0])
        arrival_s = rows.clock(field, times, PER_SECOND[self.unit or "s"], why=self.why, sure=self.timing is not None)
        note_ties(arrival_s, rows)
        return arrival_s


def _unanswered(call: Call) -> str:
    """Why a call is no request to replay; "" for one that is."""
    for value, none, zero in (
        (call.output, "no output tokens recorded", NOTHING),
        (call.prompt, "no prompt tokens recorded", "zero input"),
    ):
        if value is None or value == "":
            return none
        if number(value) == 0:
            return zero
    return ""


def _server_notes(walk: Walk, prompt: np.ndarray) -> list[str]:
    """What the server said beside the client's counts: how many prompt tokens there were, and came from its cache."""
    counted, cached = (_numbers(walk.column(name)) for name in ("counted", "cached"))
    notes = []
    both = ~np.isnan(counted)
    if (counted[both] != prompt[both]).any():
        notes.append(
            f"the server counted {int(counted[both].sum()):,} prompt tokens where the benchmark counted"
            f" {int(prompt[both].sum()):,}, which is read: a chat template's tokens are not among them"
        )
    if (cached > 0).any():
        known = ~np.isnan(cached)
        served, of = int(cached[known].sum()), int(np.where(both & (counted > 0), counted, prompt)[known].sum())
        notes.append(
            f"the provider served {served:,} of {of:,} prompt tokens ({served / of:.1%}) from its cache; which text"
            " they were is not recorded, so none of it is shared here"
        )
    return notes


def _numbers(values: list[Any]) -> np.ndarray:
    """float64 [n] of counts; NaN for what is none."""
    column = np.array([as_float(number(value)) for value in values], np.float64)
    return np.where((column >= 0) & (column <= MAX_TOKENS), column, np.nan)


# ---- what formats are made of ----


def first(record: Any, *paths: str) -> Any:
    """The first value that is there, of dotted paths into nested objects and texts that are those in JSON."""
    if type(record) is not dict:
        return None
    for path in paths:
        value = record.get(path)
        if value is None and path.partition(".")[0] in record:  # a million rows ask for what they do not have
            value = at(record, path)
        if value is not None and value != "":
            return value
    return None


def names_in(head: Head, *wrappers: str) -> set[str]:
    """The field names of a file's rows, also where they lie in a list of one of these names."""
    names = head.keys | set(head.columns)
    if names & set(wrappers):
        names = names | {name.decode() for name in _NAME.findall(head.bytes)}
    return names


def entries(rows: Rows, *names: str) -> Iterator[Record]:
    """The rows of a file, or those in the lists of one of these names in its objects, as an API answers in pages."""
    found: list[Any] = []
    pages = 0
    for record in rows.records():
        name = next((name for name in names if type(record.get(name)) is list), None)
        if name is None:
            yield record
        else:
            found, pages = found + record[name], pages + 1
    if pages:
        rows.read -= pages  # a page is no row; its entries are
        yield from rows.each(found, "entry")


def scaled(value: Any, per_second: float) -> Any:
    """Seconds of a value in other units; a value that is no number stays, for an error line."""
    return value if value is None or math.isnan(seconds := as_float(number(value))) else seconds / per_second


def between(start: Any, end: Any, per_second: float = 1) -> float | None:
    """Seconds from start to end, dates or numbers of one clock; None unless both are there and in this order."""
    dates = wall_clock_ns(start), wall_clock_ns(end)
    if dates[0] is not None and dates[1] is not None:
        start, end, per_second = *dates, 10**9
    start, end = number(start), number(end)
    return as_float(end - start) / per_second if end >= start else None
