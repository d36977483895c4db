"""Policies of the block cache, and a user's own, on SGLang's radix tree (sim.kvcache.policies).

The one idea: SGLang's tree stays as it is, its boundaries and what one eviction takes included; a policy only says
which unlocked leaf goes next. A leaf goes whole, so it has one history: what happens to its pages is told for each
static node it spans (deepest first), and the state of the deepest page is the leaf's. An admission hits what it locks;
a look-up that ends in a rejection is no use.

    run(workload, EngineParams(kv_blocks=400_000, block_size=1, semantics="sglang", policy="s3fifo"), step_time)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any

from sim.kvcache.chains import Path
from sim.kvcache.policies.base import Policy, Run
from sim.kvcache.policies.own import unordered, untied
from sim.kvcache.saved import memory, remember
from sim.sglang.node import Node, RadixRequest
from sim.sglang.radix import RadixCache
from workloads.errors import InputError


class RankedRadixCache(RadixCache):
    """SGLang's tree with another policy's order. A heap entry counts while its node names it."""

    def __init__(
        self, total_pages: int, policy: Policy, n_shared: int, fleet_seen: dict[int, int], caching: bool = True
    ) -> None:
        super().__init__(total_pages, "lru", n_shared, fleet_seen, caching)
        self._falls = True  # every change of a leaf is offered anew
        self.policy = policy
        self._heaps: dict[Any, list[tuple[Any, int, Node]]] = {}  # policy group -> lazy heap
        self._entries = count()
        self._releases = count(1)
        self._admissions = count(1)
        self._storing: RadixRequest | None = None

    # -- what the policy is told ------------------------------------------------------------------------------------
    def admit(self, r: RadixRequest) -> None:
        r.admission = next(self._admissions)
        r.entered = r.held
        self.policy.now_s = self.now_s
        self.policy.on_admit(r)
        for node in reversed(list(self._up(r.node))):
            self._tell(self.policy.on_hit, node, r)

    def store(self, r: RadixRequest, whole: int, prompt: int) -> None:
        self._storing = r
        super().store(r, whole, prompt)

    def _add_leaf(self, parent: Node, path: Path, i: int, lo: int, hi: int, priority: int) -> Node:
        parent.entry = -1
        leaf = super()._add_leaf(parent, path, i, lo, hi, priority)
        self._tell(self.policy.on_insert, leaf, self._storing)
        return leaf

    def release(self, r: RadixRequest) -> None:
        number, nodes = next(self._releases), list(self._up(r.node))
        self.policy.now_s = self.now_s
        for node in nodes:
            node.lock -= 1
            if not node.lock:
                self.idle += node.hi - node.lo
                first = not node.released
                node.released = number
                if first:
                    self._tell(self.policy.on_first_release, node, r)
                self._tell(self.policy.on_release, node, r)
        if nodes:
            self._touched(nodes[0])

    def _tell(self, hook: Callable[..., None], node: Node, request: RadixRequest | None) -> None:
        before, told = node.state, []
        for run in self._pieces(node):
            run.state = before
            hook(run, request)
            told.append(run.state)
        node.state = told[0]

    def _up(self, node: Node | None) -> Iterator[Node]:
        """The node and what is above it, without the root."""
        while node is not None and node is not self.root:
            yield node
            node = node.parent

    @staticmethod
    def _pieces(node: Node) -> Iterator[Run]:
        """The pages of an edge by static node, deepest first."""
        hi, k = node.hi, node.end
        while hi > node.lo:
            lo = max(node.lo, node.path[k - 1][1] if k else 0)
            yield Run(node.path[k][0], lo, hi, node.released, node.state)
            hi, k = lo, k - 1

    # -- leaves -----------------------------------------------------------------------------------------------------
    def lock(self, node: Node, upto: Node | None = None) -> None:
        node.entry = -1
        super().lock(node, upto)

    def unlock(self, node: Node) -> None:
        """A candidate that was not admitted: nothing has happened to what it looked up."""
        for above in self._up(node):
            above.lock -= 1
            if not above.lock:
                self.idle += above.hi - above.lo
        self._touched(node)

    def _as_run(self, node: Node) -> Run:
        return Run(node.path[node.end][0], node.lo, node.hi, node.released, node.state)

    def _push(self, node: Node) -> None:
        if not node.released:
            return  # the root, or a leaf that its request is about to lock
        run = self._as_run(node)
        group, key = self.policy.group(run), self.policy.key(run)
        node.state, node.entry = run.state, next(self._entries)
        try:
            heappush(self._heaps.setdefault(group, []), (key, node.entry, node))
        except (TypeError, ValueError) as error:
            raise unordered(self.policy, error) from None

    def make_room(self, pages: int) -> None:
        while self.blank < pages and self.idle:
            try:
                leaf = self._chosen()
            except (TypeError, ValueError) as error:
                raise unordered(self.policy, error) from None
            run = self._as_run(leaf)
            if self.policy.second_chance(run):
                before = run.state, self.policy.key(run)
                self._spare(leaf)
                run = self._as_run(leaf)
                if (run.state, self.policy.key(run)) == before and self.policy.second_chance(run):
                    raise InputError(
                        f"cache.policy {type(self.policy).__name__}: spare changed nothing, expected another state or"
                        " key after a second chance"
                    )
                self._push(leaf)
                continue
            for run in self._pieces(leaf):
                self.policy.on_evict(run, len(run))
            self._drop(leaf)

    def _chosen(self) -> Node:
        """Take the leaf the policy chooses out of its heap."""
        heads = {}
        for group, heap in list(self._heaps.items()):
            while heap and heap[0][2].entry != heap[0][1]:
                heappop(heap)
            if heap:
                heads[group] = heap[0][0]
            else:
                del self._heaps[group]
        heap = self._heaps[self.policy.victim(heads)]
        key, _, node = heappop(heap)
        untied(self.policy, heap, key)
        node.entry = -1
        return node

    def _spare(self, leaf: Node) -> None:
        """A second chance for the leaf and its ancestors, while each is the only child of the next, unlocked and in the
        same state."""
        chain = [leaf]
        for above in self._up(leaf.parent):
            if above.lock or len(above.children) != 1 or above.state != leaf.state:
                break
            chain.append(above)
        runs = [self._as_run(node) for node in chain]
        self.policy.spare(runs)
        for node, run in zip(chain, runs, strict=True):
            node.state = run.state

    # -- saved and begun with ---------------------------------------------------------------------------------------
    def saved(self) -> dict[str, Any]:
        return super().saved() | memory(self)

    def restore(self, kept: dict[str, Any]) -> None:
        remember(self, kept)
        super().restore(kept)

    def check(self, private: int) -> None:
        super().check(private)
        for node in self.nodes():
            if (node.entry >= 0) != (not node.lock and not node.children):
                raise AssertionError(
                    f"leaf [{node.lo}, {node.hi}): queued for eviction is {node.entry >= 0}, locked {node.lock}"
                )
