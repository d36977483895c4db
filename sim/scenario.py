"""The scenario: one tree of frozen dataclasses, one section of the TOML file each.

The one idea: a key is one field, with its default, help, range or choices and the engine that has it (`key`); command
line, checks, dashboard and docs/scenario.md follow from it. `kvcast.config` reads TOML into these classes; `sim` takes
them as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from calibrate.kv_groups import KvGroup, token_count
from calibrate.layout import ALL_TO_ALL, COLLECTIVES, NODE_GPUS, Layout
from calibrate.link import LINKS
from sim.fleet.router import meanings, name_of
from sim.sections.autoscale import NEVER_SCALES as NEVER_SCALES
from sim.sections.autoscale import SCHEDULE as SCHEDULE
from sim.sections.autoscale import AutoscaleConfig as AutoscaleConfig
from sim.sections.disaggregation import AFTER_PREFILL as AFTER_PREFILL
from sim.sections.disaggregation import AT_ARRIVAL as AT_ARRIVAL
from sim.sections.disaggregation import DisaggregationConfig as DisaggregationConfig
from sim.sections.lora import Adapters, LoraConfig
from sim.sections.pool import PoolConfig as PoolConfig
from sim.sections.shock import BURST as BURST
from sim.sections.shock import CACHE_LOST as CACHE_LOST
from sim.sections.shock import LONG_PROMPTS as LONG_PROMPTS
from sim.sections.shock import REPLICA_DOWN as REPLICA_DOWN
from sim.sections.shock import ROLLING as ROLLING
from sim.sections.shock import SHOCKS as SHOCKS
from sim.sections.shock import SLOW as SLOW
from sim.sections.shock import SPOT as SPOT
from sim.sections.shock import Shock as Shock
from workloads.config import WorkloadConfig
from workloads.limits import (
    BELOW_1,
    COUNT,
    FACTOR,
    FROM_SECOND_0,
    GB_PER_S_OR_NONE,
    MAX_BLOCK_SIZE,
    MAX_COUNT,
    MAX_KV_BLOCKS,
    MAX_REPLICAS,
    MAX_SEED,
    MAX_STAGES,
    MAX_US,
    MAX_WORKERS,
    MS,
    RATE,
    SECONDS,
    SHARE,
    TOKENS,
    TOKENS_OR_DENSE,
    TOKENS_OR_NONE,
    Limit,
    above_0,
    from_0,
    from_1,
    key,
)

DTYPES = ("bf16", "fp16", "fp8", "fp8_block", "int8", "int4", "mxfp4", "nvfp4", "fp32")
MAX_DRAFT = 64  #: tokens of a draft
KV_DTYPES = ("bf16", "fp16", "fp8", "fp32")


@dataclass(frozen=True)
class RunConfig:
    warmup_s: float | None = key(
        None,
        "arrivals before this time are simulated but not counted; default: 0 for a trace, for a mix until its load is"
        " there (docs/steady.md); 0: judged from an empty fleet on",
        FROM_SECOND_0,
    )
    duration_s: float | None = key(
        None,
        "arrivals stop here, and with them the measurement window, seconds; default: for a trace all arrivals, for a"
        " mix long enough after the warm-up",
        SECONDS,
    )
    drain: bool = key(True, "serve what has arrived by the end of the window before stopping")
    horizon_s: float | None = key(None, "stop the clock here whatever is unfinished; default: none", SECONDS)
    explain_routing: bool = key(
        False,
        "of a router that looks for prefixes, note for each request the match and the queue on its replica and on the"
        " best other one",
    )


@dataclass(frozen=True)
class ModelConfig:
    name: str = key("llama-3.1-8b", "a bundled model (docs/models.md), or hf:ORG/NAME of a published checkpoint of one")
    config: str | None = key(None, "path of a Hugging Face config.json, instead of name")
    dtype: str = key(
        "bf16",
        "weights and activations: bf16 or fp16 (parts that a checkpoint has quantized stay so), or what all weights are"
        " quantized to: fp8, fp8_block, int8, int4, mxfp4 (experts) or nvfp4",
        choices=DTYPES,
    )
    kv_dtype: str | None = key(
        None,
        "KV cache type: bf16, fp16 or fp8; default: the checkpoint's, else as dtype, bf16 for quantized weights",
        choices=KV_DTYPES,
    )


@dataclass(frozen=True)
class HardwareConfig:
    profile: str = key(
        "h200-llama-3.1-8b-aic",
        "a bundled profile, a profile file, a folder of operator rows or tables, atlas:GPU, or roofline:GPU",
    )
    tensor_parallel: int = key(
        1,
        "GPUs that split every layer. A replica has tensor_parallel x attention_dp x pipeline_parallel GPUs (vLLM:"
        " --tensor-parallel-size; SGLang's --tp-size is tensor_parallel x attention_dp)",
        from_1(NODE_GPUS),
    )
    attention_dp: int = key(
        1,
        "data-parallel ranks of attention inside one engine, each with its own scheduler and KV, in lock-step; experts"
        " are spread over the tensor_parallel x attention_dp GPUs, at most 8 (vLLM: --data-parallel-size of a mixture"
        " of experts; SGLang: --dp-size with --enable-dp-attention)",
        from_1(NODE_GPUS),
    )
    expert_parallel: bool = key(
        False,
        "whole experts on each of the tensor_parallel x attention_dp GPUs instead of a slice of every expert (vLLM:"
        " --enable-expert-parallel)",
    )
    all_to_all: str = key(
        COLLECTIVES,
        "how tokens reach the experts of other attention_dp ranks: allgather_reducescatter (the engines' own default)"
        " or DeepEP's kernels, which need expert_parallel (vLLM: --all2all-backend)",
        choices=ALL_TO_ALL,
    )
    pipeline_parallel: int = key(
        1,
        "stages that the layers are dealt out to; as many batches are in flight (vLLM: --pipeline-parallel-size;"
        " docs/profiles.md says what is not modelled)",
        from_1(MAX_STAGES),
    )
    gpu: str | None = key(
        None,
        "a GPU by name (h200), instead of profile: its bundled profile for the model, precision and width, else its"
        " atlas, else its roofline",
    )
    link: str | None = key(
        None,
        "what joins the GPUs of a replica, for atlas:GPU and roofline:GPU: nvlink, pcie5, pcie4, pcie3, or none (their"
        " exchanges take no time); default: the GPU's own",
        choices=LINKS,
    )
    weights_gib: float | None = key(
        None, "weights on each GPU, GiB; default: from the model's shapes and precision", above_0(1e6)
    )
    overhead_gib: float | None = key(
        None,
        "what an engine holds beside weights and KV on each GPU (activations, NCCL, runtime), GiB; default: from the"
        " model's shapes and the step's tokens",
        from_0(1e6),
    )

    dense_factor: float = key(
        1.0,
        "how many times the profile's time everything of a step but attention takes on a server of one's own (kvcast"
        " fit-server; of this GPU, model and engine alone)",
        FACTOR,
    )
    attention_factor: float = key(1.0, "the same of attention", FACTOR)

    @property
    def layout(self) -> Layout:
        """How a replica spreads the model over its GPUs."""
        return Layout(
            self.tensor_parallel, self.pipeline_parallel, self.attention_dp, self.expert_parallel, self.all_to_all
        )

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.layout.gpus


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Keys of [engine] that need no resolving: the file's EngineConfig and the run's EngineParams have them alike."""

    semantics: str = key(
        "vllm",
        "whose scheduler and cache: vllm, sglang, or trtllm (unverified: no recorded case of it)",
        choices=("vllm", "sglang", "trtllm"),
    )
    block_size: int = key(
        16,
        "tokens per KV block; SGLang's page (its own default is 1), TensorRT-LLM's tokens_per_block (its own is 32)",
        from_1(MAX_BLOCK_SIZE),
    )
    long_prefill_token_threshold: int = key(
        0, "longest prefill chunk when several requests are present; 0: no limit", TOKENS_OR_NONE, engine="vllm"
    )
    long_prefill_token_threshold_adaptive: bool = key(
        False,
        "raise that limit to a fair share of the step's tokens: its budget by the requests running and waiting",
        engine="vllm",
    )
    max_num_active_seqs: int | None = key(
        None, "sequences admitted to run at once, at most max_num_seqs, which is the default", COUNT, engine="vllm"
    )
    prefill_schedule_interval: int = key(
        1,
        "while anybody decodes, prompts wait until so many steps have passed since one that computed some, unless that"
        " left requests waiting (a replica is one data-parallel rank: vLLM then counts by itself)",
        from_1(MAX_COUNT),
        engine="vllm",
    )
    max_num_queued_reqs: int | None = key(
        None, "requests waiting and running on a replica from which on it refuses more (HTTP 503)", COUNT, engine="vllm"
    )
    max_num_queued_tokens: int | None = key(
        None,
        "prompt tokens of requests without a first token on a replica from which on it refuses more (HTTP 503)",
        TOKENS,
        engine="vllm",
    )
    scheduler_policy: str = key(
        "fcfs",
        "fcfs, priority (lower value first), or an experiment that vLLM has no flag for: lpm (of the first 128 waiting"
        " the longest cached prefix) or vtc (the least served tenant first, docs/tenants.md)",
        choices=("fcfs", "priority", "lpm", "vtc"),
        engine="vllm",
    )
    tenant_weights: dict[str, float] = key(
        {},
        "scheduler_policy vtc: shares of tenants, or of each tenant of a class, by name; others have 1",
        engine="vllm",
    )
    watermark: float = key(0.0, "share of blocks kept free at admission", BELOW_1, engine="vllm")
    reserve_full_isl: bool = key(True, "admit a request only when its whole known sequence fits", engine="vllm")
    max_loras: int = key(0, "LoRA adapters running at once; 0: no limit", from_0(MAX_COUNT), engine="vllm")
    async_scheduling: bool = key(
        True,
        "decide each step while the one before it runs: arrivals and finished requests are seen a step later",
        engine="vllm",
    )
    preemption_victim: str = key(
        "fcfs",
        "who is preempted when memory runs out: fcfs (the last admitted, by priority the least urgent: vLLM's own) or"
        " lcf (fewest computed tokens)",
        choices=("fcfs", "lcf"),
        engine="vllm",
    )
    prefix_cache_retention_interval: int = key(
        0,
        "of layers with a window or a state, what stays cached beside a prompt's end and where prompts part: every so"
        " many tokens what the next one needs; 0: nothing more; -1: everything (vLLM's null)",
        TOKENS_OR_DENSE,
        engine="vllm",
    )
    disable_hybrid_kv_cache_manager: bool = key(
        False, "take layers with a window or chunk as full attention, as vLLM's option of that name", engine="vllm"
    )
    max_prefill_tokens: int = key(16384, "prompt tokens of one prefill batch", TOKENS, engine="sglang")
    schedule_policy: str = key(
        "fcfs",
        "order of the waiting: fcfs, lpm, lof or dfs-weight",
        choices=("fcfs", "lpm", "lof", "dfs-weight"),
        engine="sglang",
    )
    schedule_conservativeness: float = key(
        1.0, "scales the memory reserved for tokens still to come", from_0(1e6), engine="sglang"
    )
    priority_scheduling: bool = key(False, "larger priority first, with fcfs or lof", engine="sglang")
    overlap_schedule: bool = key(
        True,
        "decide each step while the one before it runs: outputs, finished requests and arrivals are seen a step later",
        engine="sglang",
    )
    mixed_chunk: bool = key(False, "decodes ride along in prefill steps, one token each", engine="sglang")
    scheduler_recv_interval: int = key(
        1,
        "decode steps after which new requests are looked for; a prefill counts as 1,000, an idle engine always looks",
        from_1(MAX_COUNT),
        engine="sglang",
    )
    retraction_policy: str = key(
        "length",
        "who loses its memory first: length (fewest outputs) or priority (lowest)",
        choices=("length", "priority"),
        engine="sglang",
    )
    capacity_policy: str = key(
        "guaranteed-no-evict",
        "who gets KV memory: guaranteed-no-evict (whose tokens to the last all fit) or max-utilization (whose next step"
        " fits; the last ones are paused when it no longer does)",
        choices=("guaranteed-no-evict", "max-utilization"),
        engine="trtllm",
    )
    overlap_scheduler: bool = key(
        True,
        "decide each step while the one before it runs: arrivals, finished and computed requests are seen a step later",
        engine="trtllm",
    )
    chunked_context: bool = key(
        False, "cut prompts at the step's tokens; without it longer ones than these are refused", engine="trtllm"
    )
    batch_wait_timeout_iters: int = key(
        0,
        "steps that prompts wait beside decodes for more of them; 0: none (nor with a ratio of 0)",
        from_0(MAX_COUNT),
        engine="trtllm",
    )
    batch_wait_max_tokens_ratio: float = key(
        0.0, "share of max_num_batched_tokens at which they wait no longer", from_0(1.0), engine="trtllm"
    )
    frontend_us_per_prompt_token: float = key(
        0.0, "front end: for each token of a prompt (template, tokenizer), beside frontend_ms, microseconds", MS
    )
    frontend_us_per_output_token: float = key(
        0.0, "front end: its servers' time for each output token of any request (detokenizer, stream), microseconds", MS
    )
    frontend_requests_per_s: float | None = key(
        None,
        "front end: requests a second that each of its workers takes, first come first served; default: any number at"
        " once",
        RATE,
    )
    frontend_workers: int = key(1, "front end: workers of a replica's API server", from_1(MAX_WORKERS))


