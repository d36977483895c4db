"""TensorRT-LLM's scheduler (PyTorch backend) and KV block reuse, from its public source: no recorded case checks it, so
everything that names it says unverified (docs/engines.md has the rules and what is left out)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sim.engine import Common, Engine
from sim.kvcache import policies
from sim.kvcache.base import BlockCache
from sim.kvcache.no_cache import NoCache
from sim.kvcache.ranked import RankedCache
from sim.kvcache.release_order import ReleaseOrderCache
from sim.recording import UNVERIFIED
from sim.scenario import EngineConfig, EngineParams
from sim.trtllm.capacity import GUARANTEED
from sim.trtllm.scheduler import TrtllmScheduler
from workloads.errors import InputError

if TYPE_CHECKING:
    from calibrate.profile import DeviceProfile


def check(params: EngineParams, record_cache: bool) -> None:
    """Raise InputError for what this engine has no rule for."""
    check_policy(params.policy, params.policy_params)
    for problem in problems(params):
        raise InputError(problem)
    if params.tiers:
        raise InputError("[cache] tiers with semantics = 'trtllm': expected vllm")
    if record_cache:
        raise InputError("the optimum of a schedule is defined for vLLM's semantics only")


def problems(keys: EngineConfig | EngineParams) -> Iterator[str]:
    """A line for each key that contradicts another."""
    tokens, seqs = keys.max_num_batched_tokens, keys.max_num_seqs
    if tokens and tokens < keys.block_size:
        yield f"[engine] max_num_batched_tokens = {tokens}: expected at least block_size = {keys.block_size}"
    if tokens and seqs and tokens < seqs:
        yield f"[engine] max_num_batched_tokens = {tokens}: expected at least max_num_seqs = {seqs}, a token each"


def check_policy(policy: str, params: Mapping[str, Any]) -> None:
    """Raise InputError for a policy that does not exist here, or a parameter it does not have."""
    if policy == "clairvoyant":
        raise InputError(
            "[cache] policy = 'clairvoyant': expected another with engine.semantics = 'trtllm', the future is known by"
            " vLLM's blocks only"
        )
    policies.check(policy, params)


def walks_chains(params: EngineParams) -> bool:
    return not params.caching or not policies.find(params.policy).by_node


def holds(params: EngineParams, tokens: Any) -> Any:
    """A guarantee has a place for every token, the last one's KV included, which is never computed."""
    return -(-(tokens - (params.capacity_policy != GUARANTEED)) // params.block_size) <= params.kv_blocks


def longest_prompt(params: EngineParams) -> float:
    """Without chunks a prompt must fit in one step."""
    return math.inf if params.chunked_context else params.max_num_batched_tokens


def host_mode(keys: EngineConfig | EngineParams) -> str:
    return "async" if keys.overlap_scheduler else "sync"


def lone_chunk(params: EngineParams, longest: int) -> int:
    return params.max_num_batched_tokens // params.block_size * params.block_size if params.chunked_context else longest


def defaults(profile: DeviceProfile) -> dict[str, int]:
    """trtllm-serve's max_num_tokens and max_batch_size, on every GPU."""
    return {"max_num_batched_tokens": 8192, "max_num_seqs": 2048}


def fleet(common: Common) -> Callable[[int], TrtllmScheduler]:
    def scheduler(index: int) -> TrtllmScheduler:
        cache = _cache(common, index)
        cache.seen.here = common.seen[index]
        return TrtllmScheduler(common.params, cache, common.paths, common.log)

    return scheduler


def _cache(common: Common, index: int) -> BlockCache:
    params = common.params
    size = (params.kv_blocks, params.block_size, len(common.workload.tree), common.fleet_seen)
    if not params.caching:
        return NoCache(*size)
    if params.policy == "lru":
        return ReleaseOrderCache(*size)
    return RankedCache(*size, policies.make(params.policy, common.world(index), params.policy_params))


ENGINE = Engine(
    title="TensorRT-LLM",
    version=f"trtllm-1.x ({UNVERIFIED})",
    check=check,
    problems=problems,
    check_policy=check_policy,
    walks_chains=walks_chains,
    fleet=fleet,
    holds=holds,
    lone_chunk=lone_chunk,
    longest_prompt=longest_prompt,
    defaults=defaults,
    host_mode=host_mode,
    budget=("max_num_batched_tokens", "tokens of a step"),
    own_policies=("lru",),
    try_policies=("lru", "lfu", "s3fifo", "gdsf"),
    has_oracle=True,
    memory_of_the_rest=True,
)
