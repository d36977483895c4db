"""Prefill and decode on different replicas, as vLLM's NIXL connector has it: who keeps a prompt's KV blocks, and who
waits for them.

The one idea: each side is vLLM's scheduler with one thing changed. A prefill replica's request ends with its first
token but keeps its blocks until they have been read. A decode replica admits a request in two turns: the first finds
what its own cache has, takes memory for the whole prompt and begins to read the rest; the second, when that is there,
gives it a place in the batch, where its last prompt token is computed again and its first output sampled. In between it
holds memory and no place (WAITING_FOR_REMOTE_KVS), and nobody behind it waits for it.

Two things vLLM leaves open are decided here: who has its blocks gets a place before whoever has none yet, and a prefill
replica whose kept blocks leave no room waits for their reads.
"""

from __future__ import annotations

from collections import deque

from sim.engine import Elsewhere
from sim.kvcache.base import BlockCache
from sim.kvcache.chains import Paths
from sim.log import RequestLog
from sim.request import Request
from sim.scenario import EngineParams
from sim.vllm import admission
from sim.vllm.scheduler import VllmScheduler


class PrefillScheduler(VllmScheduler):
    """Its requests have one output token; `let_go` frees their blocks."""

    def __init__(self, params: EngineParams, cache: BlockCache, paths: Paths, log: RequestLog) -> None:
        super().__init__(params, cache, paths, log)
        self.kept: dict[int, Request] = {}  # finished, by id: their blocks are still to be read
        self._stuck = False  # nothing runs, and the head of the queue waits for such blocks

    @property
    def busy(self) -> bool:
        return super().busy and not self._stuck

    def submit(self, request: int) -> bool:
        self._stuck = False
        return super().submit(request)

    def schedule(self, now_s: float) -> bool:
        some = super().schedule(now_s)
        self._stuck = not (some or self.running or self.preempted or self.freed) and bool(self.kept)
        return some

    def free(self, r: Request) -> None:
        self.cache.finish_writing(r)
        self.kept[r.id] = r

    def let_go(self, request: int) -> None:
        """All of a finished request's blocks have been read."""
        self.cache.release(self.kept.pop(request))
        self._stuck = False


class DecodeScheduler(VllmScheduler):
    """`loading` are the requests whose blocks are on their way: they have memory, and no place in the batch."""

    def __init__(
        self, params: EngineParams, cache: BlockCache, paths: Paths, log: RequestLog, elsewhere: Elsewhere, index: int
    ) -> None:
        super().__init__(params, cache, paths, log)
        self.elsewhere = elsewhere
        self.index = index
        self.reading: list[Request] = []  # with memory and no place; `loading`: of them, whose blocks are on their way
        self._there: deque[Request] = deque()  # the others

    @property
    def busy(self) -> bool:
        return super().busy or bool(self.reading)

    def unfinished(self) -> list[int]:
        return [*super().unfinished(), *(r.id for r in self.reading)]

    def stretch(self, most: int) -> int:
        return 1 if self.chunks and self.loading else super().stretch(most)

    def admit(self) -> None:
        """Who has its blocks goes first, whatever its priority: its memory waits with it."""
        passed = []
        while self._there and self.budget > 0 and len(self.running) < self.most_running:
            r = self._there.popleft()
            if admission.finds_no_lora_slot(self, r):
                passed.append(r)
                continue
            self.reading.remove(r)
            admission.start(self, r, 1)
        self._there.extendleft(reversed(passed))
        super().admit()
        if self._there and self.ending:  # they let go before the next step is decided
            self.steady = False

    def fit(self, r: Request) -> int:
        return self._read(r) if self.elsewhere.keeps(r.id) else super().fit(r)

    def _read(self, r: Request) -> int:
        """Pin r's hits, take memory for the rest of its prompt and begin to read it; 0 when it does not fit."""
        cache, limit = self.cache, (r.known - 1) // self.b
        hit, idle, handles = cache.lookup(r.path, limit)
        missing = -(-r.known // self.b) - hit
        need = missing + idle + (self.watermark if self.running else 0)
        if need > cache.free:
            admission.block(self, r, need, idle)
            return 0
        self.blocked = None
        admission.record_hit(self, r, hit, limit)
        cache.acquire(r, handles)
        cache.take(missing)
        r.held = hit + missing
        r.ready_s = self.elsewhere.read(r.id, self.index, hit, missing, self.now_s)
        self.loading.append(r)
        self.reading.append(r)
        self.changed = True
        return admission.LATER

    def _take_in(self, now_s: float) -> None:
        """Blocks that have come are in the cache from now on."""
        for r in [r for r in self.loading if r.ready_s <= now_s]:
            self.loading.remove(r)
            r.computed = r.prompt - 1
            self.cache.enter(r, r.computed // self.b)
            self._there.append(r)
            self.blocked = None  # what the head lacks may be among them
