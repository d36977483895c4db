"""The plan as one JSON-able document: what `kvcast plan --json` prints, plan.json holds and the pages show.

The one idea: every key is always there; null is what was not asked for or is not known. docs/plan.md has the meaning of
each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np

from kvcast.planner.candidates import Combination
from kvcast.planner.command import launch_of
from kvcast.planner.fleet import Fleet
from kvcast.planner.load import Capacity
from kvcast.planner.trials import MISSES, PRUNED, Judged
from kvcast.planner.words.phrases import FRAGILE, PERIOD, RECOVERY
from sim.measure.money import KEYS, money
from sim.measure.regime import regime
from sim.measure.verdict import UNSTABLE, Interval
from sim.scenario import Scenario, SloConfig

LIMITS = ("ttft_s", "tpot_s", "e2e_s")


def scenario_of(toml: str) -> Scenario:
    """A scenario that a plan's document holds."""
    import tomllib

    from kvcast.config import scenario_from_doc

    return scenario_from_doc(tomllib.loads(toml), "the plan's scenario")


def slo_of(slo: SloConfig) -> dict[str, Any]:
    return {
        "limits": {limit: getattr(slo, limit) for limit in LIMITS},
        "attainment": slo.attainment,
        "attained_by": slo.attained_by,
        "classes": {name: {limit: getattr(one, limit) for limit in LIMITS} for name, one in slo.classes.items()},
        "targets": {name: one.attainment for name, one in slo.classes.items() if one.attainment is not None},
    }


def interval_of(found: Interval | None, at_most: float | None = None) -> dict[str, float | None]:
    return (
        {"mean": found.mean, "low": found.low, "high": found.high}
        if found
        else {"mean": None, "low": None, "high": at_most}
    )


def size_of(combination: Combination, replicas: int) -> dict[str, Any]:
    gpus, price = replicas * combination.gpus_per_replica, combination.usd_per_gpu_hour
    size = {"replicas": replicas, "gpus": gpus, "usd_per_hour": None if price is None else gpus * price}
    pools = combination.with_replicas(replicas).disaggregation
    return {**size, "prefill_replicas": pools.prefill_replicas} if pools.on else size


def candidate_rows(fleet: Fleet, fragile: Collection[tuple[int, int]] = ()) -> list[dict[str, Any]]:
    """Everything that was looked at: simulated fleets, combinations given up for their price, and those that cannot
    run. fragile: (combination, replicas) that hold the load and do not come back after a burst."""
    rows = []
    for i, combination in enumerate(fleet.combinations):
        if i in fleet.reasons:
            word, reason = fleet.reasons[i]
            rows.append(_row(combination, word, reason=reason))
            continue
        rows += [
            {**row_of(fleet, i, n), **({"verdict": FRAGILE, "rejected_by": RECOVERY} if (i, n) in fragile else {})}
            for n in sorted(n for j, n in fleet.judged if j == i)
        ]
        given_up = fleet.why_given_up(i)
        if given_up:
            rows.append({**_row(combination, PRUNED, reason=given_up), **size_of(combination, fleet.found[i].at_least)})
    return rows


def row_of(fleet: Fleet, i: int, n: int) -> dict[str, Any]:
    """The row of a fleet that was judged."""
    one = fleet.judged[i, n]
    return {**_row(fleet.combinations[i], one.verdict, one), **size_of(fleet.combinations[i], n)}


