"""How well step times between the measured points are predicted: points are left out, and what is left predicts them.

The one idea: a profile's own points are the measurement, so every second one is taken away and its whole step is
predicted by interpolation from the rest, as a simulation does on a grid twice as coarse: an upper estimate of the error
inside the grid.

    >>> errors = [p.error for p in left_out(profile)]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrate.profile import DeviceProfile

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True)
class Step:
    """A whole step of the profile, and what its neighbours predict."""

    kind: str  #: PREFILL or DECODE
    words: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Relative; positive: predicted too slow."""
        return self.predicted_s / self.measured_s - 1


def left_out(profile: DeviceProfile) -> list[Step]:
    """Whole steps at the points left out, shortest axis ends kept; empty for a profile without tables (a roofline).

    Decode: every batch of the table at every second context. Prefill: every second prompt length, nothing cached (steps
    over a cached prefix rest on a formula in most tables). Points that a form supplied beyond the measurement are not
    compared."""
    from calibrate.sources.tables import TableStepTime

    if profile.kind != "tables":
        return []
    points = profile.points
    whole, thinned = TableStepTime(points), TableStepTime(_thinned(points))
    decode, prefill = points["decode_attention"], points["prefill_attention"]
    reach = decode.get("measured_context") or [decode["context"][-1]] * len(decode["batch"])
    steps = []
    for i, (n, longest) in enumerate(zip(decode["batch"], reach, strict=True)):
        for j in _odd(len(decode["context"])):
            c = decode["context"][j]
            if decode["us"][i][j] is not None and c <= (longest or 0):
                shape: tuple[Any, ...] = ([], n, n * c, c, n)
                steps.append(
                    Step(
                        DECODE,
                        f"decode, {n:,} sequences of {c:,} tokens",
                        whole.step(*shape)[0],
                        thinned.step(*shape)[0],
                    )
                )
    for j in _odd(len(prefill["new"])):
        new = prefill["new"][j]
        if new <= prefill.get("max_new", new):
            shape = ([(new, 0)], 0, 0, 0, 1)
            steps.append(Step(PREFILL, f"prefill, {new:,} tokens", whole.step(*shape)[0], thinned.step(*shape)[0]))
    return steps


def summary(steps: list[Step]) -> dict[str, dict[str, float]]:
    """{kind: {"points", "mean" and "worst" absolute relative error}}."""
    found = {}
    for kind in (PREFILL, DECODE):
        errors = np.abs([step.error for step in steps if step.kind == kind])
        if len(errors):
            found[kind] = {"points": len(errors), "mean": float(errors.mean()), "worst": float(errors.max())}
    return found


def _odd(n: int) -> range:
    """Every second place, neither the first nor the last."""
    return range(1, n - 1, 2)


def _even(values: list[Any]) -> list[Any]:
    gone = set(_odd(len(values)))
    return [value for i, value in enumerate(values) if i not in gone]


def _thinned(points: dict[str, Any]) -> dict[str, Any]:
    """The same tables on half of their points. A batch size that was measured at points left out only is left out with
    them."""
    decode, prefill = points["decode_attention"], points["prefill_attention"]
    rows = [_even(row) for row in decode["us"]]
    kept = [i for i, row in enumerate(rows) if any(us is not None for us in row)]
    decode = {
        **decode,
        **{name: [decode[name][i] for i in kept] for name in ("batch", "measured_context") if name in decode},
    }
    return {
        **points,
        "dense": [{**op, "tokens": _even(op["tokens"]), "us": _even(op["us"])} for op in points["dense"]],
        "per_sequence": [{**op, "rows": _even(op["rows"]), "us": _even(op["us"])} for op in points["per_sequence"]],
        "decode_attention": {**decode, "context": _even(decode["context"]), "us": [rows[i] for i in kept]},
        "prefill_attention": {**prefill, "new": _even(prefill["new"]), "us": _even(prefill["us"])},
    }
