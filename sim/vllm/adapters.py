"""LoRA adapters of one replica: which are in a GPU slot, which in host memory, and what a step waits for the others.

The one idea: two lists in order of last use. A request that joins the batch wants its adapter in a slot; where it is
not, the step is longer by its load, from host memory or, where it is not there either, from disk first. The least
recently used adapter that nobody runs with makes room (vLLM's LRUCacheWorkerLoRAManager: loads happen before the step,
whose requests all wait).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from sim.sections.lora import Adapters


class Resident:
    """The adapters of a replica, none at its start."""

    def __init__(self, adapters: Adapters) -> None:
        self._a = adapters
        self.slots: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self.host: OrderedDict[int, None] = OrderedDict()
        self.loads = self.disk_loads = 0

    def use(self, adapter: int, running: Collection[int]) -> float:
        """Seconds until it is in a slot, where it is from now on; running: the adapters of the batch, this one
        included."""
        seconds = 0.0
        if adapter not in self.slots:
            seconds += self._a.load_s + self._into_host(adapter)
            self.loads += 1
            if self._a.slots and len(self.slots) >= self._a.slots:
                del self.slots[next(one for one in self.slots if one not in running)]
            self.slots[adapter] = None
        self.touch(adapter)
        return seconds

    def _into_host(self, adapter: int) -> float:
        if adapter in self.host:
            return 0.0
        self.disk_loads += 1
        if self._a.in_host and len(self.host) >= self._a.in_host:
            self.host.popitem(last=False)
        self.host[adapter] = None
        return self._a.disk_s

    def touch(self, adapter: int) -> None:
        """It has been used now."""
        self.slots.move_to_end(adapter)
        if adapter in self.host:
            self.host.move_to_end(adapter)
