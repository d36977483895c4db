"""Scenarios judged against their SLO: simulated in a folder, once to search and several times to be sure.

The one idea: every trial of a seed serves the same requests at the same times (common random numbers), and its runs are
kept under a hash of all that decides them, so judging is resumable and nothing is simulated twice. A search asks one
run whether it attains the target, and stops it when that is hopeless; what a plan answers is settled over independent
runs (sim.measure.verdict).

    >>> with Trials(Lab(folder), seeds=[0, 1, 2, 3, 4], confidence=0.95, jobs=2) as trials:
    ...     trials.judge([Trial(scenario)])[0].attains, trials.settle(Trial(scenario)).verdict
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvcast.planner.judged import CANNOT_RUN, DOES_NOT_FIT, PRUNED, Judged, Trial
from kvcast.planner.outcomes import Outcome, hopeless, read
from kvcast.pools import Jobs, opened
from kvcast.store import parquet, workload_folder
from kvcast.store.simulations import UNTIL_BACK, Lab, OnDone, Task
from kvcast.studies.drawn import drawn
from sim.fleet.hopeless import REFUSED
from sim.measure.shocks import told
from sim.measure.verdict import MEETS, MISSES, NOT_SHOWN, UNSTABLE
from sim.scenario import Scenario
from workloads.columns import Workload
from workloads.errors import InputError

__all__ = [
    "CANNOT_RUN",
    "CONFIRM",
    "DOES_NOT_FIT",
    "LOOKS",
    "MEETS",
    "MISSES",
    "NOT_SHOWN",
    "PRUNED",
    "UNSTABLE",
    "Judged",
    "Trial",
    "Trials",
]
EARLY = 2
"""Runs that must not all miss the target: a fleet that is shown to meet it misses in few. So many at once."""
CONFIRM = 2
"""Runs that must attain the target for what is said of a fleet that is not the answer: of a load that it holds, and of
one that does not come back after a burst."""
LOOKS = 2
"""A plan looks at its runs at most so often, at twice as many the second time; each look has its part of the risk of
being wrong."""


class AfterShock(NamedTuple):
    """What a shock did to a run. back_s: seconds after it until the fleet attains the target again, None when it does
    not within the run; turned_away: share of the window's arrivals that were refused or given up, until it stopped."""

    back_s: float | None
    turned_away: float


