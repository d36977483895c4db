"""A scenario fitted to a server's own measurements: one half of the requests is fitted, the other half is the test.

The one idea: what is written is what was tested. The fit never sees the held-out half; its errors before and after are
the claim, and where they did not become smaller nothing is written.

    >>> found = fit_server(prepared, runs, fixed={"engine.kv_blocks": "read from the log"})
    >>> found.scenario, found.document()["held_out"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvcast.fitted.estimate import CONFIDENCE, Estimate, Fit, estimate
from kvcast.fitted.likeness import Cells, blocks_of, halves
from kvcast.fitted.parameters import FRONT_END, PARAMETERS, Parameter, with_values
from kvcast.fitted.runs import METRICS, ServerRun
from kvcast.scenario.resolve import Resolved
from sim.scenario import Scenario
from workloads.errors import InputError

LEAST_REQUESTS = 64
RESAMPLES = 400
STATS: dict[str, Callable[[np.ndarray], Any]] = {
    "mean": np.mean,
    "median": np.median,
    "p99": lambda seconds: np.percentile(seconds, 99),
}


@dataclass(frozen=True)
class Fitted:
    """What a fit came to. before, after: seconds of every request by metric, a run each."""

    resolved: Resolved
    runs: Sequence[ServerRun]
    chosen: Sequence[np.ndarray]  #: bool [n] a run, who was fitted
    found: Estimate
    before: Sequence[Mapping[str, np.ndarray]]
    after: Sequence[Mapping[str, np.ndarray]]
    losses: tuple[float, float]  #: of the held-out half, before and after

    @property
    def improves(self) -> bool:
        """Whether the half that was not fitted is met better."""
        return bool(self.found.values) and self.losses[1] < self.losses[0]

    def applied(self, given: Scenario) -> Scenario:
        """A scenario with the fitted values, where they are worth something."""
        return with_values(given, self.found.values) if self.improves else given

    def document(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "runs": [
                {
                    "result": run.name,
                    "sha256": run.sha256,
                    "requests": len(run),
                    "fitted": int(mine.sum()),
                    "notes": list(run.notes),
                }
                for run, mine in zip(self.runs, self.chosen, strict=True)
            ],
            "parameters": [self._row(p) for p in self.found.kept],
            "at_least": {k: v for k, v in self.found.values.items() if k not in {p.key for p in self.found.kept}},
            "refused": self.found.refused,
            "held_out": self._errors(False),
            "fitted": self._errors(True),
            "improves": self.improves,
            "simulations": self.found.simulations,
        }

    def _row(self, p: Parameter) -> dict[str, Any]:
        low, high = self.found.interval(p.key)
        return {
            "key": p.key,
            "words": p.words,
            "unit": p.unit,
            "before": p.value(self.resolved.scenario),
            "value": self.found.values[p.key],
            "low": low,
            "high": high,
        }

    def _errors(self, fitted: bool) -> list[dict[str, Any]]:
        """Rows of measured seconds and both errors, of the half that was fitted or the other one."""
        rows = []
        for i, (run, mine) in enumerate(zip(self.runs, self.chosen, strict=True)):
            half = mine if fitted else ~mine
            for metric in METRICS:
                measured = run.measured[metric]
                known = half & np.isfinite(measured)
                known &= np.isfinite(self.before[i][metric]) & np.isfinite(self.after[i][metric])
                if known.any():
                    rows += _rows(run, metric, known, self.before[i][metric], self.after[i][metric])
        return rows


def _rows(
    run: ServerRun, metric: str, known: np.ndarray, before: np.ndarray, after: np.ndarray
) -> list[dict[str, Any]]:
    measured = run.measured[metric]
    rows = []
    for stat, function in STATS.items():
        truth = float(function(measured[known]))
        errors = [float(function(seconds[known])) / truth - 1 for seconds in (before, after)]
        rows.append(
            {
                "run": run.name,
                "metric": metric,
                "stat": stat,
                "measured_s": truth,
                "before": errors[0],
                "after": errors[1],
                "after_interval": _interval(measured[known], after[known], blocks_of(len(run))[known], function),
            }
        )
    return rows


def _interval(
    measured: np.ndarray, simulated: np.ndarray, block: np.ndarray, function: Callable[[np.ndarray], Any]
) -> tuple[float, float]:
    """Of the error of a statistic, over resampled blocks of requests."""
    members = [np.flatnonzero(block == one) for one in np.unique(block)]
    rng, errors = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        drawn = np.concatenate([members[j] for j in rng.integers(len(members), size=len(members))])
        errors.append(float(function(simulated[drawn])) / float(function(measured[drawn])) - 1)
    low, high = np.percentile(errors, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
    return float(low), float(high)


Simulator = Callable[[Mapping[str, Any], int | None], list[dict[str, np.ndarray]]]
"""From values of keys, and a number for uneven steps, to seconds of every request by metric, a run each."""


def simulator(resolved: Resolved, runs: Sequence[ServerRun]) -> Simulator:
    def simulated(values: Mapping[str, Any], luck: int | None = None) -> list[dict[str, np.ndarray]]:
        changed = replace(resolved, scenario=with_values(resolved.scenario, values))
        return [run.simulated(changed, luck) for run in runs]

    return simulated


def free_parameters(
    runs: Sequence[ServerRun], fixed: Mapping[str, str]
) -> tuple[tuple[Parameter, ...], dict[str, str]]:
    """(what may be fitted, why each of the others may not)."""
    refused = {p.key: fixed[p.key] for p in PARAMETERS if p.key in fixed}
    if any(run.by_engine for run in runs):
        refused |= {p.key: "measured by the engine's own clock, behind the front end" for p in FRONT_END}
    return tuple(p for p in PARAMETERS if p.key not in refused), refused


def fit_server(
    resolved: Resolved,
    runs: Sequence[ServerRun],
    fixed: Mapping[str, str] | None = None,
    chosen: Sequence[np.ndarray] | None = None,
) -> Fitted:
    """Fit what the runs decide. fixed: keys that are known, and from where. chosen: who is fitted, bool [n] a run;
    default: `halves`. Raises InputError for too few requests."""
    total = sum(map(len, runs))
    if total < LEAST_REQUESTS:
        names = ", ".join(run.name for run in runs)
        raise InputError(f"{names}: {total} requests with times, expected at least {LEAST_REQUESTS}")
    chosen = halves(runs) if chosen is None else chosen
    parameters, refused = free_parameters(runs, fixed or {})
    cells, simulated = Cells(runs, chosen), simulator(resolved, runs)
    before = simulated({}, None)
    start = np.array([p.axis(resolved.scenario) for p in parameters])
    found = estimate(Fit(parameters, start, cells, lambda values, luck: cells.residuals(simulated(values, luck))))
    after = simulated(found.values, None)
    test = Cells(runs, [~mine for mine in chosen])
    losses = (test.loss(test.residuals(before)), test.loss(test.residuals(after)))
    found = replace(found, refused={**refused, **found.refused})
    return Fitted(resolved, runs, chosen, found, before, after, losses)
