"""What binds a fleet, and what would help it most: the same requests again with one thing changed.

The one idea: a fleet that meets its target has nothing left to gain, so changes are judged at a load a little beyond
what it holds. What binds is the resource whose +20 % raises attainment most there. Advice is a change with which the
same fleet holds more load, or a smaller one is enough for the offered load, than without it: both sides are found by
the same search.

    >>> binding(loads, found)["resource"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrate.faster import HOST, INTERCONNECT, RESOURCES, SHARE, compared, has_host_time
from calibrate.profile import DeviceProfile
from kvcast import api, text
from kvcast.planner.load import FARTHEST, STRIDE, Capacity, Loads, factor_of, shortened, with_load
from kvcast.planner.trials import Judged, Trial, Trials
from kvcast.studies import intervals
from kvcast.studies.levers import ADVICE, Change, changes, without_changes
from kvcast.studies.search import fewest, together
from sim.engines import engine_of
from sim.scenario import Scenario
from workloads.errors import InputError

BEYOND = 1
"""Steps above the capacity at which changes are judged: 4 % more load."""
FARTHER = 10
"""Steps above it at most."""
KV, REPLICAS, ROUTING = "KV capacity", "replicas", "routing"
MORE = {
    ROUTING: "a router that knows every cache",
    INTERCONNECT: "a 20 % faster interconnect",
    HOST: "a 20 % faster host",
}
"""What is not "20 % more" of something."""
LEAST_PART = 0.25
"""Of what +20 % replicas gain: a resource that gains less does not bind alone."""
LEAST_GAIN = 0.002
"""Of attainment: less is not worth a line."""
BEST = 3
PROMISING = 2  #: changes whose fleet and load are looked for


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
        base = loads.trials.judge([Trial(loads.short(step), full=True)])[0]
        further = step + 2 * BEYOND
        if not base.attains or further > min(found.farthest, most + FARTHER):
            return Stress(step, base)
        step = further


# -- what binds --------------------------------------------------------------------------------------------------------


def binding(loads: Loads, found: Capacity) -> dict[str, Any]:
    """+20 % of each resource at the stress load, each with the attainment it gains and that gain's 95 % interval.

    estimate: the step times are a roofline's ratio times the profile's (calibrate.faster), not anything measured.
    """
    at = stress(loads, found)
    step, base, scenario = at.step, at.base, loads.short(at.step)
    asked = _resources(scenario)
    tried = _tried(loads.trials, [trial for _, trial in asked], base, [resource != REPLICAS for resource, _ in asked])
    rows = [
        {"resource": resource, **gain, "reason": reason, "estimate": resource in RESOURCES}
        for (resource, _), (gain, reason, _) in zip(asked, tried, strict=True)
    ]
    load = found.load(step)
    bound: str | None = None
    rivals: list[str] = []
    if found.endless:
        words = (
            f"at {_load(load, found.unit)}, the highest load that was looked at, the target is still met: nothing binds"
        )
    else:
        bound, rivals, words = _binds(
            rows, _alike(loads.trials, rows, [one for *_, one in tried]), base, _load(load, found.unit)
        )
    return {
        "resource": bound,
        "rivals": rivals,
        "words": words,
        "load": load,
        "unit": found.unit,
        "rate_per_s": base.offered_per_s,
        "attainment": base.attainment.mean if base.attainment else None,
        "share": SHARE,
        "changes": rows,
    }


NO_GAIN: dict[str, float | None] = dict.fromkeys(("attainment", "gain", "gain_low", "gain_high"))


def _tried(
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


def _resources(scenario: Scenario) -> list[tuple[str, Trial | str]]:
    resolved = api.resolve(scenario)
    more_kv = replace(
        scenario,
        engine=replace(scenario.engine, kv_blocks=round((resolved.scenario.engine.kv_blocks or 0) * (1 + SHARE))),
    )
    oracle: Trial | str = Trial(scenario, "oracle", full=True)
    if scenario.cluster.replicas == 1:
        oracle = "one replica: nothing to route"
    elif not engine_of(scenario.engine).has_oracle:
        oracle = "the oracle router reads vLLM's caches only"
    return [
        *((resource, _faster(scenario, resolved.profile, resource)) for resource in (*RESOURCES, INTERCONNECT)),
        (HOST, _sooner(scenario, resolved.profile)),
        (KV, Trial(more_kv, full=True)),
        (REPLICAS, Trial(with_load(scenario, 1 / (1 + SHARE)), full=True)),
        (ROUTING, oracle),
    ]


def _faster(scenario: Scenario, profile: DeviceProfile, resource: str) -> Trial | str:
    try:
        compared(profile, scenario.model.dtype, resource)
    except InputError as error:
        return str(error)
    return Trial(scenario, resource, full=True)


def _sooner(scenario: Scenario, profile: DeviceProfile) -> Trial | str:
    """Host time divided by 1.2: that of [engine], and what the profile's own step times contain."""
    engine, inside = scenario.engine, has_host_time(profile)
    if not (engine.step_overhead_ms or engine.frontend_ms or inside):
        return "no host time in this scenario: engine.step_overhead_ms and frontend_ms are 0"
    engine = replace(
        engine, step_overhead_ms=engine.step_overhead_ms / (1 + SHARE), frontend_ms=engine.frontend_ms / (1 + SHARE)
    )
    return Trial(replace(scenario, engine=engine), HOST if inside else "", full=True)


