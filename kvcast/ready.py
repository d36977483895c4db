"""Whether a mix arrives for long enough that the load it stands for is ever there.

The one idea: until the first sessions end, the number in progress only grows; arrivals that last less than two mean
sessions are a lighter load than the mix says, and a fleet judged on them is judged on that.

    >>> unready(load_scenario("examples/demo.toml"))
    []
"""
from __future__ import annotations

import math
from dataclasses import replace

from sim.scenario import Scenario
from workloads import dists
from workloads.check import class_rates
from workloads.config import MixClass, WorkloadConfig
from workloads.mix import resolve
from workloads.transform import NOMINAL_TOKEN_S


def session_s(c: MixClass, token_s: float = NOMINAL_TOKEN_S) -> float:
    """Mean seconds from a session's first request to its last answer: waiting between turns, and token_s for every output token."""
    turns, output = dists.moments(c.turns)[0], dists.moments(c.output)[0]
    think = dists.moments(c.think, whole=False)[0] if c.think else 0.0
    tool = dists.moments(c.tool_gap, whole=False)[0] if c.tool_gap else 0.0
    return (turns - 1) * (c.tool_share * tool + (1 - c.tool_share) * think) + turns * output * token_s


def requests_per_s(config: WorkloadConfig) -> float:
    """Requests a second once the mix's load is there, rate_scale included."""
    return sum(rate * dists.moments(c.turns)[0] for rate, c in zip(class_rates(config), config.class_, strict=True))


def arrivals_s(config: WorkloadConfig) -> float:
    """Seconds during which sessions arrive, about."""
    return min(config.duration_s or math.inf, (config.requests or math.inf) / requests_per_s(config))


def too_short(config: WorkloadConfig, name: str) -> str:
    """What to say when a class's sessions stop arriving before all that are in progress at once are there (two mean sessions); empty when they do not."""
    lasts_s, needed_s = arrivals_s(config), _needed_s(config, name)
    if lasts_s >= needed_s:
        return ""
    return (
        f"Arrivals end after {lasts_s / 60:,.0f} min, before the load is there: a mean session takes {needed_s / 120:,.0f} min. "
        f"For {needed_s / 60:,.0f} min of arrivals stop after about {enough(config, name):,} requests and no sooner."
    )


def enough(config: WorkloadConfig, name: str) -> int:
    """Requests after which two mean sessions of a class have gone by, in thousands."""
    return math.ceil(_needed_s(config, name) * requests_per_s(config) / 1000) * 1000


def lengthened(config: WorkloadConfig, name: str) -> WorkloadConfig:
    """The mix with enough requests for a class, and with no duration that would end it sooner."""
    lasting = config.duration_s is None or config.duration_s >= _needed_s(config, name)
    return replace(config, requests=enough(config, name), duration_s=config.duration_s if lasting else None)


def unready(scenario: Scenario) -> list[str]:
    """For each class of a mix that is too short for its load: what to do. Nothing for a trace or a closed loop."""
    if scenario.workload.trace is not None:
        return []
    config = resolve(scenario.workload)
    return [f"{c.name}: {words}" for c in config.class_ if config.concurrency is None and c.arrival.kind != "trace" and dists.can_exceed(c.turns, 1) and (words := too_short(config, c.name))]


def _needed_s(config: WorkloadConfig, name: str) -> float:
    return 2 * session_s(next(c for c in config.class_ if c.name == name))
