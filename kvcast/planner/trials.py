"""Scenarios judged against their SLO: simulated in a folder, once to search and several times to be sure.

The one idea: every trial of a seed serves the same requests at the same times (common random numbers), and its runs are
kept under a hash of all that decides them, so judging is resumable and nothing is simulated twice. A search asks one
run whether it attains the target, and stops it when that is hopeless; what a plan answers is settled over independent
runs (sim.measure.verdict).

    >>> with Trials(Lab(folder), seeds=[0, 1, 2, 3, 4], confidence=0.95, jobs=2) as trials:
    ...     trials.judge([Trial(scenario)])[0].attains, trials.settle(Trial(scenario)).verdict
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.store import workload_folder
from kvcast.store.simulations import SKETCH, SKETCHED, STOPPED, Lab, OnDone, Task, end_processes
from kvcast.studies.drawn import drawn
from kvcast.trust.model_error import attains
from sim.fleet.hopeless import LIMITS
from sim.measure.metrics import limits_of
from sim.measure.sketch import COLUMNS
from sim.measure.verdict import (
    MEETS,
    MISSES,
    NOT_SHOWN,
    UNSTABLE,
    Interval,
    Sample,
    Verdict,
    all_stable,
    interval,
    judge,
    named_limits,
    sample_in,
    student_t,
)
from sim.scenario import Scenario
from workloads.columns import Workload

__all__ = ["CANNOT_RUN", "LOOKS", "MEETS", "MISSES", "NOT_SHOWN", "PRUNED", "UNSTABLE", "Judged", "Trial", "Trials"]

CANNOT_RUN, PRUNED = "cannot run", "pruned"
LOOKS = 2
"""A plan looks at its runs at most so often, at twice as many the second time; each look has its part of the risk of
being wrong."""


@dataclass(frozen=True)
class Trial:
    """What is judged. full: to the end, however hopeless; what_if: see kvcast.store.simulations.Task; keep: the first
    run as a folder to look into."""

    scenario: Scenario
    what_if: str = ""
    full: bool = False
    keep: bool = False


@dataclass(frozen=True)
class Judged:
    """A trial over its runs. Numbers of a run that was stopped early are None: they would only say when it was
    stopped."""

    trial: Trial
    judged: Verdict
    attainment: Interval | None  #: of all requests that have a limit; classes have their own in `judged`
    at_most: float | None  #: of a trial stopped early: what its attainment can have been at most
    served: float  #: share of the requests that had come when it was stopped; 1 when it was not
    per_slo: dict[str, float | None]  #: share of the arrivals within each limit; None where nobody has one
    attained: tuple[bool, ...]  #: by run: whether every class's share reached its target and the fleet kept up
    stable: bool | None
    offered_per_s: float | None  #: nominal
    ttft_ms: dict[
        str, float | None
    ]  #: p50, p99 of the runs' requests together, p99_low and p99_high where there are several
    tpot_ms: dict[str, float | None]
    extrapolated: float | None  #: share of the simulated time whose step times are extrapolated
    runs: tuple[Path, ...]  #: one folder a run
    summaries: tuple[dict[str, Any], ...] = field(repr=False)

    @property
    def verdict(self) -> str:
        return self.judged.word

    @property
    def run(self) -> str | None:
        """The first run's folder, where one was kept."""
        return self.runs[0].name if (self.runs[0] / "run.json").exists() else None

    @property
    def meets(self) -> bool:
        return self.verdict == MEETS

    @property
    def attains(self) -> bool:
        """Whether the shares themselves reach their targets, sure or not: what a search goes by."""
        return self.at_most is None and attains(self.judged, self.stable)

    @property
    def goodput_per_s(self) -> float | None:
        """Good requests a second while they come: attainment x offered rate."""
        return (
            None if self.attainment is None or self.offered_per_s is None else self.attainment.mean * self.offered_per_s
        )


@dataclass(frozen=True)
class _Outcome:
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
        import pyarrow.parquet as pq

        table = pq.read_table(self.task.run / "requests.parquet", columns=list(COLUMNS))
        return {name: table[name].to_numpy() for name in COLUMNS}

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


