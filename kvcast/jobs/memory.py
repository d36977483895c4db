"""The memory that jobs may hold together.

The one idea: each process has a limit of its own, but a job may be several processes and there are several jobs. So
what all of them hold is added up while they work, and beyond MOST of the machine's memory the job that holds the most
is ended, before the system ends whatever it likes.

    >>> memory = Memory(); memory.beyond("4f0c...", group=process.pid)
"""

from __future__ import annotations

import threading

from kvcast import system

MOST = 0.8
"""Share of the machine's memory; the rest is the server's and everybody else's."""


class Memory:
    """What jobs hold, by key. Shared by their threads; the lock guards `_held`."""

    def __init__(self) -> None:
        self.most_bytes = int(MOST * system.machine_bytes())  #: 0: nobody says how much there is
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()

    def beyond(self, key: str, group: int) -> bool:
        """Whether all jobs hold more than they may together, and this one, whose processes are `group`, the most."""
        if not self.most_bytes:
            return False
        now = system.memory_bytes(group)
        with self._lock:
            self._held[key] = now
            return sum(self._held.values()) > self.most_bytes and now == max(self._held.values())

    def ended(self, key: str) -> None:
        with self._lock:
            self._held.pop(key, None)
