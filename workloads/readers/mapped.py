"""Any table: rows whose time, tokens, session and block ids are named by a mapping, or called as people call them.

The one idea: whatever holds the rows (CSV, JSON lines, an array, a list in one object, Parquet; packed or not), a
mapping says which field is what, by dotted paths into nested objects.

    >>> from workloads.readers import read
    >>> read("spend.csv", columns={"time": "startTime", "input": "prompt_tokens", "output": "completion_tokens"})

- `session` groups requests that arrive when they were recorded to. Without times, a session's next request follows the
  answer before it.
- `prefix_ids` name the blocks of `block_tokens` tokens that a prompt begins with, each id the whole prefix up to it, as
  an engine's chained hashes do; the partial last block has an id or not.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.errors import InputError, did_you_mean, on_one_line
from workloads.prefix_tree import from_block_ids
from workloads.readers import units
from workloads.readers.common import NO_IDENTITY, Rows, classes, failure, note_ties, nothing_shared
from workloads.readers.coverage import covered, hint
from workloads.readers.hash_ids import HashIds, fail_on_ids
from workloads.readers.head import Head
from workloads.readers.paths import columns_of, flat, getter, lists_of_objects
from workloads.readers.runs import kind, links, sums_of_others
from workloads.readers.spellings import cached_beside, gap_in, is_ids, recognised, sums, time_in, total_in, uncounted
from workloads.readers.values import number, short

FIELDS = ("time", "input", "output", "session", "class", "tenant", "prefix_ids")
"""Keys that name a field of a row; beside them are `block_tokens` and `rows`."""
NAMES = {"session", "class", "tenant"}
MISSING = ("", "nan", "NaN", "null", "NULL", "None")  #: texts that stand for no value
COLUMNS = "columns"  #: for `rows`: the one object holds columns, not rows

Fields = Mapping[str, str]


def looks_like(head: Head) -> str | None:
    where, found = _found(head)
    if not found:
        return None
    what = on_one_line(", ".join(f"{key} = {name}" for key, name in found.items()))
    return f"its {f'list {where!r} has' if where else 'rows have'} {what}"


def _found(head: Head) -> tuple[str, dict[str, str]]:
    """(path of the list of rows in one object, "" for the rows of the file; field by key)."""
    found = recognised(flat(head.rows) if head.rows else dict.fromkeys(head.columns), head.rows)
    if found or len(head.rows) != 1:
        return "", found
    named = {path: recognised(flat(rows[:20]), rows[:20]) for path, rows in lists_of_objects(head.rows[0]).items()}
    named[COLUMNS] = recognised(flat(columns_of(head.rows[0])[:20]))
    named = {path: fields for path, fields in named.items() if fields}
    return next(iter(named.items())) if len(named) == 1 else ("", {})


def read(
    path: str | Path,
    columns: Mapping[str, Any] | None = None,
    block_tokens: int | None = None,
    timestamp_unit: str = "",
) -> Workload:
    """Requests in file order. columns: the keys of [workload.columns]; without them the usual names are looked for."""
    rows = Rows(path, timestamp_unit)
    asked = {key: value for key, value in (columns or {}).items() if value is not None}
    head = Head(rows.path)
    where, found = ("", time_in(flat(head.rows))) if asked.keys() & {"input", "output"} else _found(head)
    where = asked.pop("rows", where)
    block_tokens = asked.pop("block_tokens", block_tokens)
    fields = _checked(rows, found | asked)
    sample = head.rows if not where else []
    if left := uncounted(flat(sample), fields["input"], sample):
        rows.note(f"{' and '.join(left)}: not counted in input; columns.input may name a sum, 'a + b'")
    elif within := cached_beside(flat(sample), fields["input"]):
        rows.note(
            f"{' and '.join(within)}: taken to be within {fields['input']}; columns.input may name a sum, 'a + b'"
        )
    rows.note(f"columns: {', '.join(f'{key} = {name}' for key, name in fields.items())}")
    if other := _other_total(fields, sample):
        rows.note(other)
    requests = _Requests(rows, fields, block_tokens, where, asked)
    requests.links = links(flat(sample))
    if "time" not in fields and (gap := gap_in(flat(sample))):
        requests.take_gaps(gap)
    return requests.workload()


def _other_total(fields: Fields, sample: list[dict[str, Any]]) -> str:
    """What to say where most rows hold a total that is not input + output; "" where it is, or there is none."""
    name = total_in(flat(sample), fields["input"].partition(" + ")[0])
    gets = [getter(name), *(_sum(fields[key]) for key in ("input", "output"))]
    told = [[number(get(row)) for get in gets] for row in sample] if name else []
    known = [(i, three) for i, three in enumerate(told, 1) if not any(map(math.isnan, three)) and three[2] > 0]
    other = [(i, three) for i, three in known if three[0] != three[1] + three[2]]
    if len(other) * 2 <= len(known):
        return ""
    row, (total, tokens, answered) = other[0]
    return (
        f"{name} is not input + output in {len(other)} of the first {len(known)} rows (row {row}: {tokens:,} +"
        f" {answered:,} against {total:,}): some tokens are in neither column"
    )


def _checked(rows: Rows, fields: dict[str, Any]) -> dict[str, str]:
    for key, name in fields.items():
        if key not in FIELDS:
            known = (*FIELDS, "block_tokens", "rows")
            raise InputError(
                f"{rows.path}: columns has no key {key!r}{did_you_mean(key, known)}, expected {', '.join(known)}"
            )
        if type(name) is not str or not name:
            raise InputError(f"{rows.path}: columns.{key} = {short(name)}, expected the name of a column")
    for key in ("input", "output"):
        if key not in fields:
            raise InputError(
                f"{rows.path}: [workload.columns] {key} is missing, expected the name of the column with {key} tokens"
                f" among {_among(Head(rows.path))}"
            )
    return fields


def _among(head: Head) -> str:
    """The fields a file has, as an error line lists them."""
    names = [on_one_line(name) for name in flat(head.rows) or head.columns]
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") if names else "none"


class _Requests:
    """Collects the columns of the rows that are requests."""

    def __init__(
        self, rows: Rows, fields: Fields, block_tokens: int | None, where: str, asked: Mapping[str, Any]
    ) -> None:
        self.rows, self.fields, self.where, self.asked = rows, fields, where, asked
        self.block_tokens = block_tokens
        self.get: dict[str, Callable[[dict[str, Any]], Any]] = {key: getter(name) for key, name in fields.items()}
        self.get |= {key: _sum(fields[key]) for key in ("input", "output") if " + " in fields[key]}
        self.values: dict[str, list[Any]] = {key: [] for key in fields if key != "prefix_ids"}
        self.seen: set[str] = set()  # keys whose field a row had
        self.ids = HashIds()
        self.links: tuple[str, str] | None = None  #: fields of a run's own name and of its parent's
        self.runs: tuple[list[Any], list[Any]] = ([], [])  #: what those are, by request
        self.gap: Callable[[dict[str, Any]], Any] | None = None  #: how long after the row before a request came
        self.elapsed = 0.0  #: gaps so far, of skipped rows too
        self.unused: list[str] = []  #: lists of ids that no mapping names
        self.timed: np.ndarray | None = None  #: bool, of the rows that were kept: those with a time; None: all or none

    def workload(self) -> Workload:
        for record in self._records():
            self._add(record)
        self._check_seen()
        self._drop_sums()
        self._drop_untimed()
        rows, name = self.rows, self.fields
        prompt = rows.integers(name["input"], self.values["input"], low=1)
        output = rows.integers(name["output"], self.values["output"], low=1)
        arrival_s = self._arrivals(len(prompt))
        tree, leaf = self._tree(prompt)
        class_id, class_names = classes(self._names("class", "all"), rows, "classes")
        tenants, tenant_id = np.unique(self._names("tenant", ""), return_inverse=True)
        sessions = self.values.get("session", [])
        return Workload(
            tree=tree,
            leaf=leaf,
            arrival_s=arrival_s,
            prompt_tokens=prompt,
            output_tokens=output,
            class_id=class_id,
            class_names=class_names,
            class_slo=("",) * len(class_names),
            tenant_id=tenant_id.astype(np.int32) if "tenant" in name else None,
            tenant_names=tuple(tenants.tolist()) or ("",),
            session_id=_numbered(rows, name["session"], sessions) if sessions else None,
            prefix_identity="prefix_ids" in name,
            hash_block_tokens=self.block_tokens if "prefix_ids" in name else None,
            source=rows.source(),
            notes=rows.report(len(prompt)),
        )

    def take_gaps(self, field: str) -> None:
        """Times are the sums of the gaps that a column holds."""
        self.gap, self.fields, self.values["time"] = getter(field), {**self.fields, "time": field}, []
        self.rows.note(f"{field}: a request comes so long after the row before")

    def _records(self) -> Iterator[dict[str, Any]]:
        if not self.where:
            return self.rows.records()
        document = self.rows.document()
        items = columns_of(document) if self.where == COLUMNS else getter(self.where)(document)
        return self.rows.each(items, self.where)

    def _add(self, record: dict[str, Any]) -> None:
        got = {key: get(record) for key, get in self.get.items()}
        if self.gap is not None:
            told = self.gap(record)
            self.elapsed += 0.0 if _is_missing(told) else number(told)
            got["time"] = self.elapsed if self.elapsed >= 0 else told  # what is no number is named with its row
        if name := sums(record):
            self.rows.fail(name, record[name], "1: a row that is one request, not the sum of several")
        if not self.rows.number:
            self.unused = [field for field in record if is_ids(field)]
        if len(self.seen) < len(got):
            self.seen |= {key for key, value in got.items() if value is not None}
        if reason := failure(record) or kind(record) or self._empty(got):
            self.rows.skip(reason)
            return
        self.rows.keep()
        for key, kept in self.values.items():
            value = got[key]
            kept.append(sys.intern(value) if key in NAMES and type(value) is str else value)  # once in memory
        if self.links is not None:
            for kept, field in zip(self.runs, self.links, strict=True):
                kept.append(record.get(field))
        if "prefix_ids" in got and not self.ids.add([] if got["prefix_ids"] is None else got["prefix_ids"]):
            fail_on_ids(self.rows, self.ids, {"hash_ids": got["prefix_ids"]})

    def _empty(self, got: dict[str, Any]) -> str:
        """Why a row without tokens is no request; "" for one that has them."""
        for key in ("output", "input"):
            if _is_missing(got[key]):
                return f"no {key} tokens"
            if self.rows.is_zero(got[key]):
                return f"zero {key}"
        return ""

    def _check_seen(self) -> None:
        """A field that a mapping names and no row has is a slip of the mapping."""
        head = Head(self.rows.path)
        for key, name in self.fields.items():
            if key not in self.seen and (key in self.asked or key in ("input", "output")):
                known = list(flat(head.rows)) or head.columns
                raise InputError(
                    f"{self.rows.path}: [workload.columns] {key} = {name!r}: no row has it"
                    f"{did_you_mean(name, known)}, expected one of {_among(head)}"
                )

    def _drop_untimed(self) -> None:
        """Rows without a time are no requests where others have one; where none has, there are no times."""
        keep = [not _is_missing(value) for value in self.values.get("time", [])]
        if not any(keep):
            self.values["time"] = []
        elif not all(keep):
            self._keep(keep, "no time")

    def _drop_sums(self) -> None:
        """A run that counts again the tokens of the runs inside it is no request."""
        if self.links is None:
            return
        keep = [not one for one in sums_of_others(*self.runs, self.values["input"], self.values["output"])]
        if not all(keep):
            self._keep(keep, f"sums of the rows that name them as {self.links[1]}")

    def _keep(self, keep: list[bool], reason: str) -> None:
        self.rows.skipped[reason] += keep.count(False)
        self.rows.number = array("q", compress(self.rows.number, keep))
        self.values = {key: list(compress(values, keep)) for key, values in self.values.items()}
        if self.timed is None:
            self.timed = np.array(keep)
        else:
            self.timed[self.timed] = keep

    def _names(self, key: str, none: str) -> list[str]:
        values = self.values.get(key)
        if values is None:
            return [none] * len(self.rows.number)
        for value, row in zip(values, self.rows.number, strict=True):
            if value is not None and type(value) not in (str, int, bool, float):
                self.rows.fail(self.fields[key], value, "a name", row)
        return [none if value is None or value == "" else str(value) for value in values]

    def _arrivals(self, n: int) -> np.ndarray:
        times = self.values.get("time", [])
        if not times:
            return self.rows.no_times(n)
        arrival_s = self.rows.clock(self.fields["time"], times, 1, why=units.UNDOCUMENTED)
        note_ties(arrival_s, self.rows)
        if "session" in self.fields:
            self.rows.note(f"{self.fields['session']} groups requests here; when they arrive stays as recorded")
        return arrival_s

    def _tree(self, prompt: np.ndarray) -> tuple[Any, np.ndarray]:
        if "prefix_ids" not in self.fields:
            self.rows.note(NO_IDENTITY.replace("this format", "this table"))
            for field in self.unused:
                self.rows.note(f"{field}: not read; [workload.columns] prefix_ids and block_tokens make it shared text")
            return nothing_shared(len(prompt))
        columns = self.ids.columns()
        if columns is None:
            fail_on_ids(self.rows, self.ids, {})
        flat_ids, offsets = columns
        if self.timed is not None:
            blocks = np.diff(offsets)
            flat_ids = flat_ids[np.repeat(self.timed, blocks)]
            offsets = np.concatenate(([0], np.cumsum(blocks[self.timed])))
        blocks, names = np.diff(offsets), (self.fields["prefix_ids"], self.fields["input"])
        if self.block_tokens is None:
            raise InputError(
                f"{self.rows.path}: block_tokens is missing, expected how many tokens one of {names[0]} names"
                f"{hint(prompt, blocks)}"
            )
        covered(self.rows, prompt, blocks, self.block_tokens, names)
        return from_block_ids(flat_ids, offsets, self.block_tokens, prompt)


def _is_missing(value: Any) -> bool:
    return value is None or (type(value) is str and value in MISSING) or (type(value) is float and math.isnan(value))


def _sum(names: str) -> Callable[[dict[str, Any]], Any]:
    """row -> the sum of fields "a + b": none without the first; what is no number is handed on, to be named."""
    first, *more = [getter(name) for name in names.split(" + ")]

    def get(row: dict[str, Any]) -> Any:
        total = first(row)
        for part in more if not _is_missing(total) else ():
            value = part(row)
            if not _is_missing(value):
                if math.isnan(number(value)):
                    return value
                total = number(total) + number(value)
        return total

    return get


def _numbered(rows: Rows, field: str, sessions: list[Any]) -> np.ndarray:
    """Session numbers by first appearance; a request without a session is one of its own."""
    numbers: dict[Any, int] = {}
    result = np.zeros(len(sessions), np.int64)
    for i, name in enumerate(sessions):
        if name is not None and type(name) is not str and type(name) is not int:
            rows.fail(field, name, "text or a whole number", rows.number[i])
        own = name is None or name == ""
        result[i] = numbers.setdefault((own, i if own else str(name)), len(numbers))
    return result
