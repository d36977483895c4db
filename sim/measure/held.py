"""Which replicas hold their GPUs, and when: all of them throughout, unless processes let them fail, drain and start.

The one idea: what is billed, and what shares of the fleet are shares of, is the time in which a replica is not down.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.measure.stability import in_system
from sim.recording import Recording
from workloads import portable


def replicas_held(rec: Recording, start_s: float, end_s: float) -> float:
    """Mean number of replicas that hold their GPUs between two times."""
    if rec.held_s is None or end_s <= start_s:
        return len(rec.steps)
    from_s, to_s = np.clip(_spans(rec), start_s, end_s).T
    return portable.total(to_s - from_s) / (end_s - start_s)


def replicas_at(rec: Recording, t_s: np.ndarray) -> np.ndarray | int:
    """The number of them at each time (ascending, float64 [n]): int64 [n], or one number where it never changes."""
    if rec.held_s is None:
        return len(rec.steps)
    from_s, to_s = _spans(rec).T
    to_s = np.where(to_s < rec.end_s, to_s, np.nan)  # at its end a run still holds what it holds
    return in_system(t_s, from_s, to_s, np.ones(len(from_s))).astype(np.int64)


def _spans(rec: Recording) -> np.ndarray:
    """float64 [m, 2]: (from, to) seconds of all replicas."""
    return np.array([span for spans in rec.held_s or () for span in spans], np.float64).reshape(-1, 2)


def fleet_row(rec: Recording, start_s: float, end_s: float, gpus: int, rule: str) -> dict[str, Any]:
    """What a fleet that changes has held between two times: mean, fewest and most replicas, how many have started, and
    its GPU-hours beside those of all replicas throughout. gpus: of a replica."""
    edges = np.unique(np.clip(_spans(rec).ravel(), start_s, end_s))
    middles = (edges[1:] + edges[:-1]) / 2  # nothing changes between two edges
    counts = np.array([held_at(rec, at_s) for at_s in middles.tolist()] or [0])
    hours = gpus * (end_s - start_s) / 3600
    mean = replicas_held(rec, start_s, end_s)
    return {
        "rule": rule,
        "held": mean,
        "fewest": int(counts.min()),
        "most": int(counts.max()),
        "starts": sum(start_s < from_s <= end_s for spans in rec.held_s or () for from_s, _ in spans),
        "gpu_hours": mean * hours,
        "gpu_hours_all": len(rec.steps) * hours,
    }


def held_at(rec: Recording, at_s: float) -> int:
    """Replicas that hold their GPUs at a time."""
    return sum(from_s <= at_s < to_s for spans in rec.held_s or () for from_s, to_s in spans)
