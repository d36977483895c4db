"""Why no fleet meets the target: what its requests take alone, what limits are within reach, what other GPUs make of
it.

The one idea: three questions, cheapest first. Alone on an idle replica a request takes the sum of its own steps
(sim.alone): what is over a limit there is over it in a fleet of any size. A fleet that was simulated to its end has a
limit that its target share of requests meets. And the same model on other widths and other bundled GPUs, as many of
them, is simulated once each.

    >>> why(fleet)["alone"]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrate.atlas.steps import unpriced
from calibrate.atlas.tables import bundled_gpus, load
from calibrate.memory import WIDTHS
from calibrate.sources.roofline import GPUS
from kvcast import api
from kvcast.planner.candidates import fleet_of
from kvcast.planner.document import interval_of, size_of
from kvcast.planner.fleet import Fleet
from kvcast.planner.sampled import sampled
from kvcast.planner.trials import Judged, Trial, Trials
from kvcast.planner.words import FLAT, SEVERAL
from kvcast.scenario.fitting import bundled_for, model_of
from kvcast.scenario.gpu_prices import priced
from kvcast.studies.estimate import arriving
from sim.alone import alone
from sim.measure.metrics import has_limit, limits_of
from sim.measure.verdict import LIMITS, POOLED, ClassVerdict, named_limits
from sim.recording import COMPLETED
from sim.scenario import HardwareConfig, Scenario, SloClass
from workloads.estimate import reusable_tokens

ABOUT = 1.02  #: times the least: limits that are as short
MOST_LAYOUTS = 8
"""Other GPUs and widths that are simulated."""


def why(fleet: Fleet) -> dict[str, Any] | None:
    """The reasons, as the plan's document holds them; None when the chosen fleet meets the target.

    Of the sizes that came closest, the largest are simulated to their ends for it (they then stand in fleet.judged as
    such)."""
    if fleet.answer is not None and fleet.answer.meets:
        return None
    i, ended = _ended(fleet)
    n = min(n for n, one in ended.items() if _margin(one) >= max(map(_margin, ended.values())) - FLAT)
    one, combination = ended[n], fleet.combinations[i]
    return {
        **size_of(combination, n),
        "label": combination.label,
        "attainment": interval_of(one.attainment),
        "no_larger": fleet.why_given_up(i) if i in fleet.flat else None,
        "alone": _alone(fleet.trials, one.trial.scenario),
        "nearest": [
            _nearest(fleet.trials, row, ended)
            for row in one.judged.classes
            if row.attainment is not None and row.attainment.mean < row.target
        ],
        "layouts": _layouts(fleet.trials, combination.with_replicas(n), n * combination.gpus_per_replica),
    }


# -- the fleet that came closest ---------------------------------------------------------------------------------------


def _ended(fleet: Fleet) -> tuple[int, dict[int, Judged]]:
    """The combination that came closest to the target, and its fleets that were simulated to their ends, by their
    replicas."""
    i = max(fleet.judged, key=lambda place: (_margin(fleet.judged[place]), -fleet.cost(*place)))[0]
    for n in sorted((n for j, n in fleet.judged if j == i), reverse=True)[:SEVERAL]:
        if fleet.judged[i, n].attainment is None:
            fleet.judged[i, n] = fleet.judge(i, [n], full=True)[0]
        if fleet.judged[i, n].stable is False:
            break  # a smaller one keeps up less
    return i, {n: one for (j, n), one in sorted(fleet.judged.items()) if j == i and one.attainment is not None}


def _margin(one: Judged) -> float:
    """Of the class that is farthest below its target; of a run that was stopped early what it can have been at most."""
    if one.attainment is None:
        return (one.at_most or 0.0) - 1 - (one.trial.scenario.slo.attainment or 0.0)  # behind every one that was not
    margins = [
        -row.target if row.attainment is None else row.attainment.mean - row.target for row in one.judged.classes
    ]
    return min(margins, default=-1.0)


# -- alone -------------------------------------------------------------------------------------------------------------


def _alone(trials: Trials, scenario: Scenario) -> list[dict[str, Any]]:
    """A row for every limit of every class: the share of its requests that are over it alone, with nothing and with all
    that can be reused in the cache."""
    prepared = api.prepare(scenario, trials.workload(scenario))
    params = prepared.resolved.params
    workload = arriving(prepared.workload, params)
    reusable = (
        reusable_tokens(workload) // params.block_size * params.block_size
        if params.caching
        else np.zeros(len(workload), np.int64)
    )
    cold, warm = (alone(workload, params, prepared.step_time, cached) for cached in (np.zeros_like(reusable), reusable))
    class_id, slo = workload.column("class_id"), scenario.slo
    rows = []
    for c, (name, limits) in enumerate(named_limits(workload, limits_of(workload, slo))):
        mine = np.flatnonzero(class_id == c)
        target = (slo.attainment or 0.0) if limits.attainment is None else limits.attainment
        for limit in LIMITS if len(mine) else ():
            limit_s = getattr(limits, limit)
            if limit_s is not None:
                rows.append(
                    {
                        "class": name,
                        "limit": limit,
                        "limit_s": limit_s,
                        "target": target,
                        "requests": len(mine),
                        "refused": float(np.isinf(cold["ttft_s"][mine]).mean()),
                        **_over(cold[limit][mine], limit_s, target, "cold"),
                        **_over(warm[limit][mine], limit_s, target, "cached"),
                        "example": _example(
                            cold[limit][mine], limit_s, workload.prompt_tokens[mine], workload.output_tokens[mine]
                        ),
                    }
                )
    return rows


def _over(times_s: np.ndarray, limit_s: float, target: float, how: str) -> dict[str, float | None]:
    """The share over the limit, and the least limit that the target share is within."""
    return {f"over_{how}": float((times_s > limit_s).mean()), f"least_{how}_s": _within(times_s, target)}


def _within(values: np.ndarray, target: float) -> float | None:
    """The least value that a target share of all are at or below; NaN is below everything. None when that is
    infinite."""
    ordered = np.sort(np.where(np.isnan(values), 0.0, values))
    found = float(ordered[max(math.ceil(target * len(ordered) - 1e-9), 1) - 1])
    return found if math.isfinite(found) else None


def _example(times_s: np.ndarray, limit_s: float, prompt: np.ndarray, output: np.ndarray) -> dict[str, Any] | None:
    """The request of median prompt among those over the limit that can be served at all."""
    over = np.flatnonzero((times_s > limit_s) & np.isfinite(times_s))
    if not len(over):
        return None
    r = over[np.argsort(prompt[over], kind="stable")[len(over) // 2]]
    return {"prompt_tokens": int(prompt[r]), "output_tokens": int(output[r]), "alone_s": float(times_s[r])}


# -- limits within reach -----------------------------------------------------------------------------------------------


def _nearest(trials: Trials, row: ClassVerdict, ended: dict[int, Judged]) -> dict[str, Any]:
    """The least limits that a class's target share of requests met in some fleet, and the fewest replicas at which they
    are about as short.

    needs_s: of the limit that is missed most, with the other limits as they are; factor: of all its limits. None: not
    with any, as where a fleet does not keep up: what its requests waited is how long it was watched."""
    needs = [{"replicas": n, **_needs(trials, one, row)} for n, one in ended.items()]
    least = min(math.inf if one["factor"] is None else one["factor"] for one in needs)
    return next((one for one in needs if one["factor"] is not None and one["factor"] <= least * ABOUT), needs[-1])


def _needs(trials: Trials, one: Judged, row: ClassVerdict) -> dict[str, Any]:
    workload, worst = trials.workload(one.trial.scenario), row.worst or LIMITS[0]
    classes = named_limits(workload, limits_of(workload, one.trial.scenario.slo))
    members = [c for c, (name, limits) in enumerate(classes) if has_limit(limits) and row.name in (name, POOLED)]
    runs = [trials.by_request(run) for run in one.runs]
    columns = {
        name: np.concatenate([run[name][run["in_window"] & np.isin(run["class_id"], members)] for run in runs])
        for name in runs[0]
    }
    times = {limit: _in_limits(columns, limit, [limits for _, limits in classes]) for limit in LIMITS}
    held = np.max([times[limit] for limit in LIMITS if limit != worst], axis=0) <= 1
    limits_s = {getattr(classes[c][1], worst) for c in members}
    limit_s = limits_s.pop() if len(limits_s) == 1 else None
    least, factor = (
        (
            _within(np.where(held, times[worst], np.inf), row.target),
            _within(np.max(list(times.values()), axis=0), row.target),
        )
        if one.stable is not False
        else (None, None)
    )
    return {
        "class": row.name,
        "target": row.target,
        "attainment": float(columns["good"].mean()),
        "keeps_up": one.stable,
        "limit": worst,
        "limit_s": limit_s,
        "needs_s": None if least is None or limit_s is None else least * limit_s,
        "factor": factor,
    }


def _in_limits(columns: dict[str, np.ndarray], limit: str, limits: Sequence[SloClass]) -> np.ndarray:
    """Each request's time as a multiple of its limit: 0 without one, infinite when it did not complete."""
    each = np.array([np.inf if getattr(one, limit) is None else getattr(one, limit) for one in limits])[
        columns["class_id"]
    ]
    return np.where(columns["status"] == COMPLETED, np.nan_to_num(columns[limit] / each, nan=0.0), np.inf)