class Trials:
    """Judges trials in a lab and counts what that took."""

    def __init__(
        self, lab: Lab, seeds: Sequence[int], confidence: float, jobs: Jobs = 1, on_done: OnDone | None = None
    ) -> None:
        """seeds: of the independent runs of a first look; the search asks the first one only. jobs: processes to
        start, or a cluster's workers."""
        self.lab, self.seeds, self.confidence = lab, tuple(seeds), confidence
        self._open = ExitStack()
        self.workers = self._open.enter_context(opened(jobs))
        self.on_done = on_done
        self.cpu_s = 0.0
        self.simulated = self.reused = 0
        self._outcomes: dict[Path, Outcome] = {}
        self._workloads: dict[Path, Workload] = {}
        self._stoppable: dict[Path, Task] = {}  # where a run to the end would lie -> the same that may stop
        self._drawn: dict[Any, bool] = {}

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def distinct(self) -> int:
        return len(self._outcomes)

    @property
    def stopped_early(self) -> int:
        """Because the target was out of reach."""
        return sum(one.task.hopeless and one.stopped is not None for one in self._outcomes.values())

    def judge(self, trials: Sequence[Trial], seed: int | None = None) -> list[Judged]:
        """By one run each, of the first seed or another, in the order given: a sketch. Raises InputError for a scenario
        that cannot run."""
        tasks = [self._task(trial, self.seeds[0] if seed is None else seed) for trial in trials]
        self._simulate(tasks)
        return [self._judged(trial, [task], self.confidence) for trial, task in zip(trials, tasks, strict=True)]

    def settle(self, trial: Trial) -> Judged:
        """By independent runs: those of `seeds`, and as many more when they leave it open. One run where nothing is
        drawn.

        A fleet that misses its target in each of the first EARLY runs is no answer, and no more is asked of it unless
        it is to be told in full.
        """
        if len(self.seeds) == 1 or not self.drawn(trial.scenario):
            return self._over(replace(trial, full=True), self.seeds[:1], self.confidence)
        more = tuple(range(self.seeds[-1] + 1, self.seeds[-1] + 1 + len(self.seeds)))
        if not trial.full and (early := self.missed(trial, EARLY)) is not None:
            return early
        level = 1 - (1 - self.confidence) / LOOKS
        found = self._over(replace(trial, full=True), self.seeds, level)
        return (
            found if found.verdict != NOT_SHOWN else self._over(replace(trial, full=True), (*self.seeds, *more), level)
        )

    def over(self, trial: Trial) -> Judged:
        """By the runs of `seeds`, all to their ends, in one look; by the first EARLY where it misses in each of
        them."""
        return self.missed(trial, EARLY) or self._over(replace(trial, full=True), self.seeds, self.confidence)

    def missed(self, trial: Trial, runs: int) -> Judged | None:
        """By the first so many of `seeds`, where it misses in every one of them, which may then have stopped early;
        None where it does not, or there are no so many."""
        tasks = [self._task(trial, seed) for seed in self.seeds[:runs]]
        for i in range(0, len(tasks), EARLY):
            self._simulate(tasks[i : i + EARLY])
            if any(self._judged(trial, [task], self.confidence).attains for task in tasks[i : i + EARLY]):
                return None
        return self._judged(trial, tasks, self.confidence) if len(tasks) == runs else None

    def back_s(self, scenario: Scenario, seed: int, to_the_end: bool = False) -> float | None:
        """`after_shock(...).back_s`."""
        return self.after_shock(scenario, seed, to_the_end).back_s

    def after_shock(self, scenario: Scenario, seed: int, to_the_end: bool = False) -> AfterShock:
        """Of a scenario with one shock. The run stops ten minutes after the fleet is back, unless it is to go on to the
        end: then a fleet that falls again later is not back."""
        return self.after_shocks([(scenario, seed, to_the_end)])[0]

    def after_shocks(self, runs: Sequence[tuple[Scenario, int, bool]]) -> list[AfterShock]:
        """The same of several (scenario, seed, to_the_end) at once."""
        tasks = [
            self.lab.task(replace(scenario, seed=seed), "" if to_the_end else UNTIL_BACK, light=True)
            for scenario, seed, to_the_end in runs
        ]
        self._simulate(tasks)
        return [self._after_shock(task) for task in tasks]

    def told_of_shock(self, scenario: Scenario, seed: int) -> dict[str, Any]:
        """What its only shock did to a run to its end (sim.measure.shocks.told)."""
        task = self.lab.task(replace(scenario, seed=seed), light=True)
        self._simulate([task])
        return self._told(task)

    def _told(self, task: Task) -> dict[str, Any]:
        outcome = self._outcomes[task.run]
        ends_s = task.scenario.run.duration_s or 0.0
        (row,) = told(task.scenario, outcome.columns(), outcome.sample.classes, ends_s)
        return row

    def _after_shock(self, task: Task) -> AfterShock:
        outcome = self._outcomes[task.run]
        if (found := outcome.stopped) is not None:
            return AfterShock(found["back_s"], found["turned_away"] / max(found["arrived"], 1))
        columns, row = outcome.columns(), self._told(task)
        turned_away = REFUSED[columns["status"][columns["in_window"].astype(bool)]]
        return AfterShock(row["recovered_s"], float(turned_away.mean()) if len(turned_away) else 0.0)

    def requests(self, scenario: Scenario, seed: int, columns: Sequence[str]) -> dict[str, np.ndarray]:
        """Columns of the requests.parquet of a run to its end."""
        task = self.lab.task(replace(scenario, seed=seed))
        self._simulate([task])
        table = parquet.Table(task.run / "requests.parquet")
        return {name: table[name] for name in columns}

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
        refused = self.refusal(scenario)
        return None if refused is None else str(refused)

    def refusal(self, scenario: Scenario) -> InputError | None:
        """What is wrong with a scenario that cannot run."""
        try:
            self.lab.task(scenario)
        except InputError as error:
            return error
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
        self.cpu_s += self.lab.simulate(todo, self.workers, self.on_done)
        self._outcomes |= {run: Outcome(task, self._load(task.workload)) for run, task in new.items()}

    def _judged(self, trial: Trial, tasks: Sequence[Task], confidence: float) -> Judged:
        outcomes = [self._outcomes[task.run] for task in tasks]
        stopped = [outcome.stopped for outcome in outcomes if outcome.stopped is not None]
        return hopeless(trial, outcomes, stopped) if stopped else read(trial, outcomes, confidence)
