"""What a reader of a plan must know before acting on it.

    >>> cautions(fleet, loads)
"""
from __future__ import annotations

from kvcast import api, text
from kvcast.planner.attainment import requests_needed
from kvcast.planner.fleet import Fleet
from kvcast.planner.load import closed_load, unit_of
from sim.scenario import Scenario
from workloads.errors import InputError

PART, MUCH = 0.01, 0.05


def cautions(fleet: Fleet, winner: Scenario) -> list[str]:
    lines = []
    try:
        resolved = api.resolve(winner)
    except InputError:
        return []
    if resolved.profile.kind == "roofline":
        lines.append(f"{resolved.profile.id}: no step time was measured on this GPU; a roofline is right within about 30 %, and so is the number of GPUs")
    lines += [line.removeprefix("caution: ") for line in resolved.kv_lines if line.startswith("caution: ")]
    answer = fleet.answer
    if answer is not None:
        outside = answer.extrapolated or 0.0
        if outside >= PART and resolved.profile.kind != "roofline":
            lines.append(f"{text.percent(outside)} of the chosen fleet's simulated time rests on step times beyond what was measured{': ' if outside >= MUCH else ''}{'do not rely on it without a measurement' if outside >= MUCH else ''}")
        if answer.stable is None and answer.summaries:
            lines.append(f"stability of the chosen fleet is not certain: {answer.summaries[0]['stable_reason']}")
        if any(summary["censored"] for summary in answer.summaries):
            lines.append("more than 0.1 % of the arrivals did not complete: percentiles leave them out, attainment counts them as missed")
    return lines + _too_few(fleet, winner) + _too_few_sessions(fleet, winner)


def _too_few_sessions(fleet: Fleet, winner: Scenario) -> list[str]:
    """A closed loop cannot have more sessions at once than there are."""
    wanted, unit = closed_load(winner), unit_of(winner)
    if wanted is None or fleet.winner is None:
        return []
    sessions = fleet.trials.sessions(winner)
    if sessions < wanted:
        return [f"the workload has {sessions:,} sessions for {wanted:,} {unit}: never more than {sessions:,} run at once, and the plan is for those"]
    bounded = winner.workload.trace is not None or winner.workload.duration_s is not None
    return [f"the workload has {sessions:,} sessions for {wanted:,} {unit}: no higher load than {sessions:,} can be looked at"] if bounded and sessions < 2 * wanted else []


def _too_few(fleet: Fleet, winner: Scenario) -> list[str]:
    """A target that so few requests cannot show, even if all were good."""
    target, trials = winner.slo.attainment or 0.0, fleet.trials
    arrived = max((sum(summary["arrived"] for summary in one.summaries) for one in fleet.judged.values()), default=0)
    if target == 1:
        return ["a target of 100 % can be missed but never be shown: it counts as met when no simulated request missed"]
    needed = requests_needed(target, trials.confidence)
    if 0 < arrived < needed:
        return [f"{arrived:,} requests cannot show {text.percent(target, 2)} at {text.percent(trials.confidence, 0)} confidence, even if all are good: {needed:,} are needed; use --seeds or a longer workload"]
    return []
