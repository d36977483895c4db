"""A router that knows everything, to say what routing can be worth at most about: no engine has it.

The one idea: the request goes where it costs the least time, its own and others': what is still to be computed before
its first token, given what every cache holds now, and what its prefill and its decode steps take from each sequence
running there.

    run(workload, params, step_time, replicas=4, oracle=True)
"""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.latency import StepTime
from sim.fleet.replica import Replica
from sim.fleet.router import Router
from sim.log import RequestLog
from sim.scenario import EngineParams

BATCH, CONTEXT = 64, 2048  #: a decode batch whose time per sequence stands for any


class Oracle(Router):
    def __init__(self, params: EngineParams, step_time: StepTime, log: RequestLog) -> None:
        chunk = params.max_num_batched_tokens
        self._token_s = step_time.step([(chunk, 0)], 0, 0, 0, 1)[0] / chunk
        self._decode_s = step_time.step([], BATCH, BATCH * CONTEXT, CONTEXT, BATCH)[0] / BATCH
        self._log = log
        self._ahead: dict[
            int, dict[int, int]
        ] = {}  # replica -> request without a first token -> tokens it has to compute

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        prompt, output = self._log.prompt[request], self._log.output[request]
        best, least, best_new = replicas[0], float("inf"), prompt
        for replica in replicas:
            new = prompt - replica.cached_tokens(request)
            harm_s = len(replica.scheduler.running) * (new * self._token_s + output * self._decode_s)
            cost_s = (self._backlog(replica.index) + new) * self._token_s + harm_s
            if cost_s < least:
                best, least, best_new = replica, cost_s, new
        self._ahead[best.index][request] = best_new
        return best

    def resized(self, replicas: Sequence[Replica]) -> None:
        self._ahead = {replica.index: self._ahead.get(replica.index, {}) for replica in replicas}

    def _backlog(self, replica: int) -> int:
        ahead = self._ahead.setdefault(replica, {})
        for request in [r for r in ahead if self._log.first_step[r] >= 0]:
            del ahead[request]
        return sum(ahead.values())
