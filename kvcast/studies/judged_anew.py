"""A finished run under other limits, another target or another price: what a new run would say, without one.

The one idea: no simulation looks at limits or prices, so a run's columns hold the answer for all of them. What comes
back is a run like any other, with every number that depends on [slo] and [cost] made anew by the functions that made
the first ones (sim.measure.judged); a test holds its summary to that of a new run.

    >>> judged_anew(load_run("runs/demo"), SloConfig(ttft_s=0.3, attainment=0.99), 3.5).summary["verdict"]["word"]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kvcast import api
from kvcast.store.runs import CACHE_OFF, Run
from kvcast.trust import model_error
from sim.measure import judged, metrics
from sim.measure.regime import of_run
from sim.measure.shocks import told as told_of_shocks
from sim.scenario import Scenario, SloClass, SloConfig
from workloads import mix
from workloads.errors import InputError

Document = Mapping[str, Any]
Columns = Mapping[str, np.ndarray]
Limits = list[tuple[str, SloClass]]


class Over(Mapping[str, np.ndarray]):
    """Columns [n] with `good` in place of their own; without any where it is None. Each is read when it is asked
    for."""

    def __init__(self, columns: Columns, good: np.ndarray | None) -> None:
        self._columns, self._good = columns, good

    def __getitem__(self, name: str) -> np.ndarray:
        if name != "good":
            return self._columns[name]
        if self._good is None:
            raise KeyError(name)
        return self._good

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._columns if name != "good")
        if self._good is not None:
            yield "good"

    def __len__(self) -> int:
        return sum(1 for _ in self)


def judged_anew(run: Run, slo: SloConfig, gpu_hour_usd: float | None) -> Run:
    """The run as it would be with `slo` and that price of a GPU-hour in its scenario.

    Where the columns of its twins are not there (nobody simulated them, because the run had no target; or an earlier
    version wrote it) `model_error` and the attainment without a cache are None: not known.

    Of a fleet of [[pool]] tables the price is the mean of several, and stays what it was.

    Raises InputError for limits of an SLO class that the run has not, as a new run would, and for another price of
    pools, which have one each."""
    exempt = {surge.storm.slo_class: SloClass() for surge in run.scenario.workload.surge if surge.storm is not None}
    kinds = bool(run.scenario.pool)
    if kinds and gpu_hour_usd != run.scenario.cost.gpu_hour_usd:
        raise InputError(
            f"[[pool]]: a price of {gpu_hour_usd} for all GPUs, expected the run's own: pools have one each, run again"
        )
    scenario = replace(
        run.scenario,
        slo=replace(slo, classes={**slo.classes, **exempt}),
        cost=replace(run.scenario.cost, gpu_hour_usd=gpu_hour_usd),
    )
    class_slo = slo_classes_of(run)
    api.check_slo_classes(scenario.slo, class_slo)
    limits = metrics.limits_by(class_slo, scenario.slo)
    requests = run.tables["requests"]
    good = judged.good_of(requests, limits)
    over = Over(requests, good if judged.is_limited(limits) else None)
    summary = _limited(run, scenario, class_slo, limits, good)
    summary = summary if kinds else _priced(summary, scenario, requests)
    return replace(
        run,
        scenario=scenario,
        summary=summary,
        aggregates={**run.aggregates, "slowest": _slowest(run, over)},
        tables={**run.tables, "requests": over},
    )


def slo_classes_of(run: Run) -> list[str]:
    """The SLO class that each of the run's workload classes names; a trace's name none."""
    names, workload = list(run.summary["classes"]), run.scenario.workload
    if workload.trace is not None:
        return [""] * len(names)
    classes = [*mix.resolve(workload).class_, *(surge.storm for surge in workload.surge if surge.storm is not None)]
    named = {one.name: one.slo_class for one in classes}
    return [named.get(name, "") for name in names]


def _limited(run: Run, scenario: Scenario, class_slo: list[str], limits: Limits, good: np.ndarray) -> dict[str, Any]:
    """The summary with every number that limits and targets decide."""
    s, slo, requests = run.summary, scenario.slo, run.tables["requests"]
    names, window = list(s["classes"]), s["window"]
    told = judged.by_limits(requests, good, names, limits, slo, s["stable"], window["end_s"] - window["start_s"])
    fell = told.pop("fell")
    named = [(name, one) for name, (_, one) in zip(names, limits, strict=True)]
    shocks = _shocks(run, scenario, named, good)
    new = {
        **{key: value for key, value in s.items() if key != "fell"},
        **told,
        **({} if fell is None else {"fell": fell}),
    }
    class_id, inside = requests["class_id"].astype(np.int64), requests["in_window"].astype(bool)
    new |= {
        "regime": of_run(s["stable"], shocks, scenario.plan.recover_within_s, fell),
        **({"shocks": shocks} if shocks else {}),
        "model_error": _model_error(run, named, slo) if told["verdict"] is not None else None,
        "cache_worth": _worth(run, told["attainment"], limits),
        "classes": {
            name: {**row, **_of_class(c, limits, good, inside, class_id)}
            for c, (name, row) in enumerate(s["classes"].items())
        },
        "slo_classes": judged.slo_table(class_id, inside, good, limits),
    }
    before = len(judged.notes(s, class_slo, run.scenario.slo))
    return {**new, "notes": [*s["notes"][: len(s["notes"]) - before], *judged.notes(new, class_slo, slo)]}


def _of_class(c: int, limits: Limits, good: np.ndarray, inside: np.ndarray, class_id: np.ndarray) -> dict[str, Any]:
    name, own = limits[c]
    limited = metrics.has_limit(own)
    return {"slo_class": name, "attainment": judged.attainment(good, inside & (class_id == c)) if limited else None}


def _shocks(run: Run, scenario: Scenario, named: Limits, good: np.ndarray) -> list[dict[str, Any]]:
    """Its rows with what the limits decide in them; what they do not stays as it was measured."""
    rows, window, requests = run.summary.get("shocks", []), run.summary["window"], run.tables["requests"]
    if not rows:
        return []
    columns = {"good": good, **{name: requests[name] for name in ("arrival_s", "in_window", "class_id")}}
    told = told_of_shocks(scenario, columns, named, min(window["end_s"], window["last_arrival_s"]))
    phases = ("before", "during", "after")
    return [
        {**row, **new, **{phase: {**row[phase], **new[phase]} for phase in phases}}
        for row, new in zip(rows, told, strict=True)
    ]


def _twin(run: Run, name: str) -> Columns | None:
    """Its requests of the window, as far as limits are judged by them; None where they were not kept."""
    if "twins" not in run.tables:
        return None
    table = run.tables["twins"]
    mine = table["twin"] == name
    return {column: table[column][mine] for column in judged.COLUMNS} if mine.any() else None


def _model_error(run: Run, named: Limits, slo: SloConfig) -> dict[str, Any] | None:
    error = run.summary["model_error"]
    columns = {side: _twin(run, side) for side, _, _ in model_error.SIDES}
    known = {side: one for side, one in columns.items() if one is not None}
    if error is None or len(known) < len(columns) or any("stable" not in error[side] for side in known):
        return None
    stable = {side: error[side]["stable"] for side in known}
    return model_error.judged(model_error.Scaled(error["share"], error["source"], known, stable), named, slo)


def _worth(run: Run, attained: float | None, limits: Limits) -> dict[str, Any]:
    """What the cache was worth, with the attainment of both runs."""
    worth = run.summary["cache_worth"]
    if not worth["twin"]:
        return worth
    off, share = _twin(run, CACHE_OFF), None
    if off is not None and judged.is_limited(limits):
        share = judged.attainment(judged.good_of(off, limits), off["in_window"].astype(bool))
    return {**worth, "attainment": {"off": share, "on": attained}}


def _priced(s: dict[str, Any], scenario: Scenario, requests: Columns) -> dict[str, Any]:
    """The summary with every number that the price decides."""
    price, hours = scenario.cost.gpu_hour_usd, s["gpu_hours"]
    classes = {
        name: {**row, "usd_per_request": judged.usd_of_class(row["gpu_hours"], row["arrived"], price)}
        for name, row in s["classes"].items()
    }
    cost = {
        **s["cost"],
        **judged.dollars(s["cost"], hours, s["arrived"], price),
        "at_offered": api.bill(scenario, s, requests),
    }
    cost["usd_per_request_by_class"] = {name: row["usd_per_request"] for name, row in classes.items()}
    worth = s["cache_worth"]
    if worth["twin"]:
        off, on = (None if price is None else worth["gpu_hours"][side] * price for side in ("off", "on"))
        worth = {**worth, "cost_usd": judged.pair(off, on)}
    return {**s, "cost": cost, "classes": classes, "cache_worth": worth}


def _slowest(run: Run, requests: Columns) -> list[dict[str, Any]]:
    rows = [{key: value for key, value in row.items() if key != "good"} for row in run.aggregates["slowest"]]
    if "good" not in requests:
        return rows
    good = requests["good"]
    return [{**row, "good": bool(good[row["request"]])} for row in rows]
