"""A per-block reference of vLLM V1's scheduler and KV cache: slow, plain, one step at a time, real tokens.

Written from the rules in docs (ENGINE_SEMANTICS 2a, 1-11 and 13) alone and sharing no code with `sim/`: the fast engine
keeps runs on a tree, this keeps single blocks, a hash map from chained token hashes and a linked list of free blocks.
Both must agree in every step. It reads recorded cases and random ones alike (schema kvoracle/1):

    python -m tests.reference_vllm CASE.json...        # replay recorded cases and compare

Case config: block_size, num_blocks, max_model_len, max_num_batched_tokens, max_num_seqs, and optionally policy (fcfs |
priority), long_prefill_token_threshold, watermark, scheduler_reserve_full_isl, enable_prefix_caching, max_loras,
cache_policy, async_scheduling, preemption_victim (fcfs | lcf), long_prefill_token_threshold_adaptive,
max_num_active_seqs, prefill_schedule_interval. A request: id, arrival_step (a float when steps are
timed), segments, max_tokens, and optionally priority, cache_salt, lora.

Points the rules leave open, fixed here (no recorded case decides them):
- Order of arrival is (arrival, id); the priority order and the priority victim use (priority, arrival, id).
- `more than one request` for the long-prefill threshold counts running + waiting, once per step; the same
  condition holds for the first chunk of a waiting request.
- A running request's tokens are fixed before anybody is preempted for it; budget returned by a victim serves the next
  ones.
- blocks_allocated and blocks_evicted count pops from the free list, those of later victims of the same step included.
- In the step's time a request is a decode once it has sampled since its last admission; until then each of its
  turns is a prefill chunk, be it one token long. Who is preempted in the step is in neither.
- Requests that can never fit (prompt + output > max_model_len, or more blocks than the pool has for
  prompt + output - 1 tokens) are refused on arrival and never seen by the scheduler.
- async_scheduling: a call is made at its step's start, and what the step before it sampled becomes known just after the
  call, at the same time. A call that schedules nothing waits for the step in flight and takes no time. A victim whose
  last token is in flight finishes where it waits.
- prefill_schedule_interval n (data parallel size 1): within n steps of one that computed prompts nobody prefills, and
  only who hits all but a token is admitted, if anybody in the batch has its prompt computed, and if the last call that
  did not hold them back left nobody waiting.
- calls_ahead: times are those of a clock, and the call of a step is made when the step before it begins.
- preemption_victim lcf: fewest computed tokens, those of this call not counted; of equals the first in running order.
- cache_policy other than `lru` (vLLM's own): see tests.reference_cache. Pins of duplicates can then make a lone request
  preempt itself: a scheduler call that schedules nothing takes no time, is not logged, and the next call follows at
  once.
"""

from __future__ import annotations

import json
import lzma
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.reference_cache import Block, Hasher, make_pool


class StuckError(RuntimeError):
    """Nothing can be scheduled, now or later."""


CHUNKS = list[tuple[int, int]]


@dataclass(eq=False)
class Request:
    id: int
    arrival: float
    prompt: int
    output: int
    keys: list[int]  #: chained hash of each full block of prompt + output
    priority: int = 0
    lora: str | None = None
    sampled: int = 0
    computed: int = 0
    prefilling: bool = True  #: nothing sampled since the last admission
    admission: int = 0
    blocks: list[Block] = field(default_factory=list)
    entered: int = 0  #: leading blocks that hold (or hit) a hash
    in_flight: int = 0  #: outputs scheduled, not yet known
    cached: list[int] = field(default_factory=list)  #: hit tokens of every admission
    ceiling: int = 0  #: hit tokens of the first admission had nothing been evicted
    chunks: int = 0  #: prefill chunks of the first admission
    recomputed: int = 0  #: tokens computed again after a preemption
    furthest: int = 0  #: tokens computed at least once
    preemptions: int = 0
    preempted_at: float = 0.0
    preempted_s: float = 0.0  #: from each preemption to the next admission, summed
    token_steps: list[int] = field(default_factory=list)  #: index of the step that sampled each output
    admit_s: float = -1.0  #: start of its first step
    first_token_s: float = -1.0  #: end of that step; *_start: its start
    first_token_start: float = -1.0
    finish_s: float = -1.0
    finish_start: float = -1.0
    rejected: bool = False

    @property
    def known(self) -> int:
        return self.prompt + self.sampled

    @property
    def rank(self) -> tuple[int, float, int]:
        return (self.priority, self.arrival, self.id)