def gained(trials: Trials, one: Judged, base: Judged) -> intervals.Difference:
    """Attainment of one minus base's over the same requests, paired by request (one seed) or by seed, with its 95 %
    interval."""
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
    return max(
        (row for row in rows if row["gain"] is not None and row["resource"] != REPLICAS),
        key=lambda row: row["gain"],
        default=None,
    )


def _alike(trials: Trials, rows: Sequence[dict[str, Any]], judged: Sequence[Judged | None]) -> list[str]:
    """Resources that gain something, and that the best one is not surely ahead of: over the same requests, the 95 %
    interval of the difference between the two reaches zero."""
    best = _best(rows)
    known = {
        row["resource"]: one
        for row, one in zip(rows, judged, strict=True)
        if one is not None and row["resource"] != REPLICAS and row["gain"] > 0
    }
    if best is None or best["resource"] not in known:
        return []
    ahead = {
        name: gained(trials, known[best["resource"]], one) for name, one in known.items() if name != best["resource"]
    }
    return [name for name, by in ahead.items() if by.mean is None or by.half is None or by.mean - by.half <= 0]


def _binds(
    rows: Sequence[dict[str, Any]], alike: Sequence[str], base: Judged, load: str
) -> tuple[str | None, list[str], str]:
    replicas, best = (
        next((row for row in rows if row["resource"] == REPLICAS and row["gain"] is not None), None),
        _best(rows),
    )
    before = f"attainment from {text.percent(base.attainment.mean if base.attainment else None)}"
    if best is not None and best["gain"] >= max(LEAST_GAIN, LEAST_PART * (replicas["gain"] if replicas else 0.0)):
        more = MORE.get(best["resource"], f"20 % more {best['resource']}")
        apart = f"; {' and '.join(alike)} cannot be told apart from it" if alike else ", more than any other resource"
        return (
            best["resource"],
            list(alike),
            f"at {load}, {more} raises {before} to {text.percent(best['attainment'])}{apart}{_doubt(best)}",
        )
    if replicas is not None and replicas["gain"] >= LEAST_GAIN:
        return (
            REPLICAS,
            [],
            (
                f"at {load}, 20 % more replicas raise {before} to {text.percent(replicas['attainment'])}; no single"
                f" resource does nearly as much{_doubt(replicas)}"
            ),
        )
    grows = (
        ": the backlog grows there, and the run ends before that makes enough requests late"
        if base.stable is False
        else ""
    )
    return None, [], f"at {load}, 20 % more of any resource does not raise {before}{grows}"


def _doubt(row: dict[str, Any]) -> str:
    """A gain that one seed cannot show is said to be so."""
    return "" if row["gain_low"] is not None and row["gain_low"] > 0 else " (more seeds are needed to be sure)"


def _load(load: float | None, unit: str) -> str:
    return f"{text.UNKNOWN} {unit}" if load is None else f"{load:.3g} {unit}" if load < 1000 else f"{load:,.0f} {unit}"


# -- advice ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tried:
    """A change that was simulated. most: the highest step of load the same fleet holds with it."""

    change: Change
    row: dict[str, Any]
    most: int | None = None


def advice(loads: Loads, found: Capacity, replicas: int, feasible: bool) -> dict[str, Any]:
    """Each change against the unchanged fleet, by the fewest replicas at the offered load and the highest load held.

    advice: the best; tried: all that were; not_tried: lever -> why it has none here. A change that saves neither is
    no advice. The best are then tried together, one more at a time while that holds more load."""
    at = stress(loads, found)
    step, base = at.step, at.base
    every = changes(ADVICE, loads.scenario)
    results = _tried(
        loads.trials,
        [Trial(shortened(with_load(change.scenario, factor_of(step))), full=True) for change in every],
        base,
        [change.scenario.workload == loads.scenario.workload for change in every],
    )
    tried = [
        _Tried(change, {**_told(change), **gain, "reason": reason})
        for change, (gain, reason, _) in zip(every, results, strict=True)
    ]
    shown = sorted(
        (one for one in tried if (one.row["gain"] or 0) >= LEAST_GAIN),
        key=lambda one: (-one.row["gain"], one.row["change"]),
    )
    promising = [replace(one, most=_most(loads, one.change, found)) for one in shown[:PROMISING]]
    both = _combined(loads, found, promising, at)
    candidates = [*promising, *([both] if both else [])]
    alone: list[int | None] = [
        1 if feasible and one.cluster.replicas == 1 else None
        for one in (loads.scenario, *(one.change.scenario for one in candidates))
    ]
    smaller = feasible and replicas > 1
    fleets = _fleets(loads.trials, [loads.scenario, *(one.change.scenario for one in candidates)]) if smaller else alone
    before = _side(base, found, (step, found.most), fleets[0] if feasible else replicas, loads.scenario)
    rows = [_advised(one, before, found, step, fleet) for one, fleet in zip(candidates, fleets[1:], strict=True)]
    rows = sorted(
        (row for row in rows if row["saves"]),
        key=lambda row: (row["after"]["gpus"] or before["gpus"] or 0, -(row["after"]["capacity"] or 0.0)),
    )
    return {
        "advice": rows[:BEST],
        "tried": [one.row for one in tried],
        "not_tried": without_changes(ADVICE, loads.scenario),
    }


