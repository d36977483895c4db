"""Scenarios judged against their SLO: simulated for every seed in a folder, with an interval, and stopped when hopeless.

The one idea: every trial of a seed serves the same requests at the same times (common random numbers), and its runs are
kept under a hash of all that decides them, so judging is resumable and nothing is simulated twice.

    >>> with Trials(Lab(folder), seeds=[0], confidence=0.95, jobs=2) as trials:
    ...     trials.judge([Trial(scenario)])[0].verdict
"""
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kvcast import shared
from kvcast.lab import STOPPED, Lab, OnDone, Task, end_processes
from kvcast.planner.attainment import Interval, interval
from sim.hopeless import LIMITS, most_arrivals
from sim.metrics import limits_of
from sim.recording import COMPLETED
from sim.scenario import Scenario
from workloads.columns import Workload

MEETS, MISSES, UNSTABLE, STOPPED_EARLY, CANNOT_RUN, PRUNED = "meets", "misses", "unstable", "stopped early", "cannot run", "pruned"
TOO_FEW = "too few requests"
COLUMNS = ("class_id", "status", "arrival_s", "in_window", "good", "ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True)
class Trial:
    """What is judged. full: to the end, however hopeless; what_if: see kvcast.lab.Task."""

    scenario: Scenario
    what_if: str = ""
    full: bool = False


@dataclass(frozen=True)
class Judged:
    """A trial over all its seeds. Numbers of a run that was stopped early are None: they would only say when it was stopped."""

    trial: Trial
    verdict: str
    attainment: Interval | None
    at_most: float | None  #: of a trial stopped early: what its attainment can have been at most
    served: float  #: share of the requests that had come when it was stopped; 1 when it was not
    per_slo: dict[str, float | None]  #: share of the arrivals within each limit; None where nobody has one
    rejected_by: str | None
    stable: bool | None
    offered_per_s: float | None  #: arrivals over the time in which they came
    ttft_ms: dict[str, float | None]  #: p50, p99 of the seeds' requests together; None when unstable
    tpot_ms: dict[str, float | None]
    extrapolated: float | None  #: share of the simulated time whose step times are extrapolated
    runs: tuple[Path, ...]  #: one folder a seed
    summaries: tuple[dict[str, Any], ...] = field(repr=False)

    @property
    def run(self) -> str:
        return self.runs[0].name

    @property
    def meets(self) -> bool:
        return self.verdict == MEETS

    @property
    def goodput_per_s(self) -> float | None:
        """Good requests a second while they come: attainment x offered rate."""
        return None if self.attainment is None or self.offered_per_s is None else self.attainment.mean * self.offered_per_s

    @property
    def attains(self) -> bool:
        """Whether the share itself meets the target, sure or not."""
        target = self.trial.scenario.slo.attainment
        return self.attainment is not None and target is not None and self.attainment.mean >= target and self.stable is not False


@dataclass(frozen=True)
class _Outcome:
    """One seed's run, read back."""

    task: Task
    workload: Workload

    @cached_property
    def stopped(self) -> dict[str, Any] | None:
        path = self.task.run / STOPPED
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    @cached_property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.task.run / "summary.json").read_text(encoding="utf-8"))

    def columns(self) -> dict[str, np.ndarray]:
        """Every request, in the workload's order."""
        import pyarrow.parquet as pq

        table = pq.read_table(self.task.run / "requests.parquet", columns=list(COLUMNS))
        return {name: table[name].to_numpy() for name in COLUMNS}

    @cached_property
    def requests(self) -> dict[str, np.ndarray]:
        """The window's requests in order of arrival."""
        columns = self.columns()
        rows = np.flatnonzero(columns["in_window"])
        rows = rows[np.argsort(columns["arrival_s"][rows], kind="stable")]
        return {name: column[rows] for name, column in columns.items()}

    def within(self, limit: str) -> np.ndarray | None:
        """bool: completed within this limit of its class; None when no class has it."""
        by_class = [getattr(one, limit) for _, one in limits_of(self.workload, self.task.scenario.slo)]
        if all(value is None for value in by_class):
            return None
        most = np.array([np.inf if value is None else value for value in by_class])[self.requests["class_id"]]
        return (self.requests["status"] == COMPLETED) & ~(self.requests[limit] > most)


