"""Every change of a scenario that kvcast knows to try: the plan's advice, the fixes of `kvcast explain`, the
remedies of `kvcast resilience` and the dashboard's Apply pick from this one table.

The one idea: a lever is a row of LEVERS: what it costs, what it is tried for, and a function that makes its changes of
a scenario, or says in a line why there are none. Whoever picks simulates them all and believes none.

    >>> [change.words for change in changes(ADVICE, scenario)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from calibrate.memory import WIDTHS
from kvcast import api
from kvcast.scenario.disaggregation import pool_problems
from kvcast.scenario.fitting import bundled_for
from kvcast.studies.change import ENGINE, FREE, HARDWARE, QUALITY, Change, Given, Made
from kvcast.studies.overload_levers import cached_first, reserve, shed, short_queue
from kvcast.studies.prompt_levers import ANSWERS, one_salt, order, steady_layers
from sim.engines import engine_of, having
from sim.fleet.router import ROUTERS
from sim.scenario import Scenario, TierConfig
from workloads.errors import InputError

ADVICE = "advice"
"""The purpose of a plan's advice: the same number of GPUs. The other purposes are causes of missed tokens, and
OVERLOAD."""
OVERLOAD = "overload"
"""To come back after a burst, most of them at the price of refused requests."""
ROUTER, SPLIT = "router", "split"
"""Fewer GPUs by another router; and, of the same replicas, by other numbers that prefill."""
HOST_TIER = TierConfig(name="host", bandwidth_gb_per_s=50.0, capacity_gib=256.0)
"""Host memory over PCIe 5.0 x16: 64 GB/s on paper."""
DENSE = -1
EIGHTHS = 8
GROUPS_LRU = "layers with a window or a state are simulated with the engine's own cache only"
LEAST_STEP_TOKENS, LEAST_SEQUENCES, BLOCK = 256, 8, 16


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


def _has_groups(given: Given) -> bool:
    """Whether its layers keep different things, in KV groups of their own."""
    return bool(api.resolve(given.resolved).params.kv_groups)


def _another_policy(given: Given) -> Made:
    old, own = given.scenario.cache.policy, given.scenario.cache.policy_params
    if not given.scenario.cache.enabled:
        return "the prefix cache is off"
    if _has_groups(given):
        return GROUPS_LRU
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
    if _has_groups(given):
        return GROUPS_LRU
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
    """Those of plan.routers; what its engine's caches do not say to any router is left out."""
    cluster, engine = given.scenario.cluster, engine_of(given.resolved.engine)
    if cluster.replicas == 1:
        return "one replica: nothing to route"
    return [
        given.change(f"router {cluster.router} -> {new}", {"cluster.router": new})
        for new in dict.fromkeys(given.scenario.plan.routers)
        if new != cluster.router and (engine.has_oracle or not ROUTERS[new].reads_caches)
    ] or "plan.routers has no other one for this engine"


def _another_split(given: Given) -> Made:
    """Prefill replicas in eighths of the fleet."""
    pools, n = given.scenario.disaggregation, given.scenario.cluster.replicas
    if n == 1:
        return "one replica: nothing to split"
    numbers = {min(max(round(n * part / EIGHTHS), 1), n - 1) for part in range(1, EIGHTHS)} - {pools.prefill_replicas}
    old = f"{pools.prefill_replicas} of {n} replicas prefill" if pools.on else "no replica only prefills"
    made = [given.change(f"{old} -> {new} of {n}", {"disaggregation.prefill_replicas": new}) for new in sorted(numbers)]
    wrong = next((line for change in made for line in pool_problems(change.scenario)), None)
    return wrong or made or "two replicas have one split"


def _another_width(given: Given) -> Made:
    """Another number of GPUs a replica, the same number in all; with a profile made for it."""
    if not given.scenario.hardware.layout.plain:
        return f"replicas of {given.scenario.hardware.layout}, not of tensor parallel alone"
    old = given.scenario.hardware.tensor_parallel
    gpus = old * given.scenario.cluster.replicas
    profiles = {new: _profile_at(given.scenario, new) for new in WIDTHS if new != old and gpus % new == 0}
    own = given.scenario.hardware.profile
    return [
        given.change(
            f"{gpus // new} {'replica' if gpus == new else 'replicas'} of {new} GPUs instead of {gpus // old} of {old}",
            {"hardware.tensor_parallel": new}
            | ({} if profile == own else {"hardware.profile": profile})
            | {"cluster.replicas": gpus // new},
        )
        for new, profile in profiles.items()
        if profile is not None
    ] or f"no profile of this GPU and model at another width that divides {gpus} GPUs"


def _profile_at(scenario: Scenario, width: int) -> str | None:
    """A profile of the same GPU, model and precision at another width: the roofline's or atlas' own, what its GPU
    brings, or a bundled one."""
    if scenario.hardware.gpu is not None or scenario.hardware.profile.startswith(("roofline:", "atlas:")):
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


def _keep_more(given: Given) -> Made:
    """More of what layers with a window or a state need to be hit again."""
    if given.scenario.engine.prefix_cache_retention_interval == DENSE:
        return "they keep everything they can"
    words = "layers with a window or a state keep all they can (prefix_cache_retention_interval null)"
    return [given.change(words, {"engine.prefix_cache_retention_interval": DENSE})]


def _more_memory(given: Given) -> Made:
    old = given.resolved.engine.kv_blocks or 0
    asks = "that memory: a larger GPU, more GPUs a replica, or a smaller KV type"
    return [given.change(f"KV memory {old:,} -> {2 * old:,} blocks a replica", {"engine.kv_blocks": 2 * old}, asks)]


# -- the table ---------------------------------------------------------------------------------------------------------

LEVERS = (
    Lever("prefix cache", FREE, (ADVICE, "cache_off"), _cache_on),
    Lever("eviction policy", ENGINE, (ADVICE, "evicted_policy", "evicted"), _another_policy),
    Lever("router", FREE, (ADVICE, "other_replica", ROUTER), _another_router),
    Lever("split", FREE, (SPLIT,), _another_split),
    Lever("tokens of a step", FREE, (ADVICE,), _step_tokens),
    Lever("sequences at once", FREE, (ADVICE,), _sequences),
    Lever("KV in fp8", QUALITY, (ADVICE,), _fp8),
    Lever("order of the layers", QUALITY, (ADVICE, "changed_earlier"), order),
    Lever("layers that change", QUALITY, ("changed_earlier",), steady_layers),
    Lever("a host tier", HARDWARE, (ADVICE,), _host_tier),
    Lever("larger tiers", HARDWARE, ("evicted",), _larger_tiers),
    Lever("retention", FREE, ("window",), _keep_more),
    Lever("more KV memory", HARDWARE, ("evicted_memory", "evicted"), _more_memory),
    Lever("more replicas", HARDWARE, ("evicted_memory", "evicted"), _more_replicas),
    Lever("blocks of 16", FREE, (ADVICE,), _common_blocks),
    Lever("smaller blocks", ENGINE, ("partial_block",), _quarter_blocks),
    Lever("GPUs a replica", FREE, (ADVICE,), _another_width),
    Lever("one salt", QUALITY, ("other_tenant",), one_salt),
    Lever("shedding", QUALITY, (OVERLOAD,), shed),
    Lever("queue limit", QUALITY, (OVERLOAD,), short_queue),
    Lever("reserve for idle prefixes", FREE, (OVERLOAD,), reserve),
    Lever("longest cached prefix first", ENGINE, (OVERLOAD,), cached_first),
)
