"""What a fleet does when it is disturbed: two branches under a load that rises and falls, collapses by itself, shocks
of every kind, and which changes make it come back.

The one idea: every question is a scenario with a curve of load or a shock, asked on the first seeds; a fleet that lives
on its cache answers differently on the way up and on the way down.

    >>> resilience(load_scenario("examples/demo.toml"), seeds=3)["sweep"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvcast import api
from kvcast.planner.load import factor_of, with_load
from kvcast.planner.options import check_slo
from kvcast.planner.recovery import CALM_S, burst_of, with_shock
from kvcast.planner.trials import AfterShock, Trial, Trials
from kvcast.pools import Jobs
from kvcast.scenario.mixed import alike_only
from kvcast.scenario.steady import begins_early
from kvcast.store.simulations import Lab
from kvcast.studies.change import COSTS, Change
from kvcast.studies.levers import ADVICE, OVERLOAD, changes
from sim.measure.metrics import limits_of
from sim.measure.quantiles import chi2
from sim.measure.regime import of_runs
from sim.measure.shocks import phase
from sim.measure.verdict import groups, named_limits
from sim.scenario import BURST, CACHE_LOST, LONG_PROMPTS, REPLICA_DOWN, ROLLING, SLOW, Scenario, Shock
from workloads import mix
from workloads.check import class_rates
from workloads.config import Arrival
from workloads.errors import InputError

DWELL_S = 600.0
"""At each load of the sweep, and of a bin in which a collapse is looked for."""
LEVELS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
"""Loads of the sweep upwards, times the scenario's."""
OWN = 1.0
"""The scenario's own load."""
HOURS = 2.0
COLLAPSED = 0.5
"""A fleet has collapsed when less than this share of its target is attained, to the end."""
STRIDE, FARTHEST = 4, 16
"""Steps of load (4.4 %) between those looked at for one from which the fleet does not come back, and the last."""


AFFINITY = "session-affinity"


@dataclass(frozen=True)
class Asked:
    seeds: int = 3
    hours: float = HOURS
    levels: tuple[float, ...] = LEVELS
    jobs: Jobs = 1
    sweep: bool = True
    collapse: bool = True
    shocks: bool = True
    remedies: bool = True


def resilience(scenario: Scenario, folder: Path, **options: Any) -> dict[str, Any]:
    """All answers as one document. folder: keeps the runs, so that a killed one goes on. Raises InputError for a
    scenario that has no target, or no rate to disturb."""
    asked = Asked(**options)
    if not (asked.sweep or asked.collapse or asked.shocks or asked.remedies):
        raise InputError("nothing is asked: expected one of sweep, collapse, shocks and remedies")
    alike_only(scenario)
    check_slo(scenario)
    if scenario.shock or not begins_early(scenario):
        raise InputError(
            "resilience asks for a mix in steady state: expected a scenario without [[shock]] and [run] warmup_s, whose"
            " sessions arrive at a rate"
        )
    seeds = [scenario.seed + i for i in range(asked.seeds)]
    with Trials(Lab(folder), seeds, 0.95, asked.jobs) as trials:
        fleet = Disturbed(trials, scenario)
        made: dict[str, Any] = {
            "name": scenario.name,
            "seeds": seeds,
            "replicas": scenario.cluster.replicas,
            "burst": {"size": scenario.plan.burst_size, "lasts_s": scenario.plan.burst_s},
            "within_s": scenario.plan.recover_within_s,
            "target": scenario.slo.attainment,
            "sweep": fleet.sweep(asked.levels) if asked.sweep else None,
            "collapse": [fleet.collapse(level, asked.hours) for level in (OWN, 1.25)] if asked.collapse else None,
            "shocks": [fleet.shock(one) for one in fleet.kinds()] if asked.shocks else None,
            "remedies": fleet.remedies() if asked.remedies else None,
        }
    return {**made, "regime": regime_of(made), "not_used": not_used(scenario)}


def not_used(scenario: Scenario) -> list[str]:
    """The scenario's keys that every question here has a value of its own for, with what they say."""
    given = {
        "run.duration_s": scenario.run.duration_s,
        "run.horizon_s": scenario.run.horizon_s,
        "workload.duration_s": scenario.workload.duration_s,
        "workload.requests": scenario.workload.requests,
    }
    return [f"{key} = {value:g}" for key, value in given.items() if value is not None]


def regime_of(made: dict[str, Any]) -> str | None:
    """Stable, metastable or unstable at the scenario's own load (sim.measure.regime); None where it was not asked."""
    if not made["collapse"] or not made["shocks"]:
        return None
    own = next(row for row in made["collapse"] if row["level"] == OWN)
    burst = next(row for row in made["shocks"] if row["kind"] == BURST)
    return of_runs(own["collapsed"], own["attained"], own["runs"], burst["back_s"])


