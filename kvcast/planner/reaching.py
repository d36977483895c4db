"""How much load a given fleet holds: where a plan of it is worth settling.

The one idea: the load is looked for on samples of the fleet, with seeds that the answer is not settled with. The best
of many loads by the same few seeds is a little too good on them, and no better than it is on others.

    >>> reached(scenario, Path("plans/eight"), Options(fixed=True))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from kvcast.planner.candidates import Combination
from kvcast.planner.load import DOUBLING, FARTHEST, Loads, factor_of
from kvcast.planner.options import Options
from kvcast.planner.recovery import SEEDS, applies, recovered_s
from kvcast.planner.trials import Judged, Trials
from kvcast.planner.window import in_steady_state
from kvcast.store.simulations import Lab
from sim.scenario import Scenario

OTHERS = 1000
"""Added to the seeds that an answer is settled with: those of the search for its load."""
RUNS = 5  #: of a sample at a load


def held(scenario: Scenario, folder: Path, asked: Options, at_least: bool = False) -> float | None:
    """Times its load that the fleet holds by one run of a sample, in steps of 4.4 %; None where it holds none, or with
    at_least not even the load it has."""
    with _trials(scenario, folder, asked) as trials:
        loads = _loads(scenario, trials)
        if at_least and not loads.at([0], full=False)[0].attains:
            return None
        step = loads.highest(lambda one: one.attains, 0)
    return None if step is None else factor_of(step)


def reached(scenario: Scenario, folder: Path, asked: Options) -> float:
    """Times its load at which the fleet is worth settling: it holds that over independent runs of samples, by as much
    as the whole fleet must to be sure, and comes back from a burst where that is asked. About 1 is where to begin."""
    with _trials(scenario, folder, asked) as trials:
        loads, step = _loads(scenario, trials), 1
        while step > -DOUBLING and not _promising(trials.over(loads.trial(step)), loads.whole(step).scenario):
            step -= 1
        if applies(scenario, asked):
            step = recoverable(lambda at, seeds: _recovers(trials, loads, at, seeds), step)
    return factor_of(step)


def _promising(one: Judged, whole: Scenario) -> bool:
    """Whether the whole fleet, in the whole window, may be expected to show the target: its interval is as much
    narrower as it has more requests."""
    part = (one.trial.share or 1.0) * _window_s(one.trial.scenario) / _window_s(whole)
    return one.attains and all(
        row.attainment is None
        or row.attainment.mean - math.sqrt(part) * (row.attainment.mean - row.attainment.low) >= row.target
        for row in one.judged.classes
    )


def _window_s(scenario: Scenario) -> float:
    return (scenario.run.duration_s or math.inf) - (scenario.run.warmup_s or 0.0)


def recoverable(recovers: Callable[[int, int], bool], highest: int) -> int:
    """The highest step up to `highest` that comes back. recovers(step, seeds): on every one of the first so many.

    A run that does not come back is the longest there is, so one seed is asked first, in strides that double on the way
    down and are halved on the way up; from there the others, step by step."""
    step, stride, above = highest, 1, highest + 1
    while step > -FARTHEST and not recovers(step, 1):
        above, step, stride = step, step - stride, 2 * stride
    while above - step > 1:
        middle = (above + step) // 2
        step, above = (middle, above) if recovers(middle, 1) else (step, middle)
    while step > -FARTHEST and not recovers(step, SEEDS):
        step -= 1
    return step


def _recovers(trials: Trials, loads: Loads, step: int, seeds: int) -> bool:
    sample = loads.trial(step).scenario
    return all(recovered_s(trials, sample, seed) is not None for seed in trials.seeds[:seeds])


def _trials(scenario: Scenario, folder: Path, asked: Options) -> Trials:
    seeds = [scenario.seed + OTHERS + i for i in range(RUNS)]
    return Trials(Lab(folder), seeds, asked.confidence, asked.jobs)


def _loads(scenario: Scenario, trials: Trials) -> Loads:
    (one,) = in_steady_state([Combination({}, scenario)], trials)
    return Loads(trials, one.with_replicas(scenario.cluster.replicas), settled=False)
