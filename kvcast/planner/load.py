"""How far a fleet reaches: the highest load that still meets the target, and goodput against load with its knee.

The one idea: the same users come faster. Load is scaled in steps of 4.4 % (2^(1/16)): an open workload by its arrival
rate, a closed one by the number of its users or of its sessions at once; the search is a bisection over the steps.

    >>> found = capacity(trials, scenario); found.most, found.low, found.high
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvcast.planner.sampled import brief, sampled
from kvcast.planner.trials import CONFIRM, Judged, Trial, Trials
from kvcast.studies.search import Found, Search, fewest, together
from sim.scenario import Scenario
from workloads import mix, steady
from workloads.errors import InputError

DOUBLING = 16  #: steps
FARTHEST = 5 * DOUBLING  #: 32 times the load at most, or a 32nd of it
POINTS = (0.25, 0.5, 1.0, 1.25)
"""Loads of the curve, relative to the capacity."""
STRIDE = 4  #: of the first steps away from the offered load: 19 %
KNEE = 0.02
REQUESTS, USERS, SESSIONS = "requests/s", "users", "sessions at once"


def factor_of(step: int) -> float:
    return 2.0 ** (step / DOUBLING)


def unit_of(scenario: Scenario) -> str:
    """What a load is counted in."""
    return (
        USERS
        if scenario.workload.users is not None
        else SESSIONS
        if scenario.workload.concurrency is not None
        else REQUESTS
    )


def closed_load(scenario: Scenario) -> int | None:
    """Users, or sessions at once, of a closed loop."""
    return scenario.workload.users or scenario.workload.concurrency


def with_load(scenario: Scenario, factor: float) -> Scenario:
    """The scenario at `factor` times its load; users and sessions are whole, and a mix has as many requests more."""
    workload = scenario.workload
    if workload.paced:
        raise InputError(
            "[workload] paced = true: a load that both a rate and a concurrency limit has no one size; expected one"
        )
    if workload.users is not None:
        workload = replace(workload, users=max(1, round(workload.users * factor)))
    elif workload.concurrency is not None:
        workload = replace(workload, concurrency=max(1, round(workload.concurrency * factor)))
        if workload.trace is None and workload.requests is not None:  # as many sessions one after another as before
            workload = replace(workload, requests=max(1, round(workload.requests * factor)))
    else:
        workload = replace(workload, rate_scale=workload.rate_scale * factor)
    scaled = replace(scenario, workload=workload)
    return _no_longer_than_needed(scaled, factor) if factor > 1 else scaled


def _no_longer_than_needed(scenario: Scenario, factor: float) -> Scenario:
    """A mix that comes `factor` times as fast: its caches fill sooner, and as many requests as are ever watched come
    sooner."""
    begins_s, ends_s, config = scenario.run.warmup_s, scenario.run.duration_s, scenario.workload
    if (
        config.trace is not None
        or config.concurrency is not None
        or not begins_s
        or ends_s is None
        or config.requests is not None
    ):
        return scenario
    config = mix.resolve(config)
    enough_s = max(
        steady.MOST / steady.requests_per_s(config), steady.LONGEST * max(map(steady.session_s, config.class_))
    )
    ramp_s = min(begins_s, max(begins_s / factor, steady.ramp_s(config)))
    lasts_s, skip_s = min(ends_s - begins_s, enough_s), scenario.workload.skip_ended_s
    skip_s = max(skip_s - (begins_s - ramp_s), 0.0)  # as long before the window as it was
    return replace(
        scenario,
        workload=replace(scenario.workload, duration_s=ramp_s + lasts_s, skip_ended_s=skip_s),
        run=replace(scenario.run, warmup_s=ramp_s, duration_s=ramp_s + lasts_s),
    )


@dataclass(frozen=True)
class Capacity:
    """Steps of load. most: the highest whose attainment reaches the target in one run; held: in CONFIRM runs; low: the
    highest of those looked at whose interval's lower end does; high: the lowest that would miss it even with that
    interval added. None: beyond what was looked at."""

    offered: float  #: at step 0, in unit_of(scenario)
    unit: str
    most: int | None
    held: int | None
    low: int | None
    high: int | None
    judged: dict[int, Judged]
    farthest: int = FARTHEST  #: the highest step that was looked at

    @property
    def endless(self) -> bool:
        """Whether the target is met at every load that was looked at: the capacity is at least that."""
        return self.most is not None and self.most >= self.farthest

    def load(self, step: int | None) -> float | None:
        """The load of a step; users and sessions are whole."""
        if step is None:
            return None
        load = self.offered * factor_of(step)
        return load if self.unit == REQUESTS else float(max(1, round(load)))


class Loads:
    """One fleet under many loads, each judged once."""

    def __init__(self, trials: Trials, scenario: Scenario, settled: bool = True) -> None:
        """settled: the whole fleet was, at the load it has, and that is what is known of it there."""
        self.trials, self.scenario, self.settled = trials, scenario, settled
        self.judged: dict[int, Judged] = {}
        self.farthest = self._farthest()

    def _farthest(self) -> int:
        """The highest step at which every user, or every one of the sessions at once, has a session: what is above is
        not more load.

        A mix without duration_s has as many sessions more as the load is higher (`with_load`).
        """
        wanted, sessions = closed_load(self.scenario), self.trials.sessions(self.scenario)
        workload = self.scenario.workload
        if wanted is None or (workload.trace is None and workload.duration_s is None and sessions >= wanted):
            return FARTHEST
        return max((step for step in range(FARTHEST + 1) if round(wanted * factor_of(step)) <= sessions), default=0)

    def trial(self, step: int, full: bool = True) -> Trial:
        """The whole fleet where it was settled, a sample of it at other loads."""
        return self.whole(step, full) if step == 0 and self.settled else sampled(self.whole(step, full))

    def whole(self, step: int, full: bool = True) -> Trial:
        settled = step == 0 and self.settled  # its first run is there, as a folder
        scenario = self.scenario if step == 0 else with_load(self.scenario, factor_of(step))
        return Trial(scenario, full=full, keep=settled)

    def sample(self, step: int) -> Trial:
        """For what is only compared with itself, changed."""
        return brief(self.whole(step))

    def at(self, steps: list[int], full: bool = True) -> list[Judged]:
        missing = [
            s for s in dict.fromkeys(steps) if s not in self.judged or (full and self.judged[s].attainment is None)
        ]
        self.judged |= dict(zip(missing, self.trials.judge([self.trial(s, full) for s in missing]), strict=True))
        return [self.judged[s] for s in steps]

    def highest(self, holds: Callable[[Judged], bool], start: int) -> int | None:
        """The highest step that holds, around `start`; None when even a 32nd of the load does not, `farthest` when all
        do."""

        def answers(asked: dict[str, list[int]]) -> dict[str, list[bool]]:
            return {
                key: [holds(one) for one in self.at([self.farthest + 1 - n for n in ns], full=False)]
                for key, ns in asked.items()
            }

        search: Search = fewest(self.farthest + 1 - start, self.farthest + FARTHEST + 1, stride=STRIDE)
        found: Found = together({"load": search}, answers)["load"]
        return None if found.fewest is None else self.farthest + 1 - found.fewest

    def capacity(self) -> Capacity:
        base = self.at([0])[0]
        workload, unit = self.scenario.workload, unit_of(self.scenario)
        offered = {USERS: workload.users, SESSIONS: workload.concurrency}.get(unit) or base.offered_per_s or 0.0
        most = self.highest(lambda one: one.attains, 0)
        if most is None:
            return Capacity(offered, unit, None, None, None, None, self.judged, self.farthest)
        self.at([step for step in points(most) if -FARTHEST <= step <= self.farthest])
        half = self.at([most])[0].attainment.half  # type: ignore[union-attr]
        high = min(
            (step for step, one in self.judged.items() if step > most and surely_misses(one, half)), default=None
        )
        held = self._confirmed(most)
        low = max((step for step, one in self.judged.items() if step <= held and one.meets), default=None)
        return Capacity(offered, unit, most, held, low, high, self.judged, self.farthest)

    def _confirmed(self, most: int) -> int:
        """The highest step up to `most` that the whole fleet attains too, and other seeds' runs: of the runs near a
        collapse the calm ones look best."""
        seeds = self.trials.seeds[1:CONFIRM] if self.trials.drawn(self.scenario) else ()
        step = most
        for seed in seeds:
            while step > most - 2 * STRIDE and not self._attains(step, seed):
                step -= 1
        return step

    def _attains(self, step: int, seed: int) -> bool:
        """Whether a sample does, and the whole fleet, which is not asked otherwise."""
        asked = (self.trial(step, full=False), self.whole(step, full=False))
        return all(self.trials.judge([one], seed)[0].attains for one in asked)


def points(most: int) -> list[int]:
    """The steps of the curve around a capacity."""
    return sorted({0, *(most + round(DOUBLING * math.log2(share)) for share in POINTS)})


def surely_misses(one: Judged, half: float) -> bool:
    """Even half an interval more would be below the target. The interval is the capacity's: beyond it a run never
    settles, and its own would only say so. Of a run that was stopped early nothing is known."""
    target = one.trial.scenario.slo.attainment or 0.0
    return one.stable is False or (one.attainment is not None and one.attainment.mean + half < target)


def curve(found: Capacity) -> list[dict[str, Any]]:
    """Goodput and latency against load; everything that was simulated to the end is a point."""
    rows, seen = [], set()
    for step, one in sorted(found.judged.items()):
        load = found.load(step)
        if one.attainment is None or load is None or load in seen:
            continue
        seen.add(load)
        rate = one.offered_per_s if found.unit != REQUESTS else load
        rows.append(
            {
                "rate_per_s": rate,
                "load": load,
                "goodput_per_s": None if rate is None else one.attainment.mean * rate,
                "attainment": one.attainment.mean,
                "attainment_low": one.attainment.low,
                "attainment_high": one.attainment.high,
                "ttft_ms_p50": one.ttft_ms["p50"],
                "ttft_ms_p99": one.ttft_ms["p99"],
                "tpot_ms_p50": one.tpot_ms["p50"],
                "tpot_ms_p99": one.tpot_ms["p99"],
                "stable": one.stable,
                "run": one.run,
            }
        )
    return rows


def knee(rows: list[dict[str, Any]]) -> float | None:
    """The lowest simulated rate whose goodput is within 2 % of the highest: beyond it more load brings no more good
    answers.

    None when the highest load had the highest goodput: the knee is beyond it.
    """
    known = sorted((row["rate_per_s"], row["goodput_per_s"]) for row in rows if row["goodput_per_s"] is not None)
    if not known:
        return None
    top = max(good for _, good in known)
    return None if known[-1][1] == top else next(rate for rate, good in known if good >= (1 - KNEE) * top)
