"""vLLM's engine step with speculative decoding: every decode verifies k drafted tokens beside its own.

The one idea: a decode is a small chunk whose length is known only afterwards. It is scheduled like one (k + 1 tokens of
the budget, blocks up to the last of them and the drafter's slots beyond), and at the end of the step its computed
tokens go back to those accepted. Its blocks stay: a rejected token's slot is written again by the next step. So nothing
is aggregated here, and every step walks the running requests in order, as vLLM does.

Asynchronously the next step is decided before anybody knows how many were accepted: it counts all of them, and of a
request that has finished in the step before it verifies another k + 1 tokens, whose output is dropped, unless that
finish was certain."""

from __future__ import annotations

from typing import Any, cast

from sim.kvcache.base import BlockCache
from sim.kvcache.chains import Paths
from sim.log import RequestLog
from sim.request import Request
from sim.scenario import EngineParams
from sim.vllm import admission
from sim.vllm.acceptance import Acceptances
from sim.vllm.scheduler import VllmScheduler


class SpeculativeRequest(Request):
    """A request that decodes by verifying drafts. For the cache it never decodes: its blocks enter at once."""

    __slots__ = ("drafting", "over", "padded", "rows", "unseen")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.drafting = False  # it has left prefill
        self.padded = False  # its rows but the first are no drafts
        self.rows = 0  # tokens that the present step verifies
        # asynchronous, of the step before, when the next is decided:
        self.unseen = 0  # outputs that nobody knows yet
        self.over = 0  # tokens counted as computed that were rejected


