"""What binds a fleet, and what would help it most: the same requests again with one thing changed.

The one idea: a fleet that meets its target has nothing left to gain, so changes are judged at a load a little beyond what it
holds. What binds is the resource whose +20 % raises attainment most there; advice is a change of the scenario that does, with
the fleet it would then need at the offered load, both found by simulation.

    >>> binding(loads, found)["resource"]
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrate.faster import RESOURCES, SHARE, gpu_key
from kvcast import api, intervals, text
from kvcast.planner.changes import Change, changes
from kvcast.planner.load import Capacity, Loads, factor_of, with_load
from kvcast.planner.search import fewest, together
from kvcast.planner.trials import Judged, Trial, Trials
from sim.scenario import Scenario
from workloads.errors import InputError

BEYOND = 2
"""Steps above the capacity at which changes are judged: 4 % more load."""
KV, REPLICAS, ROUTING = "KV capacity", "replicas", "routing"
LEAST_PART = 0.25
"""Of what +20 % replicas gain: a resource that gains less does not bind alone."""
LEAST_GAIN = 0.002
"""Of attainment: less is not worth a line."""
BEST = 3
PROMISING = 5  #: changes whose fleet is looked for


def stress_step(found: Capacity) -> int:
    """Where changes are judged: beyond the capacity, as far as loads were looked at."""
    return min((found.most if found.most is not None else 0) + BEYOND, found.farthest)


# -- what binds --------------------------------------------------------------------------------------------------------


def binding(loads: Loads, found: Capacity) -> dict[str, Any]:
    """+20 % of each resource at the stress load, each with the attainment it gains and that gain's 95 % interval.

    estimate: the step times are a roofline's ratio times measured ones (calibrate.faster), not anything measured.
    """
    step = stress_step(found)
    scenario = loads.trial(step).scenario
    base = loads.at([step])[0]
    asked = _resources(scenario)
    tried = _tried(loads.trials, [trial for _, trial in asked], base, [resource != REPLICAS for resource, _ in asked])
    rows = [{"resource": resource, **gain, "reason": reason, "estimate": resource in RESOURCES} for (resource, _), (gain, reason, _) in zip(asked, tried, strict=True)]
    load = found.load(step)
    bound: str | None = None
    rivals: list[str] = []
    if found.endless:
        words = f"at {_load(load, found.unit)}, the highest load that was looked at, the target is still met: nothing binds"
    else:
        bound, rivals, words = _binds(rows, _alike(loads.trials, rows, [one for *_, one in tried]), base, _load(load, found.unit))
    return {
        "resource": bound, "rivals": rivals, "words": words, "load": load, "unit": found.unit, "rate_per_s": base.offered_per_s,
        "attainment": base.attainment.mean if base.attainment else None, "share": SHARE, "changes": rows,
    }  # fmt: skip


NO_GAIN: dict[str, float | None] = dict.fromkeys(("attainment", "gain", "gain_low", "gain_high"))


def _tried(trials: Trials, asked: Sequence[Trial | str], base: Judged, paired: Sequence[bool]) -> list[tuple[dict[str, float | None], str | None, Judged | None]]:
    """What each trial gains over base, or why it cannot run, and its runs; all simulated in one round. paired: it serves base's requests."""
    reasons = [one if isinstance(one, str) else trials.cannot_run(one.scenario) for one in asked]
    simulated = iter(trials.judge([one for one, reason in zip(asked, reasons, strict=True) if reason is None and isinstance(one, Trial)]))
    judged = [next(simulated) if reason is None else None for reason in reasons]
    return [(_gain(trials, one, base, same) if one else dict(NO_GAIN), reason, one) for one, reason, same in zip(judged, reasons, paired, strict=True)]


def _gain(trials: Trials, one: Judged, base: Judged, paired: bool) -> dict[str, float | None]:
    difference = gained(trials, one, base) if paired else _unpaired(one, base)
    low, high = (None, None) if difference.mean is None or difference.half is None else (difference.mean - difference.half, difference.mean + difference.half)
    return {"attainment": one.attainment.mean if one.attainment else None, "gain": difference.mean, "gain_low": low, "gain_high": high}


