"""S3-FIFO: a small queue that most blocks never leave, a main queue with second chances, and names of what left early.

Yang, Zhang, Qiu, Yue, Vinayak, "FIFO queues are all you need for cache eviction", SOSP 2023. Its authors' library,
libCacheSim, has two versions that differ until the first eviction: S3FIFOv0.c is the paper's, S3FIFO.c lets the small
queue overflow."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from sim.kvcache.policies.base import Asking, Key, Run, World, expect
from sim.kvcache.policies.ghosts import Ghosts, Recalling

SMALL, MAIN = 0, 1
NEW, RETURNED = (SMALL, None, 0), (MAIN, None, 0)
START_UPS = ("paper", "libcachesim")


class S3Fifo(Recalling):
    """State: (queue, place in it or None until first released, uses since, at most 3).

    While the small queue holds `small_share` of the cache or more its oldest leaf goes, into the main queue when it was
    used `main_uses` times; otherwise the main queue's oldest, back to its end when it was used. Blocks evicted from the
    small queue that come back in time go straight to the main one. Blocks join their queue when first released.

    start_up: what is new before the first eviction joins the small queue ("paper"), or the main one once the small one
    is full ("libcachesim"; asked once for all that a request lets go of)."""

    def __init__(
        self,
        world: World,
        small_share: float = 0.1,
        ghost_share: float = 0.9,
        main_uses: int = 2,
        start_up: str = "paper",
    ) -> None:
        super().__init__(world)
        expect(0 <= small_share < 1, "small_share", small_share, "0 or more and below 1")
        expect(0 <= ghost_share < inf, "ghost_share", ghost_share, "0 or more and finite")
        expect(main_uses >= 1, "main_uses", main_uses, "1 or more")
        expect(start_up in START_UPS, "start_up", start_up, f"one of {', '.join(START_UPS)}")
        self.small = int(small_share * world.capacity_blocks)
        self.ghost_blocks = int(ghost_share * world.capacity_blocks)
        self.main_uses = main_uses
        self.capacity = world.capacity_blocks
        self.blocks = [0, 0]
        self.ghosts = Ghosts()
        self.place, self.last_release = 0, -1
        self.may_overflow = start_up == "libcachesim"  # until the first eviction
        self.joins_main = False  # what the present release lets go of, being new
        self.small_until_evicted = False  # a walk of the small queue ends with an eviction
        self.quota = 0  # blocks that may go before the share is tested again

    def on_admit(self, request: Asking) -> None:
        self.recall(request, self.ghosts)

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = RETURNED if self._returning and self.comes_back(run, request) else NEW

    def after_hits(self, state: tuple[int, int | None, int], n: int) -> tuple[int, int | None, int]:
        queue, place, uses = state
        return (queue, place, min(uses + n, 3)) if uses < 3 else state

    def on_first_release(self, run: Run, request: Asking) -> None:
        if self._returning:
            super().on_first_release(run, request)
        queue, _, uses = run.state
        if run.released != self.last_release:
            self.last_release = run.released
            self.place += 1
            self.joins_main = self.may_overflow and self.blocks[SMALL] >= self.small
        queue = MAIN if self.joins_main else queue
        run.state = (queue, self.place, uses)
        self.blocks[queue] += run.hi - run.lo

    def group(self, run: Run) -> int:
        return run.state[0]

    def key(self, run: Run) -> Key:
        return (run.state[1],)  # what shares a place lies on one path, where one leaf is the deepest

    def victim(self, heads: Mapping[Any, Key]) -> int:
        over = self.blocks[SMALL] - self.small + 1
        if SMALL in heads and (over > 0 or self.small_until_evicted or MAIN not in heads):
            self.quota = over if over > 0 else 1 if self.small_until_evicted else self.capacity
            return SMALL
        self.quota = self.capacity
        return MAIN

    def span(self, run: Run) -> int:
        return self.quota

    def second_chance(self, run: Run) -> bool:
        queue, _, uses = run.state
        return uses > 0 and uses >= (self.main_uses if queue == SMALL else 1)

    def spare(self, runs: list[Run]) -> None:
        self.place += 1
        self.small_until_evicted |= runs[0].state[0] == SMALL
        for run in runs:
            queue, _, uses = run.state
            blocks = run.hi - run.lo
            self.blocks[queue] -= blocks
            self.blocks[MAIN] += blocks
            run.state = (MAIN, self.place, 0 if queue == SMALL else uses - 1)

    def on_evict(self, run: Run, n: int) -> None:
        queue = run.state[0]
        self.blocks[queue] -= n
        self.small_until_evicted = self.may_overflow = False
        if queue == SMALL:
            ghosts = self.ghosts
            ghosts.add(run.node_id, run.hi - n, run.hi)
            if ghosts.blocks > self.ghost_blocks:
                ghosts.trim(self.ghost_blocks)
