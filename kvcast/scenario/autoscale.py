"""An [autoscale] section with nothing left open, and the process that it stands for.

The one idea: a replica's start takes what its weights take to load, so how long it is known once the model is.

    >>> resolve(scenario).scenario.autoscale.start_s
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kvcast.scenario.steady import clock_note, is_mix
from sim.scenario import ROLLING, SCHEDULE, Scenario
from workloads import mix, steady
from workloads.errors import InputError
from workloads.limits import MAX_REPLICAS, MAX_SECONDS

if TYPE_CHECKING:
    from kvcast.scenario.resolve import Resolved
    from sim.fleet.processes import Process

SHARE = 0.95
"""Of the TTFTs that rule "slo" wants within its target, where [slo] attainment says nothing."""


def with_autoscale(resolved: Resolved) -> Resolved:
    """Its rule's own values in the keys that are open, the slo's limit as the target of TTFTs, and how long a start
    takes. Raises InputError."""
    scenario = resolved.scenario
    if not scenario.autoscale.scales:
        return resolved
    filled = scenario.autoscale.filled()
    if filled.rule != SCHEDULE and filled.metric == "ttft" and filled.target is None:
        filled = replace(filled, target=scenario.slo.ttft_s)
    if filled.rule != SCHEDULE and filled.target is None:
        expected = "[slo] ttft_s, or a target" if filled.metric == "ttft" else "a target"
        raise InputError(f"[autoscale] rule = {filled.rule!r}: expected {expected} with it")
    return replace(resolved, scenario=replace(scenario, autoscale=replace(filled, start_s=start_s(resolved))))


def weights_gb(resolved: Resolved) -> float:
    """GB (1e9 bytes) of weights on all GPUs of a replica."""
    return resolved.memory.weights * resolved.scenario.hardware.gpus / 1e9


def start_s(resolved: Resolved) -> float:
    """Seconds from the start of a replica until it takes requests: as given, else boot_s and its weights at
    load_gb_per_s."""
    given = resolved.scenario.autoscale
    if given.start_s is not None:
        return given.start_s
    return round(given.boot_s + weights_gb(resolved) / given.load_gb_per_s, 3)


def warm_note(scenario: Scenario) -> str:
    """Where the window of a resolved scenario begins with more replicas than its rule wants; else empty."""
    given, warmup_s = scenario.autoscale, scenario.run.warmup_s or 0.0
    way_down_s = (given.down_wait_s or 0.0) + (given.period_s or 0.0)
    if not given.scales or given.rule == SCHEDULE or warmup_s > way_down_s:
        return ""
    return (
        f"[autoscale]: all {scenario.cluster.replicas} replicas are up at the beginning, and go down after"
        f" {way_down_s:g} s at the earliest; the warm-up is {warmup_s:g} s, so the window begins with"
        " more than the rule wants"
    )


def sees_whole_periods(scenario: Scenario) -> bool:
    """Whether the window of a resolved mix covers the period of what its fleet follows: its load's, its schedule's."""
    given, run = scenario.autoscale, scenario.run
    lasts_s = (run.duration_s or scenario.workload.duration_s or 0.0) - (run.warmup_s or 0.0)
    changes = given.rule == SCHEDULE and len(set(given.replicas)) > 1
    return not clock_note(scenario) and not (changes and lasts_s < given.cycle_s)


def scaling_lines(resolved: Resolved) -> list[str]:
    """For people: the rule of a fleet that scales, and what a start takes; none for any other."""
    given, most = resolved.scenario.autoscale, resolved.scenario.cluster.replicas
    if not given.scales:
        return []
    if given.rule == SCHEDULE:
        rule = (
            f"schedule, {', '.join(f'{n} from {at:g} s' for at, n in zip(given.times_s, given.replicas, strict=True))}"
        )
    else:
        rule = f"{given.rule}, {given.metric} {given.target:g} a replica every {given.period_s:g} s"
    made = f"{given.boot_s:g} s, and {weights_gb(resolved):.3g} GB of weights at {given.load_gb_per_s:g} GB/s"
    open_ = replace(resolved, scenario=replace(resolved.scenario, autoscale=replace(given, start_s=None)))
    told = made if start_s(open_) == given.start_s else "given"
    return [f"scaling: {rule}; at most {most} replicas, each takes {given.start_s:g} s to start ({told})"]


def scaler_of(scenario: Scenario) -> list[Process]:
    """The process of a resolved scenario's [autoscale]; none where nothing scales."""
    if not scenario.autoscale.scales:
        return []
    from sim.fleet.autoscaler import autoscaler

    return [autoscaler(scenario.autoscale, _clock_s(scenario), scenario.slo.attainment or SHARE)]


def _clock_s(scenario: Scenario) -> float:
    """What a schedule's clock shows when the run begins: the mix's, else one that is 0 at the end of the warm-up."""
    if is_mix(scenario) and steady.period_s(mix.resolve(scenario.workload)):
        return scenario.workload.start_s
    return -(scenario.run.warmup_s or 0.0)


def autoscale_problems(scenario: Scenario) -> Iterator[str]:
    """A line for every value of [autoscale], and of a rolling restart, that makes no sense beside the others."""
    given, most = scenario.autoscale, scenario.cluster.replicas
    for place, shock in enumerate(scenario.shock, 1):
        least_s = most * (shock.notice_s + shock.load_s)
        if shock.kind == ROLLING and shock.duration_s < least_s:
            yield (
                f"[shock {place}] duration_s = {shock.duration_s:g}: expected at least {least_s:g}, {most} replicas one"
                f" after the other, each notice_s = {shock.notice_s:g} and load_s = {shock.load_s:g}"
            )
    if not given.scales:
        return
    if given.min_replicas > most:
        yield f"[autoscale] min_replicas = {given.min_replicas}: expected at most cluster.replicas = {most}"
    if scenario.cache.policy in ("clairvoyant", "optimal"):
        yield (
            f"[autoscale] with cache.policy = {scenario.cache.policy!r}: it knows the future of a fleet that never"
            " changes; expected another policy"
        )
    if given.rule == SCHEDULE:
        yield from _schedule_problems(scenario)
    elif given.filled().metric == "tokens" and given.prefill_tokens_per_s is None:
        yield "[autoscale] metric = 'tokens': expected prefill_tokens_per_s with it, of one replica"


def _schedule_problems(scenario: Scenario) -> Iterator[str]:
    given, most = scenario.autoscale, scenario.cluster.replicas
    if not given.times_s or len(given.times_s) != len(given.replicas):
        yield (
            f"[autoscale] rule = 'schedule' with {len(given.times_s)} times_s and {len(given.replicas)} replicas:"
            " expected as many of the one as of the other, one at least"
        )
    for i, (before, after) in enumerate(pairwise((0.0, *given.times_s, min(given.cycle_s, MAX_SECONDS)))):
        if not (before <= after if i == 0 else before < after):
            name = f"times_s[{i}]" if i < len(given.times_s) else "cycle_s"
            yield f"[autoscale] {name} = {after:g}: expected a time after {before:g}"
    for i, n in enumerate(given.replicas):
        if not 1 <= n <= min(most, MAX_REPLICAS):
            yield f"[autoscale] replicas[{i}] = {n}: expected 1 to cluster.replicas = {most}"
