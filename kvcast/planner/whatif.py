"""The same requests again with one thing changed: where that is judged, and what it gains.

The one idea: a fleet that meets its target has nothing left to gain, so changes are judged at a load a little beyond
what it holds.

    >>> stress(loads, found).step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcast import text
from kvcast.planner.load import Capacity, Loads
from kvcast.planner.trials import Judged, Trial, Trials
from kvcast.studies import intervals

BEYOND = 1
"""Steps above the capacity at which changes are judged: 4 % more load."""
FARTHER = 10
"""Steps above it at most."""
LEAST_GAIN = 0.002
"""Of attainment: less is not worth a line."""


@dataclass(frozen=True)
class Stress:
    """Where changes are judged. step: of load; base: the unchanged fleet there."""

    step: int
    base: Judged


def stress(loads: Loads, found: Capacity) -> Stress:
    """The first load beyond the capacity at which the fleet misses in so short a run: where it still attains, nothing
    can gain."""
    most = found.most if found.most is not None else 0
    step = min(most + BEYOND, found.farthest)
    while True:
        base = loads.trials.judge([loads.sample(step)])[0]
        further = step + 2 * BEYOND
        if not base.attains or further > min(found.farthest, most + FARTHER):
            return Stress(step, base)
        step = further


NO_GAIN: dict[str, float | None] = dict.fromkeys(("attainment", "gain", "gain_low", "gain_high"))


def try_all(
    trials: Trials, asked: Sequence[Trial | str], base: Judged, paired: Sequence[bool]
) -> list[tuple[dict[str, float | None], str | None, Judged | None]]:
    """What each trial gains over base, or why it cannot run, and its runs; all simulated in one round. paired: it
    serves base's requests."""
    reasons = [one if isinstance(one, str) else trials.cannot_run(one.scenario) for one in asked]
    simulated = iter(
        trials.judge(
            [one for one, reason in zip(asked, reasons, strict=True) if reason is None and isinstance(one, Trial)]
        )
    )
    judged = [next(simulated) if reason is None else None for reason in reasons]
    return [
        (_gain(trials, one, base, same) if one else dict(NO_GAIN), reason, one)
        for one, reason, same in zip(judged, reasons, paired, strict=True)
    ]


def _gain(trials: Trials, one: Judged, base: Judged, paired: bool) -> dict[str, float | None]:
    difference = gained(trials, one, base) if paired else _unpaired(one, base)
    low, high = (
        (None, None)
        if difference.mean is None or difference.half is None
        else (difference.mean - difference.half, difference.mean + difference.half)
    )
    return {
        "attainment": one.attainment.mean if one.attainment else None,
        "gain": difference.mean,
        "gain_low": low,
        "gain_high": high,
    }


def gained(trials: Trials, one: Judged, base: Judged) -> intervals.Difference:
    """Attainment of one minus base's over the same requests, paired by request (one seed) or by seed, with its 95 %
    interval."""
    pairs = [_same(trials, a, b) for a, b in zip(one.runs, base.runs, strict=True)]
    if any(a is None for a, _ in pairs):
        return _unpaired(one, base)
    if len(pairs) >= 5:
        return intervals.replications([float(a.mean() - b.mean()) for a, b in pairs])  # type: ignore[union-attr]
    ours, theirs = (np.concatenate([np.asarray(pair[i], float) for pair in pairs]) for i in (0, 1))
    if not len(ours):
        return intervals.Difference(None)
    return intervals.paired(lambda rows: float(ours[rows].mean() - theirs[rows].mean()), len(ours))


def _same(trials: Trials, one: Any, base: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Good or not of the requests in both windows, in base's order of arrival; None when they served other requests."""
    a, b = trials.by_request(one), trials.by_request(base)
    if len(a["good"]) != len(b["good"]):
        return None, None
    both = np.flatnonzero(a["in_window"] & b["in_window"])
    both = both[np.argsort(b["arrival_s"][both], kind="stable")]
    return a["good"][both], b["good"][both]


def _unpaired(one: Judged, base: Judged) -> intervals.Difference:
    if one.attainment is None or base.attainment is None:
        return intervals.Difference(None)
    half = float(np.hypot(one.attainment.half, base.attainment.half))
    return intervals.Difference(one.attainment.mean - base.attainment.mean, half)


def load_words(load: float | None, unit: str) -> str:
    return f"{text.UNKNOWN} {unit}" if load is None else f"{load:.3g} {unit}" if load < 1000 else f"{load:,.0f} {unit}"
