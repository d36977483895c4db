"""What a step of a decoder is made of: operators with shapes, FLOPs and bytes, and the points a calibration measures.

The one idea: a point is an operator's name and its shape, nothing of the model, so two models of one device share the
points whose shapes agree. `step_operators` says which shapes a model's step runs, how often, and along which axis.

    python -c "from calibrate.models import resolve_model as m; from calibrate.operators import step_operators as s;
    print(*s(m('llama-3.1-8b')), sep='\\n')"
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from calibrate.models import ModelSpec
from workloads.errors import InputError

ELEMENT_BYTES = {"bf16": 2, "fp8": 2, "fp16": 2, "fp32": 4, "fp64": 8}
"""Of activations and KV; fp8 is a type of the weights of a layer's matrix multiplies, whose points say so."""
GROUPS = {
    "gemm": ("gemm",),
    "attention": ("prefill", "decode", "mixed"),
    "elementwise": ("embedding", "rms_norm", "qk_norm", "rope_kv_write", "silu_mul", "sample"),
    "moe": ("moe",),
    "all_reduce": ("all_reduce",),
    "host": ("host", "launch", "activation", "kv_capacity"),
}
"""What a calibration may be told to measure -> its operators; the device's own ceilings are always measured."""


@dataclass(frozen=True)
class Point:
    """One thing to measure. unit: us (a time), bytes or blocks."""

    op: str
    shape: dict[str, int] = field(hash=False)
    unit: str = "us"

    @property
    def key(self) -> str:
        return self.op + " " + json.dumps(self.shape, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class StepOperator:
    """An operator of one step: `repeat` calls, each of `shape` plus the step's tokens (or sampled rows) on `axis`."""

    name: str
    op: str
    repeat: int
    axis: str  #: name of the shape key that grows with the step
    shape: dict[str, int] = field(hash=False)
    per_row: bool = False  #: grows with the sampled rows instead of all tokens

    def point(self, count: int) -> Point:
        return Point(self.op, {**self.shape, self.axis: count})


def supported(model: ModelSpec) -> None:
    """InputError for a model whose attention the kernels do not compute."""
    if model.is_mla or model.sliding_layers:
        kind = "latent attention (MLA)" if model.is_mla else "sliding windows"
        raise InputError(
            f"model {model.name}: calibration measures full attention over KV heads; this model has {kind}"
        )
    if model.groups or (model.experts and model.moe_layers != model.layers):
        raise InputError(
            f"model {model.name}: calibration measures layers of one shape with experts in all of them or in none; this"
            f" model has {len(model.layer_groups)} kinds of layers, or shared experts"
        )
    if model.sandwich_norms:
        raise InputError(f"model {model.name}: calibration does not measure norms around both sides of a layer")


def step_operators(model: ModelSpec, tp: int = 1) -> list[StepOperator]:
    """Everything but attention that one rank runs in a step, in the order of a forward pass."""
    supported(model)
    if model.heads % tp or model.intermediate % tp or model.vocab % tp:
        raise InputError(
            f"tensor_parallel {tp}: expected a divisor of {model.name}'s {model.heads} heads, {model.intermediate} and"
            f" {model.vocab} columns"
        )
    n, h = model.layers, model.hidden
    heads, kv_heads = model.heads // tp, -(-model.kv_heads // tp)
    gemm = lambda name, repeat, width, k, row=False: StepOperator(name, "gemm", repeat, "m", {"n": width, "k": k}, row)  # noqa: E731
    operators = [
        StepOperator("embedding", "embedding", 1, "tokens", {"hidden": h, "vocab": model.vocab // tp}),
        StepOperator("norm", "rms_norm", 2 * n, "tokens", {"hidden": h}),
        gemm("qkv", n, (heads + 2 * kv_heads) * model.head_dim, h),
        StepOperator(
            "rope_kv_write",
            "rope_kv_write",
            n,
            "tokens",
            {"heads": heads, "kv_heads": kv_heads, "head_dim": model.head_dim},
        ),
        gemm("attention_out", n, h, heads * model.head_dim),
    ]
    if model.qk_norm:
        operators.append(
            StepOperator(
                "qk_norm", "qk_norm", n, "tokens", {"heads": heads, "kv_heads": kv_heads, "head_dim": model.head_dim}
            )
        )
    if model.experts:
        width = model.expert_intermediate // tp
        operators.append(
            StepOperator(
                "experts",
                "moe",
                n,
                "tokens",
                {"hidden": h, "width": width, "experts": model.experts, "top_k": model.experts_per_token},
            )
        )
    else:
        width = model.intermediate // tp
        operators += [
            gemm("gate_up", n, 2 * width, h),
            StepOperator("silu_mul", "silu_mul", n, "tokens", {"width": width}),
            gemm("down", n, h, width),
        ]
    return [
        *operators,
        StepOperator("final_norm", "rms_norm", 1, "tokens", {"hidden": h}),
        gemm("lm_head", 1, model.vocab // tp, h, True),
        StepOperator("sampler", "sample", 1, "rows", {"vocab": model.vocab // tp}, True),
    ]


def attention_shape(model: ModelSpec, tp: int = 1) -> dict[str, int]:
    return {"heads": model.heads // tp, "kv_heads": -(-model.kv_heads // tp), "head_dim": model.head_dim}


def features(point: Point, element_bytes: int) -> dict[str, float]:
    """What a point's time can depend on: `gflop` of matrix units, `mb` moved, and counts; all >= 0.

    gemm 2mnk FLOPs; attention 4 x heads x head_dim FLOPs per (query, key) pair; bytes as an ideal kernel moves them.
    """
    return _FEATURES[point.op](point.shape, element_bytes)


def _gemm(s: dict[str, int], b: int) -> dict[str, float]:
    m, n, k = s["m"], s["n"], s["k"]
    inputs = 1 if s.get("fp8") else b
    return {"gflop": 2e-9 * m * n * k, "mb": 1e-6 * (inputs * (n * k + m * k) + b * m * n)}


def _all_reduce(s: dict[str, int], b: int) -> dict[str, float]:
    """What a ring moves over a link."""
    return {"mb": 2e-6 * b * s["elements"] * (s["gpus"] - 1) / s["gpus"]}


def _moved(per_token: Any) -> Any:
    return lambda s, b: {"mb": 1e-6 * b * s["tokens"] * per_token(s), "tokens": s["tokens"]}


def _kv_mb(s: dict[str, int], b: int, tokens: float) -> float:
    return 2e-6 * b * s["kv_heads"] * s["head_dim"] * tokens


def _prefill(s: dict[str, int], b: int) -> dict[str, float]:
    new, cached, seqs = s["new"], s["cached"], s.get("seqs", 1)
    pairs = seqs * new * (cached + (new + 1) / 2)
    return {
        "gflop": 4e-9 * s["heads"] * s["head_dim"] * pairs,
        "tokens": seqs * new,
        "mb": _kv_mb(s, b, seqs * (new + cached)),
    }


def _decode(s: dict[str, int], b: int) -> dict[str, float]:
    longest = s.get("longest", s["context"])
    return {"mb": _kv_mb(s, b, (s["batch"] - 1) * s["context"] + longest), "seqs": s["batch"], "longest": longest}


def _mixed(s: dict[str, int], b: int) -> dict[str, float]:
    prefill, decode = _prefill(s, b), _decode(s, b)
    return {**{f"prefill_{k}": v for k, v in prefill.items()}, **{f"decode_{k}": v for k, v in decode.items()}}


def _moe(s: dict[str, int], b: int) -> dict[str, float]:
    """Even routing: E (1 - (1 - k/E)^tokens) experts are read."""
    touched = s["experts"] * (1.0 - (1.0 - s["top_k"] / s["experts"]) ** s["tokens"])
    weights = 3 * s["hidden"] * s["width"]
    return {
        "gflop": 2e-9 * s["tokens"] * s["top_k"] * weights,
        "mb": 1e-6 * b * touched * weights,
        "tokens": s["tokens"],
    }


_FEATURES: dict[str, Any] = {
    "copy": lambda s, b: {"mb": 2e-6 * s["bytes"]},
    "matmul": _gemm,
    "gemm": _gemm,
    "prefill": _prefill,
    "decode": _decode,
    "mixed": _mixed,
    "moe": _moe,
    "all_reduce": _all_reduce,
    "embedding": _moved(lambda s: 2 * s["hidden"]),
    "rms_norm": _moved(lambda s: 4 * s["hidden"]),
    "silu_mul": _moved(lambda s: 3 * s["width"]),
    "rope_kv_write": _moved(lambda s: (2 * s["heads"] + 4 * s["kv_heads"]) * s["head_dim"]),
    "qk_norm": _moved(lambda s: 2 * (s["heads"] + s["kv_heads"]) * s["head_dim"]),
    "sample": lambda s, b: {"mb": 1e-6 * b * s["rows"] * s["vocab"], "tokens": s["rows"]},
    "node_gap": lambda s, b: {},
    "host": lambda s, b: {"seqs": s["seqs"]},
    "launch": lambda s, b: {"tokens": s["tokens"]},
    "activation": lambda s, b: {"tokens": s["tokens"]},
    "kv_capacity": lambda s, b: {},
}
