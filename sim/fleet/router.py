"""Routers: which replica an arriving request goes to. One small class each; the state is their own.

A new one: a class here and its line in `ROUTERS`, and it is on the command line, in help, docs and dashboard.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any

from sim import own
from sim.endless import Endless

if TYPE_CHECKING:
    import numpy as np

    from sim.fleet.replica import Replica
    from workloads.columns import Workload


class Router:
    """Chooses a replica for each request. One of your own: `cluster.router = "module:Class"` (docs/fleet.md).

    Requests are numbers, rows of the workload. Of a replica a router may read `index`, `load_tokens()`, `running`,
    `waiting`, `state` and `takes`."""

    def __init__(self, rng: np.random.Generator, workload: Workload) -> None:
        """rng: the routing stream of the run's seed, the only randomness to use. workload: the columns of all requests;
        what a front end cannot know (output_tokens, later arrivals) is there too."""
        self.rng = rng
        self.workload = workload
        self.session = workload.column("session_id").data  #: of each request; one without a session is its own

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        """The replica that serves a request, one of `replicas`: those that take any now, in their order, at least
        one."""
        raise NotImplementedError("every router has its own")

    def finished(self, request: int, replica: Replica) -> None:
        """A request has sampled its last token there, or its client has given it up."""

    def resized(self, replicas: Sequence[Replica]) -> None:
        """These take requests from now on: one has failed, drained or started. What a failed one had comes to `choose`
        again."""

    def resumed(self, routed: int) -> None:
        """The run begins with caches that so many requests have left behind."""


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


ROUTERS: dict[str, type[Router]] = {
    "round-robin": RoundRobin,
    "random": Random,
    "least-loaded": LeastLoaded,
    "session-affinity": SessionAffinity,
}


def meanings() -> dict[str, str]:
    """What each router does, the first paragraph of its class: for help and docs."""
    return {name: " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()) for name, kind in ROUTERS.items()}


def name_of(router: Any) -> str:
    """The id of a router given by name or as a class: module:Class for a user's own. Raises InputError for anything
    else."""
    return own.name_of(router, Router, ROUTERS, "[cluster] router")


def find(router: str | type[Router]) -> type[Router]:
    """The class of a router's id, or of "module:Class" for a user's own, as Python would import it now. Raises
    InputError."""
    return own.find(router, Router, ROUTERS, "[cluster] router")


def make(router: str, rng: np.random.Generator, workload: Workload) -> Router:
    """A router for one run. What a user's own does wrong is an InputError that names its class and method."""
    kind = find(router)
    return kind(rng, workload) if router in ROUTERS else Watched(kind, rng, workload)


class Watched(Router):
    """A user's own router: whatever goes wrong in it is one line, and it must choose from what it is given."""

    def __init__(self, kind: type[Router], rng: np.random.Generator, workload: Workload) -> None:
        super().__init__(rng, workload)
        self._kind = kind
        self._own: Router = self._call("__init__", self._made)

    def _made(self) -> Router:
        router = self._kind(self.rng, self.workload)
        if not hasattr(router, "session"):
            raise ValueError("expected it to call super().__init__(rng, workload)")
        return router

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        return self._call("choose", self._chosen, request, replicas)

    def _chosen(self, request: int, replicas: Sequence[Replica]) -> Replica:
        chosen = self._own.choose(request, tuple(replicas))
        if not any(chosen is replica for replica in replicas):
            raise ValueError(f"returned {chosen!r:.80}, expected one of its replicas, each of which takes requests")
        return chosen

    def finished(self, request: int, replica: Replica) -> None:
        self._call("finished", self._own.finished, request, replica)

    def resized(self, replicas: Sequence[Replica]) -> None:
        self._call("resized", self._own.resized, tuple(replicas))

    def resumed(self, routed: int) -> None:
        self._call("resumed", self._own.resumed, routed)

    def _call(self, method: str, does: Callable[..., Any], *given: Any) -> Any:
        try:
            return own.called(does, *given)
        except (Exception, SystemExit, Endless) as error:
            raise own.blamed(f"cluster.router {self._kind.__name__}: {method}", error, __file__) from error