class Trials:
    """Judges trials in a lab and counts what that took."""

    def __init__(self, lab: Lab, seeds: Sequence[int], confidence: float, jobs: int = 1, on_done: OnDone | None = None) -> None:
        self.lab, self.seeds, self.confidence, self.jobs = lab, tuple(seeds), confidence, jobs
        self.on_done = on_done
        self.cpu_s = 0.0
        self.simulated = self.reused = 0
        self._outcomes: dict[Path, _Outcome] = {}
        self._workloads: dict[Path, Workload] = {}
        self._stoppable: dict[Path, Task] = {}  # where a run to the end would lie -> the same that may stop

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        if self.jobs > 1:
            end_processes()

    @property
    def distinct(self) -> int:
        return len(self._outcomes)

    @property
    def stopped_early(self) -> int:
        return sum(outcome.stopped is not None for outcome in self._outcomes.values())

    def judge(self, trials: Sequence[Trial]) -> list[Judged]:
        """In the order given. Raises InputError for a scenario that cannot run."""
        tasks = [self._tasks(trial) for trial in trials]
        self._simulate([ones[0] for ones in tasks])
        rest = [task for ones in tasks if self._outcome(ones[0]).stopped is None for task in ones[1:]]
        self._simulate(rest)
        return [self._judged(trial, ones) for trial, ones in zip(trials, tasks, strict=True)]

    def cannot_run(self, scenario: Scenario) -> str | None:
        """The reason, in one line."""
        from workloads.errors import InputError

        try:
            self.lab.task(scenario)
        except InputError as error:
            return str(error)
        return None

    def by_request(self, run: Path) -> dict[str, np.ndarray]:
        """The requests of a run judged here, in the workload's order."""
        return self._outcomes[run].columns()

    def workload(self, scenario: Scenario) -> Workload:
        return self._load(self.lab.workload(scenario))

    def sessions(self, scenario: Scenario) -> int:
        """Sessions of its workload, however many users they are dealt to; of the seed that has the fewest."""
        return min(len(np.unique(self.workload(replace(scenario, seed=seed)).column("session_id"))) for seed in self.seeds)

    def _load(self, folder: Path) -> Workload:
        if folder not in self._workloads:
            self._workloads[folder] = shared.load(folder)
        return self._workloads[folder]

    def _tasks(self, trial: Trial) -> list[Task]:
        scenarios = [replace(trial.scenario, seed=seed) for seed in self.seeds]
        whole = [self.lab.task(scenario, trial.what_if) for scenario in scenarios]
        if trial.full:
            return [self._to_the_end(task) for task in whole]
        allowed = int((1 - (trial.scenario.slo.attainment or 0.0)) * self._most_arrivals(whole) + 1e-9)
        tasks = [self.lab.task(scenario, trial.what_if, allowed) for scenario in scenarios]
        self._stoppable |= {one.run: task for one, task in zip(whole, tasks, strict=True)}
        return tasks

    def _to_the_end(self, task: Task) -> Task:
        """The same simulation, when it was allowed to stop early here and did not."""
        stoppable = self._stoppable.get(task.run, task)
        outcome = self._outcomes.get(stoppable.run)
        return task if outcome is None or outcome.stopped is not None else stoppable

    def _most_arrivals(self, tasks: Sequence[Task]) -> int:
        return sum(most_arrivals(self._load(task.workload), task.scenario.run) for task in tasks)

    def _simulate(self, tasks: Sequence[Task]) -> None:
        new = {task.run: task for task in tasks if task.run not in self._outcomes}
        todo = [task for task in new.values() if not task.done]
        self.simulated += len(todo)
        self.reused += len(new) - len(todo)
        self.cpu_s += self.lab.simulate(todo, self.jobs, self.on_done, keep_processes=True)
        self._outcomes |= {run: _Outcome(task, self._load(task.workload)) for run, task in new.items()}

    def _outcome(self, task: Task) -> _Outcome:
        return self._outcomes[task.run]

    def _judged(self, trial: Trial, tasks: Sequence[Task]) -> Judged:
        outcomes = [self._outcomes[task.run] for task in tasks if task.run in self._outcomes]
        stopped = next((outcome.stopped for outcome in outcomes if outcome.stopped is not None), None)
        if stopped is not None:
            requests = self._most_arrivals(tasks)
            worst = max(LIMITS, key=lambda limit: stopped["missed"][limit])
            unknown: dict[str, float | None] = {"p50": None, "p99": None}
            at_most, served = 1 - stopped["missed"]["any"] / requests, stopped["arrived"] / stopped["requests"]
            return Judged(trial, STOPPED_EARLY, None, at_most, served, dict.fromkeys(LIMITS), worst, None, None,
                          unknown, unknown, None, tuple(task.run for task in tasks), ())  # fmt: skip
        return _read(trial, outcomes, self.confidence)


