"""Consistent hashing of sessions: no state to share between gateways, and a fleet that grows moves few sessions.

The one idea: every replica has points on a ring; a session belongs to the replica of the next point. Without bounds a
replica's requests depend on nothing that happens elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from sim.fleet.routers.base import Router
from sim.fleet.routers.load import in_flight

if TYPE_CHECKING:
    from sim.fleet.replica import Replica

POINTS = 128
"""Of each replica on the ring, as Envoy's 1,024 are for eight: their shares of sessions differ by about 9 %."""
BOUND = 1.25
"""Most requests of a replica, of the mean over all (Mirrokni, Thorup and Zadimoghaddam, 2018)."""
MASK = (1 << 64) - 1


class SessionHash(Router):
    """A session's requests go to the replica that a hash of it names (a ring, 128 points each), whatever the load.

    Requests without a session are each their own."""

    _ring: tuple[list[int], list[Replica]] | None = None

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        points, owners = self._points(replicas)
        return owners[bisect_right(points, hash64(self.session[request])) % len(points)]

    def resized(self, replicas: Sequence[Replica]) -> None:
        self._ring = None

    def _points(self, replicas: Sequence[Replica]) -> tuple[list[int], list[Replica]]:
        if self._ring is None:
            ring = [(hash64((replica.index << 32) + k + 1), replica) for replica in replicas for k in range(POINTS)]
            ring.sort(key=lambda point: point[0])
            self._ring = [point for point, _ in ring], [replica for _, replica in ring]
        return self._ring


class SessionHashBounded(SessionHash):
    """As session-hash, but a replica with more than 1.25 times the mean of requests passes them on to the next on the
    ring."""

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        points, owners = self._points(replicas)
        at = bisect_right(points, hash64(self.session[request]))
        most = ceil(BOUND * (sum(map(in_flight, replicas)) + 1) / len(replicas))
        for step in range(len(points)):
            replica = owners[(at + step) % len(points)]
            if in_flight(replica) < most:
                return replica
        return owners[at % len(points)]


def hash64(number: int) -> int:
    """A 64-bit mix of a whole number (splitmix64, Steele, Lea and Flood, 2014), the same on every machine."""
    z = (int(number) + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)
