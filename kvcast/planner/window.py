"""The window that a plan's fleets are judged in, and the whole period of a mix that follows the clock.

>>> in_steady_state(combinations(doc, vary), trials)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvcast import api
from kvcast.planner import document
from kvcast.planner.candidates import Combination
from kvcast.planner.fleet import Fleet
from kvcast.planner.shorter import shorter
from kvcast.planner.trials import Trial, Trials
from kvcast.scenario.steady import clock_note, whole_period, worst_hour
from kvcast.studies.windows import together
from kvcast.studies.work import guess_replicas
from sim.scenario import Scenario
from workloads import mix
from workloads.errors import InputError
from workloads.steady import period_s, requests_per_s


def in_steady_state(found: Sequence[Combination], trials: Trials) -> list[Combination]:
    """The combinations with one warm-up and window, long enough for about as many replicas as they will need; the worst
    hour of a mix that follows the clock."""
    can = [i for i, one in enumerate(found) if one.scenario is not None and _resolves(one.scenario)]
    sizes = dict.fromkeys(can, 1)
    cut: list[Scenario] = []
    for _ in range(2):  # a larger fleet's caches take longer to fill
        asked = [found[i].with_replicas(sizes[i]) for i in can]
        cut = [
            worst_hour(one, whole.run.warmup_s or 0.0) or whole
            for one, whole in zip(asked, together(asked), strict=True)
        ]
        cut = shorter(cut, asked)
        sizes = {i: guess_replicas(one, trials.workload(one)) for i, one in zip(can, cut, strict=True)}
    windowed = dict(zip(can, cut, strict=True))
    return [
        one if i not in windowed else replace(one, scenario=_windowed_as(one.scenario, windowed[i]))
        for i, one in enumerate(found)
    ]


def period(fleet: Fleet, given: Sequence[Combination]) -> dict[str, Any] | None:
    """The answer over the whole period of a mix that follows the clock, by one run; it was found for the worst hour."""
    if fleet.winner is None or fleet.answer is None:
        return None
    asked, hour = given[fleet.winner].with_replicas(fleet.replicas), fleet.answer.trial.scenario
    if worst_hour(asked, 0.0) is None:
        return None
    ramp_s = hour.run.warmup_s or 0.0
    one = fleet.trials.judge([Trial(whole_period(asked, ramp_s), full=True)])[0]
    config = mix.resolve(hour.workload)
    return {
        "period_s": period_s(config),
        "worst_from_s": (config.start_s + ramp_s) % period_s(config),
        "worst_offered_per_s": fleet.answer.offered_per_s,
        "offered_per_s": requests_per_s(config),
        "asked": clock_note(api.windowed(asked)) or None,
        **document.sketch_of(one),
    }


def _windowed_as(scenario: Scenario | None, cut: Scenario) -> Scenario:
    assert scenario is not None
    return replace(scenario, workload=cut.workload, run=cut.run)


def _resolves(scenario: Scenario) -> bool:
    try:
        api.resolve(scenario)
    except InputError:
        return False
    return True
