"""Every change of a scenario that kvcast knows to try: the plan's advice, the fixes of `kvcast explain` and the
dashboard's Apply pick from this one table.

The one idea: a lever is a row of LEVERS: what it costs, what it is tried for, and a function that makes its changes of
a scenario, or says in a line why there are none. Whoever picks simulates them all and believes none.

    >>> [change.words for change in changes(ADVICE, scenario)]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from calibrate.memory import WIDTHS
from kvcast import api
from kvcast.scenario.fitting import bundled_for
from kvcast.scenario.toml import inline
from sim.engines import engine_of, having
from sim.fleet.router import ROUTERS
from sim.scenario import Scenario, TierConfig
from workloads.config import MixClass
from workloads.errors import InputError
from workloads.estimate import best_order
from workloads.mix import resolve

ADVICE = "advice"
"""The purpose of a plan's advice: the same number of GPUs. The other purposes are causes of missed tokens."""
FREE, ENGINE, QUALITY, HARDWARE = COSTS = ("free", "engine", "quality", "hardware")
"""A setting; an engine that can; something for users to accept; memory or GPUs. In order, the dearest last."""
"""Policies tried in place of the scenario's, by the engine that has them."""
HOST_TIER = TierConfig(name="host", bandwidth_gb_per_s=50.0, capacity_gib=256.0)
"""Host memory over PCIe 5.0 x16: 64 GB/s on paper."""
NOT_A_ROUTER = "random"
"""A baseline to compare with, nothing to change to."""
LEAST_STEP_TOKENS, LEAST_SEQUENCES, BLOCK = 256, 8, 16
ANSWERS = "a check of the answers' quality"


@dataclass(frozen=True)
class Change:
    """One thing to do differently. sets: the --set values that make it; the classes of a preset have none."""

    words: str
    sets: tuple[str, ...]
    scenario: Scenario
    asks_for: str = ""  #: what the simulation does not charge
    costs: str = FREE

    def and_then(self, other: Change) -> Change:
        """Both; other was made of this one's scenario."""
        asks = "; ".join(dict.fromkeys(one for one in (self.asks_for, other.asks_for) if one))
        costs = max(self.costs, other.costs, key=COSTS.index)
        return Change(f"{self.words}, and {other.words}", (*self.sets, *other.sets), other.scenario, asks, costs)


@dataclass(frozen=True)
class Given:
    """What a lever looks at. resolved: the scenario with nothing left open; it may be the scenario itself."""

    scenario: Scenario
    resolved: Scenario
    policies: Sequence[str]

    def change(self, words: str, values: Mapping[str, Any], asks_for: str = "") -> Change:
        """With other values of keys such as "cache.policy"."""
        changed = self.scenario
        for key, value in values.items():
            section, name = key.split(".")
            changed = replace(changed, **{section: replace(getattr(changed, section), **{name: value})})
        sets = (f"{key}={value if isinstance(value, str) else inline(value)}" for key, value in values.items())
        return Change(words, tuple(sets), changed, asks_for)


Made = list[Change] | str
"""Changes, or the one-line reason why there are none."""


@dataclass(frozen=True)
class Lever:
    """costs: of its changes that ask for anything. purposes: ADVICE, and the causes of missed tokens that it may
    recover."""

    name: str
    costs: str
    purposes: tuple[str, ...]
    make: Callable[[Given], Made]


def changes(
    purpose: str, scenario: Scenario, resolved: Scenario | None = None, policies: Sequence[str] | None = None
) -> list[Change]:
    """What is worth a try for a purpose.

    resolved: where it is known already. policies: to try instead of its engine's."""
    return [
        replace(change, costs=lever.costs if change.asks_for else FREE)
        for lever, made in _made(purpose, scenario, resolved, policies)
        if not isinstance(made, str)
        for change in made
    ]


def without_changes(purpose: str, scenario: Scenario) -> dict[str, str]:
    """Lever -> why it has nothing to change here."""
    return {lever.name: made for lever, made in _made(purpose, scenario) if isinstance(made, str)}


def _made(
    purpose: str, scenario: Scenario, resolved: Scenario | None = None, policies: Sequence[str] | None = None
) -> list[tuple[Lever, Made]]:
    resolved = resolved or api.resolve(scenario).scenario
    given = Given(scenario, resolved, policies or engine_of(resolved.engine).try_policies)
    return [(lever, lever.make(given)) for lever in LEVERS if purpose in lever.purposes]


# -- the prefix cache --------------------------------------------------------------------------------------------------


def _cache_on(given: Given) -> Made:
    if given.scenario.cache.enabled:
        return "it is on"
    return [given.change("prefix cache on", {"cache.enabled": True})]