@dataclass(frozen=True, kw_only=True)
class EngineConfig(SchedulerConfig):
    """The [engine] section: the scheduler's keys, and those whose default depends on the model and the GPU."""

    kv_blocks: int | None = key(
        None,
        "KV blocks per replica, or per attention_dp rank of one; default: from the GPU's memory",
        from_1(MAX_KV_BLOCKS),
    )
    max_num_seqs: int | None = key(None, "sequences running at once; default: the engine's for this GPU", COUNT)
    max_num_batched_tokens: int | None = key(
        None, "token budget of a step; default: the engine's for this GPU", TOKENS, engine=("vllm", "trtllm")
    )
    max_model_len: int | None = key(
        None,
        "longest prompt + output; default: the model's context, with vllm lowered to what fits in the KV memory",
        TOKENS,
    )
    gpu_memory_utilization: float = key(
        0.92,
        "share of GPU memory the engine may use; of TensorRT-LLM KV's share of what weights and overhead leave, its"
        " free_gpu_memory_fraction",
        SHARE,
    )
    chunked_prefill_size: int | None = key(
        None,
        "prefill tokens of a step, 0: prompts are never cut; default: the engine's for this GPU",
        TOKENS_OR_NONE,
        engine="sglang",
    )
    host_step_ms: float | None = key(
        None,
        "host time of every step, ms; default: by engine and scheduling mode, 0 with a profile whose own times hold it",
        MS,
    )
    host_sequence_us: float | None = key(
        None, "host time of every sequence of a step, us; default: as host_step_ms", from_0(MAX_US)
    )
    launch_layer_us: float | None = key(
        None,
        "least time of a layer in a step with a prefill chunk, whose kernels are launched one by one, us; default: as"
        " host_step_ms",
        from_0(MAX_US),
    )
    step_overhead_ms: float = key(0.0, "added to every step, on top of host time and the profile's own overhead", MS)
    frontend_ms: float = key(0.0, "HTTP front end and tokenizer, added before the request reaches the engine", MS)


