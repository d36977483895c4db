"""Builds calibrate/atlas/<gpu>.npz from the operator tables of aiconfigurator-core 0.12 (Apache-2.0).

Per GPU one file: every table of the backends below, constant columns dropped, grids dense, times levelled where physics
demands that more work takes longer, rows dropped that beat the hardware's own peak. What nothing prices stays out:
prefills of several prompts at once, experts routed otherwise than the power law, weight types nobody serves, the parts
of an MLA module where the module itself was measured. Equal packages give equal bytes.

    pip install 'aiconfigurator-core==0.12.*' && python tools/export_atlas.py [gpu ...]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiconfigurator_core
import numpy as np
import pandas as pd
import yaml

from calibrate.atlas.heldout import held_out
from calibrate.atlas.price import GEMM_NAMES, MOE_NAMES
from calibrate.atlas.tables import BUNDLED, SCHEMA, Atlas, pack, save

SYSTEMS = Path(aiconfigurator_core.__file__).parent / "systems"
BACKENDS = ("vllm", "sglang", "trtllm")
RELEASES = {"trtllm": "1.3.0rc20"}
"""The release that is a backend's in the package's own query_versions.yaml, where the newest holds a few rows only."""
# Ours, the package's, the name people know, and memory as the driver reports it in public logs, GiB.
GPUS = {
    "h100": ("h100_sxm", "H100-SXM-80GB", 79.19),
    "h200": ("h200_sxm", "H200-SXM", 139.81),
    "b200": ("b200_sxm", "B200", 178.4),
    "b300": ("b300_sxm", "B300", 268.59),
    "gb200": ("gb200", "GB200", 185.03),
    "l40s": ("l40s", "L40S", 44.4),
    "a100": ("a100_sxm", "A100-SXM4-80GB", 79.25),
    "rtx-pro-6000": ("rtx_pro_6000_server", "RTX PRO 6000 Blackwell", 94.97),
}


@dataclass(frozen=True)
class Source:
    """Where an operator's rows lie, and which of their columns are the shape and the axes."""

    family: str
    file: str
    columns: tuple[str, ...]
    axes: tuple[str, ...]
    time: str = "latency"
    ms: float = 1.0  #: milliseconds in one of its units


_HEADS = ("attn_dtype", "kv_cache_dtype", "window_size", "head_dim", "num_key_value_heads", "num_heads")
_MLA = ("gemm_type", "mla_dtype", "kv_cache_dtype", "num_heads")
_LINEAR = ("phase", "kernel_source", "num_k_heads", "num_v_heads")
SOURCES = {
    "gemm": Source("gemm", "gemm_perf", ("gemm_dtype", "n", "k"), ("m",)),
    "prefill": Source("attention", "context_attention_perf", _HEADS, ("batch_size", "isl")),
    "decode": Source("attention", "generation_attention_perf", _HEADS, ("batch_size", "step")),
    "moe": Source(
        "moe",
        "moe_perf",
        (
            *("moe_dtype", "distribution", "hidden_size", "inter_size", "topk", "num_experts"),
            *("moe_tp_size", "moe_ep_size"),
        ),
        ("num_tokens",),
    ),
    "mla_prefill": Source("mla", "mla_context_module_perf", _MLA, ("batch_size", "isl")),
    "mla_decode": Source("mla", "mla_generation_module_perf", _MLA, ("batch_size", "step")),
    "mla_prefill_core": Source("mla", "context_mla_perf", _MLA[1:], ("batch_size", "isl")),
    "mla_decode_core": Source("mla", "generation_mla_perf", _MLA[1:], ("batch_size", "step")),
    "mla_bmm": Source("mla_bmm", "mla_bmm_perf", ("op_name", "bmm_dtype", "num_heads"), ("num_tokens",)),
    "all_reduce": Source("comm", "custom_allreduce_perf", ("kernel_source", "num_gpus"), ("message_size",)),
    "all_to_all": Source(
        "comm",
        "moe_a2a_perf",
        ("comm_backend", "phase", "ep_size", "hidden_size", "topk", "num_experts"),
        ("num_tokens",),
        ms=1e-3,
    ),
    "gdn": Source("linear_attention", "gdn_perf", _LINEAR, ("batch_size", "seq_len")),
    "kda": Source("kda", "kda_perf", _LINEAR, ("batch_size", "seq_len")),
    "mamba2": Source(
        "linear_attention",
        "mamba2_perf",
        ("phase", "kernel_source", "d_model", "d_state", "nheads", "n_groups", "chunk_size"),
        ("batch_size", "seq_len"),
    ),
    "sparse_prefill": Source(
        "sparse_attention", "dsa_context_module_perf", ("model", *_MLA, "step"), ("batch_size", "isl")
    ),
    "sparse_decode": Source("sparse_attention", "dsa_generation_module_perf", ("model", *_MLA), ("batch_size", "step")),
}
LEFT_OUT = {("trtllm", "all_to_all")}
"""TensorRT-LLM's way to the experts has kernels and number formats of its own."""
ONE_PROMPT = ("prefill", "mla_prefill", "mla_prefill_core", "sparse_prefill")
"""Operators whose calls of several prompts nothing prices: they are the sum of their prompts."""
ROUTING = "power_law_1.2"
"""How uneven the routing of the experts' rows is: their loads follow a power law (`calibrate.atlas.experts.ALPHA`)."""
SERVED = {
    "gemm_dtype": {name for names in GEMM_NAMES.values() for name in names},
    "moe_dtype": {name for names in MOE_NAMES.values() for name in names},
    "distribution": {ROUTING},
}
NCCL = Source("comm", "nccl_perf", ("op_name", "nccl_dtype", "num_gpus"), ("message_size",))
AUTOTUNED = ("trtllm/moe",)
"""Tables of kernels that an engine chooses by timing them; vLLM and SGLang take theirs from files."""
UNTUNED = 1.5
BEYOND_CACHE, MOST_BEATING = 1e9, 0.05
"""Bytes of KV that no cache holds, and the share of rows over them that may beat the memory before a table is refused:
some other cache was measured then (on an A100, TensorRT-LLM 1.0's decodes of grouped heads read as if KV were half)."""
POWER_OF_TWO = 8
"""Weight of a power of two when times are levelled, against 1: token budgets and captured batch sizes stand there, and
kernels are tuned for them."""
_ELEMENT = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "int8_wo": 1.0, "int4_wo": 0.5, "half": 2.0}


