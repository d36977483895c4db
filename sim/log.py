"""What happens to each request, written as it happens: typed arrays indexed by request id."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import nan
from mmap import mmap
from typing import Any

import numpy as np

from sim.recording import NOT_ARRIVED
from sim.request import Request
from workloads.columns import Workload

COUNTS = (
    "hit_tokens",
    "ceiling_replica_tokens",
    "ceiling_fleet_tokens",
    "window_tokens",
    "readmission_hit_tokens",
    "preemptions",
    "recomputed_tokens",
    "prefill_chunks",
)
UNTOLD: dict[str, Any] = {  # whole numbers and others: compiled, a float would be both
    "admit_s": nan,
    "preempted_s": 0.0,
    "load_s": 0.0,
    "frontend_s": 0.0,
    "first_step": -1,
    "last_step": -1,
    "replica": -1,
}
UNTOLD |= dict.fromkeys(COUNTS, 0)
"""Columns of a request that nothing has happened to but its arrival."""
Happened = tuple[array, array, int, int]
"""readmissions, gaps, drafts and accepted of a log."""


def own_column(code: str, value: Any, n: int) -> array:
    """n times the value."""
    return array(code, [value]) * n


def shared_column(code: str, value: Any, n: int) -> Any:
    """The same, in memory that copies of this process share."""
    column: Any = memoryview(mmap(-1, max(n, 1) * array(code).itemsize)).cast(code)[:n]  # type: ignore[call-overload]
    np.asarray(column)[:] = value
    return column


PACKS_FROM = 1 << 25
"""Output tokens, which no run has more steps than, from which on the times of steps are kept packed: a tenth of the
memory for a tenth more time."""


class RequestLog:
    """Input columns as cheap look-ups, output columns as arrays. One per simulation, shared by its replicas; with
    `shared` also by copies of this process, whose replicas write into the same memory."""

    def __init__(self, workload: Workload, n_tiers: int = 0, front_end: bool = False, shared: bool = False) -> None:
        n = len(workload)
        column = shared_column if shared else own_column
        self.workload = workload
        self.packs = int(workload.output_tokens.sum()) >= PACKS_FROM
        self.prompt = workload.prompt_tokens.data
        self.output = workload.output_tokens.data
        self.max_tokens = workload.column("max_tokens").data
        self.priority = workload.column("priority").data
        self.lora = workload.column("lora").data
        for name in ("arrival_s", "admit_s"):
            setattr(self, name, column("d", nan, n))
        self.preempted_s = column("d", 0.0, n)
        for name in COUNTS:
            setattr(self, name, column("q", 0, n))
        self.first_step = column("q", -1, n)
        self.last_step = column("q", -1, n)
        self.replica = column("i", -1, n)
        self.status = column("b", NOT_ARRIVED, n)
        self.tier_hit_tokens = [column("q", 0, n) for _ in range(n_tiers)]
        self.load_s = column("d", 0.0, n if n_tiers else 0)
        self.frontend_s = column("d", 0.0, n if front_end else 0)
        self.asked: Callable[[Request, int], None] | None = None  # who wants to know of `hit` and its last number
        self.drafts = self.accepted = 0  # speculative decoding: verifications, and drafted tokens accepted in them
        self.readmissions = array("q")  # (request, hit tokens, known tokens) of each, one after the other
        self.gaps = array(
            "q"
        )  # (request, step, step) of each, one after the other: SGLang has one for every decode that a prefill holds up

    arrival_s: array[float]
    admit_s: array[float]
    preempted_s: array[float]
    hit_tokens: array[int]
    ceiling_replica_tokens: array[int]
    ceiling_fleet_tokens: array[int]
    window_tokens: array[int]
    readmission_hit_tokens: array[int]
    preemptions: array[int]
    recomputed_tokens: array[int]
    prefill_chunks: array[int]

    def taken(self) -> Happened:
        """What has happened that is in no column, which begins anew (mutates)."""
        happened = self.readmissions, self.gaps, self.drafts, self.accepted
        self.readmissions, self.gaps, self.drafts, self.accepted = array("q"), array("q"), 0, 0
        return happened

    def add(self, happened: Happened) -> None:
        """What has happened after all that has so far."""
        readmissions, gaps, drafts, accepted = happened
        self.readmissions = self.readmissions + readmissions if self.readmissions else readmissions
        self.gaps = self.gaps + gaps if self.gaps else gaps
        self.drafts += drafts
        self.accepted += accepted

    def admitted(self, r: Request, now_s: float) -> None:
        """For the first time, or again after a preemption."""
        if r.preempted_at < 0:
            self.admit_s[r.id] = now_s
        else:
            self.preempted_s[r.id] += now_s - r.preempted_at

    def hit(self, r: Request, tokens: int, ceiling_replica: int, ceiling_fleet: int) -> None:
        """Tokens that a first admission found in the cache, and those it would have found had nothing been evicted."""
        self.hit_tokens[r.id] = tokens
        self.ceiling_replica_tokens[r.id] = ceiling_replica
        self.ceiling_fleet_tokens[r.id] = ceiling_fleet
        if self.asked is not None:
            self.asked(r, ceiling_fleet)

    def hit_again(self, r: Request, tokens: int) -> None:
        """Tokens that an admission after a preemption found in the cache."""
        self.readmissions.extend((r.id, tokens, r.known))
        self.readmission_hit_tokens[r.id] += tokens
        r.resumed_at = tokens

    def recomputed(self, r: Request, computed: int) -> None:
        """Tokens that an admission after a preemption computed a second time, once it has caught up or is preempted
        again."""
        if r.resumed_at >= 0:
            self.recomputed_tokens[r.id] += max(0, min(r.done_before, computed) - r.resumed_at)
            r.resumed_at = -1

    def verified(self, accepted: int) -> None:
        """A draft of which the model has accepted so many tokens."""
        self.drafts += 1
        self.accepted += accepted

    def forget(self, requests: list[int]) -> None:
        """All that was computed for them is lost, and what was told of it with it: they have only arrived."""
        emitted = [request for request in requests if self.first_step[request] >= 0]
        for name, value in UNTOLD.items():
            column = getattr(self, name)
            for request in requests if column else ():
                column[request] = value
        for tier in self.tier_hit_tokens:
            for request in requests:
                tier[request] = 0
        if emitted and self.gaps:
            gaps = self._gaps()
            self.gaps = array("q", gaps[~np.isin(gaps[:, 0], emitted)].tobytes())

    def gap(self, request: int, from_step: int, to_step: int) -> None:
        """Two consecutive output tokens of a request that are not one step apart."""
        if to_step - from_step > 1:
            self.gaps.extend((request, from_step, to_step))

    def take_back_gap(self, request: int) -> int:
        """The newest gap of a request has not been one: the output after it is lost. The step of the one before it."""
        gaps = self.gaps
        at = next(i for i in range(len(gaps) - 3, -1, -3) if gaps[i] == request)
        from_step = gaps[at + 1]
        del gaps[at : at + 3]
        return from_step

    def _gaps(self) -> np.ndarray:
        """int64 [m, 3]"""
        return np.frombuffer(self.gaps, np.int64).reshape(-1, 3) if self.gaps else np.empty((0, 3), np.int64)

    def columns(self) -> dict[str, np.ndarray]:
        """Every output column as numpy, ready for a Recording."""
        names = (
            "arrival_s admit_s preempted_s hit_tokens ceiling_replica_tokens ceiling_fleet_tokens"
            " window_tokens"
            " readmission_hit_tokens preemptions recomputed_tokens prefill_chunks first_step last_step replica status"
        )
        out = {name: np.asarray(memoryview(getattr(self, name))) for name in names.split()}
        gaps = self._gaps()
        if self.tier_hit_tokens:
            out["tier_hit_tokens"] = np.array(self.tier_hit_tokens, np.int64).T
            out["load_s"] = np.asarray(memoryview(self.load_s))
        if len(self.frontend_s):
            out["frontend_s"] = np.asarray(memoryview(self.frontend_s))
        return out | {"gaps_request": gaps[:, 0], "gaps_from_step": gaps[:, 1], "gaps_to_step": gaps[:, 2]}
