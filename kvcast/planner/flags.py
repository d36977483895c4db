"""Launch flags of vLLM (0.33), SGLang (0.5) and trtllm-serve (1.x): which scenario key each one is, which matter to
nothing here, which are not modelled.

The one idea: a flag is in one table or it is unknown; adding one is a line.

    >>> READ["vllm"]["--max-num-seqs"]("256")
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibrate.layout import ALL_TO_ALL, HIGH_THROUGHPUT, LOW_LATENCY

VLLM, SGLANG, TRTLLM = "vllm", "sglang", "trtllm"
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "bf16": "bf16"}
KV_DTYPES = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16"}

Reader = Callable[[str], list[str]]


def _key(key: str, convert: Callable[[str], Any] = str) -> Reader:
    return lambda value: [f"{key}={convert(value)}"]


def _size(value: str) -> int:
    """vLLM's numbers with a suffix: 16k is 16,000 and 16K is 16,384."""
    factors = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    return int(float(value[:-1]) * factors[value[-1]]) if value[-1:] in factors else int(value)


def _model(value: str) -> list[str]:
    """A repository's name as a bundled model's, and its precision where the name says it; another name, or a folder, as
    it is."""
    from calibrate.models import PREFIX, bundled_models, hugging_face_names

    if Path(value).exists():
        return [f"model.config={value}"]
    name = value.rstrip("/").split("/")[-1].lower().replace("_", "-").removeprefix("meta-")
    fp8 = ["model.dtype=fp8"] if re.search(r"-fp8(?=-|$)", name) else []  # a checkpoint that is quantized already
    name = re.sub(r"-(instruct|chat|hf|base|it|fp8|dynamic|v0\.\d|\d{4})(?=-|$)", "", name)
    if name not in bundled_models() and value.lower() in hugging_face_names():
        return [f"model.name={PREFIX}{value}"]  # which brings its precision
    return [f"model.name={name if name in bundled_models() else value}", *fp8]


def _dtype(value: str) -> list[str]:
    return [] if value == "auto" else [f"model.dtype={DTYPES.get(value, value)}"]


def _kv_dtype(value: str) -> list[str]:
    return [] if value == "auto" else [f"model.kv_dtype={KV_DTYPES.get(value, value)}"]


def _quantization(value: str) -> list[str]:
    if value.startswith("fp8"):
        return ["model.dtype=fp8"]
    raise ValueError(value)


def _chunked(value: str) -> list[str]:
    return [f"engine.chunked_prefill_size={max(int(value), 0)}"]


def _switch(key: str, on: str = "true", off: str = "false") -> Reader:
    return lambda value: [f"{key}={on if value.lower() == 'true' else off}"]


def _capacity(value: str) -> list[str]:
    policy = value.lower().replace("_", "-")
    if policy not in ("guaranteed-no-evict", "max-utilization"):
        raise ValueError(value)
    return [f"engine.capacity_policy={policy}"]


METHODS = {"ngram": "ngram", "eagle": "eagle", "eagle3": "eagle", "mtp": "mtp", "draft_model": "draft"}
"""vLLM's speculative methods that are simulated -> theirs here."""


def _speculative(value: str) -> list[str]:
    """vLLM's JSON. What was accepted is not in it: the scenario has to say."""
    given = json.loads(value)
    if not isinstance(given, dict):
        raise ValueError(value)
    named = str(given.get("method", "draft_model" if "model" in given else ""))
    method = METHODS.get("mtp" if named.endswith("_mtp") else named)
    if method is None or "num_speculative_tokens" not in given:
        raise ValueError(value)
    sets = [f"speculative.method={method}", f"speculative.tokens={int(given['num_speculative_tokens'])}"]
    if method == "draft":
        (model,) = (one for one in _model(str(given["model"])) if one.startswith("model.name="))
        sets.append(f"speculative.draft_model={model.partition('=')[2]}")
    return sets


