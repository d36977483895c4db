"""What can be asked of a plan.

>>> Options(seeds=3).stages()
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvcast.planner.progress import ADVICE, BINDING, FLEET, GROWTH, LOAD, RECOVERY, ROUTERS
from kvcast.pools import Jobs
from sim.scenario import Scenario
from workloads.errors import InputError

MOST = 64


@dataclass(frozen=True)
class Options:
    """How to plan. fixed: the scenario's own fleet, no search. every: fewest replicas also of what can only be
    dearer."""

    seeds: int = 5
    confidence: float = 0.95
    most: int = MOST
    jobs: Jobs = 1
    fixed: bool = False
    every: bool = False
    growth: float | None = 3.0
    capacity: bool = True
    binding: bool = True
    advice: bool = True
    n_plus_1: bool = True
    model_error: bool = True
    undisturbed: bool = True
    why: bool = True
    recover: bool = True

    def stages(self) -> list[str]:
        """What is simulated, in this order."""
        reach = self.capacity or self.binding or self.advice
        return [
            FLEET,
            *([RECOVERY] if self.recover else []),
            *([LOAD] if reach else []),
            *([BINDING] if self.binding else []),
            *([ROUTERS, ADVICE] if self.advice else []),
            *([GROWTH] if self.growth else []),
        ]


def check_slo(scenario: Scenario) -> None:
    """There is no default SLO: a plan for limits that nobody chose is an answer to nobody's question."""
    slo = scenario.slo
    if slo.attainment is None:
        raise InputError("[slo] attainment is missing: a plan needs a target, such as --set slo.attainment=0.95")
    limits: list[Any] = [slo, *slo.classes.values()]
    if all(value is None for one in limits for value in (one.ttft_s, one.tpot_s, one.e2e_s)):
        raise InputError(
            "[slo] has an attainment target and no limit to attain: a plan needs one, such as --set slo.ttft_s=1"
        )


def check_static(scenarios: Iterable[Scenario | None]) -> None:
    """A plan asks how many replicas are needed, always; one that scales by itself has another number every minute."""
    for scenario in scenarios:
        if scenario is not None and scenario.autoscale.scales:
            raise InputError(
                f"[autoscale] rule = {scenario.autoscale.rule!r}: a plan looks for a fleet that does not change,"
                " expected rule = 'none'; kvcast compare puts fleets that scale beside it"
            )
