"""SGLang's scheduler and radix cache, exact in every step (docs/cache.md; `kvcast validate engine-cases`).

    >>> recording = simulate(workload, EngineParams(kv_blocks=400_000, block_size=1, semantics="sglang"), step_time)
"""
from __future__ import annotations

from difflib import get_close_matches

from sim.kvcache.base import Paths
from sim.log import RequestLog
from sim.scenario import EngineParams
from sim.sglang.node import POLICIES
from sim.sglang.radix import RadixCache
from sim.sglang.scheduler import SGLangScheduler
from sim.sglang.waiting import ORDERS
from workloads.errors import InputError

RETRACTION = ("length", "priority")
__all__ = ["ORDERS", "POLICIES", "RETRACTION", "SGLangScheduler", "check", "scheduler"]


def check(params: EngineParams, record_cache: bool = False) -> None:
    """Raise InputError for what SGLang's engine has no rule for."""
    choices = (
        ("cache", "policy", params.policy, tuple(POLICIES)),
        ("engine", "schedule_policy", params.schedule_policy, tuple(ORDERS)),
        ("engine", "retraction_policy", params.retraction_policy, RETRACTION),
    )
    for section, key, value, known in choices:
        if value not in known:
            close = get_close_matches(value, known, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise InputError(f"[{section}] {key} = {value!r}: expected one of {', '.join(known)} with engine.semantics = 'sglang'{hint}")
    if params.policy_params:
        raise InputError("[cache] policy_params: SGLang's own eviction policies have no parameters")
    if 0 < params.chunked_prefill_size < params.block_size:
        raise InputError(f"[engine] chunked_prefill_size = {params.chunked_prefill_size}: expected at least a page ({params.block_size}), or 0 for no chunks")
    if params.priority_scheduling and params.schedule_policy not in ("fcfs", "lof"):
        raise InputError(f"[engine] priority_scheduling: expected schedule_policy fcfs or lof with it, not {params.schedule_policy}")
    if record_cache:
        raise InputError("the optimum of a schedule is defined for vLLM's semantics only")


def scheduler(params: EngineParams, paths: Paths, token_paths: Paths, log: RequestLog, fleet_seen: dict[int, int]) -> SGLangScheduler:
    """One replica's engine; `token_paths` has blocks of one token, `fleet_seen` is shared by all replicas."""
    cache = RadixCache(params.kv_blocks, params.policy, paths.n_shared, fleet_seen, params.caching)
    return SGLangScheduler(params, cache, paths, token_paths, log)
