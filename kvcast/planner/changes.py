"""Changes of a scenario that often help, each with what it asks for: the planner simulates them all and believes none.

>>> [change.words for change in changes(scenario)]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from calibrate.memory import WIDTHS
from kvcast import api
from kvcast.studies.explain import with_classes
from sim.engines import engine_of
from sim.scenario import Scenario, TierConfig
from workloads.errors import InputError

HOST_TIER = TierConfig(name="host", bandwidth_gb_per_s=50.0, capacity_gib=256.0)
"""Host memory over PCIe 5.0 x16: 64 GB/s on paper."""


@dataclass(frozen=True)
class Change:
    """One thing to do differently with the same number of GPUs. sets: --set values that make it."""

    words: str
    sets: tuple[str, ...]
    scenario: Scenario
    asks_for: str = ""


def changes(scenario: Scenario) -> list[Change]:
    """Everything known to be worth a try on this scenario; `scenario` need not be resolved."""
    engine = api.resolve(scenario).scenario.engine
    found: list[Change] = []
    for step in (_policy, _router, _budget, _sequences, _kv_dtype, _order, _tier, _blocks, _width):
        found += step(scenario, engine)
    return found


def _set(scenario: Scenario, section: str, key: str, value: Any) -> tuple[Scenario, str]:
    changed = replace(scenario, **{section: replace(getattr(scenario, section), **{key: value})})
    return changed, f"{section}.{key}={str(value).lower() if isinstance(value, bool) else value}"


def _policy(scenario: Scenario, engine: Any) -> list[Change]:
    if not scenario.cache.enabled:
        changed, line = _set(scenario, "cache", "enabled", True)
        return [Change("prefix cache on", (line,), changed)]
    old, out = scenario.cache.policy, []
    rules = engine_of(engine)
    for name in rules.try_policies:
        if name != old:
            changed, line = _set(
                replace(scenario, cache=replace(scenario.cache, policy_params={})), "cache", "policy", name
            )
            out.append(
                Change(
                    f"eviction policy {name} instead of {old}",
                    (line,),
                    changed,
                    "" if name in rules.own_policies else "an engine with that policy",
                )
            )
    return out


def _router(scenario: Scenario, _: Any) -> Iterator[Change]:
    from sim.fleet.router import ROUTERS

    if scenario.cluster.replicas > 1:
        for name in ROUTERS:
            if name not in (scenario.cluster.router, "random"):
                changed, line = _set(scenario, "cluster", "router", name)
                yield Change(f"router {name} instead of {scenario.cluster.router}", (line,), changed)


def _budget(scenario: Scenario, engine: Any) -> Iterator[Change]:
    key, words = engine_of(engine).budget
    old = getattr(engine, key)
    for new in (old * 2, old // 2, old // 4) if old else ():
        if new >= 256:
            changed, line = _set(scenario, "engine", key, new)
            yield Change(f"{words} {old:,} -> {new:,}", (line,), changed)


def _sequences(scenario: Scenario, engine: Any) -> Iterator[Change]:
    old = engine.max_num_seqs
    for new in dict.fromkeys((old * 2, old // 2, old // 4, 64)):
        if 8 <= new != old:
            changed, line = _set(scenario, "engine", "max_num_seqs", new)
            yield Change(f"sequences at once {old:,} -> {new:,}", (line,), changed)


def _kv_dtype(scenario: Scenario, _: Any) -> list[Change]:
    if api.resolve(scenario).scenario.model.kv_dtype == "fp8":
        return []
    changed, line = _set(scenario, "model", "kv_dtype", "fp8")
    return [Change("KV cache in fp8", (line,), changed, "a check of the answers' quality")]


def _order(scenario: Scenario, _: Any) -> list[Change]:
    from kvcast.scenario.toml import inline
    from workloads.estimate import best_order

    words, asks = "prompt layers in the order global, project, session, dynamic", "a check of the answers' quality"
    changed = with_classes(scenario, lambda c: replace(c, layers=best_order(c.layers)))
    named = scenario.workload.class_  # a preset's classes are not in the scenario file: there is nothing to set
    return [
        Change(
            words,
            tuple(f"workload.class.{c.name}.layers={inline(c.layers)}" for c in one.workload.class_ if named),
            one,
            asks,
        )
        for one in changed
    ]


def _tier(scenario: Scenario, engine: Any) -> list[Change]:
    if not engine_of(engine).has_tiers or not scenario.cache.enabled or scenario.cache.tiers:
        return []
    changed = replace(scenario, cache=replace(scenario.cache, tiers=(HOST_TIER,)))
    line = (
        f'cache.tiers=[{{name = "{HOST_TIER.name}", bandwidth_gb_per_s = {HOST_TIER.bandwidth_gb_per_s}, capacity_gib ='
        f" {HOST_TIER.capacity_gib}}}]"
    )
    asks = (
        f"{HOST_TIER.capacity_gib:g} GiB of host memory a replica at {HOST_TIER.bandwidth_gb_per_s:g} GB/s, and KV"
        " offloading"
    )
    return [Change(f"a cache tier in host memory, {HOST_TIER.capacity_gib:g} GiB", (line,), changed, asks)]


def _blocks(scenario: Scenario, engine: Any) -> list[Change]:
    """Smaller blocks lose fewer tokens to the last one. The same memory: KV blocks that were given are multiplied."""
    old = engine.block_size
    if old <= 16:
        return []
    changed, line = _set(scenario, "engine", "block_size", 16)
    sets = [line]
    if scenario.engine.kv_blocks is not None:
        changed, more = _set(changed, "engine", "kv_blocks", scenario.engine.kv_blocks * old // 16)
        sets.append(more)
    return [Change(f"block size {old} -> 16", tuple(sets), changed)]


def _width(scenario: Scenario, _: Any) -> Iterator[Change]:
    """Another number of GPUs a replica, the same number in all; with a bundled profile made for it."""
    old, gpus = scenario.hardware.tensor_parallel, scenario.hardware.tensor_parallel * scenario.cluster.replicas
    for new in WIDTHS:
        profile = _profile_at(scenario, new)
        if new == old or gpus % new or profile is None:
            continue
        changed, width = _set(scenario, "hardware", "tensor_parallel", new)
        changed, named = _set(changed, "hardware", "profile", profile)
        changed, fleet = _set(changed, "cluster", "replicas", gpus // new)
        yield Change(
            f"{gpus // new} replicas of {new} GPUs instead of {gpus // old} of {old}", (width, named, fleet), changed
        )


def _profile_at(scenario: Scenario, width: int) -> str | None:
    """A profile of the same GPU, model and precision at another width: the roofline's or
    atlas' own, what its GPU brings, or a bundled one."""
    from calibrate.models import known_as
    from calibrate.profile import BUNDLED, bundled_profiles, load_profile

    if scenario.hardware.gpu is not None or scenario.hardware.profile.startswith(("roofline:", "atlas:")):
        return scenario.hardware.profile
    try:
        here = api.resolve(scenario)
    except InputError:
        return None
    name, device = known_as(here.model), here.profile.device["name"]
    bundled = [load_profile(BUNDLED / f"{one}.json") for one in bundled_profiles()]
    return next(
        (one.id for one in bundled if one.device["name"] == device and one.fits(name, scenario.model.dtype, width)),
        None,
    )