def _resources(scenario: Scenario) -> list[tuple[str, Trial | str]]:
    blocks = api.resolve(scenario).scenario.engine.kv_blocks or 0
    more_kv = replace(scenario, engine=replace(scenario.engine, kv_blocks=round(blocks * (1 + SHARE))))
    oracle: Trial | str = Trial(scenario, "oracle", full=True)
    if scenario.cluster.replicas == 1:
        oracle = "one replica: nothing to route"
    elif scenario.engine.semantics != "vllm":
        oracle = "the oracle router reads vLLM's caches only"
    return [
        *((resource, _faster(scenario, resource)) for resource in RESOURCES),
        (KV, Trial(more_kv, full=True)), (REPLICAS, Trial(with_load(scenario, 1 / (1 + SHARE)), full=True)), (ROUTING, oracle),
    ]  # fmt: skip


def _faster(scenario: Scenario, resource: str) -> Trial | str:
    try:
        profile = api.resolve(scenario).profile
        if profile.kind != "roofline":
            gpu_key(str(profile.device["name"]))
    except InputError as error:
        return str(error)
    return Trial(scenario, resource, full=True)


def gained(trials: Trials, one: Judged, base: Judged) -> intervals.Difference:
    """Attainment of one minus base's over the same requests, paired by request (one seed) or by seed, with its 95 % interval."""
    pairs = [_same(trials, a, b) for a, b in zip(one.runs, base.runs, strict=True)]
    if any(a is None for a, _ in pairs):
        return _unpaired(one, base)
    if len(pairs) >= 5:
        return intervals.replications([float(a.mean() - b.mean()) for a, b in pairs])  # type: ignore[union-attr]
    ours, theirs = (np.concatenate([np.asarray(pair[i], float) for pair in pairs]) for i in (0, 1))
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


