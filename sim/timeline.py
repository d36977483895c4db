"""The cluster's state over time on one regular grid, for plots: KV in use, idle, free, running, waiting, hit rate."""
from __future__ import annotations

import numpy as np

from sim.metrics import entered_system, run_end_s
from sim.recording import Recording
from sim.stability import in_system

POINTS = 400


def timeline(rec: Recording, prompt_tokens: np.ndarray, points: int = POINTS) -> dict[str, np.ndarray]:
    """Columns [points]. States are summed over replicas at t_s; hit_rate is that of the admissions of the bin ending there.

    hit_rate is NaN in a bin without admissions; *_ceiling are the same with caches that never evict.
    """
    edges = np.linspace(0.0, run_end_s(rec), points + 1)
    t = edges[1:]
    state = {name: np.zeros(points, np.int64) for name in ("blocks_in_use", "blocks_cached_idle", "running")}
    for samples in rec.samples:
        at = np.searchsorted(samples.t_s, t, side="right") - 1
        for name, total in state.items():
            if len(samples.t_s):
                total += np.where(at >= 0, getattr(samples, name)[np.maximum(at, 0)], 0)
    here = entered_system(rec)
    present = in_system(t, rec.arrival_s[here], rec.finish_s[here], np.ones(int(here.sum()))).astype(np.int64)
    state["waiting"] = np.maximum(present - state["running"], 0)  # a replica's own samples miss arrivals in mid-step
    free = rec.kv_blocks * len(rec.samples) - state["blocks_in_use"] - state["blocks_cached_idle"]
    admitted = np.flatnonzero(~np.isnan(rec.admit_s))
    place = np.minimum(np.searchsorted(edges, rec.admit_s[admitted], side="right") - 1, points - 1)

    def binned(column: np.ndarray) -> np.ndarray:
        return np.bincount(place, weights=column[admitted], minlength=points)

    prompt = binned(prompt_tokens)
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = {
            "hit_rate": binned(rec.hit_tokens) / prompt,
            "hit_rate_ceiling_replica": binned(rec.ceiling_replica_tokens) / prompt,
            "hit_rate_ceiling_fleet": binned(rec.ceiling_fleet_tokens) / prompt,
        }
    return {"t_s": t, **state, "blocks_free": free, "prompt_tokens": prompt, **rates}