def _none_of_it(value: str) -> list[str]:
    """A feature that is off."""
    if value.lower() not in ("false", "0", "1", "null"):
        raise ValueError(value)
    return []


TOKENS = "kv tokens"
"""Stands for engine.kv_blocks until the page is known."""
RANKS, DP_ATTENTION, A2A, DEEPEP = "data parallel", "dp attention", "a2a backend", "deepep mode"
"""Stand for the layout's keys until the model and all flags are known."""
DEEPEP_MODES = {HIGH_THROUGHPUT: "normal", LOW_LATENCY: "low_latency"}


def _all_to_all(value: str) -> list[str]:
    if value not in ALL_TO_ALL:
        raise ValueError(value)
    return [f"hardware.all_to_all={value}"]


def _experts(value: str) -> list[str]:
    """Of --ep-size, whether it is used: it must be all GPUs that share a layer."""
    return [f"{EP_SIZE}={int(value)}"] if int(value) > 1 else []


def _stages(value: str) -> list[str]:
    return [f"hardware.pipeline_parallel={int(value)}"] if int(value) > 1 else []


EP_SIZE = "ep size"
COMMON: dict[str, Reader] = {"--dtype": _dtype, "--kv-cache-dtype": _kv_dtype, "--quantization": _quantization}
READ: dict[str, dict[str, Reader]] = {
    VLLM: {
        **COMMON,
        "--model": _model,
        "-q": _quantization,
        "--tensor-parallel-size": _key("hardware.tensor_parallel", int),
        "-tp": _key("hardware.tensor_parallel", int),
        "--data-parallel-size": _key(RANKS, int),
        "-dp": _key(RANKS, int),
        "--pipeline-parallel-size": _key("hardware.pipeline_parallel", int),
        "-pp": _key("hardware.pipeline_parallel", int),
        "--enable-expert-parallel": _key("hardware.expert_parallel"),
        "-ep": _key("hardware.expert_parallel"),
        "--all2all-backend": _all_to_all,
        "--gpu-memory-utilization": _key("engine.gpu_memory_utilization", float),
        "--max-model-len": _key("engine.max_model_len", _size),
        "--max-num-seqs": _key("engine.max_num_seqs", int),
        "--max-num-batched-tokens": _key("engine.max_num_batched_tokens", _size),
        "--block-size": _key("engine.block_size", int),
        "--num-gpu-blocks-override": _key("engine.kv_blocks", int),
        "--long-prefill-token-threshold": _key("engine.long_prefill_token_threshold", int),
        "--long-prefill-token-threshold-adaptive": lambda _: ["engine.long_prefill_token_threshold_adaptive=true"],
        "--max-num-active-seqs": _key("engine.max_num_active_seqs", int),
        "--prefill-schedule-interval": _key("engine.prefill_schedule_interval", int),
        "--max-num-queued-reqs": _key("engine.max_num_queued_reqs", int),
        "--max-num-queued-tokens": _key("engine.max_num_queued_tokens", int),
        "--scheduling-policy": _key("engine.scheduler_policy"),
        "--watermark": _key("engine.watermark", float),
        "--max-loras": _key("engine.max_loras", int),
        "--enable-prefix-caching": _key("cache.enabled", lambda v: "true" if v == "true" else "false"),
        "--no-enable-prefix-caching": lambda _: ["cache.enabled=false"],
        "--scheduler-reserve-full-isl": lambda _: ["engine.reserve_full_isl=true"],
        "--no-scheduler-reserve-full-isl": lambda _: ["engine.reserve_full_isl=false"],
        "--disable-hybrid-kv-cache-manager": lambda _: ["engine.disable_hybrid_kv_cache_manager=true"],
        "--no-disable-hybrid-kv-cache-manager": lambda _: ["engine.disable_hybrid_kv_cache_manager=false"],
        "--prefix-cache-retention-interval": _key(
            "engine.prefix_cache_retention_interval", lambda v: -1 if v.lower() in ("none", "null", "") else int(v)
        ),
        "--speculative-config": _speculative,
        "--async-scheduling": lambda _: ["engine.async_scheduling=true"],
        "--no-async-scheduling": lambda _: ["engine.async_scheduling=false"],
    },
    SGLANG: {
        **COMMON,
        "--model-path": _model,
        "--model": _model,
        "--tensor-parallel-size": _key("hardware.tensor_parallel", int),
        "--tp-size": _key("hardware.tensor_parallel", int),
        "--tp": _key("hardware.tensor_parallel", int),
        "--data-parallel-size": _key(RANKS, int),
        "--dp-size": _key(RANKS, int),
        "--dp": _key(RANKS, int),
        "--enable-dp-attention": _key(DP_ATTENTION),
        "--pipeline-parallel-size": _key("hardware.pipeline_parallel", int),
        "--pp-size": _key("hardware.pipeline_parallel", int),
        "--expert-parallel-size": _experts,
        "--ep-size": _experts,
        "--ep": _experts,
        "--moe-a2a-backend": _key(A2A),
        "--deepep-mode": _key(DEEPEP),
        "--max-total-tokens": _key(TOKENS, int),
        "--context-length": _key("engine.max_model_len", int),
        "--max-running-requests": _key("engine.max_num_seqs", int),
        "--chunked-prefill-size": _chunked,
        "--max-prefill-tokens": _key("engine.max_prefill_tokens", int),
        "--page-size": _key("engine.block_size", int),
        "--schedule-policy": _key("engine.schedule_policy"),
        "--schedule-conservativeness": _key("engine.schedule_conservativeness", float),
        "--radix-eviction-policy": _key("cache.policy"),
        "--disable-radix-cache": lambda _: ["cache.enabled=false"],
        "--enable-priority-scheduling": lambda _: ["engine.priority_scheduling=true"],
        "--disable-overlap-schedule": lambda _: ["engine.overlap_schedule=false"],
        "--enable-mixed-chunk": lambda _: ["engine.mixed_chunk=true"],
    },
    TRTLLM: {
        "--model": _model,
        "--dtype": _dtype,
        "--tp-size": _key("hardware.tensor_parallel", int),
        "--tensor-parallel-size": _key("hardware.tensor_parallel", int),
        "--max-batch-size": _key("engine.max_num_seqs", int),
        "--max-num-tokens": _key("engine.max_num_batched_tokens", int),
        "--max-seq-len": _key("engine.max_model_len", int),
        "--kv-cache-dtype": _kv_dtype,
        "--enable-chunked-prefill": _switch("engine.chunked_context"),
        "--disable-overlap-scheduler": _switch("engine.overlap_scheduler", "false", "true"),
        "--batch-wait-timeout-iters": _key("engine.batch_wait_timeout_iters", int),
        "--batch-wait-max-tokens-ratio": _key("engine.batch_wait_max_tokens_ratio", float),
        "--scheduler-config.capacity-scheduler-policy": _capacity,
        "--kv-cache-config.tokens-per-block": _key("engine.block_size", int),
        "--kv-cache-config.enable-block-reuse": _switch("cache.enabled"),
        "--kv-cache-config.max-tokens": _key(TOKENS, int),
        "--kv-cache-config.dtype": _kv_dtype,
        "--kv-cache-config.enable-partial-reuse": _none_of_it,
        "--pp-size": _stages,
        "--pipeline-parallel-size": _stages,
        "--ep-size": _experts,
        "--enable-attention-dp": _key(DP_ATTENTION),
        "--max-beam-width": _none_of_it,
    },
}
"""Flag -> scenario keys of its value; a ValueError says that the value is not modelled."""

