"""Routers: which replica an arriving request goes to. One small class each; the state is their own."""
from __future__ import annotations

from typing import Protocol

import numpy as np

from sim.replica import Replica


class Router(Protocol):
    def choose(self, request: int, replicas: list[Replica]) -> Replica: ...


class RoundRobin:
    """Each replica in turn."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._next = 0

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        replica = replicas[self._next % len(replicas)]
        self._next += 1
        return replica

    def skip(self, turns: int) -> None:
        self._next += turns


class Random:
    """Any replica with equal probability."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        return replicas[int(self._rng.integers(len(replicas)))]


class LeastLoaded:
    """The replica with the fewest tokens waiting and running; ties go to the lowest index."""

    def __init__(self, rng: np.random.Generator) -> None:
        pass

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        return min(replicas, key=lambda replica: (replica.load_tokens(), replica.index))


ROUTERS: dict[str, type] = {"round-robin": RoundRobin, "random": Random, "least-loaded": LeastLoaded}
