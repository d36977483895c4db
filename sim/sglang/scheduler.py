"""The engine step of SGLang: a prefill batch whenever one can be formed, a decode of everybody otherwise.

The one idea: decodes advance together and only in steps that hold all of them, so the running batch is an aggregate
(sim.sglang.batch). Between a rejected head of the queue (`full`) and the next finish nothing can change it, and a
stretch of decode steps is one event (docs/sglang.md has the rules).

    schedule()     decide one step: prefill if anything waiting fits (sim.sglang.admission), else decode, retracting
                   when memory is short (sim.sglang.retraction). With mixed chunks the decodes ride along in a prefill
    stretch()      how many decode steps from here nothing can change the batch (sim.sglang.stretches)
    fast_forward() take some of them at once
    complete()     the step is over: who has all its output

What a step has sampled is read (sim.sglang.result: cache, finish, free) when it is over, or with the overlap schedule
when the step after it has been decided.
"""

from __future__ import annotations

from array import array

from sim.kvcache.chains import Paths
from sim.kvcache.saved import Saved
from sim.kvcache.tiers import Tiers
from sim.log import RequestLog
from sim.scenario import EngineParams
from sim.sglang import stretches
from sim.sglang.admission import admit
from sim.sglang.batch import RunningBatch
from sim.sglang.node import RadixRequest
from sim.sglang.radix import RadixCache
from sim.sglang.ratio import NewTokenRatio
from sim.sglang.result import Result, leave, read, sampled
from sim.sglang.retraction import retract
from sim.sglang.waiting import DECODE, IDLE, PREFILL, Waiting
from workloads.errors import InputError

NOBODY: set[RadixRequest] = set()
OUT_OF_MEMORY = (
    "[engine] mixed_chunk = true: decodes took the KV memory that a prompt in the middle of its chunks needs; SGLang"
    " itself stops there (Prefill out of memory); expected false, more kv_blocks or a larger schedule_conservativeness"
)


