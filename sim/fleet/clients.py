"""What clients do when no answer comes: they give up after a while, and try again after a pause.

The one idea: a request is one row, however often its client sends it. An attempt ends with an answer, a refusal or a
timeout; what an attempt that came to nothing has made a GPU compute is wasted, and counted here. Latency counts from
the first attempt.

    run(workload, params, step_time, clients=ClientConfig(timeout_s=30.0, retries=2))

A pause is backoff_s, twice as long after every attempt up to max_backoff_s, less a random part of up to a quarter: as
OpenAI's Python client waits, whose defaults these are. The random part of a request is a stream of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import inf, nan
from random import Random

import numpy as np
import simpy

from sim.fleet.clock import Clock
from sim.log import RequestLog
from sim.recording import ClientUse
from sim.scenario import ClientConfig

JITTER = 0.25


class Clients:
    """Of all requests of a run. Mutates only what it counts, and its alarms."""

    def __init__(self, env: Clock, log: RequestLog, config: ClientConfig, seed: int) -> None:
        n = len(log.status)
        self.env, self.log, self.config, self._seed = env, log, config, seed
        self.attempts = array("q", [0]) * n
        self.refusals = array("q", [0]) * n
        self.timeouts = array("q", [0]) * n
        self.wasted_tokens = array("q", [0]) * n
        self.abandoned_s = array("d", [nan]) * n
        self._alarms: dict[int, simpy.Event] = {}
        self._first_s = inf if config.first_token_timeout_s is None else config.first_token_timeout_s
        self._whole_s = inf if config.timeout_s is None else config.timeout_s

    def begins(self, request: int, gives_up: Callable[[int], None]) -> None:
        """An attempt begins now (mutates); gives_up(request) is called when its client no longer waits for it."""
        self.attempts[request] += 1
        now_s = self.env.now
        self._alarm(request, now_s + min(self._first_s, self._whole_s), now_s + self._whole_s, gives_up)

    def _alarm(self, request: int, at_s: float, last_s: float, gives_up: Callable[[int], None]) -> None:
        """last_s: when it gives up although it has had a first token."""
        if at_s == inf:
            return

        def rings(_: int) -> None:
            if at_s < last_s and self.log.first_step[request] >= 0:
                self._alarm(request, last_s, last_s, gives_up)
            else:
                self.timeouts[request] += 1
                gives_up(request)

        self._alarms[request] = self.env.call_at(at_s, request, rings, self.attempts[request])

    def ends(self, request: int) -> None:
        """The attempt is over (mutates): nobody waits for it any more."""
        self.env.cancel(self._alarms.pop(request, None))

    def again_s(self, request: int) -> float | None:
        """Seconds until the client tries again, once an attempt has come to nothing; None when it does not."""
        tried = self.attempts[request]
        if tried > self.config.retries:
            return None
        pause_s = min(self.config.backoff_s * 2.0 ** min(tried - 1, 60), self.config.max_backoff_s)
        stream = np.random.SeedSequence(self._seed, spawn_key=(3, request, tried)).generate_state(4)  # stream 3
        return pause_s * (1 - JITTER * Random(stream.tobytes()).random())

    def wasted(self, request: int, computed: int) -> None:
        """An attempt is gone that had so many tokens in the cache's memory, or computed before it lost that
        (mutates)."""
        if computed:
            self.wasted_tokens[request] += computed - self.log.hit_tokens[request] + self.log.recomputed_tokens[request]

    def use(self) -> ClientUse:
        return ClientUse(
            np.array(self.attempts, np.int64),
            np.array(self.refusals, np.int64),
            np.array(self.timeouts, np.int64),
            np.array(self.wasted_tokens, np.int64),
            np.array(self.abandoned_s, np.float64),
        )
