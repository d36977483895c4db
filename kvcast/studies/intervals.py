"""Is a difference between two runs more than noise? Paired differences with 95 % intervals.

The one idea: two runs served the same requests, so they are compared request by request. With several seeds, each
seed's difference is one independent observation (replications). With one seed, the requests in arrival order are cut
into batches and each batch's difference is one observation (batch means, in the form of sectioning: batches give the
width, the whole gives the centre, so ratios and percentiles are not biased by the size of a batch).

An interval that holds zero says "no difference shown", which is not "no difference". docs/comparisons.md has the
formulas.

    >>> paired(lambda rows: a[rows].mean() - b[rows].mean(), len(a))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.measure.quantiles import two_sided_t

LEVEL = 0.95
BATCHES = (20, 10, 5)
"""Tried in this order, until neighbouring batches are not alike."""
PER_BATCH = 10
"""Fewest requests of a batch; a 99th percentile needs 100."""


@dataclass(frozen=True)
class Difference:
    """A variant's value minus the first variant's. half: half-width of the 95 % interval; None where there is none,
    with the reason."""

    mean: float | None
    half: float | None = None
    batches: int = 0  #: observations: batches, or seeds
    note: str = ""

    @property
    def shown(self) -> bool | None:
        """Whether the interval leaves zero out; None without an interval."""
        return None if self.mean is None or self.half is None else abs(self.mean) > self.half


def replications(values: Sequence[float | None]) -> Difference:
    """Mean of independent observations and Student's t half-width, t(0.975, n - 1) s / sqrt(n). Unknown if any is."""
    known = np.array([np.nan if v is None else v for v in values], dtype=float)
    if not len(known) or np.isnan(known).any():
        return Difference(None, note="not known for every seed" if len(known) else "no runs")
    mean = float(known.mean())
    if len(known) == 1:
        return Difference(mean, note="one seed")
    return Difference(
        mean, two_sided_t(len(known), LEVEL) * float(known.std(ddof=1)) / math.sqrt(len(known)), len(known)
    )


def paired(of: Callable[[np.ndarray], float], n: int, per_batch: int = PER_BATCH) -> Difference:
    """A statistic of n ordered observations with its interval by sectioning.

    of(rows): the statistic of these rows (int64 positions, in order). Batch estimates e_1..e_b around the statistic e
    of all rows give the half-width t(0.975, b - 1) sqrt(sum (e_i - e)^2 / (b (b - 1))) (Asmussen and Glynn, Stochastic
    Simulation, III.5a). Batches are fewer and longer when neighbours are alike (lag-1 correlation above 1.8 / sqrt(b)).
    """
    whole = of(np.arange(n))
    if not math.isfinite(whole):
        return Difference(None, note="undefined")
    result, alike = Difference(whole, note=f"fewer than {BATCHES[-1] * per_batch} requests"), ""
    for batches in BATCHES:
        if n < batches * per_batch:
            continue
        estimates = np.array([of(rows) for rows in np.array_split(np.arange(n), batches)])
        if not np.isfinite(estimates).all():
            result = Difference(whole, note="undefined in a batch")
            continue
        spread = estimates - whole
        half = two_sided_t(batches, LEVEL) * math.sqrt(float(spread @ spread) / (batches * (batches - 1)))
        result = Difference(whole, half, batches, note=alike)
        if lag1(estimates) <= 1.8 / math.sqrt(batches):
            break
        alike = "neighbouring batches are alike: perhaps too narrow, use --seeds" if batches <= BATCHES[1] else ""
    return result


def lag1(values: np.ndarray) -> float:
    off = values - values.mean()
    total = float(off @ off)
    return float(off[:-1] @ off[1:]) / total if total > 0 else 0.0


# -- requests of two runs ----------------------------------------------------------------------------------------------

Columns = Mapping[str, np.ndarray]


def _hit_rate(run: Columns, rows: np.ndarray) -> float:
    rows = rows[~np.isnan(run["admit_s"][rows])]
    prompt = run["prompt_tokens"][rows].sum()
    return float(run["hit_tokens"][rows].sum() / prompt) if prompt else math.nan


def _mean(name: str, factor: float) -> Callable[[Columns, np.ndarray], float]:
    def of(run: Columns, rows: np.ndarray) -> float:
        values = run[name][rows]
        values = values[~np.isnan(values)]
        return float(values.mean()) * factor if len(values) else math.nan

    return of


def _p99_ttft(run: Columns, rows: np.ndarray) -> float:
    values = run["ttft_s"][rows]
    values = values[~np.isnan(values)]
    return float(np.percentile(values, 99)) * 1e3 if len(values) else math.nan


STATISTICS: dict[str, tuple[Callable[[Columns, np.ndarray], float], int]] = {
    "attainment": (lambda run, rows: float(run["good"][rows].mean()) if "good" in run else math.nan, PER_BATCH),
    "prefix_hit_rate": (_hit_rate, PER_BATCH),
    "mean_ttft_ms": (_mean("ttft_s", 1e3), PER_BATCH),
    "p99_ttft_ms": (_p99_ttft, 100),
    "mean_tpot_ms": (_mean("tpot_s", 1e3), PER_BATCH),
    "mean_e2el_ms": (_mean("e2e_s", 1e3), PER_BATCH),
    "gpu_s_per_request": (_mean("gpu_hours", 3600.0), PER_BATCH),
}
"""Summary value -> what it is of some requests of a run (positions in arrival order), and the fewest requests of a
batch."""

KEPT = (
    "class_id",
    "status",
    "arrival_s",
    "admit_s",
    "prompt_tokens",
    "output_tokens",
    "hit_tokens",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "gpu_hours",
    "in_window",
    "good",
)
"""Columns of requests.parquet that a comparison reads."""


def same_requests(first: Columns, other: Columns) -> bool:
    """Whether two runs served the same requests, row by row."""
    names = ("prompt_tokens", "output_tokens")
    return all(len(first[c]) == len(other[c]) and bool((first[c] == other[c]).all()) for c in names)


def arrival_order(runs: Sequence[Columns]) -> np.ndarray:
    """Rows in every run's window, in the first run's order of arrival."""
    inside = np.logical_and.reduce([run["in_window"] & ~np.isnan(run["arrival_s"]) for run in runs])
    rows = np.flatnonzero(inside)
    return rows[np.argsort(runs[0]["arrival_s"][rows], kind="stable")]


def request_differences(run: Columns, first: Columns, only: Collection[str] = ()) -> dict[str, Difference]:
    """Every statistic (or `only` these) of `run` minus that of `first`, over the requests in the window of both, as
    they arrived in the first."""
    rows = arrival_order([first, run])
    ordered = [{name: each[name][rows] for name in KEPT if name in each} for each in (run, first)]

    def of(statistic: Callable[[Columns, np.ndarray], float]) -> Callable[[np.ndarray], float]:
        return lambda picked: statistic(ordered[0], picked) - statistic(ordered[1], picked)

    return {
        key: paired(of(statistic), len(rows), fewest)
        for key, (statistic, fewest) in STATISTICS.items()
        if not only or key in only
    }
