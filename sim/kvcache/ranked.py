"""Every other eviction policy for the block cache: the policy ranks leaves, the cache does the rest.

The one idea: a node is a *leaf* when nothing below it is cached and its deepest run is not pinned; of all leaves the
one the policy chooses loses its deepest blocks. Pins are closed upwards, so a parent is never taken before its child
and a node's cached blocks are always [lo, hi) without holes. The heaps are lazy: an entry counts only while its node
names it.

Whatever a request does to a node it does to the *start* of it: it pins, hits and lets go of [lo, end). So a pin is one
number, its end, and what a policy counts (hits) or the cache notes (the last release) is written on the run where it
ends and holds for every run before that. It is read where a leaf ends, and handed on to the run before when it is: a
turn of a long session costs the same however many turns came before. Only a policy with an `on_hit` or `on_release` of
its own is shown every run.

A block that two requests computed at the same time is private memory of the younger one plus a pin on the cached copy.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from operator import attrgetter
from typing import Any

from sim.kvcache.base import BlockCache, Holder
from sim.kvcache.chains import Path
from sim.kvcache.policies.base import Policy, Run
from sim.kvcache.policies.own import Watched, steady, unordered, untied
from workloads.errors import InputError

_hi = attrgetter("hi")


class Node:
    """Cached blocks of one tree node: runs in depth order without holes, and how many children hold blocks."""

    __slots__ = ("entry", "id", "live_children", "lo", "new", "parent", "pins", "runs", "writers")

    def __init__(self, node_id: int, lo: int, parent: Node | None) -> None:
        self.id = node_id
        self.lo = lo
        self.parent = parent
        self.runs: list[Run] = []
        self.pins: list[int] = []  # the end of what each holder pins, in order; always ends of runs
        self.new: list[Run] = []  # runs never let go of, when that is all a policy wants to hear of releases
        self.live_children = 0
        self.entry = -1  # its valid entry in the heap, -1 when it is no candidate
        self.writers: list[Holder] = []

    @property
    def hi(self) -> int:
        return self.runs[-1].hi if self.runs else self.lo

    @property
    def pinned(self) -> int:
        """Where the idle blocks begin."""
        return self.pins[-1] if self.pins else self.lo

    @property
    def is_leaf(self) -> bool:
        if self.live_children or not self.runs:
            return False
        return not self.pins or self.pins[-1] < self.runs[-1].hi

    def unpin(self, end: int) -> None:
        del self.pins[bisect_left(self.pins, end)]

    def ending(self, at: int) -> int:
        """Index of the run that ends at `at`, which lies above the node's start; cuts one in two for it."""
        runs = self.runs
        if runs[-1].hi == at:
            return len(runs) - 1
        i = bisect_left(runs, at, key=_hi)
        run = runs[i]
        if run.hi != at:
            deep = Run(run.node_id, at, run.hi, run.released, run.state)
            deep.uncounted, run.uncounted = run.uncounted, 0  # what ends in the deep half holds for both
            run.hi = at
            runs.insert(i + 1, deep)
            if run in self.new:
                self.new.insert(self.new.index(run) + 1, deep)
        return i


