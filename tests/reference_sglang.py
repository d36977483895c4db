"""A per-token reference of SGLang's scheduler and radix cache: slow, plain, one step at a time, real tokens.

Written from the engine's rules (docs/sglang.md) and sharing no code with `sim/`: the fast engine keeps intervals on
static paths and aggregates over the batch, this keeps token lists and loops. Both must agree in every step. It reads
recorded cases and random ones alike (schema kvoracle/1):

    python -m tests.reference_sglang CASE.json...        # replay recorded cases and compare

Case config: page_size, capacity_tokens, max_context, chunked_prefill_size, max_running, eviction_policy,
schedule_policy, and optionally max_prefill_tokens, use_priority, priority_scheduling, retraction_policy,
conservativeness, disable_cache, overlap, mixed_chunk, calls_ahead and the constants of admission and retraction. A
request: id, arrival_step (a float when steps are timed), segments, max_tokens, and optionally priority, cache_salt,
lora.

A pass plans a batch, runs it, and reads a result: its own, or with overlap that of the pass before. So with overlap
what a plan knows of outputs is a step old; with calls_ahead arrivals are too."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.reference_cache import Hasher
from tests.reference_radix import Clock, Namespace, Node, Radix
from tests.reference_vllm import UnitStep, outputs_of, read_case, tokens_of

UNLIMITED = 1 << 60
IN_BATCH_SHARED = 32  #: tokens, for both tests of in-batch caching
LPM_LONGEST_QUEUE = 128


# ---- the scheduler --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Request:
    id: int
    arrival: float
    tokens: list[int]  #: prompt and all outputs
    prompt: int
    output: int
    space: Namespace
    keys: list[int]  #: chained hash of each whole page, for the ceiling only
    priority: int = 0
    asked: int = 0  #: output tokens the client allowed, at least those it gets
    sampled: int = 0
    computed: int = 0
    node: Node | None = None  #: deepest node it locks
    held: int = 0  #: tokens of the tree it locks; what it computed beyond is private
    inserted: int = 0
    cached: list[int] = field(default_factory=list)
    ceiling: int = 0
    chunks: int = 0
    retractions: int = 0
    recomputed: int = 0
    furthest: int = 0
    preempted_s: float = 0.0  #: between each retraction and the re-admission, summed
    retracted_at: float = 0.0
    token_steps: list[int] = field(default_factory=list)  #: index of the step that sampled each output
    by_decode: list[bool] = field(default_factory=list)  #: whether a decode did; else a prefill
    admit_s: float = -1.0
    first_token_s: float = -1.0
    first_token_start: float = -1.0
    finish_s: float = -1.0
    finish_start: float = -1.0
    rejected: bool = False

    @property
    def known(self) -> int:
        return self.prompt + self.sampled

    @property
    def finished(self) -> bool:
        return self.sampled >= self.output


@dataclass
class Row:
    """One request in a batch."""

    r: Request
    upto: int  #: tokens computed when the step has run
    decode: bool
    samples: bool  #: its last known token is among them
    life: int  #: retractions it has had: another count, and its result is dropped


@dataclass
class Step:
    start: float
    prefill: bool
    index: int = -1
    rows: list[Row] = field(default_factory=list)
    scheduled: dict[int, int] = field(default_factory=dict)
    retracted: list[int] = field(default_factory=list)
    evicted: int = 0
    available: int = 0
    evictable: int = 0
    protected: int = 0
    waiting: int = 0
    running: int = 0
    end: float = 0.0
    n_decode: int = 0
    prefill_tokens: int = 0

    def row(self) -> list:
        """As recorded: step, P|D, scheduled, retracted, evicted, available, evictable, protected, waiting."""
        pairs = [list(pair) for pair in self.scheduled.items()]
        kind = "P" if self.prefill else "D"
        return [
            self.start,
            kind,
            pairs,
            self.retracted,
            self.evicted,
            self.available,
            self.evictable,
            self.protected,
            self.waiting,
        ]


CONTINUE, NO_TOKEN, OTHER = "continue", "no token", "other"


class Adder:
    """What one prefill batch may still take."""

    def __init__(self, engine: Engine):
        self.engine = engine
        riders = engine.riders()
        self.input = engine.max_prefill_tokens - riders
        self.chunked = engine.chunked_prefill_size > 0
        self.chunk = engine.chunked_prefill_size - riders if self.chunked else UNLIMITED
        self.reserved_total = 0.0
        for r in engine.running:
            self.reserved_total += engine.to_come(r) * engine.ratio
        self.reserved_total += riders
        self.reserved_now = riders
        self.batch: list[tuple[Request, int]] = []

    def room(self) -> float:
        return self.engine.available + self.engine.tree.evictable - self.reserved_total

    def room_now(self) -> int:
        return self.engine.available + self.engine.tree.evictable - self.reserved_now

    def take(self, r: Request, extend: int, decode: int) -> None:
        page = self.engine.page
        pages = -(-extend // page) * page
        self.batch.append((r, extend))
        self.reserved_total += pages + page + decode
        self.reserved_now += pages + page
        self.input -= pages
        self.chunk -= pages

    def spent(self) -> bool:
        return self.input <= 0 or self.chunk <= 0

    def state(self) -> str:
        if self.room() <= 0 or self.room_now() <= 0:
            return NO_TOKEN
        return OTHER if self.spent() else CONTINUE


class Engine:
    """`run()` serves the whole case; afterwards `steps`, `requests` and `tree` hold what happened."""

    def __init__(self, case: dict[str, Any], step_time: Any = None, check: bool = False):
        c = case["config"]
        self.page: int = c["page_size"]
        self.capacity: int = c["capacity_tokens"] // self.page * self.page
        self.max_context: int = c.get("max_context", UNLIMITED)
        self.chunked_prefill_size: int = c["chunked_prefill_size"]
        self.max_prefill_tokens: int = c.get("max_prefill_tokens", 16384)
        self.max_running: int = c["max_running"]
        self.policy: str = c["eviction_policy"]
        self.order: str = c["schedule_policy"]
        self.priority_scheduling: bool = c.get("priority_scheduling", False)
        self.use_priority: bool = c.get("use_priority", True)
        self.retraction_policy: str = c.get("retraction_policy", "length")
        self.caching: bool = not c.get("disable_cache", False)
        self.overlap: bool = c.get("overlap", False)
        self.calls_ahead: bool = c.get("calls_ahead", False)
        self.interval: int = c.get("recv_interval", 1)
        self.mixed: bool = c.get("mixed_chunk", False) and self.chunked_prefill_size > 0
        self.clip: int = c.get("clip_max_new_tokens", 4096)
        self.retract_steps: int = c.get("retract_decode_steps", 20)
        self.ratio: float = min(c.get("init_new_token_ratio", 0.7) * c.get("conservativeness", 1.0), 1.0)
        self.least_ratio = self.ratio * c.get("min_new_token_ratio_factor", 0.14)
        self.decay = (self.ratio - self.least_ratio) / c.get("ratio_decay_steps", 600)
        self.clock = Clock()
        self.tree = Radix(self.page, self.policy, self.clock)
        self.clock.tick(), self.clock.tick()  # the root of the tree that the orders keep of the waiting
        self.available = self.capacity
        self.hasher = Hasher()
        self.requests = [self._request(r) for r in sorted(case["requests"], key=lambda r: r["id"])]
        self.arrivals = sorted(self.requests, key=lambda r: (r.arrival, r.id))
        self.came: list[Request] = []  # and nobody has looked
        self.counted = 0  # since somebody has
        self.pass_before: Step | None = None
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.last_batch: list[Request] = []  # of the pass before, if it was a prefill or mixed
        self.unread: Step | None = None  # has run, and its result is not known
        self.holders: list[Request] = []  # of memory: admitted and neither finished nor retracted
        self.chunked: Request | None = None
        self.full = False
        self.left_batch = False  # somebody whose finish was read while it was in the batch
        self.out_of_memory = False  # a chunk had to go on, and could not: the engine itself stops there
        self.passes = 0
        self.lost = self.sat_out = self.waited = 0  # results of retracted requests, steps without riders, empty passes
        self.steps: list[Step] = []
        self.ever: set[int] = set()
        self.lookups = self.taken = 0  # operations: taken in pages
        self.now = 0.0
        self.step_time = step_time or UnitStep()
        self.check = check

    def _request(self, r: dict[str, Any]) -> Request:
        tokens = tokens_of(r) + outputs_of(r["id"], r["max_tokens"])
        lora = json.dumps(r["lora"], sort_keys=True) if r.get("lora") is not None else None
        priority = r.get("priority") if self.use_priority else 0
        if priority is None:
            priority = -(2**63) if self.priority_scheduling else 0
        keys = self.hasher.chain(tokens, self.page, r.get("cache_salt"), lora)
        request = Request(
            r["id"],
            r["arrival_step"],
            tokens,
            len(tokens) - r["max_tokens"],
            r["max_tokens"],
            (lora, r.get("cache_salt")),
            keys,
            priority,
        )
        request.asked = max(request.output, min(r.get("asked", 0), self.capacity - self.page - 1 - request.prompt))
        request.rejected = len(tokens) > self.max_context or len(tokens) + self.page >= self.capacity
        return request

    # -- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> Engine:
        arrivals = [r for r in self.arrivals if not r.rejected]
        idle = 0
        while (arrivals or self.came or self.waiting or self.holders) and not self.out_of_memory:
            if not self.came and not self.waiting and not self.holders:
                self.now = max(self.now, arrivals[0].arrival)
            while arrivals and arrivals[0].arrival <= self.seen_until():
                self.came.append(arrivals.pop(0))
            if self.looks():
                self.waiting += self.came
                self.came = []
            self.pass_before = self.step()
            idle = 0 if self.pass_before else idle + 1
            if idle > 3 and (self.waiting or self.holders):
                raise RuntimeError(f"nothing can be scheduled at {self.now}")
        return self

    def looks(self) -> bool:
        """Whether this pass reads who has come: each adds what the one before it counts for."""
        before = self.pass_before
        if before is None:  # it goes round and round with nothing to do
            self.counted = 0
            return True
        self.counted += 1000 if before.prefill else 1
        if self.counted < self.interval:
            return False
        self.counted = 0
        return True

    def seen_until(self) -> float:
        """The pass made now, or when the step before it began, knows of arrivals by then."""
        return self.unread.start if self.unread and self.calls_ahead else self.now

    def step(self) -> Step | None:
        """One pass: plan, run, read a result."""
        evicted = self.tree.evicted
        step = Step(self.now, True)
        launched = self.plan(step)
        before, self.unread = self.unread, None
        if launched:
            step.index = len(self.steps)
            self.advance_clock(step)
            self.steps.append(step)
        if before is not None:
            self.read(before)
        if launched and self.overlap:
            self.unread = step
        elif launched:
            self.read(step)
        step.evicted = self.tree.evicted - evicted
        step.available, step.evictable, step.protected = self.available, self.tree.evictable, self.tree.protected
        step.waiting = len(self.waiting)
        if self.check and not self.out_of_memory:
            self.check_all()
        return step if launched else None

    def plan(self, step: Step) -> bool:
        """Decide the batch of a pass; whether there is one."""
        if self.left_batch:
            self.full = False
        self.left_batch = False
        self.running = [r for r in self.running if not r.finished]
        if self.chunked is not None:
            self.checkpoint(self.chunked, self.chunked.computed)
            self.full = False  # a batch that loses somebody clears it
        merged = [r for r in self.last_batch if not r.finished and r is not self.chunked]
        if merged and not self.running:
            self.full = False  # the prefill's own batch, with its own flag, is the running batch from now on
        self.running += merged
        self.last_batch = []
        batch = self.new_prefill()
        if not batch:
            return self.start_decode(step)
        self.start_prefill(step, batch)
        if self.out_of_memory:
            return False
        if self.mixed and self.running:
            self.mix(step)
        self.last_batch = [row.r for row in step.rows]
        return True

    def riders(self) -> int:
        """Running requests that would take part in a prefill batch."""
        return len(self.running) if self.mixed else 0

    def private(self, r: Request) -> int:
        return -(-r.computed // self.page) * self.page - r.held

    def check_all(self) -> None:
        self.tree.check()
        private = sum(self.private(r) for r in self.holders)
        assert self.available + self.tree.evictable + self.tree.protected + private == self.capacity

    # -- prefill ----------------------------------------------------------------------------------------------------

    def new_prefill(self) -> list[tuple[Request, int]]:
        if (self.full or not self.waiting) and self.chunked is None:
            return []
        running = len(self.running)
        if running >= self.max_running and self.chunked is None:
            self.full = True
            return []
        self.sort_waiting()
        adder = Adder(self)
        self.chunked_next = None
        if self.chunked is not None:
            self.continue_chunked(adder)
        for r in () if adder.spent() else list(self.waiting):  # of a lack of memory only a candidate learns
            if running + len(adder.batch) >= self.max_running:
                self.full = True
                break
            outcome = self.add(adder, r)
            if outcome == NO_TOKEN:
                self.full = True
            if outcome != CONTINUE:
                break
        for r, _ in adder.batch:
            if r in self.waiting:
                self.waiting.remove(r)
                self.holders.append(r)
        self.chunked = self.chunked_next
        return adder.batch

    def to_come(self, r: Request) -> int:
        return min(max(r.asked - r.sampled, 0), self.clip)

    def look_up(self, r: Request) -> tuple[Node, int]:
        self.lookups += 1
        if not self.caching:
            return self.tree.root, 0
        return self.tree.match(r.space, r.tokens[: r.known - 1])

    def chunk_limit(self, adder: Adder) -> int:
        limit = min(adder.chunk, int(adder.room()))
        return limit if limit > 0 else adder.chunk  # it must go on, or its memory would never come back

    def continue_chunked(self, adder: Adder) -> None:
        r = self.chunked
        limit = self.chunk_limit(adder)
        remaining = r.known - r.computed
        if remaining > limit:
            adder.take(r, limit, 0)
            self.chunked_next = r
        else:
            adder.take(r, remaining, min(r.asked, self.clip))

    def add(self, adder: Adder, r: Request) -> str:
        node, hit = self.look_up(r)
        extend = r.known - hit
        self.tree.lock(node)
        fits = extend + self.to_come(r) + self.page < adder.room()
        if not fits:
            self.tree.unlock(node)
            return NO_TOKEN
        if not adder.chunked and adder.batch and -(-extend // self.page) * self.page >= adder.input:
            self.tree.unlock(node)
            return OTHER
        decode = min(r.asked, self.clip)
        if -(-extend // self.page) * self.page > adder.chunk:
            extend = (hit + adder.chunk // self.page * self.page) // self.page * self.page - hit
            decode = 0
            if extend <= 0:
                self.tree.unlock(node)
                return OTHER
            self.chunked_next = r
        r.node, r.held, r.computed = node, hit, hit
        if r.cached:
            r.preempted_s += self.now - r.retracted_at
        else:
            r.admit_s = self.now
            r.ceiling = self.ceiling(r)
        r.cached.append(hit)
        adder.take(r, extend, decode)
        return adder.state()

    def start_prefill(self, step: Step, batch: list[tuple[Request, int]]) -> None:
        demand = sum(extend for _, extend in batch) + (self.page * len(batch) if self.page > 1 else 0)
        self.make_room(demand)
        for r, extend in batch:
            pages = -(-(r.computed + extend) // self.page) - -(-r.computed // self.page)
            self.available -= pages * self.page
            self.taken += pages
            self.out_of_memory |= self.available < 0
            step.scheduled[r.id] = extend
            samples = r.computed + extend == r.known
            step.rows.append(Row(r, r.computed + extend, False, samples, r.retractions))
            r.recomputed += max(0, min(r.furthest, r.computed + extend) - r.computed)
            r.computed += extend
            r.furthest = max(r.furthest, r.computed)
            if len(r.cached) == 1 and r.sampled == 0:
                r.chunks += 1

    def mix(self, step: Step) -> None:
        """Those running ride along with one token each, if their memory is there once the prefill has taken its own."""
        self.leave_out()
        if self.running and self.decode_fits(self.running):
            self.one_token_each(step)
            self.running = []
        self.sat_out += bool(self.running)

    def make_room(self, demand: int) -> None:
        if self.available < demand:
            self.available += self.tree.evict(demand - self.available)

    # -- decode -----------------------------------------------------------------------------------------------------

    def start_decode(self, step: Step) -> bool:
        step.prefill = False
        somebody_ends = self.leave_out()
        if not self.running:
            self.full = False
            return False
        if not self.decode_fits(self.running):
            if somebody_ends:
                self.waited += 1
                return False
            self.retract(step)
        else:
            self.ratio = max(self.ratio - self.decay, self.least_ratio)
        self.one_token_each(step)
        return True

    def leave_out(self) -> bool:
        """Who has its last output in a result not yet read takes no part; whether there was any."""
        flying = {row.r.id for row in self.unread.rows if row.samples} if self.unread else set()
        ending = [r for r in self.running if r.sampled + (r.id in flying) == r.output]
        if ending:
            self.full = False
        self.running = [r for r in self.running if r not in ending]
        return bool(ending)

    def one_token_each(self, step: Step) -> None:
        self.make_room(self.asked_for_decode(self.running))
        for r in self.running:
            if r.computed % self.page == 0:
                self.available -= self.page
                self.taken += 1
            assert self.available >= 0, "decode out of memory"
            r.computed += 1
            r.furthest = max(r.furthest, r.computed)
            step.scheduled[r.id] = 1
            step.rows.append(Row(r, r.computed, True, True, r.retractions))

    def decode_fits(self, requests: list[Request]) -> bool:
        demand = self.needed_for_decode(requests)
        self.make_room(demand)
        return self.available >= demand

    def needed_for_decode(self, requests: list[Request]) -> int:
        return self.page * sum(r.computed % self.page == 0 for r in requests)

    def asked_for_decode(self, requests: list[Request]) -> int:
        """A page for everybody, needed or not: evicts a bit early."""
        return self.page * len(requests)

    def retract(self, step: Step) -> None:
        if self.retraction_policy == "priority":
            order = sorted(self.running, key=lambda r: (r.priority, r.sampled, -r.prompt), reverse=True)
        else:
            order = sorted(self.running, key=lambda r: (r.sampled, -r.prompt), reverse=True)
        first = True
        while len(order) > 1 and (first or not self.decode_fits(order)):
            first = False
            r = order.pop()
            step.retracted.append(r.id)
            self.drop(r)
            self.make_room(len(order) * self.retract_steps)
            self.full = False
        self.running = self.order_after_retraction(order)
        self.ratio = self.ratio_after_retraction(order)
        self.requeue([r for i in step.retracted for r in self.requests if r.id == i])

    def order_after_retraction(self, order: list[Request]) -> list[Request]:
        return order

    def ratio_after_retraction(self, order: list[Request]) -> float:
        return min(
            1.0, (sum(r.sampled for r in order) + self.retract_steps * len(order)) / (sum(r.asked for r in order) + 1)
        )

    def requeue(self, retracted: list[Request]) -> None:
        self.waiting += retracted

    def drop(self, r: Request) -> None:
        self.available += self.private(r)
        self.tree.unlock(r.node)
        r.node, r.held, r.computed, r.inserted = None, 0, 0, 0
        self.holders.remove(r)
        r.retractions += 1
        r.retracted_at = self.now

    # -- the end of a step ------------------------------------------------------------------------------------------

    def advance_clock(self, step: Step) -> None:
        chunks = [(n, row.upto - n) for row in step.rows if not row.decode for n in [step.scheduled[row.r.id]]]
        contexts = [row.upto for row in step.rows if row.decode]
        sampled = sum(row.samples for row in step.rows)
        seconds, _ = self.step_time.step(chunks, len(contexts), sum(contexts), max(contexts, default=0), sampled)
        step.n_decode, step.prefill_tokens = len(contexts), sum(new for new, _ in chunks)
        self.now = step.end = step.start + seconds

    def read(self, step: Step) -> None:
        """The result of a step: its outputs, what enters the cache, who has finished. That of a request retracted since
        is dropped."""
        for row in step.rows:
            r = row.r
            if row.life != r.retractions:
                self.lost += 1
            if not row.samples or row.life != r.retractions:
                continue
            r.sampled += 1
            r.token_steps.append(step.index)
            r.by_decode.append(row.decode)
            if r.sampled == 1:
                r.first_token_s, r.first_token_start = step.end, step.start
            if r.finished:
                r.finish_s, r.finish_start = step.end, step.start
                self.left_batch |= not self.overlap or r in self.running
                self.finish(r)
            elif not row.decode:
                self.checkpoint(r, row.upto)

    def checkpoint(self, r: Request, upto: int) -> None:
        """Insert what is computed so far, share what another request put there first, and lock the longer path."""
        whole = upto // self.page * self.page
        self.remember(r, whole)
        if not self.caching:
            return
        tokens = r.tokens[:whole]
        there = self.tree.insert(r.space, tokens, r.priority, r.inserted)
        r.inserted = whole
        if whole > r.prompt // self.page * self.page:
            self.raise_prompt(r, whole)
        self.available += there - r.held  # pages another request had put there first
        node, done = self.tree.match(r.space, tokens)
        assert done == whole
        self.tree.lock(node)
        self.tree.unlock(r.node)
        r.node, r.held = node, whole

    def raise_prompt(self, r: Request, whole: int) -> None:
        """Split the output off the prompt and let the prompt outrank it."""
        self.tree.insert(r.space, r.tokens[: r.prompt // self.page * self.page], r.priority + 1, whole)

    def finish(self, r: Request) -> None:
        self.checkpoint(r, r.computed)
        self.available += self.private(r)
        if r.node is not None:
            self.tree.unlock(r.node)
        self.holders.remove(r)

    # -- orders of the waiting --------------------------------------------------------------------------------------

    def sort_waiting(self) -> None:
        """In place: an order that ties keeps what an earlier pass left."""
        if self.order == "lof":
            self.waiting.sort(key=lambda r: (-r.priority if self.priority_scheduling else 0, -r.asked))
        elif self.order == "lpm" and self.caching and len(self.waiting) <= LPM_LONGEST_QUEUE:
            self.sort_by_longest_prefix()
        elif self.order == "dfs-weight" and self.caching:
            self.sort_by_subtree()
        elif self.priority_scheduling:
            self.waiting.sort(key=lambda r: (-r.priority, r.arrival, r.id))
        plain = self.order in ("fcfs", "lof") or (self.order == "lpm" and len(self.waiting) > LPM_LONGEST_QUEUE)
        if plain and self.policy == "lru" and self.caching and self.waiting:
            self.refresh()

    def refresh(self) -> None:
        """Every 32nd pass touches the prefixes of the waiting, so that they are not evicted before their turn."""
        if self.passes % 32 == 0:
            for r in reversed(self.waiting[:128]):
                self.tree.match(r.space, r.tokens[: r.known])
        self.passes += 1

    def match_waiting(self) -> tuple[list[tuple[Node, int]], set[Request]]:
        """Where each waiting request's whole prompt ends in the cache, and who shares a prefix with one before it that
        no cache holds yet."""
        ahead = Radix(1, "lru", self.clock)
        found, postponed = [], set()
        for r in self.waiting:
            tokens = r.tokens[: r.known]
            found.append(self.tree.match(r.space, tokens))
            if found[-1][1] <= IN_BATCH_SHARED:
                if ahead.match(r.space, tokens)[1] >= IN_BATCH_SHARED:
                    postponed.add(r)
                else:
                    ahead.insert(r.space, tokens, 0, 0)
        return found, postponed

    def sort_by_longest_prefix(self) -> None:
        found, postponed = self.match_waiting()
        hits = {r: min(hit, r.known - 1) for r, (_, hit) in zip(self.waiting, found, strict=True)}
        at_once = [r for r in self.waiting if r not in postponed]
        later = [r for r in self.waiting if r in postponed]  # in the order of the queue
        self.waiting[:] = sorted(at_once, key=lambda r: -hits[r]) + later

    def sort_by_subtree(self) -> None:
        """Depth first through the cache, the child with most waiting requests below it first, a node's own after its
        children's."""
        found, _ = self.match_waiting()
        at: dict[Node, list[Request]] = {}
        for r, (node, _) in zip(self.waiting, found, strict=True):
            at.setdefault(node, []).append(r)

        weight: dict[Node, int] = {}
        for node in reversed([self.tree.root, *self.tree.nodes()]):  # children before their parents
            weight[node] = len(at.get(node, [])) + sum(weight[child] for child in node.children.values())
        self.waiting, todo = [], [(self.tree.root, False)]
        while todo:
            node, below_done = todo.pop()
            if below_done:
                self.waiting += at.get(node, [])
                continue
            children = sorted(node.children.values(), key=lambda child: -weight[child])
            todo += [(node, True), *((child, False) for child in reversed(children))]

    def remember(self, r: Request, whole: int) -> None:
        """For the ceiling: pages this replica ever held."""
        self.ever.update(r.keys[: whole // self.page])

    def ceiling(self, r: Request) -> int:
        pages = 0
        while (pages + 1) * self.page < r.known and r.keys[pages] in self.ever:
            pages += 1
        return pages * self.page

    def gaps(self) -> list[tuple[int, int, int]]:
        """(request, step, step) of neighbouring outputs of which the request's prefill sampled one."""
        found = []
        for r in self.requests:
            outputs = list(zip(r.token_steps, r.by_decode, strict=True))
            found += [(r.id, a, b) for (a, x), (b, y) in pairwise(outputs) if not (x and y)]
        return found

    # -- what a recorded case says ----------------------------------------------------------------------------------

    def expected_requests(self) -> list[dict[str, Any]]:
        return [
            {
                "id": r.id,
                "prompt_tokens": r.prompt,
                "output_tokens": r.output,
                "first_admission_cached_tokens": r.cached[0],
                "all_admission_cached_tokens": r.cached,
                "retractions": r.retractions,
                "admit_step": int(r.admit_s),
                "first_token_step": int(r.first_token_start),
                "finish_step": int(r.finish_start),
            }
            for r in self.requests
        ]

    def final_tree(self) -> list[list]:
        """As recorded: parent row, tokens, first token, hits, priority, access, creation, lock."""
        rows: list[list] = []
        todo = [(self.tree.root, -1)]
        while todo:
            node, parent = todo.pop()
            todo += [(child, len(rows)) for child in node.children.values()]
            rows.append(
                [
                    parent,
                    len(node.key),
                    _as_recorded(node.key),
                    node.hits,
                    node.priority,
                    node.access,
                    node.creation,
                    node.lock,
                ]
            )
        return rows


def _as_recorded(key: list[int]) -> int | None:
    """First token of an edge; output i of request r is 1,000,000 * (1,000,000 + r) + i in a recorded case."""
    if not key or key[0] >= 0:
        return key[0] if key else None
    request, i = divmod(-1 - key[0], 100_000)
    return 1_000_000 * (1_000_000 + request) + i


def differences(case: dict[str, Any]) -> list[str]:
    """The first differing step, request and tree row, in words."""
    engine = Engine(case, check=len(case["requests"]) < 200).run()
    return [*_steps(engine, case), *_requests(engine, case), *_tree(engine, case)]


def _steps(engine: Engine, case: dict[str, Any]) -> list[str]:
    expected = case["expected"]["steps"]
    for step, want in zip(engine.steps, expected, strict=False):
        got = step.row()
        if got != want:
            return [f"step {want[0]}: expected {want}, got {got}"]
    return [] if len(expected) == len(engine.steps) else [f"{len(engine.steps)} steps, expected {len(expected)}"]


def _requests(engine: Engine, case: dict[str, Any]) -> list[str]:
    for got, want in zip(engine.expected_requests(), case["expected"]["requests"], strict=True):
        if got != want:
            return [f"request: expected {want}, got {got}"]
    return []


def _tree(engine: Engine, case: dict[str, Any]) -> list[str]:
    want = case["expected"]["summary"].get("final_tree")
    if not want or not engine.caching:
        return []
    want, got = _by_rank(want[1:]), _by_rank(engine.final_tree()[1:])
    for a, b in zip(got, want, strict=False):
        if a != b:
            return [f"tree: expected {b}, got {a}"]
    return [] if len(got) == len(want) else [f"tree of {len(got)} nodes, expected {len(want)}"]


def _by_rank(rows: list[list]) -> list[list]:
    """With their times of access and creation as places among all of them: SGLang's clock has ticks that decide
    nothing."""
    times = sorted({time for row in rows for time in row[5:7]})
    return [[*row[:5], times.index(row[5]), times.index(row[6]), *row[7:]] for row in rows]


def main() -> int:
    wrong = 0
    for name in sys.argv[1:]:
        case = read_case(Path(name))
        try:
            found = differences(case)
        except (AssertionError, RuntimeError) as error:
            found = [f"{type(error).__name__}: {error}"]
        wrong += bool(found)
        print(f"{case['case']}: {'; '.join(found)[:600] or 'equal'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
