"""aiperf's profile_export.jsonl: one record a request, `metadata` beside `metrics` of a value and a unit each.

The one idea: a metric carries its unit, so it is read with it. Requests of the warm-up phase, cancelled and failed
ones are skipped. `x_correlation_id` groups the turns of a conversation; times (`request_start_ns`) are nanoseconds
since 1970. Beside it, profile_export_aiperf.json holds aggregates only (as genai-perf's do) and is answered with the
name of the file that is a trace; inputs.json is read by `aiperf_inputs`.

Held against the source of aiperf 0.13.0, and files that it wrote against a local mock server.

    >>> from workloads.readers import aiperf
    >>> workload = aiperf.read("artifacts/profile_export.jsonl")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workloads.readers.calls import FAILED, Call, CallLog, NoRequestsError, Record, Timing, scaled
from workloads.readers.common import Rows
from workloads.readers.head import Head
from workloads.readers.paths import at
from workloads.readers.units import PER_SECOND
from workloads.readers.values import as_float, number

UNITS: dict[Any, float] = {**PER_SECOND, "sec": 1, "seconds": 1}
AGGREGATES = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2el"}
"""What aiperf's aggregates are by vLLM's names; its inter-token latency is a request's mean, which vLLM calls TPOT."""
STATISTICS = {"avg": "mean", "p50": "median", "std": "std", "p90": "p90", "p95": "p95", "p99": "p99"}


def _recognised(head: Head) -> str | None:
    if {"metadata", "metrics"} <= head.keys and b'"request_start_ns"' in head.bytes:
        return "its rows have metadata.request_start_ns beside metrics"
    if {"request_throughput", "request_latency"} <= head.keys:
        return "its object has request_throughput and request_latency"
    if {"service_kind", "experiments"} <= head.keys:
        return "its object has service_kind and experiments, as genai-perf's"
    if {"Metric", "avg"} <= head.keys:
        return "its header has Metric and avg"
    return None


def _records(rows: Rows) -> Iterator[Record]:
    for record in rows.records():
        if "metrics" not in record:
            has_texts = "experiments" in record
            what = "texts of requests without token counts" if has_texts else "aggregates of a run"
            raise NoRequestsError(
                f"{rows.path}: {what}, which are no trace; the requests are in profile_export.jsonl, which aiperf"
                " writes beside it (--export-level records)"
            )
        yield record


def _value(record: Record, *names: str) -> Any:
    """The first of these metrics that the record has."""
    return next((value for name in names if (value := at(record, f"metrics.{name}.value")) is not None), None)


def _seconds(record: Record, name: str) -> Any:
    return scaled(_value(record, name), _per_second(record, name))


def _per_second(record: Record, name: str) -> float:
    return UNITS.get(str(at(record, f"metrics.{name}.unit")), 1000)


def _call(record: Record) -> Call | str:
    if at(record, "metadata.benchmark_phase") == "warmup":
        return "it was of the warm-up"
    if record.get("error"):
        return FAILED
    if at(record, "metadata.was_cancelled"):
        return "it was cancelled"
    return Call(
        _value(record, "input_sequence_length", "usage_prompt_tokens"),
        _value(record, "output_sequence_length", "output_token_count", "usage_completion_tokens"),
        at(record, "metadata.request_start_ns"),
        session=at(record, "metadata.x_correlation_id"),
        cached=_value(record, "usage_prompt_cache_read_tokens"),
        counted=_value(record, "usage_prompt_tokens"),
    )


def _timing(record: Record) -> Timing:
    gaps, per_second = _value(record, "inter_chunk_latency"), _per_second(record, "inter_chunk_latency")
    return Timing(
        _seconds(record, "time_to_first_token"),
        _seconds(record, "request_latency"),
        _seconds(record, "inter_token_latency"),
        [scaled(gap, per_second) for gap in gaps] if type(gaps) is list else (),
    )


def _summary(rows: Rows) -> dict[str, float]:
    """The aggregates by vLLM's names, latencies in ms."""
    run = next(iter(rows.records()))
    found = {
        f"{short}_{ours}_ms": 1e3 * value / UNITS.get(str(at(run, f"{name}.unit")), 1000)
        for name, ours in AGGREGATES.items()
        for statistic, short in STATISTICS.items()
        if (value := as_float(number(at(run, f"{name}.{statistic}")))) >= 0
    }
    for name, ours in (
        ("request_throughput", "request_throughput"),
        ("output_token_throughput", "output_throughput"),
        ("request_count", "completed"),
        ("benchmark_duration", "duration"),
    ):
        if (value := as_float(number(at(run, f"{name}.avg")))) >= 0:
            found[ours] = value / UNITS.get(str(at(run, f"{name}.unit")), 1) if ours == "duration" else value
    return found


LOG = CallLog(
    names=Call("input_sequence_length", "output_sequence_length", "request_start_ns", session="x_correlation_id"),
    recognised=_recognised,
    records=_records,
    call=_call,
    unit="ns",
    timing=_timing,
    summary=_summary,
)
looks_like, read = LOG.looks_like, LOG.read
