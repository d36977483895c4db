"""A prefix cache's content after a run, to begin another run with.

The one idea: vLLM's cache without running requests is a list of runs in release order, so its state is five integer
columns and what was ever entered (for the ceilings); a cache that keeps more of the past is a document beside them
(sim.kvcache.saved). A run that begins with it serves the arrivals after `until_s` alone, as the run that served all
of them would, had the first part drained.

    run(workload, params, step_time, until_arrival_s=600, on_end=lambda replicas: states.append(saved(replicas, 600)))
    run(workload, params, step_time, warm=states[0])
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sim.kvcache.saved import Saved

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
    if any(replica.scheduler.busy for replica in replicas):
        raise ValueError("requests are still running: a cache can be saved when all that arrived has been served")
    kept = [replica.scheduler.saved() for replica in replicas]
    seen = [(-1, *entry) for entry in replicas[0].scheduler.cache.seen.fleet.items()]
    seen += [(index, *entry) for index, one in enumerate(kept) for entry in one.seen.items()]
    runs = [np.insert(one.runs, 0, index, axis=1) for index, one in enumerate(kept)]
    trees = [one.document for one in kept if one.document is not None]
    routed = int(np.count_nonzero(np.asarray(replicas[0].log.replica) >= 0))
    told = np.frombuffer(json.dumps(trees).encode() if trees else b"", np.uint8)
    return CacheState(np.concatenate(runs), np.array(seen, np.int64).reshape(-1, 3), until_s, routed, told)


def restore(state: CacheState, replicas: Sequence[Replica]) -> None:
    """Put the state into replicas that have not run yet."""
    trees = json.loads(state.trees.tobytes()) if len(state.trees) else [None] * len(replicas)
    for index, (replica, tree) in enumerate(zip(replicas, trees, strict=True)):
        here = dict(state.seen[state.seen[:, 0] == index, 1:].tolist())
        replica.scheduler.restore(Saved(here, state.runs[state.runs[:, 0] == index, 1:], tree))
    replicas[0].scheduler.cache.seen.fleet.update(state.seen[state.seen[:, 0] == -1, 1:].tolist())