@dataclass(frozen=True)
class SpeculativeConfig:
    """Speculative decoding (docs/speculative.md)."""

    method: str | None = key(
        None,
        "speculative decoding (vllm): ngram (drafts are free), eagle or mtp (a draft layer like the model's own) or"
        " draft (a smaller model); default: none",
        choices=("ngram", "eagle", "mtp", "draft"),
    )
    tokens: int | None = key(None, "tokens drafted for every decode step of a request", from_1(MAX_DRAFT))
    acceptance: tuple[float, ...] | float = key(
        (),
        "measured acceptance of each draft position, given that those before it were accepted: a list of `tokens`"
        " numbers, or one number for all; there is no default",
        from_0(1.0),
    )
    draft_model: str | None = key(None, "draft: a bundled model (docs/models.md)")
    draft_ms: float | None = key(
        None, "what drafting takes in each step, milliseconds, for whoever has measured it; default: as modelled", MS
    )

    def __post_init__(self) -> None:
        if isinstance(self.acceptance, list):
            object.__setattr__(self, "acceptance", tuple(self.acceptance))

    def resolved(self) -> Speculation | None:
        """With one acceptance for each position; None: no speculation."""
        if self.method is None or self.tokens is None:
            return None
        given = self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,) * self.tokens
        return Speculation(self.method, given)


