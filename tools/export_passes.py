"""Whole passes of models that are in no table, as the optional package aiconfigurator-core 0.12 (Apache-2.0) estimates
them: kvcast/validation/unmeasured_passes.csv, which `kvcast validate passes` compares.

    pip install 'aiconfigurator-core==0.12.*' && python tools/export_passes.py
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiconfigurator_core.sdk.engine import EngineHandle

OUT = Path(__file__).resolve().parent.parent / "kvcast" / "validation" / "unmeasured_passes.csv"
COLUMNS = ("model", "gpu", "backend", "tp", "quant", "phase", "batch", "new_tokens", "cached_prefix", "context", "ms")
COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
    "num_key_value_heads": 8,
}
MODELS = {
    "qwen2.5-72b": {
        **COMMON,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_attention_heads": 64,
        "num_hidden_layers": 80,
        "vocab_size": 152064,
    },
    "wide-9216": {
        **COMMON,
        "hidden_size": 9216,
        "intermediate_size": 24576,
        "num_attention_heads": 72,
        "num_hidden_layers": 60,
        "vocab_size": 128256,
        "head_dim": 128,
    },
}
"""One that many run and whose feed-forward is 29,568 wide; one that nobody has, 9,216 wide."""


def rows() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for name, config in MODELS.items():
            path = Path(folder, name)
            path.mkdir()
            (path / "config.json").write_text(json.dumps(config))
            for gpu in ("h100_sxm", "h200_sxm", "b200_sxm"):
                for quant, types in (("bf16", "bfloat16"), ("fp8", "fp8")):
                    for tp in (4, 8):
                        about = {"model": name, "gpu": gpu, "backend": "vllm", "tp": tp, "quant": quant}
                        engine = EngineHandle.compile(
                            str(path),
                            gpu,
                            "vllm",
                            tp_size=tp,
                            gemm_quant_mode=types,
                            kvcache_quant_mode=types,
                            fmha_quant_mode="bfloat16",
                        )
                        yield from _passes(engine, about)


def _passes(engine: EngineHandle, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for new in (128, 512, 2048, 8192):
        ops, _ = engine.run_static_per_op(batch_size=1, isl=new, osl=1, prefix=0, mode="static_ctx")
        yield {**about, "phase": "prefill", "batch": 1, "new_tokens": new, "cached_prefix": 0, "ms": _total(ops)}
    for batch in (1, 8, 32, 128):
        for context in (512, 4096, 16384):
            ops = engine.decode_step_per_op(batch, context - 1, 2)
            yield {**about, "phase": "decode", "batch": batch, "context": context, "ms": _total(ops)}


def _total(operators: list[Any]) -> float:
    return round(sum(ms for _, ms, *_ in operators), 4)


def main() -> None:
    with OUT.open("w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows())


if __name__ == "__main__":
    main()
