"""How far a profile's step times may be off, as one share with its source: what a verdict's second interval is made
from.

The one idea: no profile records the error of whole steps. Of tables measured for a model it is found on their own
points: every second one is left out and its whole step predicted from the rest (kvcast.trust.step_fit). Of an atlas and
a roofline it is the errors of the operators, each weighted by its share of a usual step, as if all had the same sign.
The phase that errs more counts. It says nothing of steps over a cached prefix, host time, other kernels than those
measured, or the GPU's clock.

    >>> step_error(profile).share
    >>> api.at_step_times(prepared, 1 + step_error(profile).share)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibrate.atlas.errors import BATCH, CONTEXT, PROMPT, by_phase
from calibrate.profile import DeviceProfile
from kvcast import text
from kvcast.trust import step_fit


@dataclass(frozen=True)
class StepError:
    """share: mean absolute relative error of a whole step, 0.024 for 2.4 %. source: where that comes from, as a
    clause."""

    share: float
    source: str


def step_error(profile: DeviceProfile) -> StepError:
    """The error of a profile's step times: held out from its own points; a roofline's limit where there are none to
    hold out."""
    from kvcast.validation import roofline

    if profile.kind == "roofline":
        return StepError(
            roofline.LIMIT,
            "a roofline, nothing was measured: the limit that it is held to on GPUs that were (kvcast validate"
            " roofline)",
        )
    if "rests_on" in profile.points:
        return _of_operators(profile.points)
    found = step_fit.summary(step_fit.left_out(profile))
    if not found:
        return StepError(roofline.LIMIT, "too few points to leave any out: taken to be no better than a roofline")
    told = ", ".join(
        f"{kind} {text.percent(row['mean'])} off on average ({row['points']} steps)" for kind, row in found.items()
    )
    return StepError(
        max(row["mean"] for row in found.values()),
        f"every second point of the profile left out and its whole step predicted from the rest: {told}",
    )


def _of_operators(points: dict[str, Any]) -> StepError:
    """The error of a usual decode and prefill step from those of their operators."""
    found = by_phase(points)
    told = ", ".join(f"{kind} {text.percent(share)} (most of it {worst})" for kind, (share, worst) in found.items())
    return StepError(
        max(share for share, _ in found.values()),
        f"the held-out errors of its operators by their share of a step of {BATCH} decodes at {CONTEXT:,} tokens or of"
        f" a prompt of {PROMPT:,}: {told}",
    )