def _read(trial: Trial, outcomes: Sequence[_Outcome], confidence: float) -> Judged:
    found = interval([outcome.requests["good"] for outcome in outcomes], confidence)
    summaries = tuple(outcome.summary for outcome in outcomes)
    answers = [summary["stable"] for summary in summaries]
    stable = False if False in answers else None if None in answers else True
    per_slo = {limit: _share([outcome.within(limit) for outcome in outcomes]) for limit in LIMITS}
    verdict = _verdict(found, stable, trial.scenario.slo.attainment or 0.0)
    busy = sum(summary["gpu_busy_s"] for summary in summaries) or 1.0
    return Judged(
        trial, verdict, found, None, 1.0, per_slo, _rejected_by(verdict, found, per_slo, trial.scenario.slo.attainment or 0.0), stable,
        _offered(summaries), _percentiles(outcomes, "ttft_s", stable), _percentiles(outcomes, "tpot_s", stable),
        sum(summary["coverage"]["extrapolated"] * summary["gpu_busy_s"] for summary in summaries) / busy,
        tuple(outcome.task.run for outcome in outcomes), summaries,
    )  # fmt: skip


def _verdict(found: Interval | None, stable: bool | None, target: float) -> str:
    """A target of 1 can never be shown, only not be missed."""
    if stable is False:
        return UNSTABLE
    enough = found is not None and (found.low >= target or found.mean == target == 1)
    return MEETS if enough else MISSES


def _rejected_by(verdict: str, found: Interval | None, per_slo: dict[str, float | None], target: float) -> str | None:
    """The limit that the most requests missed; where none was missed, that is not why. An unstable fleet that still met them is rejected for that."""
    if verdict == MEETS:
        return None
    if verdict == UNSTABLE and found is not None and found.mean >= target:
        return UNSTABLE
    known = {limit: share for limit, share in per_slo.items() if share is not None}
    worst = min(known, key=lambda limit: known[limit]) if known else None
    return TOO_FEW if worst is not None and known[worst] == 1 else worst


def _share(within: Sequence[np.ndarray | None]) -> float | None:
    known = [one for one in within if one is not None]
    return float(np.concatenate(known).mean()) if known and sum(map(len, known)) else None


def _offered(summaries: Sequence[dict[str, Any]]) -> float | None:
    span_s = sum(summary["window"]["last_arrival_s"] - summary["window"]["start_s"] for summary in summaries)
    return sum(summary["arrived"] for summary in summaries) / span_s if span_s > 0 else None


def _percentiles(outcomes: Sequence[_Outcome], name: str, stable: bool | None) -> dict[str, float | None]:
    values = np.concatenate([outcome.requests[name] for outcome in outcomes])
    values = values[~np.isnan(values)]
    if stable is False or not len(values):
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(values, (50, 99)) * 1e3
    return {"p50": float(p50), "p99": float(p99)}
