"""Which values a scenario may have, once its types are right.

The one idea: every numeric key has a range in `LIMITS`, wide enough for any real deployment and narrow enough for the
columns it ends up in; whatever is outside is one line with key, value and range.

    >>> list(problems(Scenario(WorkloadConfig(preset="chat"), engine=EngineConfig(block_size=0))))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any

from sim.scenario import EngineConfig, Scenario
from workloads.config import WorkloadConfig
from workloads.errors import InputError

MAX_SECONDS = 1e9  # 32 years; neighbouring floats are 0.1 microseconds apart there
MAX_MS = 1e6
MAX_TOKENS = MAX_COUNT = 10**9
MAX_BLOCK_SIZE = 10**6
MAX_KV_BLOCKS = 10**12  # times the largest block still fits 64 bits
MAX_REPLICAS = 100_000
MAX_GPUS = 1024  # of one replica
MAX_SEED = 2**64 - 1
SLOWEST, FASTEST = 1e-9, 1e9

Limit = tuple[Callable[[Any], bool], str]


def above_0(most: float) -> Limit:
    return lambda v: 0 < v <= most, f"above 0 and at most {most:,g}"


def from_0(most: float) -> Limit:
    return lambda v: 0 <= v <= most, f"0 or more and at most {_plain(most)}"


def from_1(most: int) -> Limit:
    return lambda v: 1 <= v <= most, f"1 or more and at most {_plain(most)}"


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,g}"


SECONDS, FROM_SECOND_0, MS = above_0(MAX_SECONDS), from_0(MAX_SECONDS), from_0(MAX_MS)
COUNT, TOKENS, TOKENS_OR_NONE = from_1(MAX_COUNT), from_1(MAX_TOKENS), from_0(MAX_TOKENS)
RATE: Limit = (lambda v: SLOWEST <= v <= FASTEST, f"above 0, from {SLOWEST:g} to {FASTEST:g}")
SHARE: Limit = (lambda v: 0 < v <= 1, "above 0 and at most 1")
NOT_EMPTY: Limit = (bool, "a name or a path, not an empty text")

LIMITS: dict[str, Limit] = {
    "seed": from_0(MAX_SEED),
    "run.warmup_s": FROM_SECOND_0,
    "run.duration_s": SECONDS,
    "run.horizon_s": SECONDS,
    "model.name": NOT_EMPTY,
    "model.config": NOT_EMPTY,
    "workload.preset": NOT_EMPTY,
    "workload.trace": NOT_EMPTY,
    "workload.rate": RATE,
    "workload.duration_s": SECONDS,
    "workload.requests": COUNT,
    "workload.rate_scale": RATE,
    "workload.start_s": FROM_SECOND_0,
    "workload.end_s": SECONDS,
    "workload.sample": SHARE,
    "workload.jitter_s": FROM_SECOND_0,
    "workload.concurrency": COUNT,
    "workload.users": COUNT,
    "workload.think_scale": from_0(FASTEST),
    "hardware.profile": NOT_EMPTY,
    "hardware.tensor_parallel": from_1(MAX_GPUS),
    "hardware.weights_gib": above_0(1e6),
    "hardware.overhead_gib": from_0(1e6),
    "engine.block_size": from_1(MAX_BLOCK_SIZE),
    "engine.kv_blocks": from_1(MAX_KV_BLOCKS),
    "engine.gpu_memory_utilization": SHARE,
    "engine.max_model_len": TOKENS,
    "engine.max_num_seqs": COUNT,
    "engine.max_num_batched_tokens": TOKENS,
    "engine.long_prefill_token_threshold": TOKENS_OR_NONE,
    "engine.watermark": (lambda v: 0 <= v < 1, "0 or more and below 1"),
    "engine.max_loras": from_0(MAX_COUNT),
    "engine.chunked_prefill_size": TOKENS_OR_NONE,
    "engine.max_prefill_tokens": TOKENS,
    "engine.schedule_conservativeness": from_0(1e6),
    "engine.step_overhead_ms": MS,
    "engine.frontend_ms": MS,
    "cache.tiers.name": NOT_EMPTY,
    "cache.tiers.bandwidth_gb_per_s": (
        lambda v: 0 <= v <= FASTEST or v == math.inf,
        f"0 or more and at most {FASTEST:,g}, or inf",
    ),
    "cache.tiers.latency_s": FROM_SECOND_0,
    "cache.tiers.capacity_gib": above_0(1e9),
    "cache.tiers.capacity_blocks": from_1(MAX_KV_BLOCKS),
    "cluster.replicas": from_1(MAX_REPLICAS),
    "slo.ttft_s": SECONDS,
    "slo.tpot_s": SECONDS,
    "slo.e2e_s": SECONDS,
    "slo.attainment": SHARE,
    "cost.gpu_hour_usd": from_0(1e6),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "engine.semantics": ("vllm", "sglang"),
    "engine.schedule_policy": ("fcfs", "lpm", "lof", "dfs-weight"),
    "engine.retraction_policy": ("length", "priority"),
    "engine.scheduler_policy": ("fcfs", "priority"),
    "engine.preemption_victim": ("fcfs", "lcf"),
    "cache.tiers.write": ("on-evict", "write-through"),
    "cache.tiers.policy": ("lru", "fifo", "lfu", "mru", "filo", "slru", "lruk"),
    "slo.attained_by": ("classes", "pooled"),
    "model.dtype": ("bf16", "fp16", "fp8", "fp8_block", "int8", "int4", "mxfp4", "nvfp4", "fp32"),
    "model.kv_dtype": ("bf16", "fp16", "fp8", "fp32"),
    "workload.loop": ("auto", "open", "sessions", "concurrency"),
    "workload.think": ("think-only", "original", "scaled"),
}
ONLY: dict[str, tuple[str, ...]] = {
    "vllm": (
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "scheduler_policy",
        "watermark",
        "reserve_full_isl",
        "max_loras",
        "async_scheduling",
        "preemption_victim",
    ),
    "sglang": (
        "chunked_prefill_size",
        "max_prefill_tokens",
        "schedule_policy",
        "schedule_conservativeness",
        "priority_scheduling",
        "retraction_policy",
    ),
}
"""Keys of [engine] that one engine has and the other does not read."""


def within(where: str, value: Any, limit: Limit) -> Any:
    """The value itself; InputError when it is not within the limit. None passes: it was not given."""
    if value is not None and not limit[0](value):
        raise InputError(f"{where} {value}: expected {limit[1]}")
    return value


def hint(name: str, known: Iterable[str], what: str = "known") -> str:
    """ " (did you mean lru?)", or the list of what is known."""
    known = list(known)
    return did_you_mean(name, known) or f" ({what}: {', '.join(sorted(known))})"


def did_you_mean(value: str, known: Sequence[str]) -> str:
    close = get_close_matches(value, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def problems(scenario: Scenario) -> Iterator[str]:
    """A line for every value that makes no sense."""
    for key, value in _leaves(scenario):
        yield from _value_problems(_name(key), key, value)
    for name, limits in scenario.slo.classes.items():
        for f in fields(limits):
            yield from _value_problems(f"[slo.classes.{name}] {f.name}", f"slo.{f.name}", getattr(limits, f.name))
    if scenario.run.duration_s is not None and scenario.run.duration_s <= (scenario.run.warmup_s or 0.0):
        yield f"[run] duration_s = {scenario.run.duration_s}: expected a time after warmup_s = {scenario.run.warmup_s}"
    yield from _workload_problems(scenario.workload)
    yield from _name_problems(scenario)


def _value_problems(where: str, key: str, value: Any) -> Iterator[str]:
    allowed = key in LIMITS and value is not None and LIMITS[key][0](value)
    if isinstance(value, float) and not math.isfinite(value) and not allowed:
        yield f"{where} = {value}: expected a finite number"
    elif value is not None and key in LIMITS and not allowed:
        yield f"{where} = {value!r}: expected {LIMITS[key][1]}"
    elif value is not None and key in CHOICES and value not in CHOICES[key]:
        yield f"{where} = {value!r}: expected {' or '.join(CHOICES[key])}{did_you_mean(value, CHOICES[key])}"


def _workload_problems(workload: WorkloadConfig) -> Iterator[str]:
    given = [
        name
        for name, value in (("preset", workload.preset), ("trace", workload.trace), ("class", workload.class_))
        if value
    ]
    if len(given) != 1:
        yield (
            f"[workload] has {' and '.join(given) or 'none of preset, trace and class'}: expected exactly one of"
            " preset, trace and class"
        )
    if workload.loop == "concurrency" and workload.concurrency is None:
        yield '[workload] concurrency is missing: expected a number of sessions, since loop = "concurrency"'
    if workload.end_s is not None and workload.end_s <= workload.start_s:
        yield f"[workload] end_s = {workload.end_s}: expected a time after start_s = {workload.start_s}"


def _name_problems(scenario: Scenario) -> Iterator[str]:
    from sim.fleet.router import ROUTERS

    router, known = scenario.cluster.router, tuple(ROUTERS)
    if router not in known:
        yield f"[cluster] router = {router!r}: expected one of {', '.join(known)}{did_you_mean(str(router), known)}"
    yield from _semantics_problems(scenario.engine)
    yield from _policy_problems(scenario)
    yield from _tier_problems(scenario)


def _semantics_problems(engine: EngineConfig) -> Iterator[str]:
    """Keys that the chosen engine would not read: a value without effect would be a wrong answer."""
    other = "vllm" if engine.semantics == "sglang" else "sglang"
    for key in ONLY[other]:
        value, default = getattr(engine, key), getattr(EngineConfig, key)
        if value != default:
            yield f"[engine] {key} = {value!r}: only semantics = {other!r} has it"
    if engine.semantics == "sglang":
        chunk = engine.chunked_prefill_size
        if chunk and chunk < engine.block_size:
            yield f"[engine] chunked_prefill_size = {chunk}: expected at least block_size = {engine.block_size}, or 0"
        if engine.priority_scheduling and engine.schedule_policy not in ("fcfs", "lof"):
            yield (
                "[engine] priority_scheduling = true: expected schedule_policy fcfs or lof with it, not"
                f" {engine.schedule_policy}"
            )


def _policy_problems(scenario: Scenario) -> Iterator[str]:
    from sim import sglang
    from sim.kvcache.policies import check as check_policy
    from sim.simulate import POLICY_NAMES

    policy, params = scenario.cache.policy, scenario.cache.policy_params
    check = sglang.check_policy if scenario.engine.semantics == "sglang" else check_policy
    if policy == "optimal":
        yield from _optimal_problems(scenario)
    elif policy not in POLICY_NAMES and ":" not in policy:
        names = (*POLICY_NAMES, "optimal")
        yield (
            f"[cache] policy = {policy!r}: expected one of {', '.join(names)}, or module:Class for your"
            f" own{did_you_mean(policy, names)}"
        )
    elif policy == "clairvoyant" and scenario.engine.semantics == "vllm":
        for key in params:
            yield f"[cache] policy_params has no key {key!r} for {policy} here: it has no parameters"
    else:
        try:
            check(policy, params)
        except InputError as error:
            yield str(error)


def _optimal_problems(scenario: Scenario) -> Iterator[str]:
    """In a timed run the best eviction can be followed only where the order of admissions is known before."""
    engine, cluster = scenario.engine, scenario.cluster
    for ok, needed in (
        (engine.semantics == "vllm", "engine.semantics = 'vllm'"),
        (cluster.replicas == 1, "cluster.replicas = 1"),
        (engine.scheduler_policy == "fcfs", "engine.scheduler_policy = 'fcfs'"),
        (engine.long_prefill_token_threshold == 0, "engine.long_prefill_token_threshold = 0"),
        (not scenario.cache.tiers, "no cache.tiers"),
        (not scenario.cache.policy_params, "no cache.policy_params"),
    ):
        if not ok:
            yield (
                f"[cache] policy = 'optimal': expected {needed} with it, or policy = 'clairvoyant', a policy that knows"
                " the future; kvcast optimum says how much of its schedule's optimum any run hit"
            )


def _tier_problems(scenario: Scenario) -> Iterator[str]:
    tiers = scenario.cache.tiers
    for i, tier in enumerate(tiers):
        where = f"[cache.tiers.{tier.name or i}]"
        for f in fields(tier):
            yield from _value_problems(f"{where} {f.name}", f"cache.tiers.{f.name}", getattr(tier, f.name))
        given = [name for name in ("capacity_gib", "capacity_blocks") if getattr(tier, name) is not None]
        if len(given) != 1:
            yield (
                f"{where} has {' and '.join(given) or 'neither capacity_gib nor capacity_blocks'}: expected exactly one"
                " of capacity_gib and capacity_blocks"
            )
        if tier.name in ["gpu", *(other.name for other in tiers[:i])]:
            yield f"{where} name = {tier.name!r}: expected a name of its own for each tier, other than gpu"
    if tiers and scenario.engine.semantics != "vllm":
        yield (
            f"[cache] tiers with [engine] semantics = {scenario.engine.semantics!r}: expected semantics = 'vllm' with"
            " them"
        )
    if tiers and scenario.cache.policy == "clairvoyant":
        yield "[cache] tiers with policy = 'clairvoyant': expected another policy, it knows of no tiers"


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar of the sections as ("engine.block_size", 16); mix classes are the workload loader's to check."""
    for f in fields(node):
        value = getattr(node, f.name)
        if is_dataclass(value):
            yield from _leaves(value, f"{prefix}{f.name}.")
        elif not isinstance(value, dict | tuple):
            yield prefix + f.name, value


def _name(key: str) -> str:
    section, _, name = key.rpartition(".")
    return f"[{section}] {name}" if section else name
