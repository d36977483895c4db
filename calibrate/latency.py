"""The step-time interface: one function of a step's shape, whatever the numbers come from.

Roofline, operator tables and calibrated profiles all implement `StepTime`. The simulator knows nothing else
about a GPU. Arithmetic inside must be + - * / max min sqrt and table look-ups only (no pow, exp or log), so that
`decode_stretch` (vectorised) and `step` (scalar) agree to the last bit: fast-forward depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from workloads.errors import InputError

if TYPE_CHECKING:
    from calibrate.models import ModelSpec
    from calibrate.profile import DeviceProfile

MEASURED, INTERPOLATED, EXTRAPOLATED = 0, 1, 2
COVERAGE = ("measured", "interpolated", "extrapolated")
"""What a step's time rests on; a step takes the worst of its parts."""


class StepTime(Protocol):
    """Seconds one engine step takes on one replica (all its tensor-parallel ranks together)."""

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        """Seconds and coverage code of one step.

        chunks: (new tokens, tokens already in the KV cache) of every prefill chunk in the step.
        n_decode, sum_context, max_context: decoding sequences, and the sum and maximum of their contexts in
        tokens, the token computed in this step included. n_sampled: rows that go through LM head and sampling.
        """
        ...

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds float64 [k] and coverage codes int8 [k] of k pure-decode steps in a row.

        Step i has the contexts sum_context + i * n_decode and max_context + i, and samples n_decode rows.
        Bit-identical to k calls of `step`.
        """
        ...


def step_time(
    profile: DeviceProfile, model: ModelSpec, dtype: str = "bf16", tp: int = 1, overhead_s: float = 0.0
) -> StepTime:
    """The step-time function of a model on a profile. overhead_s is added to every step, on top of the profile's own.

    InputError when the profile was made for another model, precision or width: a number would be produced, and be
    wrong."""
    from calibrate.models import known_as

    if not profile.fits(known_as(model), dtype, tp):
        made_for = f"{profile.model} {profile.dtype} tensor_parallel {profile.tensor_parallel}"
        raise InputError(
            f"profile {profile.id!r} is for {made_for}; the scenario has {model.name} {dtype} tensor_parallel {tp}"
        )
    try:
        return _source(profile, model, overhead_s)
    except (KeyError, TypeError, ValueError, IndexError) as e:
        if isinstance(e, InputError):
            raise
        raise InputError(
            f"profile {profile.id!r}: field points is not in the layout of kind {profile.kind} ({type(e).__name__}:"
            f" {e})"
        ) from e


def _source(profile: DeviceProfile, model: ModelSpec, overhead_s: float) -> StepTime:
    if profile.kind == "roofline":
        from calibrate.sources.roofline import RooflineStepTime

        return RooflineStepTime(profile, model, overhead_s)
    from calibrate.sources.tables import TableStepTime, check_points

    problems = check_points(profile.points, profile.id)
    if problems:
        raise InputError(problems[0])
    return TableStepTime(profile.points, overhead_s)


def load_step_time(spec: str, model: str = "llama-3.1-8b", dtype: str = "bf16", tp: int = 1) -> StepTime:
    """`step_time` from names: a profile as a scenario names it, and a bundled model."""
    from calibrate.models import resolve_model
    from calibrate.profile import resolve_profile

    shapes = resolve_model(model)
    return step_time(resolve_profile(spec, shapes, dtype, tp), shapes, dtype, tp)


def engine_defaults(profile: DeviceProfile) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) that vLLM 0.33's API server takes on this GPU.

    160 GiB or more: 16,384 and 1,024; 70 GiB or more and not an A100: 8,192 and 1,024; else 2,048 and 256.
    """
    if profile.memory_gib >= 160:
        return 16384, 1024
    if profile.memory_gib >= 70 and "a100" not in str(profile.device["name"]).lower():
        return 8192, 1024
    return 2048, 256