@dataclass(frozen=True)
class Speculation:
    """What a scheduler reads of it."""

    method: str
    acceptance: tuple[float, ...]  #: of each position, given that those before it were accepted

    @property
    def tokens(self) -> int:
        return len(self.acceptance)

    @property
    def lookahead(self) -> int:
        """KV slots that a drafter writes beyond the tokens the model verifies (vLLM's num_lookahead_tokens)."""
        return 0 if self.method == "ngram" else self.tokens


@dataclass(frozen=True)
class TierConfig:
    name: str = key(help="a label, unique among the tiers")
    bandwidth_gb_per_s: float = key(
        help="what a load from it gets, GB/s (1e9 bytes) per replica, all its GPUs together; inf: no limit",
        limit=GB_PER_S_OR_NONE,
    )
    capacity_gib: float | None = key(None, "GiB of KV it holds per replica", above_0(1e9))
    capacity_blocks: int | None = key(
        None, "KV blocks it holds per replica, instead of capacity_gib", from_1(MAX_KV_BLOCKS)
    )
    latency_s: float = key(0.0, "seconds before a load's first byte; the link is busy meanwhile", FROM_SECOND_0)
    write: str = key(
        "on-evict",
        "on-evict (a block moves down when the tier above gives it away) or write-through (a copy is made when it"
        " enters the tier above)",
        choices=("on-evict", "write-through"),
    )
    policy: str = key(
        "lru",
        "what it gives away first: lru, fifo, lfu, mru, filo, slru or lruk; an on-evict tier sees a block once, so"
        " there they are two orders: oldest first, and latest first (mru, filo)",
        choices=("lru", "fifo", "lfu", "mru", "filo", "slru", "lruk"),
    )
    prefetch: bool = key(False, "load from it for the requests at the head of the queue, before they are admitted")
    shared: bool = key(
        False,
        "one store for all replicas: each finds what any has written; the capacity is then of the store, bandwidth and"
        " latency of each replica's link to it",
    )
    total_bandwidth_gb_per_s: float = key(
        math.inf,
        "of a shared one: what all replicas together load from it, GB/s, one load at a time; inf: no limit",
        GB_PER_S_OR_NONE,
    )


