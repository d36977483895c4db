"""The command that starts one replica of a plan, with vLLM, SGLang or TensorRT-LLM.

>>> launch_of(scenario)["vllm"]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from calibrate.layout import COLLECTIVES, Layout
from calibrate.models import PREFIX, published_of
from kvcast import api
from kvcast.planner.flags import DEEPEP_MODES, SGLANG, TRTLLM, VLLM
from kvcast.planner.trtllm_options import options_of
from kvcast.scenario.fitting import model_of
from sim.engines import engine_of
from sim.scenario import Scenario, TierConfig
from sim.sglang.node import POLICIES
from sim.vllm.waiting import EXPERIMENTS
from workloads.errors import InputError

HUGGING_FACE = {
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct",
    "llama-2-7b": "meta-llama/Llama-2-7b-chat-hf",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-coder-30b-a3b": "Qwen/Qwen3-Coder-30B-A3B-Instruct",
}
"""Bundled model -> a repository that has these shapes."""


def launch_of(scenario: Scenario) -> dict[str, Any] | None:
    """The command that starts one replica of a resolved plan: {"vllm", "sglang", "trtllm": argv or None, "words",
    "notes"}. None when there is no plan, or no flags of its engine are known."""
    try:
        resolved = api.resolve(scenario)
    except InputError:
        return None
    given, n = resolved.scenario, scenario.cluster.replicas
    model = given.model.config or repository_of(given.model.name)
    write = WRITERS.get(given.engine.semantics)
    if write is None:
        return None
    argv, notes = write(given, scenario, model)
    if resolved.lowered:
        notes.append(
            f"--max-model-len {given.engine.max_model_len} is what fits in the KV memory: with the model's context of"
            f" {resolved.model.max_context} {engine_of(given.engine).title} does not start"
        )
    gpus = given.hardware.gpus
    each = f" of {gpus} GPUs" if gpus > 1 else ""
    words = f"{n} of these{each} behind a {given.cluster.router} router" if n > 1 else f"one replica{each}"
    if given.disaggregation.on:
        prefills = given.disaggregation.prefill_replicas
        words = f"{prefills} of these{each} to prefill and {n - prefills} to decode, behind a proxy that sends to both"
    commands = {engine: argv if engine == given.engine.semantics else None for engine in WRITERS}
    return {**commands, "words": words, "notes": notes}


def repository_of(name: str) -> str:
    """The repository that an engine loads a model from: the one that is named, or one that has its shapes unquantized
    where there is one."""
    if name.startswith(PREFIX):
        return name.removeprefix(PREFIX)
    return HUGGING_FACE.get(name) or (published_of(name) or [name])[0]


def _vllm(given: Scenario, asked: Scenario, model: str) -> tuple[list[str], list[str]]:
    e = given.engine
    argv = [
        "vllm",
        "serve",
        model,
        *_types(given, "fp8"),
        "--tensor-parallel-size",
        str(given.hardware.tensor_parallel),
        *_vllm_layout(given.hardware.layout),
    ]
    argv += [
        "--max-model-len",
        str(e.max_model_len),
        "--max-num-seqs",
        str(e.max_num_seqs),
        "--max-num-batched-tokens",
        str(e.max_num_batched_tokens),
    ]
    argv += ["--block-size", str(e.block_size), "--gpu-memory-utilization", f"{e.gpu_memory_utilization:g}"]
    if asked.engine.kv_blocks is not None:
        argv += ["--num-gpu-blocks-override", str(e.kv_blocks)]
    for flag, value, default in (
        ("--long-prefill-token-threshold", e.long_prefill_token_threshold, 0),
        ("--scheduling-policy", "fcfs" if e.scheduler_policy in EXPERIMENTS else e.scheduler_policy, "fcfs"),
        ("--watermark", e.watermark, 0.0),
        ("--max-loras", e.max_loras, 0),
        ("--max-cpu-loras", given.lora.max_cpu_loras, 0),
        ("--max-num-active-seqs", e.max_num_active_seqs, None),
        ("--prefill-schedule-interval", e.prefill_schedule_interval, 1),
        ("--max-num-queued-reqs", e.max_num_queued_reqs, None),
        ("--max-num-queued-tokens", e.max_num_queued_tokens, None),
    ):
        argv += [flag, str(value)] if value != default else []
    if e.disable_hybrid_kv_cache_manager:
        argv += ["--disable-hybrid-kv-cache-manager"]
    if e.prefix_cache_retention_interval:
        kept = e.prefix_cache_retention_interval
        argv += ["--prefix-cache-retention-interval", "None" if kept < 0 else str(kept)]
    argv += ["--enable-lora"] if e.max_loras else []  # without it vLLM takes no adapter
    argv += ["--long-prefill-token-threshold-adaptive"] if e.long_prefill_token_threshold_adaptive else []
    argv += [] if e.reserve_full_isl else ["--no-scheduler-reserve-full-isl"]
    argv += ["--enable-prefix-caching" if given.cache.enabled else "--no-enable-prefix-caching"]
    notes = []
    if given.cache.enabled and given.cache.policy != "lru":
        notes.append(f"vLLM has no flag for the eviction policy {given.cache.policy}: this command runs its own (lru)")
    flags, told = _offloading(given.cache.tiers)
    argv += flags
    notes += told
    argv += [] if e.async_scheduling else ["--no-async-scheduling"]
    if given.disaggregation.on:
        argv += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})]
        if given.disaggregation.prefill_max_num_batched_tokens:
            budget = given.disaggregation.prefill_max_num_batched_tokens
            notes.append(f"replicas that prefill: the same with --max-num-batched-tokens {budget}")
    if given.speculative.method is not None:
        config, note = _speculative_config(given)
        argv += ["--speculative-config", json.dumps(config)]
        notes += note
    if e.prefill_schedule_interval > 1:
        notes.append(
            "--prefill-schedule-interval is simulated by each replica's own steps, as vLLM counts them but for the"
            " data-parallel ranks of a mixture of experts, which count together"
        )
    if e.scheduler_policy in EXPERIMENTS:
        notes.append(
            f"vLLM has no flag for scheduler_policy = {e.scheduler_policy}, an experiment: this command runs its own"
            " way (fcfs)"
        )
    if e.preemption_victim != "fcfs":
        notes.append(
            f"vLLM has no flag for preemption_victim = {e.preemption_victim}: this command preempts its own way (fcfs)"
        )
    return argv, notes


def _offloading(tiers: Sequence[TierConfig]) -> tuple[list[str], list[str]]:
    """vLLM's flags for the tiers of a replica, and notes. A store that replicas share is nobody's flag."""
    flags, notes = [], []
    own = [tier for tier in tiers if not tier.shared]
    sizes = [tier.capacity_gib for tier in own if tier.capacity_gib is not None]
    if len(sizes) < len(own):
        notes.append("--kv-offloading-size is left out: it takes GiB, the cache tier's size is given in blocks")
    elif own:
        flags = ["--kv-offloading-backend", "native", "--kv-offloading-size", f"{sum(sizes):g}"]
        notes.append("kvcast's cache tier is a model of KV offloading; the size is for all GPUs of a replica together")
    for tier in tiers:
        if tier.shared:
            notes.append(f"the shared store {tier.name} is a service of its own: this command runs without it")
    return flags, notes


def _speculative_config(given: Scenario) -> tuple[dict[str, Any], list[str]]:
    """What vLLM's --speculative-config says, and notes."""
    method, notes = (
        given.speculative.method,
        ["no flag says what drafts are accepted: the simulated acceptance is input"],
    )
    config: dict[str, Any] = {"method": "draft_model" if method == "draft" else method}
    if method == "draft":
        config["model"] = repository_of(str(given.speculative.draft_model))
    if method == "eagle":
        config["model"] = "DRAFTER"
        notes.append("DRAFTER stands for an EAGLE checkpoint that was trained for the model")
    return {**config, "num_speculative_tokens": given.speculative.tokens}, notes


