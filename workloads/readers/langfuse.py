"""Langfuse observations, as its API, its exports and its blob storage integration write them (JSON, JSON lines, CSV).

The one idea: only a GENERATION with usage is a request. `usageDetails` names parts that add up: `input` is what was
not cached where `input_cached_tokens` or `cache_read_input_tokens` stands beside it, so a prompt is all of its parts,
unless the `total` says that the cached ones were counted within `input`. Names come in camel case (API, exports) and
in snake case (blob storage). Times are dates; models are classes; `sessionId` or `traceId` groups requests.

From the documentation and Langfuse's source (how its API adds up usage).

    >>> from workloads.readers import langfuse
    >>> workload = langfuse.read("observations.json")
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

from workloads.readers.calls import FAILED, Call, CallLog, Record, Timing, between, entries, first, names_in
from workloads.readers.common import Rows
from workloads.readers.head import Head
from workloads.readers.values import number

_PART = re.compile(r"""["'](\w+)["']\s*:\s*(\d+)""")
USAGE = {"usageDetails", "usage_details", "usage", "promptTokens", "inputUsage"}


def _recognised(head: Head) -> str | None:
    names = names_in(head, "data", "observations")
    for start, trace in (("startTime", "traceId"), ("start_time", "trace_id")):
        if {start, trace} <= names and USAGE & names:
            return f"its rows have {start}, {trace} and {min(USAGE & names)}"
    return None


def _records(rows: Rows) -> Iterator[Record]:
    """Observations: rows, those of an answer of the API (`data`), or those within traces (`observations`)."""
    return entries(rows, "data", "observations")


def _call(record: Record) -> Call | str:
    if str(record.get("type") or "GENERATION").upper() != "GENERATION":
        return "it is no generation"
    if str(record.get("level") or "").upper() == "ERROR":
        return FAILED
    prompt, output, cached = _tokens(record)
    return Call(
        prompt,
        output,
        first(record, "startTime", "start_time"),
        group=first(record, "model", "providedModelName", "provided_model_name", "internalModel"),
        session=first(record, "sessionId", "session_id", "traceId", "trace_id"),
        cached=cached,
    )


def _tokens(record: Record) -> tuple[Any, Any, Any]:
    """(prompt, output, cached) tokens; None for what is not said."""
    details = _details(record)
    if not any(number(value) > 0 for value in details.values()):
        return (
            first(record, "promptTokens", "inputUsage", "usage.input", "usage.promptTokens"),
            first(record, "completionTokens", "outputUsage", "usage.output", "usage.completionTokens"),
            None,
        )
    parts = {name: number(value) for name, value in details.items() if number(value) >= 0}
    prompt, output = _added_up(parts, "input"), _added_up(parts, "output")
    total = parts.get("total")
    fitting = (pair for pair in product(prompt, output) if None not in pair and sum(pair) == total)
    read = [
        value for name, value in parts.items() if "cache" in name and "creation" not in name and "write" not in name
    ]
    return *next(fitting, (prompt[0], output[0])), sum(read) if read else None


def _details(record: Record) -> dict[str, Any]:
    """The parts of the usage; a text holds them as JSON, or as ClickHouse writes a map."""
    details = first(record, "usageDetails", "usage_details")
    if type(details) is str:
        return dict(_PART.findall(details))
    return details if type(details) is dict else {}


def _added_up(parts: dict[str, Any], kind: str) -> list[Any]:
    """How many tokens of a kind the parts may mean, likeliest first: all parts of that name, or the plain one alone."""
    named = [value for name, value in parts.items() if kind in name]
    return [sum(named) if named else None, parts.get(kind, math.nan)]


def _timing(record: Record) -> Timing:
    start = first(record, "startTime", "start_time")
    return Timing(
        between(start, first(record, "completionStartTime", "completion_start_time")),
        between(start, first(record, "endTime", "end_time")),
    )


LOG = CallLog(
    names=Call("usageDetails.input", "usageDetails.output", "startTime", session="sessionId, or traceId,"),
    recognised=_recognised,
    records=_records,
    call=_call,
    timing=_timing,
)
looks_like, read = LOG.looks_like, LOG.read