def _another_policy(given: Given) -> Made:
    old, own = given.scenario.cache.policy, given.scenario.cache.policy_params
    if not given.scenario.cache.enabled:
        return "the prefix cache is off"
    native = engine_of(given.resolved.engine).own_policies
    reset: dict[str, Any] = {"cache.policy_params": {}} if own else {}
    return [
        given.change(
            f"eviction policy {old} -> {new}",
            {"cache.policy": new, **reset},
            "" if new in native else "an engine with that policy",
        )
        for new in given.policies
        if new != old
    ] or "no other policy to try"


def _host_tier(given: Given) -> Made:
    if not engine_of(given.resolved.engine).has_tiers:
        return f"tiers are of semantics = {having('has_tiers')!r}"
    if not given.scenario.cache.enabled:
        return "the prefix cache is off"
    if given.scenario.cache.tiers:
        return "it has a tier"
    size = f"{HOST_TIER.capacity_gib:g} GiB"
    asks = f"{size} of host memory a replica at {HOST_TIER.bandwidth_gb_per_s:g} GB/s, and KV offloading"
    return [given.change(f"a cache tier in host memory, {size}", {"cache.tiers": (HOST_TIER,)}, asks)]


def _larger_tiers(given: Given) -> Made:
    tiers = given.scenario.cache.tiers

    def twice(tier: TierConfig) -> TierConfig:
        gib, blocks = tier.capacity_gib, tier.capacity_blocks
        return replace(tier, capacity_gib=gib and 2 * gib, capacity_blocks=blocks and 2 * blocks)

    return [
        given.change(
            f"cache tier {tier.name} twice as large",
            {"cache.tiers": (*tiers[:i], twice(tier), *tiers[i + 1 :])},
            "that memory",
        )
        for i, tier in enumerate(tiers)
    ] or "it has no tier"


# -- the fleet ---------------------------------------------------------------------------------------------------------


def _another_router(given: Given) -> Made:
    cluster = given.scenario.cluster
    if cluster.replicas == 1:
        return "one replica: nothing to route"
    return [
        given.change(f"router {cluster.router} -> {new}", {"cluster.router": new})
        for new in ROUTERS
        if new not in (cluster.router, NOT_A_ROUTER)
    ]