class Trials:
    """Judges trials in a lab and counts what that took."""

    def __init__(
        self, lab: Lab, seeds: Sequence[int], confidence: float, jobs: int = 1, on_done: OnDone | None = None
    ) -> None:
        """seeds: of the independent runs of a first look; the search asks the first one only."""
        self.lab, self.seeds, self.confidence, self.jobs = lab, tuple(seeds), confidence, jobs
        self.on_done = on_done
        self.cpu_s = 0.0
        self.simulated = self.reused = 0
        self._outcomes: dict[Path, _Outcome] = {}
        self._workloads: dict[Path, Workload] = {}
        self._stoppable: dict[Path, Task] = {}  # where a run to the end would lie -> the same that may stop
        self._drawn: dict[Any, bool] = {}

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

    def judge(self, trials: Sequence[Trial], seed: int | None = None) -> list[Judged]:
        """By one run each, of the first seed or another, in the order given: a sketch. Raises InputError for a scenario
        that cannot run."""
        tasks = [self._task(trial, self.seeds[0] if seed is None else seed) for trial in trials]
        self._simulate(tasks)
        return [self._judged(trial, [task], self.confidence) for trial, task in zip(trials, tasks, strict=True)]

    def settle(self, trial: Trial) -> Judged:
        """By independent runs: those of `seeds`, and as many more when they leave it open. One run where nothing is
        drawn.

        A fleet that is hopeless on every one of the first runs misses, whatever its share would be in the end.
        """
        if len(self.seeds) == 1 or not self.drawn(trial.scenario):
            return self._over(replace(trial, full=True), self.seeds[:1], self.confidence)
        more = tuple(range(self.seeds[-1] + 1, self.seeds[-1] + 1 + len(self.seeds)))
        tasks = [self._task(trial, seed) for seed in self.seeds]
        self._simulate(tasks)
        if all(self._outcomes[task.run].stopped is not None for task in tasks):
            return self._judged(trial, tasks, self.confidence)
        level = 1 - (1 - self.confidence) / LOOKS
        found = self._over(replace(trial, full=True), self.seeds, level)
        return (
            found if found.verdict != NOT_SHOWN else self._over(replace(trial, full=True), (*self.seeds, *more), level)
        )

    def drawn(self, scenario: Scenario) -> bool:
        """Whether another seed is another run."""
        key = (scenario.workload, scenario.cluster.router, scenario.cache.policy)
        if str(key) not in self._drawn:
            self._drawn[str(key)] = drawn(scenario, lambda seed: self.workload(replace(scenario, seed=seed)))
        return self._drawn[str(key)]

    def _over(self, trial: Trial, seeds: Sequence[int], confidence: float) -> Judged:
        tasks = [self._task(trial, seed) for seed in seeds]
        self._simulate(tasks)
        return self._judged(trial, tasks, confidence)

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
        """Sessions of its workload, however many users they are dealt to."""
        return len(np.unique(self.workload(replace(scenario, seed=self.seeds[0])).column("session_id")))

    def _load(self, folder: Path) -> Workload:
        if folder not in self._workloads:
            self._workloads[folder] = workload_folder.load(folder)
        return self._workloads[folder]

    def _task(self, trial: Trial, seed: int) -> Task:
        scenario, light = replace(trial.scenario, seed=seed), not trial.keep or seed != self.seeds[0]
        whole = self.lab.task(scenario, trial.what_if, light=light)
        if (
            trial.full or whole.scenario.run.warmup_s is None
        ):  # what is judged of a fixed concurrency is known at its end
            return self._to_the_end(whole)
        task = self.lab.task(scenario, trial.what_if, hopeless=True, light=light)
        self._stoppable[whole.run] = task
        return task

    def _to_the_end(self, task: Task) -> Task:
        """The same simulation, when it was allowed to stop early here and did not."""
        stoppable = self._stoppable.get(task.run, task)
        outcome = self._outcomes.get(stoppable.run)
        return task if outcome is None or outcome.stopped is not None else stoppable

    def _simulate(self, tasks: Sequence[Task]) -> None:
        new = {task.run: task for task in tasks if task.run not in self._outcomes}
        todo = [task for task in new.values() if not task.done]
        self.simulated += len(todo)
        self.reused += len(new) - len(todo)
        self.cpu_s += self.lab.simulate(todo, self.jobs, self.on_done, keep_processes=True)
        self._outcomes |= {run: _Outcome(task, self._load(task.workload)) for run, task in new.items()}

    def _judged(self, trial: Trial, tasks: Sequence[Task], confidence: float) -> Judged:
        outcomes = [self._outcomes[task.run] for task in tasks]
        stopped = [outcome.stopped for outcome in outcomes if outcome.stopped is not None]
        return _hopeless(trial, outcomes, stopped) if stopped else _read(trial, outcomes, confidence)


def _hopeless(trial: Trial, outcomes: Sequence[_Outcome], stopped: Sequence[dict[str, Any]]) -> Judged:
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


def _read(trial: Trial, outcomes: Sequence[_Outcome], confidence: float) -> Judged:
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
        summaries[0]["offered_per_s"],
        _percentiles(outcomes, "ttft_s", confidence),
        _percentiles(outcomes, "tpot_s", confidence),
        sum(summary["coverage"]["extrapolated"] * summary["gpu_busy_s"] for summary in summaries) / busy,
        tuple(outcome.task.run for outcome in outcomes),
        summaries,
    )


def _different(outcomes: Sequence[_Outcome]) -> Sequence[_Outcome]:
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


def _percentiles(outcomes: Sequence[_Outcome], name: str, confidence: float) -> dict[str, float | None]:
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
        factor = float(np.exp(student_t(len(logs), confidence) * logs.std(ddof=1) / np.sqrt(len(logs))))
        found |= {"p99_low": float(p99) / factor, "p99_high": float(p99) * factor}
    return found
