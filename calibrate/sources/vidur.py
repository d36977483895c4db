"""A device profile from a folder of Vidur's profiling tables: mlp.csv and attention.csv.

The one idea: medians, milliseconds, of one layer on one rank; the layers of the model multiply them. Vidur does not
profile the LM head, so kvcast adds its own estimate from data-sheet bandwidth and says so. A table names no model: the
bundled dense model with the same layer shapes is it, its vocabulary perhaps padded, and the profile says what was taken
for what. Tests use tables made in the published layout.

    kvcast run scenario.toml --set hardware.profile=profiling/compute/a100/meta-llama/Llama-2-7b-hf
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from calibrate.models import ModelSpec, bundled_models, resolve_model
from calibrate.profile import DeviceProfile
from calibrate.rows import ELEMENTWISE, HEADS, OperatorRows, Rows, once
from calibrate.sources.roofline import GPUS, GpuSpec
from workloads.errors import InputError
from workloads.table import FLAG, NUMBER, TEXT, WHOLE, maybe, read_table

DENSE = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
BY_TOKEN = ("attn_kv_cache_save", "attn_input_reshape", "attn_output_reshape")
SHAPE = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size")
PADDED = 1.05
"""Largest vocabulary taken for a padded one, over the model's own: Vidur profiles Llama-2's 32000 as 32768."""
ROWS = [1, 8, 64, 256, 1024]
HEAD_BANDWIDTH, HEAD_FLOPS = 0.75, 0.5
"""Assumed shares of the data sheet for the LM head."""

Lines = list[dict[str, Any]]


def _median(operator: str) -> str:
    return f"time_stats.{operator}.median"


WIDTH = "num_tensor_parallel_workers"
MLP = {
    **dict.fromkeys(("num_tokens", WIDTH, *SHAPE), WHOLE),
    _median("attn_pre_proj"): NUMBER,
    **{_median(name): maybe(NUMBER) for name in ("emb", *DENSE) if name != "attn_pre_proj"},
}
ATTENTION = {
    **dict.fromkeys(("batch_size", "prefill_chunk_size", "kv_cache_size", WIDTH), WHOLE),
    "is_prefill": FLAG,
    "attention_backend": maybe(TEXT),
    **{_median(name): maybe(NUMBER) for name in ("attn_prefill", "attn_decode", *BY_TOKEN)},
}
"""Columns of the tables; one of another operator is not read."""


def profile_from_vidur(folder: Path, tp: int = 1) -> DeviceProfile:
    """Reads the tables of one model on one GPU at one width; InputError names file, row and field."""
    mlp, attention = read_table(folder / "mlp.csv", MLP), read_table(folder / "attention.csv", ATTENTION)
    (model, matched), gpu = _model(folder / "mlp.csv", mlp), _gpu(folder)
    mlp, attention = (_of_width(rows, tp, folder) for rows in (mlp, attention))
    points: dict[str, Any] = {
        "dense": _dense(mlp, attention, model),
        "per_sequence": [_lm_head(model, gpu[1], tp)],
        "prefill_attention": _prefill(folder, attention, model),
        "decode_attention": _decode(folder, attention, model),
        "step_overhead_us": 0.0,
    }
    return DeviceProfile(
        id=f"{gpu[0]}-{model.name}-vidur",
        kind="tables",
        label=f"Vidur's profiling tables of {gpu[0]}, not measured by kvcast",
        device={"name": gpu[0], "memory_gib": gpu[1].memory_gib},
        model=model.name,
        dtype="fp16",
        kv_dtype="fp16",
        tensor_parallel=tp,
        points=points,
        provenance={
            "source": "Vidur profiling tables (mlp.csv, attention.csv)",
            "licence": "see the folder's origin",
            "version": "unknown",
            "date": "unknown",
            "kernels": attention[0]["attention_backend"] or "unknown",
            "notes": [
                (
                    "Vidur profiles no LM head and no sampler: the LM head is kvcast's own estimate from data-sheet"
                    " figures, sampling is missing."
                ),
                "No host time between steps.",
                *matched,
            ],
        },
    )


def _model(path: Path, rows: Lines) -> tuple[ModelSpec, list[str]]:
    """The bundled dense model with these layers and this vocabulary, or the nearest one below it; notes on what was
    taken for what."""
    *layer, vocab = (rows[0][key] for key in SHAPE)
    fitting = [
        m
        for m in map(resolve_model, bundled_models())
        if not m.experts
        and [m.heads, m.kv_heads, m.hidden, m.intermediate] == layer
        and m.vocab <= vocab <= PADDED * m.vocab
    ]
    if not fitting:
        shape = ", ".join(f"{k} {v}" for k, v in zip(SHAPE, (*layer, vocab), strict=True))
        raise InputError(
            f"{path}, row 2: no bundled dense model has {shape} (vocab_size may be padded by 5 %; bundled:"
            f" {', '.join(bundled_models())})"
        )
    model = max(fitting, key=lambda m: m.vocab)
    notes = []
    folder = path.resolve().parent.name
    if folder.lower().removeprefix("meta-").removesuffix("-hf") != model.name:
        notes.append(
            f"The tables in {folder} name no model; they have the layer shapes of {model.name}, whose {model.layers}"
            " layers are assumed."
        )
    if vocab != model.vocab:
        notes.append(
            f"vocab_size {vocab} is taken for {model.name}'s {model.vocab}, padded; the LM head is estimated for"
            f" {model.vocab}."
        )
    return model, notes


def _gpu(folder: Path) -> tuple[str, GpuSpec]:
    """The GPU that a folder of the path names, as Vidur lays its tables out: compute/<gpu>/<organisation>/<model>."""
    for part in reversed(folder.resolve().parts):
        for key, spec in GPUS.items():
            if part.lower().split("_")[0] == key.split("-")[0]:
                return key, spec
    raise InputError(
        f"{folder}: no folder of this path names a GPU; expected .../compute/<gpu>/<organisation>/<model> with one of"
        f" {', '.join(GPUS)}"
    )


def _of_width(rows: Lines, tp: int, folder: Path) -> Lines:
    kept = [row for row in rows if row[WIDTH] == tp]
    if not kept:
        widths = sorted({row[WIDTH] for row in rows})
        raise InputError(f"{folder}: no rows with {WIDTH} = {tp}; it has {', '.join(map(str, widths))}")
    return kept


def _dense(mlp: Lines, attention: Lines, model: ModelSpec) -> list[dict[str, Any]]:
    series = {name: _series(mlp, name, lambda row: row["num_tokens"]) for name in ("emb", *DENSE)}
    for name in BY_TOKEN:
        by_tokens = _series(attention, name, lambda row: row["batch_size"] * max(row["prefill_chunk_size"], 1))
        series[name] = by_tokens if len(by_tokens) > 1 else {}
    return [
        {
            "name": name,
            "repeat": 1 if name == "emb" else model.layers,
            "basis": "measured",
            "tokens": sorted(us),
            "us": [us[n] for n in sorted(us)],
        }
        for name, us in series.items()
        if us
    ]


def _series(rows: Lines, name: str, key: Callable[[dict[str, Any]], Any]) -> dict[Any, float]:
    """Microseconds of an operator by key, the median where a key was measured again; empty when the table lacks the
    operator."""
    found: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        if row[_median(name)] is not None:
            found[key(row)].append(row[_median(name)] * 1e3)
    return {k: median(v) for k, v in found.items()}


def _prefill(folder: Path, rows: Lines, model: ModelSpec) -> dict[str, Any]:
    alone = [row for row in rows if row["is_prefill"] and row["batch_size"] == 1]
    us = _series(alone, "attn_prefill", lambda row: (row["prefill_chunk_size"], row["kv_cache_size"]))
    return _table(folder, us, ("new", "cached"), model, {"prefix_measured": True})


def _decode(folder: Path, rows: Lines, model: ModelSpec) -> dict[str, Any]:
    """Vidur's kv_cache_size leaves out the token computed now."""
    decodes = [row for row in rows if not row["is_prefill"]]
    us = _series(decodes, "attn_decode", lambda row: (row["batch_size"], row["kv_cache_size"] + 1))
    return _table(folder, us, ("batch", "context"), model, {})


