"""Every other eviction policy for the block cache: the policy ranks leaves, the cache does the rest.

The one idea: a node is a *leaf* when nothing below it is cached and its deepest run is not pinned; of all leaves the
one the policy chooses loses its deepest blocks. Pins are closed upwards, so a parent is never taken before its child
and a node's cached blocks are always [lo, hi) without holes. The heaps are lazy: an entry counts only while its node
names it.

A block that two requests computed at the same time is private memory of the younger one plus a pin on the cached copy.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Any

from sim.kvcache.base import BlockCache, Holder
from sim.kvcache.chains import Path
from sim.kvcache.policies.base import Policy, Run
from sim.kvcache.policies.own import Watched, steady, unordered, untied
from workloads.errors import InputError


class Node:
    """Cached blocks of one tree node: runs in depth order without holes, and how many children hold blocks."""

    __slots__ = ("entry", "id", "live_children", "lo", "parent", "runs", "writers")

    def __init__(self, node_id: int, lo: int, parent: Node | None) -> None:
        self.id = node_id
        self.lo = lo
        self.parent = parent
        self.runs: list[Run] = []
        self.live_children = 0
        self.entry = -1  # its valid entry in the heap, -1 when it is no candidate
        self.writers: list[Holder] = []

    @property
    def hi(self) -> int:
        return self.runs[-1].hi if self.runs else self.lo


class RankedCache(BlockCache):
    """Prefix cache that evicts the leaf its policy chooses; same interface as ReleaseOrderCache."""

    def __init__(
        self, total_blocks: int, block_size: int, n_shared: int, fleet_seen: dict[int, int], policy: Policy
    ) -> None:
        super().__init__(total_blocks, block_size, n_shared, fleet_seen)
        self.policy = policy
        kind = type(policy)
        self._offers = type(self)._offer is RankedCache._offer  # by the policy's key
        self._watched = isinstance(policy, Watched)  # the hooks of others that say nothing are not asked:
        self._ranks_groups = kind.victim is not Policy.victim
        self._spares = kind.second_chance is not Policy.second_chance
        self._spans = kind.span is not Policy.span
        self._splits = kind.split is not Policy.split
        self._hears_releases = kind.on_release is not Policy.on_release
        self._heaps: dict[Any, list[tuple[Any, int, Node]]] = {}  # policy group -> lazy heap of (key, entry, node)
        self._entries = count()
        self._releases = count(1)
        self._admissions = count(1)

    # -- look up and pin --------------------------------------------------------------------------------------------
    def lookup(self, path: Path, limit: int) -> tuple[int, int, list[Any]]:
        pos = idle = 0
        handles: list[tuple[Node, int, int]] = []
        for node_id, hi in path:
            node = self.nodes.get(node_id)
            if node is None or pos >= limit:
                break
            if node.writers:
                self.flush(node)
            runs = node.runs
            end = hi if hi < limit else limit
            if not runs:
                break
            if runs[-1].hi < end:
                end = runs[-1].hi
            if end <= pos:
                break
            for run in runs:
                if not run.refs and run.lo < end:
                    idle += (run.hi if run.hi < end else end) - run.lo
            handles.append((node, pos, end))
            pos = end
            if pos < hi:
                break
        return pos, idle, handles

    def acquire(self, request: Holder, handles: list[Any]) -> None:
        request.admission = next(self._admissions)
        request.private = 0
        request.handles = handles
        if handles:
            request.held = request.entered = handles[-1][2]
        policy = self.policy
        policy.now_s = self.now_s
        policy.on_admit(request)
        for node, lo, hi in handles:
            for run in self._pin(node, lo, hi):
                policy.on_hit(run, request)

    def _pin(self, node: Node, lo: int, hi: int) -> list[Run]:
        """One more reference on blocks [lo, hi) of a node; the runs that cover them exactly."""
        runs = node.runs
        if len(runs) > 1 or runs[0].lo < lo or runs[0].hi > hi:
            self._cut(node, lo)
            self._cut(node, hi)
        runs = [r for r in runs if lo <= r.lo < hi]
        for run in runs:
            if not run.refs:
                self.idle -= run.hi - run.lo
            run.refs += 1
        if node.runs[-1].refs:
            node.entry = -1
        return runs

    @staticmethod
    def _cut(node: Node, at: int) -> None:
        """Make `at` a boundary between runs."""
        for i, run in enumerate(node.runs):
            if run.lo < at < run.hi:
                node.runs.insert(i + 1, Run(run.node_id, at, run.hi, run.refs, run.released, run.state))
                run.hi = at
                return

    # -- enter ------------------------------------------------------------------------------------------------------
    def _place(self, request: Holder, node: Node, lo: int, hi: int) -> None:
        runs = node.runs
        cached = runs[-1].hi if runs else lo
        if cached > hi:
            cached = hi
        if cached <= lo:
            cached = lo
        else:
            self._pin(node, lo, cached)
            request.private += cached - lo
        if cached < hi:
            if not runs and node.parent is not None:
                node.parent.live_children += 1
                node.parent.entry = -1
            node.entry = -1
            while cached < hi:
                end = self.policy.split(node.id, cached, hi, request) if self._splits else hi
                if not cached < end <= hi:
                    raise InputError(
                        f"cache.policy {type(self.policy).__name__}: split returned {end!r}, expected more than"
                        f" {cached} and at most {hi}"
                    )
                run = Run(node.id, cached, end)
                self.policy.on_insert(run, request)
                runs.append(run)
                cached = end
            if node.writers:
                self.overlapped.update(w for w in node.writers if w.decoding and w is not request)
        handles = request.handles
        if handles and handles[-1][0] is node:
            handles[-1] = (node, handles[-1][1], hi)
        else:
            handles.append((node, lo, hi))

    def begin_decode(self, request: Holder) -> None:
        """Its answer may be cached already (a later prompt that holds it came first): then each block pins the copy in
        its own step."""
        if any(node.hi > request.entered for node in request.writing):
            self.overlapped.add(request)

    def stop_writing(self, request: Holder) -> None:
        self.overlapped.discard(request)
        super().stop_writing(request)

    def _new_node(self, request: Holder, index: int) -> Node:
        node_id = request.path[index][0]
        lo, parent = 0, None
        if index:
            above, lo = request.path[index - 1]
            parent = self.nodes.get(above) or self._new_node(request, index - 1)
        node = self.nodes[node_id] = Node(node_id, lo, parent)
        return node

    # -- release and evict ------------------------------------------------------------------------------------------
    def release(self, request: Holder) -> None:
        self.finish_writing(request)
        number = next(self._releases)
        policy, hears = self.policy, self._hears_releases
        policy.now_s = self.now_s
        for node, lo, hi in reversed(request.handles):
            runs = node.runs
            for run in reversed(runs):
                if lo <= run.lo < hi:
                    run.refs -= 1
                    if not run.refs:
                        run.released = number
                        self.idle += run.hi - run.lo
                        if hears:
                            policy.on_release(run, request)
            if len(runs) > 1:
                self._join(node)
        for node, _, _ in request.handles:
            if not node.live_children:
                self._offer(node)
        private = getattr(request, "private", 0)
        self.blank += request.held - request.entered + private
        request.handles = []
        request.held = request.entered = request.path_index = 0

    @staticmethod
    def _join(node: Node) -> None:
        """Neighbours with one history are one run."""
        runs = node.runs
        for i in range(len(runs) - 1, 0, -1):
            a, b = runs[i - 1], runs[i]
            if a.refs == b.refs and a.released == b.released and a.state == b.state:
                a.hi = b.hi
                del runs[i]

    def _offer(self, node: Node) -> None:
        """Push a node that has become a leaf, with its group and key of now."""
        if not node.runs or node.live_children or node.runs[-1].refs:
            return
        run = node.runs[-1]
        node.entry = next(self._entries)
        heap = self._heaps.setdefault(self.policy.group(run), [])
        try:
            heapq.heappush(heap, (self.policy.key(run), node.entry, node))
        except (TypeError, ValueError) as error:
            raise unordered(self.policy, error) from None
        if len(heap) > 2 * len(self.nodes) + 1024:  # mostly entries that no longer count
            heap[:] = [entry for entry in heap if entry[2].entry == entry[1]]
            heapq.heapify(heap)

    def _evict(self, n: int) -> None:
        policy = self.policy
        while n:
            try:
                heap, node = self._chosen()
            except (TypeError, ValueError) as error:
                raise unordered(policy, error) from None
            run = node.runs[-1]
            if self._spares and policy.second_chance(run):
                heapq.heappop(heap)
                self._spare(node, run)
                continue
            size = run.hi - run.lo
            gone = n if n < size else size
            if self._spans:
                gone = self._spanned(run, gone)
            if self._watched:
                gone = steady(policy, run, gone)
            policy.on_evict(run, gone)
            if self.lower is not None:
                self.lower.evicted(node.id, run.hi - gone, run.hi)
            n -= gone
            run.hi -= gone
            if gone < size and self._offers and not self._watched:  # its group stays what it was
                key = policy.key(run)
                if key != heap[0][0]:
                    node.entry = next(self._entries)
                    heapq.heapreplace(heap, (key, node.entry, node))
            else:
                heapq.heappop(heap)
                node.entry = -1
                self._trim(node, run)

    def _spanned(self, run: Run, most: int) -> int:
        policy = self.policy
        span = policy.span(run)
        if span < 1:
            raise InputError(f"cache.policy {type(policy).__name__}: span returned {span!r}, expected 1 block or more")
        return min(most, span)

    def _spare(self, node: Node, run: Run) -> None:
        policy = self.policy
        before = run.state, policy.key(run)
        policy.spare(self._chain(node))
        if (run.state, policy.key(run)) == before and policy.second_chance(run):
            raise InputError(
                f"cache.policy {type(policy).__name__}: spare changed nothing, expected another state or key after a"
                " second chance"
            )
        self._join(node)
        self._offer(node)

    def _chosen(self) -> tuple[list[tuple[Any, int, Node]], Node]:
        """The leaf that the policy chooses, and the heap that it is the head of."""
        heads = {}
        for group, heap in self._heaps.items():
            while heap:
                key, entry, node = heap[0]
                if node.entry == entry:
                    heads[group] = key
                    break
                heapq.heappop(heap)
        if len(heads) < len(self._heaps):
            self._heaps = {group: self._heaps[group] for group in heads}
        heap = self._heaps[self.policy.victim(heads) if len(heads) != 1 or self._ranks_groups else next(iter(heads))]
        if self._watched:
            first = heapq.heappop(heap)
            untied(self.policy, heap, first[0])
            heapq.heappush(heap, first)
        return heap, heap[0][2]

    @staticmethod
    def _chain(leaf: Node) -> list[Run]:
        """The leaf's run and its ancestors, deepest first, while each is the only child of the next, unpinned and in
        the same state."""
        chain: list[Run] = []
        state, node = leaf.runs[-1].state, leaf
        while True:
            for run in reversed(node.runs):
                if run.refs or run.state != state:
                    return chain
                chain.append(run)
            if node.parent is None or node.parent.live_children != 1:
                return chain
            node = node.parent

    def _trim(self, node: Node, run: Run) -> None:
        """The deepest blocks of a leaf are gone: offer what is left, or the parent that has become a leaf."""
        if run.hi == run.lo:
            node.runs.pop()
        if node.runs:
            self._offer(node)
            return
        if node.parent is not None:
            node.parent.live_children -= 1
            self._offer(node.parent)
        self._drop_if_empty(node)

    def _drop_if_empty(self, node: Any) -> None:
        if not (node.runs or node.writers or node.live_children):
            self.nodes.pop(node.id, None)

    def check(self) -> None:
        """Raise AssertionError when the runs and the counts disagree."""
        idle = 0
        for node in self.nodes.values():
            pos = node.lo
            for run in node.runs:
                assert run.lo == pos < run.hi, (node.id, run.lo, pos)
                pos = run.hi
                idle += 0 if run.refs else run.hi - run.lo
            refs = [run.refs for run in node.runs]
            assert refs == sorted(refs, reverse=True), (node.id, refs)
            if node.runs and not node.live_children and not node.runs[-1].refs:
                assert node.entry >= 0, node.id
        assert idle == self.idle, (idle, self.idle)
        assert self.blank >= 0
        assert self.free <= self.total
