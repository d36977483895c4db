"""The answer under what it was not found for: an empty cache, other step times, one replica down.

>>> without_cache(fleet, Options())
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcast import api
from kvcast.planner import document
from kvcast.planner.fleet import Fleet
from kvcast.planner.options import Options
from kvcast.planner.recovery import CALM_S, applies, with_shock
from kvcast.planner.sampled import sampled
from kvcast.planner.trials import Trial
from kvcast.scenario.autoscale import start_s
from kvcast.store.simulations import steps_times
from kvcast.trust.step_error import step_error
from sim.scenario import REPLICA_DOWN, Shock


def without_cache(fleet: Fleet, asked: Options) -> dict[str, Any] | None:
    """The answer's load with the prefix cache off, by one run. A fleet that cannot hold it has a second, bad state:
    once a burst or a restart has emptied its caches, it may stay there."""
    if (
        not asked.undisturbed
        or fleet.answer is None
        or not fleet.answer.attains
        or not fleet.answer.trial.scenario.cache.enabled
    ):
        return None
    scenario = fleet.answer.trial.scenario
    off = replace(scenario, cache=replace(scenario.cache, enabled=False, tiers=()))
    one = fleet.trials.judge([sampled(Trial(off))])[0]
    return document.sketch_of(one)


def model_error(fleet: Fleet, asked: Options) -> dict[str, Any] | None:
    """What the answer would be were all steps as much slower, or faster, as the profile may be off: the first run
    again."""
    if not asked.model_error or fleet.winner is None or fleet.answer is None:
        return None
    scenario = fleet.answer.trial.scenario
    error = step_error(api.resolve(scenario).profile)
    slower, faster = fleet.trials.judge(
        [sampled(Trial(scenario, steps_times(1 + sign * error.share), full=True)) for sign in (1, -1)]
    )
    return {
        "share": error.share,
        "source": error.source,
        "slower": document.sketch_of(slower),
        "faster": document.sketch_of(faster),
    }


def n_plus_1(fleet: Fleet, asked: Options) -> dict[str, Any] | None:
    """The fleet with one replica down, in the steady state: what a failure itself costs is not simulated."""
    if not asked.n_plus_1 or fleet.winner is None or fleet.answer is None:
        return None
    n = fleet.replicas
    settled, known = fleet.settled.get((fleet.winner, n - 1)), fleet.judged.get((fleet.winner, n - 1))
    down = known
    if n > 1 and settled is not None and settled.attainment is None:  # a sample could say something else
        down = fleet.trials.judge([replace(settled.trial, full=True)])[0]
    elif n > 1 and (down is None or down.attainment is None):
        down = fleet.judge(fleet.winner, [n - 1], full=True)[0]
    enough = (
        settled.meets if settled is not None else known.attains if known is not None else bool(down and down.attains)
    )
    survives = n if enough else n + 1 if fleet.answer.meets else None
    return {
        "replicas": survives,
        "attainment_one_down": down.attainment.mean if down and down.attainment else None,
        "enough": enough,
        "verdict": settled.verdict if settled is not None else None,  # of independent runs; None: one run says so
    }


def failure(fleet: Fleet, asked: Options) -> dict[str, Any] | None:
    """The answer while one of its replicas fails and starts again, cold: one run of the first seed. None where the
    fleet does not hold, or has no other replica, or has no steady state to come back to."""
    if not asked.n_plus_1 or fleet.winner is None or fleet.answer is None or not fleet.answer.meets:
        return None
    scenario = fleet.answer.trial.scenario
    if scenario.cluster.replicas < 2 or not applies(scenario, asked):
        return None
    down_s = start_s(api.resolve(scenario))
    failing = with_shock(scenario, Shock(REPLICA_DOWN, CALM_S, down_s, load_s=0.0))
    row = fleet.trials.told_of_shock(failing, fleet.trials.seeds[0])
    return {
        "down_s": down_s,
        "attainment_before": row["before"]["attainment"],
        "attainment_during": row["during"]["attainment"],
        "missed": row["missed"],
        "recovered_s": row["recovered_s"],
        "within_s": scenario.plan.recover_within_s,
    }
