"""Which router, or which split into prefill and decode, needs fewer GPUs than the plan's answer.

The one idea: a change is asked, by one run of a sample that stops when it is hopeless, whether it holds the load with
the fleet that was found, then with one replica less and so on while it may need fewer than every other; the one that
gets by with the fewest is settled as the answer was: over independent runs, and back after the burst.

    >>> fewer(fleet, winner, ROUTER, recovery)["best"]
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvcast.planner.candidates import fleet_of
from kvcast.planner.document import interval_of
from kvcast.planner.fleet import Fleet
from kvcast.planner.recovery import Recovery
from kvcast.planner.sampled import sampled
from kvcast.planner.trials import Judged, Trial
from kvcast.studies.change import Change
from kvcast.studies.levers import changes, without_changes
from kvcast.studies.search import Found, fewest, together
from sim.scenario import Scenario

LEAST = 2
"""Replicas between which there is something to route, or to split."""
TRIES = 4
"""Fleets that are settled at most: a sample may promise a replica too little."""


@dataclass(frozen=True)
class Settled:
    """A change with the fewest replicas at which it is an answer, and what was judged of that fleet."""

    change: Change
    replicas: int
    judged: Judged


def fewer(fleet: Fleet, winner: Scenario, purpose: str, recovery: Recovery | None) -> dict[str, Any]:
    """Every change of a purpose (kvcast.studies.levers) with the fewest replicas that its samples attain the target
    with, and the best of those that need fewer than the answer, settled (`best`; None where none does).

    Where the chosen fleet is no answer, whoever makes one of as many replicas is the best. Of a search that found no
    fleet nothing is settled: its samples say which change to plan with."""
    given, n, answer = changes(purpose, winner), winner.cluster.replicas, fleet.answer
    good = answer is not None and answer.meets and (recovery is None or recovery.recovers)
    each = winner.hardware.gpus
    if good and n == LEAST:
        nothing = f"{n} replicas meet already, and a single one has nothing to route or split"
        return {"replicas": n, "gpus": n * each, "tried": [], "not_tried": nothing, "best": None}
    reasons = [fleet.trials.cannot_run(change.scenario) for change in given]
    able = [change for change, reason in zip(given, reasons, strict=True) if reason is None]
    here = dict(zip((change.words for change in able), _judge(fleet, [(change, n) for change in able]), strict=True))
    needs = _follow(fleet, [change for change in able if here[change.words].attains], n)
    best = None if answer is None else _settle(fleet, able, needs, n - 1 if good else n, recovery)
    return {
        "replicas": n,
        "gpus": n * each,
        "tried": [_row(change, reason, here, needs, each) for change, reason in zip(given, reasons, strict=True)],
        "not_tried": without_changes(purpose, winner).get(purpose),
        "best": best and _told(best, n, each, recovery),
    }


def _judge(fleet: Fleet, asked: Sequence[tuple[Change, int]]) -> list[Judged]:
    return fleet.trials.judge([sampled(Trial(fleet_of(change.scenario, m))) for change, m in asked])


def _follow(fleet: Fleet, holding: Sequence[Change], n: int) -> dict[str, Found]:
    """The fewest replicas up to n, which attain, that the samples of each change attain the target with; two at least:
    one has nothing to route or split. Whoever needs more than the best so far is given up."""
    by_words, best = {change.words: change for change in holding}, n

    def answers(asked: dict[str, list[int]]) -> dict[str, list[bool]]:
        nonlocal best
        places = [(by_words[words], m) for words, ms in asked.items() for m in ms if LEAST <= m < n]
        told = {(c.words, m): one.attains for (c, m), one in zip(places, _judge(fleet, places), strict=True)}
        best = min((best, *(m for (_, m), attains in told.items() if attains)))
        return {words: [m >= n or told.get((words, m), False) for m in ms] for words, ms in asked.items()}

    searches = {words: fewest(max(n - 1, 1), n, lambda m: m <= best) for words in by_words}
    return together(searches, answers)


def _settle(
    fleet: Fleet, able: Sequence[Change], needs: dict[str, Found], most: int, recovery: Recovery | None
) -> Settled | None:
    """The change that is an answer with the fewest replicas, `most` of them at most."""
    queue = [(needs[one.words].at_least, place) for place, one in enumerate(able) if one.words in needs]
    heapq.heapify(queue)
    for _ in range(TRIES):
        if not queue or queue[0][0] > most:
            break
        m, place = heapq.heappop(queue)
        trial = Trial(fleet_of(able[place].scenario, m), keep=True)
        if recovery is None or None not in recovery.times_s(trial.scenario):  # what falls need not be settled
            judged = fleet.trials.settle(trial)
            if judged.meets:
                return Settled(able[place], m, judged)
        heapq.heappush(queue, (m + 1, place))
    return None


def _row(
    change: Change, reason: str | None, here: dict[str, Judged], needs: dict[str, Found], each: int
) -> dict[str, Any]:
    """replicas: the fewest, or where it was given up the fewest that it may do with (`or_more`)."""
    one, found = here.get(change.words), needs.get(change.words)
    return {
        "change": change.words,
        "set": list(change.sets),
        "attainment": interval_of(one.attainment if one else None, one.at_most if one else None),
        "attains": one.attains if one else None,
        "replicas": found and found.at_least,
        "gpus": found and found.at_least * each,
        "or_more": bool(found and found.given_up),
        "reason": reason,
    }


def _told(best: Settled, n: int, each: int, recovery: Recovery | None) -> dict[str, Any]:
    from kvcast.scenario.toml import dumps

    price = best.change.scenario.cost.gpu_hour_usd
    saved = (n - best.replicas) * each
    return {
        "change": best.change.words,
        "set": list(best.change.sets),
        "replicas": best.replicas,
        "gpus": best.replicas * each,
        "saves_gpus": saved,
        "saves_usd_per_hour": None if price is None else saved * price,
        "attainment": interval_of(best.judged.attainment),
        "runs": len(best.judged.runs),
        "recovers": recovery is not None,
        "scenario": dumps(fleet_of(best.change.scenario, best.replicas)),
    }
