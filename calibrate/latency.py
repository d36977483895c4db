"""Step times from names: what scripts import of calibration.

The one idea: a profile and a model make one function of a step's shape (`StepTime`), whatever the numbers come from.

    >>> from calibrate.latency import load_step_time
    >>> load_step_time("h200-llama-3.1-8b-aic").step([], 32, 65536, 4096, 32)
"""

from __future__ import annotations

from dataclasses import replace

from calibrate.factors import PLAIN, Factors, factored
from calibrate.host import NONE, HostTime
from calibrate.layout import Layout, as_layout
from calibrate.models import ModelSpec, known_as, resolve_model
from calibrate.profile import DeviceProfile
from calibrate.resolve import engine_defaults, resolve_profile
from calibrate.sources.lock_step import LockStepTime
from calibrate.sources.pipeline import PipelineStepTime
from calibrate.sources.roofline import RooflineStepTime
from calibrate.sources.tables import TableStepTime, check_points
from calibrate.step import COVERAGE, EXTRAPOLATED, INTERPOLATED, MEASURED, StepTime
from calibrate.utilization import peaks
from workloads.errors import InputError

__all__ = [
    "COVERAGE",
    "EXTRAPOLATED",
    "INTERPOLATED",
    "MEASURED",
    "StepTime",
    "engine_defaults",
    "load_step_time",
    "step_time",
]


def step_time(
    profile: DeviceProfile,
    model: ModelSpec,
    dtype: str = "bf16",
    tp: int | Layout = 1,
    overhead_s: float = 0.0,
    host: HostTime = NONE,
    batched_tokens: int = 8192,
    factors: Factors = PLAIN,
) -> StepTime:
    """The step-time function of a model on a profile. overhead_s is added to every step, on top of the profile's own;
    host: an engine's host time (default: none, the GPU's time alone). batched_tokens: token budget of a batch, by which
    pipeline stages share a step. factors: of a server whose parts of a step take other times than the profile's.

    InputError when the profile was made for another model, precision or width: a number would be produced, and be
    wrong."""
    if not profile.fits(known_as(model), dtype, tp):
        made_for = f"{profile.model} {profile.dtype} {profile.layout}"
        raise InputError(
            f"profile {profile.id!r} is for {made_for}; the scenario has {model.name} {dtype} {as_layout(tp)}"
        )
    try:
        return _source(
            factored(profile, factors), model, overhead_s, replace(host, layers=model.layers), batched_tokens
        )
    except (KeyError, TypeError, ValueError, IndexError) as e:
        if isinstance(e, InputError):
            raise
        raise InputError(
            f"profile {profile.id!r}: field points is not in the layout of kind {profile.kind} ({type(e).__name__}:"
            f" {e})"
        ) from e


def _source(
    profile: DeviceProfile, model: ModelSpec, overhead_s: float, host: HostTime, batched_tokens: int
) -> StepTime:
    if profile.kind == "roofline":
        return RooflineStepTime(profile, model, overhead_s, host)
    problems = check_points(profile.points, profile.id)
    if problems:
        raise InputError(problems[0])
    layout, kv_token_s = profile.layout, _kv_token_s(profile, model)
    if layout.attention_dp > 1:
        return LockStepTime(profile.points, layout.attention_dp, overhead_s, host, kv_token_s)
    whole = TableStepTime(profile.points, overhead_s, host, kv_token_s)
    if layout.pipeline_parallel > 1:
        return PipelineStepTime(whole, layout.pipeline_parallel, model.layers, batched_tokens)
    return whole


def _kv_token_s(profile: DeviceProfile, model: ModelSpec) -> float:
    """Least seconds that one more token of context takes a decode: its KV at full bandwidth; 0 where that is not known
    or some layers forget it."""
    known, reaches = peaks(profile), model.reaches(profile.kv_dtype, profile.tensor_parallel)
    if known is None or any(reach.window or reach.chunk for reach in reaches):
        return 0.0
    return model.kv_bytes_per_token(profile.kv_dtype, profile.tensor_parallel) / known.bytes_per_s


def load_step_time(spec: str, model: str = "llama-3.1-8b", dtype: str = "bf16", tp: int = 1) -> StepTime:
    """`step_time` from names: a profile as a scenario names it, and a bundled model."""
    shapes = resolve_model(model)
    return step_time(resolve_profile(spec, shapes, dtype, tp), shapes, dtype, tp)
