"""ARC: leaves used once and leaves used again, each by recency, with a border between them that learns from its
mistakes.

Megiddo, Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from sim.kvcache.policies.base import Asking, Key, Run, World
from sim.kvcache.policies.ghosts import Ghosts, Recalling

ONCE, AGAIN = 0, 1


class Arc(Recalling):
    """State: (list, counted). Blocks count in their list from their first release, so what is being served is in none.

    `target` is the size the once list should have. It is moved when a request is admitted that brings blocks back which
    one list gave up too early: per block by 1, or by the ratio of the two lists of names where that is more.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.blocks = [0, 0]
        self.ghosts = (Ghosts(), Ghosts())
        self.target = 0.0
        self.missed_again = False  # the admission that wants memory brings blocks back to `again`

    def on_admit(self, request: Asking) -> None:
        once, again = (max(1, g.blocks) for g in self.ghosts)
        from_once, from_again = self.recall(request, *self.ghosts)
        self.target = min(self.world.capacity_blocks, self.target + from_once * max(1.0, again / once))
        self.target = max(0.0, self.target - from_again * max(1.0, once / again))
        self.missed_again = from_again > 0

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = (AGAIN if self.comes_back(run, request) else ONCE, False)

    def on_hit(self, run: Run, request: Asking) -> None:
        which, counted = run.state
        if counted:
            self.blocks[which] -= len(run)
            self.blocks[AGAIN] += len(run)
        run.state = (AGAIN, counted)

    def on_first_release(self, run: Run, request: Asking) -> None:
        super().on_first_release(run, request)
        which, _ = run.state
        self.blocks[which] += len(run)
        run.state = (which, True)
        self._forget()

    def _forget(self) -> None:
        """Once list and its names at most the capacity, everything at most twice the capacity."""
        capacity, (once, again), (gave_once, gave_again) = self.world.capacity_blocks, self.blocks, self.ghosts
        gave_once.trim(max(0, capacity - once))
        gave_again.trim(max(0, 2 * capacity - once - again - gave_once.blocks))

    def group(self, run: Run) -> int:
        return run.state[0]

    def victim(self, heads: Mapping[Any, Key]) -> int:
        once = self.blocks[ONCE]
        over = once > self.target or (self.missed_again and once == self.target)
        return ONCE if AGAIN not in heads or (over and ONCE in heads) else AGAIN

    def span(self, run: Run) -> int:
        over = self.blocks[ONCE] - self.target
        if run.state[0] == AGAIN or over < 0 or (over == 0 and not self.missed_again):
            return len(run)  # the border is not crossed, or there is no other leaf
        return max(1, ceil(over))

    def on_evict(self, run: Run, n: int) -> None:
        which = run.state[0]
        self.blocks[which] -= n
        self.ghosts[which].add(run.node_id, run.hi - n, run.hi)
