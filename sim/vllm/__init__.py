"""vLLM V1's scheduler and block cache, exact in every step (docs/cache.md; `kvcast validate engine-cases`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrate.kv_groups import FULL
from calibrate.latency import engine_defaults
from sim.engine import PREFILL, Common, Engine
from sim.kvcache import policies
from sim.kvcache.base import BlockCache
from sim.kvcache.clairvoyant import ClairvoyantCache, Forecast
from sim.kvcache.groups.cache import HybridCache
from sim.kvcache.groups.paths import GroupPaths
from sim.kvcache.groups.rules import caps_of, rules_of
from sim.kvcache.no_cache import NoCache
from sim.kvcache.observed import Observable, observe
from sim.kvcache.ranked import RankedCache
from sim.kvcache.release_order import ReleaseOrderCache
from sim.kvcache.store import Shelf
from sim.kvcache.tiers import Tiers
from sim.scenario import EngineConfig, EngineParams
from sim.vllm.acceptance import Acceptances
from sim.vllm.hybrid import HybridScheduler
from sim.vllm.pools import DecodeScheduler, PrefillScheduler
from sim.vllm.scheduler import VllmScheduler
from sim.vllm.speculative import SpeculativeScheduler
from sim.vllm.waiting import EXPERIMENTS
from workloads.errors import InputError
from workloads.limits import RATE

if TYPE_CHECKING:
    from calibrate.profile import DeviceProfile

CLAIRVOYANT = "clairvoyant"
NOT_HYBRID = "engine.disable_hybrid_kv_cache_manager = true takes them all as full attention"


def check(params: EngineParams, record_cache: bool) -> None:
    """Raise InputError for what this engine has no rule for."""
    check_policy(params.policy, params.policy_params)
    for problem in problems(params):
        raise InputError(problem)
    for wrong, what in (
        (not params.caching, "enabled = false: expected the prefix cache on"),
        (params.policy == CLAIRVOYANT, "policy = 'clairvoyant': expected another, it knows of no tiers"),
        (record_cache, "an optimum: it is defined for one cache, without tiers"),
    ):
        if params.tiers and wrong:
            raise InputError(f"[cache] tiers with {what}")
    _check_groups(params, record_cache)
    _check_speculation(params, record_cache)


def _check_speculation(params: EngineParams, record_cache: bool) -> None:
    """Raise InputError for what is not simulated together with speculative decoding."""
    for wrong, what in (
        (hybrid(params), f"layers that keep a window or a state ({NOT_HYBRID})"),
        (bool(params.tiers), "[cache] tiers"),
        (params.policy == CLAIRVOYANT, f"[cache] policy = {CLAIRVOYANT!r}"),
        (record_cache, "an optimum"),
        (params.prefill_schedule_interval > 1, "[engine] prefill_schedule_interval above 1"),
        (params.scheduler_policy in EXPERIMENTS, f"[engine] scheduler_policy = {params.scheduler_policy!r}"),
    ):
        if params.speculative is not None and wrong:
            raise InputError(
                f"[speculative] with {what}: not simulated together, expected a scenario without one of them"
            )


def _check_groups(params: EngineParams, record_cache: bool) -> None:
    """Raise InputError for what is not known of several kinds of layers."""
    for wrong, what in (
        (params.policy != "lru" and params.caching, f"policy = {params.policy!r}: expected 'lru'"),
        (bool(params.tiers), "tiers: expected none"),
        (record_cache, "an optimum: it is defined for layers that keep everything"),
    ):
        if hybrid(params) and wrong:
            raise InputError(f"[cache] {what}, with layers that keep a window or a state ({NOT_HYBRID})")
    if hybrid(params) and params.scheduler_policy in EXPERIMENTS:
        raise InputError(
            f"[engine] scheduler_policy = {params.scheduler_policy!r}: expected fcfs or priority, with layers that keep"
            f" a window or a state ({NOT_HYBRID})"
        )


def hybrid(params: EngineParams) -> bool:
    """Whether not all layers keep everything, or they are more than one group."""
    return len(params.kv_groups) > 1 or any(group.kind != FULL for group in params.kv_groups)


def problems(keys: EngineConfig | EngineParams) -> Iterator[str]:
    """A line for each key that contradicts another."""
    if keys.max_num_active_seqs and keys.max_num_seqs and keys.max_num_active_seqs > keys.max_num_seqs:
        yield (
            f"[engine] max_num_active_seqs = {keys.max_num_active_seqs}: expected at most max_num_seqs ="
            f" {keys.max_num_seqs}"
        )
    if keys.tenant_weights and keys.scheduler_policy != "vtc":
        yield f"[engine] tenant_weights with scheduler_policy = {keys.scheduler_policy!r}: expected 'vtc' with it"
    for name, weight in keys.tenant_weights.items():
        if weight not in RATE:
            yield f"[engine] tenant_weights: {name} = {weight!r}: expected {RATE.words}"


def check_policy(policy: str, params: Mapping[str, Any]) -> None:
    if policy != CLAIRVOYANT:
        policies.check(policy, params)
        return
    for key in params:
        raise InputError(f"[cache] policy_params has no key {key!r} for {policy} here: it has no parameters")


def walks_chains(params: EngineParams) -> bool:
    if not params.caching:
        return True
    return params.policy != CLAIRVOYANT and not policies.find(params.policy).by_node  # the future is known by node


def holds(params: EngineParams, tokens: Any) -> Any:
    """The last token's KV is never computed."""
    if hybrid(params):
        each = zip(rules_of(params), caps_of(params), strict=True)
        return sum(np.minimum(-(-(tokens - 1) // r.b), cap) for r, cap in each) <= params.kv_blocks
    computed = tokens - 1
    if params.speculative is not None:  # as many tokens as its last step may count on, at most the longest request
        more = 2 * params.speculative.tokens + 1 + params.speculative.lookahead
        computed = np.minimum(computed + more, np.maximum(computed, params.max_model_len))
    return -(-computed // params.block_size) <= params.kv_blocks


def lone_chunk(params: EngineParams, longest: int) -> int:
    return params.max_num_batched_tokens


def defaults(profile: DeviceProfile) -> dict[str, int]:
    batched_tokens, num_seqs = engine_defaults(profile)
    return {"max_num_batched_tokens": batched_tokens, "max_num_seqs": num_seqs}


def host_mode(keys: EngineConfig | EngineParams) -> str:
    return "async" if keys.async_scheduling else "sync"


def fleet(common: Common) -> Callable[[int], VllmScheduler]:
    params = common.params
    if hybrid(params):
        return _hybrid_fleet(common)
    under_way = common.under_way if common.replicas > 1 else None
    knows = params.caching and params.policy == CLAIRVOYANT
    forecast = Forecast(common.workload, params) if knows else None
    acceptances = None
    if params.speculative is not None:
        acceptances = Acceptances(params.speculative.acceptance, common.seed)
        if params.speculative.method == "ngram":  # the one method that vLLM schedules synchronously only
            params = replace(params, async_scheduling=False)

    def scheduler(index: int) -> VllmScheduler:
        cache = _cache(common, index, forecast)
        cache.replica, cache.under_way, cache.seen.here = index, under_way, common.seen[index]
        if under_way is not None:
            under_way.drop(index)
        if common.cache_events is not None:
            observe(cache, common.cache_events[index])
        if acceptances is not None:
            return SpeculativeScheduler(params, cache, common.paths, common.log, acceptances)
        if common.pool == PREFILL:
            return PrefillScheduler(params, cache, common.paths, common.log)
        if common.elsewhere is not None:
            return DecodeScheduler(params, cache, common.paths, common.log, common.elsewhere, index)
        return VllmScheduler(params, cache, common.paths, common.log, _tiers(common, index))

    return scheduler


def _tiers(common: Common, index: int) -> Tiers | None:
    """The cache tiers of a replica as it starts: its own, empty, and its ways to those that all have together."""
    params = common.params
    if not params.tiers:
        return None
    shelves = {name: Shelf(store, index) for name, store in common.stores.items()}
    return Tiers(params.tiers, common.prefill_s, params.block_size, shelves)


def _hybrid_fleet(common: Common) -> Callable[[int], VllmScheduler]:
    params, rules = common.params, rules_of(common.params)
    group_paths = GroupPaths(common.workload, rules)

    def scheduler(index: int) -> VllmScheduler:
        size = (params.kv_blocks, rules, len(common.workload.tree), common.fleet_seen)
        cache = HybridCache(*size, params.caching)
        cache.replica, cache.seen.here = index, common.seen[index]
        return HybridScheduler(params, cache, common.paths, group_paths, common.log)

    return scheduler


def _cache(common: Common, index: int, forecast: Forecast | None) -> BlockCache:
    params = common.params
    size = (params.kv_blocks, params.block_size, len(common.workload.tree), common.fleet_seen)
    if not params.caching:
        return NoCache(*size)
    if params.policy == "lru":
        return (ReleaseOrderCache if common.cache_events is None else Observable)(*size)
    if forecast is not None:
        return ClairvoyantCache(*size, forecast)
    return RankedCache(*size, policies.make(params.policy, common.world(index), params.policy_params))


ENGINE = Engine(
    title="vLLM",
    version="vllm-0.33.0",
    check=check,
    problems=problems,
    check_policy=check_policy,
    walks_chains=walks_chains,
    fleet=fleet,
    holds=holds,
    lone_chunk=lone_chunk,
    defaults=defaults,
    host_mode=host_mode,
    budget=("max_num_batched_tokens", "tokens of a step"),
    own_policies=("lru",),
    try_policies=("lru", "lfu", "s3fifo", "gdsf"),
    whole_context=True,
    has_groups=True,
    has_speculation=True,
    has_tiers=True,
    has_optimum=True,
    has_pools=True,
    has_cancel=True,
    has_lora=True,
    has_oracle=True,
)