class SGLangScheduler:
    """One replica's queue, batches and step plan."""

    def __init__(
        self, params: EngineParams, cache: RadixCache, paths: Paths, token_paths: Paths, log: RequestLog
    ) -> None:
        self.p = params
        self.b = params.block_size
        self._most_tokens = (params.kv_blocks - 1) * params.block_size - 1  # of a request that can be admitted
        self.cache = cache
        self.paths = paths
        self.log = log
        cache.clock += 2  # the tree that SGLang's orders keep of the waiting takes two ticks
        refreshes = params.caching and params.policy == "lru"
        self.waiting = Waiting(
            cache,
            self.b,
            params.schedule_policy,
            params.priority_scheduling,
            refreshes,
            self._build,
            token_paths.build,
            params.scheduler_recv_interval,
        )
        self.waiting_tokens = 0
        self.running: dict[RadixRequest, None] = {}  # everybody admitted
        self.running_tokens = 0  # known tokens of the running requests, at the last completed step
        self.batch = RunningBatch(self.b, params.clip_max_new_tokens)  # of them, those behind their prompt
        self.joined: list[RadixRequest] = []  # it since the last decode step
        self._prefilled: list[RadixRequest] = []  # by the last step; they join it at the next
        self.chunked: RadixRequest | None = None  # in the middle of its prompt
        self.full = False  # no admission is tried until somebody leaves
        self.somebody_left = False  # when the last result was read
        self.overlap = params.overlap_schedule
        self.mixes = params.mixed_chunk and params.chunked_prefill_size > 0
        self.result = Result(-1)  # of the present step
        self.unread = self.result  # of the step before, while this one is decided
        self.new_token_ratio = NewTokenRatio(params)
        self.steps = 0
        self.last_decode = self.decode_before = -1  # the number of the last step with decodes, and of the one before
        self.freed = False  # nobody lets go between two steps
        self.loading: list[RadixRequest] = []  # there are no cache tiers
        self.stall_s = 0.0
        self.ahead = params.overlap_schedule and params.calls_ahead
        self.tiers: Tiers | None = None
        # the present step
        self.chunks: list[tuple[RadixRequest, int]] = []
        self.decoded = 0
        self.preempted: list[int] = []
        self.changed = False
        self.steady = False
        self._evicted_before = 0
        self._scheduled: tuple[str, list[tuple[int, int]], int] = ("", [], 0)

    # -- queue ------------------------------------------------------------------------------------------------------
    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def submit(self, request: int) -> bool:
        """Queue a request. True when the present decode stretch must be cut for it."""
        self.waiting_tokens += self.log.prompt[request]
        self.waiting.come(request)
        return self.joins_next()

    def joins_next(self) -> bool:
        if self.waiting.interval > 1:
            return True  # a stretch lasts until the engine looks
        return not self.full and not self.chunks and len(self.running) < self.p.max_num_seqs

    def _build(self, request: int) -> RadixRequest:
        log = self.log
        prompt, output = log.prompt[request], log.output[request]
        r = RadixRequest(
            request, prompt, output, log.arrival_s[request], self.paths.build(request), log.priority[request]
        )
        r.asked = max(output, min(log.max_tokens[request], self._most_tokens - prompt))
        return r

    # -- one step ---------------------------------------------------------------------------------------------------
    def schedule(self, now_s: float) -> bool:
        """Decide one step; False when nothing could be scheduled (then it was no step)."""
        self.waiting.look(PREFILL if self.chunks else DECODE if self.decoded else IDLE)
        self._begin()
        self.chunks = admit(self, now_s)
        if self.chunks:
            self._start_prefill()
            if self.mixes:
                self._ride_along()
        else:
            self._start_decode(now_s)
        if self.overlap:
            read(self, self.unread)
        if self.result.first:
            self._note_gaps()
        return bool(self.decoded or self.chunks)

    def _begin(self) -> None:
        """What the step before leaves behind: a shorter or a longer running batch."""
        if self.somebody_left:
            self.full = self.somebody_left = False
        if self.chunked is not None:
            self.store(self.chunked, self.chunked.computed)
            self.full = False  # it leaves the prefill batch
        if self.chunks:
            self._merge(self._prefilled, mixed=self.decoded > 0)
        elif self.overlap:
            self.batch.unread, self.batch.fresh = self.decoded > 0, NOBODY
        self.unread, self.result = self.result, Result(self.steps)
        self.chunks, self.preempted, self._prefilled, self.decoded = [], [], [], 0
        self.changed = self.steady = False
        self._evicted_before = self.cache.evicted

    def _merge(self, prefilled: list[RadixRequest], mixed: bool) -> None:
        """The prefill batch of the step before, or what is left of it, becomes part of the running batch."""
        batch = self.batch
        if mixed or (prefilled and not batch.members):
            self.full = False  # it is the running batch now, with a flag of its own
        batch.merge(prefilled, in_front=mixed)
        self.joined += [r for r in prefilled if not r.finished]
        if self.overlap:
            batch.unread, batch.fresh = mixed, set(prefilled)

    def store(self, r: RadixRequest, computed: int) -> None:
        """So many tokens of r enter the cache."""
        self.cache.store(r, computed // self.b, r.prompt // self.b)

    def let_go(self, r: RadixRequest) -> None:
        """Free its private pages and unlock its path."""
        self.cache.blank += -(-r.computed // self.b) - r.held
        self.cache.release(r)
        r.node, r.held = None, 0

    def _start_prefill(self) -> None:
        b = self.b
        demand = sum(extend for _, extend in self.chunks)
        if b > 1:
            demand += b * len(self.chunks)
        self.cache.make_room(-(-demand // b))
        for r, extend in self.chunks:
            upto = r.computed + extend
            pages = -(-upto // b) - -(-r.computed // b)
            if pages > self.cache.blank:
                raise InputError(OUT_OF_MEMORY)
            self.cache.take(pages)
            r.computed = upto
        self.steps += 1

    def _ride_along(self) -> None:
        """The decodes join a prefill that has taken its pages, if theirs are there too."""
        if self.batch.ended:
            self._leave_out()
        need = self.batch.pages()
        self.cache.make_room(need)
        if self.batch.decodes.n and self.cache.blank >= need:
            self._decode_all(need)

    def _start_decode(self, now_s: float) -> None:
        batch, cache = self.batch, self.cache
        somebody_ends = bool(batch.ended)
        if somebody_ends:
            self._leave_out()
        if not batch.decodes.n:
            self.full = False
            return
        need = batch.pages()
        cache.make_room(need)
        if cache.blank >= need:
            self.new_token_ratio.decay(1)
        elif somebody_ends:
            return  # its memory comes back before anybody is retracted
        else:
            retract(self, now_s)
            need = batch.pages()
        self.steps += 1
        self._decode_all(need)
        self.steady = self.full or not self.waiting.queue

    def _leave_out(self) -> None:
        """Who has sampled its last output, which nobody has read, takes no part."""
        self.batch.leave_out()
        self.full = False

    def _decode_all(self, need: int) -> None:
        """A token of everybody in the running batch is part of the step; they need so many pages."""
        batch, cache = self.batch, self.cache
        cache.make_room(batch.decodes.n)  # a page for everybody, needed or not
        cache.take(need)
        batch.steps += 1
        self.decoded = batch.decodes.n
        if self.joined:
            self.result.first, self.joined = self.joined, []
        self.decode_before, self.last_decode = self.last_decode, self.steps - 1

    def _note_gaps(self) -> None:
        """Who decodes for the first time since its prefill may have waited for other prefills in between."""
        for r in self.result.first:
            self.log.gaps.extend((r.id, r.gap_from, self.steps - 1))
            r.gap_from = -1

    # -- shape of the step ------------------------------------------------------------------------------------------
    def shape(self) -> tuple[list[tuple[int, int]], int, int, int, int]:
        """(chunks (new, cached), decodes, sum and maximum of their contexts, rows sampled): what the step time depends
        on."""
        n, chunks, sampled = self.decoded, [], self.decoded
        for r, tokens in self.chunks:
            chunks.append((tokens, r.computed - tokens))
            sampled += r.computed == r.known
        if not n:
            return chunks, 0, 0, 0, sampled
        steps, decodes = self.batch.steps, self.batch.decodes
        return chunks, n, n * steps - decodes.sum_base, steps - decodes.min_base(), sampled

    def stretch(self, most: int) -> int:
        """How many steps, this one included, run with this batch and without eviction (at least 1, at most `most`)."""
        return stretches.plan(self, most)

    def fast_forward(self, k: int) -> None:
        """Take k more steps of the present stretch."""
        stretches.take(self, k)

    # -- end of the step --------------------------------------------------------------------------------------------
    def finishing_now(self) -> bool:
        """Whether the present step samples the last token of a decode."""
        return bool(self.decoded) and self.batch.steps in self.batch.decodes.finishing

    def complete(self) -> list[int]:
        """Sample at the end of a step, in the order of its batch; the requests that finished."""
        finished = self._end_prefill() if self.chunks else []
        if self.decoded:
            self.running_tokens += self.decoded
            self.result.ended = self.batch.end_step()
            finished += self.result.ended
        for r in finished:
            r.finished = True
            self.running_tokens -= r.prompt + r.output
            self.log.last_step[r.id] = self.steps - 1
        if not self.overlap:
            read(self, self.result)
        return [r.id for r in finished]

    def _end_prefill(self) -> list[RadixRequest]:
        """Chunks that reach the last known token sample one more; those whose last it is."""
        finished = []
        for r, _ in self.chunks:
            if r.preempted_at < 0:
                self.log.prefill_chunks[r.id] += 1
            if r.computed < r.known:
                continue
            self.result.prefilled.append((r, r.computed))
            self.running_tokens += 1
            r.generated += 1
            if r.generated == r.output:  # it leaves its front at once: told now, and not when the engine reads it
                sampled(self, r, r.computed, self.steps - 1)
                finished.append(r)
            if r.generated < r.output or self.overlap:
                self._prefilled.append(r)
        return finished

    def cancel(self, request: int) -> int:
        """A request leaves the queue or the batch, what it has computed stays in the cache: the tokens that it has
        computed, or found, before."""
        r = self.waiting.cancel(request)
        if r is None:
            r = next(r for r in self.running if r.id == request and not r.finished)
            leave(self, r)
        else:
            self.waiting_tokens -= r.known
        return r.done_before

    # -- log and state ----------------------------------------------------------------------------------------------
    def announce(self, ends_s: array[float]) -> None:
        """Nothing: a stretch never has a chunk."""

    def write_out(self) -> None:
        raise TypeError("no cache tiers with these rules")

    def begin_at(self, steps: int) -> None:
        self.steps = steps

    def unfinished(self) -> list[int]:
        return [r.id for r in self.running if not r.finished] + self.waiting.ids()

    def row_at_start(self, taken: int, evicted: int) -> tuple | None:
        """A step's row, when its result is read after the next is decided; else who is in it, for `row_at_end`."""
        decodes = self.batch.members if self.decoded else ()
        scheduled = [*((r.id, n) for r, n in self.chunks), *((r.id, 1) for r in decodes)]
        self._scheduled = ("P" if self.chunks else "D", scheduled, len(self.waiting.queue))
        return self._row() if self.overlap and scheduled else None

    def row_at_end(self) -> tuple | None:
        return None if self.overlap else self._row()

    def _row(self) -> tuple:
        """P or D, scheduled, retracted, tokens evicted, available, evictable, protected, waiting."""
        cache, b = self.cache, self.b
        evicted = cache.evicted - self._evicted_before
        protected = cache.total - cache.blank - cache.idle - self.private_pages()
        kind, scheduled, waiting = self._scheduled
        pages = (evicted, cache.blank, cache.idle, protected)
        return (kind, scheduled, list(self.preempted), *(n * b for n in pages), waiting)

    def cached_tokens(self, request: int) -> int:
        raise TypeError("a look-up in SGLang's tree changes it")

    def saved(self) -> Saved:
        """Its tree, where the ratio of its admission stands, and the passes of its queue."""
        known = {"ratio": self.new_token_ratio.saved(), "passes": self.waiting.passes}
        return Saved(self.cache.seen.here, document=self.cache.saved() | known)

    def restore(self, kept: Saved) -> None:
        assert kept.document is not None
        self.cache.restore(kept.document)
        self.cache.seen.here.update(kept.seen)
        self.new_token_ratio.restore(kept.document["ratio"])
        self.waiting.passes = kept.document["passes"]

    def private_pages(self) -> int:
        """Pages of running requests that are not in the tree."""
        return sum(-(-self.batch.computed(r) // self.b) - r.held for r in self.running)

    def check(self) -> None:
        """Raise AssertionError on an impossible state (after a plan, or at the end of a step)."""
        self.cache.check(self.private_pages())
        n, decodes, ended = len(self.batch.members), self.batch.decodes.n, len(self.batch.ended)
        if n != decodes + ended:
            raise AssertionError(f"running batch of {n}: {decodes} decode, {ended} have ended")
