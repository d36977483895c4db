"""What a router has been told of a replica's cache: its events, each a while after it happened.

The one idea: an event is a run of blocks of one node of the prefix tree, stored or removed. Those on their way wait in
a queue until somebody looks, and what has been told is a bit for each block of a node.

A block is told of when the engine's cache has it: a prompt's with the step that computes them, what a request generates
when it ends, or when another one finds it before. Of two copies of a block the first that is evicted takes both from
what is known, as events by hash do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from calibrate.kv_groups import FULL
from sim.fleet.clock import Clock
from sim.kvcache.base import Lower
from sim.kvcache.chains import Path
from sim.scenario import EngineParams
from workloads.errors import InputError

if TYPE_CHECKING:
    from sim.engine import Scheduler


class KvEvents:
    """Listens to the cache of one engine from its start. What lies below that cache (tiers) is told as before."""

    def __init__(self, clock: Clock, delay_s: float, scheduler: Scheduler) -> None:
        engine: Any = scheduler
        self._clock, self._delay_s = clock, delay_s
        self._paths, self._block_size, self._prompt = engine.paths, engine.b, engine.log.prompt
        self._below: Lower | None = engine.cache.lower
        engine.cache.lower = self
        self._coming: deque[tuple[float, bool, int, int]] = deque()  # (told at, stored, node, bits of its blocks)
        self._held: dict[int, int] = {}  # node -> bits of its blocks

    def cached_tokens(self, request: int) -> int:
        """Tokens of a prompt that it would hit, by what has been told until now."""
        self._hear()
        return self._blocks(self._paths.build(request), (self._prompt[request] - 1) // self._block_size) * (
            self._block_size
        )

    def _blocks(self, path: Path, limit: int) -> int:
        pos = 0
        for node, hi in path:
            known = self._held.get(node, 0) >> pos
            pos += ((known + 1) & ~known).bit_length() - 1  # ones at its low end
            if pos < hi or pos >= limit:
                break
        return min(pos, limit)

    def _hear(self) -> None:
        held = self._held
        while self._coming and self._coming[0][0] <= self._clock.now:
            _, stored, node, bits = self._coming.popleft()
            held[node] = held.get(node, 0) | bits if stored else held.get(node, 0) & ~bits
            if not held[node]:
                del held[node]

    # -- from the cache ---------------------------------------------------------------------------------------------
    def entered(self, node: int, lo: int, hi: int) -> None:
        self._tell(True, node, lo, hi)
        if self._below is not None:
            self._below.entered(node, lo, hi)

    def evicted(self, node: int, lo: int, hi: int) -> None:
        self._tell(False, node, lo, hi)
        if self._below is not None:
            self._below.evicted(node, lo, hi)

    def released(self, path: Path, end: int) -> None:
        if self._below is not None:
            self._below.released(path, end)

    def _tell(self, stored: bool, node: int, lo: int, hi: int) -> None:
        self._coming.append((self._clock.now + self._delay_s, stored, node, (1 << hi) - (1 << lo)))


def listeners(clock: Clock, delay_s: float, caching: bool) -> Callable[[Scheduler], KvEvents] | None:
    """Makes the listener of an engine; None where routers ask the caches themselves."""
    return (lambda scheduler: KvEvents(clock, delay_s, scheduler)) if delay_s and caching else None


def check(params: EngineParams, saved: bool) -> None:
    """Raise InputError for caches whose events are not simulated. saved: the run begins with a saved cache."""
    for wrong, what in (
        (
            len(params.kv_groups) > 1 or any(group.kind != FULL for group in params.kv_groups),
            "layers that keep a window or a state (engine.disable_hybrid_kv_cache_manager = true takes them all as full"
            " attention)",
        ),
        (params.ranks > 1, "attention_dp above 1"),
        (saved, "a saved cache to begin with"),
    ):
        if wrong:
            raise InputError(
                f"[cluster] kv_event_delay_ms with {what}: its events are not simulated, expected a run without one of"
                " them"
            )
