"""SGLang's scheduler and radix cache, exact in every step (docs/cache.md; `kvcast validate engine-cases`).

>>> recording = simulate(workload, EngineParams(kv_blocks=400_000, block_size=1, semantics="sglang"), step_time)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from sim.engine import Common, Engine
from sim.kvcache import policies
from sim.kvcache.chains import Paths
from sim.kvcache.policies import World
from sim.scenario import EngineConfig, EngineParams
from sim.sglang.node import POLICIES, Node, tail_optimized
from sim.sglang.radix import RadixCache
from sim.sglang.ranked import RankedRadixCache
from sim.sglang.scheduler import SGLangScheduler
from sim.sglang.waiting import ORDERS
from workloads.errors import InputError

if TYPE_CHECKING:
    from calibrate.profile import DeviceProfile

RETRACTION = ("length", "priority")
OWN = (*POLICIES, "tlru")
"""Eviction as SGLang has it; every other policy of the block cache, a user's own included, ranks the leaves of the same
tree."""
__all__ = ["ENGINE", "ORDERS", "OWN", "POLICIES", "RETRACTION", "SGLangScheduler", "check", "check_policy"]


def check(params: EngineParams, record_cache: bool) -> None:
    """Raise InputError for what SGLang's engine has no rule for."""
    choices = (
        ("engine", "schedule_policy", params.schedule_policy, tuple(ORDERS)),
        ("engine", "retraction_policy", params.retraction_policy, RETRACTION),
    )
    for section, key, value, known in choices:
        if value not in known:
            close = get_close_matches(value, known, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise InputError(
                f"[{section}] {key} = {value!r}: expected one of {', '.join(known)} with engine.semantics ="
                f" 'sglang'{hint}"
            )
    check_policy(params.policy, params.policy_params)
    for problem in problems(params):
        raise InputError(problem)
    if params.tiers:
        raise InputError("[cache] tiers with semantics = 'sglang': expected vllm")
    if record_cache:
        raise InputError("the optimum of a schedule is defined for vLLM's semantics only")


def problems(keys: EngineConfig | EngineParams) -> Iterator[str]:
    """A line for each key that contradicts another."""
    chunk = keys.chunked_prefill_size
    if chunk and chunk < keys.block_size:
        yield f"[engine] chunked_prefill_size = {chunk}: expected at least block_size = {keys.block_size}, or 0"
    if keys.priority_scheduling and keys.schedule_policy not in ("fcfs", "lof"):
        yield (
            "[engine] priority_scheduling = true: expected schedule_policy fcfs or lof with it, not"
            f" {keys.schedule_policy}"
        )


def check_policy(policy: str, params: Mapping[str, Any]) -> None:
    """Raise InputError for a policy that does not exist here, or a parameter it does not have."""
    if policy == "clairvoyant":
        raise InputError(
            "[cache] policy = 'clairvoyant': expected another with engine.semantics = 'sglang', the future is known by"
            " vLLM's blocks only"
        )
    if policy in POLICIES and params:
        raise InputError(f"[cache] policy_params: {policy} as SGLang has it has no parameters")
    policies.check(policy, params)
    if policy == "tlru":
        _tail_optimized(1, params)


def walks_chains(params: EngineParams) -> bool:
    return False  # its tree hangs on the nodes' ends


def holds(params: EngineParams, tokens: Any) -> Any:
    """Only what leaves a page free beside all of it is admitted."""
    return tokens + params.block_size < params.kv_blocks * params.block_size


def lone_chunk(params: EngineParams, longest: int) -> int:
    return params.chunked_prefill_size // params.block_size * params.block_size or longest


def defaults(profile: DeviceProfile) -> dict[str, int]:
    """chunked_prefill_size: 2,048 below 35 GiB of GPU memory, 4,096 below 60, 8,192 below 160, else 16,384."""
    sizes = ((35, 2048), (60, 4096), (160, 8192))
    return {"chunked_prefill_size": next((size for below, size in sizes if profile.memory_gib < below), 16384)}


def host_mode(keys: EngineConfig | EngineParams) -> str:
    return "async" if keys.overlap_schedule else "sync"


def most_seqs(contexts: float) -> int:
    """512 for each whole context that fits, at least 2,048, at most 4,096."""
    return min(max(int(contexts * 512), 2048), 4096)


def fleet(common: Common) -> Callable[[int], SGLangScheduler]:
    token_paths = Paths(common.workload, 1, chains=False)  # its longest-prefix order compares tokens

    def scheduler(index: int) -> SGLangScheduler:
        cache = _cache(common.params, common.paths, common.fleet_seen, common.world(index))
        cache.seen.here = common.seen[index]
        return SGLangScheduler(common.params, cache, common.paths, token_paths, common.log)

    return scheduler


def _cache(params: EngineParams, paths: Paths, fleet_seen: dict[int, int], world: World) -> RadixCache:
    if params.policy in OWN:
        rank = _tail_optimized(params.block_size, params.policy_params) if params.policy == "tlru" else None
        return RadixCache(params.kv_blocks, params.policy, paths.n_shared, fleet_seen, params.caching, rank=rank)
    policy = policies.make(params.policy, world, params.policy_params)
    return RankedRadixCache(params.kv_blocks, policy, paths.n_shared, fleet_seen, params.caching)


def _tail_optimized(page: int, params: Mapping[str, Any]) -> Callable[[Node], Any]:
    try:
        return tail_optimized(page, **params)
    except ValueError as error:
        raise InputError(f"[cache] policy_params of tlru: {error}") from None


ENGINE = Engine(
    title="SGLang",
    version="sglang-0.5.23",
    check=check,
    problems=problems,
    check_policy=check_policy,
    walks_chains=walks_chains,
    fleet=fleet,
    holds=holds,
    lone_chunk=lone_chunk,
    defaults=defaults,
    host_mode=host_mode,
    budget=("chunked_prefill_size", "prefill tokens of a step"),
    own_policies=OWN,
    try_policies=("lru", "lfu", "slru", "fifo"),
    most_seqs=most_seqs,
    prefill_pauses=True,
    has_cancel=True,
    ranks_in_turn=True,
)
