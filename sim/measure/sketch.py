"""What a verdict needs of a run, and nothing else: for the many runs that are only compared.

The one idea: causes, scopes, inter-token gaps and costs take as long to work out as the run itself; whether requests
met their limits, and whether the fleet keeps up, take next to nothing.

    >>> columns, summary = sketch(recording, workload, scenario)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.measure import metrics, pools
from sim.measure.numbers import fate_counts
from sim.measure.report import judged_window, stability_of
from sim.recording import COMPLETED, NOT_ARRIVED, Recording
from sim.scenario import Scenario
from workloads.columns import Workload

COLUMNS = ("class_id", "status", "arrival_s", "in_window", "good", "ttft_s", "tpot_s", "e2e_s")


def sketch(
    rec: Recording, workload: Workload, scenario: Scenario, offered_per_s: float | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """COLUMNS of every request [n], and the keys of a Report's summary that a plan reads."""
    window, inside = judged_window(rec, workload, scenario.run)
    class_id = workload.column("class_id").astype(np.int64)
    times = metrics.per_request(rec, workload)
    completed = rec.status == COMPLETED
    good = metrics.good(times, completed, class_id, [limits for _, limits in metrics.limits_of(workload, scenario.slo)])
    shares = metrics.step_shares(rec.steps, window)
    stability = stability_of(rec, workload, window)
    columns = {
        "class_id": class_id,
        "status": rec.status,
        "arrival_s": rec.arrival_s,
        "in_window": inside,
        "good": good,
        **{name: times[name] for name in ("ttft_s", "tpot_s", "e2e_s")},
    }
    return columns, {
        "offered_per_s": offered_per_s,
        "arrived": int(inside.sum()),
        "completed": int((inside & completed).sum()),
        **fate_counts(rec.status[inside]),
        "outside_window": int((rec.status != NOT_ARRIVED).sum() - inside.sum()),
        "not_arrived": int((rec.status == NOT_ARRIVED).sum()),
        "lost_with_session": metrics.lost_with_session(rec, workload),
        "censored": bool(inside.sum() - (inside & completed).sum() > metrics.CENSORED_SHARE * inside.sum()),
        "stable": stability.stable,
        "stable_reason": stability.reason,
        "gpu_busy_s": (
            shares["busy_s"] * scenario.hardware.gpus
            if rec.handed is None
            else pools.busy_gpus_s(rec, window, scenario)
        ),
        "coverage": {k: shares[k] for k in ("measured", "interpolated", "extrapolated")},
        "window": {"start_s": window.start_s, "end_s": window.end_s, "last_arrival_s": window.last_arrival_s},
    }
