"""A simulated run beside what a benchmark measured of the same load.

The one idea: both are asked for the same figures over the whole run, first request sent to last answer complete: the
latencies that a file has only as aggregates are taken from there, everything else is computed alike.

    >>> compare(read_truth("vllm.json"), report)["rows"][0]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvcast import text
from kvcast.benchmarks.engine_clock import NOTE, engine_clock
from sim.measure.report import Report
from sim.recording import COMPLETED
from workloads.errors import InputError
from workloads.readers.measured import Measured, measured

TIMES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E"))
STATS = ("mean", "median", "p99")
WHOLE = (
    ("request_throughput", "requests/s"),
    ("output_throughput", "output tokens/s"),
    ("total_token_throughput", "all tokens/s"),
    ("duration", "duration, s"),
    ("concurrency", "requests in flight, mean"),
    ("completed", "requests answered"),
    ("total_input_tokens", "prompt tokens"),
    ("total_output_tokens", "output tokens"),
)
SAME_LOAD = 0.02
"""Prompt or output tokens that differ by more than this share are another load, which is said."""


CLIENT = (
    "measured at a client, with its HTTP and tokenizer; simulated without (engine.frontend_ms and its like are 0),"
    " which short prompts show first in TTFT"
)


def read_truth(path: Path, run: str | None = None) -> Measured:
    """What the file measured; InputError where it measured nothing. run: which one of a file with several."""
    try:
        truth = engine_clock(path) or measured(path, run=run)
    except OSError as error:
        raise InputError(f"--against {path}: cannot be read ({error.strerror})") from None
    if truth is None:
        raise InputError(
            f"--against {path}: holds no measured times; expected the result of vllm bench serve, sglang.bench_serving,"
            " guidellm, aiperf or another one of docs/workloads.md"
        )
    return truth


def compare(truth: Measured, report: Report, source: str = "", front_end: bool = True) -> dict[str, Any]:
    """{"source", "format", "rows", "notes"}; a row: metric, name, unit, measured, simulated, error (a share of what was
    measured; None where either is missing).

    front_end: whether the simulated engine has one; a client's measurement has."""
    theirs, ours = _of_truth(truth), _of_report(report)
    rows = [
        _row(f"{stat}_{key}_ms", f"{label} {stat}", "ms", theirs, ours) for key, label in TIMES for stat in STATS
    ] + [_row(key, label, "", theirs, ours) for key, label in WHOLE]
    shown = [row for row in rows if row["measured"] is not None]
    notes = [
        f"another load: {row['name']} differ by {text.percent(abs(row['error']))} from those measured"
        for row in shown
        if row["metric"] in ("total_input_tokens", "total_output_tokens", "completed")
        and row["error"] is not None
        and abs(row["error"]) > SAME_LOAD
    ]
    by_engine = NOTE in truth.notes
    notes += [NOTE] if by_engine else [] if front_end else [CLIENT]
    failed = max(truth.failed, int(truth.summary.get("failed", 0)))
    if failed:
        notes.append(f"{failed} requests of the benchmark failed and are in none of its figures")
    if report.summary["stable"] is False:
        notes.append("the simulated fleet does not keep up: what is compared is this finite run")
    return {"source": source, "format": truth.format, "rows": shown, "notes": notes}


def _row(metric: str, name: str, unit: str, theirs: dict[str, float], ours: dict[str, float]) -> dict[str, Any]:
    measured_, simulated = theirs.get(metric), ours.get(metric)
    known = measured_ is not None and simulated is not None and measured_ > 0
    error = simulated / measured_ - 1 if known and simulated is not None and measured_ is not None else None
    return {"metric": metric, "name": name, "unit": unit, "measured": measured_, "simulated": simulated, "error": error}


def _of_truth(truth: Measured) -> dict[str, float]:
    """The file's own figures, and those that its requests give where it says none."""
    found: dict[str, float] = {}
    if len(truth.prompt_tokens):
        at_s, e2e_s = truth.start_s, truth.e2e_s
        found |= _latencies(truth.ttft_s, truth.tpot_s, truth.itl_s, e2e_s)
        found |= _totals(truth.prompt_tokens, truth.output_tokens, e2e_s, _lasted(at_s, at_s + e2e_s, truth.summary))
    own = {key: float(value) for key, value in truth.summary.items() if np.isfinite(value)}
    for key, _ in TIMES:  # some name the median p50
        if f"p50_{key}_ms" in own:
            own.setdefault(f"median_{key}_ms", own[f"p50_{key}_ms"])
    return found | own


def _lasted(starts_s: np.ndarray, ends_s: np.ndarray, summary: dict[str, float]) -> float:
    if "duration" in summary:
        return float(summary["duration"])
    known = np.isfinite(starts_s) & np.isfinite(ends_s)
    return float(ends_s[known].max() - starts_s[known].min()) if known.any() else float("nan")


def _of_report(report: Report) -> dict[str, float]:
    """The same figures of every request of a simulated run that was answered, float seconds and tokens."""
    columns = report.requests
    done = columns["status"] == COMPLETED
    at_s, ends_s = columns["arrival_s"][done], columns["finish_s"][done]
    lasted_s = float(ends_s.max() - np.nanmin(columns["arrival_s"])) if done.any() else float("nan")
    found = _latencies(columns["ttft_s"][done], columns["tpot_s"][done], np.empty(0), ends_s - at_s)
    for stat, value in report.latency.get("itl", {}).items():
        if value is not None:
            found[f"{stat}_itl_ms"] = float(value)
    return found | _totals(columns["prompt_tokens"][done], columns["output_tokens"][done], ends_s - at_s, lasted_s)


def _latencies(ttft_s: np.ndarray, tpot_s: np.ndarray, itl_s: np.ndarray, e2e_s: np.ndarray) -> dict[str, float]:
    """Mean, median and p99 in ms of what is known of each, [n] in s."""
    found: dict[str, float] = {}
    for (key, _), values in zip(TIMES, (ttft_s, tpot_s, itl_s, e2e_s), strict=True):
        known = 1e3 * values[np.isfinite(values)]
        if len(known):
            found |= {f"mean_{key}_ms": float(known.mean()), f"median_{key}_ms": float(np.median(known))}
            found[f"p99_{key}_ms"] = float(np.percentile(known, 99))
    return found


def _totals(prompt: np.ndarray, output: np.ndarray, e2e_s: np.ndarray, lasted_s: float) -> dict[str, float]:
    found = {
        "completed": float(len(prompt)),
        "total_input_tokens": float(prompt.sum()),
        "total_output_tokens": float(output.sum()),
    }
    if np.isfinite(lasted_s) and lasted_s > 0:
        found |= {
            "duration": lasted_s,
            "request_throughput": len(prompt) / lasted_s,
            "output_throughput": float(output.sum()) / lasted_s,
            "total_token_throughput": float(prompt.sum() + output.sum()) / lasted_s,
        }
        if len(e2e_s) and np.isfinite(e2e_s).all():
            found["concurrency"] = float(e2e_s.sum()) / lasted_s
    return found
