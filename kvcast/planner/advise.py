"""What would help a fleet most: every lever that applies, on the same requests.

The one idea: advice is a change with which the same fleet holds more load, or a smaller one is enough for the offered
load, than without it: both sides are found by the same search.

    >>> advice(loads, found, replicas, feasible)["advice"]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvcast.planner.candidates import fleet_of
from kvcast.planner.load import FARTHEST, STRIDE, Capacity, Loads, factor_of, with_load
from kvcast.planner.sampled import brief, sampled
from kvcast.planner.trials import Judged, Trial, Trials
from kvcast.planner.whatif import LEAST_GAIN, NO_GAIN, Stress, load_words, stress, try_all
from kvcast.studies.change import Change
from kvcast.studies.levers import ADVICE, changes, without_changes
from kvcast.studies.search import fewest, together
from sim.scenario import Scenario

BEST = 3
PROMISING = 2  #: changes whose fleet and load are looked for


# -- advice ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tried:
    """A change that was simulated. most: the highest step of load the same fleet holds with it."""

    change: Change
    row: dict[str, Any]
    most: int | None = None


def advice(
    loads: Loads,
    found: Capacity,
    replicas: int,
    feasible: bool,
    routers: dict[str, Any] | None = None,
    back: Callable[[Scenario], bool] | None = None,
) -> dict[str, Any]:
    """Each change against the unchanged fleet, by the fewest replicas at the offered load and the highest load held.

    routers: what was found of other routers (kvcast.planner.fewer): the one that was settled there is not looked for
    once more. back: whether a fleet comes back after the plan's burst, which a smaller one must where the answer does.
    Of a fleet that is larger than its load asks for: kvcast.planner.returning.
    advice: the best; tried: all that were; not_tried: lever -> why it has none here. A change that saves neither is
    no advice. The best are then tried together, one more at a time while that holds more load."""
    at = stress(loads, found)
    step, base = at.step, at.base
    every = changes(ADVICE, loads.scenario)
    results = try_all(
        loads.trials,
        [brief(Trial(with_load(change.scenario, factor_of(step)), full=True)) for change in every],
        base,
        [change.scenario.workload == loads.scenario.workload for change in every],
    )
    tried = [
        _Tried(change, {**told_of(change), **gain, "reason": reason})
        for change, (gain, reason, _) in zip(every, results, strict=True)
    ]
    shown = sorted(
        (one for one in tried if (one.row["gain"] or 0) >= LEAST_GAIN),
        key=lambda one: (-one.row["gain"], one.row["change"]),
    )
    settled = (routers and routers["best"]) or {}
    first = [one for one in tried if one.row["change"] == settled.get("change")]
    shown = [*first, *(one for one in shown if one not in first)]
    promising = [replace(one, most=_most(loads, one.change, found)) for one in shown[:PROMISING]]
    both = _combined(loads, found, promising, at)
    candidates = [*promising, *([both] if both else [])]
    alone: list[int | None] = [
        1 if feasible and one.cluster.replicas == 1 else None
        for one in (loads.scenario, *(one.change.scenario for one in candidates))
    ]
    smaller = feasible and replicas > 1
    fleets = _fleets(loads.trials, [loads.scenario, *(one.change.scenario for one in candidates)]) if smaller else alone
    if smaller and back is not None:
        fleets[1:] = [_back(one.change, n, replicas, back) for one, n in zip(candidates, fleets[1:], strict=True)]
    before = side_of(base, found, (step, found.most), fleets[0] if smaller else replicas, loads.scenario)
    answer = side_of(base, found, (step, found.most), replicas, loads.scenario)
    rows = [
        _advised(one, answer, found, step, settled["replicas"])
        if one in promising and one.row["change"] == settled.get("change")
        else _advised(one, before, found, step, fleet)
        for one, fleet in zip(candidates, fleets[1:], strict=True)
    ]
    rows = sorted(
        (row for row in rows if row["saves"]),
        key=lambda row: (row["after"]["gpus"] or before["gpus"] or 0, -(row["after"]["capacity"] or 0.0)),
    )
    return {
        "advice": rows[:BEST],
        "tried": [one.row for one in tried],
        "not_tried": without_changes(ADVICE, loads.scenario),
    }


def told_of(change: Change) -> dict[str, Any]:
    return {"change": change.words, "set": list(change.sets), "asks_for": change.asks_for, "costs": change.costs}


def _most(loads: Loads, change: Change, found: Capacity, beyond: int | None = None) -> int | None:
    """The highest step of load that attains the target with the change, on a grid of 9 %; None when none above the
    unchanged fleet's does, or above `beyond`, a step that it is taken to attain it at."""
    changed, most = Loads(loads.trials, change.scenario), found.most if found.most is not None else -FARTHEST
    least = most if beyond is None else beyond
    best: int | None = None
    first = most + STRIDE * ((least - most) // STRIDE + 1)
    for step in range(first, found.farthest + 1, STRIDE):
        if not changed.at([step], full=False)[0].attains:
            break
        best = step
    if best is None:
        between = [first - STRIDE // 2]
    else:
        between = [best + STRIDE // 2] if best + STRIDE <= found.farthest else []
    return next(
        (step for step in between if least < step <= found.farthest and changed.at([step], full=False)[0].attains), best
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
        most = _most(loads, change, found, beyond=best.most)
        if most is not None:
            best, parts = _Tried(change, {**told_of(change), **NO_GAIN, "reason": None}, most), parts + 1
    if parts == 1:
        return None
    ((gain, _, _),) = try_all(
        loads.trials,
        [brief(Trial(with_load(best.change.scenario, factor_of(at.step)), full=True))],
        at.base,
        [best.change.scenario.workload == loads.scenario.workload],
    )
    return replace(best, row={**best.row, **gain})


def _fleets(trials: Trials, scenarios: Sequence[Scenario]) -> list[int | None]:
    """The fewest replicas of each scenario at its offered load, at most as many as it has; None when even those
    miss."""

    def judge(asked: dict[int, list[int]]) -> dict[int, list[bool]]:
        places = [(i, n) for i, ns in asked.items() for n in ns]
        fleets = [fleet_of(scenarios[i], n) for i, n in places]
        answers = iter(trials.judge([sampled(Trial(fleet)) for fleet in fleets]))
        return {i: [next(answers).attains for _ in ns] for i, ns in asked.items()}

    starts = [one.cluster.replicas for one in scenarios]
    found = together({i: fewest(max(start - 1, 1), max(start, 1)) for i, start in enumerate(starts)}, judge)
    return [found[i].fewest for i in range(len(scenarios))]


def _back(change: Change, n: int | None, most: int, back: Callable[[Scenario], bool]) -> int | None:
    """The fewest replicas from n on, below `most`, that come back after the burst with a change; else `most`."""
    if n is None or n >= most:
        return n
    return next((m for m in range(n, most) if back(fleet_of(change.scenario, m))), most)


def side_of(
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
    gpus = None if replicas is None else replicas * scenario.hardware.gpus
    return {
        "attainment": share,
        "load": found.load(steps[0]),
        "capacity": found.load(steps[1]),
        "replicas": replicas,
        "gpus": gpus,
    }


def _advised(one: _Tried, before: dict[str, Any], found: Capacity, step: int, fleet: int | None) -> dict[str, Any]:
    from kvcast.scenario.toml import dumps

    after = side_of(None, found, (step, one.most), fleet, one.change.scenario, one.row["attainment"])
    fewer = after["gpus"] is not None and before["gpus"] is not None and after["gpus"] < before["gpus"]
    more = one.most is not None and one.most > (found.most if found.most is not None else -(10**9))
    gains = [f"{after['gpus']} GPUs instead of {before['gpus']}"] if fewer else []
    gains += (
        [f"holds {load_words(after['capacity'], found.unit)} instead of {load_words(before['capacity'], found.unit)}"]
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
