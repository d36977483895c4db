"""The cluster over time on one regular grid: KV in use, idle, free, running, waiting; and where the prompt tokens
admitted in each interval went."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sim.measure.columns import summed_by
from sim.measure.held import replicas_at
from sim.measure.metrics import entered_system, run_end_s
from sim.measure.stability import in_system
from sim.recording import Recording

POINTS = 400


def interval_ends(rec: Recording) -> np.ndarray:
    """float64 [POINTS]: the ends of the run's intervals, seconds; the first begins at 0."""
    return np.linspace(0.0, run_end_s(rec), POINTS + 1)[1:]


def interval_of(ends: np.ndarray, t_s: np.ndarray) -> np.ndarray:
    """int64: the interval that each time lies in; one that begins at it, not one that ends there."""
    return np.minimum(np.searchsorted(ends, t_s, side="right"), len(ends) - 1)


def timeline(rec: Recording, prompt_tokens: np.ndarray, fates: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns [POINTS]. States are summed over replicas at t_s; tokens and rates are of the requests admitted in the
    interval that ends there.

    fates: columns of tokens by request [n], summed by interval under the same names, for all requests that were ever
    admitted. hit_rate is NaN in an interval without admissions; *_ceiling are the same with caches that never evict.
    """
    t, points = interval_ends(rec), POINTS
    state = {name: np.zeros(points, np.int64) for name in ("blocks_in_use", "blocks_cached_idle", "running")}
    for samples in rec.samples:
        at = np.searchsorted(samples.t_s, t, side="right") - 1
        for name, total in state.items():
            if len(samples.t_s):
                total += np.where(at >= 0, getattr(samples, name)[np.maximum(at, 0)], 0)
    present = in_system(t, rec.arrival_s, rec.finish_s, entered_system(rec)).astype(np.int64)
    state["waiting"] = np.maximum(present - state["running"], 0)  # a replica's own samples miss arrivals in mid-step
    held = replicas_at(rec, t)
    free = rec.kv_blocks_of.sum() * held // len(rec.steps) - state["blocks_in_use"] - state["blocks_cached_idle"]
    place = interval_of(t, rec.admit_s).astype(np.int16)
    place[np.isnan(rec.admit_s)] = -1

    def binned(column: np.ndarray) -> np.ndarray:
        return summed_by(place, column, points).astype(np.float64)

    prompt = binned(prompt_tokens)
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = {
            "hit_rate": binned(rec.hit_tokens) / prompt,
            "hit_rate_ceiling_replica": binned(rec.ceiling_replica_tokens) / prompt,
            "hit_rate_ceiling_fleet": binned(rec.ceiling_fleet_tokens) / prompt,
        }
    tokens = {name: binned(column).astype(np.int64) for name, column in fates.items()}
    columns = {"t_s": t, **state, "blocks_free": free, "prompt_tokens": prompt, **rates, **tokens}
    return columns if rec.held_s is None else {**columns, "replicas_held": np.asarray(held)}
