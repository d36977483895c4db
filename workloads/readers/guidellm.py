"""GuideLLM's benchmarks.json: `benchmarks[].requests.successful[]`, in both of its generations.

The one idea: a file holds the benchmarks of one command one after another (synchronous, throughput, rates of a
sweep), on one clock, so each is a class. Until 0.3 a request had `prompt_tokens`, `output_tokens`, `start_time`,
`first_token_time`; since 0.4 it has `request_start_time`, `input_metrics`, `info.timings`; the derived
`request_latency` (s), `time_to_first_token_ms` and `inter_token_latency_ms` are in both. Times are seconds since
1970.

Held against the sources of guidellm 0.2.1, 0.3.1 and 0.8.1, and a file that 0.8.1 wrote against a local mock server.

    >>> from workloads.readers import guidellm
    >>> workload = guidellm.read("benchmarks.json")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workloads.readers.calls import (
    FAILED,
    Call,
    CallLog,
    NoRequestsError,
    Record,
    Timing,
    between,
    first,
    names_in,
    scaled,
)
from workloads.readers.common import Rows
from workloads.readers.head import Head
from workloads.readers.paths import at
from workloads.readers.values import short

STATUSES = {"successful": "", "errored": FAILED, "incomplete": "it was cut off at the end of its benchmark"}
"""The lists of a benchmark's requests, and why those of one are skipped."""


CLOSED = ("synchronous", "concurrent", "throughput")
"""Strategies whose requests wait for one another."""
OWN = {
    "guidellm_version",
    "request_loader",
    "run_stats",
    "request_totals",
    "scheduler_metrics",
    "strategy",
    "successful",
}
"""Names of which a head has one; a file with much in front of its benchmarks is cut before them."""


def _recognised(head: Head) -> str | None:
    names = names_in(head, "benchmarks")
    if "guidellm_version" in names:
        return "its object has guidellm_version"
    return f"its object has benchmarks and {min(OWN & names)}" if "benchmarks" in names and OWN & names else None


def _requests(rows: Rows) -> Iterator[Record]:
    """The requests of all benchmarks, each with its benchmark's name and its status."""
    benchmarks = [item for item in _list(rows, "benchmarks", rows.document().get("benchmarks")) if type(item) is dict]
    names = _names(benchmarks)
    found: list[Any] = []
    for benchmark, name in zip(benchmarks, names, strict=True):
        for status, lacks in STATUSES.items():
            requests = _list(rows, f"requests.{status}", at(benchmark, f"requests.{status}") or [])
            if not lacks:
                _whole(rows, benchmark, name, len(requests))
            found += [r | {"benchmark": name, "skipped": lacks} if type(r) is dict else r for r in requests]
    if waiting := [name for name in names if name.split(" ")[0] in CLOSED]:
        rows.note(
            f"{', '.join(map(short, waiting))}: a request waited until one before it had ended, so its times are"
            " those of the measured server; loop = 'concurrency' asks the same of another"
        )
    if not found:
        raise NoRequestsError(
            f"{rows.path}: its benchmarks hold no requests, expected requests.successful of one or more"
        )
    return rows.each(found, "request")


def _list(rows: Rows, field: str, value: Any) -> list[Any]:
    if type(value) is not list:
        rows.fail(field, value, "a list", 1)
    return value


def _whole(rows: Rows, benchmark: Record, name: str, held: int) -> None:
    """Up to 0.3, a file may hold a sample of the requests: it says how many there were."""
    total = at(benchmark, "request_totals.successful")
    if type(total) is int and total > held:
        raise NoRequestsError(
            f"{rows.path}: benchmark {name!r} holds a sample of {held} of its {total} successful requests, which is no"
            " trace: their times would be a lower rate; run guidellm again without --output-sampling"
        )


def _names(benchmarks: list[Record]) -> list[str]:
    """What each benchmark did; numbered where two did the same."""
    names: list[str] = []
    for benchmark in benchmarks:
        strategy = first(benchmark, "config.strategy", "args.strategy") or {}
        size = first(strategy, "rate", "streams", "max_concurrency")
        name = str(first(strategy, "type_", "kind") or "benchmark") + (
            f" {size:g}" if type(size) in (int, float) and 0 <= size < 1e9 else ""
        )
        names.append(name if name not in names else f"{name} #{len(names) + 1}")
    return names


def _call(record: Record) -> Call | str:
    if record["skipped"]:
        return str(record["skipped"])
    return Call(
        first(record, "prompt_tokens", "input_metrics.total_tokens", "input_metrics.text_tokens"),
        first(record, "output_tokens", "output_metrics.total_tokens", "output_metrics.text_tokens"),
        first(record, "start_time", "request_start_time", "info.timings.request_start"),
        group=record["benchmark"],
        session=at(record, "info.conversation_id"),
        cached=first(record, "cached_tokens", "input_metrics.cached_tokens"),
    )


def _timing(record: Record) -> Timing:
    e2e_s = first(record, "request_latency")
    return Timing(
        scaled(first(record, "time_to_first_token_ms"), 1000),
        between(first(record, "start_time"), first(record, "end_time")) if e2e_s is None else e2e_s,
        scaled(first(record, "inter_token_latency_ms"), 1000),
    )


LOG = CallLog(
    names=Call("prompt_tokens", "output_tokens", "start_time", session="conversation_id"),
    recognised=_recognised,
    records=_requests,
    call=_call,
    unit="s",
    why="seconds since 1970, as guidellm writes them",
    timing=_timing,
    groups="benchmarks",
    are_runs=True,
)
looks_like, read = LOG.looks_like, LOG.read
