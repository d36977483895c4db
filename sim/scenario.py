"""The scenario: one tree of frozen dataclasses, one section of the TOML file each.

Every field carries its help text (`metadata["help"]`), which feeds the command line, the dashboard's tooltips and the
docs. `kvcast.config` validates TOML against these classes; `sim` takes them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workloads.config import WorkloadConfig


def _f(default: Any, help: str) -> Any:
    """A field with a help text."""
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class RunConfig:
    warmup_s: float | None = _f(
        None,
        "arrivals before this time are simulated but not counted; default: 0 for a trace, for a mix until its load is"
        " there (docs/steady.md); 0: judged from an empty fleet on",
    )
    duration_s: float | None = _f(
        None,
        "arrivals stop here, and with them the measurement window, seconds; default: for a trace all arrivals, for a"
        " mix long enough after the warm-up",
    )
    drain: bool = _f(True, "serve what has arrived by the end of the window before stopping")
    horizon_s: float | None = _f(None, "stop the clock here whatever is unfinished; default: none")


@dataclass(frozen=True)
class ModelConfig:
    name: str = _f("llama-3.1-8b", "a bundled model (kvcast profile list)")
    config: str | None = _f(None, "path of a Hugging Face config.json, instead of name")
    dtype: str = _f("bf16", "weights and activations: bf16, fp16 or fp8")
    kv_dtype: str | None = _f(None, "KV cache type: bf16, fp16 or fp8; default: as dtype, bf16 for fp8 weights")


@dataclass(frozen=True)
class HardwareConfig:
    profile: str = _f(
        "h200-llama-3.1-8b-aic",
        "a bundled profile, a profile file, a folder of operator tables, atlas:GPU, or roofline:GPU",
    )
    tensor_parallel: int = _f(1, "GPUs per replica")


@dataclass(frozen=True)
class EngineConfig:
    semantics: str = _f("vllm", "whose scheduler and cache: vllm or sglang")
    block_size: int = _f(16, "tokens per KV block; SGLang's page (its own default is 1)")
    kv_blocks: int | None = _f(None, "KV blocks per replica; default: from the GPU's memory")
    gpu_memory_utilization: float = _f(0.92, "share of GPU memory the engine may use")
    max_model_len: int | None = _f(
        None, "longest prompt + output; default: the model's context, with vllm lowered to what fits in the KV memory"
    )
    max_num_seqs: int | None = _f(None, "sequences running at once; default: the engine's for this GPU")
    max_num_batched_tokens: int | None = _f(None, "token budget of a step; default: the engine's for this GPU")
    long_prefill_token_threshold: int = _f(0, "longest prefill chunk when several requests are present; 0: no limit")
    scheduler_policy: str = _f("fcfs", "fcfs or priority (lower value first)")
    watermark: float = _f(0.0, "share of blocks kept free at admission")
    reserve_full_isl: bool = _f(True, "admit a request only when its whole known sequence fits")
    max_loras: int = _f(0, "LoRA adapters running at once; 0: no limit")
    async_scheduling: bool = _f(
        False,
        "vllm: decide each step while the one before it runs: arrivals and finished requests are seen a step later",
    )
    preemption_victim: str = _f(
        "fcfs",
        "vllm: who is preempted when memory runs out: fcfs (the last admitted, by priority the least urgent: vLLM's"
        " own) or lcf (fewest computed tokens)",
    )
    chunked_prefill_size: int | None = _f(
        None, "sglang: prefill tokens of a step, 0: prompts are never cut; default: the engine's for this GPU"
    )
    max_prefill_tokens: int = _f(16384, "sglang: prompt tokens of one prefill batch")
    schedule_policy: str = _f("fcfs", "sglang: order of the waiting: fcfs, lpm, lof or dfs-weight")
    schedule_conservativeness: float = _f(1.0, "sglang: scales the memory reserved for tokens still to come")
    priority_scheduling: bool = _f(False, "sglang: larger priority first, with fcfs or lof")
    retraction_policy: str = _f(
        "length", "sglang: who loses its memory first: length (fewest outputs) or priority (lowest)"
    )
    step_overhead_ms: float = _f(0.0, "added to every step, on top of the profile's own overhead")
    frontend_ms: float = _f(0.0, "HTTP front end and tokenizer, added before the request reaches the engine")


@dataclass(frozen=True)
class TierConfig:
    name: str = field(metadata={"help": "a label, unique among the tiers"})
    bandwidth_gb_per_s: float = field(
        metadata={
            "help": "what a load from it gets, GB/s (1e9 bytes) per replica, all its GPUs together; inf: no limit"
        }
    )
    capacity_gib: float | None = _f(None, "GiB of KV it holds per replica")
    capacity_blocks: int | None = _f(None, "KV blocks it holds per replica, instead of capacity_gib")
    latency_s: float = _f(0.0, "seconds before a load's first byte; the link is busy meanwhile")
    write: str = _f(
        "on-evict",
        "on-evict (a block moves down when the tier above gives it away) or write-through (a copy is made when it"
        " enters the tier above)",
    )
    policy: str = _f(
        "lru",
        "what it gives away first: lru, fifo, lfu, mru, filo, slru or lruk; an on-evict tier sees a block once, so"
        " there they are two orders: oldest first, and latest first (mru, filo)",
    )
    prefetch: bool = _f(False, "load from it for the requests at the head of the queue, before they are admitted")


@dataclass(frozen=True)
class CacheConfig:
    enabled: bool = _f(True, "prefix caching")
    policy: str = _f(
        "lru",
        "eviction policy: lru (vLLM's own release order), another of docs/policies.md, or your own as module:Class",
    )
    policy_params: dict[str, Any] = _f({}, "parameters of the policy, a table such as {k = 3}; see docs/policies.md")
    tiers: tuple[TierConfig, ...] = _f(
        (), "[[cache.tiers]] tables, nearest first: where blocks go that leave the GPU's memory"
    )

    def __post_init__(self) -> None:
        """A policy's class, which only Python can give, becomes its name: files, hashes and other processes have
        names."""
        if not isinstance(self.policy, str):
            from sim.kvcache.policies import name_of

            object.__setattr__(self, "policy", name_of(self.policy))


@dataclass(frozen=True)
class ClusterConfig:
    replicas: int = _f(1, "engine replicas behind the router")
    router: str = _f(
        "round-robin",
        "round-robin, random, least-loaded (tokens in the front end, waiting and running) or session-affinity (a"
        " session stays where its first request went: the least loaded)",
    )


@dataclass(frozen=True)
class SloClass:
    ttft_s: float | None = _f(None, "limit on time to first token, seconds")
    tpot_s: float | None = _f(None, "limit on time per output token, seconds")
    e2e_s: float | None = _f(None, "limit on end-to-end latency, seconds")
    attainment: float | None = _f(
        None, "share of these requests that must meet their limits; default: [slo] attainment"
    )


@dataclass(frozen=True)
class SloConfig:
    ttft_s: float | None = _f(None, "limit on time to first token, seconds; unset: no limit")
    tpot_s: float | None = _f(None, "limit on time per output token, seconds; unset: no limit")
    e2e_s: float | None = _f(None, "limit on end-to-end latency, seconds; unset: no limit")
    attainment: float | None = _f(None, "share of arrivals that must meet their limits, 0 to 1; unset: no verdict")
    attained_by: str = _f(
        "classes", "who must reach that share: every one of the workload's classes, or all requests pooled"
    )
    classes: dict[str, SloClass] = _f({}, "limits per SLO class, named by a workload class's slo_class")


@dataclass(frozen=True)
class CostConfig:
    gpu_hour_usd: float | None = _f(None, "price of one GPU for one hour; unset: GPU-hours only")


@dataclass(frozen=True)
class Scenario:
    workload: WorkloadConfig
    seed: int = _f(0, "every random stream is spawned from it")
    name: str = _f("", "a label for reports")
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    slo: SloConfig = field(default_factory=SloConfig)
    cost: CostConfig = field(default_factory=CostConfig)


@dataclass(frozen=True)
class TierParams:
    """One cache tier of a replica, in blocks and bytes."""

    name: str
    blocks: int
    bandwidth_bytes_s: float
    latency_s: float = 0.0
    block_bytes: int = 1  #: over all GPUs of the replica
    write: str = "on-evict"
    policy: str = "lru"
    prefetch: bool = False


@dataclass(frozen=True)
class EngineParams:
    """One replica's engine with every default resolved: what the simulation itself reads."""

    kv_blocks: int
    block_size: int = 16
    max_model_len: int = 131072
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    scheduler_policy: str = "fcfs"
    watermark: float = 0.0
    reserve_full_isl: bool = True
    max_loras: int = 0
    async_scheduling: bool = False
    # asynchronous: an arrival is seen a step later too; False: times count scheduler calls, as in recorded cases
    calls_ahead: bool = True
    preemption_victim: str = "fcfs"
    caching: bool = True
    policy: str = "lru"
    policy_params: dict[str, Any] = field(default_factory=dict)
    tiers: tuple[TierParams, ...] = ()
    step_overhead_s: float = 0.0
    frontend_s: float = 0.0
    semantics: str = "vllm"
    # SGLang only; block_size is its page, max_num_seqs its max_running_requests
    schedule_policy: str = "fcfs"
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    schedule_conservativeness: float = 1.0
    priority_scheduling: bool = False
    retraction_policy: str = "length"
    init_new_token_ratio: float = 0.7
    min_new_token_ratio_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    retract_decode_steps: int = 20
    clip_max_new_tokens: int = 4096

    def kv_holds(self, tokens: int) -> bool:
        """Whether a replica can serve a request of this many tokens, prompt and output, with nothing else on it.

        vLLM never computes the last token's KV; SGLang admits only what leaves a page free beside all of it.
        """
        if self.semantics == "sglang":
            return tokens + self.block_size < self.kv_blocks * self.block_size
        return -(-(tokens - 1) // self.block_size) <= self.kv_blocks
