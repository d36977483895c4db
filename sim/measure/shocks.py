"""What a shock did to a run, and whether the fleet came back: before, during, after, and the time to recover.

The one idea: a fleet has recovered at the first minute from which its arrivals attain the target again over the next
ten minutes, and do not miss it beyond chance (Wilson's interval) over all that is left of the window. A fleet that was
back for a while and fell again has not recovered, and one whose window ends too soon has not been seen to.

    >>> told(scenario, columns, limits, samples)[0]["recovered_s"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sim.measure.verdict import CONFIDENCE, groups, wilson
from sim.scenario import CACHE_LOST, Scenario, Shock, SloClass
from workloads import portable

MINUTE_S = 60.0
JUDGED_S = 600.0
"""A fleet is back when it attains its target over as long."""


def span_s(shock: Shock, begins_s: float) -> tuple[float, float]:
    """When it begins and ends, seconds of the run. begins_s: the end of the warm-up."""
    start_s = begins_s + shock.at_s
    return start_s, start_s + (0.0 if shock.kind == CACHE_LOST else shock.duration_s)


def after_shocks_s(shocks: Sequence[Shock], recover_s: float) -> float:
    """Seconds after the warm-up that a window must reach to see whether a fleet comes back within recover_s."""
    return max((span_s(one, 0.0)[1] for one in shocks), default=0.0) + recover_s + JUDGED_S if shocks else 0.0


def told(
    scenario: Scenario, columns: Mapping[str, np.ndarray], classes: Sequence[tuple[str, SloClass]], end_s: float
) -> list[dict[str, Any]]:
    """A row for every shock. columns [n]: arrival_s, in_window, good, class_id; prompt_tokens, hit_tokens, admit_s and
    finish_s where known, and waited_until_s where some wait no more without having been admitted. classes: (name,
    limits) by class_id. end_s: of the window."""
    inside = columns["in_window"].astype(bool) & ~np.isnan(columns["arrival_s"])
    here = {name: column[inside] for name, column in columns.items()}
    begins_s, targets = scenario.run.warmup_s or 0.0, groups(classes, scenario.slo)
    rows = []
    for shock in scenario.shock:
        start_s, stop_s = span_s(shock, begins_s)
        back_s = recovered_s(here, targets, stop_s, end_s) if scenario.slo.attainment else None
        until_s = end_s if back_s is None else stop_s + back_s
        hurt = (here["arrival_s"] >= start_s) & (here["arrival_s"] < until_s)
        rows.append(
            {
                "kind": shock.kind,
                "at_s": shock.at_s,
                "lasts_s": stop_s - start_s,
                "size": shock.how_much or None,
                "before": phase(here, begins_s, start_s),
                "during": phase(here, start_s, stop_s),
                "after": phase(here, stop_s, end_s),
                "held_before": attained(here, targets, begins_s, start_s) if scenario.slo.attainment else None,
                "recovered_s": back_s,
                "seen_s": max(end_s - stop_s - JUDGED_S, 0.0),
                "missed": int((hurt & ~here["good"].astype(bool)).sum()),
            }
        )
    return rows


def recovered_s(
    here: Mapping[str, np.ndarray], targets: Sequence[tuple[str, float, list[int]]], stop_s: float, end_s: float
) -> float | None:
    """Seconds after the shock, whole minutes, from which every group of classes attains its target over the next
    JUDGED_S and does not miss it beyond chance over the rest of the window; None when it does not within the window."""
    arrival_s, good = here["arrival_s"], here["good"].astype(bool)
    edges = np.arange(stop_s, end_s - JUDGED_S + 1e-9, MINUTE_S)
    soon = np.ones(len(edges), bool)
    rest = []  # by group: of the arrivals from each edge on, how many and how many were good; the target
    for _, target, members in targets:
        mine = np.isin(here["class_id"], members) & (arrival_s >= stop_s) & (arrival_s <= end_s)
        times = np.sort(arrival_s[mine])
        by = np.concatenate([[0], np.cumsum(good[mine][np.argsort(arrival_s[mine], kind="stable")])])
        at, to = np.searchsorted(times, edges), np.searchsorted(times, edges + JUDGED_S)
        soon &= by[to] - by[at] >= target * (to - at)
        rest.append((len(times) - at, by[-1] - by[at], target))
    for place in np.flatnonzero(soon):
        if not any(_misses(int(good[place]), int(n[place]), target) for n, good, target in rest):
            return float(edges[place] - stop_s)
    return None


def _misses(good: int, n: int, target: float) -> bool:
    """Whether a share of n misses the target beyond chance."""
    return good < target * n and wilson(good, n, CONFIDENCE)[1] < target


def attained(
    here: Mapping[str, np.ndarray], targets: Sequence[tuple[str, float, list[int]]], from_s: float, to_s: float
) -> bool | None:
    """Whether the arrivals in [from_s, to_s) of every group of classes attain its target; None where nobody came."""
    mine = (here["arrival_s"] >= from_s) & (here["arrival_s"] < to_s)
    shares = [
        (here["good"][of].mean(), target)
        for _, target, members in targets
        if (of := mine & np.isin(here["class_id"], members)).any()
    ]
    return all(share >= target for share, target in shares) if shares else None


def phase(here: Mapping[str, np.ndarray], from_s: float, to_s: float) -> dict[str, Any]:
    """Of the arrivals in [from_s, to_s): how many, the share that was good, the hit rate of their prompts; and the mean
    number that waited meanwhile."""
    mine = (here["arrival_s"] >= from_s) & (here["arrival_s"] < to_s)
    found: dict[str, Any] = {
        "requests": int(mine.sum()),
        "attainment": float(here["good"][mine].mean()) if mine.any() else None,
    }
    if "hit_tokens" in here:
        admitted = mine & ~np.isnan(here["admit_s"])
        prompt = float(here["prompt_tokens"][admitted].sum())
        found["hit_rate"] = float(here["hit_tokens"][admitted].sum()) / prompt if prompt else None
        admit_s = here.get("waited_until_s", here["admit_s"])
        left_s = np.where(np.isnan(admit_s), np.inf, admit_s)
        waits_s = np.minimum(left_s, to_s) - np.maximum(here["arrival_s"], from_s)  # whenever it came
        found["waiting"] = portable.total(np.maximum(waits_s, 0.0)) / (to_s - from_s) if to_s > from_s else None
    return found
