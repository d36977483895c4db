"""The same GPU with 20 % more of one resource: what would it be worth?

The one idea: a profile of measured times does not say what each step waited for, a roofline does. So a step's time is scaled by
the ratio of the roofline's time with and without the 20 %. An estimate, as good as the roofline's split between compute
and memory; the ratio is never above 1.

    faster(step_time, profile, model, "bf16", "compute")
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.latency import EXTRAPOLATED, StepTime
from calibrate.models import ModelSpec
from calibrate.profile import DeviceProfile
from calibrate.sources.roofline import GPUS, RooflineStepTime, roofline_profile
from workloads.errors import InputError

SHARE = 0.2
RESOURCES = {"compute": ("flops", "attention_flops"), "memory bandwidth": ("bandwidth",)}
"""Resource -> what of a roofline's points it raises."""


@dataclass(frozen=True)
class Faster:
    """A StepTime scaled step by step; every step is marked extrapolated."""

    base: StepTime
    now: StepTime
    then: StepTime

    def step(self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int) -> tuple[float, int]:
        shape = (chunks, n_decode, sum_context, max_context, n_sampled)
        return self.base.step(*shape)[0] * (self.then.step(*shape)[0] / self.now.step(*shape)[0]), EXTRAPOLATED

    def decode_stretch(self, n_decode: int, sum_context: int, max_context: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        shape = (n_decode, sum_context, max_context, k)
        ratio = self.then.decode_stretch(*shape)[0] / self.now.decode_stretch(*shape)[0]
        return self.base.decode_stretch(*shape)[0] * ratio, np.full(k, EXTRAPOLATED, np.int8)


def faster(step_time: StepTime, profile: DeviceProfile, model: ModelSpec, dtype: str, resource: str) -> StepTime:
    """`step_time` with 20 % more of a resource (a key of RESOURCES). InputError when the GPU has no roofline."""
    roofline = profile if profile.kind == "roofline" else roofline_profile(gpu_key(str(profile.device["name"])), dtype, profile.tensor_parallel, profile.kv_dtype)
    points = {**roofline.points, **{name: roofline.points[name] * (1 + SHARE) for name in RESOURCES[resource]}}
    return Faster(step_time, RooflineStepTime(roofline, model), RooflineStepTime(replace(roofline, points=points), model))


def gpu_key(device: str) -> str:
    """The roofline's name for a device as a driver or a profile calls it. InputError when it has none."""
    words = re.sub(r"[^a-z0-9]+", "-", device.lower())
    found = [key for key in GPUS if key in words]
    if not found:
        raise InputError(f"device {device!r} is not among the GPUs with a roofline ({', '.join(GPUS)}): what more compute or bandwidth would do is unknown")
    return max(found, key=len)