def _row(
    combination: Combination, verdict: str, one: Judged | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {
        "label": combination.label,
        "values": combination.values,
        "replicas": None,
        "gpus": None,
        "usd_per_hour": None,
        "attainment": interval_of(one.attainment if one else None, one.at_most if one else None),
        "per_slo": one.per_slo if one else dict.fromkeys(LIMITS),
        "stable": one.stable if one else None,
        "verdict": verdict,
        "rejected_by": one.judged.reason or None if one else None,
        "class": one.judged.failed or None if one else None,
        "classes": [each.as_document() for each in one.judged.classes] if one else [],
        "runs": len(one.runs) if one else 0,
        "reason": reason,
        "extrapolated": one.extrapolated if one else None,
        "goodput_per_s": one.goodput_per_s if one else None,
        "ttft_ms_p99": one.ttft_ms["p99"] if one else None,
        "tpot_ms_p99": one.tpot_ms["p99"] if one else None,
        "run": one.run if one else None,
        "sample": _sample(one),
    }


def _sample(one: Judged | None) -> dict[str, float] | None:
    """Of a fleet that was judged by a part of it: how many replicas at which share of its load."""
    if one is None or one.trial.share is None:
        return None
    return {"replicas": one.trial.scenario.cluster.replicas, "share": one.trial.share}


def sketch_of(one: Judged) -> dict[str, Any]:
    """A fleet judged by one run: its shares, without more precision than it has."""
    return {
        "verdict": one.verdict,
        "attains": one.attains,
        "attainment": interval_of(one.attainment, one.at_most),
        "classes": [each.as_document() for each in one.judged.classes],
        "ttft_ms_p99": one.ttft_ms["p99"],
        "tpot_ms_p99": one.tpot_ms["p99"],
    }


def rejected_by(rows: list[dict[str, Any]]) -> dict[str, int]:
    counted = Counter(row["rejected_by"] or row["verdict"] for row in rows if row["verdict"] != "meets")
    return {**{limit: counted.pop(limit, 0) for limit in LIMITS}, **{key: counted[key] for key in sorted(counted)}}


def answer_of(fleet: Fleet, scenario: Scenario) -> dict[str, Any]:
    one = fleet.answer
    empty = dict.fromkeys(
        (
            "replicas",
            "gpus",
            "gpus_per_replica",
            "gpu_hours_per_day",
            "usd_per_hour",
            "label",
            "values",
            "router",
            "goodput_per_s",
            "run",
            "launch",
            "word",
            "regime",
            "reason",
            "class",
            "classes",
            "runs",
            "by_seed",
            "offered_per_s",
            *KEYS,
        )
    )
    if one is None or fleet.winner is None:
        return {"feasible": False, **empty, "attainment": interval_of(None)}
    combination = fleet.combinations[fleet.winner]
    size = size_of(combination, fleet.replicas)
    return {
        "feasible": one.meets,
        **empty,
        **size,
        "gpus_per_replica": combination.gpus_per_replica,
        "gpu_hours_per_day": 24 * size["gpus"],
        "label": combination.label,
        "values": combination.values,
        "router": scenario.cluster.router,
        "attainment": interval_of(one.attainment, one.at_most),
        "goodput_per_s": one.goodput_per_s,
        "run": one.run,
        "launch": launch_of(scenario),
        "word": one.verdict,
        "regime": UNSTABLE if one.stable is False else None,
        "reason": one.judged.reason or None,
        "class": one.judged.failed or None,
        "classes": [each.as_document() for each in one.judged.classes],
        "runs": len(one.runs),
        "by_seed": fleet.by_seed(),
        "offered_per_s": one.offered_per_s,
        **_money(fleet, one, size["usd_per_hour"]),
    }


def over_the_period(answer: dict[str, Any], period: dict[str, Any] | None) -> dict[str, Any]:
    """A fleet that meets in the worst hour of a mix's clock must attain the target over the period too."""
    if period is None or period["attains"] or not answer["feasible"]:
        return answer
    return {**answer, "feasible": False, "word": MISSES, "reason": PERIOD, "class": None}


def after_a_burst(answer: dict[str, Any], recovery: dict[str, Any] | None) -> dict[str, Any]:
    """A fleet that was asked to come back after a burst, and does not, is no answer."""
    if recovery is None or not answer["feasible"]:
        return answer
    answer = {**answer, "regime": regime(True, recovery["recovers"])}
    if recovery["holds_replicas"] != answer["replicas"]:
        answer = {**answer, "by_seed": None}  # which only says who would do with less while nothing happens
    return answer if recovery["recovers"] else {**answer, "feasible": False, "word": MISSES, "reason": RECOVERY}


def _money(fleet: Fleet, one: Judged, usd_per_hour: float | None) -> dict[str, float | None]:
    workload = fleet.trials.workload(one.trial.scenario)
    inside = (
        fleet.trials.by_request(one.runs[0])["in_window"].astype(bool)
        if one.at_most is None
        else np.ones(len(workload), bool)
    )
    return money(usd_per_hour, one.offered_per_s, workload.prompt_tokens[inside], workload.output_tokens[inside])


def capacity_of(found: Capacity) -> dict[str, Any]:
    """Loads in `unit`; headroom is 1 - offered / capacity. breaks_at_per_s is None where every load looked at meets:
    both are then lower bounds."""
    most = found.load(found.held)
    return {
        "unit": found.unit,
        "offered_rate_per_s": found.offered,
        "slo_capacity_per_s": most,
        "low": found.load(found.low),
        "high": found.load(found.high),
        "headroom": None if not most else 1 - found.offered / most,
        "breaks_at_per_s": None if found.most is None or found.endless else found.load((found.held or 0) + 1),
    }
