"""Exports device profiles from the operator database of the optional package aiconfigurator-core 0.12 (Apache-2.0).

The package answers one operator at one shape in 0.1-1 ms; a simulation asks millions of times, so the operators are
tabulated once, at the shapes its database measured, and committed as calibrate/profiles/*.json.

    pip install 'aiconfigurator-core==0.12.*' && python tools/export_aic_profiles.py [id ...]
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiconfigurator_core
import pandas as pd
from aiconfigurator_core.sdk.engine import EngineHandle

from calibrate.models import ModelSpec, resolve_model
from calibrate.profile import BUNDLED, DeviceProfile, save_profile

LABEL = "exported from aiconfigurator-core 0.12 operator database ({kernel}), not measured by kvcast"
HF_NAMES = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3-32b": "Qwen/Qwen3-32B",
}
# Memory as the driver reports it to vLLM in public logs, GiB.
GPUS = {
    "h100": ("h100_sxm", "H100-SXM-80GB", 79.19, "0.24.0", "FA3"),
    "h200": ("h200_sxm", "H200-SXM", 139.81, "0.24.0", "FA3"),
    "a100": ("a100_sxm", "A100-SXM4-80GB", 79.25, "0.14.0", "FA2"),
    "l40s": ("l40s", "L40S", 44.4, "0.24.0", "FA2"),
    "b200": ("b200_sxm", "B200", 178.4, "0.24.0", "FlashInfer, TensorRT-LLM kernels"),
}
FITTING = {
    ("llama-3.1-8b", 1): "h100 h200 a100 l40s b200",
    ("llama-3.1-70b", 4): "h100 h200 a100 b200",
    ("llama-3.1-70b", 8): "h100 h200 a100",
    ("qwen3-32b", 1): "h200 b200",
    ("qwen3-32b", 2): "h100 h200 a100",
    ("qwen3-32b", 4): "h100 h200 a100",
}

ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
NEW = [1, 16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384]
CACHED = [0, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144]
BATCH = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
CONTEXT = [2**i for i in range(1, 18)]
MAX_PREFILL = 16384
"""Longest sequence in the database's context attention."""


@dataclass(frozen=True)
class Target:
    """One profile to export."""

    gpu: str
    model: str
    tp: int

    @property
    def id(self) -> str:
        width = f"-tp{self.tp}" if self.tp > 1 else ""
        return f"{self.gpu}-{self.model}{width}-aic"


def targets() -> list[Target]:
    return [Target(gpu, model, tp) for (model, tp), gpus in FITTING.items() for gpu in gpus.split()]


def export(target: Target) -> DeviceProfile:
    """Queries the package's operators on the grids above and packs them with their provenance."""
    system, device, memory_gib, version, kernel = GPUS[target.gpu]
    spec = resolve_model(target.model)
    precision = {"gemm_quant_mode": "bfloat16", "kvcache_quant_mode": "bfloat16", "fmha_quant_mode": "bfloat16"}
    engine = EngineHandle.compile(HF_NAMES[target.model], system, "vllm", tp_size=target.tp, **precision)
    measured = largest_kv(system, version, spec, target.tp)
    points = {
        "dense": dense_operators(engine, measured_tokens(system, version)),
        "per_sequence": [
            {
                "name": "lm_head",
                "repeat": 1,
                "rows": ROWS,
                "us": [_us(_decode(engine, r, 512)["logits_gemm"][0]) for r in ROWS],
            }
        ],
        "prefill_attention": prefill_attention(engine, measured[1]),
        "decode_attention": decode_attention(engine, measured),
        "step_overhead_us": 0.0,
    }
    provenance = {
        "source": "aiconfigurator-core " + importlib.metadata.version("aiconfigurator-core"),
        "licence": "Apache-2.0",
        "version": f"vllm {version} tables of {system}",
        "date": datetime.date.today().isoformat(),
        "kernels": kernels(system, version, spec, target.tp),
        "made_by": "tools/export_aic_profiles.py",
        "notes": [
            (
                "Matrix multiplies and attention come from the package's measured tables (where a shape was not"
                " measured it interpolates between shapes); norms, activation and embedding are its bandwidth formula."
            ),
            (
                "Attention over a cached prefix is the package's formula, not a measurement; kvcast never lets it fall"
                " below one decode over the same KV."
            ),
            (
                "The sum of operators: no sampler, no host time between steps. A run adds the engine's by its"
                " scheduling mode (engine.host_step_ms, host_sequence_us): a public vLLM run of 2025-08 (H200,"
                " Llama-3.1-8B fp8) took 0.6 ms and 13 to 17 us a sequence more than the sum."
            ),
            *(["All-reduce times are the package's tables for one NVLink node."] if target.tp > 1 else []),
        ],
    }
    return DeviceProfile(
        id=target.id,
        kind="tables",
        label=LABEL.format(kernel=kernel),
        device={"name": device, "memory_gib": memory_gib},
        model=target.model,
        dtype="bf16",
        kv_dtype="bf16",
        tensor_parallel=target.tp,
        provenance=provenance,
        points=points,
    )


