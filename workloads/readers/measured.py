"""What a benchmark or a log measured of each request, to hold a simulation against: TTFT, TPOT, end to end.

The one idea: a file that the trace readers read as calls holds the truth beside the question, so both come from one
walk and row r of both is the same request.

    >>> truth = measured("vllm-2.0qps.json")        # None: the file measures nothing
    >>> float(np.nanmedian(truth.ttft_s)), truth.summary.get("p99_ttft_ms")
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.limits import MAX_SECONDS, WITHIN
from workloads.readers import FORMATS, sniff
from workloads.readers.calls import FAILED, NOTHING, CallLog, LogRows, NoRequestsError, Walk
from workloads.readers.values import as_float, number


@dataclass(frozen=True)
class Measured:
    """One run of n answered requests, in file order: row r is request r of the same file read as a trace.

    A file of aggregates only (no row a request) has n = 0 and its `summary`.
    """

    format: str  #: a key of workloads.readers.FORMATS
    start_s: np.ndarray  #: float64 [n], s since the earliest request was sent; NaN where the file has no times
    prompt_tokens: np.ndarray  #: int64 [n], as the file counts them
    output_tokens: np.ndarray  #: int64 [n]
    ttft_s: np.ndarray  #: float64 [n], s; NaN where it was not measured (no streaming)
    tpot_s: np.ndarray  #: float64 [n], s; (e2e - ttft) / (output - 1), NaN for one token
    e2e_s: np.ndarray  #: float64 [n], s; NaN where it was not measured
    itl_s: np.ndarray  #: float64 [m], s: every gap between two tokens (vLLM: two chunks) of all requests; m may be 0
    summary: dict[str, float]  #: the file's own aggregates by vLLM's names: mean_ttft_ms, request_throughput, duration
    failed: int  #: requests that were sent and not answered; they are in no array
    notes: tuple[str, ...] = ()


def measured(path: str | Path, format: str | None = None, run: str | None = None) -> Measured | None:
    """What the file measured; None for a trace that holds no measured times. InputError for one that cannot be read.

    format: a key of FORMATS, where the file is not to be recognised from its content. run: which one of a file that
    holds several (guidellm's strategies, as the classes of the trace are called).
    """
    name = format or sniff(path)[0]
    log = getattr(FORMATS[name], "LOG", FORMATS[name])
    if not isinstance(log, CallLog) or log.timing is None:
        return None
    return _measured(name, log, Path(path), run)


def _measured(name: str, log: CallLog, path: Path, run: str | None) -> Measured:
    summary = log.summary(LogRows(path)) if log.summary else {}
    try:
        walk = log.walk(LogRows(path), timed=True)
    except NoRequestsError:
        if not summary:
            raise
        walk = Walk(LogRows(path))
    if log.are_runs:
        walk = walk.of_run(run)
    prompt, output = log.tokens(walk)
    ttft_s, e2e_s, given_s = (_seconds(walk, field) for field in ("ttft_s", "e2e_s", "tpot_s"))
    with np.errstate(divide="ignore", invalid="ignore"):
        derived_s = np.where(output > 1, (e2e_s - ttft_s) / (output - 1), np.nan)
    return Measured(
        format=name,
        start_s=log.clock(walk),
        prompt_tokens=prompt,
        output_tokens=output,
        ttft_s=ttft_s,
        tpot_s=np.where(np.isnan(given_s), derived_s, given_s),
        e2e_s=e2e_s,
        itl_s=_gaps(walk),
        summary=summary,
        failed=walk.rows.skipped[FAILED] + walk.rows.skipped[NOTHING],
        notes=tuple(walk.rows.notes),
    )


def _seconds(walk: Walk, field: str) -> np.ndarray:
    """float64 [n] of one field of the timings; NaN where it was not measured."""
    column = np.empty(len(walk.timings))
    for i, timing in enumerate(walk.timings):
        column[i] = _second(walk, field, getattr(timing, field), walk.rows.number[i])
    return column


def _gaps(walk: Walk) -> np.ndarray:
    """float64 [m] of all gaps; those of one request at a time, so that a wrong one is named by its row."""
    gaps = [np.empty(0)]
    for timing, row in zip(walk.timings, walk.rows.number, strict=True):
        column = np.array([as_float(number(gap)) for gap in timing.gaps_s], np.float64)
        if not ((column >= 0) & (column <= MAX_SECONDS)).all():
            column = np.array([_second(walk, "itl", gap, row) for gap in timing.gaps_s], np.float64)
        gaps.append(column)
    return np.concatenate(gaps)


def _second(walk: Walk, field: str, value: Any, row: int) -> float:
    if value is None:
        return float("nan")
    seconds = number(value)
    if not 0 <= seconds <= MAX_SECONDS:
        walk.rows.fail(field, value, f"seconds of 0 or more, {WITHIN}", row)
    return float(seconds)
