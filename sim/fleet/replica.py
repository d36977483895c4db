"""One engine replica: a SimPy process that schedules a step, waits for its time, completes it.

The one idea: between two events that can change the batch a pure-decode stretch of k steps is one event. Step ends are
a running float sum from the clock, in stepping order, so fast-forward is bit-identical to stepping. An arrival that
could be admitted cuts the stretch at the end of the step it falls in (at a tie the arrival comes first).

vLLM's asynchronous scheduler and SGLang's overlap schedule decide a step when the one before it begins. Here it is
decided when its own begins, so what arrives in between (`held`) is kept from it: an arrival waits for the step in
progress, for the one already decided, and is in the next. Who ends in a step stands in its place until the next one is
decided, and lets go then, at the same time (sim.vllm.in_flight, sim.sglang.result)."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from math import inf
from typing import Protocol

import numpy as np
import simpy

from calibrate.latency import StepTime
from calibrate.scaled import Scaled
from sim.engine import Scheduler
from sim.fleet.clock import Clock
from sim.fleet.doorway import Doorway
from sim.fleet.kv_events import KvEvents
from sim.front_end import FrontEnd
from sim.log import RequestLog
from sim.recording import TierUse
from sim.step_record import StepRecord

NO_STEPS = array("d")
UP, DRAINING, DOWN, STARTING = "up", "draining", "down", "starting"
STRETCH_STEPS = 512
"""Longest stretch planned at once; only a bound on wasted work when an arrival cuts it."""


class Front(Protocol):
    """What a replica tells of its requests."""

    def finished(self, request: int) -> None:
        """It has sampled the request's last token now."""

    def refused(self, request: int) -> None:
        """It has too much on it to take the request."""

    def dropped(self, request: int, computed: int) -> None:
        """It has let go of what its client gave up, with so many tokens computed or found."""

    def returned(self, requests: list[int], retried: bool) -> None:
        """It has failed with these on it."""

    def resized(self) -> None:
        """It takes requests from now on, or no more."""


