"""A policy that knows the future: of the blocks that may go, the one whose next use is farthest away.

It is a policy, not a bound. On one first-come-first-served replica it hits the optimum of its own schedule; elsewhere
it does not know which replica the next use reaches, nor in which order exactly closed loops arrive, and the optimum is
what `sim.optimum.schedule` finds after the run.

The one idea: requests are numbered by arrival, and the key of a node's deepest run is the number of the next request
not yet admitted that wants it. When that request is admitted somewhere else the key is stale and is set anew, or the
blocks would never go. A replica learns what others admitted when it admits or releases itself, so that a stretch of
decode steps, during which others admit, may be taken at once.

    kvcast run scenario.toml --set cache.policy=clairvoyant
"""

from __future__ import annotations

import heapq
from math import inf

import numpy as np

from sim.kvcache.base import Holder
from sim.kvcache.policies.base import Policy, World
from sim.kvcache.ranked import Node, RankedCache
from sim.kvcache.visits import node_visits
from sim.scenario import EngineParams
from workloads.columns import Workload
from workloads.transform import order_taken

NO_USE = 1 << 62


class Forecast:
    """Who will want each node, in order of arrival; shared by all replicas, which tell it whom they admit."""

    def __init__(self, workload: Workload, params: EngineParams) -> None:
        self.workload = workload
        block, total = params.block_size, workload.prompt_tokens + workload.output_tokens
        served = (total <= params.max_model_len) & (-(-(total - 1) // block) <= params.kv_blocks)
        order, _ = order_taken(workload, "time")  # closed loops: about when they will come, sessions side by side
        rows = order[served[order]]
        self.position = np.full(len(workload), NO_USE)
        self.position[rows] = np.arange(len(rows))
        self.admitted_s = [inf] * len(rows)
        self.admitted_by: list[object] = [None] * len(rows)
        self.admissions: list[int] = []  # positions, in order of admission anywhere
        position, node, _, held = node_visits(workload, rows, (total[rows] - 1) // block, block)
        useful = np.minimum(held, (workload.prompt_tokens[rows][position] - 1) // block)
        by_node = np.lexsort((position, node))
        self._position, self._held, self._useful = (column[by_node].tolist() for column in (position, held, useful))
        self._begin = np.searchsorted(node[by_node], np.arange(len(workload.tree))).tolist()
        self._end = np.searchsorted(node[by_node], np.arange(len(workload.tree)), side="right").tolist()

    def admit(self, request: int, by: object, now_s: float) -> int:
        """A replica admits a request: its position, NO_USE for one that should have been rejected."""
        position = int(self.position[request])
        if position < NO_USE and self.admitted_by[position] is None:
            self.admitted_s[position], self.admitted_by[position] = now_s, by
            self.admissions.append(position)
        return position

    def next_use(self, node: int, hi: int, begin: int, by: object, seen_s: float) -> tuple[int, int, int]:
        """(position of the next request to hit block hi - 1 of a node, first block for which that is the same, begin of
        the next look-up).

        Admitted before `seen_s`, or by this replica, is past. A request that only computes the block again (its last
        one, or its answer) makes it worthless until then.
        """
        begin, past, same = max(begin, self._begin[node]), True, 0
        for i in range(begin, self._end[node]):
            position = self._position[i]
            if self.admitted_s[position] < seen_s or self.admitted_by[position] is by:
                begin += past
                continue
            past = False
            if self._held[i] >= hi:
                useful = self._useful[i]
                return (position, same, begin) if hi <= useful else (NO_USE, max(same, useful), begin)
            same = max(same, self._held[i])
        return NO_USE, same, begin


class ClairvoyantCache(RankedCache):
    """Evicts the candidate whose next use is farthest."""

    def __init__(
        self, total_blocks: int, block_size: int, n_shared: int, fleet_seen: dict[int, int], forecast: Forecast
    ) -> None:
        super().__init__(
            total_blocks, block_size, n_shared, fleet_seen, Policy(World(forecast.workload, total_blocks, block_size))
        )
        self._forecast = forecast
        self._begin: dict[int, int] = {}  # node -> its first visit that is not past
        self._waiting_for: dict[
            int, list[tuple[Node, int]]
        ] = {}  # position -> nodes keyed by it, with their heap entry
        self._seen_s = 0.0
        self._told = 0

    def acquire(self, request: Holder, handles: list) -> None:
        self._seen_s = self.now_s
        position = self._forecast.admit(request.id, self, self.now_s)
        super().acquire(request, handles)
        self._rekey(position)
        self._catch_up()

    def release(self, request: Holder) -> None:
        self._seen_s = self.now_s
        super().release(request)
        self._catch_up()

    def _catch_up(self) -> None:
        forecast = self._forecast
        while self._told < len(forecast.admissions):
            position = forecast.admissions[self._told]
            if forecast.admitted_s[position] >= self._seen_s:
                break
            self._rekey(position)
            self._told += 1

    def _rekey(self, position: int) -> None:
        """The request has been admitted: blocks that waited for it and were not pinned wait for another."""
        for node, entry in self._waiting_for.pop(position, ()):
            if node.entry == entry:
                self._offer(node)

    def _offer(self, node: Node) -> None:
        if not node.is_leaf:
            return
        run = self._deepest(node)
        position, same = NO_USE, 0  # a private tail
        if node.id < self._n_shared:
            begin = self._begin.get(node.id, 0)
            position, same, self._begin[node.id] = self._forecast.next_use(node.id, node.hi, begin, self, self._seen_s)
        if run.lo < same < run.hi:
            node.ending(same)
        node.entry = next(self._entries)
        heapq.heappush(self._heaps.setdefault(0, []), ((-position, run.released), node.entry, node))
        if position < NO_USE:
            self._waiting_for.setdefault(position, []).append((node, node.entry))
