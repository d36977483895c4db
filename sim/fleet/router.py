"""Routers by name: which replica an arriving request goes to.

A new one: a class in `sim.fleet.routers` and its line in `ROUTERS`, and it is on the command line, in help, docs and
dashboard.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sim import own
from sim.endless import Endless
from sim.fleet.routers.adapters import LoraAffinity
from sim.fleet.routers.base import Router
from sim.fleet.routers.hashed import SessionHash, SessionHashBounded
from sim.fleet.routers.load import LeastLoaded, PowerOfTwo, Random, RoundRobin, SessionAffinity
from sim.fleet.routers.prefix import CacheAware, KvCost, PrefixApproximate, PrefixPrecise, PrefixSticky

if TYPE_CHECKING:
    import numpy as np

    from sim.fleet.replica import Replica
    from workloads.columns import Workload

__all__ = ["ROUTERS", "Router", "find", "make", "meanings", "name_of"]

ROUTERS: dict[str, type[Router]] = {
    "round-robin": RoundRobin,
    "random": Random,
    "least-loaded": LeastLoaded,
    "session-affinity": SessionAffinity,
    "power-of-two": PowerOfTwo,
    "session-hash": SessionHash,
    "session-hash-bounded": SessionHashBounded,
    "llm-d-approx": PrefixApproximate,
    "llm-d-precise": PrefixPrecise,
    "dynamo-kv": KvCost,
    "sglang-cache-aware": CacheAware,
    "production-stack-prefix": PrefixSticky,
    "lora-affinity": LoraAffinity,
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
