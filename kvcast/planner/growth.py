"""The fewest replicas at larger loads, as the fleet is and with advice.

>>> growth(fleet, winner, Options(), progress, reach)
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kvcast.planner import document
from kvcast.planner.candidates import fleet_of
from kvcast.planner.document import scenario_of
from kvcast.planner.fleet import Fleet
from kvcast.planner.load import with_load
from kvcast.planner.options import Options
from kvcast.planner.progress import GROWTH, Progress
from kvcast.planner.sampled import brief
from kvcast.planner.trials import Trial
from kvcast.studies.search import Found, fewest
from kvcast.studies.search import together as together_search
from sim.scenario import Scenario

AFFINITY = "session-affinity"
GROWTH_FACTORS = (2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""Loads of the growth curve below the one that is asked for."""


def growth(
    fleet: Fleet, winner: Scenario, asked: Options, progress: Progress, reach: dict[str, Any]
) -> list[dict[str, Any]] | None:
    """The fewest replicas of the chosen combination at larger loads, as it is and with the best advice that keeps its
    GPUs a replica."""
    if asked.growth is None or fleet.winner is None or asked.fixed:
        return None
    progress.begin(GROWTH)
    change, advised = _advised(fleet, winner, reach)
    sides = {"": winner, **({} if advised is None else {"advised": advised})}
    factors = [factor for factor in GROWTH_FACTORS if 1 < factor < asked.growth] + [asked.growth]
    most = math.ceil(asked.most * asked.growth)
    found: dict[tuple[str, float], Found] = {}

    def judge(questions: dict[tuple[str, float], list[int]]) -> dict[tuple[str, float], list[bool]]:
        places = [(side, factor, n) for (side, factor), ns in questions.items() for n in ns]
        judged = iter(
            fleet.trials.judge(
                [brief(Trial(fleet_of(with_load(sides[side], factor), n))) for side, factor, n in places]
            )
        )
        return {key: [next(judged).attains for _ in ns] for key, ns in questions.items()}

    def guess(side: str, place: int) -> int:
        """From the load before, else from what the chosen fleet holds."""
        factor, before = factors[place], found.get((side, factors[place - 1]))
        return (
            math.ceil(before.fewest * factor / factors[place - 1] - 1e-9)
            if place and before and before.fewest
            else _held(fleet, reach, side, factor)
        )

    for place, factor in enumerate(factors):
        found |= together_search({(side, factor): fewest(guess(side, place), most) for side in sides}, judge)

    def size(side: str, factor: float) -> dict[str, Any]:
        n = found[side, factor].fewest
        return (
            dict.fromkeys(("replicas", "gpus", "usd_per_hour"))
            if n is None or fleet.winner is None
            else document.size_of(fleet.combinations[fleet.winner], n)
        )

    return [
        {
            "factor": factor,
            **size("", factor),
            "advised": {"change": change, **size("advised", factor)} if "advised" in sides else None,
        }
        for factor in factors
    ]


def _advised(fleet: Fleet, winner: Scenario, reach: dict[str, Any]) -> tuple[str, Scenario | None]:
    """What a larger fleet would do differently: the router where one replica had nothing to route, or only smaller
    fleets were asked, else the best advice that keeps the GPUs of a replica."""
    recovery = reach["recovery"]
    for_a_burst = recovery is not None and recovery["holds_replicas"] < fleet.replicas
    if (
        (fleet.replicas == 1 or (for_a_burst and not reach["advice"]))
        and winner.cluster.router != AFFINITY
        and fleet.trials.workload(winner).session_id is not None
    ):
        return f"router {AFFINITY} instead of {winner.cluster.router}", replace(
            winner, cluster=replace(winner.cluster, router=AFFINITY)
        )
    advised = scenario_of(reach["advice"][0]["scenario"]) if reach["advice"] else None
    if advised is None or advised.hardware.gpus != winner.hardware.gpus:
        return "", None
    return str(reach["advice"][0]["change"]), advised


def _held(fleet: Fleet, reach: dict[str, Any], side: str, factor: float) -> int:
    """Replicas at a larger load, were each to hold what the chosen fleet's do."""
    capacity, held = reach["capacity"], None
    after = reach["advice"][0]["after"] if side and fleet.replicas > 1 and reach["advice"] else None
    if after is not None and after["capacity"] is None and after["replicas"]:
        return math.ceil(after["replicas"] * factor - 1e-9)
    if capacity is not None:
        held = capacity["slo_capacity_per_s"] if after is None else after["capacity"]
    each = 1.0 if not held or capacity is None else held / capacity["offered_rate_per_s"]
    return math.ceil(fleet.replicas * factor / max(each, 1e-9) - 1e-9)