def _table(
    folder: Path, us: dict[tuple[int, int], float], names: tuple[str, str], model: ModelSpec, more: dict[str, Any]
) -> dict[str, Any]:
    axes = [sorted({k[i] for k in us}) for i in (0, 1)]
    if min(len(a) for a in axes) < 2:
        raise InputError(
            f"{folder / 'attention.csv'}: expected times at two or more values of {names[0]} and {names[1]}"
        )
    return {
        "repeat": model.layers,
        names[0]: axes[0],
        names[1]: axes[1],
        "us": [[us.get((a, b)) for b in axes[1]] for a in axes[0]],
        "basis": "measured",
        **more,
    }


def _lm_head(model: ModelSpec, gpu: GpuSpec, tp: int) -> dict[str, Any]:
    """kvcast's estimate: the larger of weight bytes at 75 % of bandwidth and FLOPs at 50 % of peak."""
    weights = model.vocab * model.hidden / tp
    us = [
        max(2 * weights / (HEAD_BANDWIDTH * gpu.bandwidth), 2 * weights * n / (HEAD_FLOPS * gpu.bf16_flops)) * 1e6
        for n in ROWS
    ]
    return {"name": "lm_head", "repeat": 1, "basis": "estimated by kvcast", "rows": ROWS, "us": us}


# ---- as operator rows ------------------------------------------------------------------------------------------------

ALL_REDUCE = {
    **dict.fromkeys(("num_workers", "size", "devices_per_node"), WHOLE),
    "time_stats.all_reduce.median": NUMBER,
}
"""size: bytes. A row of every rank."""


