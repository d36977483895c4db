"""A device profile from a folder of Vidur's profiling tables: mlp.csv and attention.csv.

The one idea: medians, milliseconds, of one layer on one rank; the layers of the model multiply them. Vidur does not
profile the LM head, so kvcast adds its own estimate from data-sheet bandwidth and says so. A table names no model: the
bundled dense model with the same layer shapes is it, its vocabulary perhaps padded, and the profile says what was taken
for what. Tests use tables made in the published layout.

    kvcast run scenario.toml --set hardware.profile=profiling/compute/a100/meta-llama/Llama-2-7b-hf
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from calibrate.models import ModelSpec, bundled_models, resolve_model
from calibrate.profile import DeviceProfile
from calibrate.sources.folder import number_in, read_rows
from calibrate.sources.roofline import GPUS, GpuSpec
from workloads.errors import InputError

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


def profile_from_vidur(folder: Path, tp: int = 1) -> DeviceProfile:
    """Reads the tables of one model on one GPU at one width; InputError names file, row and field."""
    mlp = read_rows(folder / "mlp.csv", ("num_tokens", "num_tensor_parallel_workers", *SHAPE, _median("attn_pre_proj")))
    attention = read_rows(
        folder / "attention.csv",
        (
            "batch_size",
            "prefill_chunk_size",
            "kv_cache_size",
            "is_prefill",
            "num_tensor_parallel_workers",
            _median("attn_prefill"),
            _median("attn_decode"),
        ),
    )
    (model, matched), gpu = _model(folder / "mlp.csv", mlp), _gpu(folder)
    mlp, attention = (_of_width(rows, tp, folder) for rows in (mlp, attention))
    points: dict[str, Any] = {
        "dense": _dense(folder, mlp, attention, model),
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
            "kernels": str(attention[0].get("attention_backend", "unknown")),
            "notes": [
                (
                    "Vidur profiles no LM head and no sampler: the LM head is kvcast's own estimate from data-sheet"
                    " figures, sampling is missing."
                ),
                (
                    "No host time, and no all-reduce: its network tables are not read."
                    if tp > 1
                    else "No host time between steps."
                ),
                *matched,
            ],
        },
    )


def _median(operator: str) -> str:
    return f"time_stats.{operator}.median"


def _model(path: Path, rows: list[dict[str, str]]) -> tuple[ModelSpec, list[str]]:
    """The bundled dense model with these layers and this vocabulary, or the nearest one below it; notes on what was
    taken for what."""
    *layer, vocab = (int(number_in(path, 0, rows[0], key)) for key in SHAPE)
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


def _of_width(rows: list[dict[str, str]], tp: int, folder: Path) -> list[dict[str, str]]:
    kept = [r for r in rows if r["num_tensor_parallel_workers"] == str(tp)]
    if not kept:
        widths = sorted({r["num_tensor_parallel_workers"] for r in rows})
        raise InputError(f"{folder}: no rows with num_tensor_parallel_workers = {tp}; it has {', '.join(widths)}")
    return kept


def _dense(
    folder: Path, mlp: list[dict[str, str]], attention: list[dict[str, str]], model: ModelSpec
) -> list[dict[str, Any]]:
    operators = []
    for name, repeat in (("emb", 1), *((n, model.layers) for n in DENSE)):
        series = _series(folder / "mlp.csv", mlp, name, lambda r: int(float(r["num_tokens"])))
        if series:
            operators.append(
                {
                    "name": name,
                    "repeat": repeat,
                    "basis": "measured",
                    "tokens": sorted(series),
                    "us": [series[n] for n in sorted(series)],
                }
            )
    for name in BY_TOKEN:
        series = _series(
            folder / "attention.csv",
            attention,
            name,
            lambda r: int(float(r["batch_size"])) * max(int(float(r["prefill_chunk_size"])), 1),
        )
        if len(series) > 1:
            operators.append(
                {
                    "name": name,
                    "repeat": model.layers,
                    "basis": "measured",
                    "tokens": sorted(series),
                    "us": [series[n] for n in sorted(series)],
                }
            )
    return operators


def _series(path: Path, rows: list[dict[str, str]], name: str, key: Any) -> dict[Any, float]:
    """Microseconds of an operator by key, the median where a key was measured again; empty when the table lacks the
    operator."""
    column = _median(name)
    found: dict[Any, list[float]] = defaultdict(list)
    for i, row in enumerate(rows):
        if row.get(column):
            found[key(row)].append(number_in(path, i, row, column) * 1e3)
    return {k: median(v) for k, v in found.items()}


def _prefill(folder: Path, rows: list[dict[str, str]], model: ModelSpec) -> dict[str, Any]:
    alone = [r for r in rows if r["is_prefill"].lower() == "true" and r["batch_size"] in ("1", "1.0")]
    us = _series(
        folder / "attention.csv",
        alone,
        "attn_prefill",
        lambda r: (int(float(r["prefill_chunk_size"])), int(float(r["kv_cache_size"]))),
    )
    return _table(folder, us, ("new", "cached"), model, {"prefix_measured": True})


def _decode(folder: Path, rows: list[dict[str, str]], model: ModelSpec) -> dict[str, Any]:
    """Vidur's kv_cache_size leaves out the token computed now."""
    decodes = [r for r in rows if r["is_prefill"].lower() == "false"]
    us = _series(
        folder / "attention.csv",
        decodes,
        "attn_decode",
        lambda r: (int(float(r["batch_size"])), int(float(r["kv_cache_size"])) + 1),
    )
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
