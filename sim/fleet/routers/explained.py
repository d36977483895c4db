"""Why this replica: what each request would have met there and on the best other one, as its router knew."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sim.fleet.routers.base import Router
from sim.recording import Routed

if TYPE_CHECKING:
    from sim.fleet.replica import Replica


class Explained(Router):
    """A router that looks for prefixes (`Router.matches`), with notes of its choices. Of a request that is routed again
    the last choice is noted."""

    def __init__(self, router: Router) -> None:
        super().__init__(router.rng, router.workload)
        self._router = router
        n = len(router.workload)
        self._columns = [array("q", [-1]) * n for _ in range(4)]

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        matches = self._router.matches(request, replicas)
        met = [(tokens, replica.waiting) for tokens, replica in zip(matches, replicas, strict=True)]
        chosen = self._router.choose(request, replicas)
        place = next(i for i, replica in enumerate(replicas) if replica is chosen)
        others = met[:place] + met[place + 1 :]
        best = max(others, key=lambda other: (other[0], -other[1]), default=(-1, -1))
        for column, value in zip(self._columns, (*met[place], *best), strict=True):
            column[request] = value
        return chosen

    def finished(self, request: int, replica: Replica) -> None:
        self._router.finished(request, replica)

    def resized(self, replicas: Sequence[Replica]) -> None:
        self._router.resized(replicas)

    def resumed(self, routed: int) -> None:
        self._router.resumed(routed)

    def routed(self) -> Routed:
        return Routed(*(np.frombuffer(column, np.int64) for column in self._columns))


def explains(router: Router) -> bool:
    """Whether it looks for prefixes, and so has reasons to tell."""
    return type(router).matches is not Router.matches
