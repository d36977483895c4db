"""The engine step of vLLM V1: running requests first, then waiting ones, over one token budget and paged blocks.

The one idea: decodes advance together. While every allocation succeeds a step costs O(1): `base = steps - computed` is
constant for a decoding request, so counters over it (sim.decodes) replace a loop over the batch. Only when memory or budget binds does a step walk the running list in
order, since then the victim depends on it (ENGINE_SEMANTICS 2a, rules 5-11; RUNS.md "When a step may not be O(1)").

    schedule()     decide one step: advance the running, admit the waiting
    stretch()      how many pure-decode steps from here nothing can change the batch
    fast_forward() take some of them at once
    complete()     sample, finish and free at the end of the step

With asynchronous scheduling a step is decided before the outputs of the one before it are known (rule 12). A count of tokens is no
secret, so only two things come a step later: a finished request keeps its blocks and its place (`ending`) while one more step is decided,
and a block that its last token has filled enters the cache with the next one (BlockCache.lag).
"""
from __future__ import annotations

from array import array

from sim.decodes import Decodes
from sim.kvcache.base import BlockCache, Paths
from sim.kvcache.tiers import Tiers
from sim.loading import PREFETCH_AHEAD, Loader
from sim.log import RequestLog
from sim.request import Request
from sim.scenario import EngineParams
from sim.waiting import QUEUES


