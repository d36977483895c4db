"""Does a fleet come back after a burst? The size that does, and the highest load from which it does.

The one idea: a fleet that lives on its prefix cache has a second state, cold and overloaded, in which it stays once it
is there. So a fleet is asked twice: does it hold its load, and is it back at its target within a stated time after a
standard burst ([plan]), on every one of the first seeds. Between the two loads it holds until disturbed.

    >>> recovery = Recovery(fleet); recovery.enlarge(); recovery.capacity(loads, capacity)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kvcast.planner.fleet import Fleet
from kvcast.planner.load import STRIDE, Capacity, Loads, factor_of
from kvcast.planner.options import Options
from kvcast.planner.sampled import sampled, shortened
from kvcast.planner.trials import Trial, Trials
from kvcast.scenario.steady import is_mix
from kvcast.studies.search import fewest, together
from sim.measure.shocks import JUDGED_S, span_s
from sim.scenario import BURST, Scenario, Shock
from workloads import mix, steady

CALM_S = 300.0
"""Before the burst."""
LATE_S = 120.0
"""The clock stops so long after the last arrival that counts: what then still waits has missed."""
SEEDS = 3
"""Runs that must all come back: of the loads near the fold some seeds do and some do not."""


def applies(scenario: Scenario, asked: Options) -> bool:
    """Whether there is a burst to ask for: only a mix with a rate has sessions more."""
    return (
        asked.recover
        and scenario.plan.recover
        and not scenario.shock
        and is_mix(scenario)
        and scenario.workload.concurrency is None
        and steady.stationary(mix.resolve(scenario.workload))
    )


def burst_of(scenario: Scenario) -> Shock:
    plan = scenario.plan
    return Shock(BURST, CALM_S, plan.burst_s, plan.burst_size)


def with_burst(scenario: Scenario) -> Scenario:
    """The same fleet in the same steady state, with the standard burst and the time to come back from it."""
    return with_shock(scenario, burst_of(scenario))


def with_shock(scenario: Scenario, shock: Shock) -> Scenario:
    """The same with any shock."""
    warmup_s = scenario.run.warmup_s or 0.0
    ends_s = span_s(shock, warmup_s)[1] + scenario.plan.recover_within_s + JUDGED_S
    return replace(
        scenario,
        shock=(shock,),
        workload=replace(scenario.workload, duration_s=ends_s, requests=None),
        run=replace(scenario.run, duration_s=ends_s, horizon_s=ends_s + LATE_S),
    )


def recovered_s(trials: Trials, scenario: Scenario, seed: int, to_the_end: bool = False) -> float | None:
    """Seconds after the burst until the fleet is back; None when it is not within the time asked for."""
    return trials.back_s(with_burst(scenario), seed, to_the_end)


def all_of(trial: Trial) -> Scenario:
    """Every replica of a fleet, after the warm-up of a sample of it (kvcast.planner.sampled)."""
    sample, whole = sampled(trial).scenario, trial.scenario
    return sample if sample.cluster.replicas == whole.cluster.replicas else shortened(whole)


def highest_back(back_s: Callable[[int], float | None], highest: int, first: int, within_s: float) -> int:
    """The highest step of load up to `highest` that is back within within_s; it is from step 0.

    first: the step that is asked first. Above a step that is back soon the next one asked is far, above one that is
    back late it is near: a run that does not come back is the longest there is. Below one that is not back by
    halving."""
    low, high, asked = 0, highest + 1, first
    while high - low > 1:
        took_s = back_s(asked)
        if took_s is None:
            high = asked
            asked = (low + high) // 2
        else:
            low = asked
            asked = low + max(1, round((high - 1 - low) * (1 - took_s / within_s)))
    return low


@dataclass
class Recovery:
    """What the burst does to the fleets of a plan."""

    fleet: Fleet
    held: int | None = None  #: replicas that the chosen combination holds its load with
    back_s: list[float | None] = field(default_factory=list)  #: of the answer, by seed
    fragile: set[tuple[int, int]] = field(default_factory=set)  #: (combination, replicas) that hold and do not recover

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.fleet.trials.seeds[:SEEDS]

    @property
    def recovers(self) -> bool:
        return bool(self.back_s) and None not in self.back_s

    def times_s(self, scenario: Scenario) -> list[float | None]:
        """By seed; the first alone, all others at once where it comes back. The last seed's run goes on to its end, so
        that a fleet that comes back and falls again is found out once all others have said that it is back."""
        trials, shocked = self.fleet.trials, with_burst(scenario)
        found: list[float | None] = []
        for seeds in (self.seeds[:1], self.seeds[1:]):
            runs = [(shocked, seed, seed == self.seeds[-1]) for seed in seeds]
            found += [one.back_s for one in trials.after_shocks(runs)]
            if None in found:
                break
        return found

    def judge_fixed(self) -> None:
        """The fleet as it is."""
        if self.fleet.answer is not None and self.fleet.answer.meets:
            self.held = self.fleet.replicas
            self.back_s = self.times_s(self.fleet.answer.trial.scenario)

    def enlarge(self) -> None:
        """The cheapest fleet that also recovers becomes the answer. A combination is only asked where the replicas it
        holds its load with are cheaper than the best that recovers; without one the answer is the cheapest that holds
        it."""
        fleet, best = self.fleet, None
        if not self._falls_and_holds():
            fleet.settle()
            if fleet.answer is None or not fleet.answer.meets:
                return
        assert fleet.winner is not None
        chosen, holding = fleet.winner, {i: one.fewest for i, one in fleet.found.items() if one.fewest is not None}
        for i in sorted(holding, key=lambda i: (fleet.cost(i, holding[i]), i != chosen)):
            if best is not None and fleet.cost(i, holding[i]) >= fleet.cost(*best):
                break
            found = self._fewest(i, holding[i])
            if found is not None and (best is None or fleet.cost(i, found) < fleet.cost(*best)):
                best = (i, found)
        i, n = best or (chosen, holding[chosen])
        self.held = holding[i]
        fleet.answer_with(i, n)
        self.back_s = self.times_s(fleet.whole(i, fleet.replicas).scenario)

    def _falls_and_holds(self) -> bool:
        """Whether the fleet that the search found is no answer: it does not come back from its first burst, and two
        runs say that it holds its load until then. It is not settled, the larger one that comes back is."""
        fleet = self.fleet
        if fleet.winner is None:
            return False
        i, n = fleet.winner, fleet.replicas
        whole, seed = fleet.whole(i, n).scenario, self.seeds[0]
        back_s = recovered_s(fleet.trials, whole, seed, seed == self.seeds[-1])
        return back_s is None and fleet.holds(i, n)

    def _fewest(self, i: int, held: int) -> int | None:
        """The fewest replicas of a combination, from those it holds its load with, that recover."""

        def answers(asked: dict[int, list[int]]) -> dict[int, list[bool]]:
            return {key: [n >= held and self._recovers(i, n) for n in ns] for key, ns in asked.items()}

        return together({i: fewest(held, self.fleet.most)}, answers)[i].fewest

    def _recovers(self, i: int, n: int) -> bool:
        back = None not in self.times_s(self.fleet.whole(i, n).scenario)
        if not back:
            self.fragile.add((i, n))
        return back

    def back(self, scenario: Scenario) -> bool:
        """Whether all of a fleet comes back on the first seed, after a sample's warm-up: what advice is asked."""
        return recovered_s(self.fleet.trials, all_of(Trial(scenario)), self.seeds[0]) is not None

    def capacity(self, loads: Loads, found: Capacity) -> int | None:
        """The highest step of load, up to the one it holds, from which the fleet recovers on every seed; None where it
        does not even at the load it has. Seed by seed, each below what those before it came back from; from there all
        of them, step by step. The first seed is asked a little below what the fleet holds: some come back from all of
        that, and those that live on their caches from little less. The last one is asked of every replica: where a
        session meets another one at every turn, more of them are slower to come back than the few of a sample."""
        if not self.recovers or found.held is None or found.held < 0:
            return None

        def back_s(seed: int, at: int) -> float | None:
            last = seed == self.seeds[-1]
            asked = all_of(loads.whole(at)) if last else loads.trial(at).scenario
            return recovered_s(self.fleet.trials, asked, seed, last)

        within_s, step = loads.scenario.plan.recover_within_s, found.held
        for place, seed in enumerate(self.seeds):
            first = step if place else min(max(step - STRIDE, 1), step)
            step = highest_back(partial(back_s, seed), step, first, within_s)
        while step > 0 and any(back_s(seed, step) is None for seed in self.seeds):
            step -= 1
        return step

    def as_document(self, step: int | None, capacity: Capacity | None) -> dict[str, Any] | None:
        """holds_replicas: the fewest that hold the load; recovers_s by seed; recoverable_per_s beside the SLO
        capacity."""
        answer = self.fleet.answer
        if self.held is None or answer is None:
            return None
        plan = answer.trial.scenario.plan
        return {
            "burst_size": plan.burst_size,
            "burst_s": plan.burst_s,
            "within_s": plan.recover_within_s,
            "seeds": list(self.seeds),
            "recovers": self.recovers,
            "recovered_s": list(self.back_s),
            "holds_replicas": self.held,
            "recoverable_per_s": None if step is None or capacity is None else capacity.load(step),
            "headroom": None if step is None else 1 - 1 / factor_of(step),
        }
