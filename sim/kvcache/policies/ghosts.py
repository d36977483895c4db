"""Names of blocks that were evicted, for policies that treat those differently when they come back.

The one idea: what a request will bring back is looked up once, when it is admitted, before anything is evicted for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from sim.kvcache.policies.base import Asking, Policy, Run, World

Piece = tuple[int, list[list[int]]]
"""(node id, [[lo, hi], ...]) of one eviction; the deepest block is the oldest."""


class Ghosts:
    """Evicted blocks, oldest first. A piece that has become empty counts no more, but waits in the queue for its
    turn."""

    def __init__(self) -> None:
        self.blocks = 0
        self._queue: deque[Piece] = deque()
        self._by_node: dict[int, list[Piece]] = {}
        self._pieces = 0  # that are not empty

    def pieces(self) -> list[list]:
        """What `of` makes them from, oldest first."""
        return [list(piece) for piece in self._queue if piece[1]]

    @classmethod
    def of(cls, pieces: Iterable[Sequence]) -> Ghosts:
        """Made here, and not where caches are filled: a compiled module would give a piece two identities."""
        ghosts = cls()
        for node_id, intervals in pieces:
            ghosts.blocks += sum(hi - lo for lo, hi in intervals)
            ghosts._append((node_id, intervals))
        return ghosts

    def _append(self, piece: Piece) -> None:
        self._queue.append(piece)
        self._by_node.setdefault(piece[0], []).append(piece)
        self._pieces += 1

    def add(self, node_id: int, lo: int, hi: int) -> None:
        self.blocks += hi - lo
        if self._queue:
            last, intervals = self._queue[-1]
            if last == node_id and len(intervals) == 1 and intervals[0][0] == hi:
                intervals[0][0] = lo  # the blocks just above the last ones
                return
        self._append((node_id, [[lo, hi]]))
        if len(self._queue) > 2 * self._pieces + 1024:
            self._queue = deque(piece for piece in self._queue if piece[1])

    def take(self, node_id: int, lo: int, hi: int) -> list[tuple[int, int]]:
        """Remove the ghosts among blocks [lo, hi) and return them as intervals."""
        pieces = self._by_node.get(node_id)
        if pieces is None:
            return []
        taken, emptied = [], False
        for _, intervals in pieces:
            for interval in intervals[:]:
                first, end = interval
                if first >= hi or end <= lo:
                    continue
                a, b = first if first > lo else lo, end if end < hi else hi
                taken.append((a, b))
                self.blocks -= b - a
                intervals.remove(interval)
                if first < a:
                    intervals.append([first, a])
                if b < end:
                    intervals.append([b, end])
            if not intervals:
                emptied = True
                self._pieces -= 1
        if emptied:
            pieces[:] = [piece for piece in pieces if piece[1]]
            if not pieces:
                del self._by_node[node_id]
        return taken

    def trim(self, capacity: int) -> None:
        """Forget the oldest beyond `capacity` blocks."""
        over = self.blocks - capacity
        if over <= 0:
            return
        self.blocks = capacity
        queue = self._queue
        while over:
            node_id, intervals = queue[0]
            if intervals:
                last = intervals[0] if len(intervals) == 1 else max(intervals)
                blocks = last[1] - last[0]
                if over < blocks:
                    last[1] -= over
                    return
                over -= blocks
                intervals.remove(last)
                if not intervals:
                    self._forget_oldest(node_id)
            if not intervals:
                queue.popleft()

    def _forget_oldest(self, node_id: int) -> None:
        """The oldest piece of a node is empty."""
        pieces = self._by_node[node_id]
        if len(pieces) == 1:
            del self._by_node[node_id]
        else:
            del pieces[0]
        self._pieces -= 1


def _joined(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, those that touch as one: what comes back is cut where it differs, not where it was evicted."""
    joined: list[tuple[int, int]] = []
    for lo, hi in sorted(intervals):
        if joined and joined[-1][1] == lo:
            joined[-1] = (joined[-1][0], hi)
        else:
            joined.append((lo, hi))
    return joined


class Recalling(Policy):
    """A policy that knows which blocks a request brings back."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._returning: dict[int, dict[int, list[tuple[int, int]]]] = {}  # request -> node -> intervals

    def recall(self, request: Asking, *queues: Ghosts) -> list[int]:
        """Take out of each queue what the request will insert; the numbers of blocks. Before anything else at its
        admission."""
        self._returning.pop(request.id, None)  # preempted before it had inserted any of it
        return [self._take(request, ghosts) for ghosts in queues]

    def _take(self, request: Asking, ghosts: Ghosts) -> int:
        lo, blocks = request.entered, 0
        for node_id, hi in request.path if ghosts.blocks else ():
            if hi > lo:
                found = ghosts.take(node_id, lo, hi)
                if found:
                    blocks += sum(b - a for a, b in found)
                    returning = self._returning.setdefault(request.id, {})
                    returning[node_id] = _joined(returning.get(node_id, []) + found)
                lo = hi
        return blocks

    def comes_back(self, run: Run, request: Asking) -> bool:
        returning = self._returning.get(request.id)
        if returning is not None:
            lo = run.lo
            for a, b in returning.get(run.node_id, ()):
                if a <= lo < b:
                    return True
        return False

    def split(self, node_id: int, lo: int, hi: int, request: Asking) -> int:
        returning = self._returning.get(request.id)
        if returning is not None:
            for pair in returning.get(node_id, ()):
                for edge in pair:
                    if lo < edge < hi:
                        hi = edge
        return hi

    def on_first_release(self, run: Run, request: Asking) -> None:
        """All that a request brings back has been inserted."""
        if self._returning:
            self._returning.pop(request.id, None)