class Scheduler:
    """One replica's queues, running batch and step plan."""

    def __init__(self, params: EngineParams, cache: BlockCache, paths: Paths, log: RequestLog, tiers: Tiers | None = None) -> None:
        self.p = params
        self.b = params.block_size
        self.cache = cache
        self.paths = paths
        self.log = log
        self.tiers = tiers
        self.loader = None if tiers is None else Loader(tiers, cache, log)
        self.prefetches = self.loader is not None and self.loader.prefetches
        self.by_priority = params.scheduler_policy == "priority"
        self.by_computed = params.preemption_victim == "lcf"
        cache.lag = int(params.async_scheduling)
        self.watermark = int(params.watermark * (params.kv_blocks + 1))
        self.waiting = QUEUES[params.scheduler_policy](self._build)
        self.waiting_tokens = 0
        self.running: dict[Request, None] = {}  # in admission order
        self.running_tokens = 0  # known tokens of the running requests, at the last completed step
        self.prefills: list[Request] = []  # running, not decoding; in running order
        self.loading: list[Request] = []  # running, but what they load from cache tiers has not arrived
        self.loras: dict[int, int] = {}
        self.steps = 0
        self._order = 0
        self.decodes = Decodes(self.b)
        # the present step
        self.chunks: list[tuple[Request, int]] = []
        self.decoded = 0
        self.decoded_base = 0  # sum of base over the decodes of this step
        self.preempted: list[int] = []
        self.changed = False
        self.steady = False
        self.left_out: list[Request] = []
        self.ending: list[Request] = []  # asynchronous: finished, but the next step is decided before anybody knows
        self.freed = False  # it let go after the step was decided
        # the head of the queue, when it did not fit
        self.blocked: Request | None = None
        self.blocked_need = 0
        self.blocked_written = False

    # -- queue ------------------------------------------------------------------------------------------------------
    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def submit(self, request: int) -> bool:
        """Queue a request. True when the present decode stretch must be cut for it."""
        self.waiting_tokens += self.log.prompt[request]
        cut = self.waiting.add(request)
        return cut or (self.prefetches and (self.by_priority or len(self.waiting) <= PREFETCH_AHEAD))

    def _build(self, request: int) -> Request:
        log = self.log
        return Request(
            request, log.prompt[request], log.output[request], log.arrival_s[request], self.paths.build(request), log.priority[request], log.lora[request]
        )

    # -- one step ---------------------------------------------------------------------------------------------------
    def schedule(self, now_s: float) -> bool:
        """Decide one step; False when nothing could be scheduled (then it was no step)."""
        self.chunks = []
        self.preempted = []
        self.changed, self.freed = self.freed, False
        self.steady = False
        if self.loading:
            self._take_in(now_s)
        budget = self.p.max_num_batched_tokens
        threshold = self.p.long_prefill_token_threshold if len(self.running) + len(self.waiting) > 1 else 0
        wants = self._fits_at_once(budget, threshold)
        if wants is None:
            budget = self._advance_in_order(now_s, budget, threshold)
        else:
            budget = self._advance_together(wants, budget)
        if not self.preempted:
            self._admit(now_s, budget, threshold)
        if self.loader is not None and self.prefetches and self.loader.prefetch(self.waiting, now_s):
            self.changed = True
            self.steady = False
        if self.decoded or self.chunks:
            return True
        if not self.preempted:
            self.steps = self.cache.steps = self.steps - 1  # it was no step
        if self.cache.lag:
            self._learn()
        return False

    def _fits_at_once(self, budget: int, threshold: int) -> list[tuple[Request, int]] | None:
        """The prefill chunks of a step in which every running request gets all it asks for; None when some do not."""
        n = self.decodes.n
        need = self.decodes.blocks_at(self.steps)
        left = budget - n
        if left < 0 or self.left_out or self.cache.overlapped:
            return None
        wants: list[tuple[Request, int]] = []
        if self.prefills:
            if next(reversed(self.running)) is not self.prefills[0]:
                return None  # more than one, or decodes behind it: order matters
            (r,) = self.prefills
            want = min(r.known - r.computed, threshold or left, left)
            if want:
                wants.append((r, want))
                need += -(-(r.computed + want) // self.b) - r.held
        return wants if need <= self.cache.free else None

    def _advance_together(self, wants: list[tuple[Request, int]], budget: int) -> int:
        need = self.decodes.blocks_at(self.steps)
        if need:
            self.cache.take(need)
        self.steps += 1
        self.cache.steps = self.steps
        self.decoded = self.decodes.n
        self.decoded_base = self.decodes.sum_base
        budget -= self.decoded
        for r, want in wants:
            self._allocate(r, want)
            budget -= want
        return budget

    def _allocate(self, r: Request, tokens: int) -> None:
        self.chunks.append((r, tokens))
        self._fill(r, tokens)

    def _fill(self, r: Request, tokens: int) -> None:
        """Blocks for the next `tokens` of a prefilling request; its full blocks enter the cache now, before they are computed."""
        need = self._blocks_to(r, r.computed + tokens)
        self.cache.take(need)
        r.held += need
        r.computed += tokens
        full = r.computed // self.b
        if full > r.entered:
            self.cache.enter(r, full)

    def _blocks_to(self, r: Request, computed: int) -> int:
        """Blocks a prefilling request still needs for so many computed tokens."""
        return -(-computed // self.b) - r.held

    def _advance_in_order(self, now_s: float, budget: int, threshold: int) -> int:
        """The same for one request after the other, preempting when memory runs out."""
        self.decoded = self.decoded_base = 0
        for r in list(self.running):
            if budget <= 0:
                break
            if r not in self.running or r.ready_s > now_s or r.finished:
                continue  # preempted on the way, or loading, or ending
            remaining = r.known - r.computed
            want = 1 if r.decoding else min(remaining, threshold or remaining, budget)
            budget, fits = self._make_room(r, want, now_s, budget)
            if fits:
                budget -= want
                self._advance_one(r, want)
        if self.decoded or self.chunks or not self.preempted:
            self._settle()
        return budget

    def _make_room(self, r: Request, want: int, now_s: float, budget: int) -> tuple[int, bool]:
        """Preempt until `want` more tokens of r fit, or r itself is gone."""
        cache, b = self.cache, self.b
        while True:
            computed = self.steps - r.base if r.decoding else r.computed
            held = -(-computed // b) if r.decoding else r.held
            need = -(-(computed + want) // b) - held
            if need <= cache.free:
                return budget, True
            victim = self._victim()
            budget += self._take_back(victim)
            self._preempt(victim, now_s)
            if victim is r:
                return budget, False

    def _victim(self) -> Request:
        """Whom to preempt: the last admitted, the least urgent, or who loses the fewest computed tokens (vLLM PR 53723)."""
        if self.by_computed:
            given = dict(self.chunks)
            return min(self.running, key=lambda v: self.steps - v.base if v.decoding else v.computed - given.get(v, 0))
        if self.by_priority:
            return max(self.running, key=lambda v: v.urgency)
        return next(reversed(self.running))

    def _advance_one(self, r: Request, want: int) -> None:
        if not r.decoding:
            self._allocate(r, want)
            return
        if (self.steps - r.base) % self.b == 0:
            self.cache.take(1)
        r.ahead = 1
        if self.cache.lag and r.gap_from >= 0:
            self.cache.enter_to(r, (self.steps + 1 - r.base) // self.b)  # it was left out: none of its outputs is in flight
        elif r in self.cache.overlapped:
            self.cache.enter_generated(r)
        self.decoded += 1
        self.decoded_base += r.base

    def _take_back(self, victim: Request) -> int:
        """Tokens of this step a victim had already been given (not when it is the last admitted)."""
        if victim.ahead:
            self.decoded -= 1
            self.decoded_base -= victim.base
            return 1
        for i, (r, tokens) in enumerate(self.chunks):
            if r is victim:
                del self.chunks[i]
                r.computed -= tokens
                return tokens
        return 0

    def _settle(self) -> None:
        """End a step in order: decodes left out of it are shifted by one step, the others have advanced."""
        decodes = [r for r in self.running if r.decoding]
        self.left_out = [r for r in decodes if not r.ahead]
        for r in self.left_out:  # before any base moves: the order of entry depends on it
            self.cache.enter_generated(r)
            if r.gap_from < 0:
                r.gap_from = self.steps - 1
        for r in self.left_out:
            self.decodes.leave(r)
            self.decodes.join(r, r.base + 1)
        self.steps += 1
        self.cache.steps = self.steps
        for r in decodes:
            if r.ahead and r.gap_from >= 0:
                self.log.gap(r.id, r.gap_from, self.steps - 1)
                r.gap_from = -1
            r.ahead = 0

    def _preempt(self, r: Request, now_s: float) -> None:
        """Recompute preemption: blocks are freed (and stay cached), outputs are kept, the request goes first in the queue."""
        self.log.preemptions[r.id] += 1
        self.preempted.append(r.id)
        self.changed = True
        if r.finished:
            self._let_go_of(r)
            self.waiting.put_back(r)  # until its last output is known
            return
        if r.decoding:
            computed = self.steps - r.base
            self.cache.release(self._synced(r))
            self.decodes.leave(r)
            r.generated = computed - r.prompt + 1
            if r.gap_from < 0:
                r.gap_from = self.steps - 1
            r.decoding = False
        else:
            computed = r.computed
            self.cache.release(r)
            (self.loading if r.ready_s > now_s else self.prefills).remove(r)
        r.ahead = 0
        del self.running[r]
        self._drop_lora(r)
        self.running_tokens -= r.known
        self.waiting_tokens += r.known
        self._book_recomputed(r, computed)
        r.done_before = max(r.done_before, computed)
        r.computed = 0
        r.preempted_at = now_s
        self.waiting.put_back(r)

    def _synced(self, r: Request) -> Request:
        """`held` of a decode is only kept up to date here: it is implied by what it has computed."""
        r.held = -(-(self.steps + r.ahead - r.base) // self.b)
        return r

    # -- admission --------------------------------------------------------------------------------------------------
    def _admit(self, now_s: float, budget: int, threshold: int) -> None:
        """Waiting requests in order, until one does not fit."""
        p, skipped = self.p, []
        while budget > 0 and len(self.running) < p.max_num_seqs and len(self.waiting):
            r = self.waiting.head()
            if r is self.blocked and self.running and not self.blocked_written and p.reserve_full_isl and self.cache.free < self.blocked_need:
                break  # its need cannot have shrunk: nobody computes what it asks for
            if r.lora >= 0 and p.max_loras and r.lora not in self.loras and len(self.loras) >= p.max_loras:
                self.waiting.pop()
                skipped.append(r)
                continue
            chunk = self._fit(r, budget, threshold, now_s)
            if not chunk:
                break
            self.waiting.pop()
            budget -= self._start(r, chunk, now_s)
        for r in reversed(skipped):
            self.waiting.put_back(r)
        waiting = len(self.waiting)
        at_limit = len(self.running) >= p.max_num_seqs
        same_need = p.reserve_full_isl or self.loader is None  # a load takes all its blocks at once, and what can be loaded changes
        held_up = not waiting or at_limit or (self.blocked is self.waiting.head() and not self.blocked_written and same_need)
        busy = self.chunks or self.prefills or self.left_out or skipped or self.cache.overlapped or self.ending
        self.steady = held_up and not busy

    def _fit(self, r: Request, budget: int, threshold: int, now_s: float) -> int:
        """Look r up and pin its hits when it fits: the tokens of its first chunk, 0 when it does not fit."""
        cache, b = self.cache, self.b
        limit = (r.known - 1) // b
        hit, idle, handles = cache.lookup(r.path, limit)
        load = self.loader.plan(r, hit, limit, now_s) if self.loader is not None else None
        start = hit + load.total if load is not None else hit
        remaining = r.known - start * b
        chunk = min(remaining, threshold or remaining, budget)
        reserve = self.watermark if self.running else 0
        upto = r.known if self.p.reserve_full_isl else start * b + chunk
        need = -(-upto // b) - hit + idle + reserve
        if need > cache.free:
            self.blocked, self.blocked_need = r, need
            self.blocked_written = cache.being_written(r.path)
            return 0
        self.blocked = None
        self._record_hit(r, start, limit)
        cache.acquire(r, handles)
        if self.loader is not None:
            self.loader.load(r, hit, load, now_s)
        r.computed = start * b
        return chunk

    def _record_hit(self, r: Request, hit: int, limit: int) -> None:
        log, b, i = self.log, self.b, r.id
        if r.preempted_at < 0:
            log.hit_tokens[i] = hit * b
            own, fleet = self.cache.ceilings(r.path, hit, limit)
            log.ceiling_replica_tokens[i] = own * b
            log.ceiling_fleet_tokens[i] = fleet * b
        else:
            log.readmission_hit_tokens[i] += hit * b
            r.resumed_at = hit * b

    def _start(self, r: Request, chunk: int, now_s: float) -> int:
        """Give r a place in the batch; the tokens of its first chunk, 0 while it loads."""
        log = self.log
        if r.preempted_at < 0:
            log.admit_s[r.id] = now_s
        else:
            log.preempted_s[r.id] += now_s - r.preempted_at
        r.order = self._order
        self._order += 1
        self.running[r] = None
        self.running_tokens += r.known
        self.waiting_tokens -= r.known
        if r.lora >= 0:
            self.loras[r.lora] = self.loras.get(r.lora, 0) + 1
        self.changed = True
        if r.ready_s > now_s:
            self.loading.append(r)
            chunk = 0
        else:
            self.prefills.append(r)
            self._allocate(r, chunk)
        self.cache.start_writing(r)
        return chunk

    def _drop_lora(self, r: Request) -> None:
        if r.lora >= 0:
            self.loras[r.lora] -= 1
            if not self.loras[r.lora]:
                del self.loras[r.lora]

    # -- cache tiers ------------------------------------------------------------------------------------------------
    def _take_in(self, now_s: float) -> None:
        """Requests whose loads have arrived prefill from this step on, in their place in the running order."""
        ready = [r for r in self.loading if r.ready_s <= now_s]
        for r in ready:
            self.loading.remove(r)
        self.prefills += ready
        self.prefills.sort(key=lambda r: r.order)

    # -- shape of the step ------------------------------------------------------------------------------------------
    def shape(self) -> tuple[list[tuple[int, int]], int, int, int, int]:
        """(chunks (new, cached), decodes, sum and maximum of their contexts, rows sampled): what the step time depends on."""
        chunks = [(tokens, r.computed - tokens) for r, tokens in self.chunks]
        n = self.decoded
        sampled = n + sum(1 for r, _ in self.chunks if r.computed == r.known)
        if not n:
            return chunks, 0, 0, 0, sampled
        return chunks, n, n * self.steps - self.decoded_base, self.steps - self._min_base(), sampled

    def _min_base(self) -> int:
        """Smallest base of the decodes of this step: the longest context."""
        if self.left_out:
            out = set(self.left_out)
            return min(r.base for r in self.running if r.decoding and r not in out)
        return self.decodes.min_base()

    # -- fast-forward -----------------------------------------------------------------------------------------------
    def stretch(self, most: int) -> int:
        """How many steps, this one included, run with this batch and no shortage of memory (at least 1, at most `most`).

        Their decodes are the same, and so is their chunk, if any: a prompt that takes all the budget the decodes leave.
        """
        decodes = self.decodes
        if decodes.n:
            most = min(most, decodes.next_finish() - self.steps + 1)
        if most == 1 or self.chunks:
            return 1 if most == 1 else self._prefill_stretch(most)
        if not self.steady or not decodes.n:
            return 1
        return 1 + decodes.steps_that_fit(self.steps, most - 1, self.cache.free)

    def _prefill_stretch(self, most: int) -> int:
        """The same with one chunk in the step: nobody else is admitted while it leaves no budget."""
        p, (r, tokens) = self.p, self.chunks[-1]
        if tokens + self.decodes.n != p.max_num_batched_tokens or self.decoded != self.decodes.n or r.known - r.computed <= tokens:
            return 1
        if self.prefills != [r] or next(reversed(self.running)) is not r or p.long_prefill_token_threshold or self.loader is not None:
            return 1
        if self.left_out or self.ending or self.cache.lag or self.cache.overlapped or not self.cache.has_way_clear(r):
            return 1
        k = min(most - 1, (r.known - r.computed - 1) // tokens)
        while self.decodes.blocks_over(self.steps, k) + self._blocks_to(r, r.computed + k * tokens) > self.cache.free:
            k -= 1
        return 1 + k

    def announce(self, ends_s: array[float]) -> None:
        """A stretch has begun whose steps end then. What other replicas may ask of it before it is over is said now."""
        for r, tokens in self.chunks:
            self.cache.announce(r, r.computed, tokens, ends_s)

    def fast_forward(self, k: int) -> None:
        """Take k more steps of the present stretch."""
        need = self.decodes.blocks_over(self.steps, k)
        if need:
            self.cache.take(need)
        self.steps = self.cache.steps = self.steps + k
        self.running_tokens += self.decodes.n * k
        for r, tokens in self.chunks:
            self.cache.arrived()
            self._fill(r, k * tokens)
            if r.preempted_at < 0:
                self.log.prefill_chunks[r.id] += k

    # -- end of the step --------------------------------------------------------------------------------------------
    def finishing_now(self) -> bool:
        """Whether a decode lets go at the end of the present step."""
        return self.steps in self.decodes.finishing or bool(self.ending)

    def complete(self) -> list[int]:
        """Sample and free at the end of a step, in running order; the requests that finished."""
        if self.cache.lag:
            self._learn()
        finished = self.decodes.finishing.pop(self.steps, [])
        self.running_tokens += self.decoded
        for r, _ in self.chunks:
            if r.preempted_at < 0:
                self.log.prefill_chunks[r.id] += 1
            if r.computed < r.known:
                continue
            self.prefills.remove(r)
            self._sampled(r)
            if r.generated == r.output:
                finished.append(r)
            else:
                r.decoding = True
                self.decodes.join(r, self.steps - r.computed)
                self.cache.begin_decode(r)
        if not finished:
            return []
        if len(finished) > 1:
            finished.sort(key=lambda r: r.order)
        for r in finished:
            self._finish(r)
        self.changed = True
        return [r.id for r in finished]

    def _sampled(self, r: Request) -> None:
        """A prefill reached its last known token: one more output."""
        self._book_recomputed(r, r.computed)
        r.generated += 1
        self.running_tokens += 1
        step = self.steps - 1
        if r.generated == 1:
            self.log.first_step[r.id] = step
        elif r.gap_from >= 0:
            self.log.gap(r.id, r.gap_from, step)
        r.gap_from = -1

    def _book_recomputed(self, r: Request, computed: int) -> None:
        """Tokens this admission computed a second time, once it has caught up or is preempted again."""
        if r.resumed_at >= 0:
            self.log.recomputed_tokens[r.id] += max(0, min(r.done_before, computed) - r.resumed_at)
            r.resumed_at = -1

    def _finish(self, r: Request) -> None:
        if r.decoding:
            self.decodes.leave(self._synced(r))
        self._drop_lora(r)
        self.running_tokens -= r.prompt + r.output
        self.log.last_step[r.id] = self.steps - 1
        if self.cache.lag:
            self._end(r)
            return
        self.cache.release(r)
        r.decoding = False
        del self.running[r]

    # -- asynchronous scheduling ------------------------------------------------------------------------------------
    def _end(self, r: Request) -> None:
        """It has sampled its last output; the next step is decided before anybody knows."""
        self.cache.enter_generated(r)
        self.cache.overlapped.discard(r)
        r.computed = r.prompt + r.output - 1
        r.finished, r.decoding = True, False
        self.ending.append(r)

    def _learn(self) -> None:
        """The outputs of the step before the one just decided become known, in running order."""
        for r in sorted((*self.ending, *self.left_out), key=lambda r: r.order):
            if r in self.running:
                self.cache.enter_to(r, (r.computed if r.finished else self.steps - r.base) // self.b)
                if r.finished:
                    self._let_go_of(r)
            elif r.finished:  # preempted meanwhile
                self.waiting.remove(r)
        self.ending.clear()

    def _let_go_of(self, r: Request) -> None:
        self.cache.release(r)
        del self.running[r]
        self.freed = True