class SpeculativeScheduler(VllmScheduler):
    """One replica's queues, running batch and step plan."""

    def __init__(
        self, params: EngineParams, cache: BlockCache, paths: Paths, log: RequestLog, acceptances: Acceptances
    ) -> None:
        super().__init__(params, cache, paths, log)
        assert params.speculative is not None
        self.draft_tokens = params.speculative.tokens
        self.lookahead = params.speculative.lookahead
        self.acceptances = acceptances
        self.asynchronous = params.async_scheduling
        cache.lag = 0  # what is known enters when it is known
        self.verified: dict[SpeculativeRequest, int] = {}  # of the present step: outputs that it gives
        self.prompts = False  # whether a running request's is computed in it
        self.emits = 0  # outputs of the present step, those of prefills among them
        self.in_flight: list[SpeculativeRequest] = []  # asynchronous: whose outputs nobody knows yet

    def _build(self, request: int) -> SpeculativeRequest:
        log = self.log
        path = self.paths.build(request)
        prompt, output, arrival_s = log.prompt[request], log.output[request], log.arrival_s[request]
        return SpeculativeRequest(request, prompt, output, arrival_s, path, log.priority[request], log.lora[request])

    # -- one step ---------------------------------------------------------------------------------------------------
    def schedule(self, now_s: float) -> bool:
        """Decide one step; False when nothing could be scheduled (then it was no step)."""
        some = self._decide(now_s)
        self.sizes = (self.cache.free, len(self.running), len(self.waiting))
        self._learn()
        return some

    def _decide(self, now_s: float) -> bool:
        self._begin(now_s)
        self.verified = {}
        self._walk()
        self.prompts = bool(self.chunks)
        if not self.preempted:
            admission.admit(self)
        if not (self.verified or self.chunks):
            self.decoded = 0
            return False
        self.steps = self.cache.steps = self.steps + 1
        self._draw()
        return True

    def _walk(self) -> None:
        """The running requests, one after the other."""
        for r in list(self.running):
            if self.budget <= 0:
                break
            assert isinstance(r, SpeculativeRequest)
            if r not in self.running:
                continue  # preempted on the way
            tokens = self._rows_of(r) if r.drafting or r.finished else self.chunk(r.known - r.computed)
            if tokens > 0 and self._make_room(r, tokens):
                self.budget -= tokens
                self._advance(r, tokens)

    def _rows_of(self, r: SpeculativeRequest) -> int:
        """Tokens that a decode verifies in this step."""
        if r.finished and r.unseen < 2:
            return 0  # only one was missing, so that its end was certain
        rows = self.chunk(1 + self.draft_tokens)
        return min(rows, self.p.max_model_len - 1 - r.computed - r.over)

    def reach(self, tokens: int) -> int:
        """The drafter writes behind the tokens that the model verifies."""
        return min(tokens + self.lookahead, max(tokens, self.p.max_model_len))

    def _slots(self, tokens: int) -> int:
        return -(-self.reach(tokens) // self.b)

    def _make_room(self, r: SpeculativeRequest, tokens: int) -> bool:
        """Preempt until `tokens` more of r fit; False when r itself had to go."""
        while self._slots(r.computed + r.over + tokens) - r.held > self.cache.free:
            victim = self._victim()
            self._take_back(victim)
            self._preempt(victim)
            if victim is r:
                return False
        return True

    def _advance(self, r: SpeculativeRequest, tokens: int) -> None:
        if r.drafting or r.finished:
            self._verify(r, tokens)
        else:
            self.allocate(r, tokens)

    def _verify(self, r: SpeculativeRequest, rows: int) -> None:
        r.rows = rows
        self.verified[r] = 0
        self._hold(r, r.computed + r.over + rows)
        self.cache.enter_to(r, (r.known - r.unseen) // self.b)

    def first_chunk(self, known: int, start: int) -> int:
        """Of a request that lacks one token only, in a step without prompts, vLLM fills up the rows, so that all of the
        step's requests have as many; it waits where they do not fit."""
        rows = 1 + self.draft_tokens
        uniform = known - start == 1 and not self.prompts and start + rows + 1 <= self.p.max_model_len
        if not uniform or not (start or self.verified):
            return self.chunk(known - start)
        return self.chunk(rows) if rows <= self.budget else 0

    def allocate(self, r: Request, tokens: int) -> None:
        """A prefill chunk of r in this step; or rows of nothing behind its last token, of which none is accepted."""
        assert isinstance(r, SpeculativeRequest)
        if tokens <= r.known - r.computed:
            super().allocate(r, tokens)
            return
        self.prefills.remove(r)
        r.drafting = r.padded = True
        self._verify(r, tokens)

    def _hold(self, r: Request, tokens: int) -> None:
        need = self._slots(tokens) - r.held
        if need > 0:
            self.cache.take(need)
            r.held += need

    def fill(self, r: Request, tokens: int) -> None:
        """Blocks for the next `tokens` of a prefill; those that are full enter the cache now, before they are
        computed."""
        r.computed += tokens
        self._hold(r, r.computed)
        self.cache.enter_to(r, r.computed // self.b)

    def _draw(self) -> None:
        """What the step will give."""
        self.emits = sum(r.computed == r.known for r, _ in self.chunks)
        for r in self.verified:
            if r.padded:
                self.verified[r] = 1
                self.emits += 1
            elif not r.finished:
                accepted = min(self.acceptances.accepted(r.id, r.generated), r.rows - 1)
                self.log.verified(accepted)
                given = self.verified[r] = min(1 + accepted, r.output - r.generated)
                self.emits += given
        self.decoded = sum(r.rows for r in self.verified)

    def _learn(self) -> None:
        """Asynchronous: the outputs of the step before the one just decided become known, in running order."""
        for r in self.in_flight:
            if r in self.running:
                self.cache.enter_to(r, r.computed // self.b)
                if r.finished:
                    self._let_go(r)
            elif r.finished:  # preempted meanwhile
                self.waiting.remove(r)
            r.unseen = r.over = 0
        self.in_flight.clear()

    # -- when memory runs out ---------------------------------------------------------------------------------------
    def _victim(self) -> SpeculativeRequest:
        """Whom to preempt (sim.vllm.preemption)."""
        if self.p.preemption_victim == "lcf":
            given = dict(self.chunks)
            return min(self.running, key=lambda r: r.computed - given.get(r, 0))  # type: ignore[return-value]
        if self.by_priority:
            return max(self.running, key=lambda r: r.urgency)  # type: ignore[return-value]
        return next(reversed(self.running))  # type: ignore[return-value]

    def _take_back(self, victim: SpeculativeRequest) -> None:
        """Return to the budget what this step had already given a victim."""
        if self.verified.pop(victim, None) is not None:
            self.budget += victim.rows
        for i, (r, tokens) in enumerate(self.chunks):
            if r is victim:
                del self.chunks[i]
                r.computed -= tokens
                self.budget += tokens
                return

    def _preempt(self, r: SpeculativeRequest) -> None:
        """Recompute preemption: blocks are freed (and stay cached), outputs are kept, the request goes first in the
        queue."""
        self.log.preemptions[r.id] += 1
        self.preempted.append(r.id)
        self.changed = True
        if r.finished:
            self._let_go(r)
            self.waiting.put_back(r)  # until its last output is known
            return
        self.cache.release(r)
        if not r.drafting:
            self.prefills.remove(r)
        self.leave_batch(r)
        self.running_tokens -= r.known
        self.waiting_tokens += r.known
        self.log.recomputed(r, r.computed)
        r.done_before = max(r.done_before, r.computed)
        r.drafting = r.padded = False
        r.computed = r.rows = r.unseen = r.over = 0
        r.preempted_at = self.now_s
        self.waiting.put_back(r)

    # -- shape of the step ------------------------------------------------------------------------------------------
    def shape(self) -> tuple[list[tuple[int, int]], int, int, int, int]:
        """As the others', but the decodes are counted in rows: `verified` tokens of each, whose context is read once
        (calibrate.speculative)."""
        chunks = [(tokens, r.computed - tokens) for r, tokens in self.chunks]
        contexts = [r.computed + r.rows for r in self.verified]
        sampled = self.decoded + sum(1 for r, _ in self.chunks if r.computed == r.known)
        return chunks, self.decoded, sum(contexts), max(contexts, default=0), sampled

    def stretch(self, most: int) -> int:
        """Every step is its own: nobody knows its end before."""
        return 1

    def fast_forward(self, k: int) -> None:
        raise AssertionError(f"{k} steps of a stretch, where each step is its own")

    # -- end of the step --------------------------------------------------------------------------------------------
    def finishing_now(self) -> bool:
        return not self.asynchronous and any(
            r.generated + given == r.output and not r.finished for r, given in self.verified.items()
        )

    def complete(self) -> list[int]:
        """Sample and free at the end of a step, in running order; the requests that finished."""
        finished: list[SpeculativeRequest] = []
        for r, given in self.verified.items():
            if r.padded:
                self._begin_with(r)
            elif not r.finished:
                self._accept(r, given)
            if given and r.generated == r.output:
                finished.append(r)
            r.rows = 0
        for one, _ in self.chunks:
            r = cast(SpeculativeRequest, one)
            if r.preempted_at < 0:
                self.log.prefill_chunks[r.id] += 1
            if r.computed == r.known:
                self.prefills.remove(r)
                r.drafting = True
                self._sample_first(r, 0)
                if r.generated == r.output:
                    finished.append(r)
        finished.sort(key=lambda r: r.order)
        for r in finished:
            self._end(r)
        self.changed |= bool(finished)
        return [r.id for r in finished]

    def _begin_with(self, r: SpeculativeRequest) -> None:
        """Its last known token was computed in padded rows."""
        if r.preempted_at < 0:
            self.log.prefill_chunks[r.id] += 1
        r.padded = False
        r.computed += 1
        self._sample_first(r, r.rows - 1)

    def _sample_first(self, r: SpeculativeRequest, rejected: int) -> None:
        self._sample(r)
        r.gap_from = self.steps - 1
        self._tell_later(r, 1, rejected)

    def _accept(self, r: SpeculativeRequest, given: int) -> None:
        """A verification gives its outputs; what was rejected has not been computed."""
        step = self.steps - 1
        r.computed += given
        r.generated += given
        self.running_tokens += given
        self.log.gap(r.id, r.gap_from, step)
        r.gap_from = step
        self._tell_later(r, given, r.rows - given)

    def _tell_later(self, r: SpeculativeRequest, given: int, rejected: int) -> None:
        """Its outputs become known: now, or when the next step has been decided."""
        if self.asynchronous:
            r.unseen, r.over = given, rejected
            self.in_flight.append(r)
        else:
            self.cache.enter_to(r, r.computed // self.b)

    def _end(self, r: SpeculativeRequest) -> None:
        self.running_tokens -= r.prompt + r.output
        self.log.last_step[r.id] = self.steps - 1
        r.drafting = False
        r.finished = True
        if not self.asynchronous:
            self._let_go(r)

    def _let_go(self, r: SpeculativeRequest) -> None:
        self.cache.release(r)
        self.leave_batch(r)
        self.freed = self.asynchronous

    # -- log --------------------------------------------------------------------------------------------------------
    def row_at_start(self, taken: int, evicted: int) -> tuple | None:
        """As the others'; a decode's tokens are those that it verifies."""
        if not (self.chunks or self.verified):
            return None
        tokens: dict[Request, int] = {**dict(self.chunks), **{r: r.rows for r in self.verified}}
        scheduled = [(r.id, tokens[r]) for r in sorted(tokens, key=lambda r: r.order)]
        return (scheduled, list(self.preempted), taken, evicted, *self.sizes)
