"""fit: how well the fitted forms and the tables made from them predict measured H200 kernels and whole steps they have
not seen.

GEMMs come from the bundled h200-llama-3.1-8b-aic profile (measured times at 74 token counts), attention kernels from
the raw tables (vLLM's FlashAttention 3, bf16, one layer). Held out: each fifth of the points in turn for a form; every
other point for whole steps, which are then compared with the step times of the same database. Steps over a cached
prefix are left out: there the database has a formula, not a measurement. Limits: GEMM 8 %, attention 10 %, whole
prefill 4 %, whole decode step 6 %.

    $ kvcast validate fit
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.validation import Outcome, required

PROFILE = "h200-llama-3.1-8b-aic"
GEMMS = {"qkv_gemm": "qkv", "proj_gemm": "attention_out", "gate_ffn1_gemm": "gate_up", "ffn2_gemm": "down"}
HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128}
LIMITS = {
    "gemm": 0.08,
    "prefill attention": 0.10,
    "decode attention": 0.10,
    "whole prefill": 0.04,
    "whole decode step": 0.06,
}
CURVE = {"model": "Meta-Llama-3.1-8B", "gpu": "h200_sxm", "backend": "vllm", "tp": "1", "quant": "bf16"}
KERNEL = {"gpu": "h200_sxm", "backend": "vllm", "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}


def run(data_dir: Path, **_: Any) -> Outcome:
    from calibrate.fit import fit_operators
    from calibrate.profile import bundled_profile

    tables = required(data_dir / "measured" / "aic_tables")
    points = bundled_profile(PROFILE).points
    prefill, decode = prefill_samples(tables), decode_samples(tables)
    lines, errors = [], {}
    for label, op, samples in (
        ("gemm", "gemm", gemm_samples(points)),
        ("prefill attention", "prefill", prefill),
        ("decode attention", "decode", decode),
    ):
        fitted = fit_operators({op: samples})
        errors[label] = float(np.mean([f.held_out for f in fitted if f.held_out is not None]))
        for f in fitted:
            between = (
                f"; {100 * f.held_out_interpolation:.1f} % between points"
                if f.held_out_interpolation is not None
                else ""
            )
            lines.append(f"{f.name}: {len(f.samples)} points, form held out {100 * (f.held_out or 0):.1f} %{between}")
    step = halved_step_time(points, prefill, decode)
    errors["whole prefill"] = _curve(
        tables / "prefill_ms.csv",
        lambda r: r["cached_prefix"] == "0",
        lambda r: step.step([(int(r["new_tokens"]), 0)] * int(r["batch"]), 0, 0, 0, int(r["batch"]))[0],
    )
    errors["whole decode step"] = _curve(
        tables / "decode_ms.csv",
        lambda r: True,
        lambda r: step.step(
            [], int(r["batch"]), int(r["batch"]) * int(r["context"]), int(r["context"]), int(r["batch"])
        )[0],
    )
    for label, error in errors.items():
        lines.append(f"{label}: held out {100 * error:.1f} %, limit {100 * LIMITS[label]:.0f} %")
    return Outcome("fit", all(errors[k] <= LIMITS[k] for k in LIMITS), lines, {"held_out": errors})


def _rows(path: Path, keep: dict[str, str]) -> list[dict[str, str]]:
    with required(path).open(newline="", encoding="utf-8") as f:
        return [row for row in csv.DictReader(f) if all(row[k] == v for k, v in keep.items())]


def _samples(op: str, measured: dict[tuple[int, ...], float], shape: Callable[..., dict[str, int]]) -> list[Any]:
    from calibrate.fit import Sample
    from calibrate.operators import Point, features

    return [Sample(s, features(Point(op, s), 2), us) for at, us in sorted(measured.items()) for s in [shape(*at)]]


def gemm_samples(points: dict[str, Any]) -> list[Any]:
    """The four matrix multiplies of a layer; the profile's times are of all 32 layers."""
    from calibrate.models import resolve_model
    from calibrate.operators import step_operators

    shapes = {o.name: o.shape for o in step_operators(resolve_model("llama-3.1-8b"))}
    samples = []
    for op in points["dense"]:
        if op["name"] in GEMMS:
            shape = shapes[GEMMS[op["name"]]]
            samples += _samples(
                "gemm",
                {(m,): us / 32 for m, us in zip(op["tokens"], op["us"], strict=True)},
                lambda m, s=shape: {**s, "m": m},
            )
    return samples


def prefill_samples(tables: Path) -> list[Any]:
    rows = _rows(tables / "raw_ctx_attention_32q8kv128_hopper.csv", KERNEL)
    measured: dict[tuple[int, ...], float] = {
        (int(r["seq"]), int(r["batch_size"])): float(r["latency_ms"]) * 1e3 for r in rows
    }
    return _samples("prefill", measured, lambda new, seqs: {**HEADS, "new": new, "cached": 0, "seqs": seqs})


def decode_samples(tables: Path) -> list[Any]:
    rows = _rows(tables / "raw_gen_attention_32q8kv128_hopper.csv", KERNEL)
    measured: dict[tuple[int, ...], float] = {
        (int(r["batch_size"]), int(r["kv_len"])): float(r["latency_ms"]) * 1e3 for r in rows
    }
    return _samples(
        "decode", measured, lambda batch, context: {**HEADS, "batch": batch, "context": context, "longest": context}
    )


def halved_step_time(points: dict[str, Any], prefill: list[Any], decode: list[Any]) -> Any:
    """Step times from every other measured point only: what is left out is predicted as a calibrated profile predicts
    it."""
    from calibrate.assemble import Calibration, decode_table, prefill_table
    from calibrate.fit import fit_operators
    from calibrate.sources.tables import TableStepTime

    # of prompts alone every other length, of batches and contexts a checkerboard: no whole row or column is missing
    halves = {
        "prefill": prefill[::2],
        "decode": [s for s in decode if (s.shape["batch"].bit_length() + s.shape["context"].bit_length()) % 2],
    }
    fitted = fit_operators(halves)
    calibration = Calibration({}, [], [], fitted, {f.op: f.form for f in fitted})
    dense = [{**op, "tokens": op["tokens"][::2], "us": op["us"][::2]} for op in points["dense"]]
    rows = [{**op, "rows": op["rows"][::2], "us": op["us"][::2]} for op in points["per_sequence"]]
    return TableStepTime(
        {
            "dense": dense,
            "per_sequence": rows,
            "prefill_attention": prefill_table(calibration, HEADS, 32, 2, []),
            "decode_attention": decode_table(calibration, HEADS, 32, 2, []),
        }
    )


def _curve(path: Path, keep: Callable[[dict[str, str]], bool], predicted_s: Callable[[dict[str, str]], float]) -> float:
    """Mean absolute relative error over a curve of whole steps."""
    rows = [r for r in _rows(path, CURVE) if keep(r)]
    return float(np.mean([abs(predicted_s(r) * 1e3 / float(r["latency_ms"]) - 1) for r in rows]))
