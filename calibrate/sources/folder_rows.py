"""LLMServingSim's operator tables as operator rows: for a model or a width that they were not measured for.

The one idea: the shapes of the measured model say which kernel every table timed, and the rows forget the model again.

    kvcast run scenario.toml --set hardware.profile=perf/RTXPRO6000/meta-llama/Llama-3.1-8B/bf16
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from calibrate.rows import ELEMENTWISE, HEADS, OperatorRows, Rows, once
from calibrate.sources.folder import (
    HOST_INSIDE,
    UNDERSTOOD,
    AttentionTable,
    Meta,
    check_complete,
    expert_times,
    memory_gib,
    operators,
    skew_of,
    tables_of,
)
from workloads.errors import InputError


def rows_from_folder(folder: Path) -> Rows:
    """The tables of all widths as operator rows, for any model and width."""
    meta = Meta.read(folder if (folder / "meta.yaml").is_file() else tables_of(folder)[0][1])
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    experts = any((tables / "moe.csv").is_file() for _, tables in tables_of(folder))
    for tp, tables in tables_of(folder):
        dense = operators(tables / "dense.csv", "tokens", "tokens", meta.model.layers)
        sampled = operators(tables / "per_sequence.csv", "sequences", "rows", 0)
        check_complete(tables, meta.model, dense, sampled, experts)
        _add_dense(found, dense, meta, tp)
        _add_sampled(found, sampled, meta, tp)
        _add_attention(found, tables / "attention.csv", meta, tp)
        _add_experts(found, tables / "moe.csv", meta, tp)
    found["all_reduce"] += _all_reduces(folder)
    skews = [skew_of(tables / "skew.csv") for _, tables in tables_of(folder) if (tables / "skew.csv").is_file()]
    about = {
        "kernels": meta.kernels,
        "version": meta.kernels,
        "date": meta.date,
        "source": "LLMServingSim profiler tables",
        "licence": "see the folder's origin",
        "measured_model": meta.model.name,
    }
    more = {"moe": {"router": "included"}}
    return Rows(
        name=folder.resolve().name,
        device={"name": meta.gpu, "memory_gib": memory_gib(meta.gpu, meta.path)},
        gpu=None,
        operators={
            operator: OperatorRows(once(operator, rows), {**about, **more.get(operator, {})})
            for operator, rows in sorted(found.items())
            if rows
        },
        form={"skew": skews[0]} if skews else {},
        host_inside=HOST_INSIDE,
        notes=(f"Measured with {meta.model.name} by LLMServingSim's profiler, not by kvcast.",),
    )


Found = dict[str, list[dict[str, Any]]]
TYPES = {"bf16": "bfloat16", "fp16": "float16"}


def _add_dense(found: Found, dense: list[dict[str, Any]], meta: Meta, tp: int) -> None:
    m = meta.model
    q, kv = m.heads // tp * m.head_dim, -(-m.kv_heads // tp) * m.head_dim
    shape = {
        "qkv_proj": (q + 2 * kv, m.hidden),
        "o_proj": (m.hidden, q),
        "gate_up_proj": (2 * m.intermediate // tp, m.hidden),
        "down_proj": (m.hidden, m.intermediate // tp),
    }
    moved = {
        "embedding": ELEMENTWISE["embedding"] * m.hidden,
        "layernorm": ELEMENTWISE["norm"] * m.hidden,
        "act_fn": ELEMENTWISE["silu_mul"] * (m.intermediate // tp),
        "rotary_emb": 4 * q + 8 * kv,
        "qk_norm": 4 * (q + kv),
    }
    for o in dense:
        name = o["name"]
        for tokens, us in zip(o["tokens"], o["us"], strict=True):
            if name in shape:
                n, k = shape[name]
                found["gemm"].append({"gemm_dtype": _type(meta.weights), "n": n, "k": k, "m": tokens, "us": us})
            elif UNDERSTOOD[name]:
                row = {"name": UNDERSTOOD[name], "bytes_per_token": moved[name], "num_tokens": tokens, "us": us}
                found["elementwise"].append(row)


def _add_sampled(found: Found, sampled: list[dict[str, Any]], meta: Meta, tp: int) -> None:
    vocab = meta.model.vocab // tp
    for o in sampled:
        for rows, us in zip(o["rows"], o["us"], strict=True):
            if o["name"] == "lm_head":
                shape = {"gemm_dtype": "bfloat16", "n": vocab, "k": meta.model.hidden}
                found["gemm"].append({**shape, "m": rows, "us": us})
            else:
                shape = {"name": "sample", "bytes_per_token": 2 * vocab}
                found["elementwise"].append({**shape, "num_tokens": rows, "us": us})


def _add_attention(found: Found, path: Path, meta: Meta, tp: int) -> None:
    m = meta.model
    shape = dict(zip(HEADS, (_type(meta.cache), 0, m.head_dim, -(-m.kv_heads // tp), m.heads // tp), strict=True))
    for (new, cached, batch, context), us in AttentionTable(path, m.layers).us.items():
        if new and batch:
            along = {"isl": new, "step": cached, "batch_size": batch, "decode_step": context - 1}
            found["mixed"].append({**shape, **along, "us": us})
        elif new:
            found["prefill"].append({**shape, "batch_size": 1, "isl": new, "step": cached, "us": us})
        elif batch:
            along = {"batch_size": batch, "step": context - 1, "longest": context - 1}
            found["decode"].append({**shape, **along, "us": us})


def _add_experts(found: Found, path: Path, meta: Meta, tp: int) -> None:
    """With all experts on one GPU a rank of width tp holds a slice of each; else whole ones."""
    for group in meta.model.layer_groups:
        mlp = group.mlp
        if mlp.kind != "moe" or not path.is_file():
            continue
        for ep, us_at in expert_times(path, mlp.experts, mlp.topk).items():
            split = {"moe_tp_size": tp if ep == 1 else 1, "moe_ep_size": ep}
            width = {"hidden_size": meta.model.hidden, "inter_size": mlp.expert_inter}
            shape = {"moe_dtype": _type(meta.weights), **width, "topk": mlp.topk, "num_experts": mlp.experts, **split}
            found["moe"] += [{**shape, "num_tokens": tokens, "us": us} for tokens, us in us_at.items()]


def _all_reduces(folder: Path) -> list[dict[str, Any]]:
    """Of hardware.yaml, which lies above all models of a card: samples of (collective, bytes, us) between `npus`
    GPUs."""
    above = list(folder.resolve().parents)[:5]  # <card>/<organisation>/<model>/<variant>/tp1
    path = next((up / "hardware.yaml" for up in above if (up / "hardware.yaml").is_file()), None)
    if path is None:
        return []
    gpus, size, collective, found = 0, 0, "", []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        key, _, text = line.strip().removeprefix("- ").partition(":")
        try:
            if key == "npus":
                gpus = int(text)
            elif key == "collective":
                collective = text.strip()
            elif key == "bytes":
                size = int(text)
            elif key == "us" and collective == "all_reduce":
                found.append({"num_gpus": gpus, "message_size": size // 2, "us": float(text)})
        except ValueError:
            raise InputError(f"{path}, line {number}: {key} = {text.strip()!r}, expected a number") from None
    if found and gpus < 2:
        raise InputError(f"{path}: field npus is {gpus}; expected the GPUs that the all-reduces were measured between")
    return found


def _type(name: str) -> str:
    return TYPES.get(name, name)