def _told(change: Change) -> dict[str, Any]:
    return {"change": change.words, "set": list(change.sets), "asks_for": change.asks_for, "costs": change.costs}


def _most(loads: Loads, change: Change, found: Capacity) -> int | None:
    """The highest step of load that attains the target with the change, on a grid of 9 %; None when none above the
    unchanged fleet's does."""
    changed, most = Loads(loads.trials, change.scenario), found.most if found.most is not None else -FARTHEST
    best: int | None = None
    for step in range(most + STRIDE, found.farthest + 1, STRIDE):
        if not changed.at([step], full=False)[0].attains:
            break
        best = step
    if best is None:
        between = [most + STRIDE // 2]
    else:
        between = [best + STRIDE // 2] if best + STRIDE <= found.farthest else []
    return next(
        (step for step in between if step <= found.farthest and changed.at([step], full=False)[0].attains), best
    )


def _combined(loads: Loads, found: Capacity, promising: Sequence[_Tried], at: Stress) -> _Tried | None:
    """The change that holds most load, and every other that adds to it, greedily; None when none does."""
    ranked = sorted((one for one in promising if one.most is not None), key=lambda one: -(one.most or 0))
    if len(ranked) < 2:
        return None
    best, parts = ranked[0], 1
    for other in ranked[1:]:
        again = next((one for one in changes(ADVICE, best.change.scenario) if one.words == other.change.words), None)
        if again is None or loads.trials.cannot_run(again.scenario):
            continue
        change = best.change.and_then(again)
        most = _most(loads, change, found)
        if most is not None and best.most is not None and most > best.most:
            best, parts = _Tried(change, {**_told(change), **NO_GAIN, "reason": None}, most), parts + 1
    if parts == 1:
        return None
    ((gain, _, _),) = _tried(
        loads.trials,
        [Trial(shortened(with_load(best.change.scenario, factor_of(at.step))), full=True)],
        at.base,
        [best.change.scenario.workload == loads.scenario.workload],
    )
    return replace(best, row={**best.row, **gain})


def _fleets(trials: Trials, scenarios: Sequence[Scenario]) -> list[int | None]:
    """The fewest replicas of each scenario at its offered load, at most as many as it has; None when even those
    miss."""

    def judge(asked: dict[int, list[int]]) -> dict[int, list[bool]]:
        places = [(i, n) for i, ns in asked.items() for n in ns]
        fleets = [replace(scenarios[i], cluster=replace(scenarios[i].cluster, replicas=n)) for i, n in places]
        answers = iter(trials.judge([Trial(fleet) for fleet in fleets]))
        return {i: [next(answers).attains for _ in ns] for i, ns in asked.items()}

    starts = [one.cluster.replicas for one in scenarios]
    found = together({i: fewest(max(start - 1, 1), max(start, 1)) for i, start in enumerate(starts)}, judge)
    return [found[i].fewest for i in range(len(scenarios))]


def _side(
    one: Judged | None,
    found: Capacity,
    steps: tuple[int, int | None],
    replicas: int | None,
    scenario: Scenario,
    attainment: float | None = None,
) -> dict[str, Any]:
    """A fleet before or after a change: what it attains at the stress load, the load it holds, and its fewest GPUs at
    the offered load."""
    share = attainment if one is None else one.attainment.mean if one.attainment else None
    gpus = None if replicas is None else replicas * scenario.hardware.tensor_parallel
    return {
        "attainment": share,
        "load": found.load(steps[0]),
        "capacity": found.load(steps[1]),
        "replicas": replicas,
        "gpus": gpus,
    }


def _advised(one: _Tried, before: dict[str, Any], found: Capacity, step: int, fleet: int | None) -> dict[str, Any]:
    from kvcast.scenario.toml import dumps

    after = _side(None, found, (step, one.most), fleet, one.change.scenario, one.row["attainment"])
    fewer = after["gpus"] is not None and before["gpus"] is not None and after["gpus"] < before["gpus"]
    more = one.most is not None and one.most > (found.most if found.most is not None else -(10**9))
    gains = [f"{after['gpus']} GPUs instead of {before['gpus']}"] if fewer else []
    gains += (
        [f"holds {_load(after['capacity'], found.unit)} instead of {_load(before['capacity'], found.unit)}"]
        if more
        else []
    )
    words = f"{one.change.words}: {', '.join(gains)}" + (
        f" (asks for {one.change.asks_for})" if one.change.asks_for else ""
    )
    return {
        **one.row,
        "scenario": dumps(one.change.scenario),
        "before": before,
        "after": after,
        "saves": fewer or more,
        "words": words,
    }