@dataclass
class Disturbed:
    """One fleet, its runs in a lab."""

    trials: Trials
    scenario: Scenario

    def __post_init__(self) -> None:
        self.windowed = api.windowed(self.scenario)

    # -- a load that rises and falls -------------------------------------------------------------------------------
    def sweep(self, levels: Sequence[float]) -> list[dict[str, Any]]:
        """A row for each load on the way up and on the way down: attainment, hit rate and number waiting, mean over the
        seeds."""
        curve = (*levels, *reversed(levels[:-1]))
        scenario = following(self.scenario, curve)
        runs = [self._columns(scenario, seed) for seed in self.trials.seeds]
        begins_s = api.windowed(scenario).run.warmup_s or 0.0
        rows = []
        for place, level in enumerate(curve):
            from_s = begins_s + place * DWELL_S
            found = [phase(columns, from_s, from_s + DWELL_S) for columns in runs]
            means = {key: _mean([one[key] for one in found]) for key in ("attainment", "hit_rate", "waiting")}
            rows.append({"level": level, "way": "up" if place < len(levels) else "down", **means})
        return rows

    def _columns(self, scenario: Scenario, seed: int) -> dict[str, np.ndarray]:
        """The requests of a run that came."""
        found = self.trials.requests(scenario, seed, _COLUMNS)
        came = ~np.isnan(found["arrival_s"])
        return {name: column[came] for name, column in found.items()}

    # -- by itself -------------------------------------------------------------------------------------------------
    def collapse(self, level: float, hours: float) -> dict[str, Any]:
        """How many runs collapse by themselves at this many times the load, and the mean time to it (of an exponential
        time; its 95 % interval by the number of collapses)."""
        scenario = with_load(self.windowed, level)
        warmup_s = scenario.run.warmup_s or 0.0
        ends_s = warmup_s + hours * 3600
        scenario = replace(
            scenario,
            workload=replace(scenario.workload, duration_s=ends_s, requests=None),
            run=replace(scenario.run, duration_s=ends_s, horizon_s=ends_s),
        )
        found = [self._collapse_s(scenario, seed) for seed in self.trials.seeds]
        times = [after_s for after_s, _ in found]
        known = [time for time in times if time is not None]
        watched_s = sum(hours * 3600 if time is None else time for time in times)
        low, high = _exponential(len(known), watched_s)
        return {
            "level": level,
            "hours": hours,
            "runs": len(times),
            "collapsed": len(known),
            "attained": sum(attains for _, attains in found),
            "after_s": times,
            "mean_s": watched_s / len(known) if known else None,
            "mean_low_s": low,
            "mean_high_s": high,
        }

    def _collapse_s(self, scenario: Scenario, seed: int) -> tuple[float | None, bool]:
        """Seconds after the warm-up from which on every bin attains less than COLLAPSED of its target, and whether the
        run as a whole attains it."""
        one = self.trials.judge([Trial(scenario, full=True)], seed)[0]
        columns = self.trials.by_request(one.runs[0])
        workload = self.trials.workload(replace(scenario, seed=seed))
        begins_s, ends_s = scenario.run.warmup_s or 0.0, scenario.run.duration_s or 0.0
        edges = np.arange(begins_s, ends_s - DWELL_S + 1e-9, DWELL_S)
        down = np.zeros(len(edges), bool)
        for _, target, members in groups(named_limits(workload, limits_of(workload, scenario.slo)), scenario.slo):
            mine = np.isin(columns["class_id"], members)
            for place, edge in enumerate(edges):
                here = mine & (columns["arrival_s"] >= edge) & (columns["arrival_s"] < edge + DWELL_S)
                down[place] |= bool(here.any()) and columns["good"][here].mean() < COLLAPSED * target
        stays = np.logical_and.accumulate(down[::-1])[::-1]
        return (float(edges[np.argmax(stays)] - begins_s) if stays.any() else None), one.attains

    # -- shocks ----------------------------------------------------------------------------------------------------
    def kinds(self) -> list[Shock]:
        """A shock of every kind that this fleet can have."""
        lasts_s, most = self.scenario.plan.burst_s, api.resolve(self.scenario).scenario.engine.max_model_len or 0
        of_kind = {
            BURST: burst_of(self.scenario),
            CACHE_LOST: Shock(CACHE_LOST, CALM_S, 60.0),
            REPLICA_DOWN: Shock(REPLICA_DOWN, CALM_S, lasts_s),
            SLOW: Shock(SLOW, CALM_S, lasts_s),
            LONG_PROMPTS: Shock(LONG_PROMPTS, CALM_S, lasts_s, size=float(min(100_000, max(most - 1000, 1)))),
        }
        if self.scenario.disaggregation.on:  # what happens to a replica is not simulated there
            return [of_kind[BURST], of_kind[LONG_PROMPTS]]
        n = self.scenario.cluster.replicas
        if n > 1:
            once = Shock(ROLLING, CALM_S)
            of_kind[ROLLING] = replace(once, duration_s=n * (once.notice_s + once.load_s))
        return [of_kind[kind] for kind in of_kind if kind != REPLICA_DOWN or n > 1]

    def shock(self, shock: Shock) -> dict[str, Any]:
        times = [self._back_s(self.windowed, shock, seed) for seed in self.trials.seeds]
        return {"kind": shock.kind, "size": shock.how_much or None, "lasts_s": shock.duration_s, "back_s": times}

    def _back_s(self, windowed: Scenario, shock: Shock, seed: int) -> float | None:
        return self._after(windowed, shock, seed).back_s

    def _after(self, windowed: Scenario, shock: Shock, seed: int) -> AfterShock:
        """The last seed's run goes on to its end, so that one that falls again is seen."""
        return self.trials.after_shock(with_shock(windowed, shock), seed, to_the_end=seed == self.trials.seeds[-1])

    # -- remedies --------------------------------------------------------------------------------------------------
    def remedies(self) -> dict[str, Any]:
        """The changes that help, at the lowest load looked at from which the fleet does not come back: those that bring
        it back on the most seeds first, then the cheapest, then those that turn the fewest requests away."""
        step = next((s for s in range(0, FARTHEST + 1, STRIDE) if not self._recovers(self._at(self.windowed, s))), None)
        if step is None:
            return {"level": None, "rows": []}
        rows = []
        for change in [*changes(ADVICE, self.windowed), *changes(OVERLOAD, self.windowed), *self._one_more()]:
            try:
                scenario = self._at(change.scenario, step)
                found = [self._after(scenario, burst_of(scenario), seed) for seed in self.trials.seeds]
            except InputError as error:
                rows.append(_remedy(change, None, str(error)))
                continue
            rows.append(_remedy(change, found))
        return {"level": factor_of(step), "rows": sorted(rows, key=_rank)}

    def _one_more(self) -> list[Change]:
        """Another replica, with the router it has and with sessions kept together."""
        cluster = self.windowed.cluster
        made = []
        for router in dict.fromkeys((cluster.router, AFFINITY)):
            more = replace(cluster, replicas=cluster.replicas + 1, router=router)
            words = f"replicas {cluster.replicas} -> {more.replicas}"
            sets: tuple[str, ...] = (f"cluster.replicas={more.replicas}",)
            if router != cluster.router:
                words, sets = f"{words}, router {router}", (*sets, f"cluster.router={router}")
            changed = replace(self.windowed, cluster=more)
            made.append(Change(words, sets, changed, "another replica's GPUs", COSTS[-1]))
        return made

    def _at(self, scenario: Scenario, step: int) -> Scenario:
        return scenario if step == 0 else with_load(scenario, factor_of(step))

    def _recovers(self, scenario: Scenario) -> bool:
        return all(self._back_s(scenario, burst_of(scenario), seed) is not None for seed in self.trials.seeds)


