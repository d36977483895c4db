"""KV tokens of public start-up logs against the arithmetic of calibrate.memory.

The one idea: the size of the cache follows from the model's shapes and the engine's settings, part by part, with no
number fitted to a log. The set passes when dense models in 16 bits are within 3 % and quantised models and mixtures of
experts within 10 %, rows with a stated reason aside; those are printed with it.

    kvcast validate kv-capacity --data DIR
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from calibrate.memory import kv_capacity
from calibrate.model_spec import ModelSpec
from calibrate.models import resolve_model
from calibrate.profile import DeviceProfile
from calibrate.quantization import of_checkpoint
from kvcast.validation import Outcome, required

DENSE, OTHERS = 0.03, 0.10
QWEN2_HALF_B = ModelSpec("qwen2-0.5b", 24, 896, 14, 2, 64, 4864, 151_936, 32_768, tied_embeddings=True, qkv_bias=True)
NAMES = {
    "CodeLlama-34b": "codellama-34b",
    "Llama-2-7b": "llama-2-7b",
    "Llama-3.1-70B": "llama-3.1-70b",
    "Llama-3.1-8B": "llama-3.1-8b",
    "Mistral-Nemo": "mistral-nemo-12b",
    "Mixtral-8x7B": "mixtral-8x7b",
    "Phi-4": "phi-4",
    "Qwen2.5-7B": "qwen2.5-7b",
    "Qwen2.5-VL-7B": "qwen2.5-7b",
    "Qwen3-235B-A22B": "hf:Qwen/Qwen3-235B-A22B-FP8",
    "Qwen3-32B": "qwen3-32b",
    "Scout-17B-16E": "hf:RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
}
DIFFERENT = {
    ("Llama-3.1-8B", "A10 24GB"): "vLLM V0 with chunked prefill measured no sampling: 0.22 GiB of activations",
    ("Llama-3.1-8B", "RTX 3090"): "vLLM V0 with 29,000 tokens: the pass is right, runtime 0.36 GiB instead of 0.25",
    ("Phi-4", "A100/H100-80GB"): "vLLM V0 on 15 % of the card: pass and sampling at once, where V1 frees the one",
    ("Qwen2-0.5B", "24GB card"): "another model inside: 0.69 GiB of weights, a 0.5B Qwen2 has 0.92",
    ("Qwen3-32B", "H100-80GB"): "its gpu_memory_utilization is assumed",
}
"""Rows outside the tolerances, and why: engines before vLLM V1, or a configuration that is not known."""


def run(data_dir: Path, **_: object) -> Outcome:
    """Compares every log of the table."""
    path = required(required(data_dir / "measured") / "kv_capacity" / "kv_capacity.csv")
    with path.open(newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    lines, figures, missed, errors = [], {}, [], []
    for row in rows:
        error, limit = ours(row), DENSE if row["dtype"] == "bf16/fp16" else OTHERS
        why = DIFFERENT.get((row["model"], row["gpu"]), "")
        name = f"{row['model']} on {row['gpu']} TP{row['tp']}, {row['engine']}"
        errors.append(abs(error))
        over = abs(error) > limit
        missed += [name] if over and not why else []
        lines.append(f"{name}: {error:+.1%} of {int(row['kv_tokens']):,} tokens{_over(over, limit, why)}")
        figures[f"{len(lines)} {name}"] = {"error": error, "limit": limit, "why": why if over else ""}
    set_apart = sum(1 for one in figures.values() if one["why"])
    lines.append(
        f"{len(rows)} logs, median {median(errors):.1%}; {set_apart} beyond with a stated reason, {len(missed)} without"
    )
    return Outcome("kv-capacity", not missed, lines, figures)


def _over(over: bool, limit: float, why: str) -> str:
    return f"; beyond {limit:.0%}{': ' + why if why else ''}" if over else ""


def ours(row: dict[str, Any]) -> float:
    """Our tokens over the log's, minus 1: from the model's shapes and the engine's settings alone."""
    model = resolve_model(NAMES[row["model"]]) if row["model"] in NAMES else QWEN2_HALF_B
    if row["dtype"] == "4-bit":
        config = {"quant_method": "gptq", "bits": 4, "group_size": 128}
        if "bnb" in row["note"]:
            config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
        model = replace(model, quantization=of_checkpoint(config, model.layers, "row"))
    dtype, tp = ("fp8" if row["dtype"] == "8-bit" else "bf16"), int(row["tp"])
    device = {"name": row["gpu"], "memory_gib": float(row["gpu_total_GiB"])}
    profile = DeviceProfile("log", "roofline", "a log", device, None, dtype, "bf16", tp, {}, {})
    utilization, tokens = float(row["gpu_memory_utilization"]), int(row["max_num_batched_tokens"])
    found = kv_capacity(profile, model, dtype, "bf16", tp, utilization, tokens, 16)
    return found.tokens / int(row["kv_tokens"]) - 1
