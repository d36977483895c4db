"""vLLM's engine step over several KV groups: as sim.vllm.scheduler, with memory that is given back on the way.

The one idea: a decode takes, gives back or hashes a block only at certain lengths, so a calendar says at which step
each one is due; the others' steps change nothing. Where memory or budget may not suffice the step walks the running
requests in order, as vLLM does, since then the order decides who is preempted.

Blocks behind a window are given back on *processed* tokens: asynchronously, without those of the step in flight."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from calibrate.kv_groups import STATE
from sim.kvcache.chains import Paths
from sim.kvcache.groups.cache import HybridCache, Table
from sim.kvcache.groups.paths import GroupPaths
from sim.kvcache.groups.rules import caps_of
from sim.kvcache.saved import Saved
from sim.log import RequestLog
from sim.request import Request
from sim.scenario import EngineParams
from sim.vllm import admission, preemption
from sim.vllm.scheduler import VllmScheduler

_order = attrgetter("order")
NOT_KEPT = "a cache of several kinds of layers cannot be saved or begun with"


class HybridRequest(Request):
    """A request with its tables."""

    __slots__ = ("call", "in_call", "junction", "tables")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tables: list[Table] = []
        self.junction = 0  # where its last look-up found a prefix that only some groups have, tokens
        self.call = -1  # the scheduler call of its last prefill chunk
        self.in_call = 0  # tokens of that chunk


class HybridScheduler(VllmScheduler):
    """One replica's queues, running batch and step plan."""

    cache: HybridCache
    prefills: list[HybridRequest]  # type: ignore[assignment]

    def __init__(
        self, params: EngineParams, cache: HybridCache, paths: Paths, group_paths: GroupPaths, log: RequestLog
    ) -> None:
        super().__init__(params, cache, paths, log)
        self.b = cache.block_size
        self.group_paths = group_paths
        rules = cache.rules
        self.states = next((r.b for r in rules if r.kind == STATE), 0)  # tokens between states that can be kept
        self.caps = caps_of(params)
        self.beats = sorted({beat for r in rules for beat in r.beats(cache.lag)})
        self.least_block = min(r.b for r in rules)
        self.due: dict[int, list[HybridRequest]] = {}  # step -> decodes that take, give back or hash a block in it
        self.calls = 0  # of the scheduler
        self.idle_call = False  # the one before scheduled nothing: no step is in flight
        self.out: set[Request] = set()  # decodes left out of the step before
        self.held_up = False  # the head of the queue waits for memory

    def _build(self, request: int) -> HybridRequest:
        log = self.log
        r = HybridRequest(
            request,
            log.prompt[request],
            log.output[request],
            log.arrival_s[request],
            self.paths.build(request),
            log.priority[request],
            log.lora[request],
        )
        paths = self.group_paths.build(request)
        r.tables = [Table(rules, path) for rules, path in zip(self.cache.rules, paths, strict=True)]
        return r

    # -- one step ---------------------------------------------------------------------------------------------------
    def _decide(self, now_s: float) -> bool:
        self._begin(now_s)
        self.calls += 1
        self.cache.new_states.clear()
        self.held_up = False
        if not self._advance_if_all_fit():
            self._walk()
        self.out = set(self.left_out)
        if not self.preempted:
            self._admit()
        self.idle_call = not (self.decoded or self.chunks)
        if not self.idle_call:
            self.executed += 1
            if self.carries_prompts:
                self.last_prefill = self.executed
            return True
        if not self.preempted:
            self.steps = self.cache.steps = self.steps - 1  # it was no step
        return False

    def _advance_if_all_fit(self) -> bool:
        """One step in which every running request gets all it asks for; False when some may not, and nothing is
        changed."""
        if self.left_out or self.decodes.n > self.budget:
            return False
        left, asks = self.budget - self.decodes.n, []
        for r in () if self.deferring else self.prefills:
            wanted = min(r.known - r.computed, self.threshold or r.known)
            if wanted > left and next(reversed(self.running)) is not r:
                return False
            tokens = self._cut(r, r.computed, min(wanted, left))
            if not tokens:
                return False
            left -= tokens
            asks.append((r, tokens))
        due = self.due.get(self.steps, [])
        need = len(due) * len(self.cache.rules) + sum(self._wants(r, r.computed + tokens) for r, tokens in asks)
        if need > self.cache.free:
            return False
        self.budget = left
        turns: list[tuple[HybridRequest, int]] = [*((r, 0) for r in self.due.pop(self.steps, ())), *asks]
        for r, tokens in sorted(turns, key=lambda turn: turn[0].order):
            if tokens:
                self.carries_prompts = True
                self._retire(r, r.computed)
                self.allocate(r, tokens)
            elif r.decoding:
                self._decode_on(r)
        self.steps = self.cache.steps = self.steps + 1
        self.decoded, self.decoded_base = self.decodes.n, self.decodes.sum_base
        return True

    def _wants(self, r: HybridRequest, tokens: int) -> int:
        return sum(table.wanted(tokens) for table in r.tables)

    def chunk_from(self, r: HybridRequest, start: int) -> int:
        """Tokens of a prefill that starts there which this step computes."""
        return self._cut(r, start, self.chunk(r.known - start))

    def _cut(self, r: HybridRequest, start: int, tokens: int) -> int:
        """A chunk of a prompt ends where its state can be kept."""
        b, known = self.states, max(r.prompt, r.known - 1)
        if not b or start >= known or tokens <= 0:
            return tokens
        end = start + tokens
        if end < known:
            down = end // b * b
            whole = self.p.max_num_batched_tokens
            if down > start or b <= min(whole, self.p.long_prefill_token_threshold or whole):
                end = max(down, start)
        ends = [-(-start // b) * b, (r.known - 1) // b * b]
        if r.junction > start:
            ends.append(start + (r.junction - start) // b * b)
        return min((at for at in ends if start < at < end), default=end) - start

    # -- memory of a running request --------------------------------------------------------------------------------
    def _in_flight(self, r: HybridRequest) -> int:
        """Tokens of the step that is under way when this one is decided."""
        if not self.cache.lag or self.idle_call:
            return 0
        if r.call == self.calls - 1:
            return r.in_call
        return int(r.decoding and r not in self.out)

    def _retire(self, r: HybridRequest, computed: int) -> None:
        self.cache.retire(r.tables, max(0, computed - self._in_flight(r)))

    def _decode_on(self, r: HybridRequest) -> None:
        """One more token of a decode, which fits."""
        computed = self.steps - r.base
        self._retire(r, computed)
        self._decode_token(r, computed)

    def _decode_token(self, r: HybridRequest, computed: int) -> None:
        self.cache.grow(r.tables, computed + 1)
        self.cache.enter_tokens(r, computed + (0 if self._in_flight(r) else 1), generated=True)
        after = computed + 1
        self._put_down(r, self.steps + 1 + min([(residue - after) % modulus for modulus, residue in self.beats]))

    def _put_down(self, r: HybridRequest, step: int) -> None:
        self.due.setdefault(step, []).append(r)

    def fill(self, r: Request, tokens: int) -> None:
        """Blocks for the next `tokens` of a prefill; those that are full enter the cache now, before they are
        computed."""
        assert isinstance(r, HybridRequest)
        r.computed += tokens
        self.cache.grow(r.tables, r.computed)
        self.cache.enter_tokens(r, r.computed)
        r.call, r.in_call = self.calls, tokens

    def synced(self, r: Request) -> Request:
        return r

    # -- when memory or budget binds ----------------------------------------------------------------------------------
    def _walk(self) -> None:
        """The running requests one after the other (sim.vllm.preemption)."""
        self.decoded = self.decoded_base = 0
        self.due.pop(self.steps, None)
        for r in list(self.running):
            if self.budget <= 0:
                break
            if r not in self.running or r.finished or (self.deferring and not r.decoding):
                continue  # preempted on the way, ending, or not now
            assert isinstance(r, HybridRequest)
            tokens = 1 if r.decoding else self.chunk_from(r, r.computed)
            if tokens and self._make_room(r, tokens):
                self.budget -= tokens
                if r.decoding:
                    self._decode_token(r, self.steps - r.base)
                    r.ahead = 1
                    self.decoded += 1
                    self.decoded_base += r.base
                else:
                    self.carries_prompts = True
                    self.allocate(r, tokens)
        if self.decoded or self.chunks or not self.preempted:
            preemption.end_walk(self)
        for r in self.left_out:
            self._put_down(r, self.steps)  # type: ignore[arg-type]

    def _make_room(self, r: HybridRequest, tokens: int) -> bool:
        """Preempt until `tokens` more of r fit; False when r itself had to go."""
        while True:
            computed = self.steps - r.base if r.decoding else r.computed
            self._retire(r, computed)
            if self._wants(r, computed + tokens) <= self.cache.free:
                return True
            victim = preemption.chosen(self)
            preemption.take_back(self, victim)
            preemption.preempt(self, victim)
            if victim is r:
                return False

    # -- admission --------------------------------------------------------------------------------------------------
    def _admit(self) -> None:
        """Until one does not fit (sim.vllm.admission)."""
        skipped: list[Request] = []
        while self.budget > 0 and len(self.running) < self.most_running and len(self.waiting):
            r = self.waiting.head()
            assert isinstance(r, HybridRequest)
            if admission.finds_no_lora_slot(self, r):
                skipped.append(self.waiting.pop())
                continue
            tokens = self._fit(r)
            if not tokens:
                break
            self.waiting.pop()
            admission.start(self, r, tokens)
        if not self.deferring:
            self.left_waiting = len(self.waiting) > 0
        for r in reversed(skipped):
            self.waiting.put_back(r)
        settled = not (skipped or self.chunks or self.prefills or self.left_out)
        same_need = self.held_up and not self.p.long_prefill_token_threshold_adaptive
        shut = not self.ending and (len(self.running) >= self.most_running or same_need)
        self.steady = settled and (shut or not len(self.waiting))

    def _fit(self, r: HybridRequest) -> int:
        """Look r up and pin its hits when it fits: the tokens of its first chunk, 0 when it does not fit."""
        cache = self.cache
        found = cache.find([table.path for table in r.tables], r.known)
        if cache.caching and len(cache.rules) > 1:
            r.junction = found.longest if found.longest > found.tokens else 0
        if self.deferring and r.known - found.tokens > 1:
            return 0
        tokens = self.chunk_from(r, found.tokens)
        if not tokens or cache.same_step(found):
            return 0
        kept_free = self.watermark if self.running else 0
        need = cache.need(r.tables, found, found.tokens + tokens, None)
        if self.p.reserve_full_isl:
            need = max(need, cache.need(r.tables, found, r.known, self.caps))
        if need + kept_free > cache.free:
            self.held_up = True
            return 0
        self._record(r, found.tokens)
        cache.pin(r, found)
        r.computed = found.tokens
        return tokens

    def _record(self, r: HybridRequest, hit: int) -> None:
        if r.preempted_at >= 0:
            self.log.hit_again(r, hit)
            return
        b, limit = self.b, (r.known - 1) // self.b
        own, fleet = self.cache.ceilings(r.path, hit // b, limit)
        self.log.hit(r, hit, own * b, fleet * b)
        kept = max(hit, self.cache.would_have([table.path for table in r.tables], r.known))
        self.log.window_tokens[r.id] = max(0, own * b - kept)

    # -- stretches ----------------------------------------------------------------------------------------------------
    def stretch(self, most: int) -> int:
        """How many steps, this one included, run with this batch and no shortage of memory (at least 1, at most
        `most`)."""
        n = self.decodes.n
        if not self.steady or not n or self.preempted or self.p.prefill_schedule_interval > 1:
            return 1
        most = min(most, self.decodes.next_finish() - self.steps + 1)
        if self.held_up:  # what is given back may let the head in
            most = next((k for k in range(1, most) if self.steps + k - 1 in self.due), most)
        rounds = self.cache.free // (n * len(self.cache.rules))
        return max(1, min(most, rounds * self.least_block))

    def fast_forward(self, k: int) -> None:
        """Take k more steps of the present stretch."""
        due, first = self.due, self.steps
        for step in range(first, first + k):
            self.calls += 1
            turns = due.pop(step, None)
            if turns:
                self.steps = step
                for r in sorted(turns, key=_order) if len(turns) > 1 else turns:
                    if r.decoding:
                        self._decode_on(r)
        self.steps = self.cache.steps = first + k
        self.running_tokens += self.decodes.n * k

    # -- end of the step --------------------------------------------------------------------------------------------
    def _decode(self, r: Request) -> None:
        super()._decode(r)
        assert isinstance(r, HybridRequest)
        self._put_down(r, self.steps)
        if self.cache.lag:
            self._put_down(r, self.steps + 1)

    def saved(self) -> Saved:
        raise ValueError(NOT_KEPT)

    def restore(self, kept: Saved) -> None:
        raise ValueError(NOT_KEPT)

    def cached_tokens(self, request: int) -> int:
        return self.cache.find(self.group_paths.build(request), self.log.prompt[request]).tokens
