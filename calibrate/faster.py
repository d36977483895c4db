"""The same GPU with 20 % more of one resource: what would it be worth?

The one idea: a step's time is scaled by the ratio of two others, one with the 20 % and one without. For compute and
memory bandwidth both are rooflines: a profile of measured times does not say what each step waited for. An estimate, as
good as the roofline's split between the two. Communication and host time are parts of a profile by themselves, so both
are the profile, once with that part divided by 1.2. The ratio is never above 1.

    faster(step_time, profile, model, "bf16", "compute")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrate import latency
from calibrate.host import NONE, OPERATOR, HostTime
from calibrate.latency import EXTRAPOLATED, StepTime
from calibrate.models import ModelSpec
from calibrate.profile import DeviceProfile
from calibrate.sources.roofline import gpu_key, roofline_profile
from calibrate.step import Shape, TogetherTime
from workloads.errors import InputError

SHARE = 0.2
RESOURCES = {"compute": ("flops", "attention_flops"), "memory bandwidth": ("bandwidth",)}
"""Resource -> what of a roofline's points it raises."""
INTERCONNECT, HOST = "interconnect", "host time"
ALL_REDUCES = (
    *("all_reduce", "embedding_ar", "ar_1", "ar_2"),
    *("all_gather_reduce_scatter", "all_to_all", "pipeline_send"),
)
"""Operators of a profile in which the GPUs of a replica wait for each other's results."""
HOST_TIMES = ("step_overhead_us", "launch_floor_us")
"""Host time among the points of a profile that was measured with its host."""


@dataclass(frozen=True)
class Faster:
    """A StepTime scaled step by step; every step is marked extrapolated."""

    base: StepTime
    now: StepTime
    then: StepTime

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        shape = (chunks, n_decode, sum_context, max_context, n_sampled)
        return self.base.step(*shape)[0] * (self.then.step(*shape)[0] / self.now.step(*shape)[0]), EXTRAPOLATED

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        shape = (n_decode, sum_context, max_context, k)
        ratio = self.then.decode_stretch(*shape)[0] / self.now.decode_stretch(*shape)[0]
        return self.base.decode_stretch(*shape)[0] * ratio, np.full(k, EXTRAPOLATED, np.int8)


@dataclass(frozen=True)
class FasterTogether(Faster):
    """The same of attention data-parallel ranks."""

    @property
    def ranks(self) -> int:
        return self._each[0].ranks

    @property
    def _each(self) -> tuple[TogetherTime, TogetherTime, TogetherTime]:
        return self.base, self.now, self.then  # type: ignore[return-value]

    def together(self, shapes: Sequence[Shape]) -> tuple[float, int]:
        base, now, then = (one.together(shapes)[0] for one in self._each)
        return base * (then / now), EXTRAPOLATED

    def together_stretch(self, shapes: Sequence[Shape], k: int) -> tuple[np.ndarray, np.ndarray]:
        base, now, then = (one.together_stretch(shapes, k)[0] for one in self._each)
        return base * (then / now), np.full(k, EXTRAPOLATED, np.int8)


def faster(
    step_time: StepTime, profile: DeviceProfile, model: ModelSpec, dtype: str, resource: str, host: HostTime = NONE
) -> StepTime:
    """`step_time` with 20 % more of a resource: a key of RESOURCES, INTERCONNECT or HOST; `host` is the engine's time
    in it, which stays as it is. InputError where that is unknown."""
    now, then = (
        latency.step_time(one, model, dtype, profile.layout, host=host) for one in compared(profile, dtype, resource)
    )
    return (FasterTogether if profile.layout.attention_dp > 1 else Faster)(step_time, now, then)


def compared(profile: DeviceProfile, dtype: str, resource: str) -> tuple[DeviceProfile, DeviceProfile]:
    """Two profiles whose step times have the ratio that 20 % more of the resource makes. InputError says why there are
    none."""
    if resource == INTERCONNECT:
        return profile, replace(profile, points=_sooner_connected(profile))
    if resource == HOST:
        return profile, replace(profile, points=_sooner_launched(profile.points))
    if not profile.layout.plain:
        raise InputError(f"no roofline knows {profile.layout}: what more of its GPUs would do is unknown")
    roofline = (
        profile
        if profile.kind == "roofline"
        else roofline_profile(gpu_key(str(profile.device["name"])), dtype, profile.tensor_parallel, profile.kv_dtype)
    )
    return roofline, replace(
        roofline,
        points={**roofline.points, **{name: roofline.points[name] * (1 + SHARE) for name in RESOURCES[resource]}},
    )


def _sooner_connected(profile: DeviceProfile) -> dict[str, Any]:
    if profile.layout.gpus == 1:
        raise InputError("one GPU a replica: nothing to connect")
    if "all_reduce_share" in profile.points:
        return {**profile.points, "all_reduce_share": profile.points["all_reduce_share"] / (1 + SHARE)}
    parts = {name: profile.points[name] for name in ("dense", "all_ranks") if name in profile.points}
    sooner: dict[str, Any] = {
        name: [_sooner(op) if op["name"] in ALL_REDUCES else op for op in ops] for name, ops in parts.items()
    }
    if sooner == parts:
        raise InputError(f"profile {profile.id!r} holds no all-reduce: what its GPUs wait for each other is unknown")
    return {**profile.points, **sooner}


def has_host_time(profile: DeviceProfile) -> bool:
    """Whether step times of the profile contain time of the host."""
    return _sooner_launched(profile.points) != profile.points


def _sooner_launched(points: dict[str, Any]) -> dict[str, Any]:
    less = {name: points[name] / (1 + SHARE) for name in HOST_TIMES if name in points}
    rows = (
        {"per_sequence": [_sooner(op) if op["name"] == OPERATOR else op for op in points["per_sequence"]]}
        if "per_sequence" in points
        else {}
    )
    return {**points, **less, **rows}


def _sooner(operator: dict[str, Any]) -> dict[str, Any]:
    return {**operator, "us": [us / (1 + SHARE) for us in operator["us"]]}
