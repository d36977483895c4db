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

import numpy as np

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


# -- operators that state their errors ---------------------------------------------------------------------------------

BATCH, CONTEXT, PROMPT = 32, 4096, 2048
"""The usual steps: decodes of a batch, and one prompt."""


def _of_operators(points: dict[str, Any]) -> StepError:
    """The error of a usual decode and prefill step from those of their operators."""
    found = {kind: _weighted(points, kind) for kind in ("prefill", "decode")}
    told = ", ".join(f"{kind} {text.percent(share)} (most of it {worst})" for kind, (share, worst) in found.items())
    return StepError(
        max(share for share, _ in found.values()),
        f"the held-out errors of its operators by their share of a step of {BATCH} decodes at {CONTEXT:,} tokens or of"
        f" a prompt of {PROMPT:,}: {told}",
    )


def _weighted(points: dict[str, Any], kind: str) -> tuple[float, str]:
    """Expected error of a step, and the operator that contributes most to it."""
    errors: dict[str, float] = {}
    for one in points["rests_on"]:
        name = kind if one["name"].endswith(f"_{kind}") else one["name"]
        errors[name] = max(errors.get(name, 0.0), one["error"])
    tokens, rows = (BATCH, BATCH) if kind == "decode" else (PROMPT, 1)
    spent = {op["name"]: op["repeat"] * np.interp(tokens, op["tokens"], op["us"]) for op in points["dense"]}
    spent |= {op["name"]: op["repeat"] * np.interp(rows, op["rows"], op["us"]) for op in points["per_sequence"]}
    table = points[f"{kind}_attention"]
    if kind == "decode":
        by_batch = [np.interp(CONTEXT, table["context"], row) for row in table["us"]]
        spent[kind] = table["repeat"] * np.interp(BATCH, table["batch"], by_batch)
    else:
        spent[kind] = table["repeat"] * np.interp(PROMPT, table["new"], [row[0] for row in table["us"]])
    total = sum(spent.values())
    parts = {name: float(us / total * errors.get(name, roofline_limit())) for name, us in spent.items()}
    return sum(parts.values()), max(parts, key=lambda name: parts[name])


def roofline_limit() -> float:
    from kvcast.validation import roofline

    return roofline.LIMIT