_COLUMNS = ("arrival_s", "admit_s", "good", "prompt_tokens", "hit_tokens")


def following(scenario: Scenario, curve: Sequence[float]) -> Scenario:
    """The mix at these many times its load, DWELL_S each, one after the other; arrivals become Poisson."""
    config = mix.resolve(scenario.workload)
    mean, lasts_s = float(np.mean(curve)), DWELL_S * len(curve)
    arrival = Arrival(kind="diurnal", curve=tuple(float(one) for one in curve), period_s=lasts_s)
    classes = tuple(
        replace(c, share=None, rate=rate * mean, arrival=arrival)
        for c, rate in zip(config.class_, class_rates(config), strict=True)
        if rate > 0
    )
    workload = replace(
        config, preset=None, class_=classes, rate=None, rate_scale=1.0, duration_s=lasts_s, requests=None, start_s=0.0
    )
    return replace(scenario, workload=workload, run=replace(scenario.run, duration_s=None, horizon_s=None))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _exponential(events: int, watched_s: float) -> tuple[float, float | None]:
    """95 % interval of the mean of an exponential time, of which so many ended in watched_s."""
    low = 2 * watched_s / chi2(0.975, 2 * events + 2)
    return low, 2 * watched_s / chi2(0.025, 2 * events) if events else None


def _remedy(change: Change, found: list[AfterShock] | None, reason: str = "") -> dict[str, Any]:
    known = [one.back_s for one in found or () if one.back_s is not None]
    return {
        "change": change.words,
        "set": list(change.sets),
        "costs": change.costs,
        "asks_for": change.asks_for,
        "back": len(known),
        "back_s": None if found is None else [one.back_s for one in found],
        "slowest_s": max(known) if known else None,
        "turned_away": None if found is None else _mean([one.turned_away for one in found]),
        "reason": reason,
    }


def _rank(row: dict[str, Any]) -> tuple[int, int, float, float]:
    return -row["back"], COSTS.index(row["costs"]), row["turned_away"] or 0.0, row["slowest_s"] or 0.0
