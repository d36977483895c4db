"""What a scenario is judged on: a mix in steady state, a trace as a whole.

The one idea: a mix without [run] warmup_s is simulated from a ramp before its window (workloads.steady has the
lengths), and both are written into the scenario, so that everything downstream, the run's folder included, sees plain
numbers.

    >>> steady(load_scenario("examples/demo.toml")).run
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sim.measure.shocks import after_shocks_s
from sim.scenario import Scenario
from workloads import mix
from workloads import steady as lengths
from workloads.clock import earliest_s
from workloads.columns import Workload
from workloads.config import WorkloadConfig
from workloads.errors import InputError

HOUR_S = 3600.0


def is_mix(scenario: Scenario) -> bool:
    return scenario.workload.trace is None


def begins_early(scenario: Scenario) -> bool:
    """Whether the warm-up is ours to choose: a mix that goes on for ever, and nobody said where to cut it."""
    return is_mix(scenario) and scenario.run.warmup_s is None and lengths.stationary(mix.resolve(scenario.workload))


def with_window(scenario: Scenario, kv_tokens: float, token_s: Callable[[], float]) -> Scenario:
    """The scenario with warmup_s and the end of its window in numbers.

    kv_tokens: KV memory of the whole fleet; 0 without a cache. token_s(): seconds of an output token in a batch of
    some, asked only where it counts. The window is as long as [workload] duration_s or requests ask, else as it takes.
    A trace without warmup_s is judged whole; a mix at a fixed concurrency keeps warmup_s = None: its window is known
    when its sessions have begun (sim.measure.metrics)."""
    if not is_mix(scenario):
        return _from(scenario, scenario.run.warmup_s or 0.0)
    return _checked(_mix_with_window(scenario, kv_tokens, token_s))


def _mix_with_window(scenario: Scenario, kv_tokens: float, token_s: Callable[[], float]) -> Scenario:
    """Of a mix: the warm-up and the window that were given, else as long as it takes."""
    config = mix.resolve(scenario.workload)
    if begins_early(scenario):
        each_s = token_s()
        ramp_s = math.ceil(max(lengths.ramp_s(config, each_s), lengths.fill_s(config, kv_tokens)))
        return begun(scenario, float(ramp_s), _lasting_s(config, scenario, each_s))
    if config.concurrency is not None:
        return replace(scenario, workload=replace(scenario.workload, requests=mix.ending(config).requests))
    if config.duration_s is not None or config.requests is not None:
        return _from(scenario, scenario.run.warmup_s or 0.0)
    if scenario.run.duration_s is not None:
        return replace(scenario, workload=replace(scenario.workload, duration_s=scenario.run.duration_s))
    return begun(scenario, scenario.run.warmup_s or 0.0, _lasting_s(config, scenario, token_s()))


def _checked(scenario: Scenario) -> Scenario:
    """Sessions that the window would meet are all there."""
    skip_s, warmup_s = scenario.workload.skip_ended_s, scenario.run.warmup_s or 0.0
    if skip_s > warmup_s:
        raise InputError(
            f"[workload] skip_ended_s = {skip_s:g}, expected at most [run] warmup_s = {warmup_s:g}: the window would"
            " lack sessions that are over by then"
        )
    return scenario


def _from(scenario: Scenario, begins_s: float) -> Scenario:
    return replace(scenario, run=replace(scenario.run, warmup_s=begins_s))


def begun(scenario: Scenario, ramp_s: float, lasts_s: float) -> Scenario:
    """A mix watched for lasts_s whose sessions begin ramp_s before: the run's clock starts there, and times of [run]
    move by as much."""
    end_s = ramp_s + lasts_s
    workload = replace(
        scenario.workload, duration_s=end_s, requests=None, start_s=_clock_start(mix.resolve(scenario.workload), ramp_s)
    )
    horizon_s = None if scenario.run.horizon_s is None else scenario.run.horizon_s + ramp_s
    return replace(
        scenario, workload=workload, run=replace(scenario.run, warmup_s=ramp_s, duration_s=end_s, horizon_s=horizon_s)
    )


def _lasting_s(config: WorkloadConfig, scenario: Scenario, token_s: float) -> float:
    """Seconds of the window that is asked for; as long as it takes where nobody says so, and to see the fleet come
    back from its shocks."""
    asked = [
        scenario.run.duration_s,
        config.duration_s,
        None if config.requests is None else config.requests / lengths.requests_per_s(config),
    ]
    needed = max(lengths.window_s(config, token_s), after_shocks_s(scenario.shock, scenario.plan.recover_within_s))
    return min((value for value in asked if value is not None), default=needed)


def _clock_start(config: WorkloadConfig, ramp_s: float) -> float:
    """Where the mix's own clock stands when the ramp begins, so that the window begins at its start_s."""
    whole_s = lengths.common_period_s(config)
    return (config.start_s - ramp_s) % whole_s if whole_s else 0.0


