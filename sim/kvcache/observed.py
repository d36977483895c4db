"""A record of what a cache was asked to hold and let go: enough to say afterwards what the best eviction would have
hit.

The one idea: between two events a cache only hands out memory, so blocks in use just before an event are the most there
were since the last one.

    events = array("q")
    observe(cache, events)
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from sim.kvcache.base import BlockCache
from sim.kvcache.release_order import ReleaseOrderCache

ACQUIRE, RELEASE = 0, 1
KIND, REQUEST, BLOCKS, IN_USE = range(4)
"""Columns of an event. BLOCKS: hit (acquire) or left in the cache (release). IN_USE: blocks referenced just before
it."""


class Observable(ReleaseOrderCache):
    """The same cache, of Python: a compiled one lets nobody replace its methods (tools.fast)."""


def observe(cache: BlockCache, events: array[int]) -> None:
    """From now on write every acquisition and release of `cache` to `events`, four integers each."""
    acquire, release = cache.acquire, cache.release

    def observed_acquire(request: Any, handles: list[Any]) -> None:
        in_use = cache.total - cache.free
        acquire(request, handles)
        events.extend((ACQUIRE, request.id, request.held, in_use))

    def observed_release(request: Any) -> None:
        cache.enter_generated(request)
        in_use, left = cache.total - cache.free, request.entered
        release(request)
        events.extend((RELEASE, request.id, left, in_use))

    cache.acquire, cache.release = observed_acquire, observed_release  # type: ignore[method-assign]


def as_table(events: array[int]) -> np.ndarray:
    """int64 [events, 4], in the order they happened."""
    return np.array(events, np.int64).reshape(-1, 4)