def export(gpu: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, header) of a GPU's file."""
    system, name, memory_gib = GPUS[gpu]
    about = yaml.safe_load((SYSTEMS / f"{system}.yaml").read_text())
    card, node, misc = about["gpu"], about["node"], about["misc"]
    peaks = {
        "bandwidth": float(card["mem_bw"]),
        "flops": {
            dtype: float(card[key])
            for dtype, key in (("bf16", "bfloat16_tc_flops"), ("fp8", "fp8_tc_flops"), ("fp4", "fp4_tc_flops"))
            if key in card
        },
    }
    header: dict[str, Any] = {
        "schema": SCHEMA,
        "name": name,
        "memory_gib": memory_gib,
        **peaks,
        "elementwise": {
            "bandwidth": card["mem_bw"] * card["mem_bw_empirical_scaling_factor"],
            "launch_s": card["mem_empirical_constant_latency"],
        },
        "link": {"bandwidth": float(node["intra_node_bw"]), "gpus": node["num_gpus_per_node"]},
        "nccl_bytes": {str(k): v for k, v in misc["nccl_mem"].items()},
        "provenance": {
            "source": "aiconfigurator-core " + importlib.metadata.version("aiconfigurator-core"),
            "licence": "Apache-2.0",
            "system": system,
            "made_by": "tools/export_atlas.py",
        },
        "tables": {},
        "refused": {},
    }
    arrays: dict[str, np.ndarray] = {}
    for backend in BACKENDS:
        for operator, source in SOURCES.items():
            found = newest(system, backend, source)
            whole = f"{backend}/{operator.removesuffix('_core')}" in header["tables"] or (
                operator == "mla_bmm" and f"{backend}/mla_decode" in header["tables"]
            )
            if found and not whole and (backend, operator) not in LEFT_OUT:
                add(arrays, header, f"{backend}/{operator}", source, *found)
    found = newest(system, "nccl", NCCL)
    if found:
        add(arrays, header, "nccl/all", NCCL, *found)
    atlas = Atlas(gpu, header, "", arrays)
    for backend in atlas.backends:
        for one in held_out(atlas, backend):
            names = (f"{backend}/{one.operator}", f"{backend}/{one.operator}_core")
            about = next(header["tables"][name] for name in names if name in header["tables"])
            about.setdefault("held_out", {})[one.dtype] = round(one.mean, 4)
    return arrays, header


