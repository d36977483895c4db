"""What a gateway refuses before any replica sees it, when too many wait: the least important first.

The one idea: every level of importance has a limit of its own on the requests that wait per replica. The least
important one is refused from `over` on, the next from twice as many on, and so on; so what must be served is while
what need not be makes room for it.

Levels are the priorities of the workload (lower is more important); with sessions_first the later turns of sessions are
all above the first turns: what a session has in the cache is worth more than a session that has not begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from workloads.columns import Workload


class Waits(Protocol):
    @property
    def waiting(self) -> int:
        """Requests in its front end and its queue."""
        ...


class Gate:
    """Of one fleet."""

    def __init__(self, workload: Workload, over: int, sessions_first: bool = False) -> None:
        """over: requests waiting per replica from which on the least important are refused."""
        begins = (workload.column("turn") == 0) if sessions_first else np.zeros(len(workload), bool)
        levels = np.column_stack([begins, workload.column("priority")]).astype(np.int64)
        kinds, level = np.unique(levels, axis=0, return_inverse=True)
        self.limit = (over * (len(kinds) - level.reshape(-1))).tolist()  #: of each request

    def refuses(self, request: int, replicas: Sequence[Waits], in_front: int) -> bool:
        """Whether a request that comes now is turned away; in_front: requests that wait for any replica."""
        waiting = in_front + sum(replica.waiting for replica in replicas)
        return waiting >= self.limit[request] * max(len(replicas), 1)
