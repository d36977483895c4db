"""A router that knows which LoRA adapters a replica has.

The one idea: the gateway's published scorer (Gateway API inference extension, scorer lora-affinity, 2026): 1 where the
request's adapter runs, 0.8 where there is room for one more, 0.6 where the adapter waits, 0 elsewhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim.fleet.routers.prefix import SCRAPE_S, Scored

if TYPE_CHECKING:
    import numpy as np

    from sim.fleet.replica import Replica
    from workloads.columns import Workload

ACTIVE, ROOM, WAITING, FULL = 1.0, 0.8, 0.6, 0.0


class LoraAffinity(Scored):
    """The best of lora + kv + queue; lora is 1 where the adapter runs, 0.8 with room for one more, 0.6 where it waits,
    else 0 (the gateway's scorer, 2026)."""

    prefix_weight = 0.0

    def __init__(self, rng: np.random.Generator, workload: Workload) -> None:
        super().__init__(rng, workload)
        self._adapter = workload.column("lora").data
        self._sent: dict[int, dict[int, None]] = {}  # replica -> its unfinished requests with an adapter
        self._at: dict[int, int] = {}  # of each of them, its replica
        self._seen: dict[int, tuple[Counter[int], Counter[int]]] = {}  # replica -> adapters that run, that wait
        self._seen_s = -math.inf

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        self._forget(request)
        chosen = super().choose(request, replicas)
        if self._adapter[request] >= 0:
            self._at[request] = chosen.index
            self._sent.setdefault(chosen.index, {})[request] = None
        return chosen

    def matches(self, request: int, replicas: Sequence[Replica]) -> list[int]:
        return [0] * len(replicas)

    def scores(self, request: int, replicas: Sequence[Replica]) -> list[float]:
        self._look(replicas)
        others = super().scores(request, replicas)
        return [score + self._fits(request, replica) for score, replica in zip(others, replicas, strict=True)]

    def _fits(self, request: int, replica: Replica) -> float:
        active, waiting = self._seen[replica.index]
        adapter = self._adapter[request]
        if adapter in active:
            return ACTIVE
        if not replica.max_loras or len(active) + len(waiting) < replica.max_loras:
            return ROOM
        return WAITING if adapter in waiting else FULL

    def _look(self, replicas: Sequence[Replica]) -> None:
        """As often as the metrics page is read."""
        now_s = replicas[0].now_s
        if now_s < self._seen_s + SCRAPE_S and all(replica.index in self._seen for replica in replicas):
            return
        self._seen_s = now_s
        for replica in replicas:
            sent, admit_s = self._sent.get(replica.index, {}), replica.log.admit_s
            active = Counter(self._adapter[r] for r in sent if not math.isnan(admit_s[r]))
            self._seen[replica.index] = active, Counter(self._adapter[r] for r in sent if math.isnan(admit_s[r]))

    def finished(self, request: int, replica: Replica) -> None:
        self._forget(request)

    def _forget(self, request: int) -> None:
        place = self._at.pop(request, None)
        if place is not None:
            del self._sent[place][request]
