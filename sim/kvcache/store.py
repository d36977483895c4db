"""A cache tier that all replicas of a fleet have together: one store, and each replica's way to it.

The one idea: a store is a tier whose blocks everybody finds. What is a replica's own is a `Shelf`: its link, and what
it has written and loaded. A block is there for others once the step that computes it has ended (`settle`).

A load takes its turn at the store, first come first served at the bandwidth of all together, and passes through the
replica's own link meanwhile, one load after the other; it is there when both are done:

    begins = max(now, store free)      store free = begins + bytes / total
    there  = max(store free, max(begins, link free) + latency + bytes / bandwidth)

With a total without limit that is a private tier's link, and with one replica a private tier.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.kvcache.chains import Path
from sim.kvcache.tiers import Tier, seconds
from sim.recording import TierUse
from sim.scenario import TierParams

NOBODY = -1


class Store(Tier):
    """The blocks of all replicas, and the turn of their loads."""

    def __init__(self, params: TierParams) -> None:
        super().__init__(params)
        self.free_s = 0.0  # when the loads asked for so far have left it
        self._writer = NOBODY  # whose blocks enter now
        self._fresh: dict[int, list[tuple[int, int, int]]] = {}  # replica -> (node, lo, hi) of its step in progress

    def put_by(self, replica: int, node: int, lo: int, hi: int, entering: bool) -> list[tuple[int, int, int]]:
        """As `put`; what is entering is computed in the replica's present step."""
        self._writer = replica if entering else NOBODY
        return self.put(node, lo, hi, entering)

    def _write(self, node: int, lo: int, hi: int) -> None:
        super()._write(node, lo, hi)
        if lo < hi and self._writer != NOBODY:
            self._fresh.setdefault(self._writer, []).append((node, lo, hi))

    def reach_for(self, replica: int, node: int, pos: int, limit: int) -> int:
        """As `reach`, without what other replicas are still computing."""
        end = self.reach(node, pos, limit)
        for writer, parts in self._fresh.items():
            if writer != replica:
                for of, lo, hi in parts:
                    if of == node and lo < end and hi > pos:
                        end = max(pos, lo)
        return end

    def settled(self, replica: int) -> None:
        """The replica's step has ended."""
        self._fresh.pop(replica, None)

    def lost(self, replica: int) -> None:
        """It failed: what its step was computing never came to be."""
        for node, lo, hi in self._fresh.pop(replica, ()):
            self.remove(node, lo, hi)

    def turn_s(self, blocks: int, now_s: float) -> tuple[float, float]:
        """When a load of so many blocks that is asked for now begins to leave the store, and when it has left."""
        begins_s = max(now_s, self.free_s)
        return begins_s, begins_s + seconds(blocks * self.p.block_bytes, self.p.total_bytes_s)


class Shelf:
    """One replica's way to a store: what Tier is to a replica of its own."""

    def __init__(self, store: Store, replica: int) -> None:
        store.lost(replica)
        self.store, self.p, self.through = store, store.p, store.through
        self._replica = replica
        self._link_free_s = self._busy_s = self._store_busy_s = self._waited_s = 0.0
        self._loads = self._loaded = self._written = self._dropped = 0

    def reach(self, node: int, pos: int, limit: int) -> int:
        return self.store.reach_for(self._replica, node, pos, limit)

    def put(self, node: int, lo: int, hi: int, entering: bool = False) -> list[tuple[int, int, int]]:
        store = self.store
        written, dropped = store.written, store.dropped
        fallen = store.put_by(self._replica, node, lo, hi, entering)
        self._written += store.written - written
        self._dropped += store.dropped - dropped
        return fallen

    def touch(self, path: Path, end: int) -> None:
        self.store.touch(path, end)

    def remove(self, node: int, lo: int, hi: int) -> None:
        self.store.remove(node, lo, hi)

    def settle(self) -> None:
        self.store.settled(self._replica)

    def ready_s(self, blocks: int, now_s: float) -> float:
        """When a load of so many blocks that is asked for now would be complete."""
        begins_s, left_s = self.store.turn_s(blocks, now_s)
        return max(left_s, max(begins_s, self._link_free_s) + self.store.transfer_s(blocks))

    def load(self, blocks: int, now_s: float) -> None:
        begins_s, left_s = self.store.turn_s(blocks, now_s)
        self._link_free_s = self.ready_s(blocks, now_s)
        self.store.free_s = left_s
        self._busy_s += self.store.transfer_s(blocks)
        self._store_busy_s += left_s - begins_s
        self._waited_s += begins_s - now_s
        self._loads += 1
        self._loaded += blocks

    def use(self) -> TierUse:
        """What this replica has done; what is stored is told by the first one."""
        return TierUse(
            self.p.name,
            self.p.blocks,
            self.p.block_bytes,
            self.p.bandwidth_bytes_s,
            self._loaded,
            self._written,
            self._dropped,
            0 if self._replica else self.store.used,
            self._busy_s,
            self._loaded * self.p.block_bytes,
            self._written * self.p.block_bytes,
            shared=True,
            total_bytes_s=self.p.total_bytes_s,
            store_busy_s=self._store_busy_s,
            store_waited_s=self._waited_s,
            loads=self._loads,
        )

    def check(self) -> None:
        self.store.check()


def stores_of(tiers: Sequence[TierParams]) -> dict[str, Store]:
    """The stores of a run, by name."""
    return {params.name: Store(params) for params in tiers if params.shared}
