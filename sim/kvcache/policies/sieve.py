"""SIEVE: one queue in order of entry and a hand that walks it, old to new, sparing what was used since it last passed.

Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is simpler than LRU", NSDI 2024.
"""

from __future__ import annotations

from sim.kvcache.policies.base import Asking, Key, Policy, Run, World

START = (-1, 0)


class Sieve(Policy):
    """State: (place in the queue, the first release, or None before it; visited).

    A position is (place, -depth), so of one request the deepest block comes first. The hand takes the next leaf ahead
    of it: a visited one loses its mark and stays where it is, another is evicted. Inner and pinned blocks are passed
    by unchanged. Leaves behind the hand wait for its next lap.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.hand, self.newest = START, START
        self.lap = 0

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = (None, False)

    def after_hits(self, state: tuple[int | None, bool], n: int) -> tuple[int | None, bool]:
        return state[0], state[1] or n > 0

    def on_first_release(self, run: Run, request: Asking) -> None:
        run.state = (run.released, run.state[1])
        self.newest = (run.released, -run.lo - 1)

    def key(self, run: Run) -> Key:
        position = (run.state[0], -run.hi)
        return (self.lap + (position <= self.hand), *position)

    def second_chance(self, run: Run) -> bool:
        """The hand arrives at a leaf."""
        position = (run.state[0], -run.hi)
        self.lap += position <= self.hand
        self.hand = position
        return run.state[1]

    def spare(self, runs: list[Run]) -> None:
        place, _ = runs[0].state
        for run in runs:
            run.state = (place, False)
        self.hand = (place, -runs[-1].lo - 1)

    def on_evict(self, run: Run, n: int) -> None:
        self.hand = (run.state[0], -(run.hi - n) - 1)
        if self.hand == self.newest:  # the end of the queue: what joins next is not ahead of the hand
            self.hand = START
            self.lap += 1
