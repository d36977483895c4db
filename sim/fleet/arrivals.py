"""Who comes by the clock, and who after whom: columns of a workload, shared by all fronts of a fleet."""

from __future__ import annotations

import numpy as np

from workloads.columns import Workload


class Arrivals:
    """Of one workload; nothing changes in it."""

    def __init__(self, workload: Workload) -> None:
        after = workload.column("after")
        self.session = workload.column("session_id").data
        self.delay_s = workload.column("delay_s").data
        self.after = after.data
        self.at_s = workload.arrival_s
        self.closed = bool((after >= 0).any())  #: some wait for another one to end
        self.first = np.flatnonzero(after < 0)  #: those that do not
        self.clocked = self.first[np.argsort(workload.arrival_s[self.first], kind="stable")]  #: in the order they come
        self._followers = np.argsort(after, kind="stable")
        self._start = np.searchsorted(after[self._followers], np.arange(len(after) + 1))

    def followers_of(self, request: int) -> list[int]:
        """Those that come when it has ended."""
        return self._followers[self._start[request] : self._start[request + 1]].tolist()