def _sglang(given: Scenario, asked: Scenario, model: str) -> tuple[list[str], list[str]]:
    e, layout = given.engine, given.hardware.layout
    ranks = layout.attention_dp  # SGLang divides what is for all of them
    argv = [
        "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        model,
        *_types(given, "fp8_e4m3"),
        "--tp-size",
        str(layout.expert_ranks),
        *_sglang_layout(layout),
    ]
    argv += [
        "--context-length",
        str(e.max_model_len),
        "--max-running-requests",
        str((e.max_num_seqs or 0) * ranks),
        "--max-total-tokens",
        str((e.kv_blocks or 0) * e.block_size),
    ]
    argv += [
        "--page-size",
        str(e.block_size),
        "--chunked-prefill-size",
        str(e.chunked_prefill_size * ranks if e.chunked_prefill_size else -1),
        "--max-prefill-tokens",
        str(e.max_prefill_tokens),
    ]
    argv += ["--schedule-policy", e.schedule_policy, "--schedule-conservativeness", f"{e.schedule_conservativeness:g}"]
    argv += ["--enable-priority-scheduling"] if e.priority_scheduling else []
    own = given.cache.policy in POLICIES
    argv += (
        ["--radix-eviction-policy", given.cache.policy if own else "lru"]
        if given.cache.enabled
        else ["--disable-radix-cache"]
    )
    argv += [] if e.overlap_schedule else ["--disable-overlap-schedule"]
    argv += ["--enable-mixed-chunk"] if e.mixed_chunk else []
    looks = e.scheduler_recv_interval
    argv += ["--scheduler-recv-interval", str(looks)] if looks > 1 else []
    notes = ["--max-total-tokens is the KV memory that was simulated; without it SGLang takes what fits"]
    if ranks > 1:
        notes.append(
            f"SGLang shares --max-running-requests and --chunked-prefill-size out to its {ranks} ranks; the simulated"
            f" engine's are of one"
        )
    if given.cache.enabled and not own:
        notes.append(f"SGLang has no eviction policy {given.cache.policy}: this command runs lru")
    if e.retraction_policy != "length":
        notes.append(
            f"no flag is written for retraction_policy = {e.retraction_policy}: this command retracts SGLang's own way"
            " (length)"
        )
    return argv, notes