@dataclass
class Step:
    start: float
    end: float = 0.0
    index: int = 0
    scheduled: dict[int, int] = field(default_factory=dict)  #: request id -> tokens, in scheduling order
    sampled: list[int] = field(default_factory=list)  #: requests that get an output, likewise
    preempted: list[int] = field(default_factory=list)
    allocated: int = 0
    evicted: int = 0
    free: int = 0
    running: int = 0
    waiting: int = 0
    n_decode: int = 0
    prefill_tokens: int = 0

    def row(self) -> list:
        """As recorded: step, scheduled, preempted, allocated, evicted, free after, running, waiting."""
        pairs = [list(pair) for pair in self.scheduled.items()]
        return [self.start, pairs, self.preempted, self.allocated, self.evicted, self.free, self.running, self.waiting]


class UnitStep:
    """One second whatever the step: then a step's number is its start time."""

    def step(
        self, chunks: CHUNKS, n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        return 1.0, 0


def read_case(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(lzma.decompress(data) if path.suffix == ".xz" else data)


def tokens_of(request: dict[str, Any]) -> list[int]:
    """Prompt token values: segment tokens are positive, output tokens of a request negative."""
    tokens: list[int] = []
    for kind, which, length in request["segments"]:
        first = which * 100_000
        tokens += [first + i for i in range(length)] if kind == "s" else outputs_of(which, length)
    return tokens


def outputs_of(request_id: int, n: int) -> list[int]:
    return [-1 - request_id * 100_000 - i for i in range(n)]


class Engine:
    """`run()` serves the whole case; afterwards `steps`, `requests` and `pool` hold what happened."""

    def __init__(self, case: dict[str, Any], step_time: Any = None, check: bool = False):
        c = case["config"]
        self.block_size: int = c["block_size"]
        self.num_blocks: int = c["num_blocks"]
        self.max_model_len: int = c["max_model_len"]
        self.token_budget: int = c["max_num_batched_tokens"]
        self.max_num_seqs: int = c["max_num_seqs"]
        self.threshold: int = c.get("long_prefill_token_threshold", 0)
        self.fair_share: bool = c.get("long_prefill_token_threshold_adaptive", False)
        self.max_active: int = c.get("max_num_active_seqs") or self.max_num_seqs
        self.interval: int = c.get("prefill_schedule_interval", 1)
        self.left_waiting = False
        self.last_prefill = -self.interval
        self.carries = self.deferring = False
        self.by_priority: bool = c.get("policy", "fcfs") == "priority"
        self.reserve_full: bool = c.get("scheduler_reserve_full_isl", True)
        self.caching: bool = c.get("enable_prefix_caching", True)
        self.max_loras: int = c.get("max_loras", 0)
        self.asynchronous: bool = c.get("async_scheduling", False)
        self.calls_ahead: bool = c.get("calls_ahead", False)
        self.least_computed: bool = c.get("preemption_victim", "fcfs") == "lcf"
        self.watermark = int(c.get("watermark", 0.0) * (self.num_blocks + 1))
        self.pool = make_pool(self.num_blocks, c.get("cache_policy", "lru"))
        self.hasher = Hasher()
        self.requests = [self._request(r) for r in sorted(case["requests"], key=lambda r: r["id"])]
        self.arrivals = sorted(self.requests, key=lambda r: (r.arrival, r.id))
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.steps: list[Step] = []
        self.in_flight: Step | None = None  # asynchronous: its outputs are not known yet
        self.ever_entered: set[int] = set()
        self.lookups = self.admissions = 0
        self.now = 0.0
        self.step_time = step_time or UnitStep()
        self.checking = check

    def _request(self, r: dict[str, Any]) -> Request:
        prompt = tokens_of(r)
        tokens = prompt + outputs_of(r["id"], r["max_tokens"])
        keys = self.hasher.chain(tokens, self.block_size, r.get("cache_salt"), r.get("lora"))
        return Request(
            r["id"], r["arrival_step"], len(prompt), r["max_tokens"], keys, r.get("priority", 0), r.get("lora")
        )

    # ---- the loop -------------------------------------------------------------------------------------------------
    def run(self) -> Engine:
        while self.arrivals or self.waiting or self.running:
            if not self.waiting and not self.running:
                self.now = max(self.now, self.arrivals[0].arrival)
            self._receive()
            step = self._schedule()
            before, self.in_flight = self.in_flight, None
            if step.scheduled:
                self._execute(step)
            elif self.waiting and not step.preempted and before is None:
                raise StuckError(
                    f"stuck at {self.now}: {len(self.waiting)} waiting, {len(self.running)} running, nothing scheduled"
                )
            if before is not None:
                self._update(before)
            if step.scheduled:
                self.now = step.end
            if step.scheduled and self.asynchronous:
                self.in_flight = step
            elif step.scheduled:
                self._update(step)
            if self.checking:
                self.pool.check(self._held(), self.num_blocks)
        return self

    def _held(self) -> list[list[Block]]:
        """Blocks of every request, for the check."""
        return [r.blocks for r in self.requests]

    def _receive(self) -> None:
        while self.arrivals and self.arrivals[0].arrival <= self._seen_until():
            r = self.arrivals.pop(0)
            last_position = r.prompt + r.output - 1
            r.rejected = r.prompt + r.output > self.max_model_len or self._blocks_for(last_position) > self.num_blocks
            if not r.rejected:
                self.waiting.append(r)

    def _seen_until(self) -> float:
        """The call made now, or when the step in flight began, knows of arrivals by then."""
        return self.in_flight.start if self.in_flight and self.calls_ahead else self.now

    def _execute(self, step: Step) -> None:
        """The step runs: whoever reaches its last known token (or one in flight) samples one."""
        step.index = len(self.steps)
        step.end = self.now + self._duration(step)
        for r in [r for r in self.running if r.id in step.scheduled]:
            r.furthest = max(r.furthest, r.computed)
            if r.computed == r.known + r.in_flight:
                r.in_flight += 1
                r.prefilling = False
                step.sampled.append(r.id)
        self.steps.append(step)

    def _update(self, step: Step) -> None:
        """The step's outputs become known; the finished leave."""
        for i in step.sampled:
            self._sample(self.requests[i], step)

    def _duration(self, step: Step) -> float:
        scheduled = [(r, step.scheduled[r.id]) for r in self.running if r.id in step.scheduled]
        contexts = self._contexts(step)
        chunks = [(n, r.computed - n) for r, n in scheduled if r.prefilling]
        sampled = sum(r.computed == r.known + r.in_flight for r, _ in scheduled)
        step.n_decode, step.prefill_tokens = len(contexts), sum(n for n, _ in chunks)
        seconds, _ = self.step_time.step(chunks, len(contexts), sum(contexts), max(contexts, default=0), sampled)
        return seconds

    def _contexts(self, step: Step) -> list[int]:
        """Tokens in the cache of every decode of the step, the one computed in it included."""
        return [r.computed for r in self.running if r.id in step.scheduled and not r.prefilling]

    def _sample(self, r: Request, step: Step) -> None:
        r.sampled += 1
        r.in_flight -= 1
        r.token_steps.append(step.index)
        if r.sampled == 1:
            r.first_token_start, r.first_token_s = step.start, step.end
        running = r in self.running
        if running and self.asynchronous:
            self._enter_known(r)
        if r.sampled == r.output:
            r.finish_start, r.finish_s = step.start, step.end
            (self.running if running else self.waiting).remove(r)
            self._release(r)

    # ---- one scheduler call ---------------------------------------------------------------------------------------
    def _schedule(self) -> Step:
        step = Step(self.now)
        allocated, evicted = self.pool.allocated, self.pool.evicted
        chunk_limit = self._chunk_limit()
        defers = self._defers()
        budget = self._schedule_running(step, self.token_budget, chunk_limit, defers)
        self.deferring = defers
        self.carries = any(r.prefilling and r.computed < r.known for r in self.running if step.scheduled.get(r.id))
        if self._may_admit(step):
            self._schedule_waiting(step, budget, chunk_limit)
        if step.scheduled and self.carries:
            self.last_prefill = len(self.steps) + 1
        for r in self.running:
            n = step.scheduled.get(r.id, 0)
            r.recomputed += max(0, min(r.furthest, r.computed + n) - r.computed)
            r.computed += n
            r.chunks += n > 0 and r.prefilling and len(r.cached) == 1
        step.allocated = self.pool.allocated - allocated
        step.evicted = self.pool.evicted - evicted
        step.free = self.pool.available()
        step.running, step.waiting = len(self.running), len(self.waiting)
        return step

    def _chunk_limit(self) -> int:
        present = len(self.running) + len(self.waiting)
        if not self.threshold or present < 2:
            return self.max_model_len
        return max(self.threshold, self.token_budget // present) if self.fair_share else self.threshold

    def _defers(self) -> bool:
        """Whether this call schedules decodes only."""
        if len(self.steps) + 1 - self.last_prefill >= self.interval or self.left_waiting:
            return False
        return any(not r.prefilling for r in self.running)

    def _may_admit(self, step: Step) -> bool:
        return not step.preempted

    def _schedule_running(self, step: Step, budget: int, chunk_limit: int, defers: bool = False) -> int:
        i = 0
        while i < len(self.running) and budget > 0:
            r = self.running[i]
            if self._last_in_flight(r) or (defers and r.prefilling):
                i += 1
                continue
            n = min(r.known + r.in_flight - r.computed, chunk_limit, budget, self.max_model_len - 1 - r.computed)
            n = self._cut(r, r.computed, n, budget)
            if n == 0:
                i += 1
                continue
            fits = self._grow(r, n)
            while not fits:
                victim = self._victim()
                position = self.running.index(victim)
                self._preempt(victim, step)
                if victim is r:
                    break
                if position < i:
                    i -= 1
                    budget += self._returned(step, victim) if victim.id in step.scheduled else 0
                fits = self._grow(r, n)
            if fits:
                step.scheduled[r.id] = n
                budget -= n
                i += 1
        return budget

    def _cut(self, r: Request, start: int, n: int, budget: int) -> int:
        """Tokens of a chunk that starts there."""
        return n

    def _last_in_flight(self, r: Request) -> bool:
        """Whether the step in flight samples its last output."""
        return r.sampled + r.in_flight == r.output

    def _victim(self) -> Request:
        if self.least_computed:
            return min(self.running, key=lambda v: v.computed)
        return max(self.running, key=lambda v: v.rank) if self.by_priority else self.running[-1]

    def _returned(self, step: Step, victim: Request) -> int:
        """Budget a victim gives back that was already scheduled in this step."""
        return step.scheduled.pop(victim.id)

    def _schedule_waiting(self, step: Step, budget: int, chunk_limit: int) -> None:
        skipped: list[Request] = []
        loras = self._loras(step)
        while self.waiting and budget > 0 and len(self.running) < self._places():
            r = min(self.waiting, key=lambda w: w.rank) if self.by_priority else self.waiting[0]
            if self.max_loras and r.lora is not None and r.lora not in loras and len(loras) == self.max_loras:
                self.waiting.remove(r)
                skipped.append(r)
                continue
            n = self._admit(r, budget, chunk_limit)
            if n == 0:
                break
            self.waiting.remove(r)
            self.running.append(r)
            if r.lora is not None:
                loras.add(r.lora)
            if r.admit_s < 0:
                r.admit_s = self.now
            else:
                r.preempted_s += self.now - r.preempted_at
            step.scheduled[r.id] = n
            self.carries |= r.known - r.computed > 1
            budget -= n
        if not self.deferring:
            self.left_waiting = bool(self.waiting)
        self.waiting[:0] = skipped

    def _places(self) -> int:
        return self.max_active

    def _loras(self, step: Step) -> set[str | None]:
        return {
            r.lora for r in self.running if r.lora is not None
        }  # one whose last output is in flight stands there too

    def _admit(self, r: Request, budget: int, chunk_limit: int) -> int:
        """Tokens of the first chunk, blocks taken; 0 when it does not fit (then nothing changed)."""
        limit = self._lookup_limit(r)
        hits = self.pool.lookup(r.keys[:limit]) if self.caching else []
        self.lookups += 1
        hit_tokens = len(hits) * self.block_size
        if self.deferring and r.known - hit_tokens > 1:
            return 0
        n = min(r.known - hit_tokens, chunk_limit, budget)
        covered = r.known if self.reserve_full else hit_tokens + n
        if self._needed(covered, hits) + self._reserve() > self.pool.available():
            return 0
        self.admissions += 1
        r.admission = self.admissions
        if not r.cached:
            r.ceiling = self._ceiling(r, limit)
        r.cached.append(hit_tokens)
        self._tell_pool(r)
        self.pool.touch(hits)
        r.blocks, r.entered, r.computed = list(hits), len(hits), hit_tokens
        grown = self._grow(r, n)
        assert grown
        return n

    def _lookup_limit(self, r: Request) -> int:
        """At least one token must be computed."""
        return (r.known - 1) // self.block_size

    def _needed(self, tokens: int, hits: list[Block]) -> int:
        """Blocks that leave the free list: new ones, and hits nobody else holds."""
        return self._blocks_for(tokens) - len(hits) + sum(block.refs == 0 for block in hits)

    def _reserve(self) -> int:
        return self.watermark if self.running else 0

    def _ceiling(self, r: Request, limit: int) -> int:
        blocks = 0
        while blocks < limit and r.keys[blocks] in self.ever_entered:
            blocks += 1
        return blocks * self.block_size

    def _grow(self, r: Request, n: int) -> bool:
        """Blocks for the next n tokens, and full blocks into the map before the step runs; False when they do not
        fit."""
        new = max(0, self._blocks_for(r.computed + n) - len(r.blocks))
        if new > self.pool.available():
            return False
        r.blocks += self.pool.allocate(new)
        self._enter(r, min(r.computed + n, self._tokens_known(r)))
        return True

    def _tokens_known(self, r: Request) -> int:
        """Tokens that can be hashed now."""
        return r.known

    def _enter_known(self, r: Request) -> None:
        """What it has computed and is not in flight: unlike others it may not be scheduled again, or not in the step
        that follows."""
        self._enter(r, r.computed - r.in_flight)

    def _enter(self, r: Request, tokens: int) -> None:
        for i in range(r.entered, tokens // self.block_size):
            if self.caching:
                self._tell_pool(r)
                self.pool.enter(r.blocks, i, r.keys[i], r.admission)
            self.ever_entered.add(r.keys[i])
            r.entered = i + 1

    def _preempt(self, r: Request, step: Step) -> None:
        self.running.remove(r)
        self._release(r)
        r.computed, r.prefilling = 0, True
        r.preemptions += 1
        r.preempted_at = self.now
        step.preempted.append(r.id)
        self._requeue(r)

    def _requeue(self, r: Request) -> None:
        self.waiting.insert(0, r)

    def _release(self, r: Request) -> None:
        self._tell_pool(r)
        self.pool.release(r.blocks)
        r.blocks, r.entered = [], 0

    def _tell_pool(self, r: Request) -> None:
        """Who asks, and when, for policies that tell requests apart."""
        self.pool.user, self.pool.clock_s = r.id, self.now

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def gaps(self) -> list[tuple[int, int, int]]:
        """(request, step, step) of neighbouring outputs that did not come in neighbouring steps."""
        pairs = [(r.id, a, b) for r in self.requests for a, b in zip(r.token_steps, r.token_steps[1:], strict=False)]
        return [(i, a, b) for i, a, b in pairs if b > a + 1]

    # ---- in the recorded form -------------------------------------------------------------------------------------
    def expected_requests(self) -> list[dict[str, Any]]:
        return [
            {
                "id": r.id,
                "prompt_tokens": r.prompt,
                "output_tokens": r.output,
                "first_admission_cached_tokens": r.cached[0],
                "all_admission_cached_tokens": r.cached,
                "preemptions": r.preemptions,
                "admit_step": r.admit_s,
                "first_token_step": r.first_token_start,
                "finish_step": r.finish_start,
            }
            for r in self.requests
        ]

    def final_free_queue(self) -> list[list[int] | None]:
        """Free list, head first: None or [first request whose tokens contain the block, block index]."""
        names: dict[int, list[int]] = {}
        for r in self.requests:
            for i, key in enumerate(r.keys):
                names.setdefault(key, [r.id, i])
        return [None if block.key is None else names[block.key] for block in self.pool.free]


def comparable(case: dict[str, Any]) -> str:
    """Why a recorded case cannot be compared; empty when it can."""
    config = case["config"]
    if case["engine"] != "vllm":
        return case["engine"]
    return "sliding window" if config.get("sliding_window") else ""


def differences(case: dict[str, Any], engine_type: type[Engine] | None = None) -> list[str]:
    """Replay a recorded case; the first difference of each kind, in words."""
    engine = (engine_type or Engine)(case).run()
    expected = case["expected"]
    found: list[str] = []
    for got, want in zip([s.row() for s in engine.steps], expected["steps"], strict=False):
        if got != want:
            found.append(f"step {want[0]}: expected {want}, got {got}")
            break
    if len(engine.steps) != len(expected["steps"]):
        found.append(f"{len(engine.steps)} steps, expected {len(expected['steps'])}")
    for row, want_row in zip(engine.expected_requests(), expected["requests"], strict=True):
        if row != want_row:
            found.append(f"request {row['id']}: expected {want_row}, got {row}")
            break
    queue = expected["summary"].get("final_free_queue")
    if queue is not None and queue != engine.final_free_queue():
        found.append("final free queue differs")
    return found


def main(paths: list[str]) -> int:
    wrong = 0
    for path in paths:
        case = read_case(Path(path))
        why = comparable(case)
        found = [] if why else differences(case)
        wrong += bool(found)
        print(f"{case['case']}: {'skipped, ' + why if why else '; '.join(found) or 'equal'}")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
