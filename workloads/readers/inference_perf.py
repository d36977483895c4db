"""inference-perf's per_request_lifecycle_metrics.json: an array of `start_time`, `end_time`, `info`, `error` a request.

The one idea: `info` names the counts at two places. Older reports have `input_tokens`, `output_tokens` and
`output_token_times` in it; newer ones `request_metrics.text.input_tokens` and `response_metrics`. Times are seconds
of the load generator's clock (`time.perf_counter`), which counts from no date. Its other reports (summary_, stage_N_)
are aggregates and no trace.

Held against the writer's source (reportgen and apis/base.py, before and after response_metrics).

    >>> from workloads.readers import inference_perf
    >>> workload = inference_perf.read("reports-20261101/per_request_lifecycle_metrics.json")
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from workloads.readers.calls import FAILED, Call, CallLog, NoRequestsError, Record, Timing, between, first
from workloads.readers.common import Rows
from workloads.readers.head import Head
from workloads.readers.paths import at
from workloads.readers.values import as_float, number


def _recognised(head: Head) -> str | None:
    if {"start_time", "end_time", "info"} <= head.keys:
        return "its objects have start_time, end_time and info"
    if {"load_summary", "successes", "failures"} <= head.keys:
        return "its object has load_summary, successes and failures"
    return None


def _requests(rows: Rows) -> Iterator[Record]:
    for record in rows.records():
        if "load_summary" in record:
            raise NoRequestsError(
                f"{rows.path}: aggregates of a stage or a run, which are no trace; the requests are in"
                " per_request_lifecycle_metrics.json (report.request_lifecycle.per_request: true)"
            )
        yield record


def _call(record: Record) -> Call | str:
    if record.get("error"):
        return FAILED
    return Call(
        first(record, "info.request_metrics.text.input_tokens", "info.input_tokens"),
        first(record, "info.response_metrics.output_tokens", "info.output_tokens"),
        record.get("start_time"),
        group=at(record, "info.lora_adapter"),
        cached=first(
            record,
            "info.response_metrics.server_usage.prompt_tokens_details.cached_tokens",
            "info.extra_info.server_usage.prompt_tokens_details.cached_tokens",
        ),
        counted=at(record, "info.response_metrics.server_usage.prompt_tokens"),
    )


def _timing(record: Record) -> Timing:
    start = record.get("start_time")
    times = first(record, "info.response_metrics.output_token_times", "info.output_token_times")
    chunks = first(record, "info.response_metrics.chunk_times")
    tokens = [time for time in times or chunks or [] if time is not None] if type(times or chunks) is list else []
    return Timing(
        between(start, tokens[0]) if tokens else None,
        between(start, record.get("end_time")),
        gaps_s=[as_float(number(after)) - as_float(number(before)) for before, after in pairwise(tokens)],
    )


AGGREGATES = {
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "inter_token_latency": "itl",
    "request_latency": "e2el",
}
STATISTICS = {"mean": "mean", "median": "median", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
TOTALS = {
    "load_summary.send_duration": "duration",
    "successes.count": "completed",
    "failures.count": "failed",
    "successes.throughput.requests_per_sec": "request_throughput",
    "successes.throughput.output_tokens_per_sec": "output_throughput",
    "successes.throughput.total_tokens_per_sec": "total_token_throughput",
}
"""Where its aggregate reports have figures, by vLLM's names."""


def _summary(rows: Rows) -> dict[str, float]:
    """The aggregates of a report that has them, latencies in ms."""
    report = next(iter(rows.records()))
    found = {ours: at(report, name) for name, ours in TOTALS.items()}
    for name, ours in AGGREGATES.items():
        for statistic, short in STATISTICS.items():
            seconds = as_float(number(at(report, f"successes.latency.{name}.{statistic}")))
            found[f"{short}_{ours}_ms"] = 1e3 * seconds if seconds >= 0 else found.get(f"{short}_{ours}_ms")
    return {name: value for name, value in found.items() if type(value) in (int, float)}


LOG = CallLog(
    names=Call("input_tokens", "output_tokens", "start_time"),
    recognised=_recognised,
    records=_requests,
    call=_call,
    unit="s",
    why="the load generator's perf_counter, in seconds from no date",
    timing=_timing,
    summary=_summary,
    groups="adapters",
)
looks_like, read = LOG.looks_like, LOG.read