# -- other GPUs --------------------------------------------------------------------------------------------------------


def _layouts(trials: Trials, scenario: Scenario, gpus: int) -> list[dict[str, Any]]:
    """The same model on other widths and GPUs, about as many GPUs in all: one run each, or why there is none."""
    rows: list[dict[str, Any]] = []
    asked: list[tuple[dict[str, Any], Trial]] = []
    here, unknown = _gpu_of(scenario), dict.fromkeys(("verdict", "class", "attains", "reason"))
    for gpu, profile, width in _others(scenario, here):
        replicas = max(gpus // width, 1)
        row = {
            "gpu": gpu,
            "profile": profile,
            "tensor_parallel": width,
            "replicas": replicas,
            "gpus": replicas * width,
            "attainment": interval_of(None),
            **unknown,
        }
        fleet = _on(scenario, profile, width, replicas)
        row["reason"] = trials.cannot_run(fleet) or (
            f"not simulated: {MOST_LAYOUTS} others were" if len(asked) == MOST_LAYOUTS else None
        )
        rows.append(row)
        if row["reason"] is None:
            asked.append((row, sampled(Trial(fleet, full=True))))
    for (row, _), one in zip(asked, trials.judge([trial for _, trial in asked]), strict=True):
        row |= {
            "attainment": interval_of(one.attainment),
            "verdict": one.verdict,
            "class": one.judged.failed or None,
            "attains": one.attains,
        }
    return rows


def _others(scenario: Scenario, here: str) -> list[tuple[str, str, int]]:
    """(GPU, profile, width): the scenario's GPU at other widths, by the best that is known of it; then other GPUs'
    profiles, and as many atlases of those without one, at its own width, as there is time for."""
    width, measured = scenario.hardware.tensor_parallel, {}
    for one in bundled_for(scenario):
        measured[str(one.device["name"]), one.tensor_parallel] = one.id
    names = {str(load(gpu).header["name"]): gpu for gpu in bundled_gpus()}
    best = _best(scenario, names.get(here) or next((key for key, gpu in GPUS.items() if gpu.name == here), None))
    same = [(here, profile, n) for n in WIDTHS if n != width and (profile := measured.get((here, n), best))]
    others = [(gpu, profile, n) for (gpu, n), profile in sorted(measured.items()) if gpu != here]
    more = [
        (name, f"atlas:{gpu}", width)
        for name, gpu in names.items()
        if name != here and (name, width) not in measured and _best(scenario, gpu) == f"atlas:{gpu}"
    ]
    return same + others + more[: max(MOST_LAYOUTS - len(same + others), 0)]


def _best(scenario: Scenario, gpu: str | None) -> str | None:
    """What is known of a GPU at any width: its atlas, else its roofline; None for a GPU that is no known one."""
    if gpu is None:
        return None
    given, model = scenario.model, model_of(scenario)
    dtype, kv_dtype = model.weight_dtype(given.dtype), given.kv_dtype or model.kv_dtype(given.dtype)
    priced_there = gpu in bundled_gpus() and not (gpu in GPUS and unpriced(model, dtype, kv_dtype))
    return f"atlas:{gpu}" if priced_there else f"roofline:{gpu}"


def _gpu_of(scenario: Scenario) -> str:
    return str(api.resolve(scenario).profile.device["name"])


TENSOR_PARALLEL_ONLY = {
    name: getattr(HardwareConfig, name)
    for name in ("attention_dp", "expert_parallel", "all_to_all", "pipeline_parallel")
}
"""What bundled profiles and rooflines know."""


def _on(scenario: Scenario, profile: str, width: int, replicas: int) -> Scenario:
    """The scenario on other GPUs: with the KV memory that fits there, and their price where there is a list."""
    only = {"profile": profile, "gpu": None, "tensor_parallel": width, **TENSOR_PARALLEL_ONLY}
    moved = replace(
        fleet_of(scenario, replicas),
        hardware=replace(scenario.hardware, **only),
        engine=replace(scenario.engine, kv_blocks=None),
    )
    return priced(moved, scenario)
