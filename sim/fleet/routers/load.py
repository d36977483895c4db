"""Routers that know nothing of prompts: in turn, at random, by load, by session."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from sim.fleet.routers.base import Router

if TYPE_CHECKING:
    import numpy as np

    from sim.fleet.replica import Replica
    from workloads.columns import Workload


class RoundRobin(Router):
    """Each replica in turn."""

    _next = 0

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        replica = replicas[self._next % len(replicas)]
        self._next += 1
        return replica

    def resumed(self, routed: int) -> None:
        self._next += routed


class Random(Router):
    """Any replica with equal probability."""

    draws = any_list = True

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        return replicas[int(self.rng.integers(len(replicas)))]


class LeastLoaded(Router):
    """The replica with the fewest tokens in its front end, waiting and running; ties go to the lowest index.

    Until a request finishes a replica's tokens only grow, so what it had when last looked at is a floor: only those
    with the lowest floors are looked at again."""

    def __init__(self, rng: np.random.Generator, workload: Workload) -> None:
        super().__init__(rng, workload)
        self._floor: list[int] = []
        self._heap: list[tuple[int, int]] = []  # (floor, place); only the present floor counts
        self._place: dict[int, int] = {}  # of a replica among those that take requests

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        if not self._floor:
            self._floor = [0] * len(replicas)
            self._heap = [(0, place) for place in range(len(replicas))]
            self._place = {replica.index: place for place, replica in enumerate(replicas)}
        heap, floors = self._heap, self._floor
        while True:
            floor, place = heap[0]
            if floors[place] != floor:
                heappop(heap)
                continue
            load = replicas[place].load_tokens()
            if load == floor:
                return replicas[place]
            floors[place] = load
            heapreplace(heap, (load, place))

    def finished(self, request: int, replica: Replica) -> None:
        place = self._place.get(replica.index, -1)
        if place < 0:
            return
        load = self._floor[place] = replica.load_tokens()
        heappush(self._heap, (load, place))
        if len(self._heap) > 4 * len(self._floor) + 64:  # mostly floors that no longer count
            self._heap = [(floor, place) for place, floor in enumerate(self._floor)]
            heapify(self._heap)

    def resized(self, replicas: Sequence[Replica]) -> None:
        self._floor, self._place = [], {}


class SessionAffinity(LeastLoaded):
    """A session's first request goes to the least loaded replica, its later ones to the same: its history is cached
    there.

    Requests without a session (most traces) are each their own, and go as by `least-loaded`.
    """

    def __init__(self, rng: np.random.Generator, workload: Workload) -> None:
        super().__init__(rng, workload)
        self._home: dict[int, Replica] = {}

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        session = self.session[request]
        home = self._home.get(session)
        if home is None or not home.takes:
            home = self._home[session] = super().choose(request, replicas)
        return home


class PowerOfTwo(Router):
    """The one of two replicas, drawn at random, that has fewer requests; the first drawn of equals.

    As Envoy's least request (choice 2): requests in flight, whatever their size."""

    draws = any_list = True

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        if len(replicas) == 1:
            return replicas[0]
        first = int(self.rng.integers(len(replicas)))
        second = int(self.rng.integers(len(replicas) - 1))
        return min(replicas[first], replicas[second + (second >= first)], key=in_flight)


def in_flight(replica: Replica) -> int:
    """Requests in its front end, its queue and its batch."""
    return replica.waiting + replica.running
