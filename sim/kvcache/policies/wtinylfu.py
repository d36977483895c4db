"""W-TinyLFU: a small window everybody enters, and a main cache that admits a leaf only when it is asked for more often
than the one that would have to go.

Einziger, Friedman, Manes, "TinyLFU: a highly efficient cache admission policy", ACM ToS 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.kvcache.policies.base import Asking, Key, Policy, Run, World, expect

WINDOW, PROBATION, PROTECTED = 0, 1, 2


class WTinyLfu(Policy):
    """State: (segment, place in it, None until the first release). A segment is by recency and counts what was
    released.

    Blocks must be held while a request runs, so admission happens when memory is wanted: the window's oldest leaf meets
    the oldest on probation; the one asked for less often is evicted, and the window's leaf, when it is not that one,
    moves to probation. A hit moves a leaf from probation to protected, and from the window too while that holds more
    than its share (as long as memory lasts nothing else leaves it); what is too much there returns to probation.
    Frequencies are exact counts of admissions whose path holds the block's tree node, halved every `sample` x capacity
    blocks asked for (the paper approximates them by a sketch)."""

    by_node = True

    def __init__(
        self, world: World, window_share: float = 0.01, protected_share: float = 0.8, sample: int = 10
    ) -> None:
        super().__init__(world)
        expect(0 <= window_share < 1, "window_share", window_share, "0 or more and below 1")
        expect(0 <= protected_share <= 1, "protected_share", protected_share, "0 to 1")
        expect(sample >= 1, "sample", sample, "1 or more")
        self.window = max(1, int(window_share * world.capacity_blocks))
        self.main = world.capacity_blocks - self.window
        self.protected = int(protected_share * self.main)
        self.sample = sample * world.capacity_blocks
        self.blocks = [0, 0, 0]
        self.asked = 0
        self.frequency: dict[int, int] = {}
        self.place, self.last_release = 0, -1
        self.overfull = False  # the window holds what should have moved on, since memory was never short
        self.moving = False  # the chosen leaf changes segment instead of going

    def on_admit(self, request: Asking) -> None:
        self.overfull = self.blocks[WINDOW] > self.window
        frequency = self.frequency
        for node_id, _ in request.path:
            frequency[node_id] = frequency.get(node_id, 0) + 1
        self.asked += request.path[-1][1] if request.path else 0
        if self.asked >= self.sample:
            self.asked //= 2
            self.frequency = {node: n // 2 for node, n in frequency.items() if n > 1}

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = (WINDOW, None)

    def on_hit(self, run: Run, request: Asking) -> None:
        segment, place = run.state
        if segment == PROBATION or (segment == WINDOW and self.overfull and place is not None):
            self._move(run, PROTECTED, place)

    def on_release(self, run: Run, request: Asking) -> None:
        segment, place = run.state
        if place is None:
            self.blocks[segment] += len(run)
        if run.released != self.last_release:
            self.last_release = run.released
            self.place += 1
        run.state = (segment, self.place)

    def _move(self, run: Run, segment: int, place: int) -> None:
        self.blocks[run.state[0]] -= len(run)
        self.blocks[segment] += len(run)
        run.state = (segment, place)

    def group(self, run: Run) -> int:
        return run.state[0]

    def key(self, run: Run) -> Key:
        return (run.state[1], -run.hi, run.node_id)

    def victim(self, heads: Mapping[Any, Key]) -> int:
        if PROTECTED in heads and self.blocks[PROTECTED] > self.protected:
            self.moving = True
            return PROTECTED
        rest = PROBATION if PROBATION in heads else PROTECTED
        if WINDOW not in heads or (rest in heads and self.blocks[WINDOW] < self.window):
            return rest
        room = self.blocks[PROBATION] + self.blocks[PROTECTED] < self.main
        self.moving = room or (rest in heads and self._asked_for(heads[WINDOW]) > self._asked_for(heads[rest]))
        return WINDOW

    def _asked_for(self, key: Key) -> int:
        return self.frequency.get(key[-1], 0)

    def span(self, run: Run) -> int:
        over = self.blocks[WINDOW] - self.window + 1
        return over if run.state[0] == WINDOW and over > 0 else len(run)

    def second_chance(self, run: Run) -> bool:
        return self.moving

    def spare(self, runs: list[Run]) -> None:
        self.moving = False
        self.place += 1
        for run in runs:
            self._move(run, PROBATION, self.place)

    def on_evict(self, run: Run, n: int) -> None:
        self.blocks[run.state[0]] -= n
