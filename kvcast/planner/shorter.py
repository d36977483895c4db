"""The window of a plan's runs: the same steady state as every other command's, for fewer requests.

The one idea: of a warm-up's first part only the sessions that go on after it matter, since those that are over by then
have left nothing that the window could meet; and several independent runs need no long window each.

    >>> shorter([api.windowed(scenario)], [scenario])[0].workload.skip_ended_s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvcast import api
from kvcast.scenario.resolve import kv_tokens_of
from kvcast.scenario.steady import begins_early
from sim.scenario import Scenario
from workloads import mix, steady
from workloads.config import WorkloadConfig

MUCH = 10_000
"""Requests of a warm-up that is worth cutting, and of a window that was cut."""


def shorter(windowed: Sequence[Scenario], asked: Sequence[Scenario]) -> list[Scenario]:
    """Scenarios of one window (kvcast.studies.windows.together), each with the same shorter one; as they are where the
    warm-up is short anyway, or one of them is no stationary mix whose sessions arrive by a rate, or follows the clock.
    asked: the same as they were given; a warm-up or window that was asked for stays."""
    if not all(begins_early(one) and _long(cut) for one, cut in zip(asked, windowed, strict=True)):
        return list(windowed)
    full_s = max(map(_full_s, asked), default=0.0)
    lasts_s = max((_lasting_s(one, cut) for one, cut in zip(asked, windowed, strict=True)), default=0.0)
    return [_cut(one, full_s, lasts_s) for one in windowed]


def _long(scenario: Scenario) -> bool:
    """Whether its warm-up is: of a mix alone, by its mean rate."""
    config = mix.resolve(scenario.workload)
    requests = steady.requests_per_s(config) * (scenario.run.warmup_s or 0.0)
    return requests >= MUCH and not steady.period_s(config) and not config.skip_ended_s


def _full_s(asked: Scenario) -> float:
    """Seconds at the end of a warm-up in which every session is simulated. They fill the KV memory once: what an LRU
    cache holds then is what was used last, whatever came before. And they are a session of the longest class: answers
    that take their time make a session end later than its think times say."""
    config = mix.resolve(asked.workload)
    return max(steady.fill_s(config, kv_tokens_of(api.resolve(asked)), 1), *map(steady.session_s, config.class_))


def _lasting_s(asked: Scenario, windowed: Scenario) -> float:
    """Seconds of the window: MUCH requests, a session of the longest class, and enough of what is rare."""
    run, config = windowed.run, mix.resolve(asked.workload)
    lasts_s = (run.duration_s or 0.0) - (run.warmup_s or 0.0)
    if asked.run.duration_s is not None or config.duration_s is not None or config.requests is not None or asked.shock:
        return lasts_s
    return min(lasts_s, enough_s(config))


def enough_s(config: WorkloadConfig) -> float:
    """Seconds that a resolved mix is watched where that is less than it takes alone (workloads.steady.window_s)."""
    sessions = (steady.session_s(c) for c in config.class_)
    return float(round(max(MUCH / steady.requests_per_s(config), steady.rarest_s(config), *sessions)))


def _cut(scenario: Scenario, full_s: float, lasts_s: float) -> Scenario:
    warmup_s = scenario.run.warmup_s or 0.0
    ends_s, skip_s = warmup_s + lasts_s, max(float(round(warmup_s - full_s)), 0.0)
    workload = replace(scenario.workload, duration_s=ends_s, skip_ended_s=skip_s)
    return replace(scenario, workload=workload, run=replace(scenario.run, duration_s=ends_s))
