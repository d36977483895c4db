"""vLLM's own cache, exactly: blocks are reused in the order they were released, deepest first within one release.

The one idea: state is kept on *runs*, intervals of a node's blocks with one reference count. The free queue is a linked
list of runs; one release pushes a request's runs deep to shallow, an eviction lowers `hi` of the run at the head.

Two requests may compute the same block at the same time. vLLM keeps both copies and hits the older. Per node `main` is
a sorted list of runs that do not overlap (the oldest copies); younger copies are single blocks in `extra`, looked at
only where `main` has a hole.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import Any

from sim.kvcache.base import BlockCache, Holder
from sim.kvcache.chains import Path


class Run:
    """Blocks [lo, hi) of one node with `refs` holders. A split keeps the shallow half in this object; holders that
    also had the deep half reach it through `deeper`."""

    __slots__ = ("deeper", "extra", "hi", "lo", "next", "node", "prev", "refs")

    def __init__(self, node: Node, lo: int, hi: int, refs: int, extra: bool = False) -> None:
        self.node = node
        self.lo = lo
        self.hi = hi
        self.refs = refs
        self.extra = extra
        self.deeper: Run | None = None
        self.prev: Run = self
        self.next: Run = self

    def __repr__(self) -> str:
        return f"Run[{self.lo}:{self.hi}] refs={self.refs}{' extra' if self.extra else ''}"


class Node:
    """Cached blocks of one tree node on one replica; dropped when empty and nobody writes to it."""

    __slots__ = ("extra", "id", "main", "writers")

    def __init__(self, node_id: int) -> None:
        self.id = node_id
        self.main: list[Run] = []
        self.extra: dict[int, list[Run]] = {}  # block -> younger copies, oldest first
        self.writers: list[Holder] = []

    @property
    def hi(self) -> int:
        """End of the deepest block cached."""
        deepest = self.main[-1].hi if self.main else 0
        return max(deepest, max(self.extra) + 1) if self.extra else deepest

    def covering(self, block: int) -> Run | None:
        """The oldest copy's run that holds `block`, if any. Makes the oldest extra copy the main one where main has a
        hole."""
        i = 0
        for i, run in enumerate(self.main):  # noqa: B007  (i is used after the loop)
            if run.hi > block:
                if run.lo <= block:
                    return run
                break
        else:
            i = len(self.main)
        copies = self.extra.get(block)
        if not copies:
            return None
        run = copies.pop(0)
        if not copies:
            del self.extra[block]
        run.extra = False
        self.main.insert(i, run)
        return run

    def remove(self, run: Run) -> None:
        if run.extra:
            copies = self.extra[run.lo]
            copies.remove(run)
            if not copies:
                del self.extra[run.lo]
        else:
            self.main.remove(run)


class ReleaseOrderCache(BlockCache):
    """Prefix cache of vLLM V1 (ENGINE_SEMANTICS 2a, rules 1-7) on runs."""

    def __init__(self, total_blocks: int, block_size: int, n_shared: int, fleet_seen: dict[int, int]) -> None:
        super().__init__(total_blocks, block_size, n_shared, fleet_seen)
        self._queue = Run(Node(-1), 0, 0, 0)  # sentinel: next is the head (evicted first), prev the tail

    # -- look up and pin --------------------------------------------------------------------------------------------
    def lookup(self, path: Path, limit: int) -> tuple[int, int, list[Any]]:
        pos = idle = 0
        handles: list[tuple[Run, int]] = []
        nodes = self.nodes
        for node_id, hi in path:
            node = nodes.get(node_id)
            if node is None or pos >= limit:
                break
            if node.writers:
                self.flush(node)
            if hi > limit:
                hi = limit
            main = node.main
            while pos < hi:
                run = main[0] if main else None
                if run is None or not run.lo <= pos < run.hi:  # nearly always the first one
                    run = node.covering(pos)
                if run is None:
                    return pos, idle, handles
                end = run.hi if run.hi < hi else hi
                if not run.refs:
                    idle += end - pos
                handles.append((run, end))
                pos = end
        return pos, idle, handles

    def acquire(self, request: Holder, handles: list[Any]) -> None:
        if not handles:
            return
        for run, end in handles:
            if end < run.hi:
                self._split(run, end)
            if not run.refs:
                run.prev.next = run.next
                run.next.prev = run.prev
                self.idle -= run.hi - run.lo
            run.refs += 1
        request.handles = handles
        request.held = request.entered = handles[-1][1]

    def _split(self, run: Run, at: int) -> None:
        """The deep half becomes a new run; in the queue it stands just before the shallow one."""
        deep = Run(run.node, at, run.hi, run.refs, run.extra)
        deep.deeper = run.deeper
        run.deeper = deep
        run.hi = at
        if not run.refs:
            deep.prev, deep.next = run.prev, run
            run.prev.next = deep
            run.prev = deep
        main = run.node.main  # extra runs are single blocks: never split
        main.insert(main.index(run) + 1, deep)

    # -- enter ------------------------------------------------------------------------------------------------------
    def _place(self, request: Holder, node: Node, lo: int, hi: int) -> None:
        main = node.main
        if node.extra or (main and main[-1].hi > lo):
            self._place_among(request, node, lo, hi)
            return
        handles = request.handles
        if main and handles and main[-1].hi == lo and main[-1].refs == 1 and handles[-1][0] is main[-1]:
            main[-1].hi = hi  # its own youngest run, pinned by nobody else
            handles[-1] = (main[-1], hi)
        else:
            run = Run(node, lo, hi, 1)
            main.append(run)
            handles.append((run, hi))

    def _place_among(self, request: Holder, node: Node, lo: int, hi: int) -> None:
        """Blocks somebody else also computed become extra copies; the rest joins main."""
        pos = lo
        while pos < hi:
            run = node.covering(pos)
            if run is not None:
                end = min(run.hi, hi)
                for block in range(pos, end):
                    copy = Run(node, block, block + 1, 1, extra=True)
                    node.extra.setdefault(block, []).append(copy)
                    request.handles.append((copy, block + 1))
            else:
                i = bisect_left(node.main, pos, key=attrgetter("lo"))
                end = min([hi, *(r.lo for r in node.main[i : i + 1]), *(b for b in node.extra if b > pos)])
                run = Run(node, pos, end, 1)
                node.main.insert(i, run)
                request.handles.append((run, end))
            pos = end

    def _new_node(self, request: Holder, index: int) -> Node:
        node_id = request.path[index][0]
        node = self.nodes[node_id] = Node(node_id)
        return node

    # -- release and evict ------------------------------------------------------------------------------------------
    def release(self, request: Holder) -> None:
        self.finish_writing(request)
        before = self._queue.prev
        handles: list[tuple[Run, int]] = request.handles
        for first, end in reversed(handles):
            if first.hi >= end:
                self._unpin(first, before)
                continue
            pieces = [first]  # others have split it
            while pieces[-1].hi < end:
                pieces.append(pieces[-1].deeper)  # type: ignore[arg-type]
            for run in reversed(pieces):
                self._unpin(run, before)
        self.blank += request.held - request.entered
        request.handles = []
        request.held = request.entered = request.path_index = 0

    def _unpin(self, run: Run, before: Run) -> None:
        """Drop one reference; at none the run joins the tail of the queue. `before` was the tail when this release
        began."""
        run.refs -= 1
        if run.refs:
            return
        queue = self._queue
        self.idle += run.hi - run.lo
        run.deeper = None
        tail = queue.prev
        if tail.node is run.node and tail is not before and tail.lo == run.hi and not (tail.extra or run.extra):
            run.hi = tail.hi  # released together, neighbours: one run
            run.node.main.remove(tail)
            tail = tail.prev
        tail.next = queue.prev = run
        run.prev, run.next = tail, queue

    def _evict(self, n: int) -> None:
        queue = self._queue
        while n:
            run = queue.next
            size = run.hi - run.lo
            if self.lower is not None:
                self.lower.evicted(run.node.id, max(run.lo, run.hi - n), run.hi)
            if size > n:
                run.hi -= n
                return
            n -= size
            queue.next = run.next
            run.next.prev = queue
            node = run.node
            node.remove(run)
            self._drop_if_empty(node)

    def _drop_if_empty(self, node: Any) -> None:
        if not (node.main or node.extra or node.writers):
            self.nodes.pop(node.id, None)

    # -- for tests --------------------------------------------------------------------------------------------------
    def free_queue(self) -> list[tuple[int, int]]:
        """(node id, block) of every idle cached block, next to be evicted first."""
        out, run = [], self._queue.next
        while run is not self._queue:
            out += [(run.node.id, b) for b in range(run.hi - 1, run.lo - 1, -1)]
            run = run.next
        return out

    def check(self) -> None:
        """Raise AssertionError when the runs and the counts disagree."""
        idle = 0
        for node in self.nodes.values():
            for left, right in zip(node.main, node.main[1:], strict=False):
                assert left.hi <= right.lo, (node.id, node.main)
            for run in [*node.main, *(r for copies in node.extra.values() for r in copies)]:
                assert run.lo < run.hi, run
                assert run.node is node, run
                assert run.refs >= 0, run
                idle += 0 if run.refs else run.hi - run.lo
        assert idle == self.idle == len(self.free_queue()), (idle, self.idle)
        assert self.blank >= 0
        assert self.free <= self.total, (self.blank, self.idle, self.total)
