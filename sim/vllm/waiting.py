"""The waiting queue: first come first served, by priority, or with the longest cached prefix first."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from sim.request import Request


class FcfsQueue:
    """Arrival order; a preempted request goes first. Ids until they reach the head, so that a long queue costs
    little."""

    def __init__(self, build: Callable[[int], Request]) -> None:
        self._build = build
        self._queue: deque[Request | int] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: int) -> bool:
        """Queue a new arrival; True when it is now the head."""
        self._queue.append(request)
        return len(self._queue) == 1

    def head(self) -> Request:
        first = self._queue[0]
        if isinstance(first, int):
            first = self._queue[0] = self._build(first)
        return first

    def pop(self) -> Request:
        head = self.head()
        self._queue.popleft()
        return head

    def first(self, n: int) -> list[Request]:
        """The n requests at the head, in order."""
        queue, found = self._queue, []
        for i in range(min(n, len(queue))):
            request = queue[i]
            if isinstance(request, int):
                request = queue[i] = self._build(request)
            found.append(request)
        return found

    def ids(self) -> list[int]:
        """Everybody in it, in order."""
        return [r if isinstance(r, int) else r.id for r in self._queue]

    def put_back(self, request: Request) -> None:
        """A preempted or skipped request goes to the front."""
        self._queue.appendleft(request)

    def remove(self, request: Request) -> None:
        """It has finished after all: its last output was in flight when it was preempted."""
        self._queue.remove(request)

    def cancel(self, request: int) -> Request | None:
        """A request leaves, by its id; None when it is not here."""
        for i, r in enumerate(self._queue):
            if r == request or (not isinstance(r, int) and r.id == request and not r.finished):
                del self._queue[i]
                return self._build(request) if isinstance(r, int) else r
        return None


class LongestPrefixQueue(FcfsQueue):
    """An experiment that vLLM has not: of the AHEAD requests at the head, the one that finds most in the cache goes
    first. With more waiting, those behind keep their order, so that a look costs the same however many wait."""

    AHEAD = 128

    def promote(self, found: Callable[[Request], int]) -> Request:
        """Move to the head the request for which `found` is highest, the first of several; mutates the order."""
        ahead = self.first(self.AHEAD)
        hits = [found(request) for request in ahead]
        place = hits.index(max(hits))
        del self._queue[place]
        self._queue.appendleft(ahead[place])
        return ahead[place]


class PriorityQueue:
    """Lowest (priority, arrival, id) first, preempted requests included."""

    def __init__(self, build: Callable[[int], Request]) -> None:
        self._build = build
        self._heap: list[tuple[tuple[int, float, int], Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: int) -> bool:
        r = self._build(request)
        self.put_back(r)
        return self._heap[0][1] is r

    def head(self) -> Request:
        return self._heap[0][1]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[1]

    def first(self, n: int) -> list[Request]:
        """The n requests at the head, in order."""
        return [request for _, request in heapq.nsmallest(n, self._heap, key=lambda entry: entry[0])]

    def ids(self) -> list[int]:
        """Everybody in it, in order."""
        return [request.id for request in self.first(len(self._heap))]

    def put_back(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.urgency, request))

    def remove(self, request: Request) -> None:
        """It has finished after all: its last output was in flight when it was preempted."""
        self._heap.remove((request.urgency, request))
        heapq.heapify(self._heap)

    def cancel(self, request: int) -> Request | None:
        """A request leaves, by its id; None when it is not here."""
        for _, r in self._heap:
            if r.id == request and not r.finished:
                self.remove(r)
                return r
        return None


QUEUES: dict[str, type[FcfsQueue] | type[PriorityQueue]] = {
    "fcfs": FcfsQueue,
    "priority": PriorityQueue,
    "lpm": LongestPrefixQueue,
}
"""engine.scheduler_policy -> its queue."""
EXPERIMENTS = ("lpm", "vtc")
"""Orders that vLLM has no flag for; vtc's queue is sim.vllm.fair's."""
