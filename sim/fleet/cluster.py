"""Arrivals and routing: open loop, sessions whose next turn follows the last answer, and fixed concurrency.

The one idea: a request is released either by the clock (`arrival_s`) or by the end of another one (`after`, `delay_s`).
Only the next clocked arrival is in the event queue, so ten million requests cost no memory there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from sim.fleet.arrivals import Arrivals
from sim.fleet.clients import Clients
from sim.fleet.clock import Clock
from sim.fleet.gate import Gate
from sim.fleet.replica import Replica
from sim.fleet.router import Router
from sim.log import RequestLog
from sim.recording import (
    ABANDONED,
    ABORTED,
    COMPLETED,
    KV_TOO_SMALL,
    NOT_ARRIVED,
    QUEUE_FULL,
    SESSION_TRUNCATED,
    SHED,
    TOO_LONG,
    UNFINISHED,
)
from sim.scenario import EngineParams
from workloads.columns import Workload

TELL_EVERY = 500


class Cluster:
    """The fleet's front: releases requests, rejects those no replica can serve, routes the rest."""

    def __init__(
        self,
        env: Clock,
        workload: Workload,
        arrivals: Arrivals,
        params: EngineParams,
        log: RequestLog,
        router: Router,
        holds: Callable[[int], bool],
        longest_prompt: float,
        until_arrival_s: float | None = None,
        on_clock: Callable[[float, float], None] | None = None,
        clients: Clients | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.env = env
        self.clients, self.gate = clients, gate
        self._at: dict[int, Replica] = {}  # with clients: where each request is
        self._let_go: dict[int, float | None] = {}  # attempts given up that an engine still has: when the next begins
        self._longest = params.max_model_len  # prompt and output
        self._longest_prompt = longest_prompt
        self.log = log
        self.router = router
        self._holds = holds  # whether a replica has memory for a request of so many tokens
        self._held = 0  # the most that it is known to have memory for
        self.replicas: list[Replica] = []  # filled by the caller, before start()
        self.taking: list[Replica] = []  # of them, those that take requests
        self.waiting: deque[int] = deque()  # requests while none does
        self.retries: dict[int, int] = {}  # request -> how often a failure has sent it back
        self._on_clock = on_clock
        self.told = 0  # arrivals and completions so far
        self._look: Callable[[float], None] | None = None
        self._every = 1
        self._until_s = np.inf if until_arrival_s is None else until_arrival_s
        self._arrivals = arrivals
        self._slots: _Slots | None = None
        if workload.concurrency is not None:
            self._slots = _Slots(workload, arrivals.first)
            self._clocked = np.empty(0, np.int64)
        else:
            self._clocked = arrivals.clocked
        self._next_clocked = 0

    def serve_only(self, clocked: np.ndarray, told: int) -> None:
        """Of those released by the clock these come, int64 in their order; others are served by other fronts, which
        have told of so many arrivals and completions before."""
        self._clocked, self.told = clocked, told

    def begin_after(self, time_s: float, routed: int) -> None:
        """Leave out sessions that begin by `time_s`: a saved cache stands for them. A router in turns goes on after
        `routed`."""
        if self._slots is not None:
            raise ValueError(
                "a fixed concurrency has no time at which one part of its sessions ends and another begins"
            )
        self._clocked = self._clocked[self._arrivals.at_s[self._clocked] > time_s]
        self.router.resumed(routed)

    def watch(self, every: int, look: Callable[[float], None]) -> None:
        """Call `look` with the time after each `every` arrivals and completions."""
        self._every, self._look = every, look

    def start(self) -> None:
        self.taking = list(self.replicas)
        if self._slots is not None:
            for request, offset_s in self._slots.begin():
                self._release_at(offset_s, request)
        self._schedule_clocked()

    # -- releases ---------------------------------------------------------------------------------------------------
    def _schedule_clocked(self) -> None:
        if self._next_clocked < len(self._clocked):
            request = self._clocked.item(self._next_clocked)
            self._next_clocked += 1
            time_s = self._arrivals.at_s.item(request)
            if time_s <= self._until_s:
                self.env.call_at(time_s, request, self._clocked_arrival)

    def _clocked_arrival(self, request: int) -> None:
        self._schedule_clocked()
        self._arrive(request)

    def _release_at(self, time_s: float, request: int) -> None:
        if time_s <= self._until_s:
            self.env.call_at(time_s, request, self._arrive)

    def finished(self, request: int) -> None:
        """A replica sampled the request's last token now."""
        self.log.status[request] = COMPLETED
        self.router.finished(request, self.replicas[self.log.replica[request] - self.replicas[0].index])
        if self.clients is not None:
            self.clients.ends(request)
            del self._at[request]
        self._tell()
        if self._arrivals.closed:
            for follower in self._arrivals.followers_of(request):
                self._release_at(self.env.now + self._arrivals.delay_s[follower], follower)
        self._leave(request)

    def refused(self, request: int) -> None:
        """A replica has turned the request away: too much is on it (HTTP 503)."""
        self._refuse(request, QUEUE_FULL)

    def _tell(self) -> None:
        """A request has arrived or completed; each is half of it."""
        self.told += 1
        if self._on_clock is not None and self.told % TELL_EVERY == 0:
            self._on_clock(self.env.now, self.told / (2 * len(self.log.status)))
        if self._look is not None and self.told % self._every == 0:
            self._look(self.env.now)

    def _leave(self, request: int) -> None:
        """Fixed concurrency: when a session's last request is gone, the next session begins."""
        if self._slots is not None:
            for started, offset_s in self._slots.done(request, self.env.now):
                self._release_at(self.env.now + offset_s, started)

    # -- arrivals ---------------------------------------------------------------------------------------------------
    def _arrive(self, request: int) -> None:
        self.log.arrival_s[request] = self.env.now
        self._tell()
        reason = self.cannot_serve(request)
        if reason:
            self._turn_away(request, reason)
            return
        self.log.status[request] = UNFINISHED
        self._attempt(request)

    def _attempt(self, request: int) -> None:
        """Its client sends it, for the first time or again."""
        if self.clients is not None:
            self.clients.begins(request, self._give_up)
        if self.gate is not None and self.gate.refuses(request, self.open_to(request), len(self.waiting)):
            self._refuse(request, SHED)
        else:
            self._route(request)

    def _refuse(self, request: int, reason: int) -> None:
        if self.clients is None:
            self._turn_away(request, reason)
            return
        self.clients.refusals[request] += 1
        self.clients.ends(request)
        self._at.pop(request, None)
        self.log.forget([request])
        pause_s = self.clients.again_s(request)
        if pause_s is None:
            self._turn_away(request, reason)
        else:
            self.env.call_at(self.env.now + pause_s, request, self._attempt)

    def _give_up(self, request: int) -> None:
        """Its client no longer waits for this attempt."""
        assert self.clients is not None
        self.clients.ends(request)
        pause_s = self.clients.again_s(request)
        self._let_go[request] = None if pause_s is None else self.env.now + pause_s
        if pause_s is None:
            self.clients.abandoned_s[request] = self.env.now
            self._turn_away(request, ABANDONED)
        if request in self._at:
            self._at[request].drop(request)
        else:
            self.waiting.remove(request)
            self.dropped(request, 0)

    def dropped(self, request: int, computed: int) -> None:
        """Nothing holds an attempt any more that its client gave up; the tokens that it had computed or found.

        The next attempt begins now at the earliest: an engine that has not let go of the last one has no room for
        it."""
        assert self.clients is not None
        self.clients.wasted(request, computed)
        replica = self._at.pop(request, None)
        if replica is not None:
            self.router.finished(request, replica)
        self.log.forget([request])
        again_s = self._let_go.pop(request)
        if again_s is not None:
            self.env.call_at(max(again_s, self.env.now), request, self._attempt)

    def stop(self) -> None:
        """The clock has stopped: nothing is told of attempts that were given up in the last step."""
        for replica in self.replicas:
            replica.stop(self.env.now)
        self.log.forget(list(self._let_go))

    def _route(self, request: int) -> None:
        if not self.taking:
            self.waiting.append(request)
            return
        replica = self.choose(request, self.open_to(request))
        if self.clients is not None:
            self._at[request] = replica
        replica.receive(request)

    def open_to(self, request: int) -> list[Replica]:
        """Of those that take requests, the replicas that this one may go to."""
        return self.taking

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        return self.router.choose(request, replicas)

    def cannot_serve(self, request: int) -> int:
        """The status of a request that no replica could ever serve; 0 of any other."""
        prompt = self.log.prompt[request]
        tokens = prompt + self.log.output[request]
        if tokens > self._longest or prompt > self._longest_prompt:
            return TOO_LONG
        if tokens > self._held:
            if not self._holds(tokens):
                return KV_TOO_SMALL
            self._held = tokens
        return 0

    # -- replicas that come and go ----------------------------------------------------------------------------------
    def resized(self) -> None:
        """A replica takes requests from now on, or no more: those that found none go to the first."""
        self.taking = [replica for replica in self.replicas if replica.takes]
        self.router.resized(self.taking)
        while self.taking and self.waiting:
            self._route(self.waiting.popleft())

    @property
    def occupied(self) -> bool:
        """Whether requests wait here, or for an engine that has just started."""
        return bool(self.waiting) or not all(replica.empty for replica in self.replicas)

    def returned(self, requests: list[int], retried: bool) -> None:
        """A replica has failed with these on it: they begin again, as if nothing had been computed, or are aborted."""
        lost = [request for request in requests if self.log.status[request] == UNFINISHED]  # no last token is out
        self.log.forget(lost)
        for request in lost:
            self._at.pop(request, None)
            if retried:
                self.retries[request] = self.retries.get(request, 0) + 1
                self._route(request)
            else:
                if self.clients is not None:
                    self.clients.ends(request)
                self._turn_away(request, ABORTED)

    def _turn_away(self, request: int, reason: int) -> None:
        """The session ends here; whoever waited for its end (the same user's next session) goes on."""
        before = self._arrivals.after[request]
        in_session = before >= 0 and self._arrivals.session[before] == self._arrivals.session[request]
        self.log.status[request] = SESSION_TRUNCATED if in_session and reason == TOO_LONG else reason
        dropped = [request]
        while dropped:
            gone = dropped.pop()
            for follower in self._arrivals.followers_of(gone) if self._arrivals.closed else ():
                if self._arrivals.session[follower] == self._arrivals.session[request]:
                    self.log.status[follower] = NOT_ARRIVED
                    dropped.append(follower)
                else:
                    self._release_at(self.env.now + self._arrivals.delay_s[follower], follower)
            self._leave(gone)


class _Slots:
    """Fixed concurrency: which sessions are active, and what starts when one ends."""

    def __init__(self, workload: Workload, first: np.ndarray) -> None:
        _, session = np.unique(workload.column("session_id"), return_inverse=True)
        lead = np.full(session.max() + 1 if len(session) else 0, len(session), np.int64)
        np.minimum.at(lead, session, np.arange(len(session)))
        self._order = np.argsort(lead, kind="stable")  # sessions by their first row
        self._session = session
        self._left = np.bincount(session)
        self._starts: dict[int, list[int]] = {}
        for request in first.tolist():
            self._starts.setdefault(int(session[request]), []).append(request)
        self._arrival_s = workload.arrival_s
        self._limit = workload.concurrency or 1
        self._paced = workload.paced
        self._turnaround_s = workload.turnaround_s
        self._next = 0

    def begin(self) -> list[tuple[int, float]]:
        return [start for _ in range(min(self._limit, len(self._order))) for start in self._start_next()]

    def done(self, request: int, now_s: float) -> list[tuple[int, float]]:
        session = self._session[request]
        self._left[session] -= 1
        if self._left[session]:
            return []
        return [(r, offset_s + self._turnaround_s) for r, offset_s in self._start_next(now_s)]

    def _start_next(self, now_s: float = 0.0) -> list[tuple[int, float]]:
        """First requests of the next session, with how long after now each begins; with a pace no earlier than the
        session arrives, its place kept free for it."""
        requests: list[int] = []
        while not requests:
            if self._next >= len(self._order):
                return []
            requests = self._starts.get(int(self._order[self._next]), [])
            self._next += 1
        times_s = self._arrival_s[requests]
        offsets = np.where(np.isfinite(times_s), times_s - times_s[0], 0.0)
        if self._paced:
            offsets = offsets + max(0.0, float(times_s[0]) - now_s)
        return [(r, max(0.0, float(o))) for r, o in zip(requests, offsets, strict=True)]