def _vllm_layout(layout: Layout) -> list[str]:
    argv = ["--data-parallel-size", str(layout.attention_dp)] if layout.attention_dp > 1 else []
    argv += ["--pipeline-parallel-size", str(layout.pipeline_parallel)] if layout.pipeline_parallel > 1 else []
    argv += ["--enable-expert-parallel"] if layout.expert_parallel else []
    return argv + (["--all2all-backend", layout.all_to_all] if layout.all_to_all != COLLECTIVES else [])


def _sglang_layout(layout: Layout) -> list[str]:
    """Its --tp-size counts the GPUs of all attention_dp ranks."""
    argv = ["--dp-size", str(layout.attention_dp), "--enable-dp-attention"] if layout.attention_dp > 1 else []
    argv += ["--pp-size", str(layout.pipeline_parallel)] if layout.pipeline_parallel > 1 else []
    argv += ["--ep-size", str(layout.expert_ranks)] if layout.expert_parallel else []
    mode = DEEPEP_MODES.get(layout.all_to_all)
    return argv + (["--moe-a2a-backend", "deepep", "--deepep-mode", mode] if mode else [])


OPTIONS_FILE = "trtllm.json"


def _trtllm(given: Scenario, asked: Scenario, model: str) -> tuple[list[str], list[str]]:
    e, layout = given.engine, given.hardware.layout
    argv = ["trtllm-serve", model, "--backend", "pytorch", "--tp_size", str(layout.expert_ranks)]
    argv += ["--pp_size", str(layout.pipeline_parallel)] if layout.pipeline_parallel > 1 else []
    argv += ["--ep_size", str(layout.expert_ranks)] if layout.expert_parallel else []
    argv += ["--max_batch_size", str(e.max_num_seqs), "--max_num_tokens", str(e.max_num_batched_tokens)]
    argv += ["--max_seq_len", str(e.max_model_len), "--config", OPTIONS_FILE]
    notes = [
        f"{OPTIONS_FILE} (JSON, which YAML contains): {json.dumps(options_of(given))}",
        "TensorRT-LLM's rules are unverified: no recorded case of the engine checks them",
        "max_tokens is the KV memory that was simulated; without it TensorRT-LLM takes a share of what is free",
        "reuse of parts of a block is not simulated: enable_partial_reuse = false is the engine that was",
    ]
    if layout.attention_dp > 1 and layout.tensor_parallel > 1:
        notes.append(f"TensorRT-LLM has one GPU an attention rank: {layout.expert_ranks} of them, not those simulated")
    if given.model.dtype not in ("bf16", "fp16"):
        notes.append(f"weights in {given.model.dtype}: MODEL is a checkpoint that is quantized so")
    if given.cache.enabled and given.cache.policy != "lru":
        notes.append(
            f"TensorRT-LLM has no flag for the eviction policy {given.cache.policy}: this command runs its own"
        )
    return argv, notes


def _types(given: Scenario, kv_fp8: str) -> list[str]:
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    own = model_of(given).quantization is not None  # the checkpoint says itself what it is quantized to
    weights = ["--quantization", "fp8"] if given.model.dtype == "fp8" and not own else []
    if given.model.dtype in names:  # any other type is what the checkpoint is quantized to: an engine sees it
        weights = ["--dtype", names[given.model.dtype]]
    return weights + (["--kv-cache-dtype", kv_fp8] if given.model.kv_dtype == "fp8" else [])


WRITERS: dict[str, Callable[[Scenario, Scenario, str], tuple[list[str], list[str]]]] = {
    VLLM: _vllm,
    SGLANG: _sglang,
    TRTLLM: _trtllm,
}
"""The command line of a replica and its notes, by engine."""