def _another_width(given: Given) -> Made:
    """Another number of GPUs a replica, the same number in all; with a profile made for it."""
    old = given.scenario.hardware.tensor_parallel
    gpus = old * given.scenario.cluster.replicas
    profiles = {new: _profile_at(given.scenario, new) for new in WIDTHS if new != old and gpus % new == 0}
    return [
        given.change(
            f"{gpus // new} replicas of {new} GPUs instead of {gpus // old} of {old}",
            {"hardware.tensor_parallel": new, "hardware.profile": profile, "cluster.replicas": gpus // new},
        )
        for new, profile in profiles.items()
        if profile is not None
    ] or f"no profile of this GPU and model at another width that divides {gpus} GPUs"


def _profile_at(scenario: Scenario, width: int) -> str | None:
    """A profile of the same GPU, model and precision at another width: the roofline's own, or a bundled one."""
    if scenario.hardware.profile.startswith("roofline:"):
        return scenario.hardware.profile
    try:
        device = str(api.resolve(scenario).profile.device["name"])
    except InputError:
        return None
    return next((one.id for one in bundled_for(scenario, device, width)), None)


def _more_replicas(given: Given) -> Made:
    old = given.scenario.cluster.replicas
    return [given.change(f"replicas {old} -> {2 * old}", {"cluster.replicas": 2 * old}, "twice the GPUs")]


# -- the engine --------------------------------------------------------------------------------------------------------


def _step_tokens(given: Given) -> Made:
    key, words = engine_of(given.resolved.engine).budget
    old = getattr(given.resolved.engine, key)
    if not old:
        return "prefill is not chunked"
    return [
        given.change(f"{words} {old:,} -> {new:,}", {f"engine.{key}": new})
        for new in (old * 2, old // 2, old // 4)
        if new >= LEAST_STEP_TOKENS
    ]


def _sequences(given: Given) -> Made:
    old = given.resolved.engine.max_num_seqs or 0
    return [
        given.change(f"sequences at once {old:,} -> {new:,}", {"engine.max_num_seqs": new})
        for new in dict.fromkeys((old * 2, old // 2, old // 4, 64))
        if LEAST_SEQUENCES <= new != old
    ]


def _fp8(given: Given) -> Made:
    if given.resolved.model.kv_dtype == "fp8":
        return "it is in fp8"
    return [given.change("KV cache in fp8", {"model.kv_dtype": "fp8"}, ANSWERS)]


def _common_blocks(given: Given) -> Made:
    """Smaller blocks lose fewer tokens to the last one; every engine has blocks of 16."""
    if given.scenario.engine.block_size <= BLOCK:
        return f"blocks of {BLOCK} tokens or fewer"
    return [_smaller_blocks(given, BLOCK)]


def _quarter_blocks(given: Given) -> Made:
    old = given.scenario.engine.block_size
    if old == 1:
        return "blocks of one token"
    return [_smaller_blocks(given, max(1, old // 4), "the engine and its attention kernels must support it")]


def _smaller_blocks(given: Given, new: int, asks_for: str = "") -> Change:
    """KV blocks that were given are as many more, of the same memory."""
    engine, words = given.scenario.engine, f"block size {given.scenario.engine.block_size} -> {new}"
    if engine.kv_blocks is None:
        return given.change(words, {"engine.block_size": new}, asks_for)
    blocks = engine.kv_blocks * engine.block_size // new
    words += f", the same memory in {blocks:,} blocks"
    return given.change(words, {"engine.block_size": new, "engine.kv_blocks": blocks}, asks_for)


def _more_memory(given: Given) -> Made:
    old = given.resolved.engine.kv_blocks or 0
    asks = "that memory: a larger GPU, more GPUs a replica, or a smaller KV type"
    return [given.change(f"KV memory {old:,} -> {2 * old:,} blocks a replica", {"engine.kv_blocks": 2 * old}, asks)]


# -- the prompts -------------------------------------------------------------------------------------------------------

ORDER = "prompt layers in the order global, project, session, dynamic"
TRACE = "a trace: its prompts are what they are"


def _order(given: Given) -> Made:
    if given.scenario.workload.trace is not None:
        return TRACE
    return _classes(given, ORDER, _ordered, "layers", ANSWERS) or "the layers of every class are in that order"


def _steady_layers(given: Given) -> Made:
    if given.scenario.workload.trace is not None:
        return TRACE
    alone = _classes(given, "no layer that shuffles, is redeployed or holds the time", _steady, "layers", ANSWERS)
    if not alone:
        return "no layer shuffles, is redeployed or holds the time"
    both = "both: layers in that order, and none that changes"
    ordered = _classes(given, ORDER, _ordered, "layers", ANSWERS)
    return alone + (_classes(given, both, lambda c: _ordered(_steady(c)), "layers", ANSWERS) if ordered else [])


def _one_salt(given: Given) -> Made:
    if given.scenario.workload.trace is not None:
        return TRACE
    asks = "tenants can tell from latency what others sent"
    return (
        _classes(given, "one cache salt for all tenants", lambda c: replace(c, isolation=False), "isolation", asks)
        or "no class has tenants with a salt of their own"
    )


def _ordered(c: MixClass) -> MixClass:
    return replace(c, layers=best_order(c.layers))


def _steady(c: MixClass) -> MixClass:
    return replace(c, layers=tuple(replace(one, shuffle=0, redeploy_s=0.0, timestamp_s=0.0) for one in c.layers))


def _classes(given: Given, words: str, step: Callable[[MixClass], MixClass], key: str, asks_for: str) -> list[Change]:
    """Every class of the mix changed in this key; nothing where that changes none."""
    changed = with_classes(given.scenario, step)
    if changed is None:
        return []
    named = given.scenario.workload.class_  # a preset's classes are not in the scenario file: there is nothing to set
    classes = changed.workload.class_ if named else ()
    sets = tuple(f"workload.class.{c.name}.{key}={inline(getattr(c, key))}" for c in classes)
    return [Change(words, sets, changed, asks_for)]


def with_classes(scenario: Scenario, step: Callable[[MixClass], MixClass]) -> Scenario | None:
    """The scenario with every class of its mix changed; None where nothing changes."""
    mix = resolve(scenario.workload)
    changed = replace(mix, preset=None, class_=tuple(step(c) for c in mix.class_))
    return None if changed.class_ == mix.class_ else replace(scenario, workload=changed)


# -- the table ---------------------------------------------------------------------------------------------------------

LEVERS = (
    Lever("prefix cache", FREE, (ADVICE, "cache_off"), _cache_on),
    Lever("eviction policy", ENGINE, (ADVICE, "evicted_policy", "evicted"), _another_policy),
    Lever("router", FREE, (ADVICE, "other_replica"), _another_router),
    Lever("tokens of a step", FREE, (ADVICE,), _step_tokens),
    Lever("sequences at once", FREE, (ADVICE,), _sequences),
    Lever("KV in fp8", QUALITY, (ADVICE,), _fp8),
    Lever("order of the layers", QUALITY, (ADVICE, "changed_earlier"), _order),
    Lever("layers that change", QUALITY, ("changed_earlier",), _steady_layers),
    Lever("a host tier", HARDWARE, (ADVICE,), _host_tier),
    Lever("larger tiers", HARDWARE, ("evicted",), _larger_tiers),
    Lever("more KV memory", HARDWARE, ("evicted_memory", "evicted"), _more_memory),
    Lever("more replicas", HARDWARE, ("evicted_memory", "evicted"), _more_replicas),
    Lever("blocks of 16", FREE, (ADVICE,), _common_blocks),
    Lever("smaller blocks", ENGINE, ("partial_block",), _quarter_blocks),
    Lever("GPUs a replica", FREE, (ADVICE,), _another_width),
    Lever("one salt", QUALITY, ("other_tenant",), _one_salt),
)
