"""What limits, a target and a price make of a run: every number of a summary that depends on them, and no other.

The one idea: none of it needs a simulation. Limits are compared with times that a run's columns have, so another limit
or price is arithmetic on the same columns; a report is made by these functions and a run is judged anew by them, so
the two cannot disagree.

    >>> slo = limits_by(class_slo, asked)
    >>> by_limits(requests, good_of(requests, slo), names, slo, asked, stable=True, seconds=600.0)["verdict"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from sim.measure import columns as made
from sim.measure import metrics
from sim.measure.collapse import fall_of
from sim.measure.columns import all_or
from sim.measure.verdict import LIMITS, Sample, groups, in_order, judge
from sim.recording import COMPLETED
from sim.scenario import SloClass, SloConfig

Limits = Sequence[tuple[str, SloClass]]  # (SLO class, limits) of every workload class, in the order of class_id
Columns = Mapping[str, np.ndarray]
COLUMNS = ("class_id", "status", "arrival_s", "in_window", "ttft_s", "tpot_s", "e2e_s")
"""What limits are judged by: columns [n] of requests, seconds."""
TOKENS = ("input", "output", "total")


def is_limited(slo: Limits) -> bool:
    return any(metrics.has_limit(limits) for _, limits in slo)


def good_of(columns: Columns, slo: Limits) -> np.ndarray:
    """bool [n]: the requests that completed within every limit of their class, window or not."""
    completed = columns["status"] == COMPLETED
    return metrics.good(columns, completed, columns["class_id"], [limits for _, limits in slo])


def by_limits(
    columns: Columns,
    good: np.ndarray,
    names: Sequence[str],
    slo: Limits,
    asked: SloConfig,
    stable: bool | None,
    seconds: float,
) -> dict[str, Any]:
    """request_goodput, attainment, attainment_target, verdict and fell of a summary; fell is None where nothing fell.

    good: `good_of` the columns. names: of the workload classes. stable and seconds: of the window."""
    inside = columns["in_window"].astype(bool)
    limited, met = is_limited(slo), int((good & inside).sum())
    found: dict[str, Any] = {
        "request_goodput": met / seconds if limited and seconds > 0 else None,
        "attainment": float(met / inside.sum()) if limited and inside.any() else None,
        "attainment_target": asked.attainment,
        "verdict": None,
        "fell": None,
    }
    if limited and asked.attainment is not None:
        named = [(name, limits) for name, (_, limits) in zip(names, slo, strict=True)]
        found["verdict"] = judge([_sample(columns, good, inside, named)], asked, stable).as_document()
        some = all_or(inside)
        found["fell"] = fall_of(columns["arrival_s"][some], good[some], columns["class_id"][some], groups(named, asked))
    return found


def _sample(columns: Columns, good: np.ndarray, inside: np.ndarray, named: Limits) -> Sample:
    """`sim.measure.verdict.sample_in`, whose columns are made when they are asked for."""
    rows = in_order(columns["arrival_s"], inside)
    told = {"good": good, "completed": columns["status"] == COMPLETED}
    return Sample(
        named,
        made.Columns(
            {name: column[rows] for name, column in told.items()}
            | {name: partial(_taken, columns, name, rows) for name in ("class_id", *LIMITS)}
        ),
    )


def _taken(columns: Columns, name: str, rows: np.ndarray, part: slice) -> np.ndarray:
    return columns[name][rows[part]]


def attainment(good: np.ndarray, mine: np.ndarray) -> float | None:
    """The share of `mine` that was good; both bool [n]."""
    return float((good & mine).sum() / mine.sum()) if mine.any() else None


def slo_table(class_id: np.ndarray, inside: np.ndarray, good: np.ndarray, slo: Limits) -> dict[str, dict[str, Any]]:
    """Arrivals, good requests and attainment per SLO class; "" is the default limits."""
    rows: dict[str, dict[str, Any]] = {}
    for name, limit in dict(slo).items():
        mine = inside & np.array([n == name for n, _ in slo])[class_id]
        limited = metrics.has_limit(limit)
        rows[name] = {
            "limits": asdict(limit),
            "arrived": int(mine.sum()),
            "good": int((mine & good).sum()) if limited else None,
            "attainment": attainment(good, mine) if limited else None,
        }
    return rows


def notes(document: Mapping[str, Any], class_slo: Sequence[str], asked: SloConfig) -> list[str]:
    """What a reader must know of these limits, in lines."""
    found = []
    if document.get("fell"):
        f = document["fell"]
        of = f" of {f['group']}" if f["group"] else ""
        found.append(
            f"held, then fell: {f['before']:.1%} of the arrivals{of} until"
            f" {f['at_s']:.6g} s met their limits, {f['after']:.1%} from then on, never again the"
            f" {f['target']:.1%} asked for: the attainment of the whole window is a mean of two states, and of a longer"
            " run it would be lower."
            + (
                ""
                if document.get("regime")
                else " Overloaded since, or a second state that keeps itself up (metastable): kvcast resilience tells"
            )
        )
    unnamed = sorted({name for name in class_slo if name and name not in asked.classes})
    if unnamed and document["attainment"] is not None:
        found.append(f"SLO classes without limits of their own use the default limits: {', '.join(unnamed)}")
    return found


def dollars(cost: Mapping[str, Any], gpu_hours: float, arrived: int, usd_per_hour: float | None) -> dict[str, Any]:
    """The keys of a summary's cost that a price decides, of the keys that it does not."""

    def usd(hours: float | None) -> float | None:
        return None if usd_per_hour is None or hours is None else hours * usd_per_hour

    return {
        "gpu_hour_usd": usd_per_hour,
        "usd": usd(gpu_hours),
        **{f"usd_per_million_{name}_tokens": usd(cost[f"gpu_hours_per_million_{name}_tokens"]) for name in TOKENS},
        "usd_per_request": usd(gpu_hours / arrived) if arrived else None,
        "usd_per_session": usd(gpu_hours / cost["sessions"]) if cost["sessions"] else None,
    }


def usd_of_class(gpu_hours: float, arrived: int, usd_per_hour: float | None) -> float | None:
    """What a request of a class costs."""
    return gpu_hours / arrived * usd_per_hour if usd_per_hour is not None and arrived else None


def pair(off: float | None, on: float | None) -> dict[str, float | None]:
    """A number without the prefix cache and with it, and the share of it that the cache saved."""
    return {"off": off, "on": on, "saved_share": None if on is None or not off else 1 - on / off}
