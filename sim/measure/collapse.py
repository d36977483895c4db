"""Did the fleet hold its target for a part of the run, and then never again? One number for both would be neither.

The one idea: cut the window's arrivals into twenty parts of equal number. A run fell when its first parts together
attain the target and each of the parts after them misses it beyond chance (by Wilson's interval). So far one run can
tell unstable or metastable from stable: which of both, only a run with less load after it can (kvcast resilience).

    >>> fall_of(arrival_s, good, class_id, groups(limits, slo))
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sim.measure.verdict import CONFIDENCE, POOLED, wilson

PARTS = 20
FEWEST = 10  #: arrivals in a part
LEAST = 2  #: parts before, and after


def fall_of(
    arrival_s: np.ndarray, good: np.ndarray, class_id: np.ndarray, targets: Sequence[tuple[str, float, list[int]]]
) -> dict[str, Any] | None:
    """Of the first group (name, target, its classes) that held and fell: when, and the share that was good before and
    after. arrival_s, good (bool), class_id: [n], the arrivals of the window. None when no group did."""
    for name, target, members in targets:
        mine = np.isin(class_id, members) & ~np.isnan(arrival_s)
        order = np.argsort(arrival_s[mine], kind="stable")
        times_s, met = arrival_s[mine][order], good[mine][order]
        n = len(times_s)
        if n < PARTS * FEWEST:
            continue
        edges = np.arange(PARTS + 1) * n // PARTS
        missed = [wilson(float(met[a:b].sum()), int(b - a), CONFIDENCE)[1] < target for a, b in pairwise(edges)]
        held = PARTS
        while held and missed[held - 1]:
            held -= 1
        at = edges[held]
        if LEAST <= held <= PARTS - LEAST and met[:at].mean() >= target:
            return {
                "group": "" if name == POOLED or len(targets) == 1 else name,
                "target": target,
                "at_s": float(times_s[at]),
                "before": float(met[:at].mean()),
                "after": float(met[at:].mean()),
            }
    return None
