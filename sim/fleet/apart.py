"""Replicas that have nothing to do with each other, one after the other: the same run in the memory of one of them.

The one idea: where a router looks at nothing but a request's session, or the order in which requests come by the clock,
who serves whom is known before. All that is left between replicas is a number that is only told: what a request would
have hit had the fleet had one cache. For it each replica notes when its cache got deeper where others ask, and what it
could not know itself; the notes in the order of time answer that.

    place = places(fleet, router, replicas)     # None: together
    left, end_s = run_apart(fleet, place, replicas, horizon_s)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from sim.fleet.arrivals import Arrivals
from sim.fleet.clock import Clock
from sim.fleet.fleet import Fleet
from sim.fleet.histories import Announced, Histories, Notes
from sim.fleet.recorded import Left
from sim.fleet.replica import Replica
from sim.fleet.router import Router
from sim.fleet.routers.hashed import SessionHash
from sim.fleet.routers.load import Random, RoundRobin
from sim.kvcache.policies import POLICIES
from sim.log import Happened
from sim.recording import by_replica
from sim.scenario import EngineParams
from workloads.columns import Workload

BY_SESSION = (SessionHash,)
"""Routers that look at the session alone."""
BY_ORDER = (RoundRobin, Random)
"""Routers that look at the order of requests alone, and at their own random numbers."""
GARBAGE = 20_000
"""Arrivals and completions after which the replicas that have stopped are collected."""


@dataclass(frozen=True)
class _Place:
    index: int


class Only(Router):
    """There is but one replica."""

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        return replicas[0]


def may_be_apart(kind: type[Router], workload: Workload, params: EngineParams) -> bool:
    """Whether a router of this kind may leave the replicas nothing to do with each other. Not asked here: whether
    somebody watches the fleet as a whole, or acts on it."""
    if params.ranks > 1 or params.policy not in POLICIES or params.shares_tiers:  # one may know the future, or anything
        return False
    if workload.concurrency is not None:  # a session begins when any other ends
        return False
    return kind in BY_SESSION or (kind in BY_ORDER and not bool((workload.column("after") >= 0).any()))


def places(fleet: Fleet, router: Router, replicas: int) -> np.ndarray | None:
    """int32 [n]: the replica of every request, when nothing that happens on one replica can matter to another; else
    None.

    router: a new one that `may_be_apart`; it is used up."""
    workload = fleet.common.workload
    there: list[Any] = [_Place(index) for index in range(replicas)]
    if type(router) in BY_SESSION:
        _, first, session = np.unique(workload.column("session_id"), return_index=True, return_inverse=True)
        place = np.array([router.choose(r, there).index for r in first.tolist()], np.int32)[session]
        waits = np.flatnonzero(workload.column("after") >= 0)
        return place if np.array_equal(place[waits], place[workload.column("after")[waits]]) else None
    front, place = fleet.front(Clock(), router), np.zeros(len(workload), np.int32)
    for r in fleet.arrivals.clocked.tolist():
        if not front.cannot_serve(r):
            place[r] = router.choose(r, there).index
    return place


def parts(arrivals: Arrivals, place: np.ndarray, replicas: int) -> list[np.ndarray]:
    """Of each replica, int64: its requests that come by the clock, in their order."""
    return [arrivals.clocked[mine] for mine in by_replica(place[arrivals.clocked], replicas)]


def crossed(workload: Workload, place: np.ndarray) -> np.ndarray:
    """bool [nodes]: of the tree's nodes those on paths of more than one replica's requests."""
    parent = workload.tree.parent
    low = np.full(len(parent), np.iinfo(np.int32).max, np.int32)
    high = np.full(len(parent), -1, np.int32)
    np.minimum.at(low, workload.leaf, place)
    np.maximum.at(high, workload.leaf, place)
    up = np.where(parent < 0, np.arange(len(parent), dtype=np.int32), parent)
    while True:  # of all below, by pointer doubling
        np.minimum.at(low, up, low.copy())
        np.maximum.at(high, up, high.copy())
        further = up[up]
        if np.array_equal(further, up):
            return high > low
        up = further


@dataclass(frozen=True)
class Chunk:
    """What consecutive replicas leave that is in no column of the log."""

    left: list[Left]
    end_s: float
    notes: Notes
    happened: Happened
    told: int  #: arrivals and completions


Copies = Callable[[Callable[[range], Chunk], Sequence[range]], Iterable[Chunk]]
"""`map`, or what makes the calls in copies of this process and gives the answers in the same order."""
CHUNKS = 64
"""Of a fleet that copies of this process simulate: what one of them leaves travels at once."""


def run_apart(
    fleet: Fleet, place: np.ndarray, replicas: int, horizon_s: float | None, copies: Copies | None = None
) -> tuple[list[Left], float]:
    """Simulate one replica after the other, with garbage collection off: what is left of each, and when the last of
    their clocks stopped. copies: which the log is shared with; replicas are then simulated by them."""
    common, block_size = fleet.common, fleet.common.params.hit_block
    histories = Histories(crossed(common.workload, place), block_size)
    common.log.asked, common.under_way = histories.ask, Announced(histories, block_size)
    clocked, on_clock = parts(fleet.arrivals, place, replicas), fleet.on_clock
    simulate = partial(_chunk, fleet, histories, clocked, horizon_s)
    edges = np.linspace(0, replicas, min(replicas, CHUNKS if copies else 1) + 1).astype(int).tolist()
    left, end_s, told = [], 0.0, 0
    gc.freeze()  # so that what a replica leaves in circles is found without looking at all else
    if copies is not None:
        fleet.on_clock = None
    try:
        for chunk in (copies or map)(simulate, [range(a, b) for a, b in pairwise(edges)]):
            left += chunk.left
            histories.add(chunk.notes)
            common.log.add(chunk.happened)
            end_s, told = max(end_s, chunk.end_s), told + chunk.told
            if copies is not None and on_clock is not None:
                on_clock(end_s, told / (2 * len(place)))
    finally:
        gc.unfreeze()
        fleet.on_clock = on_clock
    histories.answer(common.paths, common.log)
    return left, end_s


def _chunk(
    fleet: Fleet, histories: Histories, clocked: list[np.ndarray], horizon_s: float | None, indices: range
) -> Chunk:
    common, left, end_s, told, collected = fleet.common, [], 0.0, 0, 0
    histories.taken()
    common.log.taken()
    for index in indices:
        clock = Clock()
        common.fleet_seen = histories.begin(clock)
        front = fleet.front(clock, Only(np.random.default_rng(0), common.workload))
        front.serve_only(clocked[index], told)
        front.replicas += fleet.replicas(front, [index])
        front.start()
        clock.run(until=horizon_s)
        front.stop()
        left.append(Left.of(front.replicas[0]))
        end_s, told = max(end_s, clock.now), front.told
        common.seen.pop(index, None)
        del clock, front
        if told >= collected + GARBAGE:
            gc.collect()
            collected = told
    return Chunk(left, end_s, histories.taken(), common.log.taken(), told)
