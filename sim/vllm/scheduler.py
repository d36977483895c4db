"""The engine step of vLLM V1: running requests first, then waiting ones, over one token budget and paged blocks.

The one idea: decodes advance together. While every allocation succeeds a step costs O(1): `base = steps - computed` is
constant for a decoding request, so counters over it (sim.decodes) replace a loop over the batch. Only when memory or
budget binds does a step walk the running list in order, since then the victim depends on it (ENGINE_SEMANTICS 2a, rules
5-11; RUNS.md "When a step may not be O(1)").

    schedule()     decide one step: advance the running (sim.vllm.preemption when memory binds), admit the waiting
                   (sim.vllm.admission)
    stretch()      how many steps from here nothing can change the batch (sim.vllm.stretches)
    fast_forward() take some of them at once
    complete()     sample, finish and free at the end of the step (asynchronous: when the next is decided, in_flight)
"""

from __future__ import annotations

from array import array

from sim.decodes import Decodes
from sim.kvcache.base import BlockCache
from sim.kvcache.chains import Paths
from sim.kvcache.saved import Saved, fill, save
from sim.kvcache.tiers import Tiers
from sim.log import RequestLog
from sim.request import Request
from sim.scenario import EngineParams
from sim.tenants import tenants_of, weights_of
from sim.vllm import admission, in_flight, preemption, stretches
from sim.vllm.adapters import Resident
from sim.vllm.fair import FairQueue
from sim.vllm.loading import PREFETCH_AHEAD, Loader
from sim.vllm.waiting import EXPERIMENTS, QUEUES