class Replica:
    """The engine loop around a Scheduler, with its own record of steps and samples.

    A process beside the run may `fail`, `drain` and `start` it (sim.fleet.processes)."""

    def __init__(
        self,
        index: int,
        env: Clock,
        make: Callable[[int], Scheduler],
        step_time: StepTime,
        log: RequestLog,
        front: Front,
        *,
        door: Callable[[], Doorway],
        overhead_s: float = 0.0,
        front_end: FrontEnd | None = None,
        max_loras: int = 0,
        fast_forward: bool = True,
        life: list[list[tuple]] | None = None,
        step_log: list | None = None,
        listen: Callable[[Scheduler], KvEvents] | None = None,
    ) -> None:
        self.index = index
        self.env = env
        self.step_time = self._own_step_time = step_time
        self.log = log
        self.max_loras = max_loras  # adapters that run at once; 0: any number
        self.front = front
        self.overhead_s = overhead_s
        self.most_steps = STRETCH_STEPS if fast_forward else 1
        self.life = life
        self.step_log = step_log
        self.record = StepRecord(packs=log.packs)
        self.state = UP
        self._held_s: list[tuple[float, float]] = []  # from when to when it has held its GPUs
        self._since_s = env.now
        self._starts: simpy.Event | None = None  # it takes requests
        self._gone: simpy.Event | None = None  # it is down, where somebody waits for that
        self._evicted = 0  # blocks, by its earlier engines
        self._tiers_used: list[list[TierUse]] = []  # by its earlier engines
        self._make, self._make_door, self._listen = make, door, listen
        self.front_end = front_end  # it outlives its engines
        self._sends = front_end is not None and front_end.delays_outputs
        self._renew()
        self._process = env.process(self._run())

    def __repr__(self) -> str:
        return f"replica {self.index} ({self.state})"

    def _renew(self) -> None:
        """An engine as it starts: nothing in its memory, nobody in its queue."""
        self.scheduler = self._make(self.index)
        self.scheduler.begin_at(len(self.record.times))
        self._told = self._listen(self.scheduler) if self._listen is not None else None
        self._speculates = hasattr(self.scheduler, "emits")
        self._reading: Sequence[object] = getattr(
            self.scheduler, "reading", ()
        )  # requests whose prompts are on their way
        self._door = self._make_door()
        self._idle: simpy.Event | None = None  # waiting for work
        self._step_end: simpy.Event | None = None
        self._start_s = 0.0  # of the stretch in progress
        self._ends = NO_STEPS  # its step ends
        self._announced = False  # they have been told to other replicas
        self._codes = b""  # and where their times come from
        # of its first step: chunks, sum of contexts, rows sampled
        self._shape: tuple[list[tuple[int, int]], int, int] = ([], 0, 0)
        self._loaded: simpy.Event | None = None  # waiting for a load, with nothing else to do
        self._held: deque[tuple[float, int]] = deque()  # (time, request) of arrivals that no call has been able to see
        self._held_tokens = 0
        self._given_up: dict[int, float] = {}  # requests that the engine has not let go of, and when that was
        self._read: deque[tuple[float, int]] = deque()  # (time, request) whose kept blocks have been read elsewhere
        self._coming: dict[int, simpy.Event] = {}  # requests that are still in the front end
        self._coming_tokens = 0  # their prompts
        self._sent = 0  # steps of the present stretch whose tokens have been given to it
        self._last_start_s = 0.0  # of the last step completed
        self._settled = True  # the batch has not changed since the last sample

    # -- its life ---------------------------------------------------------------------------------------------------
    @property
    def takes(self) -> bool:
        """Whether it takes new requests."""
        return self.state == UP

    def fail(self, retried: bool = True) -> None:
        """All that is on it is lost: memory, cache tiers, queue and the step in progress. Its requests go back to the
        front and begin again at once elsewhere, or are aborted where they are not `retried`."""
        if self.state == DOWN:
            return
        self.stop(self.env.now)
        lost = [*self.scheduler.unfinished(), *(request for _, request in self._held), *self._coming]
        if self.life is not None:
            for request in lost:
                self.life[request].clear()
        gone = self._given_up
        lost = [request for request in lost if request not in gone]
        self._go_down()
        for request in gone:
            self.front.dropped(request, 0)
        self.front.returned(lost, retried)

    def drain(self) -> None:
        """It takes no more requests, and is down when it has served those it has."""
        if self.state in (UP, STARTING):
            self.state = DRAINING
            if self.empty:
                self._go_down()
            else:
                self.front.resized()

    def start(self, load_s: float = 0.0) -> None:
        """It holds its GPUs from now on and takes requests `load_s` later, with an empty cache; one that drains takes
        them again at once."""
        if self.state == DRAINING:
            self._take()
        elif self.state == DOWN:
            starts = self.env.wait(load_s, f"replica {self.index} starts after")
            self.state, self._since_s = STARTING, self.env.now
            if load_s:
                self._starts = starts
                starts.callbacks.append(lambda _: self._open())  # type: ignore[union-attr]
            else:
                self._open()

    def gone(self) -> simpy.Event:
        """To be yielded: the process goes on when this replica is down."""
        gone = self._gone = self._gone or simpy.Event(self.env)
        if self.state == DOWN:
            self._tell_gone()
        return gone

    def _tell_gone(self) -> None:
        if self._gone is not None:
            self._gone.succeed()
            self._gone = None

    def slow_down(self, factor: float) -> None:
        """Its steps take `factor` times as long from the next one on; 1: as long as they should."""
        self.step_time = self._own_step_time if factor == 1 else Scaled(self._own_step_time, factor)
        self._end_with(self._steps_over() + 1)  # the next one takes its new time, however long it is decided

    def _open(self) -> None:
        self._starts = None
        self._process = self.env.process(self._run())
        self._take()

    def _take(self) -> None:
        self.state = UP
        self.front.resized()

    def _go_down(self) -> None:
        """Whatever it waits for does not happen."""
        now_s = self.env.now
        if now_s > self._since_s:
            self._held_s.append((self._since_s, now_s))
        self.state = DOWN
        pending = (self._starts, self._idle, self._loaded, self._step_end, self._process.target, *self._coming.values())
        for event in pending:
            self.env.cancel(event)
        self._evicted, self._tiers_used = self.evicted_blocks, self.tiers_used()
        self._renew()
        self.record.sample(now_s, 0, 0, 0, 0)
        self._tell_gone()
        self.front.resized()

    def held_s(self, now_s: float) -> list[tuple[float, float]]:
        """(from, to) seconds in which it was not down, until now."""
        return self._held_s if self.state == DOWN else [*self._held_s, (self._since_s, now_s)]

    @property
    def evicted_blocks(self) -> int:
        """By all its engines so far."""
        return self._evicted + self.scheduler.cache.evicted

    def tiers_used(self) -> list[list[TierUse]]:
        """Its cache tiers, of each of its engines so far; only the last one's still hold anything."""
        tiers = self.scheduler.tiers
        before = [[replace(use, stored_blocks=0) for use in uses] for uses in self._tiers_used]
        return before if tiers is None else [*before, tiers.use()]

    @property
    def empty(self) -> bool:
        """Whether no request is on it."""
        return not (self.scheduler.busy or self._held or self._coming)

    # -- from outside -----------------------------------------------------------------------------------------------
    def receive(self, request: int) -> None:
        """A request reaches this replica's front end now; its prompt counts as load from now on."""
        if self.front_end is None:
            self.submit(request)
            return
        if self._refuses(request):
            return
        if self._sends:
            self._send(self._steps_over())
        prompt, now_s = self.log.prompt[request], self.env.now
        reaches_s = self.front_end.receives(now_s, prompt)
        self.log.frontend_s[request] = reaches_s - now_s
        self._coming_tokens += prompt
        self._coming[request] = self.env.call_at(reaches_s, request, self._through_the_front_end)

    def _through_the_front_end(self, request: int) -> None:
        del self._coming[request]
        self._coming_tokens -= self.log.prompt[request]
        self.submit(request)

    def _send(self, steps: int) -> None:
        """Give the front end the tokens of the present stretch's first so many steps."""
        assert self.front_end is not None
        sampled = self.scheduler.emits if self._speculates else self._shape[2]  # type: ignore[attr-defined]
        for end_s in self._ends[self._sent : steps]:
            self.record.sent_s.append(self.front_end.sends(end_s, sampled))
        self._sent = max(self._sent, steps)

    def submit(self, request: int) -> None:
        """A request reaches this replica's engine now."""
        if self._refuses(request):
            return
        self._door.let_in(request)
        self.log.replica[request] = self.index
        if self.scheduler.ahead and self._ends:
            self._hold(request)
            return
        cut = self.scheduler.submit(request)
        if self._idle is not None:
            if not self._idle.triggered:
                self.env.trigger_at(self._idle, self.env.now, self.index)
        elif self._loaded is not None:
            self._loaded = self.env.move(self._loaded, self.env.now, self.index)
        elif cut:
            self._cut()

    def _refuses(self, request: int) -> bool:
        """Turn the request away, if there is too much here."""
        refused = self._door.refuses(len(self.scheduler.running) + len(self.scheduler.waiting) + len(self._held))
        if refused:
            self.front.refused(request)
        return refused

    def drop(self, request: int) -> None:
        """Its client has given it up: the engine, where it has it, lets go of it at the end of a step."""
        if request in self._coming:
            self.env.cancel(self._coming.pop(request))
            self._coming_tokens -= self.log.prompt[request]
            self.front.dropped(request, 0)
            return
        self._given_up[request] = self.env.now
        if self._loaded is not None:
            self._loaded = self.env.move(self._loaded, self.env.now, self.index)
        else:
            self._cut()

    def release(self, request: int) -> None:
        """The blocks that it keeps of a prompt have been read (sim.fleet.transfer): the engine frees them at the end of
        a step."""
        self._read.append((self.env.now, request))
        if self._idle is not None:
            if not self._idle.triggered:
                self.env.trigger_at(self._idle, self.env.now, self.index)
        else:
            self._cut()

    def _let_go(self, request: int, computed: int) -> None:
        self._door.left(request)
        if self.life is not None:
            self.life[request].clear()
        self.front.dropped(request, computed)

    def _hold(self, request: int) -> None:
        self._held.append((self.env.now, request))
        self._held_tokens += self.log.prompt[request]
        if self.scheduler.joins_next():
            self._cut()

    def _receive(self, until_s: float) -> bool:
        """Queue what was held and arrived by then, and let go of what was given up or read; whether there was any."""
        held, some = self._held, False
        while held and held[0][0] <= until_s:
            _, request = held.popleft()
            self._held_tokens -= self.log.prompt[request]
            self.scheduler.submit(request)
            some = True
        gone = [request for request, at_s in self._given_up.items() if at_s <= until_s] if self._given_up else ()
        for request in gone:
            del self._given_up[request]
            self._let_go(request, self.scheduler.cancel(request))
            self._settled, some = False, True
        while self._read and self._read[0][0] <= until_s:
            self.scheduler.let_go(self._read.popleft()[1])  # type: ignore[attr-defined]
            self._settled, some = False, True
        return some

    @property
    def running(self) -> int:
        """Requests in its batch."""
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests in its front end and its queue."""
        return len(self._coming) + len(self._held) + len(self.scheduler.waiting) + len(self._reading)

    @property
    def now_s(self) -> float:
        return self.env.now

    @property
    def kv_usage(self) -> float:
        """Share of its KV blocks with a reference, as of the last change of its batch."""
        return self.record.last_in_use / (self.scheduler.cache.total or 1)

    def cached_tokens(self, request: int) -> int:
        """Tokens of a prompt that its caches hold now, or as far as has been told (Engine.has_oracle)."""
        if self._told is not None:
            return self._told.cached_tokens(request)
        self._catch_up()
        return self.scheduler.cached_tokens(request)

    def has_answered(self, request: int) -> bool:
        """Whether a request of it has its first token."""
        return self.log.first_step[request] >= 0

    def load_tokens(self) -> int:
        """Tokens on their way, waiting and running here now, the present stretch included."""
        s = self.scheduler
        return (
            self._coming_tokens
            + s.waiting_tokens
            + self._held_tokens
            + s.running_tokens
            + self._steps_over() * s.decoded
        )

    def waiting_tokens(self) -> int:
        """Prompt tokens of its front end and its queue."""
        return self._coming_tokens + self.scheduler.waiting_tokens + self._held_tokens

    def _steps_over(self) -> int:
        """Steps of the present stretch that have ended. One that ends now has when this replica has had its turn."""
        begun = bisect_left if self.index > self.env.turn else bisect_right
        return begun(self._ends, self.env.now) if self._ends else 0

    def _catch_up(self) -> None:
        """Take the steps of the present stretch that have ended, so that its caches are those of now."""
        k = min(self._steps_over(), len(self._ends) - 1)
        if k < 1:
            return
        self.scheduler.fast_forward(k)
        self._record_steps(k)
        if self.life is not None:
            self._record_life(self.life, self._start_s, cut_s=self._ends[k - 1])
        self._start_s = self._ends[k - 1]
        self._ends, self._codes = self._ends[k:], self._codes[k:]
        chunks, _, sum_context, _, sampled = self.scheduler.shape()
        self._shape = chunks, sum_context, sampled
        if self._announced:
            self.scheduler.announce(self._ends)

    def _cut(self) -> None:
        """End the present stretch with the step in progress, or with the next when that is decided already: with the
        first one that begins now or later."""
        if len(self._ends) < 2:
            return
        if not self.scheduler.ahead:
            steps = self._steps_over() + 1
        else:
            steps = bisect_left(self._ends, self.env.now) + 2 if self.env.now > self._start_s else 1
        self._end_with(steps)

    def _end_with(self, steps: int) -> None:
        """End the present stretch with its first so many steps."""
        if steps < len(self._ends):
            del self._ends[steps:]
            self._step_end = self.env.move(self._step_end, self._ends[-1], self.index)  # type: ignore[arg-type]

    # -- the process ------------------------------------------------------------------------------------------------
    def _run(self) -> Generator[simpy.Event, None, None]:
        env, scheduler = self.env, self.scheduler
        while True:
            if not scheduler.busy:
                if self.state == DRAINING and self.empty:
                    self._go_down()
                    return
                self._idle = simpy.Event(env)
                yield self._idle
                self._idle = None
            now_s = env.now
            if not self._schedule(now_s):
                if scheduler.busy:
                    self._loaded = env.event_at(self._next_ready_s(), self.index)
                    yield self._loaded
                    self._loaded = None
                continue
            self._start_s = now_s
            self._time_steps(now_s)
            self._step_end = env.event_at(self._ends[-1], self.index)
            yield self._step_end
            self._complete()

    def _next_ready_s(self) -> float:
        return min(r.ready_s for r in self.scheduler.loading)

    def _schedule(self, now_s: float) -> bool:
        """Schedule until something is scheduled: a request may preempt itself, and is admitted again at once.

        False when nothing can be before a load from a cache tier arrives, or when all have finished.
        """
        scheduler, cache = self.scheduler, self.scheduler.cache
        cache.now_s, cache.turn = now_s, self.env.turn
        self._receive(self._last_start_s if scheduler.ahead else now_s)
        for _ in range(4 + len(scheduler.running)):  # in each but a few somebody preempts itself
            taken, evicted = cache.taken, cache.evicted
            some = scheduler.schedule(now_s)
            for request in scheduler.preempted if self.life is not None else ():
                self.life[request].append(("preempted", now_s, now_s, 0))  # type: ignore[index]
            if self.step_log is not None:
                self._log_row(now_s, scheduler.row_at_start(cache.taken - taken, cache.evicted - evicted))
            if some:
                break
            waits = scheduler.loading and not (scheduler.preempted or scheduler.freed)
            if not self._receive(now_s) and (waits or not scheduler.busy):
                break
        else:
            raise RuntimeError(
                f"replica {self.index} at {now_s} s: nothing can be scheduled, yet {len(scheduler.waiting)} wait and"
                f" {len(scheduler.running)} run"
            )
        if scheduler.changed or scheduler.freed or not self._settled:
            self._sample(now_s)
            self._settled = True
        return some

    def _time_steps(self, start_s: float) -> None:
        scheduler = self.scheduler
        start_s += scheduler.stall_s
        chunks, n, sum_context, max_context, sampled = scheduler.shape()
        self._shape = chunks, sum_context, sampled
        alone = self.most_steps > 1 and not (self._given_up or self._read or (self._held and scheduler.joins_next()))
        k = scheduler.stretch(self.most_steps) if alone else 1
        if k == 1:
            seconds, code = self.step_time.step(chunks, n, sum_context, max_context, sampled)
            self._ends = array("d", (start_s + (seconds + self.overhead_s),))
            self._codes = bytes((code,))
            return
        if chunks:
            self._time_prefill(start_s, chunks[0], n, sum_context, max_context, k)
            return
        times, codes = self.step_time.decode_stretch(n, sum_context, max_context, k)
        ends = times + self.overhead_s
        ends[0] += start_s
        self._ends = array("d", ends.cumsum().tobytes())
        self._codes = np.asarray(codes, np.int8).tobytes()
        if scheduler.loading:  # the first step after a load's arrival is another one
            del self._ends[bisect_left(self._ends, self._next_ready_s()) + 1 :]

    def _time_prefill(
        self, start_s: float, chunk: tuple[int, int], n: int, sum_context: int, max_context: int, k: int
    ) -> None:
        """k steps with a chunk of one prompt each, beside the same n decodes."""
        step, (new, cached) = self.step_time.step, chunk
        ends, codes = array("d"), bytearray()
        for i in range(k):
            seconds, code = step([(new, cached + i * new)], n, sum_context + i * n, max_context + i if n else 0, n)
            start_s += seconds + self.overhead_s
            ends.append(start_s)
            codes.append(code)
        self._ends, self._codes = ends, bytes(codes)
        self.scheduler.announce(ends)
        self._announced = True

    def _complete(self) -> None:
        scheduler, ends = self.scheduler, self._ends
        k, end_s = len(ends), ends[-1]
        self._last_start_s = ends[-2] if k > 1 else self._start_s
        if k > 1 or self._announced:  # of a stretch cut to its first step nothing more arrives
            scheduler.fast_forward(k - 1)
            self._announced = False
        scheduler.cache.now_s = end_s
        self._record_steps(k)
        if self.life is not None:
            self._record_life(self.life, self._start_s)
        if scheduler.finishing_now():
            self._sample(end_s)  # before they let go of their blocks
        finished = scheduler.complete()
        if self.step_log is not None:
            self._log_row(self._start_s, scheduler.row_at_end())
        self._ends = NO_STEPS
        if finished:
            self._settled = False
            for request in finished:
                if request in self._given_up:
                    del self._given_up[request]
                    self._let_go(request, self.log.prompt[request] + self.log.output[request] - 1)
                elif self._sends:
                    self.env.call_at(self.record.sent_s[-1], request, self.front.finished)
                else:
                    self.front.finished(request)
            if not scheduler.busy:
                self._sample(end_s)
                self._settled = True

    def stop(self, now_s: float) -> None:
        """The clock stops here: keep the steps of the stretch in progress that have ended."""
        if self.life is not None:
            self._cut_lives(self.life, now_s)
        k = bisect_left(self._ends, now_s)
        if k:
            self.scheduler.fast_forward(k)  # the step in progress holds its blocks
            self._record_steps(k)
        if self.scheduler.tiers is not None:
            self.scheduler.write_out()

    # -- records ----------------------------------------------------------------------------------------------------
    def _record_steps(self, k: int) -> None:
        """The first k steps of the present stretch have ended."""
        chunks, sum_context, sampled = self._shape
        if self._sends:
            self._send(k)
            self._sent = 0
        self.record.stretch(
            self._start_s, self._ends[:k], self._codes[:k], chunks, self.scheduler.decoded, sum_context, sampled
        )
        if self._speculates:
            self.record.emitted.append(self.scheduler.emits)  # type: ignore[attr-defined]

    def _sample(self, t_s: float) -> None:
        s, cache = self.scheduler, self.scheduler.cache
        self.record.sample(
            t_s,
            cache.total - cache.blank - cache.idle,
            cache.idle,
            len(s.running),
            len(s.waiting) + len(self._held) + len(self._reading),
        )

    def _log_row(self, start_s: float, row: tuple | None) -> None:
        if row is not None and self.step_log is not None:
            self.step_log.append((self.index, start_s, *row))

    def _record_life(self, life: list[list[tuple]], start_s: float, cut_s: float = inf) -> None:
        for end_s in self._ends if self.scheduler.chunks else ():
            if start_s >= cut_s:
                break
            for r, tokens in self.scheduler.chunks:
                life[r.id].append(("prefill", start_s, min(end_s, cut_s), tokens))
            start_s = end_s

    def _cut_lives(self, life: list[list[tuple]], now_s: float) -> None:
        """The clock stops: the chunks begun until now, and from when those are out that have not caught up since they
        were preempted."""
        self._record_life(life, self._start_s, now_s)
        scheduler = self.scheduler
        out = set(scheduler.unfinished()) - {r.id for r in scheduler.running}  # type: ignore[attr-defined]
        out |= {r.id for r, _ in scheduler.chunks} if self._ends else set()
        for request in out:
            stopped_s = [start_s for what, start_s, *_ in life[request] if what == "preempted"]
            life[request] += [("preempted", start_s, now_s, 0) for start_s in stopped_s[-1:]]
