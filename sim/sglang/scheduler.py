"""The engine step of SGLang: a prefill batch whenever one can be formed, a decode of everybody otherwise.

The one idea: decodes advance together and only in decode steps, so sim.decodes keeps them as aggregates over the count of
decode steps. Between a rejected head of the queue (`full`) and the next finish nothing can change the batch, and a
stretch of decode steps is one event (docs/sglang.md has the rules).

    schedule()     decide one step: prefill if anything waiting fits, else decode, retracting when memory is short
    stretch()      how many decode steps from here nothing can change the batch
    fast_forward() take some of them at once
    complete()     sample, insert into the cache, finish and free at the end of the step
"""
from __future__ import annotations

from collections.abc import Iterator

from sim.decodes import Decodes
from sim.kvcache.base import Paths
from sim.log import RequestLog
from sim.scenario import EngineParams
from sim.sglang.admission import CONTINUE, NO_TOKEN, OTHER, Adder
from sim.sglang.node import RadixRequest
from sim.sglang.radix import RadixCache
from sim.sglang.ratio import NewTokenRatio
from sim.sglang.waiting import Waiting


class SGLangScheduler:
    """One replica's queue, batches and step plan."""

    def __init__(self, params: EngineParams, cache: RadixCache, paths: Paths, token_paths: Paths, log: RequestLog) -> None:
        self.p = params
        self.b = params.block_size
        self._most_tokens = (params.kv_blocks - 1) * params.block_size - 1  # of a request that can be admitted
        self.cache = cache
        self.paths = paths
        self.log = log
        cache.clock += 2  # the tree that SGLang's orders keep of the waiting takes two ticks
        refreshes = params.caching and params.policy == "lru" and params.schedule_policy in ("fcfs", "lof")
        self.waiting = Waiting(cache, self.b, params.schedule_policy, params.priority_scheduling, refreshes, self._build, token_paths.build)
        self.waiting_tokens = 0
        self.running: dict[RadixRequest, None] = {}  # everybody admitted
        self.running_tokens = 0  # known tokens of the running requests, at the last completed step
        self.decoding: dict[RadixRequest, None] = {}  # SGLang's running batch, in its order
        self.decodes = Decodes(self.b)
        self.chunked: RadixRequest | None = None  # in the middle of its prompt
        self.full = False  # no admission is tried until somebody leaves
        self.freed = False  # nobody lets go between two steps
        self.steps = 0
        self.decode_steps = 0
        self._order = 0
        self._sum_longest = 0  # of longest_step over the decodes
        self._clipped = 0  # decodes that asked for more than admission looks ahead
        self._prefilled: list[RadixRequest] = []  # by the last step; they join the decodes at the next
        self._joined: list[RadixRequest] = []  # the decodes since the last decode step
        self._somebody_left = False
        self.new_token_ratio = NewTokenRatio(params)
        self._last_decode = -1  # its step number
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
        return not self.full

    def _build(self, request: int) -> RadixRequest:
        log = self.log
        prompt, output = log.prompt[request], log.output[request]
        r = RadixRequest(request, prompt, output, log.arrival_s[request], self.paths.build(request), log.priority[request])
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
        for r in self._prefilled:
            self._join(r)
        self._prefilled = []
        if self._admit(now_s):
            self._start_prefill()
        else:
            self._start_decode(somebody_left, now_s)
        return bool(self.decoded or self.chunks)

    def _join(self, r: RadixRequest) -> None:
        r.order = self._order
        self._order += 1
        r.decoding = True
        self.decoding[r] = None
        self._joined.append(r)
        self.decodes.join(r, self.decode_steps - r.computed)
        self._sum_longest += r.longest_step
        self._clipped += r.asked > self.p.clip_max_new_tokens

    def _leave(self, r: RadixRequest) -> None:
        self.decodes.leave(r)
        r.computed = self.decode_steps - r.base
        r.decoding = False
        self._sum_longest -= r.longest_step
        self._clipped -= r.asked > self.p.clip_max_new_tokens

    def _store(self, r: RadixRequest) -> None:
        self.cache.store(r, r.computed // self.b, r.prompt // self.b)

    # -- prefill ----------------------------------------------------------------------------------------------------
    def _admit(self, now_s: float) -> bool:
        """Form a prefill batch: the chunked request first, then the waiting in order until one does not fit."""
        waiting, most = self.waiting, self.p.max_num_seqs
        if (self.full or not waiting) and self.chunked is None:
            return False
        running = self.decodes.n
        if running >= most and self.chunked is None:
            self.full = True
            return False
        waiting.arrange()
        adder = self._adder()
        chunked, self.chunked = self.chunked, None
        if chunked is not None:
            self._continue(adder, chunked)
        state = CONTINUE if adder.chunk > 0 else OTHER
        while state == CONTINUE and waiting:
            if running + len(adder.batch) >= most:
                self.full = True
                break
            r = waiting.at(0)
            admitted = len(adder.batch)
            state = self._try(adder, r)
            if len(adder.batch) > admitted:
                waiting.pop()
                self._start(r, now_s)
            if state == NO_TOKEN:
                self.full = True
        self.chunks = adder.batch
        return bool(adder.batch)

    def _adder(self) -> Adder:
        p, clip, steps = self.p, self.p.clip_max_new_tokens, self.decode_steps

        def to_come() -> Iterator[int]:
            return (min(r.longest_step - steps, clip) for r in self.decoding)

        total = sum(to_come()) if self._clipped else self._sum_longest - self.decodes.n * steps
        return Adder(self.cache, self.b, p.chunked_prefill_size, p.max_prefill_tokens, total, self.new_token_ratio.value(), to_come)

    def _continue(self, adder: Adder, r: RadixRequest) -> None:
        limit = min(adder.chunk, adder.whole_room())
        if limit <= 0:
            limit = adder.chunk  # it must go on, or its memory would never come back
        remaining = r.known - r.computed
        if remaining > limit:
            self.chunked = r
            adder.take(r, limit, 0)
        else:
            adder.take(r, remaining, min(r.asked, self.p.clip_max_new_tokens))

    def _try(self, adder: Adder, r: RadixRequest) -> int:
        """Look r up and add it to the batch if it fits, cut to a chunk if it must be."""
        cache, b, clip = self.cache, self.b, self.p.clip_max_new_tokens
        limit = (r.known - 1) // b
        node = cache.match(r.path, limit) if cache.caching else cache.root
        hit = node.hi * b
        extend = r.known - hit
        cache.lock(node)  # what it would hit cannot be evicted for it
        if not adder.room_above(extend + min(r.asked - r.generated, clip) + b):
            cache.unlock(node)
            return NO_TOKEN
        if not adder.chunked and adder.batch and -(-extend // b) * b >= adder.input:
            cache.unlock(node)
            return OTHER
        decode = min(r.asked, clip)
        if -(-extend // b) * b > adder.chunk:
            extend, decode = adder.chunk // b * b, 0
            if extend <= 0:
                cache.unlock(node)
                return OTHER
            self.chunked = r
        self._record_hit(r, node.hi, limit)
        r.node, r.held, r.computed = node, node.hi, hit
        cache.admit(r)
        adder.take(r, extend, decode)
        return adder.state()

    def _record_hit(self, r: RadixRequest, hit: int, limit: int) -> None:
        log, b, i = self.log, self.b, r.id
        if r.preempted_at < 0:
            log.hit_tokens[i] = hit * b
            own, fleet = self.cache.ceilings(r.path, limit)
            log.ceiling_replica_tokens[i] = own * b
            log.ceiling_fleet_tokens[i] = fleet * b
        else:
            log.readmission_hit_tokens[i] += hit * b
            r.resumed_at = hit * b

    def _start(self, r: RadixRequest, now_s: float) -> None:
        if r.preempted_at < 0:
            self.log.admit_s[r.id] = now_s
        else:
            self.log.preempted_s[r.id] += now_s - r.preempted_at
        self.running[r] = None
        self.running_tokens += r.known
        self.waiting_tokens -= r.known
        self.changed = True

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

    # -- decode -----------------------------------------------------------------------------------------------------
    def _start_decode(self, somebody_left: bool, now_s: float) -> None:
        decodes, cache = self.decodes, self.cache
        if somebody_left or not decodes.n:
            self.full = False
        if not decodes.n:
            return
        need = decodes.blocks_at(self.decode_steps)
        cache.make_room(need)
        if cache.blank < need:
            self._retract(now_s)
            need = decodes.blocks_at(self.decode_steps)
        else:
            self.new_token_ratio.decay(1)
        cache.make_room(decodes.n)  # a page for everybody, needed or not
        cache.take(need)
        self.steps += 1
        self.decode_steps += 1
        self.decoded = decodes.n
        self._note_gaps()
        self._last_decode = self.steps - 1
        self.steady = self.full or not self.waiting

    def _retract(self, now_s: float) -> None:
        """Take requests out of the batch, fewest outputs first, until the rest has its pages; their KV is dropped."""
        steps, b, keep_ahead = self.decode_steps, self.b, self.p.retract_decode_steps
        order = sorted(self.decoding, key=self._retraction_key, reverse=True)
        pages = sum((steps - r.base) % b == 0 for r in order)
        first = True
        while len(order) > 1 and (first or not self._fits(pages)):
            first = False
            r = order.pop()
            pages -= (steps - r.base) % b == 0
            self._drop(r, now_s)
            self.cache.make_room(-(-len(order) * keep_ahead // b))
        self.full = False
        self.decoding = dict.fromkeys(order)
        for r in order:
            r.order = self._order
            self._order += 1
        sampled = sum(steps - r.base - r.prompt + 1 for r in order)
        self.new_token_ratio.set_after_retraction(sampled, sum(r.asked for r in order), keep_ahead * len(order))
        self.changed = True

    def _fits(self, pages: int) -> bool:
        self.cache.make_room(pages)
        return self.cache.blank >= pages

    def _retraction_key(self, r: RadixRequest) -> tuple[int, ...]:
        sampled = self.decode_steps - r.base - r.prompt + 1
        return (r.priority, sampled, -r.prompt) if self.p.retraction_policy == "priority" else (sampled, -r.prompt)

    def _drop(self, r: RadixRequest, now_s: float) -> None:
        self._leave(r)
        self._let_go(r)
        r.generated = r.computed - r.prompt + 1
        r.done_before = max(r.done_before, r.computed)
        r.computed = r.inserted = 0
        r.preempted_at = now_s
        if r.gap_from < 0:
            r.gap_from = self._last_decode
        else:
            self._joined.remove(r)
        del self.running[r]
        self.running_tokens -= r.known
        self.waiting_tokens += r.known
        self.waiting.put_last(r)
        self.log.preemptions[r.id] += 1
        self.preempted.append(r.id)

    def _let_go(self, r: RadixRequest) -> None:
        """Free its private pages and unlock its path."""
        self.cache.blank += -(-r.computed // self.b) - r.held
        self.cache.release(r)
        r.node, r.held = None, 0

    def _note_gaps(self) -> None:
        """Who decodes for the first time since its prefill: it may have waited for other prefills in between."""
        for r in self._joined:
            self.log.gaps.extend((r.id, r.gap_from, self.steps - 1))
            r.gap_from = -1
        self._joined.clear()

    # -- shape of the step ------------------------------------------------------------------------------------------
    def shape(self) -> tuple[list[tuple[int, int]], int, int, int, int]:
        """(chunks (new, cached), decodes, sum and maximum of their contexts, rows sampled): what the step time depends on."""
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
        self._last_decode = self.steps - 1
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
        if r.resumed_at >= 0:
            self.log.recomputed_tokens[r.id] += max(0, min(r.done_before, r.computed) - r.resumed_at)
            r.resumed_at = -1
        r.generated += 1
        self.running_tokens += 1
        if r.generated == 1:
            self.log.first_step[r.id] = step
        else:
            self.log.gaps.extend((r.id, r.gap_from, step))
        r.gap_from = step

    def _end_decode(self) -> list[int]:
        self.running_tokens += self.decoded
        leaving: list[RadixRequest] = self.decodes.finishing.pop(self.decode_steps, [])  # type: ignore[assignment]
        leaving.sort(key=lambda r: r.order)
        for r in leaving:
            self._leave(r)
            del self.decoding[r]
            self._finish(r)
        return [r.id for r in leaving]

    def _finish(self, r: RadixRequest) -> None:
        self._store(r)
        self._let_go(r)
        del self.running[r]
        self.running_tokens -= r.prompt + r.output
        self.log.last_step[r.id] = self.steps - 1

    # -- log --------------------------------------------------------------------------------------------------------
    def step_row(self) -> tuple:
        """The step just completed: P or D, scheduled, retracted, tokens evicted, available, evictable, protected, waiting."""
        cache, b = self.cache, self.b
        evicted = cache.evicted - self._evicted_before
        protected = cache.total - cache.blank - cache.idle - self.private_pages()
        kind, scheduled, waiting = self._scheduled
        return (kind, scheduled, list(self.preempted), evicted * b, cache.blank * b, cache.idle * b, protected * b, waiting)

    def note_scheduled(self) -> None:
        """Keep who is in the step and how many are not, for `step_row`."""
        scheduled = [(r.id, n) for r, n in self.chunks] or [(r.id, 1) for r in self.decoding]
        self._scheduled = ("P" if self.chunks else "D", scheduled, len(self.waiting))

    def private_pages(self) -> int:
        """Pages of running requests that are not in the tree."""
        return sum(-(-(self.decode_steps - r.base if r.decoding else r.computed) // self.b) - r.held for r in self.running)

    def check(self) -> None:
        """Raise AssertionError on an impossible state (after a step)."""
        self.cache.check(self.private_pages())
