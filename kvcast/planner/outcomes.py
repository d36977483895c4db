"""Runs read back and judged: one outcome a run, one Judged of all of them.

>>> read(trial, [Outcome(task, workload)], confidence=0.95)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kvcast.planner.judged import Judged, Trial
from kvcast.store import parquet
from kvcast.store.simulations import SKETCH, SKETCHED, STOPPED, Task
from kvcast.trust.model_error import attains
from sim.fleet.hopeless import LIMITS
from sim.measure.metrics import limits_of
from sim.measure.quantiles import two_sided_t
from sim.measure.sketch import COLUMNS
from sim.measure.verdict import MISSES, Sample, Verdict, all_stable, interval, judge, named_limits, sample_in
from workloads.columns import Workload


@dataclass(frozen=True)
class Outcome:
    """One run, read back."""

    task: Task
    workload: Workload

    @cached_property
    def stopped(self) -> dict[str, Any] | None:
        path = self.task.run / STOPPED
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    @cached_property
    def summary(self) -> dict[str, Any]:
        name = SKETCH if self.task.light else "summary.json"
        return json.loads((self.task.run / name).read_text(encoding="utf-8"))

    def columns(self) -> dict[str, np.ndarray]:
        """Every request, in the workload's order."""
        if self.task.light:
            with np.load(self.task.run / SKETCHED) as kept:
                return {name: kept[name] for name in COLUMNS}
        table = parquet.Table(self.task.run / "requests.parquet")
        return {name: table[name] for name in COLUMNS}

    @cached_property
    def sample(self) -> Sample:
        """The window's requests in order of arrival."""
        return sample_in(self.columns(), named_limits(self.workload, limits_of(self.workload, self.task.scenario.slo)))

    @cached_property
    def good(self) -> np.ndarray:
        """bool: of the requests that have a limit."""
        limited = [
            i
            for i, (_, one) in enumerate(self.sample.classes)
            if any(getattr(one, limit) is not None for limit in LIMITS)
        ]
        columns = self.sample.columns
        return columns["good"][np.isin(columns["class_id"], limited)]

    def within(self, limit: str) -> np.ndarray | None:
        """bool: completed within this limit of its class; None when no class has it."""
        by_class = [getattr(one, limit) for _, one in self.sample.classes]
        if all(value is None for value in by_class):
            return None
        columns = self.sample.columns
        most = np.array([np.inf if value is None else value for value in by_class])[columns["class_id"]]
        return columns["completed"] & ~(columns[limit] > most)


def hopeless(trial: Trial, outcomes: Sequence[Outcome], stopped: Sequence[dict[str, Any]]) -> Judged:
    first = stopped[0]
    worst = max(LIMITS, key=lambda limit: first["missed"][limit])
    unknown: dict[str, float | None] = {"p50": None, "p99": None}
    at_most = max(one["at_most"] for one in stopped)
    return Judged(
        trial,
        Verdict(MISSES, worst, first["failed"], ()),
        None,
        at_most,
        first["arrived"] / first["requests"],
        dict.fromkeys(LIMITS),
        (False,) * len(outcomes),
        None,
        None,
        unknown,
        unknown,
        None,
        tuple(outcome.task.run for outcome in outcomes),
        (),
    )


def read(trial: Trial, outcomes: Sequence[Outcome], confidence: float) -> Judged:
    outcomes = _different(outcomes)
    summaries = tuple(outcome.summary for outcome in outcomes)
    slo = trial.scenario.slo
    found = judge([outcome.sample for outcome in outcomes], slo, _stable(summaries), confidence)
    busy = sum(summary["gpu_busy_s"] for summary in summaries) or 1.0
    one_by_one = (
        [found]
        if len(outcomes) == 1
        else [judge([outcome.sample], slo, outcome.summary["stable"], confidence) for outcome in outcomes]
    )
    attained = tuple(attains(one, summary["stable"]) for one, summary in zip(one_by_one, summaries, strict=True))
    return Judged(
        trial,
        found,
        interval([outcome.good for outcome in outcomes], confidence),
        None,
        1.0,
        {limit: _share([outcome.within(limit) for outcome in outcomes]) for limit in LIMITS},
        attained,
        _stable(summaries),
        summaries[0]["offered_per_s"] and summaries[0]["offered_per_s"] / (trial.share or 1.0),
        _percentiles(outcomes, "ttft_s", confidence),
        _percentiles(outcomes, "tpot_s", confidence),
        sum(summary["coverage"]["extrapolated"] * summary["gpu_busy_s"] for summary in summaries) / busy,
        tuple(outcome.task.run for outcome in outcomes),
        summaries,
    )


def _different(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """One run where all are equal: a seed that changes nothing is no replication."""
    first, *others = outcomes
    names = ("ttft_s", "tpot_s", "e2e_s")
    equal = all(
        len(other.good) == len(first.good)
        and all(
            np.array_equal(other.sample.columns[name], first.sample.columns[name], equal_nan=True) for name in names
        )
        for other in others
    )
    return outcomes[:1] if equal else outcomes


def _stable(summaries: Sequence[dict[str, Any]]) -> bool | None:
    return all_stable([summary["stable"] for summary in summaries])


def _share(within: Sequence[np.ndarray | None]) -> float | None:
    known = [one for one in within if one is not None]
    return float(np.concatenate(known).mean()) if known and sum(map(len, known)) else None


def _percentiles(outcomes: Sequence[Outcome], name: str, confidence: float) -> dict[str, float | None]:
    """Of all runs' requests, milliseconds; with several runs the p99's interval, by Student's t of its logarithm over
    the runs."""
    runs = [column[~np.isnan(column)] for column in (outcome.sample.columns[name] for outcome in outcomes)]
    values, first = np.concatenate(runs), outcomes[0]
    grows = first.task.scenario.workload.trace is None and _stable([outcome.summary for outcome in outcomes]) is False
    if not len(values) or grows:  # of an unstable mix they would say how long the run was
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(values, (50, 99)) * 1e3
    found: dict[str, float | None] = {"p50": float(p50), "p99": float(p99)}
    if len(runs) > 1 and all(len(run) and np.percentile(run, 99) > 0 for run in runs):
        logs = np.log([np.percentile(run, 99) for run in runs])
        factor = float(np.exp(two_sided_t(len(logs), confidence) * logs.std(ddof=1) / np.sqrt(len(logs))))
        found |= {"p99_low": float(p99) / factor, "p99_high": float(p99) * factor}
    return found