def rows_from_vidur(folder: Path) -> Rows:
    """The tables of all widths as operator rows, for any model and width. An all_reduce.csv counts when it lies in the
    folder: Vidur keeps several a GPU, by how its nodes are wired."""
    mlp, attention = read_table(folder / "mlp.csv", MLP), read_table(folder / "attention.csv", ATTENTION)
    (model, matched), gpu = _model(folder / "mlp.csv", mlp), _gpu(folder)
    found: dict[str, Lines] = {"gemm": [], "elementwise": [], "prefill": [], "decode": []}
    for tp in sorted({row[WIDTH] for row in mlp}):
        lines, heads = _of_width(mlp, tp, folder), [row for row in attention if row[WIDTH] == tp]
        found["gemm"] += _gemms(lines, model, tp)
        found["elementwise"] += _moved(lines, heads, model, tp)
        shape = (TYPE, 0, model.head_dim, -(-model.kv_heads // tp), model.heads // tp)
        for row in heads:
            operator, along, ms = _attention_row(row)
            if ms is not None:
                found[operator].append({**dict(zip(HEADS, shape, strict=True)), **along, "us": ms * 1e3})
    path = folder / "all_reduce.csv"
    if path.is_file():
        found["all_reduce"] = [
            {
                "num_gpus": r["num_workers"],
                "message_size": r["size"] // 2,
                "us": r["time_stats.all_reduce.median"] * 1e3,
            }
            for r in read_table(path, ALL_REDUCE)
            if r["devices_per_node"] == r["num_workers"]
        ]
    about = {
        "kernels": attention[0]["attention_backend"] or "unknown",
        "version": "unknown",
        "date": "unknown",
        "source": "Vidur profiling tables",
        "licence": "see the folder's origin",
        "measured_model": model.name,
    }
    return Rows(
        name=folder.resolve().name,
        device={"name": gpu[0], "memory_gib": gpu[1].memory_gib},
        gpu=None,
        operators={name: OperatorRows(once(name, rows), about) for name, rows in sorted(found.items()) if rows},
        notes=(f"Measured with {model.name} by Vidur's profiler, not by kvcast.", *matched),
    )


TYPE = "float16"


def _gemms(rows: Lines, model: ModelSpec, tp: int) -> Lines:
    q, kv = model.heads // tp * model.head_dim, -(-model.kv_heads // tp) * model.head_dim
    width = model.intermediate // tp
    shapes = {
        "attn_pre_proj": (q + 2 * kv, model.hidden),
        "attn_post_proj": (model.hidden, q),
        "mlp_up_proj": (2 * width, model.hidden),
        "mlp_down_proj": (model.hidden, width),
    }
    found = []
    for name, (n, k) in shapes.items():
        series = _series(rows, name, lambda row: row["num_tokens"])
        found += [{"gemm_dtype": TYPE, "n": n, "k": k, "m": tokens, "us": us} for tokens, us in series.items()]
    return [row for row in found if row["us"] > 0]


def _moved(rows: Lines, attention: Lines, model: ModelSpec, tp: int) -> Lines:
    """Vidur times the residual's addition apart from the norm, and what prepares attention in parts: each sum is one
    operator here."""
    q, kv = model.heads // tp * model.head_dim, -(-model.kv_heads // tp) * model.head_dim
    by = {name: _series(rows, name, lambda row: row["num_tokens"]) for name in ("emb", *DENSE)}
    kinds = {
        "embedding": (ELEMENTWISE["embedding"] * model.hidden, [by["emb"]], 1),
        "norm": (
            ELEMENTWISE["norm"] * model.hidden,
            [by["input_layernorm"], by["post_attention_layernorm"], by["add"]],
            2,
        ),
        "silu_mul": (ELEMENTWISE["silu_mul"] * (model.intermediate // tp), [by["mlp_act"]], 1),
        "rope_kv_write": (4 * q + 8 * kv, [by["attn_rope"], *_by_token(attention)], 1),
    }
    return [
        {"name": name, "bytes_per_token": moved, "num_tokens": tokens, "us": us / calls}
        for name, (moved, parts, calls) in kinds.items()
        for tokens, us in _sum(parts).items()
        if us > 0
    ]


def _by_token(attention: Lines) -> list[dict[int, float]]:
    return [
        _series(attention, name, lambda row: row["batch_size"] * max(row["prefill_chunk_size"], 1)) for name in BY_TOKEN
    ]


def _sum(parts: list[dict[int, float]]) -> dict[int, float]:
    """Of several series at the token counts of the first that is there, the others between theirs."""
    there = [part for part in parts if part]
    if not there:
        return {}
    return {
        x: sum(float(np.interp(x, sorted(part), [part[k] for k in sorted(part)])) for part in there) for x in there[0]
    }


def _attention_row(row: dict[str, Any]) -> tuple[str, dict[str, int], float | None]:
    batch, chunk, cached = row["batch_size"], row["prefill_chunk_size"], row["kv_cache_size"]
    if row["is_prefill"]:
        return "prefill", {"batch_size": batch, "isl": chunk, "step": cached}, row[_median("attn_prefill")]
    return "decode", {"batch_size": batch, "step": cached, "longest": cached}, row[_median("attn_decode")]
