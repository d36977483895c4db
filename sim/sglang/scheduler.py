"""The engine step of SGLang: a prefill batch whenever one can be formed, a decode of everybody otherwise.

The one idea: decodes advance together and only in decode steps, so sim.decodes keeps them as aggregates over the count
of decode steps. Between a rejected head of the queue (`full`) and the next finish nothing can change the batch, and a
stretch of decode steps is one event (docs/sglang.md has the rules).

    schedule()     decide one step: prefill if anything waiting fits (sim.sglang.admission), else decode, retracting
                   when memory
                   is short (sim.sglang.retraction)
    stretch()      how many decode steps from here nothing can change the batch
    fast_forward() take some of them at once
    complete()     sample, insert into the cache, finish and free at the end of the step
"""

from __future__ import annotations

from array import array

from sim.decodes import Decodes
from sim.kvcache.chains import Paths
from sim.kvcache.saved import Saved
from sim.kvcache.tiers import Tiers
from sim.log import RequestLog
from sim.scenario import EngineParams
from sim.sglang.admission import admit
from sim.sglang.node import RadixRequest
from sim.sglang.radix import RadixCache
from sim.sglang.ratio import NewTokenRatio
from sim.sglang.retraction import retract
from sim.sglang.waiting import Waiting


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
            cache, self.b, params.schedule_policy, params.priority_scheduling, refreshes, self._build, token_paths.build
        )
        self.waiting_tokens = 0
        self.running: dict[RadixRequest, None] = {}  # everybody admitted
        self.running_tokens = 0  # known tokens of the running requests, at the last completed step
        self.decoding: dict[RadixRequest, None] = {}  # SGLang's running batch, in its order
        self.decodes: Decodes[RadixRequest] = Decodes(self.b)
        self.sum_longest = 0  # of longest_step over them
        self.clipped = 0  # of them, those that asked for more than admission looks ahead
        self.ordered = 0  # places in the batch given out
        self.joined: list[RadixRequest] = []  # those since the last decode step
        self._prefilled: list[RadixRequest] = []  # by the last step; they join the decodes at the next
        self.chunked: RadixRequest | None = None  # in the middle of its prompt
        self.full = False  # no admission is tried until somebody leaves
        self._somebody_left = False
        self.new_token_ratio = NewTokenRatio(params)
        self.steps = 0
        self.decode_steps = 0
        self.last_decode = -1  # the number of the last decode step
        self.freed = False  # nobody lets go between two steps
        self.loading: list[RadixRequest] = []  # there are no cache tiers
        self.ahead = False
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
        self.waiting.add(request)
        return self.joins_next()

    def joins_next(self) -> bool:
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
        self.chunks = []
        self.preempted = []
        self.decoded = 0
        self.changed = self.steady = False
        self._evicted_before = self.cache.evicted
        somebody_left, self._somebody_left = self._somebody_left, False
        if somebody_left:
            self.full = False
        if self.chunked is not None:
            self._store(self.chunked)
        if self._prefilled and not self.decoding:
            self.full = False  # the prefill batch is the running batch now, with a flag of its own
        for r in self._prefilled:
            self._join(r)
        self._prefilled = []
        self.chunks = admit(self, now_s)
        if self.chunks:
            self._start_prefill()
        else:
            self._start_decode(now_s)
        return bool(self.decoded or self.chunks)

    def _join(self, r: RadixRequest) -> None:
        r.order = self.ordered
        self.ordered += 1
        r.decoding = True
        self.decoding[r] = None
        self.joined.append(r)
        self.decodes.join(r, self.decode_steps - r.computed)
        self.sum_longest += r.longest_step
        self.clipped += r.asked > self.p.clip_max_new_tokens

    def rearrange(self, decodes: list[RadixRequest]) -> None:
        """The batch is what is left of it, in this order."""
        self.decoding = dict.fromkeys(decodes)
        for r in decodes:
            r.order = self.ordered
            self.ordered += 1

    def leave(self, r: RadixRequest) -> None:
        """r decodes no more."""
        self.decodes.leave(r)
        r.computed = self.decode_steps - r.base
        r.decoding = False
        self.sum_longest -= r.longest_step
        self.clipped -= r.asked > self.p.clip_max_new_tokens

    def _store(self, r: RadixRequest) -> None:
        self.cache.store(r, r.computed // self.b, r.prompt // self.b)

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
            self.cache.take(-(-upto // b) - -(-r.computed // b))
            r.computed = upto
        self.steps += 1

    def _start_decode(self, now_s: float) -> None:
        decodes, cache = self.decodes, self.cache
        if not decodes.n:
            self.full = False
            return
        need = decodes.blocks_at(self.decode_steps)
        cache.make_room(need)
        if cache.blank < need:
            retract(self, now_s)
            need = decodes.blocks_at(self.decode_steps)
        else:
            self.new_token_ratio.decay(1)
        cache.make_room(decodes.n)  # a page for everybody, needed or not
        cache.take(need)
        self.steps += 1
        self.decode_steps += 1
        self.decoded = decodes.n
        self._note_gaps()
        self.last_decode = self.steps - 1
        self.steady = self.full or not self.waiting

    def _note_gaps(self) -> None:
        """Who decodes for the first time since its prefill: it may have waited for other prefills in between."""
        for r in self.joined:
            self.log.gaps.extend((r.id, r.gap_from, self.steps - 1))
            r.gap_from = -1
        self.joined.clear()

    # -- shape of the step ------------------------------------------------------------------------------------------
    def shape(self) -> tuple[list[tuple[int, int]], int, int, int, int]:
        """(chunks (new, cached), decodes, sum and maximum of their contexts, rows sampled): what the step time depends
        on."""
        if self.chunks:
            sampled = sum(1 for r, _ in self.chunks if r.computed == r.known)
            return [(tokens, r.computed - tokens) for r, tokens in self.chunks], 0, 0, 0, sampled
        n, steps, decodes = self.decoded, self.decode_steps, self.decodes
        return [], n, n * steps - decodes.sum_base, steps - decodes.min_base(), n

    # -- fast-forward -----------------------------------------------------------------------------------------------
    def stretch(self, most: int) -> int:
        """How many steps, this one included, run with this batch and without eviction (at least 1, at most `most`)."""
        if not self.steady or not self.decoded:
            return 1
        k = min(most, self.decodes.next_finish() - self.decode_steps + 1) - 1
        spare = self.cache.blank - self.decoded  # a step wants a page for everybody before it starts
        if k <= 0 or spare < 0:
            return 1
        return 2 + self.decodes.steps_that_fit(self.decode_steps, k - 1, spare)

    def fast_forward(self, k: int) -> None:
        """Take k more steps of the present stretch."""
        need = self.decodes.blocks_over(self.decode_steps, k)
        if need:
            self.cache.take(need)
        self.steps += k
        self.decode_steps += k
        self.new_token_ratio.decay(k)
        self.last_decode = self.steps - 1
        self.running_tokens += self.decodes.n * k

    # -- end of the step --------------------------------------------------------------------------------------------
    def finishing_now(self) -> bool:
        """Whether the present decode step samples somebody's last token."""
        return bool(self.decoded) and self.decode_steps in self.decodes.finishing

    def complete(self) -> list[int]:
        """Sample and free at the end of a step, in the order of the batch; the requests that finished."""
        finished = self._end_prefill() if self.chunks else self._end_decode()
        if finished:
            self._somebody_left = self.changed = True
        return finished

    def _end_prefill(self) -> list[int]:
        finished = []
        for r, _ in self.chunks:
            if r.preempted_at < 0:
                self.log.prefill_chunks[r.id] += 1
            if r.computed < r.known:
                continue
            self._sampled(r)
            if r.generated == r.output:
                self._finish(r)
                finished.append(r.id)
            else:
                self._store(r)
                self._prefilled.append(r)
        return finished

    def _sampled(self, r: RadixRequest) -> None:
        """A prefill reached its last known token: one more output."""
        step = self.steps - 1
        self.log.recomputed(r, r.computed)
        r.generated += 1
        self.running_tokens += 1
        if r.generated == 1:
            self.log.first_step[r.id] = step
        else:
            self.log.gaps.extend((r.id, r.gap_from, step))
        r.gap_from = step

    def _end_decode(self) -> list[int]:
        self.running_tokens += self.decoded
        leaving = self.decodes.finishing.pop(self.decode_steps, [])
        leaving.sort(key=lambda r: r.order)
        for r in leaving:
            self.leave(r)
            del self.decoding[r]
            self._finish(r)
        return [r.id for r in leaving]

    def _finish(self, r: RadixRequest) -> None:
        self._store(r)
        self.let_go(r)
        del self.running[r]
        self.running_tokens -= r.prompt + r.output
        self.log.last_step[r.id] = self.steps - 1

    # -- log and state ----------------------------------------------------------------------------------------------
    def announce(self, ends_s: array[float]) -> None:
        """Nothing: a stretch never has a chunk."""

    def begin_at(self, steps: int) -> None:
        self.steps = steps

    def unfinished(self) -> list[int]:
        return [r.id for r in self.running] + self.waiting.ids()

    def row_at_start(self, taken: int, evicted: int) -> None:
        """Keep who is in the step and how many are not, for `row_at_end`."""
        scheduled = [(r.id, n) for r, n in self.chunks] or [(r.id, 1) for r in self.decoding]
        self._scheduled = ("P" if self.chunks else "D", scheduled, len(self.waiting))

    def row_at_end(self) -> tuple:
        """The step just completed: P or D, scheduled, retracted, tokens evicted, available, evictable, protected,
        waiting."""
        cache, b = self.cache, self.b
        evicted = cache.evicted - self._evicted_before
        protected = cache.total - cache.blank - cache.idle - self.private_pages()
        kind, scheduled, waiting = self._scheduled
        return (
            kind,
            scheduled,
            list(self.preempted),
            evicted * b,
            cache.blank * b,
            cache.idle * b,
            protected * b,
            waiting,
        )

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
        return sum(
            -(-(self.decode_steps - r.base if r.decoding else r.computed) // self.b) - r.held for r in self.running
        )

    def check(self) -> None:
        """Raise AssertionError on an impossible state (after a step)."""
        self.cache.check(self.private_pages())
