"""How sure is an attainment? An interval of the share of requests that met their limits.

The one idea: a plan that only just meets its target in one simulated hour may miss it in the next, so a candidate counts
when the lower end of the interval meets it. Up to four seeds: batch means, the requests of every seed in order of arrival
cut into batches (kvcast.intervals has the formula); from five seeds on: the seeds themselves (replications). Both are
blind when nothing failed, so the interval is never narrower than Wilson's for that many independent requests.

    >>> interval([run["good"]], 0.95).low
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvcast.intervals import BATCHES, PER_BATCH, lag1, student_t

REPLICATIONS = 5
"""Seeds from which on their own spread is the better one: fewer have too wide a Student's t."""


@dataclass(frozen=True)
class Interval:
    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """The longer side."""
        return max(self.mean - self.low, self.high - self.mean)


def method(seeds: int) -> str:
    of = f"replications over {seeds} seeds" if seeds >= REPLICATIONS else f"batch means over the requests of {seeds} {'seed' if seeds == 1 else 'seeds'} in order of arrival"
    return f"{of}, never narrower than Wilson's interval for independent requests"


def interval(good: Sequence[np.ndarray], confidence: float) -> Interval | None:
    """good: bool, per seed, in order of arrival. None when nothing arrived."""
    whole = np.concatenate([np.asarray(one, float) for one in good])
    if not len(whole):
        return None
    mean = float(whole.mean())
    half = _replications(good, confidence) if len(good) >= REPLICATIONS else _batch_means(good, mean, confidence)
    low, high = wilson(float(whole.sum()), len(whole), confidence)
    return Interval(mean, max(0.0, min(low, mean - half)), min(1.0, max(high, mean + half)))


def _replications(good: Sequence[np.ndarray], confidence: float) -> float:
    means = np.array([one.mean() for one in good if len(one)])
    return student_t(len(means), confidence) * float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else 0.0


def _batch_means(good: Sequence[np.ndarray], mean: float, confidence: float) -> float:
    """Half-width t(n - 1) sqrt(sum (e_i - mean)^2 / (n (n - 1))) over all batches of all seeds; 0 when there are too few requests."""
    half = 0.0
    for batches in BATCHES:
        if any(len(one) < batches * PER_BATCH for one in good):
            continue
        estimates = [np.array([part.mean() for part in np.array_split(np.asarray(one, float), batches)]) for one in good]
        spread, n = np.concatenate(estimates) - mean, batches * len(good)
        half = student_t(n, confidence) * math.sqrt(float(spread @ spread) / (n * (n - 1)))
        if float(np.mean([lag1(one) for one in estimates])) <= 1.8 / math.sqrt(n):
            break
    return half


def wilson(good: float, n: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a share of n independent trials."""
    from scipy.stats import norm

    z = float(norm.ppf((1 + confidence) / 2))
    share, z2 = good / n, z * z / n
    centre, half = (share + z2 / 2) / (1 + z2), math.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
    return centre - half, centre + half


def requests_needed(target: float, confidence: float) -> int:
    """The fewest requests that can show `target`: all of them good, Wilson's lower end is n / (n + z^2)."""
    from scipy.stats import norm

    return math.ceil(float(norm.ppf((1 + confidence) / 2)) ** 2 * target / (1 - target)) if target < 1 else 0
