"""Launch flags of vLLM (0.33), SGLang (0.5) and trtllm-serve (1.x): which scenario key each one is.

The one idea: a flag that is read is one line here; what an engine has beside these is without effect or not modelled
(kvcast.planner.flag_names).

    >>> READ["vllm"]["--max-num-seqs"]("256")
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibrate.layout import ALL_TO_ALL, HIGH_THROUGHPUT, LOW_LATENCY
from kvcast.planner.flag_names import SGLANG, TRTLLM, VLLM

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "bf16": "bf16"}
KV_DTYPES = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16"}

Reader = Callable[[str], list[str]]


def _key(key: str, convert: Callable[[str], Any] = str) -> Reader:
    return lambda value: [f"{key}={convert(value)}"]


def _size(value: str) -> int:
    """vLLM's numbers with a suffix: 16k is 16,000 and 16K is 16,384."""
    factors = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    return int(float(value[:-1]) * factors[value[-1]]) if value[-1:] in factors else int(value)


def _length(value: str) -> list[str]:
    """vLLM's longest request; auto (-1): what fits, as here."""
    return [] if value.lower() in ("auto", "-1") else [f"engine.max_model_len={_size(value)}"]


def _static(value: str) -> list[str]:
    """SGLang's share of a GPU's memory for weights and KV, beside which the rest is: no overhead within it."""
    return [f"engine.gpu_memory_utilization={float(value)}", "hardware.overhead_gib=0"]


KV_BYTES = "kv bytes"
"""Stands for engine.kv_blocks until the model is known."""


def _kv_bytes(value: str) -> list[str]:
    return [f"{KV_BYTES}={_size(value)}"]


def model_keys(value: str) -> list[str]:
    """A repository's name as a bundled model's, and its precision where the name says it; another name, or a folder, as
    it is."""
    from calibrate.models import PREFIX, bundled_models, hugging_face_names

    if not value.strip():
        raise ValueError(value)
    if Path(value).exists():
        return [f"model.config={value}"]
    name = value.rstrip("/").split("/")[-1].lower().replace("_", "-").removeprefix("meta-")
    dtype = [f"model.dtype={d}" for words, d in IN_NAMES if re.search(rf"-({words})(?=-|$)", name)][:1]
    name = re.sub(r"-(instruct|chat|hf|base|it|dynamic|quantized|awq|gptq|v0\.\d|\d{4})(?=-|$)", "", name)
    name = re.sub("|".join(rf"-({words})(?=-|$)" for words, _ in IN_NAMES), "", name)
    if name not in bundled_models() and value.lower() in hugging_face_names():
        return [f"model.name={PREFIX}{value}"]  # which brings its precision
    return [f"model.name={name if name in bundled_models() else value}", *dtype]


