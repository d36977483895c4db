"""How much of a GPU steps use: model FLOPs over its peak (MFU) and bytes that must move over its bandwidth (MBU).

The one idea: what a step computes and reads follows from its shape and the model's, whatever its time rests on; the
data sheet's peaks say what the device could have done in that time.

    FLOPs   2 x active weights x tokens + attention over (query, key) pairs + LM head x sampled rows; all GPUs of a
    replica bytes   of one GPU: weights once a step (of a mixture, the experts that its tokens reach when routing is
    even; the LM head
            when it samples), the KV of each decode's context and of each chunk's prompt so far once, the KV of new
            tokens written. Activations, and what a kernel reads twice, are not counted.

Tokens computed again after a preemption count: they are work. Layers with a sliding window count as in
`calibrate.sources.roofline`.

    flops, read = StepWork(model, "bf16", "bf16").of(n_decode, sum_context, n_sampled, chunk_step, chunk_new,
    chunk_cached)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrate.model_spec import ModelSpec, dtype_bytes, windowed_pairs
from calibrate.profile import DeviceProfile
from calibrate.sources.roofline import GPUS, experts_touched

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
    flops = {"bf16": spec.bf16_flops, "fp16": spec.bf16_flops, "fp8": spec.fp8_flops}.get(profile.dtype)
    return Peaks(spec.name, flops, spec.bandwidth, spec.source.split("; MFU")[0]) if flops else None


class StepWork:
    """FLOPs and bytes of steps of a model on `tensor_parallel` GPUs."""

    def __init__(self, model: ModelSpec, dtype: str, kv_dtype: str, tensor_parallel: int = 1) -> None:
        self.model, self.tp = model, tensor_parallel
        self._head_bytes = model.vocab * model.hidden * 2 / tensor_parallel
        self._expert_bytes = model.moe_layers * model.expert_parameters * dtype_bytes(dtype) / tensor_parallel
        table = self._head_bytes * (1 if model.tied_embeddings else 2)
        self._weight_bytes = model.weight_bytes(dtype, tensor_parallel) - table - model.experts * self._expert_bytes
        self._kv_bytes = model.layer_kv_bytes(kv_dtype, tensor_parallel)

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

        tokens = n_decode + by_step(new)
        decode_keys = model.full_layers * sum_context.astype(np.float64)
        pairs = model.full_layers * (new * cached + new * (new + 1) / 2)
        prefill_keys = model.full_layers * (new + cached)
        if model.sliding_layers:
            decode_keys = decode_keys + model.sliding_layers * np.minimum(
                sum_context, n_decode.astype(np.float64) * model.window
            )
            pairs = pairs + model.sliding_layers * windowed_pairs(new, cached, model.window)
            prefill_keys = prefill_keys + model.sliding_layers * np.minimum(new + cached, new + model.window)
        flops = (
            tokens * model.linear_flops_per_token
            + n_sampled * float(model.lm_head_flops)
            + decode_keys * model.decode_attention_flops
            + by_step(pairs) * model.layer_attention_flops
        )
        weights = self._weight_bytes + (n_sampled > 0) * self._head_bytes
        if model.experts:
            weights = weights + self._expert_bytes * experts_touched(model, tokens)
        keys = decode_keys + by_step(prefill_keys) + tokens * model.layers
        return flops, np.where(tokens > 0, weights + keys * self._kv_bytes, 0.0)