def dense_operators(engine: EngineHandle, tokens: list[int]) -> list[dict[str, Any]]:
    """Every operator but attention and the LM head, by tokens in the step; times are of all layers."""
    rows = [_context(engine, count, 0) for count in tokens]
    names = [n for n in rows[0] if n not in ("attention", "logits_gemm") and any(r[n][0] for r in rows)]
    basis = {"silicon": "measured", "empirical": "formula", "mixed": "measured and formula"}
    return [
        {
            "name": n,
            "repeat": 1,
            "basis": basis.get(rows[0][n][1], rows[0][n][1]),
            "tokens": tokens,
            "us": [_us(r[n][0]) for r in rows],
        }
        for n in names
    ]


def prefill_attention(engine: EngineHandle, max_kv: int) -> dict[str, Any]:
    """One sequence, new x cached. max_kv: longest context the decode kernel was measured at, the bound of what is
    called interpolated."""
    us = [[_us(_context(engine, new, cached)["attention"][0]) for cached in CACHED] for new in NEW]
    return {
        "repeat": 1,
        "new": NEW,
        "cached": CACHED,
        "us": us,
        "max_kv": max_kv,
        "max_pairs": MAX_PREFILL * (MAX_PREFILL + 1) // 2,
        "basis": "cached = 0 measured; cached > 0 formula",
    }


def decode_attention(engine: EngineHandle, measured: dict[int, int]) -> dict[str, Any]:
    """batch x context, at the shapes the database measured only."""
    context = [c for c in CONTEXT if c <= max(measured.values())]
    us = [
        [_us(_decode(engine, b, c)["attention"][0]) if c <= longest else None for c in context]
        for b, longest in measured.items()
    ]
    return {"repeat": 1, "batch": list(measured), "context": context, "us": us, "basis": "measured"}


def measured_tokens(system: str, version: str) -> list[int]:
    """Token counts the database measured its matrix multiplies at; steps of the GPU's tiles lie between neighbours."""
    table = read_table(system, "gemm", version, "gemm_perf")
    return [int(m) for m in sorted(table[table.gemm_dtype == "bfloat16"].m.unique())]


def largest_kv(system: str, version: str, spec: ModelSpec, tp: int) -> dict[int, int]:
    """Longest context measured per batch size for this model's heads, read from the package's own table."""
    table = decode_rows(system, version, spec, tp)
    longest = (table.isl + table.step).groupby(table.batch_size).max()
    return {b: int(longest[b]) for b in BATCH if b in longest}


def decode_rows(system: str, version: str, spec: ModelSpec, tp: int) -> pd.DataFrame:
    """The database's decode attention points of this model's heads on one rank, bf16."""
    table = read_table(system, "attention", version, "generation_attention_perf")
    keep = {
        "num_heads": spec.heads // tp,
        "num_key_value_heads": -(-spec.kv_heads // tp),
        "head_dim": spec.head_dim,
        "attn_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
    }
    if "window_size" in table:
        keep["window_size"] = 0
    for column, value in keep.items():
        table = table[table[column] == value]
    return table


def kernels(system: str, version: str, spec: ModelSpec, tp: int) -> str:
    """Names under which the database measured attention and matrix multiplies."""
    gemm = read_table(system, "gemm", version, "gemm_perf")
    names = [
        *decode_rows(system, version, spec, tp).kernel_source.unique(),
        *gemm[gemm.gemm_dtype == "bfloat16"].kernel_source.unique(),
    ]
    return ", ".join(sorted(str(name) for name in names))


def read_table(system: str, family: str, version: str, name: str) -> pd.DataFrame:
    """One of the package's own tables of measured points."""
    return pd.read_parquet(
        Path(aiconfigurator_core.__file__).parent / f"systems/data/{system}/{family}/vllm/{version}/{name}.parquet"
    )


def _context(engine: EngineHandle, new: int, cached: int) -> dict[str, tuple[float, str]]:
    operators, _ = engine.run_static_per_op(batch_size=1, isl=new + cached, osl=1, prefix=cached, mode="static_ctx")
    return {name.removeprefix("context_"): (ms, source) for name, ms, _, source in operators}


def _decode(engine: EngineHandle, batch: int, context: int) -> dict[str, tuple[float, str]]:
    """A decode step whose sequences hold `context` tokens, the new one included (the package counts it apart)."""
    return {
        name.removeprefix("generation_"): (ms, source)
        for name, ms, _, source in engine.decode_step_per_op(batch, context - 1, 2)
    }


def _us(ms: float) -> float:
    return round(ms * 1000, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="profiles to export; default: all")
    parser.add_argument("--out", type=Path, default=BUNDLED)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    for target in targets():
        if not args.ids or target.id in args.ids:
            profile = export(target)
            save_profile(profile, args.out / f"{target.id}.json")
            print(target.id, profile.content_hash[:19])


if __name__ == "__main__":
    main()
