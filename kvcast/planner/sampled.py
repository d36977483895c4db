"""A part of a fleet for the whole: some of its replicas at their share of the load, watched for as long as it takes.

The one idea: replicas meet only in the router, so what k of n of them attain at k/n of the load is about what all do.
Exact where the router deals sessions by chance; with routers that look at the replicas the part is a little less even
than the whole. A search needs no more: what a plan answers is settled on the whole fleet in the whole window.

    >>> sampled(Trial(scenario)).share
"""

from __future__ import annotations

import math
from dataclasses import replace

from kvcast.planner.judged import Trial
from kvcast.scenario.steady import is_mix
from sim.scenario import Scenario
from workloads import mix, steady
from workloads.config import WorkloadConfig

ENOUGH = 2500
"""Requests of a sample's window: one run then tells its share of good requests to about 0.7 pp (docs/plan.md)."""
LEAST = 2  #: replicas of a fleet that has several


def shortened(scenario: Scenario) -> Scenario:
    """A mix watched for half as long, after half the warm-up; a trace as it is, and a window that was cut already
    (kvcast.planner.shorter)."""
    begins_s, ends_s, given = scenario.run.warmup_s, scenario.run.duration_s, scenario.workload
    if given.trace is not None or not begins_s or ends_s is None or given.requests is not None or given.skip_ended_s:
        return scenario
    workload = replace(scenario.workload, duration_s=ends_s / 2)
    return replace(scenario, workload=workload, run=replace(scenario.run, warmup_s=begins_s / 2, duration_s=ends_s / 2))


def sampled(trial: Trial) -> Trial:
    """The trial on a sample of its fleet; as it is where a sample would be no smaller, or the load is no rate."""
    scenario = trial.scenario
    requests = _requests(scenario)
    if requests is None:
        return trial
    enough, n, short = _enough(mix.resolve(scenario.workload)), scenario.cluster.replicas, shortened(scenario)
    if short is not scenario and requests / 2 >= enough:
        scenario, requests = short, requests / 2
    together = scenario.disaggregation.on or any(tier.shared for tier in scenario.cache.tiers)
    k = n if together else min(n, max(math.ceil(n * enough / requests), LEAST))
    if k < n:
        workload = replace(scenario.workload, rate_scale=scenario.workload.rate_scale * k / n)
        scenario = replace(scenario, workload=workload, cluster=replace(scenario.cluster, replicas=k))
    return trial if scenario is trial.scenario else replace(trial, scenario=scenario, share=k / n, keep=False)


def brief(trial: Trial) -> Trial:
    """For what is only compared with itself, changed: a sample, or where that would be no smaller the whole fleet for
    half as long."""
    sample = sampled(trial)
    return sample if sample is not trial else replace(trial, scenario=shortened(trial.scenario))


def _requests(scenario: Scenario) -> float | None:
    """Requests that a stationary mix has in its window; None of anything else, which has no part that is like it."""
    begins_s, ends_s, workload = scenario.run.warmup_s, scenario.run.duration_s, scenario.workload
    closed = workload.users is not None or workload.concurrency is not None
    if not is_mix(scenario) or closed or workload.requests is not None or not begins_s or ends_s is None:
        return None
    config = mix.resolve(workload)
    bursts = any(c.arrival.kind == "onoff" or c.arrival.curve for c in config.class_)
    if bursts or not steady.stationary(config) or scenario.shock:
        return None
    return steady.requests_per_s(config) * (ends_s - begins_s)


def _enough(config: WorkloadConfig) -> float:
    """Requests of which the smallest class still has as many as its share can be told of."""
    rates = [rate for rate in steady.rates_by_class(config) if rate > 0]
    return max(ENOUGH, steady.SMALLEST * sum(rates) / min(rates))
