"""A policy that knows the future: of the blocks that may go, the one whose next use is farthest away.

It is a policy, not a bound. On one first-come-first-served replica it hits the optimum of its own schedule; elsewhere
it does not know which replica the next use reaches, nor in which order closed loops arrive, and the optimum is what
`sim.optimum.schedule` finds after the run.

The one idea: requests are numbered by arrival, and the key of a node's deepest run is the number of the next request
not yet admitted that wants it. When that request is admitted somewhere else the key is stale: it is set anew before
the next eviction, or the blocks would never go.

    kvcast run scenario.toml --set cache.policy=clairvoyant
"""
from __future__ import annotations

import heapq

import numpy as np

from sim.kvcache.base import Holder
from sim.kvcache.policies.base import Policy, World
from sim.kvcache.ranked import Node, RankedCache
from sim.optimum.items import node_visits
from sim.scenario import EngineParams
from workloads.columns import Workload

NO_USE = 1 << 62


class Forecast:
    """Who will want each node, in order of arrival; shared by all replicas, which tell it whom they admit."""

    def __init__(self, workload: Workload, params: EngineParams) -> None:
        self.workload = workload
        block, total = params.block_size, workload.prompt_tokens + workload.output_tokens
        served = (total <= params.max_model_len) & (-(-(total - 1) // block) <= params.kv_blocks)
        known_s = np.fmax.accumulate(np.where(np.isfinite(workload.arrival_s), workload.arrival_s, -np.inf))
        arrival_s = np.where(np.isfinite(workload.arrival_s), workload.arrival_s, known_s)  # closed loops: at their row's place
        order = np.argsort(arrival_s, kind="stable")
        rows = order[served[order]]
        self.position = np.full(len(workload), NO_USE)
        self.position[rows] = np.arange(len(rows))
        self.admitted = bytearray(len(rows))
        self.admissions: list[int] = []  # positions, in order of admission anywhere
        position, node, _, held = node_visits(workload, rows, (total[rows] - 1) // block, block)
        useful = np.minimum(held, (workload.prompt_tokens[rows][position] - 1) // block)
        by_node = np.lexsort((position, node))
        self._position, self._held, self._useful = (column[by_node].tolist() for column in (position, held, useful))
        self._next = np.searchsorted(node[by_node], np.arange(len(workload.tree))).tolist()
        self._end = np.searchsorted(node[by_node], np.arange(len(workload.tree)), side="right").tolist()

    def admit(self, request: int) -> None:
        position = int(self.position[request])
        if position < NO_USE and not self.admitted[position]:
            self.admitted[position] = 1
            self.admissions.append(position)

    def next_use(self, node: int, hi: int) -> tuple[int, int]:
        """(position of the next request to hit block hi - 1 of a node, first block for which that is the same).

        A request that only computes the block again (its last one, or its answer) makes it worthless until then.
        """
        if node >= len(self._next):
            return NO_USE, 0  # a private tail
        at, same = self._next[node], 0
        while at < self._end[node] and self.admitted[self._position[at]]:
            at += 1
        self._next[node] = at
        for i in range(at, self._end[node]):
            if self.admitted[self._position[i]]:
                continue
            if self._held[i] >= hi:
                useful = self._useful[i]
                return (self._position[i], same) if hi <= useful else (NO_USE, max(same, useful))
            same = max(same, self._held[i])
        return NO_USE, same


class ClairvoyantCache(RankedCache):
    """Evicts the candidate whose next use is farthest."""

    def __init__(self, total_blocks: int, block_size: int, n_shared: int, fleet_seen: dict[int, int], forecast: Forecast) -> None:
        super().__init__(total_blocks, block_size, n_shared, fleet_seen, Policy(World(forecast.workload, total_blocks, block_size)))
        self._forecast = forecast
        self._waiting_for: dict[int, list[tuple[Node, int]]] = {}  # position -> nodes keyed by it, with their heap entry
        self._told = 0

    def acquire(self, request: Holder, handles: list) -> None:
        self._forecast.admit(request.id)  # type: ignore[attr-defined]
        super().acquire(request, handles)

    def _offer(self, node: Node) -> None:
        if not node.runs or node.live_children or node.runs[-1].refs:
            return
        position, same = self._forecast.next_use(node.id, node.hi)
        if same > node.runs[-1].lo:
            self._cut(node, same)
        node.entry = next(self._entries)
        heapq.heappush(self._heaps.setdefault(0, []), ((-position,), node.entry, node))
        if position < NO_USE:
            self._waiting_for.setdefault(position, []).append((node, node.entry))

    def _evict(self, n: int) -> None:
        admissions = self._forecast.admissions
        while self._told < len(admissions):
            for node, entry in self._waiting_for.pop(admissions[self._told], ()):
                if node.entry == entry:
                    self._offer(node)
            self._told += 1
        super()._evict(n)
