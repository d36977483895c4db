"""Stop a simulation whose verdict is certain: more requests of a class have missed their limits than its target leaves
room for.

The one idea: a request has certainly missed a limit when the time since its arrival (or its first token) is beyond it
already, whatever comes later, so the count only grows and a stopped run would have missed the target to the end. A
request that has finished, was refused or came outside the window is settled: a look reads those that are not.

    hopeless = Hopeless(workload, scenario.slo, scenario.run)
    run(workload, params, step_time, hopeless=hopeless); hopeless.stopped_s
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from simpy.core import StopSimulation

from sim.fleet.replica import Replica
from sim.log import RequestLog
from sim.measure.metrics import limits_of
from sim.measure.verdict import groups, named_limits
from sim.recording import NOT_ARRIVED, STATUS
from sim.scenario import RunConfig, SloConfig
from workloads.clock import earliest_s
from workloads.columns import Workload

LOOKS = 64  #: at most about so many counts in a run: each reads every request that is not settled
FEWEST = 100  #: arrivals and completions between two of them at least
MARGIN = 1 + 1e-9  #: a limit missed by less than rounding is not certain
LIMITS = ("ttft_s", "tpot_s", "e2e_s")
REFUSED = np.array([name.startswith("rejected") or name == "abandoned" for name in STATUS])


def may_arrive(workload: Workload, run: RunConfig) -> np.ndarray:
    """bool [n]: requests that can arrive in the window: those released by the clock in it, and those that wait for
    another and would not come after its end if every answer took no time."""
    if workload.concurrency is not None:
        return np.ones(len(workload), bool)
    end_s = np.inf if run.duration_s is None else run.duration_s
    waits = workload.column("after") >= 0
    return (earliest_s(workload) <= end_s) & (waits | (workload.arrival_s >= (run.warmup_s or 0.0)))


class Hopeless:
    """Counts certain misses now and then; `stopped_s` is when they became too many, None if they never did."""

    def __init__(self, workload: Workload, slo: SloConfig, run: RunConfig, misses_allowed: int | None = None) -> None:
        """misses_allowed: of all requests together; without it each group of the verdict has what its target leaves."""
        self.misses_allowed = misses_allowed
        self.every = max(FEWEST, 2 * len(workload) // LOOKS)
        self.stopped_s: float | None = None
        self.missed: dict[str, int] = {}
        self.arrived = 0
        self._run = run
        self._end_s = np.inf if run.duration_s is None else run.duration_s
        self._output = workload.output_tokens
        self._may = may_arrive(workload, run)
        limits, class_id = [one for _, one in limits_of(workload, slo)], workload.column("class_id").astype(np.int64)
        each = {
            name: np.array([np.inf if getattr(one, name) is None else getattr(one, name) for one in limits])
            for name in LIMITS
        }
        self._limit = {name: by_class[class_id] * MARGIN for name, by_class in each.items()}
        judged = groups(named_limits(workload, limits_of(workload, slo)), slo)
        self._groups = [(name, target, np.isin(class_id, members)) for name, target, members in judged]
        n = len(workload)
        self._open = np.arange(n)  # not settled
        self._first_s, self._finish_s = np.full(n, np.nan), np.full(n, np.nan)  # of what a look has found
        self._counted = np.zeros(n, bool)  # arrivals in the window
        self._missed = {name: np.zeros(n, bool) for name in ("any", *LIMITS)}

    def look(self, now_s: float, log: RequestLog, replicas: Sequence[Replica]) -> None:
        """Stop the clock once the target is out of reach. Called inside an event."""
        self._update(now_s, log, replicas)
        if self._too_many():
            self.stopped_s, self.arrived = now_s, int(self._counted.sum())
            self.missed = {name: int(missed.sum()) for name, missed in self._missed.items()}
            raise StopSimulation(None)

    def _too_many(self) -> bool:
        missed = self._missed["any"]
        if self.misses_allowed is not None:
            return int(missed.sum()) > self.misses_allowed
        return any(
            int((missed & mine).sum()) > (1 - target) * int((self._may & mine).sum()) + 1e-9
            for _, target, mine in self._groups
        )

    def _update(self, now_s: float, log: RequestLog, replicas: Sequence[Replica]) -> None:
        """Which of the open requests have arrived, and which of those have certainly missed each limit; rejected ones
        miss all."""
        status, arrival_s = np.frombuffer(log.status, np.int8), np.frombuffer(log.arrival_s)
        came = self._open[status[self._open] != NOT_ARRIVED]
        inside = (arrival_s[came] >= (self._run.warmup_s or 0.0)) & (arrival_s[came] <= self._end_s)
        rows = came[inside]
        begun = np.frombuffer(log.first_step, np.int64)[rows] >= 0
        self._first_s[rows[~begun]] = np.nan  # a first token that its client gave up
        _tell_times(self._first_s, rows, log.first_step, log, replicas)
        _tell_times(self._finish_s, rows, log.last_step, log, replicas)
        refused, waited = REFUSED[status[rows]], self._waited(rows, arrival_s[rows], now_s)
        self._counted[rows] = True
        for name in LIMITS:
            self._missed[name][rows] = missed = refused | (waited[name] > self._limit[name][rows])
            self._missed["any"][rows] |= missed
        self._may[came[~inside]] = False
        settled = rows[refused | ~np.isnan(self._finish_s[rows])]
        self._open = np.setdiff1d(self._open, np.concatenate([came[~inside], settled]), assume_unique=True)

    def _waited(self, rows: np.ndarray, arrival_s: np.ndarray, now_s: float) -> dict[str, np.ndarray]:
        """float64 [rows], seconds: what each limit is held against, at least so much by now."""
        first_s, finish_s, gaps = self._first_s[rows], self._finish_s[rows], self._output[rows] - 1
        until_s = np.where(np.isnan(finish_s), now_s, finish_s)
        return {
            "ttft_s": np.where(np.isnan(first_s), now_s, first_s) - arrival_s,
            "tpot_s": np.where(np.isnan(first_s) | (gaps < 1), 0.0, (until_s - first_s) / np.maximum(gaps, 1)),
            "e2e_s": until_s - arrival_s,
        }

    def as_document(self) -> dict[str, Any]:
        """at_most: what the share of the group that is furthest out of reach can still become; failed: its name."""
        shares = {
            name: 1 - int((self._missed["any"] & mine).sum()) / max(int((self._may & mine).sum()), 1) - target
            for name, target, mine in self._groups
        }
        failed = min(shares, key=lambda name: shares[name], default="")
        target = next((target for name, target, _ in self._groups if name == failed), 0.0)
        return {
            "stopped_s": self.stopped_s,
            "missed": self.missed,
            "arrived": self.arrived,
            "requests": int(self._may.sum()),
            "failed": failed if len(shares) > 1 else "",
            "at_most": shares.get(failed, 0.0) + target,
        }


def _tell_times(
    times_s: np.ndarray, rows: np.ndarray, steps: Sequence[int], log: RequestLog, replicas: Sequence[Replica]
) -> None:
    """When clients have had the tokens of the steps that rows have come to since the last look."""
    known = np.isnan(times_s[rows]) & (np.frombuffer(steps, np.int64)[rows] >= 0)  # type: ignore[call-overload]
    for row in rows[known].tolist():
        times_s[row] = replicas[log.replica[row]].record.told_s(steps[row])