IN_NAMES = (
    ("fp8", "fp8"),
    ("nvfp4|fp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    (r"gptq-int8|int8|w8a8|quantized\.w8a8", "int8"),
    (r"awq|gptq-int4|int4|w4a16|quantized\.w4a16", "int4"),
)
"""Words in the names of checkpoints that are quantized already -> their weights."""


def _dtype(value: str) -> list[str]:
    return [] if value == "auto" else [f"model.dtype={DTYPES.get(value, value)}"]


def _kv_dtype(value: str) -> list[str]:
    return [] if value == "auto" else [f"model.kv_dtype={KV_DTYPES.get(value, value)}"]


def _quantization(value: str) -> list[str]:
    """Of the kinds whose weights are always the same; GPTQ, GGUF, bitsandbytes and others have several."""
    kind = value.lower().replace("-", "_")
    if kind.startswith("fp8"):
        return [f"model.dtype={'fp8_block' if 'block' in kind else 'fp8'}"]
    if kind not in QUANTIZED:
        raise ValueError(value)
    return [f"model.dtype={QUANTIZED[kind]}"]


QUANTIZED = {
    **dict.fromkeys(("fbgemm_fp8", "ptpc_fp8", "w8a8_fp8", "modelopt_fp8", "modelopt"), "fp8"),
    **dict.fromkeys(("awq", "awq_marlin", "moe_wna16"), "int4"),
    **dict.fromkeys(("w8a8_int8", "int8_per_channel"), "int8"),
    **dict.fromkeys(("modelopt_fp4", "nvfp4", "petit_nvfp4"), "nvfp4"),
    "mxfp4": "mxfp4",
}
"""Values of --quantization -> the weights' type."""


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
    if given.get("model") in ("[ngram]", "ngram"):  # as vLLM took it before 0.9
        given = {**given, "method": "ngram"}
    named = str(given.get("method", "draft_model" if "model" in given else ""))
    method = METHODS.get("mtp" if named.endswith("_mtp") else named)
    if method is None or "num_speculative_tokens" not in given:
        raise ValueError(value)
    sets = [f"speculative.method={method}", f"speculative.tokens={int(given['num_speculative_tokens'])}"]
    if method == "draft":
        (model,) = (one for one in model_keys(str(given["model"])) if one.startswith("model.name="))
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


def _attention_ranks(value: str) -> list[str]:
    """SGLang's own flag for what --dp-size with --enable-dp-attention is."""
    return [f"{RANKS}={int(value)}", f"{DP_ATTENTION}=true"] if int(value) > 1 else []


def _router(value: str) -> list[str]:
    """Of SGLang's own router, the policies that a scenario has too."""
    policy = value.replace("_", "-")
    if policy not in ("round-robin", "random"):
        raise ValueError(value)
    return [f"cluster.router={policy}"]


def _stages(value: str) -> list[str]:
    return [f"hardware.pipeline_parallel={int(value)}"] if int(value) > 1 else []


EP_SIZE = "ep size"
JSON_KEYS = {
    "--spec-method": "--speculative-config.method",
    "--spec-model": "--speculative-config.model",
    "--spec-tokens": "--speculative-config.num_speculative_tokens",
    "--speculative-model": "--speculative-config.model",
    "--num-speculative-tokens": "--speculative-config.num_speculative_tokens",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
}
"""vLLM's flags that are a key of another's JSON value, and short names of such flags."""
COMMON: dict[str, Reader] = {"--dtype": _dtype, "--kv-cache-dtype": _kv_dtype, "--quantization": _quantization}
READ: dict[str, dict[str, Reader]] = {
    VLLM: {
        **COMMON,
        "--model": model_keys,
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
        "--device-memory-utilization": _key("engine.gpu_memory_utilization", float),
        "--kv-cache-memory-bytes": _kv_bytes,
        "--max-model-len": _length,
        "--api-server-count": _key("engine.frontend_workers", int),
        "-asc": _key("engine.frontend_workers", int),
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
        "--max-cpu-loras": _key("lora.max_cpu_loras", int),
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
        "--model-path": model_keys,
        "--model": model_keys,
        "--tensor-parallel-size": _key("hardware.tensor_parallel", int),
        "--tp-size": _key("hardware.tensor_parallel", int),
        "--tp": _key("hardware.tensor_parallel", int),
        "--data-parallel-size": _key(RANKS, int),
        "--dp-size": _key(RANKS, int),
        "--dp": _key(RANKS, int),
        "--enable-dp-attention": _key(DP_ATTENTION),
        "--attn-dp-size": _attention_ranks,
        "--attention-data-parallel-size": _attention_ranks,
        "--mem-fraction-static": _static,
        "--router-policy": _router,
        "--retraction-policy": _key("engine.retraction_policy"),
        "--tokenizer-worker-num": _key("engine.frontend_workers", int),
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
        "--scheduler-recv-interval": _key("engine.scheduler_recv_interval", int),
    },
    TRTLLM: {
        "--model": model_keys,
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
        "--kv-cache-config.free-gpu-memory-fraction": _key("engine.gpu_memory_utilization", float),
        "--kv-cache-free-gpu-memory-fraction": _key("engine.gpu_memory_utilization", float),
        "--free-gpu-memory-fraction": _key("engine.gpu_memory_utilization", float),
        "--pp-size": _stages,
        "--pipeline-parallel-size": _stages,
        "--ep-size": _experts,
        "--enable-attention-dp": _key(DP_ATTENTION),
        "--max-beam-width": _none_of_it,
    },
}
"""Flag -> scenario keys of its value; a ValueError says that the value is not modelled."""

NOT_MODELLED = frozenset(
    {"--kv-cache-config.host-cache-size", "--attention-backend", "--speculative-config.decoding-type"}
)
"""Flags of TensorRT-LLM that change results and are not simulated; of vLLM and SGLang it is what is left."""
SGLANG_OFF = {
    **{"--nnodes": "1", "--disaggregation-mode": "null", "--pp-size": "1", "--ep-size": "1"},
    **{"--moe-a2a-backend": "none", "--deepep-mode": "auto", "--attn-dp-size": "1", "--retraction-policy": "length"},
    **{
        "--tokenizer-worker-num": "1",
        "--cpu-offload-gb": "0",
        "--hicache-size": "0",
        "--speculative-algorithm": "NONE",
    },
}
"""What SGLang's log prints of these when they are not used."""
