"""A prefix cache's content after a run, to begin another run with.

The one idea: vLLM's cache without running requests is a list of runs in release order, so its state is five integer
columns and what was ever entered (for the ceilings); a cache that keeps more of the past is a document beside them
(sim.fleet.warm_trees). A run that begins with it serves the arrivals after `until_s` alone, as the run that served all
of them would, had the first part drained.

    run(workload, params, step_time, until_arrival_s=600, on_end=lambda replicas: states.append(saved(replicas, 600)))
    run(workload, params, step_time, warm=states[0])
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.fleet.warm_trees import document, fill
from sim.kvcache.release_order import Node, ReleaseOrderCache, Run

if TYPE_CHECKING:
    from sim.fleet.replica import Replica


@dataclass(frozen=True)
class CacheState:
    """What every replica's cache holds, once nothing runs."""

    runs: (
        np.ndarray
    )  #: int64 [n, 6]: replica, node, first block, end block, 1 for a younger copy, place in its replica's queue
    seen: np.ndarray  #: int64 [m, 3]: replica (-1: the fleet), node, deepest block ever entered
    until_s: float  #: sessions that begin by then are in it
    routed: int  #: requests sent to replicas, where a round-robin router goes on
    trees: np.ndarray = field(
        default_factory=lambda: np.empty(0, np.uint8)
    )  #: JSON, a document for each replica whose cache is no release order


def saved(replicas: Sequence[Replica], until_s: float) -> CacheState:
    """The caches of replicas at the end of a run. Raises ValueError when something still runs."""
    runs: list[tuple[int, ...]] = []
    trees = []
    first: Any = replicas[0].scheduler.cache
    seen: list[tuple[int, ...]] = [(-1, node, depth) for node, depth in first.seen.fleet.items()]
    for index, replica in enumerate(replicas):
        cache: Any = replica.scheduler.cache
        if replica.scheduler.busy:
            raise ValueError("requests are still running: a cache can be saved when all that arrived has been served")
        memory = replica.scheduler.memory()
        if isinstance(cache, ReleaseOrderCache):
            runs += [(index, *row) for row in _rows(cache)]
        else:
            trees.append(document(cache) | memory)
        seen += [(index, node, depth) for node, depth in cache.seen.here.items()]
    routed = int(np.count_nonzero(np.asarray(replicas[0].log.replica) >= 0))
    told = np.frombuffer(json.dumps(trees).encode() if trees else b"", np.uint8)
    return CacheState(
        np.array(runs, np.int64).reshape(-1, 6), np.array(seen, np.int64).reshape(-1, 3), until_s, routed, told
    )


def _rows(cache: ReleaseOrderCache) -> list[tuple[int, int, int, int, int]]:
    """Runs node by node, copies of a block oldest first, with their places in the queue."""
    place: dict[int, int] = {}
    run = cache._queue.next
    while run is not cache._queue:
        place[id(run)] = len(place)
        run = run.next
    rows = []
    for node in cache.nodes.values():
        for run in [*node.main, *(copy for copies in node.extra.values() for copy in copies)]:
            rows.append((node.id, run.lo, run.hi, int(run.extra), place[id(run)]))
    return rows


def restore(state: CacheState, replicas: Sequence[Replica]) -> None:
    """Put the state into replicas that have not run yet."""
    trees = json.loads(state.trees.tobytes()) if len(state.trees) else []
    for index, replica in enumerate(replicas):
        cache: Any = replica.scheduler.cache
        if isinstance(cache, ReleaseOrderCache):
            _fill(cache, state.runs[state.runs[:, 0] == index, 1:])
        else:
            fill(cache, trees[index])
            replica.scheduler.remember(trees[index])
        cache.seen.here.update(state.seen[state.seen[:, 0] == index, 1:].tolist())
    first: Any = replicas[0].scheduler.cache
    first.seen.fleet.update(state.seen[state.seen[:, 0] == -1, 1:].tolist())


def _fill(cache: ReleaseOrderCache, rows: np.ndarray) -> None:
    queue: list[tuple[int, Run]] = []
    for node_id, lo, hi, extra, place in rows.tolist():
        node = cache.nodes.setdefault(node_id, Node(node_id))
        run = Run(node, lo, hi, 0, bool(extra))
        if extra:
            node.extra.setdefault(lo, []).append(run)
        else:
            node.main.append(run)
        queue.append((place, run))
    tail = cache._queue
    for _, run in sorted(queue, key=lambda entry: entry[0]):
        tail.next, run.prev = run, tail
        tail = run
    tail.next, cache._queue.prev = cache._queue, tail
    cache.idle = int((rows[:, 2] - rows[:, 1]).sum())
    cache.blank = cache.total - cache.idle
    if cache.blank < 0:
        raise ValueError(f"the saved cache holds {cache.idle} blocks, this one {cache.total}")
