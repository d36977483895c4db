"""Routers: which replica an arriving request goes to. One small class each; the state is their own."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

import numpy as np

from sim.fleet.replica import Replica


class Router(Protocol):
    def choose(self, request: int, replicas: list[Replica]) -> Replica: ...


class RoundRobin:
    """Each replica in turn."""

    def __init__(self, rng: np.random.Generator, session: Sequence[int]) -> None:
        self._next = 0

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        replica = replicas[self._next % len(replicas)]
        self._next += 1
        return replica

    def skip(self, turns: int) -> None:
        self._next += turns


class Random:
    """Any replica with equal probability."""

    def __init__(self, rng: np.random.Generator, session: Sequence[int]) -> None:
        self._rng = rng

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        return replicas[int(self._rng.integers(len(replicas)))]


class LeastLoaded:
    """The replica with the fewest tokens in its front end, waiting and running; ties go to the lowest index.

    Until a request finishes a replica's tokens only grow, so what it had when last looked at is a floor: only those
    with the lowest floors are looked at again."""

    def __init__(self, rng: np.random.Generator, session: Sequence[int]) -> None:
        self._floor: list[int] = []
        self._heap: list[tuple[int, int]] = []  # (floor, replica); only the present floor counts

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        if not self._floor:
            self._floor = [0] * len(replicas)
            self._heap = [(0, index) for index in range(len(replicas))]
        heap, floors = self._heap, self._floor
        while True:
            floor, index = heap[0]
            if floors[index] != floor:
                heappop(heap)
                continue
            load = replicas[index].load_tokens()
            if load == floor:
                return replicas[index]
            floors[index] = load
            heapreplace(heap, (load, index))

    def fell(self, replica: Replica) -> None:
        """A request has finished there."""
        if not self._floor:
            return
        load = self._floor[replica.index] = replica.load_tokens()
        heappush(self._heap, (load, replica.index))
        if len(self._heap) > 4 * len(self._floor) + 64:  # mostly floors that no longer count
            self._heap = [(floor, index) for index, floor in enumerate(self._floor)]
            heapify(self._heap)


class SessionAffinity(LeastLoaded):
    """A session's first request goes to the least loaded replica, its later ones to the same: its history is cached
    there.

    Requests without a session (most traces) are each their own, and go as by `least-loaded`.
    """

    def __init__(self, rng: np.random.Generator, session: Sequence[int]) -> None:
        super().__init__(rng, session)
        self._session = session
        self._home: dict[int, Replica] = {}

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        session = self._session[request]
        home = self._home.get(session)
        if home is None:
            home = self._home[session] = super().choose(request, replicas)
        return home


ROUTERS: dict[str, type] = {
    "round-robin": RoundRobin,
    "random": Random,
    "least-loaded": LeastLoaded,
    "session-affinity": SessionAffinity,
}
"""By name; each is made with the routing stream and the session of every request."""
