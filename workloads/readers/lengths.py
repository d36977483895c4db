"""CSV traces of arrivals and lengths: a format is the names of its columns.

The one idea: these formats differ in what they call things. None says anything about shared text, so every request is
its own; a row that generated nothing is skipped with a count.

    >>> read("rr_conv_70.csv", Columns("prompt_size", "token_size", "arrival_timestamp"))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.readers.common import NO_IDENTITY, Rows, classes, note_ties, nothing_shared
from workloads.readers.head import Head

Skip = Callable[[Rows, dict[str, Any]], str]
"""(rows, record) -> why a row is no request; "" for one that is."""
Clock = Callable[[Rows, list[Any], int], np.ndarray]
"""(rows, values of the time column, number of requests) -> float64 [n], seconds."""


@dataclass(frozen=True)
class Columns:
    """What a format calls the columns; "" for one that it does not have."""

    prompt: str  #: tokens, whole numbers from 1
    output: str  #: tokens, whole numbers from 1; a row with 0 is skipped
    time: str  #: seconds of any clock, from 0, unless the format has a clock of its own
    group: str = ""  #: requests of one value are a class; the column may be missing
    groups: str = ""  #: what several of them are called
    group_name: str = "{}"  #: a class's name, of the value
    no_group: str = "all"  #: the value where a row has none
    session: str = ""  #: the column may be missing, and a row without one is a session of its own

    def found_in(self, head: Head) -> str | None:
        """Why a file with this head is one of the format."""
        names = (self.time, self.prompt, self.output)
        return (
            f"its {'header has' if head.columns else 'rows have'} {', '.join(names)}"
            if set(names) <= head.keys
            else None
        )


def seconds(rows: Rows, times: list[Any], time: str) -> np.ndarray:
    """float64 [n], seconds since the earliest of recorded seconds or times of day; ties are noted."""
    arrival_s = rows.clock(time, times, per_second=1)
    note_ties(arrival_s, rows)
    return arrival_s


def read(
    path: str | Path,
    names: Columns,
    skip: Skip | None = None,
    clock: Clock | None = None,
    needed: tuple[str, ...] = (),
    timestamp_unit: str = "",
) -> Workload:
    """Requests in file order. skip, clock: the format's own, where it has some; needed: the columns a file must have,
    in the order of its error lines (default: time, prompt, output)."""
    rows = Rows(path, timestamp_unit)
    needed = needed or (names.time, names.prompt, names.output)
    values: dict[str, list[Any]] = {
        name: [] for name in (names.prompt, names.output, names.time, names.group, names.session)
    }
    for record in rows.records(needed):
        for name in needed:
            rows.need(record, name)
        reason = (skip and skip(rows, record)) or ("zero output" if rows.is_zero(record[names.output]) else "")
        if reason:
            rows.skip(reason)
            continue
        rows.keep()
        for name, kept in values.items():
            value = record.get(name)
            kept.append(value.strip() if type(value) is str else value)
    prompt = rows.integers(names.prompt, values[names.prompt], low=1)
    output = rows.integers(names.output, values[names.output], low=1)
    times = values[names.time] if any(value is not None for value in values[names.time]) else []
    arrival_s = clock(rows, times, len(prompt)) if clock else seconds(rows, times, names.time)
    rows.note(NO_IDENTITY)
    groups = [
        names.group_name.format(names.no_group if value is None or value == "" else value)
        for value in values[names.group]
    ]
    class_id, class_names = classes(groups, rows, names.groups)
    sessions = values[names.session]
    if any(sessions):
        rows.note(f"{names.session} groups requests here; when they arrive stays as recorded")
    notes = rows.report(len(prompt))
    tree, leaf = nothing_shared(len(prompt))
    return Workload(
        tree=tree,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        leaf=leaf,
        class_id=class_id,
        class_names=class_names,
        class_slo=("",) * len(class_names),
        session_id=numbered(sessions) if any(sessions) else None,
        prefix_identity=False,
        source=rows.source(),
        notes=notes,
    )


def numbered(sessions: list[Any]) -> np.ndarray:
    """Session numbers by first appearance; a request without a session is one of its own."""
    numbers: dict[str | int, int] = {}
    return np.array([numbers.setdefault(name or i, len(numbers)) for i, name in enumerate(sessions)], np.int64)