def offered_per_s(scenario: Scenario, workload: Workload) -> float | None:
    """Requests a second that the scenario offers: a mix's nominal rate in the window, a trace's mean; None in a closed
    loop.

    scenario: resolved. A closed loop offers users, not a rate.
    """
    if workload.concurrency is not None or scenario.workload.users is not None:
        return None
    nominal = nominal_per_s(scenario)
    return mean_rate_per_s(workload) if nominal is None else nominal


def nominal_per_s(scenario: Scenario) -> float | None:
    """Requests a second of a resolved mix in its window; None of a trace and of a mix that does not go on for ever."""
    if not is_mix(scenario):
        return None
    config = mix.resolve(scenario.workload)
    if not lengths.stationary(config):
        return None
    end_s = scenario.run.duration_s if scenario.run.duration_s is not None else scenario.workload.duration_s or 0.0
    return lengths.offered_per_s(config, config.start_s + (scenario.run.warmup_s or 0.0), config.start_s + end_s)


def mean_rate_per_s(workload: Workload) -> float | None:
    """Requests over the time in which they would come if every answer took no time; None when that is no time."""
    at_s = earliest_s(workload)
    span_s = float(np.ptp(at_s)) if len(at_s) else 0.0
    return len(at_s) / span_s if span_s > 0 else None


def worst_hour(scenario: Scenario, ramp_s: float) -> Scenario | None:
    """A mix that follows the clock, watched in the hour of its period with the most requests; None for any other.

    scenario: as given, its window not yet in numbers.
    """
    config = mix.resolve(scenario.workload) if is_mix(scenario) else None
    if config is None or not (whole_s := lengths.period_s(config)) or not begins_early(scenario):
        return None
    hour_s = min(HOUR_S, whole_s)
    return begun(_from_clock(scenario, lengths.busiest(config, hour_s)), ramp_s, hour_s)


def whole_period(scenario: Scenario, ramp_s: float) -> Scenario:
    """The same mix, watched for a whole period."""
    return begun(_from_clock(scenario, 0.0), ramp_s, lengths.period_s(mix.resolve(scenario.workload)))


def _from_clock(scenario: Scenario, at_s: float) -> Scenario:
    return replace(scenario, workload=replace(scenario.workload, start_s=at_s))


def clock_note(scenario: Scenario) -> str:
    """What part of its period a resolved mix that follows the clock is watched in; empty for a whole one, and for any
    other."""
    if not is_mix(scenario):
        return ""
    config, run = mix.resolve(scenario.workload), scenario.run
    whole_s = lengths.period_s(config)
    if not whole_s or not lengths.stationary(config):
        return ""
    begins_s = config.start_s + (run.warmup_s or 0.0)
    ends_s = config.start_s + (run.duration_s or config.duration_s or 0.0)
    if ends_s - begins_s >= whole_s or ends_s <= begins_s:
        return ""
    here, mean = lengths.offered_per_s(config, begins_s, ends_s), lengths.requests_per_s(config)
    return (
        f"the window is {(ends_s - begins_s) / 3600:.3g} hours of a period of {whole_s / 3600:g}, from hour"
        f" {begins_s % whole_s / 3600:.3g}: {here:.3g} requests/s, where the mean of the period is {mean:.3g}"
    )