NO_EFFECT = frozenset(
    {
        "--host",
        "--port",
        "--api-key",
        "--served-model-name",
        "--trust-remote-code",
        "--download-dir",
        "--tokenizer",
        "--tokenizer-path",
        "--tokenizer-mode",
        "--revision",
        "--chat-template",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "--reasoning-parser",
        "--disable-log-requests",
        "--enable-log-requests",
        "--no-enable-log-requests",
        "--disable-log-stats",
        "--uvicorn-log-level",
        "--log-level",
        "--log-requests",
        "--load-format",
        "--generation-config",
        "--seed",
        "--random-seed",
        "--hf-token",
        "--enable-metrics",
        "--enable-chunked-prefill",
        "--allowed-origins",
        "--root-path",
        "--ssl-keyfile",
        "--ssl-certfile",
        "--max-log-len",
        "--watchdog-timeout",
        "--skip-server-warmup",
        "--model-tag",
        "--enable-cache-report",
        "--show-time-cost",
        "--device",
        "--gpu-memory-utilization-gb",
        "--backend",
        "--num-postprocess-workers",
        "--gpus-per-node",
        "--fail-fast-on-attention-window-too-large",
        "--print-iter-log",
    }
)
NOT_MODELLED = frozenset(
    {
        "--enforce-eager",
        "--speculative-model",
        "--num-speculative-tokens",
        "--speculative-algorithm",
        "--speculative-draft-model-path",
        "--speculative-num-steps",
        "--speculative-eagle-topk",
        "--speculative-num-draft-tokens",
        "--swap-space",
        "--cpu-offload-gb",
        "--kv-offloading-size",
        "--kv-offloading-backend",
        "--kv-transfer-config",
        "--compilation-config",
        "-O",
        "--max-num-partial-prefills",
        "--max-long-partial-prefills",
        "--disable-cuda-graph",
        "--cuda-graph-max-bs",
        "--attention-backend",
        "--no-enable-chunked-prefill",
        "--kv-cache-memory-bytes",
        "--mem-fraction-static",
        "--free-gpu-memory-fraction",
        "--kv-cache-free-gpu-memory-fraction",
        "--kv-cache-config.free-gpu-memory-fraction",
        "--kv-cache-config.host-cache-size",
        "--enable-torch-compile",
        "--disaggregation-mode",
        "--nnodes",
        "--enable-lora",
        "--lora-modules",
        "--enable-hierarchical-cache",
        "--hicache-ratio",
        "--hicache-size",
        "--decode-context-parallel-size",
        "-dcp",
        "--max-queued-requests",
        "--prefill-max-requests",
        "--enable-dual-batch-overlap",
        "--limit-mm-per-prompt",
        "--stream-interval",
    }
)
SWITCHES = frozenset(
    {
        "--long-prefill-token-threshold-adaptive",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--scheduler-reserve-full-isl",
        "--no-scheduler-reserve-full-isl",
        "--async-scheduling",
        "--no-async-scheduling",
        "--disable-radix-cache",
        "--enable-priority-scheduling",
        "--enable-expert-parallel",
        "-ep",
        "--enable-dp-attention",
        "--enable-chunked-prefill",
        "--disable-overlap-schedule",
        "--enable-mixed-chunk",
    }
)
"""Flags that take no value; one that does take a value gives true or false."""
NO_VALUE = SWITCHES | {
    "--enforce-eager",
    "--trust-remote-code",
    "--enable-auto-tool-choice",
    "--disable-log-requests",
    "--enable-log-requests",
    "--no-enable-log-requests",
    "--disable-log-stats",
    "--no-enable-chunked-prefill",
    "--enable-lora",
    "--enable-metrics",
    "--log-requests",
    "--disable-cuda-graph",
    "--enable-torch-compile",
    "--enable-hierarchical-cache",
    "--enable-dual-batch-overlap",
    "--skip-server-warmup",
    "--enable-cache-report",
    "--show-time-cost",
}
"""Known flags after which a word belongs to the command, not to the flag."""
SGLANG_OFF = {
    **{"--nnodes": "1", "--disaggregation-mode": "null", "--pp-size": "1", "--ep-size": "1"},
    **{"--moe-a2a-backend": "none", "--deepep-mode": "auto"},
}
"""What SGLang's log prints of these when they are not used."""
