"""What a fleet leaves behind, as a Recording: its log of requests and each replica's record of steps.

The one idea: a request's log names steps, and a replica's record says when those ended.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.engine import Engine
from sim.fleet.clients import Clients
from sim.fleet.replica import Replica
from sim.kvcache.observed import as_table
from sim.log import RequestLog
from sim.recording import UNFINISHED, Handed, Recording, Steps, TierUse, Verified, by_replica, summed_use
from sim.scenario import EngineParams
from sim.step_record import StepRecord


class Left(NamedTuple):
    """What is kept of a replica that has stopped."""

    record: StepRecord
    evicted_blocks: int
    tiers_used: list[list[TierUse]]  #: of each of its engines

    @classmethod
    def of(cls, replica: Replica) -> Left:
        replica.record.times.close()
        return cls(replica.record, replica.evicted_blocks, replica.tiers_used())


def recorded(
    engine: Engine,
    params: EngineParams,
    log: RequestLog,
    left: Sequence[Left],
    now_s: float,
    life: list[list[tuple]] | None,
    cache_events: list[array[int]] | None = None,
    clients: Clients | None = None,
    in_pools: tuple[dict[str, np.ndarray], Handed] | None = None,
) -> Recording:
    """A run whose clock has stopped at `now_s`. Fills in `life`. in_pools: instead of the log's own columns those of a
    fleet in pools (sim.fleet.pools)."""
    columns, handed = (log.columns(), None) if in_pools is None else in_pools
    steps = [one.record.steps() for one in left]
    sent_s = _sent(left, steps)
    columns |= _told(columns, steps, sent_s, now_s)
    if life is not None:
        _tell_lives(life, columns, steps, now_s)
        if handed is not None:
            _tell_hand_overs(life, handed, now_s)
    return Recording(
        **columns,  # type: ignore[arg-type]
        steps=steps,
        samples=[one.record.samples() for one in left],
        end_s=now_s,
        kv_blocks=params.kv_blocks * params.ranks,
        block_size=params.hit_block,
        evicted_blocks=sum(one.evicted_blocks for one in left),
        engine_semantics=engine.version,
        prefill_pauses=engine.prefill_pauses,
        life=life,
        tiers=_tier_use(left),
        sent_s=sent_s,
        clients=None if clients is None else clients.use(),
        verified=_verified(params, left, log),
        handed=handed,
        cache_events=None if cache_events is None else [as_table(events) for events in cache_events],
    )


def _told(
    columns: dict[str, np.ndarray], steps: list[Steps], sent_s: list[np.ndarray] | None, now_s: float
) -> dict[str, np.ndarray]:
    """first_token_s and finish_s, float64 [n]: when clients had the tokens of those steps."""
    found = {name: np.full(len(columns["replica"]), np.nan) for name in ("first_token_s", "finish_s")}
    for i, rows in enumerate(by_replica(columns["replica"], len(steps))):
        told_s = steps[i].end_s if sent_s is None else sent_s[i]
        for times_s, index in zip(found.values(), (columns["first_step"], columns["last_step"]), strict=True):
            had = rows[index[rows] >= 0]
            times_s[had] = told_s[index[had]]
    if sent_s is not None:
        for times_s in found.values():
            times_s[times_s > now_s] = np.nan  # the clock has stopped before
    return found


def _sent(left: Sequence[Left], steps: list[Steps]) -> list[np.ndarray] | None:
    """When the tokens of each replica's steps left its front end; None where that takes no time."""
    if not any(r.record.sent_s for r in left):
        return None
    return [np.array(r.record.sent_s[: len(s)]) for r, s in zip(left, steps, strict=True)]


def _verified(params: EngineParams, left: Sequence[Left], log: RequestLog) -> Verified | None:
    if params.speculative is None:
        return None
    emitted = [np.array(r.record.emitted, np.int64) for r in left]
    return Verified(1 + params.speculative.tokens, log.drafts, log.accepted, emitted)


