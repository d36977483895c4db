"""How much of a GPU steps use: model FLOPs over its peak (MFU) and bytes that must move over its bandwidth (MBU).

The one idea: what a step computes and reads follows from its shape and the model's, whatever its time rests on; the
data sheet's peaks say what the device could have done in that time.

    FLOPs   2 x active weights x tokens + attention over (query, key) pairs + states of linear attention + LM head x
            sampled rows; all GPUs of a replica
    bytes   of one GPU: weights once a step (of a mixture, the experts that its tokens reach when routing is even; the
            LM head when it samples), the KV of each decode's context and of each chunk's prompt so far once, the KV of
            new tokens written, states of linear attention read and written. Activations, and what a kernel reads
            twice, are not counted.

Tokens computed again after a preemption count: they are work. How far a layer looks back is its `Reach`, as in
`calibrate.sources.roofline`.

    flops, read = StepWork(model, "bf16", "bf16").of(n_decode, sum_context, n_sampled, chunk_step, chunk_new,
    chunk_cached)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from calibrate.layout import Layout, as_layout
from calibrate.model_spec import ModelSpec
from calibrate.profile import DeviceProfile
from calibrate.sources.roofline import FP8_TYPES, GPUS, experts_touched, step_weights

DRIVER_NAMES = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA L40S": "l40s",
    "NVIDIA B200": "b200",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
    "AMD Instinct MI300X": "mi300x",
}
"""What drivers call the GPUs of the data-sheet table. Other cards of the same chip (H100 PCIe) have other peaks."""


@dataclass(frozen=True)
class Peaks:
    """Of one GPU, from its data sheet."""

    device: str
    flops_per_s: float  #: dense matrix peak in the type of the weights
    bytes_per_s: float
    source: str


def peaks(profile: DeviceProfile) -> Peaks | None:
    """The peaks of a profile's device; None when the data-sheet table has none for it, or none in its type."""
    name = str(profile.device["name"])
    known = {spec.name: spec for spec in GPUS.values()} | {called: GPUS[key] for called, key in DRIVER_NAMES.items()}
    if name not in known:
        return None
    spec = known[name]
    if profile.dtype == "fp32":
        return None
    flops = (spec.fp8_flops if profile.dtype in FP8_TYPES else 0.0) or spec.bf16_flops
    return Peaks(spec.name, flops, spec.bandwidth, spec.source.split("; MFU")[0])


class StepWork:
    """FLOPs and bytes of steps of a model on one replica: `width` tensor-parallel GPUs, or those of a layout.

    Of attention_dp ranks a step holds the work of all, so a GPU moves its rank's share. Of pipeline stages a step is a
    round of as many batches, each of which reads a stage's weights: together what one batch reads of all layers."""

    def __init__(self, model: ModelSpec, dtype: str, kv_dtype: str, width: int | Layout = 1) -> None:
        layout = replace(as_layout(width), pipeline_parallel=1)
        tensor_parallel, self._ranks = layout.tensor_parallel, layout.attention_dp
        self.model = model
        self._read = step_weights(model, dtype, layout)
        self._reaches = model.reaches(kv_dtype, tensor_parallel)
        self._kv_bytes = model.kv_bytes_per_token(kv_dtype, tensor_parallel)
        self._state_bytes = 2 * model.state_bytes(tensor_parallel)

    def of(
        self,
        n_decode: np.ndarray,
        sum_context: np.ndarray,
        n_sampled: np.ndarray,
        chunk_step: np.ndarray,
        chunk_new: np.ndarray,
        chunk_cached: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(FLOPs of all GPUs, bytes of one GPU) of every step, float64 [n].

        n_decode, sum_context (the token computed in the step included) and n_sampled: [n]. chunk_*: [m], the prefill
        chunks of all steps: the step's position, its new tokens and those already in the KV cache."""
        model, n = self.model, len(n_decode)
        new, cached = chunk_new.astype(np.float64), chunk_cached.astype(np.float64)

        def by_step(values: np.ndarray) -> np.ndarray:
            return np.bincount(chunk_step, weights=values, minlength=n)

        tokens, chunks = n_decode + by_step(new), by_step(np.ones_like(new))
        flops = tokens * float(model.linear_flops_per_token) + n_sampled * float(model.lm_head_flops)
        moved = self._read.dense + (n_sampled > 0) * self._read.head + tokens * self._kv_bytes / self._ranks
        moved = moved + (n_decode + chunks) * self._state_bytes / self._ranks
        if model.experts:
            moved = moved + self._read.expert * experts_touched(model, tokens)
        for reach in self._reaches:
            keys = reach.decode_keys(n_decode, sum_context.astype(np.float64))
            pairs, kept = by_step(reach.pairs(new, cached)), by_step(reach.kept(new, cached))
            flops = flops + reach.count * (keys * reach.decode_flops + pairs * reach.pair_flops)
            moved = moved + reach.count * reach.key_bytes * (keys + kept) / self._ranks
        return flops, np.where(tokens > 0, moved, 0.0)