class RankedCache(BlockCache):
    """Prefix cache that evicts the leaf its policy chooses; same interface as ReleaseOrderCache."""

    def __init__(
        self, total_blocks: int, block_size: int, n_shared: int, fleet_seen: dict[int, int], policy: Policy
    ) -> None:
        super().__init__(total_blocks, block_size, n_shared, fleet_seen)
        self.policy: Any = policy  # compiled code would refuse a user's key that is no tuple, which compares as well
        kind = type(policy)
        self._offers = type(self)._offer is RankedCache._offer  # by the policy's key
        self._watched = isinstance(policy, Watched)  # the hooks of others that say nothing are not asked:
        self._groups = kind.group is not Policy.group
        self._ranks_groups = kind.victim is not Policy.victim
        self._spares = kind.second_chance is not Policy.second_chance
        self._spans = kind.span is not Policy.span
        self._splits = kind.split is not Policy.split
        self._visits = kind.on_hit is not Policy.on_hit or kind.on_release is not Policy.on_release
        self._counts = kind.after_hits is not Policy.after_hits and not self._visits
        self._greets = kind.on_first_release is not Policy.on_first_release
        self._heaps: dict[Any, list[tuple[Any, int, Node]]] = {}  # policy group -> lazy heap of (key, entry, node)
        self._entries = count()
        self._releases = count(1)
        self._admissions = count(1)

    # -- look up and pin --------------------------------------------------------------------------------------------
    def lookup(self, path: Path, limit: int) -> tuple[int, int, list[Any]]:
        pos = idle = 0
        handles: list[tuple[Node, int]] = []
        for node_id, hi in path:
            node = self.nodes.get(node_id)
            if node is None or pos >= limit:
                break
            if node.writers:
                self.flush(node)
            runs, pins = node.runs, node.pins
            end = hi if hi < limit else limit
            if not runs:
                break
            if runs[-1].hi < end:
                end = runs[-1].hi
            if end <= pos:
                break
            pinned = pins[-1] if pins else pos
            if pinned < end:
                idle += end - pinned
            handles.append((node, end))
            pos = end
            if pos < hi:
                break
        return pos, idle, handles

    def acquire(self, request: Holder, handles: list[Any]) -> None:
        request.admission = next(self._admissions)
        request.private = 0
        request.handles = handles
        if handles:
            request.held = request.entered = handles[-1][1]
        policy = self.policy
        policy.now_s = self.now_s
        policy.on_admit(request)
        for node, hi in handles:
            last = self._pin(node, hi)
            if self._counts:
                node.runs[last].uncounted += 1
            elif self._visits:
                for run in node.runs[: last + 1]:
                    policy.on_hit(run, request)

    def _pin(self, node: Node, hi: int) -> int:
        """Pin the blocks of a node up to `hi`, which are cached; the index of the last run they fill."""
        pins = node.pins
        pinned = pins[-1] if pins else node.lo
        if pinned < hi:
            self.idle -= hi - pinned
            pins.append(hi)
        else:
            insort(pins, hi)
        last = node.ending(hi)
        if pins[-1] == node.runs[-1].hi:
            node.entry = -1
        return last

    # -- enter ------------------------------------------------------------------------------------------------------
    def _place(self, request: Holder, node: Node, lo: int, hi: int) -> None:
        pins, handles = node.pins, request.handles
        cached = node.runs[-1].hi if node.runs else lo
        begun = bool(handles) and handles[-1][0] is node
        goes_on = begun and cached == lo  # behind its own: no pin is deeper
        if cached > lo:  # somebody else has entered them
            old = cached if cached < hi else hi
            request.private += old - lo
            pinned = node.pinned
            if pinned < old:
                self.idle -= old - pinned
        if cached < hi:
            self._insert(request, node, cached, hi, goes_on and (len(pins) == 1 or pins[-2] < lo))
            node.entry = -1
        if goes_on:
            pins[-1] = hi
            handles[-1] = (node, hi)
            return
        if begun:
            node.unpin(lo)
            handles[-1] = (node, hi)
        else:
            handles.append((node, hi))
        insort(pins, hi)
        if node.ending(hi) == len(node.runs) - 1:
            node.entry = -1

    def _insert(self, request: Holder, node: Node, lo: int, hi: int, goes_on: bool) -> None:
        """New blocks; goes_on: behind a run that nobody else pins to its end."""
        runs, policy = node.runs, self.policy
        goes_on = goes_on and not (runs[-1].released or runs[-1].uncounted)
        if not runs and node.parent is not None:
            node.parent.live_children += 1
            node.parent.entry = -1
        while lo < hi:
            end = policy.split(node.id, lo, hi, request) if self._splits else hi
            if not lo < end <= hi:
                raise InputError(
                    f"cache.policy {type(policy).__name__}: split returned {end!r}, expected more than"
                    f" {lo} and at most {hi}"
                )
            run = Run(node.id, lo, end)
            policy.on_insert(run, request)
            if goes_on and runs[-1].state == run.state:
                runs[-1].hi = end  # nothing has happened to either yet
            else:
                runs.append(run)
                if self._greets and not self._visits:
                    node.new.append(run)
            goes_on = False
            lo = end
        for writer in node.writers:
            if writer is not request and writer.decoding:
                self.overlapped.add(writer)

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
        self.policy.now_s = self.now_s
        handles: list[tuple[Node, int]] = request.handles
        for node, hi in reversed(handles):
            pins = node.pins
            if pins[-1] == hi:
                pins.pop()
            else:
                node.unpin(hi)
            pinned = pins[-1] if pins else node.lo
            if pinned < hi:
                self.idle += hi - pinned
                self._let_go(node, pinned, hi, number, request)
            if self._visits:
                self._join(node)
        for node, _ in handles:
            if not node.live_children:
                self._offer(node)
        private = getattr(request, "private", 0)
        self.blank += request.held - request.entered + private
        request.handles = []
        request.held = request.entered = request.path_index = 0

    def _let_go(self, node: Node, lo: int, hi: int, number: int, request: Holder) -> None:
        """Blocks [lo, hi) have lost their last pin."""
        policy, last = self.policy, node.ending(hi)
        if not self._visits:
            node.runs[last].released = number
            while node.new and node.new[-1].lo >= lo:
                run = node.new.pop()
                run.released = number
                policy.on_first_release(run, request)
            return
        for run in node.runs[last::-1]:
            if run.lo < lo:
                return
            first, run.released = not run.released, number
            if first:
                policy.on_first_release(run, request)
            policy.on_release(run, request)

    @staticmethod
    def _join(node: Node) -> None:
        """Neighbours with one history are one run."""
        runs = node.runs
        for i in range(len(runs) - 1, 0, -1):
            a, b = runs[i - 1], runs[i]
            if a.released == b.released and a.hi not in node.pins and a.state == b.state:
                a.hi = b.hi
                del runs[i]

    def told(self, node: Node, i: int) -> Run:
        """A node's run i, all those after it told already: what ends there is in its state, and handed to the run
        before."""
        runs = node.runs
        run = runs[i]
        if self._visits:
            return run
        hits = run.uncounted
        if hits:
            run.state = self.policy.after_hits(run.state, hits)
            run.uncounted = 0
        if i:
            above = runs[i - 1]
            above.uncounted += hits
            if above.released < run.released:
                above.released = run.released
        return run

    def _deepest(self, node: Node) -> Run:
        """The deepest run of a leaf, joined with neighbours of the same history."""
        runs = node.runs
        run = self.told(node, len(runs) - 1)
        pinned = node.pins[-1] if node.pins else node.lo
        while len(runs) > 1 and runs[-2].lo >= pinned and runs[-2].released == run.released:
            above = self.told(node, len(runs) - 2)
            if above.state != run.state:
                break
            above.hi = run.hi
            runs.pop()
            run = above
        return run

    def _offer(self, node: Node) -> None:
        """Push a node that has become a leaf, with its group and key of now."""
        runs = node.runs
        if node.live_children or not runs or (node.pins and node.pins[-1] == runs[-1].hi):
            return
        run = runs[0] if len(runs) == 1 and not runs[0].uncounted else self._deepest(node)
        policy = self.policy
        group = policy.group(run) if self._groups else 0
        heap = self._heaps.get(group)
        if heap is None:
            heap = self._heaps[group] = []
        node.entry = entry = next(self._entries)
        try:
            heappush(heap, (policy.key(run), entry, node))
        except (TypeError, ValueError) as error:
            raise unordered(self.policy, error) from None
        if len(heap) > 2 * len(self.nodes) + 1024:  # mostly entries that no longer count
            heap[:] = [item for item in heap if item[2].entry == item[1]]
            heapify(heap)

    def _evict(self, n: int) -> None:
        policy, spares, spans, lower = self.policy, self._spares, self._spans, self.lower
        while n:
            try:
                heap, node = self._chosen()
            except (TypeError, ValueError) as error:
                raise unordered(policy, error) from None
            run = node.runs[-1]
            if spares and policy.second_chance(run):
                heappop(heap)
                self._spare(node, run)
                continue
            size = run.hi - run.lo
            gone = n if n < size else size
            if spans:
                span = policy.span(run)
                if span < gone:
                    gone = span
                if span < 1:
                    raise InputError(
                        f"cache.policy {type(policy).__name__}: span returned {span!r}, expected 1 block or more"
                    )
            if self._watched:
                gone = steady(policy, run, gone)
            policy.on_evict(run, gone)
            if lower is not None:
                lower.evicted(node.id, run.hi - gone, run.hi)
            n -= gone
            run.hi -= gone
            if gone < size and self._offers and not self._watched:  # its group stays what it was
                key = policy.key(run)
                if key != heap[0][0]:
                    node.entry = next(self._entries)
                    heapreplace(heap, (key, node.entry, node))
            else:
                heappop(heap)
                node.entry = -1
                self._trim(node, run)

    def _spare(self, node: Node, run: Run) -> None:
        policy = self.policy
        before = (run.state, policy.key(run)) if self._watched else None
        policy.spare(self._chain(node))
        if before and (run.state, policy.key(run)) == before and policy.second_chance(run):
            raise InputError(
                f"cache.policy {type(policy).__name__}: spare changed nothing, expected another state or key after a"
                " second chance"
            )
        if self._visits:
            self._join(node)
        self._offer(node)

    def _chosen(self) -> tuple[list[tuple[Any, int, Node]], Node]:
        """The leaf that the policy chooses, and the heap that it is the head of."""
        if len(self._heaps) == 1 and not self._ranks_groups and not self._watched:
            (heap,) = self._heaps.values()
            while heap[0][2].entry != heap[0][1]:
                heappop(heap)
            return heap, heap[0][2]
        heads, empty = {}, False
        for group, heap in self._heaps.items():
            while heap:
                key, entry, node = heap[0]
                if node.entry == entry:
                    heads[group] = key
                    break
                heappop(heap)
            else:
                empty = True
        if empty:
            self._heaps = {group: self._heaps[group] for group in heads}
        heap = self._heaps[self.policy.victim(heads) if len(heads) != 1 or self._ranks_groups else next(iter(heads))]
        if self._watched:
            first = heappop(heap)
            untied(self.policy, heap, first[0])
            heappush(heap, first)
        return heap, heap[0][2]

    def _chain(self, leaf: Node) -> list[Run]:
        """The leaf's run and its ancestors, deepest first, while each is the only child of the next, unpinned and in
        the same state."""
        chain: list[Run] = []
        state, node = leaf.runs[-1].state, leaf
        while True:
            pinned = node.pinned
            for i in range(len(node.runs) - 1, -1, -1):
                run = self.told(node, i)
                if run.lo < pinned or run.state != state:
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
            idle += pos - node.pinned
            assert node.pins == sorted(node.pins), (node.id, node.pins)
            assert {run.hi for run in node.runs}.issuperset(node.pins), (node.id, node.pins, node.runs)
            assert all(run in node.runs and run.lo < node.pinned for run in node.new), (node.id, node.pins)
            if node.is_leaf:
                assert node.entry >= 0, node.id
        assert idle == self.idle, (idle, self.idle)
        assert self.blank >= 0
        assert self.free <= self.total