def newest(system: str, backend: str, source: Source) -> tuple[pd.DataFrame, str] | None:
    """The rows of the backend's release, else of the newest version, that has this operator."""
    paths = list((SYSTEMS / "data" / system / source.family / backend).glob(f"*/{source.file}.parquet"))
    paths = [p for p in paths if p.parent.name == RELEASES.get(backend)] or paths
    if not paths:
        return None
    path = max(paths, key=lambda p: [int(x) for x in re.findall(r"\d+", p.parent.name)] * ("dev" not in p.parent.name))
    return pd.read_parquet(path), f"{backend} {path.parent.name}"


def add(
    arrays: dict[str, np.ndarray], header: dict[str, Any], name: str, source: Source, rows: pd.DataFrame, version: str
) -> None:
    """Packs one table into `arrays` and says in the header what it is and what was changed."""
    rows = rows[rows[source.time] > 0]
    if name == "nccl/all":
        rows = rows[rows.nccl_dtype == "half"]
    for column, names in SERVED.items():
        rows = rows[rows[column].isin(names)] if column in rows else rows
    columns = [c for c in source.columns if c in rows and rows[c].nunique() > 1]
    kernels = rows.kernel_source.value_counts().sort_index().to_dict() if "kernel_source" in rows else {}
    labels: dict[str, list[str]] = {}
    rows = rows.copy()
    for column in columns:
        if not pd.api.types.is_numeric_dtype(rows[column]):
            labels[column] = sorted(rows[column].unique())
            rows[column] = rows[column].map({label: i for i, label in enumerate(labels[column])})
    axes = [np.unique(rows[axis]) for axis in source.axes]
    keys, row_of = np.unique(rows[columns].to_numpy(np.int64), axis=0, return_inverse=True)
    ms = np.full((len(keys), *(len(axis) for axis in axes)), np.nan)
    index = (row_of.ravel(), *(np.searchsorted(axis, rows[a]) for axis, a in zip(axes, source.axes, strict=True)))
    order = np.argsort(-rows[source.time].to_numpy(), kind="stable")  # of two kernels at one shape the faster stays
    ms[tuple(i[order] for i in index)] = rows[source.time].to_numpy()[order] * source.ms
    slow = untuned(keys, ms) if name in AUTOTUNED else np.zeros(len(keys), dtype=bool)
    keys, ms = keys[~slow], ms[~slow]
    impossible, large = beats_hardware(name, columns, labels, keys, axes, ms, header)
    if large > MOST_BEATING:
        header["refused"][name] = f"{large:.0%} of its rows over {BEYOND_CACHE:.0e} bytes beat the memory"
        return
    ms[impossible] = np.nan
    level, changed = levelled(axes, ms)
    if name.split("/")[1] in ONE_PROMPT:
        axes[0], level = axes[0][:1], level[:, :1]
    constant = {
        c: rows[c].iloc[0] if isinstance(rows[c].iloc[0], str) else int(rows[c].iloc[0])
        for c in source.columns
        if c in rows and c not in columns
    }
    header["tables"][name] = {
        "columns": columns,
        "labels": labels,
        "axes": list(source.axes),
        "constant": constant,
        "rows": int(np.isfinite(level).sum()),
        "version": version,
        "kernels": {str(k): int(v) for k, v in kernels.items()},
        "dropped": int(impossible.sum()),
        "levelled": changed,
        **({"untuned": int(slow.sum())} if slow.any() else {}),
    }
    arrays[f"{name}/keys"] = keys.T.astype(np.int32)
    arrays[f"{name}/ms"] = pack(level)
    for axis, values in zip(source.axes, axes, strict=True):
        arrays[f"{name}/{axis}"] = values.astype(np.int32)


def levelled(axes: list[np.ndarray], ms: np.ndarray) -> tuple[np.ndarray, int]:
    """Never falling along any axis: pooled medians axis by axis, then the mean of the least curve above and
    the greatest below for what the second axis brought back. And how many times moved by more than 1 %."""
    level = ms
    for axis, x in enumerate(axes, start=1):
        level = np.apply_along_axis(pooled, axis, level, np.where(x & (x - 1) == 0, POWER_OF_TWO, 1))
    for axis in range(1, ms.ndim):
        above = np.fmax.accumulate(level, axis=axis)
        below = np.flip(np.fmin.accumulate(np.flip(level, axis), axis=axis), axis)
        level = np.where(np.isnan(ms), np.nan, (above + below) / 2)
    with np.errstate(invalid="ignore"):
        return level, int((np.abs(level / ms - 1) > 0.01).sum())


