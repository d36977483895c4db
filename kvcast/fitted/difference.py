"""Why a simulation differs from what was measured of the same requests: in which part of their time, and by which
parameter.

The one idea: each parameter alone is moved to where the requests come out most alike, and what remains of the
difference, in units of what chance does, says which one it is; all parameters that the data decide, together, say in
which part of a request's time the difference lies. Turning the prefix cache on or off is one more candidate.

    >>> found = difference(resolved, [run])
    >>> found["candidates"][0]["key"], found["candidates"][0]["removes"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvcast import api
from kvcast.fitted.estimate import FARTHEST, Estimate, Fit, Local, estimate
from kvcast.fitted.likeness import FLOOR, Cells
from kvcast.fitted.parameters import KV, OUTPUT_TOKEN, RATE, Parameter, with_values
from kvcast.fitted.runs import METRICS, ServerRun
from kvcast.fitted.server import LEAST_REQUESTS, Simulator, free_parameters, simulator
from kvcast.scenario.resolve import Resolved
from sim.recording import COMPLETED
from workloads.errors import InputError

TURNS, EACH = 3, 4
"""Steps towards the best place of one parameter, and runs with uneven steps at each."""
HALVES, DOUBLINGS, SCANS = 8, 9, 6  #: of the KV memory, of a queue's step, and turns of a search between them
QUEUES = (OUTPUT_TOKEN, RATE)
CACHE = "cache.enabled"
PARTS = ("front end", "queue", "prefill", "decode")


def difference(resolved: Resolved, runs: Sequence[ServerRun], fixed: Mapping[str, str] | None = None) -> dict[str, Any]:
    """JSON-able: "means" (seconds by metric: measured, simulated, fitted), "parts" (mean seconds of each part of a
    request: simulated, fitted), "candidates" (a parameter each, what it removes alone, best first), "together" (values
    of all that the data decide), "left_out". Raises InputError for too few requests."""
    rows, by_chance, fit = candidates(resolved, runs, fixed)
    simulated = simulator(resolved, runs)
    for row in rows[:2]:
        row["errors"] = _mean_errors(simulated({row["key"]: row["to"]}, None), runs)
    together = estimate(fit)
    return {
        "runs": [run.name for run in runs],
        "requests": sum(map(len, runs)),
        "by_chance": by_chance,
        "means": _means(runs, simulated, together),
        "parts": _parts(resolved, runs, together),
        "candidates": rows,
        "together": together.values,
        "left_out": free_parameters(runs, fixed or {})[1],
    }


def candidates(
    resolved: Resolved, runs: Sequence[ServerRun], fixed: Mapping[str, str] | None = None
) -> tuple[list[dict[str, Any]], bool, Fit]:
    """(what each parameter removes alone, best first; whether chance alone makes such a difference; the question)."""
    total = sum(map(len, runs))
    if total < LEAST_REQUESTS:
        raise InputError(f"{runs[0].name}: {total} requests with times, expected at least {LEAST_REQUESTS}")
    parameters, _ = free_parameters(runs, fixed or {})
    cells, simulated = Cells(runs, [np.ones(len(run), bool) for run in runs]), simulator(resolved, runs)
    start = np.array([p.axis(resolved.scenario) for p in parameters])
    fit = Fit(parameters, start, cells, lambda values, luck: cells.residuals(simulated(values, luck)))
    local = fit.look(start)
    noise = cells.weight / _spread_of(local.luck, cells) ** 2
    before = float(noise @ local.usual**2)
    rows = [_alone(local, k, p, noise, before) for k, p in enumerate(parameters)]
    if any(run.workload.prefix_identity for run in runs):
        rows.append(_cache(fit, resolved, noise, before))
    rows.sort(key=lambda row: -row["removes"])
    return rows, before <= 2 * len(local.usual), fit


def _spread_of(luck: np.ndarray, cells: Cells) -> np.ndarray:
    """float64 [residuals]: what chance does to a residual of each group."""
    each = np.bincount(cells.group, np.mean(luck**2, axis=0)) / np.bincount(cells.group)
    return np.sqrt(each + FLOOR**2)[cells.group]


def _alone(local: Local, k: int, p: Parameter, noise: np.ndarray, before: float) -> dict[str, Any]:
    """One parameter moved to where least of the difference is left."""
    fit, slope = local.fit, local.slopes[:, k]
    axis, rest = fit.start.copy(), local.usual
    best, place = before, float(axis[k])
    if p is KV:  # what does not bind has no slope
        tried = [float(axis[k]) - i * np.log(2) for i in range(-1, HALVES)]
        best, place = _scan(fit, k, noise, before, tried, np.log(2) / 2)
    if p in QUEUES:  # one is a line only until it fills
        tried = [float(axis[k]) + p.step * 2**i for i in range(DOUBLINGS)]
        best, place = _scan(fit, k, noise, before, tried)
    for _ in range(0 if p is KV or p in QUEUES else TURNS):
        power = float(noise @ slope**2)
        if power <= 0:
            break
        change = float(np.clip(-(noise * slope) @ rest / power, -FARTHEST, FARTHEST))
        moved = axis.copy()
        moved[k] = max(axis[k] + change * local.step[k], p.least)
        if moved[k] == axis[k]:
            break
        there = np.mean([fit.simulate(fit.values(moved), i) for i in range(EACH)], axis=0)
        slope = (there - rest) * local.step[k] / (moved[k] - axis[k])  # the secant
        axis, rest = moved, there
        if (left := float(noise @ rest**2)) < best:
            best, place = left, float(axis[k])
    return {
        "key": p.key,
        "words": p.words,
        "part": p.part,
        "unit": p.unit,
        "from": p.at(fit.start[k]),
        "to": p.at(place),
        "removes": 1 - best / before,
    }


def _scan(
    fit: Fit, k: int, noise: np.ndarray, before: float, tried: list[float], span: float | None = None
) -> tuple[float, float]:
    """(what is left, place on the axis) of the best of some places, and of those between them. span: half of the way
    to the next place; None: a third of the best place."""
    best, place = before, float(fit.start[k])
    for turn in range(SCANS):
        for there in tried:
            axis = fit.start.copy()
            axis[k] = there
            try:
                runs = [fit.simulate(fit.values(axis), i) for i in range(EACH)]
            except InputError:  # too little for its requests
                continue
            if (left := float(noise @ np.mean(runs, axis=0) ** 2)) < best:
                best, place = left, there
        far = (span if span is not None else (place - float(fit.start[k])) / 3) / 2**turn
        tried = [place - far, place + far]
    return best, place


def _cache(fit: Fit, resolved: Resolved, noise: np.ndarray, before: float) -> dict[str, Any]:
    """The prefix cache, on instead of off or off instead of on."""
    on = resolved.scenario.cache.enabled
    rest = np.mean([fit.simulate({CACHE: not on}, i) for i in range(EACH)], axis=0)
    return {
        "key": CACHE,
        "words": "prefix caching",
        "part": "hits",
        "unit": "",
        "from": on,
        "to": not on,
        "removes": max(1 - float(noise @ rest**2) / before, 0.0),
    }


def _mean_errors(simulated: Sequence[Mapping[str, np.ndarray]], runs: Sequence[ServerRun]) -> dict[str, float]:
    """Relative error of the mean of each metric, over all requests."""
    found = {}
    for metric in METRICS:
        pairs = [(one[metric], run.measured[metric]) for one, run in zip(simulated, runs, strict=True)]
        known = [np.isfinite(ours) & np.isfinite(theirs) for ours, theirs in pairs]
        total = sum(float(theirs[k].sum()) for (_, theirs), k in zip(pairs, known, strict=True))
        if total:
            found[metric] = sum(float(ours[k].sum()) for (ours, _), k in zip(pairs, known, strict=True)) / total - 1
    return found


def _means(runs: Sequence[ServerRun], simulated: Simulator, together: Estimate) -> dict[str, dict[str, float]]:
    """Metric -> mean seconds measured, and the error of the simulation as it is and fitted."""
    now, then = (_mean_errors(simulated(values, None), runs) for values in ({}, together.values))
    measured = {
        metric: np.concatenate([run.measured[metric][np.isfinite(run.measured[metric])] for run in runs])
        for metric in METRICS
    }
    return {
        metric: {"measured_s": float(measured[metric].mean()), "error": now[metric], "fitted_error": then[metric]}
        for metric in now
    }


def _parts(resolved: Resolved, runs: Sequence[ServerRun], together: Estimate) -> dict[str, dict[str, float]]:
    """Part of a request's time -> mean seconds, as simulated and as fitted; hit tokens and preemptions of a request
    too."""
    found: dict[str, dict[str, float]] = {}
    for name, values in (("simulated", {}), ("fitted", together.values)):
        changed = replace(resolved, scenario=with_values(resolved.scenario, values))
        columns = [_spent(changed, run) for run in runs]
        for part in columns[0]:
            found.setdefault(part, {})[name] = float(np.concatenate([one[part] for one in columns]).mean())
    return found


def _spent(resolved: Resolved, run: ServerRun) -> dict[str, np.ndarray]:
    """Seconds of every answered request by part, and what is counted."""
    rec = api.record(api.Prepared(resolved, run.workload, resolved.engine_step_time()))
    done = rec.status == COMPLETED
    front_s = np.zeros(len(done)) if rec.frontend_s is None else rec.frontend_s
    spent = (
        front_s,
        rec.admit_s - rec.arrival_s - front_s,
        rec.first_token_s - rec.admit_s,
        rec.finish_s - rec.first_token_s,
    )
    columns = dict(zip(PARTS, spent, strict=True)) | {"hit tokens": rec.hit_tokens, "preemptions": rec.preemptions}
    return {part: column[done].astype(float) for part, column in columns.items()}
