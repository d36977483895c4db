"""What a GPU costs an hour: one list, by GPU.

The one idea: `[cost] gpu_hour_usd` is the price of the scenario's own GPU, whatever it is; `[cost.prices]` is a list by
GPU, which wins where the GPU is in it. A GPU that is put in the place of another brings its price from the list or has
none: nobody's price is taken for another card's. kvcast ships no prices.

    >>> priced(replace(scenario, cost=CostConfig(prices={"h200": 3.5}))).cost.gpu_hour_usd
    3.5
"""

from __future__ import annotations

from dataclasses import replace

from sim.scenario import Scenario
from workloads.errors import InputError


def gpu_of(scenario: Scenario) -> str | None:
    """The scenario's GPU as lists of GPUs name it (h200); None for a profile of one's own."""
    from calibrate.profile import bundled_profile, bundled_profiles
    from calibrate.resolve import gpu_name
    from calibrate.sources.roofline import gpu_key

    hardware = scenario.hardware
    if hardware.gpu is not None:
        return gpu_name(hardware.gpu)
    kind, separator, rest = hardware.profile.partition(":")
    if separator and kind in ("atlas", "roofline"):
        return gpu_name(rest.partition(":")[0])
    if hardware.profile not in bundled_profiles():
        return None
    try:
        return gpu_key(str(bundled_profile(hardware.profile).device["name"]))
    except InputError:
        return None


def priced(scenario: Scenario, instead_of: Scenario | None = None) -> Scenario:
    """The scenario with the price that its list has for its GPU. instead_of: the scenario whose own price
    `gpu_hour_usd` is: on another GPU than that one's it does not hold."""
    prices, gpu = scenario.cost.prices, gpu_of(scenario)
    if gpu is not None and gpu in prices:
        return _at(scenario, prices[gpu])
    if instead_of is None or scenario.cost.gpu_hour_usd is None or gpu == gpu_of(instead_of):
        return scenario
    return _at(scenario, None)


def _at(scenario: Scenario, usd: float | None) -> Scenario:
    return replace(scenario, cost=replace(scenario.cost, gpu_hour_usd=usd))