def pooled(times: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nearest curve that never falls, by weighted medians of pooled violators (least absolute deviations: one
    outlier does not move its neighbours); NaN stays."""
    there = np.flatnonzero(np.isfinite(times))
    if (np.diff(times[there]) >= 0).all():
        return times
    pools: list[tuple[float, np.ndarray]] = []
    for i in there:
        pools.append((float(times[i]), np.array([i])))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            members = np.concatenate([pools[-2][1], pools[-1][1]])
            middle = float(np.median(np.repeat(times[members], weights[members])))
            pools[-2:] = [(middle, members)]
    out = times.copy()
    for middle, members in pools:
        out[members] = middle
    return out


def beats_hardware(
    name: str,
    columns: list[str],
    labels: dict[str, list[str]],
    keys: np.ndarray,
    axes: list[np.ndarray],
    ms: np.ndarray,
    header: dict[str, Any],
) -> tuple[np.ndarray, float]:
    """(times shorter than the FLOPs at peak, or (decode) than the KV bytes at peak bandwidth; the share of such among
    the decodes whose KV no cache holds)."""
    column = {c: keys[:, i].astype(float) for i, c in enumerate(columns)}
    operator = name.split("/")[1]
    if operator == "gemm":
        dtypes = [labels["gemm_dtype"][i] for i in keys[:, 0]] if "gemm_dtype" in labels else ["bfloat16"] * len(keys)
        flops = header["flops"]
        peak = np.array([flops.get({"nvfp4": "fp4"}.get(d, d[:3]), flops["bf16"]) for d in dtypes])
        least = 2e3 * axes[0] * (column["n"] * column["k"] / peak)[:, None]
    elif operator in ("prefill", "decode"):
        window = column.get("window_size", np.zeros(len(keys)))
        dim = column.get("head_dim", np.full(len(keys), 128.0))
        seen = np.where(window[:, None] > 0, np.minimum(axes[1], window[:, None]), axes[1].astype(float))
        if operator == "prefill":
            pairs = axes[1] * seen - seen * (seen - 1) / 2
            work = 4e3 * (column["num_heads"] * dim)[:, None] * pairs / header["flops"]["bf16"]
        else:
            kv_dtype = column.get("kv_cache_dtype", np.zeros(len(keys)))
            size = np.array(
                [_ELEMENT[labels["kv_cache_dtype"][int(i)]] if labels.get("kv_cache_dtype") else 2 for i in kv_dtype]
            )
            work = 2e3 * (column["num_key_value_heads"] * dim * size)[:, None] * seen / header["bandwidth"]
        least = axes[0][None, :, None] * work[:, None, :]
    else:
        return np.zeros(ms.shape, dtype=bool), 0.0
    with np.errstate(invalid="ignore"):
        beats = ms < least
    large = np.isfinite(ms) & (np.broadcast_to(least, ms.shape) * header["bandwidth"] > 1e3 * BEYOND_CACHE)
    return beats, float(beats[large].mean()) if operator == "decode" and large.any() else 0.0


def untuned(keys: np.ndarray, ms: np.ndarray) -> np.ndarray:
    """Experts that took more than 1.5 times as long as the same ones in pieces: so many calls of a wider split, or the
    call of more ranks' experts that holds theirs. An autotuner finds such pieces; here it had not run.

    keys: [rows, hidden .. ep], a text column before them or not; ms: [rows, tokens]."""
    slow = np.zeros(len(keys), dtype=bool)
    models = np.unique(keys[:, :-2], axis=0, return_inverse=True)[1].ravel()
    for model in range(models.max() + 1):
        rows = np.flatnonzero(models == model)
        tp, ep = keys[rows, -2].astype(float), keys[rows, -1]
        for row, width, ranks in zip(rows, tp, ep, strict=True):
            pieces = ms[rows] * np.maximum(1.0, tp / width)[:, None]
            others = pieces[(ep <= ranks) & (rows != row)]
            if len(others):
                over = np.where(np.isfinite(ms[row]) & np.isfinite(others), ms[row] / others, np.nan)
                shared = over[np.isfinite(over).sum(axis=1) > 0]
                slow[row] = len(shared) > 0 and bool((np.nanmedian(shared, axis=1) > UNTUNED).any())
    return slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpus", nargs="*", help="GPUs to export; default: all")
    parser.add_argument("--out", type=Path, default=BUNDLED)
    args = parser.parse_args()
    for gpu in args.gpus or GPUS:
        arrays, header = export(gpu)
        path = args.out / f"{gpu}.npz"
        save(path, arrays, header)
        print(
            f"{gpu}: {path.stat().st_size / 2**20:.2f} MiB, {sum(t['rows'] for t in header['tables'].values()):,} rows"
        )


if __name__ == "__main__":
    main()
