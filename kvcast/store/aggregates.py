"""What a page draws of a run, small whatever the number of requests: latency curves by class, and the slowest requests.

The one idea: a curve is at most 400 quantiles, denser in the tail, so it has the same points for a hundred requests and
for ten million. All are of the completed requests of the window.

    latency_ms   {"ttft" | "tpot" | "e2el" | "queue": {class: {"ms": [...], "percent": [...]}}}: percent of them at or
    below ms
    slowest      rows of the requests table, highest TTFT first

    >>> load_run("runs/demo").aggregates["latency_ms"]["ttft"]["chat"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sim.measure.report import Report

LATENCIES = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s", "queue": "queue_s"}
CURVE_POINTS = 400
SLOWEST = 32


def of(report: Report) -> dict[str, Any]:
    """JSON-able; a class without a value has no curve."""
    requests = report.requests
    done = np.flatnonzero(requests["in_window"] & (requests["status"] == 0))
    class_of = requests["class_id"][done]
    curves: dict[str, dict[str, Any]] = {}
    for metric, column in LATENCIES.items():
        values = requests[column][done] * 1e3
        curves[metric] = {
            name: curve(mine) for c, name in enumerate(report.classes) if len(mine := known(values[class_of == c]))
        }
    return {"latency_ms": curves, "slowest": _rows(requests, _slowest(requests["ttft_s"], done))}


def _rows(requests: Mapping[str, np.ndarray], rows: np.ndarray) -> list[dict[str, Any]]:
    columns = {name: column[rows] for name, column in requests.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(len(rows))]


def known(values: np.ndarray) -> np.ndarray:
    return values[~np.isnan(values)]


def curve(values: np.ndarray) -> dict[str, np.ndarray]:
    """{"ms", "percent"}: percent of the values [n >= 1] at or below each point; dense where the tail is."""
    values, n = np.sort(values), len(values)
    if n <= CURVE_POINTS:
        rank = np.arange(1, n + 1)
    else:
        body = np.linspace(1, n, CURVE_POINTS * 3 // 4)
        tail = n - np.geomspace(n * 0.1, 1, CURVE_POINTS // 4) + 1
        rank = np.unique(np.concatenate([body, tail]).round().astype(np.int64))
    return {"ms": values[rank - 1], "percent": 100.0 * rank / n}


def _slowest(ttft_s: np.ndarray, done: np.ndarray) -> np.ndarray:
    """The requests of `done` with the highest TTFT, ties by row."""
    return done[np.argsort(-ttft_s[done], kind="stable")[:SLOWEST]]