class VllmScheduler:
    """One replica's queues, running batch and step plan."""

    def __init__(
        self, params: EngineParams, cache: BlockCache, paths: Paths, log: RequestLog, tiers: Tiers | None = None
    ) -> None:
        self.p = params
        self.b = params.block_size
        self.cache = cache
        self.paths = paths
        self.log = log
        self.tiers = tiers
        self.loader = None if tiers is None else Loader(tiers, cache, log)
        self.prefetches = self.loader is not None and self.loader.prefetches
        self.by_priority = params.scheduler_policy == "priority"
        self.reorders = params.scheduler_policy in EXPERIMENTS  # whoever arrives may be the next
        self.ahead = params.async_scheduling and params.calls_ahead
        cache.lag = int(params.async_scheduling)
        self.most_running = params.max_num_active_seqs or params.max_num_seqs
        self.watermark = int(params.watermark * (params.kv_blocks + 1))
        self.fair = self._fair_queue() if params.scheduler_policy == "vtc" else None
        self.waiting = QUEUES[params.scheduler_policy](self._build) if self.fair is None else self.fair
        self.waiting_tokens = 0
        self.running: dict[Request, None] = {}  # in admission order
        self.running_tokens = 0  # known tokens of the running requests, at the last completed step
        self.decodes: Decodes[Request] = Decodes(self.b)  # of them, those decoding
        self.prefills: list[Request] = []  # those that are not; in running order
        self.loading: list[Request] = []  # and those whose loads from cache tiers have not arrived
        self.loras: dict[int, int] = {}  # adapter -> running requests that use it
        self.adapters = None if params.adapters is None else Resident(params.adapters)
        self.stall_s = 0.0  # what the present step waits for adapters
        self.steps = 0
        self.admitted = 0  # requests, since the start
        # the present step
        self.now_s = 0.0
        self.budget = 0  # tokens left
        self.threshold = 0  # longest chunk while others are there; 0: any
        self.deferring = False  # no prompt is computed
        self.left_waiting = False  # by the last step that might compute any
        self.executed = 0  # steps
        self.last_prefill = -params.prefill_schedule_interval  # of them, the last that computed prompts
        self.carries_prompts = False  # the present one does
        self.chunks: list[tuple[Request, int]] = []  # prefill tokens
        self.decoded = 0
        self.decoded_base = 0  # sum of base over the decodes of this step
        self.left_out: list[Request] = []  # decodes that are not in it
        self.preempted: list[int] = []
        self.changed = False  # the batch
        self.steady = False  # nothing is admitted before somebody finishes or arrives
        self.ending: list[Request] = []  # asynchronous: finished, but the next step is decided before anybody knows
        self.freed = False  # somebody let go just after the step was decided
        self.sizes = (0, 0, 0)  # blocks free, requests running and waiting when it was decided
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
        first = self.waiting.add(request)
        loads = self.prefetches and (self.by_priority or len(self.waiting) <= PREFETCH_AHEAD)
        return (first or loads or self.reorders) and self._has_room()

    def joins_next(self) -> bool:
        anybody = self.by_priority or self.reorders or self.prefetches
        return (anybody or not len(self.waiting)) and self._has_room()

    def _has_room(self) -> bool:
        """Not when chunks take all of the budget, nor when all sequences run and nothing is loaded ahead."""
        return not self.chunks and (len(self.running) < self.most_running or self.prefetches)

    def _fair_queue(self) -> FairQueue:
        tenant, names = tenants_of(self.log.workload)
        return FairQueue(self._build, tenant.data, weights_of(names, self.p.tenant_weights))

    def _build(self, request: int) -> Request:
        log = self.log
        return Request(
            request,
            log.prompt[request],
            log.output[request],
            log.arrival_s[request],
            self.paths.build(request),
            log.priority[request],
            log.lora[request],
        )

    # -- one step ---------------------------------------------------------------------------------------------------
    def schedule(self, now_s: float) -> bool:
        """Decide one step; False when nothing could be scheduled (then it was no step)."""
        some = self._decide(now_s)
        self.sizes = (self.cache.free, len(self.running), len(self.waiting))
        if self.cache.lag and (self.ending or self.left_out):
            in_flight.learn(self)
        return some

    def _decide(self, now_s: float) -> bool:
        self._begin(now_s)
        chunks = self._chunks_if_all_fit()
        if chunks is not None:
            self._advance_together(chunks)
        else:
            preemption.advance_in_order(self)
        if not self.preempted:
            self.admit()
        if self.loader is not None and self.prefetches and self.loader.prefetch(self.waiting, now_s):
            self.changed, self.steady = True, False
        if self.decoded or self.chunks:
            self.executed += 1
            if self.carries_prompts:
                self.last_prefill = self.executed
            return True
        if not self.preempted:
            self.steps = self.cache.steps = self.steps - 1  # it was no step
        if self.tiers is not None:
            self.tiers.settle()
        return False

    def _begin(self, now_s: float) -> None:
        self.now_s = now_s
        self.chunks = []
        self.preempted = []
        self.changed = self.freed = False
        self.steady = False
        self.stall_s = 0.0
        self.budget = self.p.max_num_batched_tokens
        self.threshold = self._threshold() if self.p.long_prefill_token_threshold else 0
        self.carries_prompts = False
        self.deferring = self.p.prefill_schedule_interval > 1 and self._defers()
        if self.loading:
            self._take_in(now_s)

    def _threshold(self) -> int:
        """The longest chunk of this step, 0: any. Alone a request keeps nobody waiting."""
        threshold = self.p.long_prefill_token_threshold
        if not threshold:
            return 0
        present = len(self.running) + len(self.waiting)
        if present < 2:
            return 0
        return max(threshold, self.budget // present) if self.p.long_prefill_token_threshold_adaptive else threshold

    def _defers(self) -> bool:
        """Whether this step leaves prompts to a later one, for the decodes' sake: so many steps have not passed since
        one that computed some, and its like left nobody waiting."""
        soon = self.executed + 1 - self.last_prefill < self.p.prefill_schedule_interval
        return soon and not self.left_waiting and bool(self.decodes.n or self.ending)

    def _take_in(self, now_s: float) -> None:
        """Requests whose loads have arrived prefill from this step on, in their place in the running order."""
        ready = [r for r in self.loading if r.ready_s <= now_s]
        for r in ready:
            self.loading.remove(r)
        self.prefills += ready
        self.prefills.sort(key=lambda r: r.order)

    def _chunks_if_all_fit(self) -> list[tuple[Request, int]] | None:
        """The prefill chunks of a step in which every running request gets all it asks for; None when some do not."""
        need = self.decodes.blocks_at(self.steps)
        left = self.budget - self.decodes.n
        if left < 0 or self.left_out or self.cache.overlapped:
            return None
        chunks: list[tuple[Request, int]] = []
        if self.prefills and not self.deferring:
            if next(reversed(self.running)) is not self.prefills[0]:
                return None  # more than one, or decodes behind it: order matters
            (r,) = self.prefills
            tokens = min(r.known - r.computed, self.threshold or left, left)
            if tokens:
                chunks.append((r, tokens))
                need += self.blocks_to(r, r.computed + tokens)
        return chunks if not need or need <= self.cache.free else None

    def _advance_together(self, chunks: list[tuple[Request, int]]) -> None:
        need = self.decodes.blocks_at(self.steps)
        if need:
            self.cache.take(need)
        self.steps = self.cache.steps = self.steps + 1
        self.decoded = self.decodes.n
        self.decoded_base = self.decodes.sum_base
        self.budget -= self.decoded
        for r, tokens in chunks:
            self.budget -= tokens
            self.carries_prompts = True
            self.allocate(r, tokens)

    def chunk(self, remaining: int) -> int:
        """How many of a prompt's `remaining` tokens this step computes."""
        return min(remaining, self.threshold or remaining, self.budget)

    def admit(self) -> None:
        """Waiting requests into the step."""
        admission.admit(self)

    def fit(self, r: Request) -> int:
        """Give the head of the queue what it needs when that fits: the tokens of its first chunk, 0 when it does
        not."""
        return admission.fit(self, r)

    def first_chunk(self, known: int, start: int) -> int:
        """The tokens of a request that is admitted with so many of its known ones in the cache."""
        return self.chunk(known - start)

    def allocate(self, r: Request, tokens: int) -> None:
        """A prefill chunk of r in this step."""
        self.chunks.append((r, tokens))
        self.fill(r, tokens)

    def reach(self, tokens: int) -> int:
        """Tokens for which a request that has computed so many must have blocks."""
        return tokens

    def fill(self, r: Request, tokens: int) -> None:
        """Blocks for the next `tokens` of a prefilling request; its full blocks enter the cache now, before they are
        computed."""
        need = self.blocks_to(r, r.computed + tokens)
        self.cache.take(need)
        r.held += need
        r.computed += tokens
        full = r.computed // self.b
        if full > r.entered:
            self.cache.enter(r, full)

    def blocks_to(self, r: Request, computed: int) -> int:
        """Blocks a prefilling request still needs for so many computed tokens."""
        return -(-computed // self.b) - r.held

    # -- shape of the step, and more of the same --------------------------------------------------------------------
    def shape(self) -> tuple[list[tuple[int, int]], int, int, int, int]:
        """(chunks (new, cached), decodes, sum and maximum of their contexts, rows sampled): what the step time depends
        on."""
        n = sampled = self.decoded
        chunks: list[tuple[int, int]] = []
        for r, tokens in self.chunks:
            chunks.append((tokens, r.computed - tokens))
            sampled += r.computed == r.known
        if not n:
            return chunks, 0, 0, 0, sampled
        return chunks, n, n * self.steps - self.decoded_base, self.steps - self._min_base(), sampled

    def _min_base(self) -> int:
        """Smallest base of the decodes of this step: the longest context."""
        if self.left_out:
            out = set(self.left_out)
            return min(r.base for r in self.running if r.decoding and r not in out)
        return self.decodes.min_base()

    def stretch(self, most: int) -> int:
        """How many steps, this one included, run with this batch and no shortage of memory (at least 1, at most
        `most`)."""
        return stretches.plan(self, most)

    def announce(self, ends_s: array[float]) -> None:
        """A stretch with a chunk has begun whose steps end then."""
        stretches.announce(self, ends_s)

    def fast_forward(self, k: int) -> None:
        """Take k more steps of the present stretch."""
        stretches.take(self, k)

    def write_out(self) -> None:
        """Enter what decodes have generated."""
        for r in self.running:
            self.cache.enter_generated(r)

    # -- end of the step --------------------------------------------------------------------------------------------
    def finishing_now(self) -> bool:
        """Whether a decode lets go at the end of the present step."""
        return self.steps in self.decodes.finishing

    def complete(self) -> list[int]:
        """Sample and free at the end of a step, in running order; the requests that finished."""
        finished = self.decodes.finishing.pop(self.steps, [])
        self.running_tokens += self.decoded
        for r, _ in self.chunks:
            if r.preempted_at < 0:
                self.log.prefill_chunks[r.id] += 1
            if r.computed == r.known:
                self.prefills.remove(r)
                self._sample(r)
                if r.generated == r.output:
                    finished.append(r)
                else:
                    self._decode(r)
        if len(finished) > 1:
            finished.sort(key=lambda r: r.order)
        for r in finished:
            self._finish(r)
            self.changed = True
        if self.tiers is not None:
            self.tiers.settle()
        return [r.id for r in finished] if finished else []

    def _sample(self, r: Request) -> None:
        """A prefill reached its last known token: one more output."""
        self.log.recomputed(r, r.computed)
        r.generated += 1
        self.running_tokens += 1
        step = self.steps - 1
        if r.generated == 1:
            self.log.first_step[r.id] = step
        elif r.gap_from >= 0:
            self.log.gap(r.id, r.gap_from, step)
        r.gap_from = -1

    def _decode(self, r: Request) -> None:
        """From the next step on."""
        r.decoding = True
        self.decodes.join(r, self.steps - r.computed)
        self.cache.begin_decode(r)

    def _finish(self, r: Request) -> None:
        if r.decoding:
            self.decodes.leave(self.synced(r))
        self.running_tokens -= r.prompt + r.output
        if self.fair is not None:
            self.fair.left(r, r.output)
        self.log.last_step[r.id] = self.steps - 1
        if self.cache.lag:
            in_flight.finish(self, r)
            return
        self.free(r)
        r.decoding = False
        self.leave_batch(r)

    def free(self, r: Request) -> None:
        """The memory of a request that has ended."""
        self.cache.release(r)

    def leave_batch(self, r: Request) -> None:
        del self.running[r]
        self.drop_lora(r)

    def drop_lora(self, r: Request) -> None:
        if r.lora >= 0:
            self.loras[r.lora] -= 1
            if not self.loras[r.lora]:
                del self.loras[r.lora]
                if self.adapters is not None:
                    self.adapters.touch(r.lora)

    def synced(self, r: Request) -> Request:
        """`held` of a decode is only kept up to date here: it is implied by what it has computed."""
        r.held = -(-(self.steps + r.ahead - r.base) // self.b)
        return r

    def cancel(self, request: int) -> int:
        """A request leaves the queue or the batch: the tokens that it has computed, or found, before."""
        r = self.waiting.cancel(request)
        if r is None:
            r = next(r for r in self.running if r.id == request and not r.finished)
            preemption.stop(self, r)
        else:
            self.waiting_tokens -= r.known
        if r is self.blocked:
            self.blocked = None
        if self.tiers is not None:
            self.tiers.settle()
        return r.done_before

    # -- log and state ----------------------------------------------------------------------------------------------
    def begin_at(self, steps: int) -> None:
        assert not self.decodes.n  # what they have computed goes by the steps
        self.steps = self.cache.steps = steps

    def unfinished(self) -> list[int]:
        return [r.id for r in self.running if not r.finished] + self.waiting.ids()

    def row_at_start(self, taken: int, evicted: int) -> tuple | None:
        """Scheduled, preempted, blocks taken, evicted and free, running, waiting; a call that schedules nothing is no
        step."""
        if not (self.chunks or self.decoded):
            return None
        tokens, out = {r.id: n for r, n in self.chunks}, set(self.left_out)
        scheduled = [
            (r.id, 1 if r.decoding else tokens[r.id])
            for r in self.running
            if r.id in tokens or (r.decoding and r not in out)
        ]
        return (scheduled, list(self.preempted), taken, evicted, *self.sizes)

    def row_at_end(self) -> None:
        """Nothing: a step is told when it begins."""

    def cached_tokens(self, request: int) -> int:
        limit = (self.log.prompt[request] - 1) // self.b
        return self.cache.lookup(self.paths.build(request), limit)[0] * self.b

    def saved(self) -> Saved:
        if self.tiers is not None:
            raise ValueError("a cache with tiers below it cannot be saved or begun with")
        return save(self.cache)

    def restore(self, kept: Saved) -> None:
        fill(self.cache, kept)
