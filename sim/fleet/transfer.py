"""KV blocks on their way from the replica that computed a prompt to the one that decodes it.

The one idea: a read takes a stretch of two links, the NICs of both replicas, each first come first served; both are
known when it begins, so a scheduler can be told at once when its blocks are there:

    descriptors x seconds each + latency + bytes / bandwidth of the slower one, and its turn on each of them

`layerwise`: blocks are sent while the prompt is computed, so only what that time has not sufficed for is left to send,
the last layer at least.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from sim.fleet.clock import Clock
from sim.fleet.replica import Replica

READ = 1
"""Place of the end of a read among what may be pending of a request (Clock.call_at)."""


@dataclass(frozen=True)
class Link:
    """What joins two pools of replicas."""

    block_bytes: int  #: of a KV block, over all GPUs
    layers: int  #: descriptors of a block: each of its layers is read by itself
    prefill_bytes_s: float  #: NICs of a prefill replica together
    decode_bytes_s: float  #: and of a decode replica
    latency_s: float = 0.0  #: of every read; the links are free meanwhile
    descriptor_s: float = 0.0  #: the reading replica's NIC is taken meanwhile
    layerwise: bool = False


class Nic:
    """The network interfaces of one replica."""

    def __init__(self) -> None:
        self.free_s = 0.0
        self.busy_s = 0.0

    def carry(self, begins_s: float, seconds: float) -> float:
        """Take it for so long, from `begins_s` or when it is free (mutates): when that is over."""
        self.free_s = max(begins_s, self.free_s) + seconds
        self.busy_s += seconds
        return self.free_s


class Transfers:
    """The reads of a run, and what lies unread on prefill replicas (sim.engine.Elsewhere)."""

    def __init__(self, env: Clock, link: Link, requests: int, replicas: int) -> None:
        self._env, self._link = env, link
        self.nics = [Nic() for _ in range(replicas)]
        self._kept: dict[int, tuple[Replica, float]] = {}  # request -> where its prompt lies, and since when it began
        self.begin_s = array("d", [nan]) * requests
        self.ready_s = array("d", [nan]) * requests
        self.blocks = array("q", [0]) * requests
        self.hit_blocks = array("q", [0]) * requests  # that the reader had

    def keep(self, request: int, replica: Replica, began_s: float) -> None:
        """A replica, which has begun to compute it at `began_s`, has a prompt that will be read."""
        self._kept[request] = (replica, began_s)

    def keeps(self, request: int) -> bool:
        return request in self._kept

    def read(self, request: int, replica: int, hit: int, blocks: int, now_s: float) -> float:
        link = self._link
        source, began_s = self._kept.pop(request)
        here, there = self.nics[replica], self.nics[source.index]
        posting_s, size = blocks * link.layers * link.descriptor_s, blocks * link.block_bytes
        slower_bytes_s = min(link.decode_bytes_s, link.prefill_bytes_s)
        posted_s = max(began_s if link.layerwise else now_s, here.free_s) + posting_s
        ends_s = there.carry(posted_s, size / link.prefill_bytes_s)
        ends_s = max(ends_s, here.carry(posted_s - posting_s, posting_s + size / link.decode_bytes_s))
        if link.layerwise:
            ends_s = max(ends_s, now_s + (posting_s + size / slower_bytes_s) / link.layers)
        ready_s = ends_s + link.latency_s
        self.begin_s[request], self.ready_s[request] = now_s, ready_s
        self.blocks[request], self.hit_blocks[request] = blocks, hit
        self._env.call_at(ready_s, request, source.release, place=READ)
        return ready_s

    def busy_s(self) -> Sequence[float]:
        """Seconds that each replica's NICs were taken."""
        return [nic.busy_s for nic in self.nics]
