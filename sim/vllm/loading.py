"""Requests of one replica and the cache tiers below its GPU memory: what is loaded for whom, and when it is there.

The one idea: a load takes GPU memory at once and only its arrival takes time, so the scheduler has one thing to know of
a request, `ready_s`. Which blocks are worth loading is the tiers' decision (sim.kvcache.tiers).
"""

from __future__ import annotations

from sim.kvcache.base import BlockCache
from sim.kvcache.tiers import Load, Tiers
from sim.log import RequestLog
from sim.request import Request
from sim.vllm.fair import FairQueue
from sim.vllm.waiting import FcfsQueue, PriorityQueue

PREFETCH_AHEAD = 8
"""Requests at the head of the queue for which cache tiers with `prefetch` are asked."""


class Loader:
    """Starts the loads of a replica's requests: at admission, and ahead of it."""

    def __init__(self, tiers: Tiers, cache: BlockCache, log: RequestLog) -> None:
        self.tiers = tiers
        self.cache = cache
        self.log = log
        self.prefetches = tiers.prefetch
        cache.lower = tiers

    def plan(self, r: Request, hit: int, limit: int, now_s: float) -> Load | None:
        """What to load behind `hit` blocks in GPU memory, at most up to block `limit`."""
        return self.tiers.plan(r.path, hit, limit, r.known, now_s)

    def load(self, r: Request, hit: int, load: Load | None, now_s: float) -> None:
        """r, whose `hit` blocks in GPU memory are pinned, gets memory for what it loads and waits until all is
        there."""
        log = self.log
        r.ready_s = self.tiers.hits_ready_s(r.path, hit, now_s)
        if load is not None:
            self._bring(r, hit, load, now_s)
            r.ready_s = max(r.ready_s, load.ready_s)
        log.load_s[r.id] += r.ready_s - now_s
        if r.preempted_at < 0:
            for tier, n in enumerate(load.blocks if load is not None else ()):
                log.tier_hit_tokens[tier][r.id] += n * self.cache.block_size
            for tier, lo, hi in r.prefetched or ():
                log.tier_hit_tokens[tier][r.id] += max(0, min(hi, hit) - lo) * self.cache.block_size

    def _bring(self, r: Request, hit: int, load: Load, now_s: float) -> None:
        """Start a load: the blocks leave their tier before others fall into it."""
        self.tiers.fetch(load, now_s)
        self.cache.take(load.total)
        r.held = hit + load.total
        self.cache.enter(r, r.held)

    def prefetch(self, waiting: FcfsQueue | PriorityQueue | FairQueue, now_s: float) -> bool:
        """Load for requests that wait, once each, into memory that is free; nothing stays pinned. True when any load
        began."""
        cache, began = self.cache, False
        for r in waiting.first(PREFETCH_AHEAD):
            if r.prefetched is not None:
                continue
            r.prefetched = []
            limit = (r.known - 1) // cache.block_size
            hit, idle, handles = cache.lookup(r.path, limit)
            load = self.tiers.plan(r.path, hit, limit, r.known, now_s, prefetch=True)
            if load is None or load.total + idle > cache.free:
                continue
            cache.acquire(r, handles)
            self._bring(r, hit, load, now_s)
            cache.release(r)
            r.prefetched = [(tier, lo, hi) for tier, _, lo, hi in load.parts]
            began = True
        return began
