"""What would let a smaller fleet come back after the burst, where the answer is larger than its load asks for.

The one idea: such a fleet is paid for the burst alone, so a change is worth the GPUs that it takes off it. Each is
asked by one run of a sample whether a fleet that only holds the load is soon back with it; of those that are the
cheapest is settled as the answer was: on every seed of the burst, and over independent runs without it.

    >>> returning(fleet, winner, recovery, capacity)["advice"][0]["words"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvcast import text
from kvcast.planner.advise import side_of, told_of
from kvcast.planner.candidates import fleet_of
from kvcast.planner.document import scenario_of
from kvcast.planner.load import Capacity
from kvcast.planner.recovery import Recovery, with_burst
from kvcast.planner.sampled import sampled
from kvcast.planner.trials import Trial, Trials
from kvcast.planner.whatif import NO_GAIN
from kvcast.planner.words.phrases import gpus
from kvcast.studies.change import COSTS, FREE, Change
from kvcast.studies.levers import ADVICE, changes, without_changes
from sim.scenario import Scenario

SOON = 1 / 3
"""Of the time that the answer is given to come back. A change that needs more is no safe way to save a GPU."""
TRIES = 4
"""Changes that are settled at most: a sample may promise too much."""


@dataclass(frozen=True)
class _Asked:
    """A change of a smaller fleet. back_s: of a sample of it, on the first seed; None where it is not soon back."""

    change: Change
    reason: str | None
    back_s: float | None = None

    @property
    def scenario(self) -> Scenario:
        return self.change.scenario

    @property
    def gpus(self) -> int:
        return self.scenario.hardware.gpus * self.scenario.cluster.replicas


def returning(
    trials: Trials, winner: Scenario, recovery: Recovery, capacity: Capacity, router: dict[str, Any] | None = None
) -> dict[str, Any]:
    """As kvcast.planner.advise.advice: the change with which the replicas that hold the load come back, or without any
    such those of one replica less than the answer has. A row of `tried` has `back_s`, of the first seed. router: what
    was settled with fewer GPUs already (kvcast.planner.fewer)."""
    assert recovery.held is not None
    tried: list[_Asked] = []
    for n in dict.fromkeys((recovery.held, winner.cluster.replicas - 1)):
        smaller = fleet_of(winner, n)
        tried = _ask(trials, changes(ADVICE, smaller), recovery.seeds[0])
        found = _settled(trials, tried, winner, recovery, capacity)
        if found:
            break
    if router is not None and router["change"] not in [row["change"] for row in found]:
        found = sorted([*found, _routed(router, winner, capacity)], key=lambda row: row["after"]["gpus"])
    return {
        "advice": found,
        "tried": [{**told_of(one.change), **NO_GAIN, "reason": one.reason, "back_s": one.back_s} for one in tried],
        "not_tried": without_changes(ADVICE, smaller),
    }


def _ask(trials: Trials, given: Sequence[Change], seed: int) -> list[_Asked]:
    """All in one round."""
    reasons = [trials.cannot_run(one.scenario) for one in given]
    runs = [
        (with_burst(_soon(sampled(Trial(one.scenario)).scenario)), seed, False)
        for one, reason in zip(given, reasons, strict=True)
        if reason is None
    ]
    back = iter(trials.after_shocks(runs))
    return [
        _Asked(one, reason, next(back).back_s if reason is None else None)
        for one, reason in zip(given, reasons, strict=True)
    ]


def _soon(scenario: Scenario) -> Scenario:
    plan = scenario.plan
    return replace(scenario, plan=replace(plan, recover_within_s=SOON * plan.recover_within_s))


def _settled(
    trials: Trials, tried: Sequence[_Asked], winner: Scenario, recovery: Recovery, capacity: Capacity
) -> list[dict[str, Any]]:
    """Of those that are soon back and need fewer GPUs than the answer the first that is an answer too: with the fewest
    GPUs, then the cheapest, then the soonest."""
    most = winner.hardware.gpus * winner.cluster.replicas
    promising = sorted(
        (one for one in tried if one.back_s is not None and one.gpus < most),
        key=lambda one: (one.gpus, COSTS.index(one.change.costs), one.back_s),
    )
    for one in promising[:TRIES]:
        times_s = [back_s for back_s in recovery.times_s(one.scenario) if back_s is not None]
        if len(times_s) == len(recovery.seeds):  # what falls need not be settled
            judged = trials.settle(Trial(one.scenario, keep=True))
            if judged.meets and judged.attainment is not None:
                told, mean = told_of(one.change), judged.attainment.mean
                return [_row(told, one.scenario, max(times_s), mean, winner, capacity)]
    return []


def _routed(best: dict[str, Any], winner: Scenario, capacity: Capacity) -> dict[str, Any]:
    """The row of a router that needs fewer GPUs."""
    told = {"change": best["change"], "set": best["set"], "asks_for": "", "costs": FREE}
    return _row(told, scenario_of(best["scenario"]), None, best["attainment"]["mean"], winner, capacity)


def _row(
    told: dict[str, Any], fleet: Scenario, back_s: float | None, attainment: float, winner: Scenario, capacity: Capacity
) -> dict[str, Any]:
    """As a row of kvcast.planner.advise.advice, of a fleet that was settled. back_s: of the slowest seed, None where
    it is known to come back and not when."""
    from kvcast.scenario.toml import dumps

    before = side_of(None, capacity, (0, capacity.most), winner.cluster.replicas, winner)
    after = side_of(None, capacity, (0, None), fleet.cluster.replicas, fleet, attainment)
    asks = f" (asks for {told['asks_for']})" if told["asks_for"] else ""
    back = (
        f"back after {text.seconds(back_s)} at most"
        if back_s
        else "back after the burst"
        if back_s is None
        else "back at once"
    )
    return {
        **told,
        **NO_GAIN,
        "set": [*told["set"], *_size(fleet)],
        "reason": None,
        "back_s": back_s,
        "scenario": dumps(fleet),
        "before": before,
        "after": after,
        "saves": True,
        "words": f"{told['change']}: {gpus(after['gpus'])} instead of {before['gpus']}, {back}{asks}",
    }


def _size(scenario: Scenario) -> list[str]:
    """The --set values that make a fleet as large as this one."""
    pools = scenario.disaggregation
    split = [f"disaggregation.prefill_replicas={pools.prefill_replicas}"] if pools.on else []
    return [f"cluster.replicas={scenario.cluster.replicas}", *split]
