"""MFU and MBU of a run: what its steps computed and moved over what the device could have in their time.

The one idea: a mean weighted by step time of work over time is all work over all time, so sums are all that is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.measure.metrics import AT_ONCE, Window, dot, inside
from sim.recording import Recording, Steps

if TYPE_CHECKING:
    from calibrate.utilization import Peaks, StepWork


def utilization(
    rec: Recording, window: Window, busy_s: float, gpus: float, step_work: StepWork | None, peaks: Peaks | None
) -> dict[str, Any]:
    """MFU and MBU: work over what the device could have done in the steps' time, so means weighted by step time."""
    done = None if step_work is None else work_done(rec.steps, window, step_work)
    flops, moved = done or (None, None)
    known = peaks is not None and done is not None and busy_s > 0
    return {
        "mfu": flops / (busy_s * gpus * peaks.flops_per_s) if known else None,  # type: ignore[operator, union-attr]
        "mbu": moved / (busy_s * peaks.bytes_per_s) if known else None,  # type: ignore[operator, union-attr]
        "step_flops": flops,
        "step_bytes_per_gpu": moved,
        "peaks": None if peaks is None else asdict(peaks),
    }


def work_done(all_steps: Sequence[Steps], window: Window, step_work: StepWork) -> tuple[float, float] | None:
    """(FLOPs, bytes of one GPU of each replica) of the steps in the window, summed over replicas; of a step that
    reaches over its edge the share inside. None when the recording says nothing of the steps' shapes."""
    flops = moved = 0.0
    for steps in all_steps:
        shapes = steps.work
        if shapes is None:
            return None
        here, d = inside(steps, window)
        duration_s = steps.duration_s[here]
        share = np.divide(d, duration_s, out=np.zeros(len(d)), where=duration_s > 0)
        del d, duration_s
        n_decode, sum_context, n_sampled = steps.n_decode[here], shapes.sum_context[here], shapes.n_sampled[here]
        chunk_step, chunk_new, chunk_cached = shapes.chunk_step - here.start, shapes.chunk_new, shapes.chunk_cached
        for at in range(0, len(share), AT_ONCE):
            part = slice(at, min(at + AT_ONCE, len(share)))
            lo, hi = np.searchsorted(chunk_step, [part.start, part.stop])
            each = step_work.of(
                n_decode[part],
                sum_context[part],
                n_sampled[part],
                chunk_step[lo:hi] - at,
                chunk_new[lo:hi],
                chunk_cached[lo:hi],
            )
            flops, moved = flops + dot(share[part], each[0]), moved + dot(share[part], each[1])
    return flops, moved
