"""The physical form of an operator's time: overhead + a smooth maximum of a compute and a memory term.

    us = overhead + sqrt(compute^2 + memory^2)        each term a sum of coefficient x feature, all coefficients >= 0

The one idea: it is monotone, has three or four parameters with a physical meaning (TFLOP/s, TB/s, microseconds a
sequence), and so goes on sensibly where nothing was measured. Features are those of `calibrate.operators.features`.

    python -c "from calibrate.forms import Form; print(Form(5.0, {'gflop': 1.5}, {'mb': 0.25}).us({'gflop': 100.0, 'mb':
    64.0}))"
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Terms = tuple[tuple[str, ...], tuple[str, ...]]

STREAMING: Terms = ((), ("mb",))
"""An operator that only moves bytes."""
TERMS: dict[str, Terms] = {
    "gemm": (("gflop",), ("mb",)),
    "moe": (("gflop", "tokens"), ("mb",)),
    "prefill": (("gflop", "tokens"), ("mb",)),
    "decode": (("longest",), ("mb", "seqs")),
    "sample": STREAMING,
    "host": ((), ("seqs",)),
    "activation": ((), ("tokens",)),
    **dict.fromkeys(("embedding", "rms_norm", "qk_norm", "silu_mul", "rope_kv_write", "copy", "all_reduce"), STREAMING),
}
"""(compute features, memory features) of every operator that is fitted."""

AXES = {
    "gemm": ("m",),
    "prefill": ("new", "cached", "seqs"),
    "decode": ("batch", "context", "longest"),
    "sample": ("rows",),
    "host": ("seqs",),
    "all_reduce": ("elements",),
    **dict.fromkeys(
        ("moe", "embedding", "rms_norm", "qk_norm", "silu_mul", "rope_kv_write", "activation"), ("tokens",)
    ),
}
"""Shape keys a form runs along; the other keys name the kernel and have their own parameters."""


@dataclass(frozen=True)
class Form:
    """Coefficients in microseconds per unit of a feature: gflop, mb (million bytes), tokens, seqs, longest (context
    tokens)."""

    overhead_us: float
    compute: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    def us(self, features: Mapping[str, float]) -> float:
        """Microseconds at these features."""
        compute = sum(c * features[f] for f, c in self.compute.items())
        memory = sum(c * features[f] for f, c in self.memory.items())
        return self.overhead_us + math.sqrt(compute * compute + memory * memory)

    def described(self) -> dict[str, float]:
        """The parameters in the units people use."""
        known = {
            "gflop": ("tflops", 1e3, True),
            "mb": ("tb_per_s", 1.0, True),
            "tokens": ("ns_per_token", 1e3, False),
            "seqs": ("us_per_sequence", 1.0, False),
            "longest": ("ns_per_longest_context_token", 1e3, False),
        }
        out = {"overhead_us": self.overhead_us}
        for f, c in (*self.compute.items(), *self.memory.items()):
            name, scale, inverse = known[f]
            out[name] = (scale / c if c > 0 else math.inf) if inverse else c * scale
        return out

    def to_json(self) -> dict[str, Any]:
        return {"overhead_us": self.overhead_us, "compute": self.compute, "memory": self.memory}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Form:
        return cls(row["overhead_us"], dict(row["compute"]), dict(row["memory"]))


def kernel_of(op: str, shape: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The shape without the keys a form runs along."""
    axes = AXES[op]
    return tuple(sorted((k, v) for k, v in shape.items() if k not in axes))