def _best(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The single resource that gains most."""
    return max((row for row in rows if row["gain"] is not None and row["resource"] != REPLICAS), key=lambda row: row["gain"], default=None)


def _alike(trials: Trials, rows: Sequence[dict[str, Any]], judged: Sequence[Judged | None]) -> list[str]:
    """Resources that gain something, and that the best one is not surely ahead of: over the same requests, the 95 % interval of the
    difference between the two reaches zero."""
    best = _best(rows)
    known = {row["resource"]: one for row, one in zip(rows, judged, strict=True) if one is not None and row["resource"] != REPLICAS and row["gain"] > 0}
    if best is None or best["resource"] not in known:
        return []
    ahead = {name: gained(trials, known[best["resource"]], one) for name, one in known.items() if name != best["resource"]}
    return [name for name, by in ahead.items() if by.mean is None or by.half is None or by.mean - by.half <= 0]


def _binds(rows: Sequence[dict[str, Any]], alike: Sequence[str], base: Judged, load: str) -> tuple[str | None, list[str], str]:
    replicas, best = next((row for row in rows if row["resource"] == REPLICAS and row["gain"] is not None), None), _best(rows)
    before = f"attainment from {text.percent(base.attainment.mean if base.attainment else None)}"
    if best is not None and best["gain"] >= max(LEAST_GAIN, LEAST_PART * (replicas["gain"] if replicas else 0.0)):
        more = "a router that knows every cache" if best["resource"] == ROUTING else f"20 % more {best['resource']}"
        apart = f"; {' and '.join(alike)} cannot be told apart from it" if alike else ", more than any other resource"
        return best["resource"], list(alike), f"at {load}, {more} raises {before} to {text.percent(best['attainment'])}{apart}{_doubt(best)}"
    if replicas is not None and replicas["gain"] >= LEAST_GAIN:
        return REPLICAS, [], f"at {load}, 20 % more replicas raise {before} to {text.percent(replicas['attainment'])}; no single resource does nearly as much{_doubt(replicas)}"
    grows = ": the backlog grows there, and the run ends before that makes enough requests late" if base.stable is False else ""
    return None, [], f"at {load}, 20 % more of any resource does not raise {before}{grows}"


def _doubt(row: dict[str, Any]) -> str:
    """A gain that one seed cannot show is said to be so."""
    return "" if row["gain_low"] is not None and row["gain_low"] > 0 else " (more seeds are needed to be sure)"


def _load(load: float | None, unit: str) -> str:
    return f"{text.UNKNOWN} {unit}" if load is None else f"{load:.3g} {unit}" if load < 1000 else f"{load:,.0f} {unit}"


# -- advice ------------------------------------------------------------------------------------------------------------


def advice(loads: Loads, found: Capacity, replicas: int, feasible: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(the best three changes, all that were tried): attainment at the stress load, and the fewest replicas at the offered load.

    Best are the fewest GPUs, then the largest gain; scenario: the file of the chosen fleet with the change made.
    """
    from kvcast.toml import dumps

    step = stress_step(found)
    base = loads.at([step])[0]
    every = changes(loads.scenario)
    results = _tried(
        loads.trials, [Trial(with_load(change.scenario, factor_of(step)), full=True) for change in every], base,
        [change.scenario.workload == loads.scenario.workload for change in every],
    )  # fmt: skip
    tried: list[tuple[dict[str, Any], Change]] = [
        ({"change": change.words, "set": list(change.sets), "asks_for": change.asks_for, **gain, "reason": reason}, change)
        for change, (gain, reason, _) in zip(every, results, strict=True)
    ]
    shown = sorted(((row, change) for row, change in tried if (row["gain"] or 0) >= LEAST_GAIN), key=lambda pair: (-pair[0]["gain"], pair[0]["change"]))
    promising = shown[:PROMISING]
    fleets = _fleets(loads.trials, [change for _, change in promising]) if feasible else [None] * len(promising)
    before = {"attainment": base.attainment.mean if base.attainment else None, "load": found.load(step), "replicas": replicas, "gpus": replicas * loads.scenario.hardware.tensor_parallel}
    rows = []
    for (row, change), fleet in zip(promising, fleets, strict=True):
        tp = change.scenario.hardware.tensor_parallel
        after = {"attainment": row["attainment"], "load": before["load"], "replicas": fleet, "gpus": None if fleet is None else fleet * tp}
        rows.append({**row, "scenario": dumps(change.scenario), "before": before, "after": after, "words": _words(change, before, after, found.unit) + _doubt(row)})
    rows.sort(key=lambda row: (row["after"]["gpus"] or before["gpus"], -row["gain"]))
    return rows[:BEST], [row for row, _ in tried]


def _fleets(trials: Trials, chosen: Sequence[Change]) -> list[int | None]:
    """The fewest replicas of each changed scenario at the offered load, at most as many as it has."""

    def judge(asked: dict[int, list[int]]) -> dict[int, list[bool]]:
        places = [(i, n) for i, ns in asked.items() for n in ns]
        fleets = [replace(chosen[i].scenario, cluster=replace(chosen[i].scenario.cluster, replicas=n)) for i, n in places]
        answers = iter(trials.judge([Trial(fleet) for fleet in fleets]))
        return {i: [next(answers).meets for _ in ns] for i, ns in asked.items()}

    starts = [one.scenario.cluster.replicas for one in chosen]
    found = together({i: fewest(max(start - 1, 1), max(start, 1)) for i, start in enumerate(starts)}, judge)
    return [found[i].fewest for i in range(len(chosen))]


def _words(change: Change, before: dict[str, Any], after: dict[str, Any], unit: str) -> str:
    gain = f"attainment at {_load(before['load'], unit)} from {text.percent(before['attainment'])} to {text.percent(after['attainment'])}"
    fewer = after["gpus"] is not None and after["gpus"] < before["gpus"]
    fleet = f"{after['gpus']} GPUs instead of {before['gpus']}; " if fewer else ""
    return f"{change.words}: {fleet}{gain}" + (f" (asks for {change.asks_for})" if change.asks_for else "")
