"""Stop a simulation whose verdict is certain: more requests have missed their limits than the target leaves room for.

The one idea: a request has certainly missed a limit when the time since its arrival (or its first token) is beyond it
already, whatever comes later, so the count only grows and a stopped run would have missed the target to the end.

    hopeless = Hopeless(workload, scenario.slo, scenario.run, misses_allowed=120)
    run(workload, params, step_time, hopeless=hopeless); hopeless.stopped_s
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from simpy.core import StopSimulation

from sim.log import RequestLog
from sim.metrics import limits_of
from sim.recording import NOT_ARRIVED, STATUS
from sim.replica import Replica
from sim.scenario import RunConfig, SloConfig
from workloads.columns import Workload

LOOKS = 64  #: at most about so many counts in a run: each reads every request
FEWEST = 100  #: arrivals and completions between two of them at least
MARGIN = 1 + 1e-9  #: a limit missed by less than rounding is not certain
LIMITS = ("ttft_s", "tpot_s", "e2e_s")


def most_arrivals(workload: Workload, run: RunConfig) -> int:
    """The most requests that can arrive in the window: those released by the clock in it, and all that wait for another."""
    waits = workload.column("after") >= 0
    if workload.concurrency is not None:
        return len(workload)
    end_s = np.inf if run.duration_s is None else run.duration_s
    return int((waits | ((workload.arrival_s >= (run.warmup_s or 0.0)) & (workload.arrival_s <= end_s))).sum())


class Hopeless:
    """Counts certain misses now and then; `stopped_s` is when they became too many, None if they never did."""

    def __init__(self, workload: Workload, slo: SloConfig, run: RunConfig, misses_allowed: int) -> None:
        self.misses_allowed = misses_allowed
        self.every = max(FEWEST, 2 * len(workload) // LOOKS)
        self.stopped_s: float | None = None
        self.missed: dict[str, int] = {}
        self.arrived = 0
        self._run = run
        self._output = workload.output_tokens
        self._requests = most_arrivals(workload, run)
        limits, class_id = [one for _, one in limits_of(workload, slo)], workload.column("class_id").astype(np.int64)
        each = {name: np.array([np.inf if getattr(one, name) is None else getattr(one, name) for one in limits]) for name in LIMITS}
        self._limit = {name: by_class[class_id] * MARGIN for name, by_class in each.items()}

    def look(self, now_s: float, log: RequestLog, replicas: Sequence[Replica]) -> None:
        """Stop the clock once the target is out of reach. Called inside an event."""
        arrived, misses = self._misses(now_s, log, replicas)
        some = np.logical_or.reduce(list(misses.values()))
        if int(some.sum()) > self.misses_allowed:
            self.stopped_s, self.arrived = now_s, int(arrived.sum())
            self.missed = {"any": int(some.sum()), **{name: int(missed.sum()) for name, missed in misses.items()}}
            raise StopSimulation(None)

    def _misses(self, now_s: float, log: RequestLog, replicas: Sequence[Replica]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """bool [n]: counted arrivals so far, and which of them have certainly missed each limit; rejected ones miss all."""
        arrival_s, status = np.array(log.arrival_s), np.array(log.status)
        end_s = np.inf if self._run.duration_s is None else self._run.duration_s
        arrived = (status != NOT_ARRIVED) & (arrival_s >= (self._run.warmup_s or 0.0)) & (arrival_s <= end_s)
        first_s, finish_s = np.full(len(arrival_s), now_s), np.full(len(arrival_s), now_s)
        begun = np.zeros(len(arrival_s), bool)
        where = np.array(log.replica)
        for replica in replicas:
            ends = np.array(replica.record.end_s)
            for times_s, steps in ((first_s, np.array(log.first_step)), (finish_s, np.array(log.last_step))):
                rows = np.flatnonzero((where == replica.index) & (steps >= 0))
                times_s[rows] = ends[steps[rows]]
                if times_s is first_s:
                    begun[rows] = True
        refused = np.char.startswith(np.array(STATUS), "rejected")[status]
        after_first = np.where(begun & (self._output > 1), (finish_s - first_s) / np.maximum(self._output - 1, 1), 0.0)
        waited = {"ttft_s": first_s - arrival_s, "tpot_s": after_first, "e2e_s": finish_s - arrival_s}
        return arrived, {name: arrived & (refused | (waited[name] > self._limit[name])) for name in LIMITS}

    def as_document(self) -> dict[str, Any]:
        return {
            "stopped_s": self.stopped_s, "missed": self.missed, "misses_allowed": self.misses_allowed, "arrived": self.arrived,
            "requests": self._requests,
        }  # fmt: skip
