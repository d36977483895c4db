"""The engine step of TensorRT-LLM: everybody decodes, and prompts take what is left of the step's tokens.

The one idea: decodes advance together (sim.decodes), so a step costs O(1) but for the prompts in it. `reserved` is what
those that run will still take of the free blocks; under the guarantee the rest is what may be promised.

    schedule()     decide one step: capacity (sim.trtllm.capacity), then tokens, first come first served
    stretch()      how many steps from here nothing can change the batch
    fast_forward() take some of them at once
    complete()     sample and finish; what that frees and stores is known at once, or a step later with overlap
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Sized

from sim.decodes import Decodes
from sim.kvcache.base import BlockCache
from sim.kvcache.chains import Paths
from sim.kvcache.saved import Saved, fill, save
from sim.kvcache.tiers import Tiers
from sim.log import RequestLog
from sim.request import Request
from sim.scenario import EngineParams
from sim.trtllm.capacity import CAPACITY, GUARANTEED, Fitting
from sim.vllm.waiting import FcfsQueue

Block = tuple[int, int] | None
"""(node, index) of a block of a prompt; None where there is none."""


class TrtllmScheduler:
    """One replica's queue, active requests and step plan."""

    def __init__(self, params: EngineParams, cache: BlockCache, paths: Paths, log: RequestLog) -> None:
        self.p = params
        self.b = params.block_size
        self.cache = cache
        self.paths = paths
        self.log = log
        self.overlap = params.overlap_scheduler
        self.stall_s = 0.0
        self.ahead = params.overlap_scheduler and params.calls_ahead
        self.tiers: Tiers | None = None
        self.queue = FcfsQueue(self._build)
        self.pending: list[Request] = []  # active and not started, in their order
        self.running: dict[Request, None] = {}  # started
        self.prefills: list[Request] = []  # of them, those in the middle of their prompt, in their order
        self.decodes: Decodes[Request] = Decodes(self.b)  # and those decoding
        self.loading: list[Request] = []  # there are no cache tiers
        self.waiting_tokens = 0
        self.running_tokens = 0  # known tokens of the running requests, at the last completed step
        self.reserved = 0  # blocks the running ones will still take, up to all the tokens they may ask for
        self.steps = 0
        self.activated = 0  # requests, since the start
        self.waited = 0  # steps that prompts have been kept waiting for others to join them
        # results that the engine has not looked at
        self.computed: list[Request] = []  # their prompts are, and wait to be stored
        self.ending: list[Request] = []  # they have their last token
        # the present step
        self.now_s = 0.0
        self.chunks: list[tuple[Request, int]] = []
        self.decoded = 0
        self.preempted: list[int] = []
        self.changed = False
        self.freed = False
        self.steady = False
        self.blocked: Request | None = None  # it found no memory

    # -- queue ------------------------------------------------------------------------------------------------------
    @property
    def busy(self) -> bool:
        return bool(self.running or self.pending or len(self.queue))

    @property
    def waiting(self) -> Sized:
        return range(len(self.pending) + len(self.queue))

    def submit(self, request: int) -> bool:
        """Queue a request. True when the present decode stretch must be cut for it."""
        joins = self.joins_next()
        self.waiting_tokens += self.log.prompt[request]
        self.queue.add(request)
        return joins

    def joins_next(self) -> bool:
        return not self.chunks and self.blocked is None and self._places() > 0

    def _places(self) -> int:
        return self.p.max_num_seqs - len(self.running) - len(self.pending) - len(self.queue)

    def _build(self, request: int) -> Request:
        log = self.log
        return Request(
            request, log.prompt[request], log.output[request], log.arrival_s[request], self.paths.build(request)
        )

    # -- one step ---------------------------------------------------------------------------------------------------
    def schedule(self, now_s: float) -> bool:
        """Decide one step; False when nothing could be scheduled (then it was no step)."""
        self._begin(now_s)
        fitting = CAPACITY[self.p.capacity_policy](self)
        chunks = self._chunks_of(fitting)
        if chunks and self._waits_for_more(chunks):
            chunks = []
        self._decode_all()
        for r, tokens in chunks:
            self._compute(r, tokens)
        self.steady = self._nobody_joins(waits=bool(fitting) and not chunks)
        if self.decoded or self.chunks:
            self.steps = self.cache.steps = self.steps + 1
            return True
        self._look_at_results()
        return False

    def _begin(self, now_s: float) -> None:
        self.now_s = now_s
        self.chunks, self.preempted, self.blocked = [], [], None
        self.decoded = 0
        self.changed, self.freed = self.freed, False
        while len(self.queue) and len(self.running) + len(self.pending) < self.p.max_num_seqs:
            r = self.queue.pop()
            r.order = self.activated
            self.activated += 1
            self.pending.append(r)

    def _chunks_of(self, fitting: list[Fitting]) -> list[tuple[Request, int]]:
        """Tokens of each prompt in this step: whole prompts while they fit, or chunks that end with a block."""
        left = self.p.max_num_batched_tokens - self.decodes.n
        chunks: list[tuple[Request, int]] = []
        for r, hit in fitting:
            rest = r.known - max(r.computed, hit * self.b)
            tokens = min(rest, left)
            if tokens < rest and self.p.chunked_context:
                tokens -= tokens % self.b
            elif tokens < rest:
                if r.preempted_at < 0 or chunks or self.decodes.n:
                    break
                tokens = rest  # with its outputs it is longer than a step: it has one of its own
            if tokens:
                chunks.append((r, tokens))
                left -= tokens
        return chunks

    def _waits_for_more(self, chunks: list[tuple[Request, int]]) -> bool:
        """Whether prompts are kept back beside decodes, until there are more of them or for so many steps."""
        ratio = self.p.batch_wait_max_tokens_ratio
        if not ratio or not self.decodes.n:
            return False
        enough = self.decodes.n + sum(r.known for r, _ in chunks) >= ratio * self.p.max_num_batched_tokens
        waits = not enough and self.waited < self.p.batch_wait_timeout_iters
        self.waited = self.waited + 1 if waits else 0
        return waits

    def _decode_all(self) -> None:
        self.decoded = self.decodes.n
        self._take(self.decodes.blocks_at(self.steps))

    def _take(self, blocks: int) -> None:
        """Blocks that those that run have reserved."""
        if blocks:
            self.cache.take(blocks)
            self.reserved -= blocks

    def _compute(self, r: Request, tokens: int) -> None:
        """The next tokens of a prompt in this step."""
        if r not in self.running:
            self._start(r)
            rest = r.known - r.computed
            if not self.p.chunked_context or tokens > rest:
                tokens = rest
            elif tokens < rest:  # what it hit may have gone to the requests before it
                tokens -= tokens % self.b
        if tokens:
            self.chunks.append((r, tokens))
            r.computed += tokens

    def _start(self, r: Request) -> None:
        """Pin what r hits, and give it blocks for all of its prompt."""
        limit = (r.known - 1) // self.b
        hit, _, handles = self.cache.lookup(r.path, limit)
        if r.preempted_at >= 0:
            self.log.hit_again(r, hit * self.b)
        else:
            own, all_of_them = self.cache.ceilings(r.path, hit, limit)
            self.log.hit(r, hit * self.b, own * self.b, all_of_them * self.b)
        self.log.admitted(r, self.now_s)
        self.cache.acquire(r, handles)
        r.held = -(-r.known // self.b)
        self.cache.take(r.held - hit)
        r.computed = hit * self.b
        self.reserved += self.total_blocks(r) - r.held
        self.pending.remove(r)
        self.running[r] = None
        insort(self.prefills, r, key=lambda r: r.order)
        self.running_tokens += r.known
        self.waiting_tokens -= r.known
        self.changed = True

    def pause(self, r: Request) -> None:
        """Its blocks are freed (and stay cached), its outputs kept; it begins again in its place among the others."""
        computed = self.steps - r.base if r.decoding else r.computed
        if r.decoding:
            self.decodes.leave(r)
            r.generated = computed - r.prompt + 1
            r.held = -(-computed // self.b)
            if r.gap_from < 0:
                r.gap_from = self.steps - 1
        else:
            self.prefills.remove(r)
        self.reserved -= self.total_blocks(r) - r.held
        self._free(r, computed)
        if r in self.computed:
            self.computed.remove(r)
        self.running_tokens -= r.known
        self.waiting_tokens += r.known
        self.log.preemptions[r.id] += 1
        self.log.recomputed(r, computed)
        r.done_before = max(r.done_before, computed)
        r.computed, r.preempted_at = 0, self.now_s
        self.preempted.append(r.id)
        self.changed = True
        insort(self.pending, r, key=lambda r: r.order)

    def _free(self, r: Request, computed: int) -> None:
        r.decoding = False
        self.cache.enter(r, computed // self.b)
        self.cache.release(r)
        del self.running[r]

    # -- what the capacity policies ask -----------------------------------------------------------------------------
    def total_blocks(self, r: Request) -> int:
        """Blocks of r with all the tokens that it may ask for."""
        tokens = min(r.prompt + max(self.log.max_tokens[r.id], r.output), self.p.max_model_len)
        return min(-(-tokens // self.b), self.p.kv_blocks)

    def look_up(self, r: Request) -> tuple[int, int, Block]:
        """(blocks that r would hit, of them nobody's, its first block that is not cached)."""
        hit, idle, _ = self.cache.lookup(r.path, (r.known - 1) // self.b)
        return hit, idle, self._block(r, hit)

    def _block(self, r: Request, index: int) -> Block:
        if index >= r.known // self.b:
            return None
        return next((node, index) for node, end in r.path if index < end)

    def coming(self) -> set[Block]:
        """First blocks that the prompts under way have not stored."""
        return {self.look_up(r)[2] for r in self.prefills} - {None}

    def awaits(self, new: Block, coming: set[Block]) -> bool:
        """Whether an earlier prompt computes this block; if not, it is coming from now on."""
        if new is None or not self.p.caching:
            return False
        if new in coming:
            return True
        coming.add(new)
        return False

    # -- shape of the step, and more of the same --------------------------------------------------------------------
    def shape(self) -> tuple[list[tuple[int, int]], int, int, int, int]:
        """(chunks (new, cached), decodes, sum and maximum of their contexts, rows sampled): what the step time depends
        on."""
        chunks = [(tokens, r.computed - tokens) for r, tokens in self.chunks]
        n, decodes = self.decoded, self.decodes
        sampled = n + sum(1 for r, _ in self.chunks if r.computed == r.known)
        if not n:
            return chunks, 0, 0, 0, sampled
        return chunks, n, n * self.steps - decodes.sum_base, self.steps - decodes.min_base(), sampled

    def _nobody_joins(self, waits: bool) -> bool:
        """Whether the same decodes, and nothing else, run until somebody finishes or arrives."""
        if waits or self.chunks or self.prefills or self.computed or self.ending:
            return False
        return not self.pending or self.blocked is self.pending[0]

    def stretch(self, most: int) -> int:
        """How many steps, this one included, run with this batch and no shortage of memory (at least 1, at most
        `most`)."""
        if not self.steady or not self.decoded:
            return 1
        most = min(most, self.decodes.next_finish() - self.steps + 1)
        return 1 if most == 1 else 1 + self.decodes.steps_that_fit(self.steps, most - 1, self.cache.free)

    def announce(self, ends_s: array[float]) -> None:
        """Nothing: a stretch never has a chunk."""

    def fast_forward(self, k: int) -> None:
        """Take k more steps of the present stretch."""
        self._take(self.decodes.blocks_over(self.steps, k))
        self.steps = self.cache.steps = self.steps + k
        self.running_tokens += self.decodes.n * k

    # -- end of the step --------------------------------------------------------------------------------------------
    def finishing_now(self) -> bool:
        """Whether somebody lets go at the end of the present step."""
        return bool(self.ending) or (not self.overlap and self.steps in self.decodes.finishing)

    def complete(self) -> list[int]:
        """Sample at the end of a step, in the order of activation; the requests that finished."""
        if self.overlap:
            self._look_at_results()
        finished = self.decodes.finishing.pop(self.steps, [])
        for r in finished:
            self.decodes.leave(r)
            r.computed = r.prompt + r.output - 1
            r.held = -(-r.computed // self.b)
        self.running_tokens += self.decoded
        for r, _ in self.chunks:
            if r.preempted_at < 0:
                self.log.prefill_chunks[r.id] += 1
            if r.computed == r.known:
                self._sample(r)
                if r.generated == r.output:
                    finished.append(r)
        finished.sort(key=lambda r: r.order)
        for r in finished:
            self._finish(r)
        if not self.overlap:
            self._look_at_results()
            self.freed = False  # before the next step is decided
        self.changed |= bool(finished)
        return [r.id for r in finished]

    def _sample(self, r: Request) -> None:
        """A prefill reached its last known token: one more output, and it decodes from the next step on."""
        self.log.recomputed(r, r.computed)
        self.prefills.remove(r)
        self.computed.append(r)
        r.generated += 1
        self.running_tokens += 1
        step = self.steps - 1
        if r.generated == 1:
            self.log.first_step[r.id] = step
        elif r.gap_from >= 0:
            self.log.gap(r.id, r.gap_from, step)
        r.gap_from = -1
        if r.generated < r.output:
            r.decoding = True
            self.decodes.join(r, self.steps - r.computed)

    def _finish(self, r: Request) -> None:
        r.finished, r.decoding = True, False
        self.reserved -= self.total_blocks(r) - r.held
        self.running_tokens -= r.prompt + r.output
        self.log.last_step[r.id] = self.steps - 1
        self.ending.append(r)

    def _look_at_results(self) -> None:
        """Prompts that are computed are stored for others, whoever has finished lets go and is stored whole."""
        for r in self.computed:
            self.cache.enter(r, r.computed // self.b)
        for r in self.ending:
            self._free(r, r.computed)
            self.freed = True
        self.computed, self.ending = [], []

    # -- log and state ----------------------------------------------------------------------------------------------
    def cancel(self, request: int) -> int:
        raise TypeError("who gives up is not simulated with TensorRT-LLM's rules")

    def write_out(self) -> None:
        raise TypeError("no cache tiers with these rules")

    def begin_at(self, steps: int) -> None:
        self.steps = self.cache.steps = steps

    def unfinished(self) -> list[int]:
        return [r.id for r in (*self.running, *self.pending) if not r.finished] + self.queue.ids()

    def row_at_start(self, taken: int, evicted: int) -> tuple | None:
        """Scheduled, paused, blocks taken, evicted and free, running, waiting; a call that schedules nothing is no
        step."""
        if not (self.chunks or self.decoded):
            return None
        tokens = {r.id: n for r, n in self.chunks}
        scheduled = [(r.id, 1 if r.decoding else tokens[r.id]) for r in self.running if r.decoding or r.id in tokens]
        sizes = (self.cache.free, len(self.running), len(self.waiting))
        return (scheduled, list(self.preempted), taken, evicted, *sizes)

    def row_at_end(self) -> None:
        """Nothing: a step is told when it begins."""

    def cached_tokens(self, request: int) -> int:
        limit = (self.log.prompt[request] - 1) // self.b
        return self.cache.lookup(self.paths.build(request), limit)[0] * self.b

    def saved(self) -> Saved:
        return save(self.cache)

    def restore(self, kept: Saved) -> None:
        fill(self.cache, kept)

    def check(self) -> None:
        """Raise AssertionError on an impossible state (after a step)."""
        assert self.cache.free >= 0
        held = sum(self.total_blocks(r) - self._held(r) for r in self.running if not r.finished)
        assert self.reserved == held, (self.reserved, held)
        if self.p.capacity_policy == GUARANTEED:
            assert self.reserved <= self.cache.free

    def _held(self, r: Request) -> int:
        return -(-(self.steps - r.base) // self.b) if r.decoding else r.held
