"""Routers: which replica an arriving request goes to. One small class each; the state is their own.

A new one: a class here and its line in `ROUTERS`, and it is on the command line, in help, docs and dashboard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

import numpy as np

from sim.fleet.replica import Replica
from sim.own import own_class
from workloads.errors import InputError


class Router:
    """Chooses a replica for each request. One of your own: `cluster.router = "module:Class"` (docs/fleet.md)."""

    def __init__(self, rng: np.random.Generator, session: Sequence[int]) -> None:
        """rng: the routing stream of the run's seed, and the only randomness to use. session: of each request, by its
        number; -1 for none."""
        self.rng = rng
        self.session = session

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        """The replica that serves a request; `replicas` are those that take any now."""
        raise NotImplementedError

    def finished(self, request: int, replica: Replica) -> None:
        """A request has finished there."""

    def resized(self, replicas: list[Replica]) -> None:
        """These take requests from now on: one has failed, drained or started."""

    def resumed(self, routed: int) -> None:
        """The run begins with caches that so many requests have left behind."""


class RoundRobin(Router):
    """Each replica in turn."""

    _next = 0

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        replica = replicas[self._next % len(replicas)]
        self._next += 1
        return replica

    def resumed(self, routed: int) -> None:
        self._next += routed


class Random(Router):
    """Any replica with equal probability."""

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        return replicas[int(self.rng.integers(len(replicas)))]


class LeastLoaded(Router):
    """The replica with the fewest tokens in its front end, waiting and running; ties go to the lowest index.

    Until a request finishes a replica's tokens only grow, so what it had when last looked at is a floor: only those
    with the lowest floors are looked at again."""

    def __init__(self, rng: np.random.Generator, session: Sequence[int]) -> None:
        super().__init__(rng, session)
        self._floor: list[int] = []
        self._heap: list[tuple[int, int]] = []  # (floor, place); only the present floor counts
        self._place: dict[int, int] = {}  # of a replica among those that take requests

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
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

    def resized(self, replicas: list[Replica]) -> None:
        self._floor, self._place = [], {}


class SessionAffinity(LeastLoaded):
    """A session's first request goes to the least loaded replica, its later ones to the same: its history is cached
    there.

    Requests without a session (most traces) are each their own, and go as by `least-loaded`.
    """

    def __init__(self, rng: np.random.Generator, session: Sequence[int]) -> None:
        super().__init__(rng, session)
        self._home: dict[int, Replica] = {}

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        session = self.session[request]
        home = self._home.get(session)
        if home is None or not home.takes:
            home = self._home[session] = super().choose(request, replicas)
        return home


ROUTERS: dict[str, type[Router]] = {
    "round-robin": RoundRobin,
    "random": Random,
    "least-loaded": LeastLoaded,
    "session-affinity": SessionAffinity,
}


def find(router: str) -> type[Router]:
    """The class of a router's name, or of "module:Class" for a user's own. Raises InputError."""
    if router in ROUTERS:
        return ROUTERS[router]
    what = f"[cluster] router = {router!r}"
    if ":" not in router:
        close = get_close_matches(router, ROUTERS, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise InputError(f"{what}: expected one of {', '.join(ROUTERS)}, or module:Class for your own{hint}")
    return own_class(router, Router, what)


def make(router: str, rng: np.random.Generator, session: Sequence[int]) -> Router:
    """A router for one run. What a user's own does wrong is an InputError that names its class and method."""
    kind = find(router)
    if kind in ROUTERS.values():
        return kind(rng, session)
    return Watched(kind, rng, session)


class Watched(Router):
    """A user's own router: whatever goes wrong in it is one line, and it must choose from what it is given."""

    def __init__(self, kind: type[Router], rng: np.random.Generator, session: Sequence[int]) -> None:
        self._kind = kind
        self._own: Router = self._call("__init__", lambda: kind(rng, session))

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        chosen = self._call("choose", lambda: self._own.choose(request, replicas))
        if not any(chosen is replica for replica in replicas):
            raise InputError(f"cluster.router {self._kind.__name__}: choose: {chosen!r}, expected one of `replicas`")
        return chosen

    def finished(self, request: int, replica: Replica) -> None:
        self._call("finished", lambda: self._own.finished(request, replica))

    def resized(self, replicas: list[Replica]) -> None:
        self._call("resized", lambda: self._own.resized(replicas))

    def resumed(self, routed: int) -> None:
        self._call("resumed", lambda: self._own.resumed(routed))

    def _call(self, method: str, does: Callable[[], Any]) -> Any:
        try:
            return does()
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            told = f"{type(error).__name__}: {error}"
            raise InputError(f"cluster.router {self._kind.__name__}: {method}: {told}") from error
