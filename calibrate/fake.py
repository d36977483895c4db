"""A device whose times are known formulas and seeded noise: it proves the path from measuring to simulating.

The one idea: `FakeDevice` answers points and `FakeStepTime` answers steps from the same forms, so what calibration
makes of the first can be compared with the second, which is the truth.

    kvcast calibrate --model llama-3.1-8b --device fake --out profile.json
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrate.forms import Form
from calibrate.models import ModelSpec
from calibrate.operators import Point, attention_shape, features, step_operators

BYTES = 2
_STREAM = Form(2.0, {}, {"mb": 0.25})
TRUTH: dict[str, Form] = {
    "gemm": Form(5.0, {"gflop": 1.4}, {"mb": 0.25}),
    "moe": Form(12.0, {"gflop": 2.2, "tokens": 0.02}, {"mb": 0.27}),
    "prefill": Form(9.0, {"gflop": 2.1, "tokens": 0.03}, {"mb": 0.3}),
    "decode": Form(10.0, {"longest": 0.002}, {"mb": 0.26, "seqs": 0.15}),
    "sample": Form(8.0, {}, {"mb": 0.3}),
    "host": Form(400.0, {}, {"seqs": 6.0}),
    **dict.fromkeys(("embedding", "rms_norm", "qk_norm", "silu_mul", "rope_kv_write"), _STREAM),
    "copy": _STREAM,
    "matmul": Form(5.0, {"gflop": 1.3}, {"mb": 0.25}),
    "all_reduce": Form(6.0, {}, {"mb": 3.0}),
}
NODE_GAP_US, ACTIVATION_BYTES, KV_BLOCKS = 1.2, 120_000, 40_000
MIXED = 0.8
"""A call that holds prefill and decode takes this share of the two apart."""
LAUNCH_US = 900.0
"""Least time of the kernels of a step with prefill chunks, unless a device is made with another."""


def true_us(point: Point) -> float:
    """Microseconds of a point."""
    if point.op == "mixed":
        s = point.shape
        return MIXED * (true_us(Point("prefill", s)) + true_us(Point("decode", s)))
    return TRUTH[point.op].us(features(point, BYTES))


class FakeDevice:
    """Answers from TRUTH with Gaussian noise whose seed is the point, so that a resumed run measures what an unbroken
    one does."""

    def __init__(
        self, noise: float = 0.01, samples: int = 7, seed: int = 0, launch_us: float = LAUNCH_US, gpus: int = 1
    ):
        self.noise, self.samples, self.seed, self.launch_us, self.gpus = noise, samples, seed, launch_us, gpus

    def about(self) -> dict[str, Any]:
        return {"name": "fake device (known formulas)", "memory_gib": 139.81}

    def kernels(self) -> str:
        return "formulas of calibrate/fake.py"

    def clocks(self) -> dict[str, float]:
        return {}

    def measure(self, point: Point) -> list[float]:
        other = {"node_gap": NODE_GAP_US, "launch": self.launch_us, "kv_capacity": float(KV_BLOCKS)}
        if point.op == "activation":
            return [float(ACTIVATION_BYTES * point.shape["tokens"])]
        value = other[point.op] if point.op in other else true_us(point)
        rng = np.random.default_rng([self.seed, *point.key.encode()])
        return (
            [value] if point.unit != "us" else (value * (1 + self.noise * rng.standard_normal(self.samples))).tolist()
        )


class FakeStepTime:
    """The truth as a StepTime: the sum of the operators of a step, from TRUTH, and no less than launching them with
    prefill chunks."""

    def __init__(self, model: ModelSpec, launch_us: float = LAUNCH_US):
        self._floor_us = TRUTH["host"].overhead_us + launch_us
        self._operators, self._attention, self._layers = step_operators(model), attention_shape(model), model.layers

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        tokens = n_decode + sum(new for new, _ in chunks)
        us = TRUTH["host"].us({"seqs": n_sampled})
        for operator in self._operators:
            count = n_sampled if operator.per_row else tokens
            if count:
                us += operator.repeat * true_us(operator.point(count))
        us += self._layers * self._attention_us(chunks, n_decode, sum_context, max_context)
        if chunks:
            us = max(us, self._floor_us)
        return us * 1e-6, 0

    def _attention_us(self, chunks: Sequence[tuple[int, int]], n: int, total: int, longest: int) -> float:
        us = 0.0
        if chunks:  # one call: the work of the sequences adds
            parts = [
                features(Point("prefill", {**self._attention, "new": new, "cached": cached}), BYTES)
                for new, cached in chunks
            ]
            us += TRUTH["prefill"].us({k: sum(p[k] for p in parts) for k in parts[0]})
        if n:
            per_token = features(Point("decode", {**self._attention, "batch": 1, "context": 1}), BYTES)["mb"]
            us += TRUTH["decode"].us({"mb": per_token * total, "seqs": n, "longest": longest})
        return us * MIXED if chunks and n else us

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        seconds = [self.step([], n_decode, sum_context + i * n_decode, max_context + i, n_decode)[0] for i in range(k)]
        return np.array(seconds), np.zeros(k, np.int8)