@dataclass(frozen=True)
class CacheConfig:
    enabled: bool = key(True, "prefix caching")
    policy: str = key(
        "lru",
        "eviction policy: lru (vLLM's own release order), another of docs/policies.md, or your own as module:Class",
    )
    policy_params: dict[str, Any] = key({}, "parameters of the policy, a table such as {k = 3}; see docs/policies.md")
    tiers: tuple[TierConfig, ...] = key(
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
    replicas: int = key(1, "engine replicas behind the router", from_1(MAX_REPLICAS))
    router: str = key(
        "round-robin",
        "; ".join(f"{name}: {what[0].lower()}{what[1:].rstrip('.')}" for name, what in meanings().items())
        + "; or your own as module:Class (docs/fleet.md)",
    )
    kv_event_delay_ms: float = key(
        0.0,
        "how late routers that ask caches (llm-d-precise, dynamo-kv) know what a replica has cached or evicted; 0: at"
        " once; longer than the run: as if all events were lost",
        from_0(MAX_US),
    )

    shed_over: int | None = key(
        None,
        "requests waiting per replica from which on the gateway refuses the least important priority of the workload;"
        " the next one from twice as many on, and so on",
        COUNT,
    )
    sessions_first: bool = key(
        False, "for shed_over: later turns of sessions are more important than all first turns, whatever their priority"
    )

    def __post_init__(self) -> None:
        """A router's class, which only Python can give, becomes its name."""
        if not isinstance(self.router, str):
            object.__setattr__(self, "router", name_of(self.router))


@dataclass(frozen=True)
class ClientConfig:
    timeout_s: float | None = key(
        None,
        "a client gives up on an answer that is not complete by then, seconds from its attempt; the engine lets go of"
        " it at the end of a step",
        SECONDS,
    )
    first_token_timeout_s: float | None = key(
        None, "the same of an answer whose first token has not come by then, seconds", SECONDS
    )
    retries: int = key(0, "times a client tries again after a refusal or a timeout", from_0(1000))
    backoff_s: float = key(
        0.5,
        "pause before it tries again, seconds: twice as long after every attempt, less a random part of up to a"
        " quarter",
        FROM_SECOND_0,
    )
    max_backoff_s: float = key(8.0, "longest such pause, seconds", FROM_SECOND_0)

    @property
    def gives_up(self) -> bool:
        """Whether any client ever does."""
        return self.timeout_s is not None or self.first_token_timeout_s is not None

    @property
    def acts(self) -> bool:
        """Whether clients do anything but wait."""
        return self.gives_up or self.retries > 0


@dataclass(frozen=True)
class SloClass:
    ttft_s: float | None = key(None, "limit on time to first token, seconds", SECONDS)
    tpot_s: float | None = key(None, "limit on time per output token, seconds", SECONDS)
    e2e_s: float | None = key(None, "limit on end-to-end latency, seconds", SECONDS)
    attainment: float | None = key(
        None, "share of these requests that must meet their limits; default: [slo] attainment", SHARE
    )


@dataclass(frozen=True)
class SloConfig:
    ttft_s: float | None = key(None, "limit on time to first token, seconds; unset: no limit", SECONDS)
    tpot_s: float | None = key(None, "limit on time per output token, seconds; unset: no limit", SECONDS)
    e2e_s: float | None = key(None, "limit on end-to-end latency, seconds; unset: no limit", SECONDS)
    attainment: float | None = key(
        None, "share of arrivals that must meet their limits, 0 to 1; unset: no verdict", SHARE
    )
    attained_by: str = key(
        "classes",
        "who must reach that share: every one of the workload's classes, or all requests pooled",
        choices=("classes", "pooled"),
    )
    classes: dict[str, SloClass] = key({}, "limits per SLO class, named by a workload class's slo_class")


@dataclass(frozen=True)
class CostConfig:
    gpu_hour_usd: float | None = key(
        None, "price of one GPU for one hour, of the scenario's own GPU; unset: GPU-hours only", from_0(1e6)
    )
    prices: dict[str, float] = key(
        {}, "the same by GPU, such as {h200 = 3.5, b200 = 5}: wins over gpu_hour_usd, and goes with hardware.gpu"
    )


@dataclass(frozen=True)
class PlanConfig:
    recover: bool = key(True, "kvcast plan asks a fleet to come back to its target after a burst, not only to hold it")
    burst_size: float = key(2.0, "times the load of that burst", Limit(1.01, 1000, "1.01 to 1,000"))
    burst_s: float = key(600.0, "how long it lasts", SECONDS)
    recover_within_s: float = key(1800.0, "the time in which it must be back, seconds after the burst", SECONDS)
    routers: tuple[str, ...] = key(
        ("least-loaded", "session-affinity", "session-hash", "llm-d-approx", "llm-d-precise"),
        "what kvcast plan tries in place of cluster.router, with the fleet it found and with fewer GPUs; []: none",
    )
    splits: bool = key(
        False,
        "kvcast plan tries the same replicas split into prefill and decode, in eighths ([disaggregation] has the link)",
    )
    pools: bool = key(
        False,
        "kvcast plan looks for the cheapest mix of the [[pool]] tables, at most so many replicas of each as they say"
        " (docs/mixed-fleets.md)",
    )


@dataclass(frozen=True)
class Scenario:
    workload: WorkloadConfig
    seed: int = key(0, "every random stream is spawned from it", from_0(MAX_SEED))
    name: str = key("", "a label for reports")
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    disaggregation: DisaggregationConfig = field(default_factory=DisaggregationConfig)
    autoscale: AutoscaleConfig = field(default_factory=AutoscaleConfig)
    client: ClientConfig = field(default_factory=ClientConfig)
    slo: SloConfig = field(default_factory=SloConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    pool: tuple[PoolConfig, ...] = key(
        (), "[[pool]] tables: replicas that are not alike behind one router (docs/mixed-fleets.md)"
    )
    shock: tuple[Shock, ...] = key((), "[[shock]] tables: what happens to the fleet meanwhile (docs/resilience.md)")

    @property
    def gpus(self) -> int:
        """GPUs of the fleet."""
        if self.pool:
            return sum(pool.replicas * gpus for pool, gpus in zip(self.pool, self.gpus_of_pools, strict=True))
        pools, hardware = self.disaggregation, self.hardware
        width = pools.prefill_tensor_parallel or hardware.tensor_parallel
        prefill_gpus = hardware.gpus // hardware.tensor_parallel * width
        return hardware.gpus * (self.cluster.replicas - pools.prefill_replicas) + prefill_gpus * pools.prefill_replicas

    @property
    def replicas(self) -> int:
        """Of the fleet, all pools together."""
        return sum(pool.replicas for pool in self.pool) or self.cluster.replicas

    @property
    def gpus_of_pools(self) -> list[int]:
        """GPUs of a replica of each [[pool]]."""
        return [replace(self.hardware, **pool.hardware).gpus for pool in self.pool]

    @property
    def gpus_per_replica(self) -> float:
        """GPUs of a replica; in pools of different widths their mean."""
        whole, rest = divmod(self.gpus, self.replicas)
        return whole if not rest else self.gpus / self.replicas


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
    shared: bool = False  #: one store for all replicas
    total_bytes_s: float = math.inf  #: of its loads together


@dataclass(frozen=True, kw_only=True)
class EngineParams(SchedulerConfig):
    """One replica's engine with every default resolved: what the simulation itself reads."""

    kv_blocks: int  #: of one rank
    ranks: int = 1  #: attention data-parallel ranks: each has a scheduler with all that is said here
    max_model_len: int = 131072
    max_num_seqs: int = 256  #: SGLang's max_running_requests
    max_num_batched_tokens: int = 8192
    chunked_prefill_size: int = 8192
    kv_groups: tuple[KvGroup, ...] = ()  #: (): one group, whose layers keep everything
    caching: bool = True
    policy: str = "lru"
    policy_params: dict[str, Any] = field(default_factory=dict)
    tiers: tuple[TierParams, ...] = ()
    speculative: Speculation | None = None
    adapters: Adapters | None = None
    step_overhead_s: float = 0.0
    frontend_s: float = 0.0
    # asynchronous: an arrival is seen a step later too; False: times count scheduler calls, as in recorded cases
    calls_ahead: bool = True
    # SGLang's environment variables
    init_new_token_ratio: float = 0.7
    min_new_token_ratio_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    retract_decode_steps: int = 20
    clip_max_new_tokens: int = 4096

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_groups", tuple(KvGroup(*group) for group in self.kv_groups))
        if isinstance(self.speculative, tuple):  # as files have it
            object.__setattr__(self, "speculative", Speculation(*self.speculative))
        if isinstance(self.adapters, tuple):
            object.__setattr__(self, "adapters", Adapters(*self.adapters))

    @property
    def shares_tiers(self) -> bool:
        """Whether replicas have a cache tier together."""
        return any(tier.shared for tier in self.tiers)

    @property
    def hit_block(self) -> int:
        """Tokens that a hit is a multiple of."""
        return math.lcm(*(group.block_size for group in self.kv_groups)) if self.kv_groups else self.block_size

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV blocks hold, as if every layer kept them all."""
        return token_count(self.kv_groups, self.kv_blocks) if self.kv_groups else self.kv_blocks * self.block_size
