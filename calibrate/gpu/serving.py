"""The scheduler of the real engine: continuous batching with chunked prefill, preemption and prefix reuse, as vLLM V1
does it.

The one idea: every step gives each request up to its known minus its computed tokens, running ones first, within one
token budget; decode is the case of one token. This is the plain form of what `sim.vllm.scheduler` computes with
aggregates.

    python -m calibrate.gpu.engine --model tiny --device cpu --out recording
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from calibrate.gpu.paging import BlockPool, chained_hashes


@dataclass(frozen=True)
class Limits:
    """The engine's settings; names and meaning as in sim.scenario.EngineParams."""

    kv_blocks: int
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    caching: bool = True


@dataclass(eq=False)
class Request:
    """A request and where it stands."""

    id: int
    prompt: list[int]
    max_tokens: int
    output: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    decoding: bool = False
    hit_tokens: int = -1  #: at the first admission
    preemptions: int = 0

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.output)

    def tokens(self, start: int, stop: int) -> list[int]:
        n = len(self.prompt)
        if stop <= n:
            return self.prompt[start:stop]
        return (self.prompt[start:] if start < n else []) + self.output[max(start - n, 0) : stop - n]


@dataclass
class Step:
    """What one step computes: prefill chunks first, then decodes."""

    chunks: list[tuple[Request, int, int]] = field(default_factory=list)  #: request, first token, tokens
    decodes: list[Request] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)

    @property
    def shape(self) -> tuple[list[tuple[int, int]], int, int, int, int]:
        """What a StepTime takes: (new, cached) of the chunks, decodes, sum and maximum of their contexts, sampled
        rows."""
        contexts = [r.computed for r in self.decodes]
        sampled = len(contexts) + sum(1 for r, first, new in self.chunks if first + new == r.known)
        return (
            [(new, first) for _, first, new in self.chunks],
            len(contexts),
            sum(contexts),
            max(contexts, default=0),
            sampled,
        )


class Scheduler:
    """Queues and blocks of one engine. schedule() and complete() alternate."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.pool = BlockPool(limits.kv_blocks)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def submit(self, request: Request) -> None:
        blocks = -(-(len(request.prompt) + request.max_tokens) // self.limits.block_size)
        if blocks > self.limits.kv_blocks:
            raise ValueError(
                f"request {request.id}: {len(request.prompt)} + {request.max_tokens} tokens need {blocks} blocks; the"
                f" cache has {self.limits.kv_blocks}"
            )
        self.waiting.append(request)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> Step:
        """Advance the running, then admit the waiting."""
        step, budget = Step(), self.limits.max_num_batched_tokens
        for request in list(self.running):
            if budget == 0:
                break
            if request not in self.running:
                continue
            want = min(request.known - request.computed, budget)
            if not self._make_room(request, want, step):
                break
            self._advance(request, want, step)
            budget -= want
        if not step.preempted:
            self._admit(budget, step)
        return step

    def _make_room(self, request: Request, want: int, step: Step) -> bool:
        """Preempt from the end of the running list until `want` tokens fit; False when the request itself had to go."""
        while self._missing(request, want) > self.pool.free:
            victim = self.running.pop()
            self.pool.release(victim.blocks)
            victim.blocks, victim.computed, victim.decoding = [], 0, False
            victim.preemptions += 1
            self.waiting.appendleft(victim)
            step.preempted.append(victim.id)
            if victim is request:
                return False
        return True

    def _missing(self, request: Request, want: int) -> int:
        return -(-(request.computed + want) // self.limits.block_size) - len(request.blocks)

    def _advance(self, request: Request, want: int, step: Step) -> None:
        """Take the blocks; full ones can be hit from now on, before they are computed."""
        request.blocks += self.pool.take(max(0, self._missing(request, want)))
        first, request.computed = request.computed, request.computed + want
        if self.limits.caching:
            block_size = self.limits.block_size
            if len(request.hashes) < request.computed // block_size:
                chained_hashes(request.tokens(0, request.computed), block_size, request.hashes)
            for i in range(first // block_size, request.computed // block_size):
                self.pool.enter(request.blocks[i], request.hashes[i])
        if request.decoding:
            step.decodes.append(request)
        else:
            step.chunks.append((request, first, want))

    def _admit(self, budget: int, step: Step) -> None:
        """Waiting requests in order until one does not fit whole."""
        block_size = self.limits.block_size
        while self.waiting and budget and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            hits: list[int] = []
            if self.limits.caching:
                chained_hashes(request.tokens(0, request.known), block_size, request.hashes)
                hits = self.pool.lookup(request.hashes[: (request.known - 1) // block_size])
            need = -(-request.known // block_size) - len(hits) + self.pool.idle(hits)
            if need > self.pool.free:
                return
            self.waiting.popleft()
            self.pool.touch(hits)
            request.blocks, request.computed = list(hits), len(hits) * block_size
            if request.hit_tokens < 0:
                request.hit_tokens = request.computed
            self.running.append(request)
            want = min(request.known - request.computed, budget)
            self._advance(request, want, step)
            budget -= want

    def complete(self, step: Step, tokens: list[int]) -> tuple[list[Request], list[Request]]:
        """Append the sampled tokens, chunks first; (who got one, who finished: their blocks are free again)."""
        sampled = [r for r, first, new in step.chunks if first + new == r.known] + step.decodes
        for request, token in zip(sampled, tokens, strict=True):
            request.output.append(token)
            request.decoding = True
        finished = [r for r in sampled if len(r.output) == r.max_tokens]
        for request in finished:
            self.running.remove(request)
            self.pool.release(request.blocks)
        return sampled, finished