def _tier_use(left: Sequence[Left]) -> list[TierUse]:
    """Each tier over all replicas."""
    each = [use for r in left for use in r.tiers_used]
    return [summed_use(uses) for uses in zip(*each, strict=True)]


def _tell_hand_overs(life: list[list[tuple]], handed: Handed, now_s: float) -> None:
    """Fill in the phases between a prefill and the first step of the decode replica, until the clock stopped."""
    times = np.stack([handed.prefilled_s, handed.read_s, handed.ready_s, handed.placed_s])
    for request in np.flatnonzero(~np.isnan(handed.prefilled_s)).tolist():
        at_s, *later_s = times[:, request].tolist()
        for phase, until_s in zip(("queued", "loading", "queued"), later_s, strict=True):
            end_s = min(until_s, now_s) if until_s == until_s else now_s  # NaN: not yet
            if end_s > at_s:
                life[request].append((phase, at_s, end_s, 0))
            at_s = end_s
        life[request].sort(key=lambda phase: (phase[1], phase[2]))


def _tell_lives(life: list[list[tuple]], columns: dict[str, np.ndarray], steps: list, now_s: float) -> None:
    """Fill in the phases around the prefill chunks: queued, decode, and what interrupted it. What the clock cut (it
    stopped at `now_s`) goes on until then."""
    pauses: dict[int, list[tuple[float, float]]] = {}
    ends_s = [one.end_s for one in steps]
    for request, a, b in zip(columns["gaps_request"], columns["gaps_from_step"], columns["gaps_to_step"], strict=True):
        end_s = ends_s[columns["replica"][request]]
        if a < len(end_s):  # SGLang tells of a gap when it decides the step that ends it, which the clock may cut
            to_s = end_s[b] if b < len(end_s) else now_s
            pauses.setdefault(int(request), []).append((end_s[a], to_s))
    for request, phases in enumerate(life):
        arrival_s, admit_s, first_s, finish_s = (
            float(columns[c][request]) for c in ("arrival_s", "admit_s", "first_token_s", "finish_s")
        )
        if np.isnan(admit_s):
            continue
        prefills = [phase for phase in phases if phase[0] == "prefill"]
        stops = pauses.get(request, [])
        stops += [
            (start, np.inf)
            for what, start, end, _ in phases
            if what == "preempted" and end > start >= first_s and not any(a <= start < b for a, b in stops)
        ]
        phases[:] = prefills
        queued_s = arrival_s + float(columns["frontend_s"][request]) if "frontend_s" in columns else arrival_s
        if queued_s > arrival_s:
            phases.append(("frontend", arrival_s, queued_s, 0))
        phases.append(("queued", queued_s, admit_s, 0))
        if "load_s" in columns and columns["load_s"][request] > 0 and not columns["preemptions"][request]:
            phases.append(("loading", admit_s, admit_s + float(columns["load_s"][request]), 0))
        at_s = first_s
        at_once = [
            (start, end)
            for _, start, end, _ in prefills
            if start >= first_s and not any(a <= start < b for a, b in stops)
        ]
        for from_s, to_s in sorted(stops + at_once):  # at once: preempted and admitted again in the next step
            resumed_s = min((start for _, start, _, _ in prefills if from_s <= start < to_s), default=None)
            if resumed_s is None and to_s < np.inf:
                continue  # it kept its memory and waited for a step
            resumed_s = now_s if resumed_s is None else resumed_s
            if from_s > at_s:
                phases.append(("decode", at_s, from_s, 0))
            if resumed_s > from_s:
                phases.append(("preempted", from_s, resumed_s, 0))
            at_s = to_s
        ended_s = now_s if columns["status"][request] == UNFINISHED else finish_s
        if ended_s > at_s:
            phases.append(("decode", at_s, ended_s, 0))
        phases.sort(key=lambda phase: (phase[1], phase[2]))
