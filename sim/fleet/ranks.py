"""Attention data-parallel ranks: one replica whose engine has several schedulers that step together.

The one idea: to its replica a group of ranks is one Scheduler. Each rank has its own queue, batch and KV cache, as in
vLLM and SGLang; every step all that have work schedule at the same moment and end together, and the step takes as long
as `calibrate.step.TogetherTime` says of their shapes. A rank that sits a step out skips its number, so step numbers are
the replica's for all of them.

A request stays on the rank that it is given to when it arrives (`Engine.ranks_in_turn`), whatever its prefix.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from itertools import chain
from typing import Any, cast

import numpy as np

from calibrate.step import Shape, TogetherTime
from sim.engine import Cache, Scheduler
from sim.fleet.replica import Replica
from sim.kvcache.ceilings import Seen
from sim.kvcache.saved import Saved
from sim.kvcache.tiers import Tiers
from sim.recording import TierUse, summed_use


class Ranks:
    """A Scheduler of several: their queues, batches and caches taken together."""

    def __init__(self, ranks: Sequence[Scheduler], in_turn: bool) -> None:
        """in_turn: requests go to each rank in turn; else to the one with the fewest, those waiting counted four
        times."""
        self.ranks = ranks
        self.cache = cast(Cache, _Caches([rank.cache for rank in ranks]))
        self.stall_s = 0.0
        self.ahead = ranks[0].ahead
        tiers = [rank.tiers for rank in ranks if rank.tiers is not None]
        self.tiers = cast(Tiers, _Tiers(tiers)) if tiers else None
        self.active: list[Scheduler] = []  # those with work in the present step
        self._in_turn = in_turn
        self._given = 0
        self._steps = 0
        self._late: set[int] = set()  # ranks that have sat out a step

    # -- queue ------------------------------------------------------------------------------------------------------
    @property
    def waiting_tokens(self) -> int:
        return sum(rank.waiting_tokens for rank in self.ranks)

    @property
    def running_tokens(self) -> int:
        return sum(rank.running_tokens for rank in self.ranks)

    @property
    def waiting(self) -> Sized:
        return _Several([rank.waiting for rank in self.ranks])

    @property
    def running(self) -> Sized:
        return _Several([rank.running for rank in self.ranks])

    @property
    def loading(self) -> Sequence[Any]:
        return [request for rank in self.ranks for request in rank.loading]

    @property
    def busy(self) -> bool:
        return any(rank.busy for rank in self.ranks)

    def _next(self) -> Scheduler:
        """The rank that the next request is given to; of equal ones the first."""
        if self._in_turn:
            return self.ranks[self._given % len(self.ranks)]
        return min(self.ranks, key=lambda rank: 4 * len(rank.waiting) + len(rank.running))

    def submit(self, request: int) -> bool:
        rank = self._next()
        self._given += 1
        return rank.submit(request) or rank not in self.active

    def joins_next(self) -> bool:
        rank = self._next()
        return rank.joins_next() or rank not in self.active

    # -- one step ---------------------------------------------------------------------------------------------------
    def schedule(self, now_s: float) -> bool:
        """Decide one step of every rank that has work; False when none has."""
        self.active = []
        for i, rank in enumerate(self.ranks):
            if i in self._late:
                rank.begin_at(self._steps)
                self._late.discard(i)
            if rank.busy and _scheduled(rank, now_s):
                self.active.append(rank)
            else:
                self._late.add(i)
        self._steps += bool(self.active)
        return bool(self.active)

    @property
    def chunks(self) -> Sequence[tuple[Any, int]]:
        return [chunk for rank in self.active for chunk in rank.chunks]

    @property
    def decoded(self) -> int:
        return sum(rank.decoded for rank in self.active)

    @property
    def preempted(self) -> list[int]:
        return [request for rank in self.ranks if rank.busy for request in rank.preempted]

    @property
    def changed(self) -> bool:
        return any(rank.changed for rank in self.ranks if rank.busy)

    @property
    def freed(self) -> bool:
        return any(rank.freed for rank in self.ranks if rank.busy)

    def shapes(self) -> list[Shape]:
        """What each rank with work computes in the present step."""
        return [rank.shape() for rank in self.active]

    def shape(self) -> tuple[list[tuple[int, int]], int, int, int, int]:
        """All of it as if it were one batch."""
        shapes = [rank.shape() for rank in self.active]
        chunks, n, total, longest, sampled = zip(*shapes, strict=True)
        return list(chain.from_iterable(chunks)), sum(n), sum(total), max(longest), sum(sampled)

    def stretch(self, most: int) -> int:
        """Decodes only: as long as every rank's. A rank that waits for anything but a load may go on any moment."""
        if self.chunks or any(rank.busy and rank not in self.active and not rank.loading for rank in self.ranks):
            return 1
        for rank in self.active:
            most = rank.stretch(most)
        return most

    def announce(self, ends_s: array[float]) -> None:
        """Nothing: a stretch has no chunk."""

    def fast_forward(self, k: int) -> None:
        self._steps += k
        for rank in self.active:
            rank.fast_forward(k)

    def finishing_now(self) -> bool:
        return any(rank.finishing_now() for rank in self.active)

    def complete(self) -> list[int]:
        return [request for rank in self.active for request in rank.complete()]

    # -- log and state ----------------------------------------------------------------------------------------------
    def write_out(self) -> None:
        for rank in self.ranks:
            rank.write_out()

    def begin_at(self, steps: int) -> None:
        self._steps = steps
        for rank in self.ranks:
            rank.begin_at(steps)

    def unfinished(self) -> Iterable[int]:
        return [request for rank in self.ranks for request in rank.unfinished()]

    def row_at_start(self, taken: int, evicted: int) -> tuple | None:
        return _together([rank.row_at_start(0, 0) for rank in self.active], {2: taken, 3: evicted})

    def row_at_end(self) -> tuple | None:
        return _together([rank.row_at_end() for rank in self.active])

    def cancel(self, request: int) -> int:
        raise TypeError("who gives up is not simulated with several ranks")

    def cached_tokens(self, request: int) -> int:
        """On the rank that has most; it may be given to another."""
        return max(rank.cached_tokens(request) for rank in self.ranks)

    def saved(self) -> Saved:
        raise ValueError("the caches of attention_dp ranks cannot be saved or begun with")

    def restore(self, kept: Saved) -> None:
        self.saved()


def _scheduled(rank: Scheduler, now_s: float) -> bool:
    """Schedule a rank until something is, as a replica does: a request may preempt itself and is admitted again at
    once, or memory comes back with what a step has sampled. False when all have finished, or wait for a load."""
    for _ in range(4 + len(rank.running)):
        if rank.schedule(now_s):
            return True
        if not rank.busy or (rank.loading and not (rank.preempted or rank.freed)):
            return False
    return False


def _together(rows: list[tuple | None], instead: dict[int, int] | None = None) -> tuple | None:
    """Rows of a step log as one: lists one after the other, numbers summed, words of the first."""
    there = [row for row in rows if row is not None]
    if not there:
        return None
    found: list[Any] = []
    for i, values in enumerate(zip(*there, strict=True)):
        if isinstance(values[0], list):
            found.append(list(chain.from_iterable(values)))
        elif isinstance(values[0], str):
            found.append(values[0])
        else:
            found.append((instead or {}).get(i, sum(values)))
    return tuple(found)


class _Several:
    """Several collections, one after the other."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._parts)


class _Caches:
    """The caches of all ranks as one."""

    def __init__(self, caches: Sequence[Cache]) -> None:
        self._caches = caches

    @property
    def total(self) -> int:
        return sum(cache.total for cache in self._caches)

    @property
    def blank(self) -> int:
        return sum(cache.blank for cache in self._caches)

    @property
    def idle(self) -> int:
        return sum(cache.idle for cache in self._caches)

    @property
    def taken(self) -> int:
        return sum(cache.taken for cache in self._caches)

    @property
    def evicted(self) -> int:
        return sum(cache.evicted for cache in self._caches)

    @property
    def seen(self) -> Seen:
        return self._caches[0].seen

    @property
    def now_s(self) -> float:
        return self._caches[0].now_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        for cache in self._caches:
            cache.now_s = now_s

    @property
    def turn(self) -> int:
        return self._caches[0].turn

    @turn.setter
    def turn(self, turn: int) -> None:
        """Of the replica; ranks are numbered through all replicas."""
        for cache in self._caches:
            cache.turn = (turn + 1) * len(self._caches) - 1


class _Tiers:
    """The cache tiers of all ranks, for what they did."""

    def __init__(self, tiers: Sequence[Tiers]) -> None:
        self._tiers = tiers

    def use(self) -> list[TierUse]:
        return [_of_replica(uses) for uses in zip(*(tiers.use() for tiers in self._tiers), strict=True)]


def _of_replica(uses: Sequence[TierUse]) -> TierUse:
    """A replica's tier, of which each rank has an equal part: its room, and its part of the link."""
    one, n = summed_use(uses), len(uses)
    return replace(
        one,
        capacity_blocks=(one.capacity_blocks or 0) * n,
        bandwidth_bytes_s=one.bandwidth_bytes_s * n,
        link_busy_s=one.link_busy_s / n,
    )


class LockStepReplica(Replica):
    """A replica around `Ranks`: its steps are timed together."""

    def _time_steps(self, start_s: float) -> None:
        ranks, times = cast(Ranks, self.scheduler), cast(TogetherTime, self.step_time)
        chunks, _, sum_context, _, sampled = ranks.shape()
        self._shape = chunks, sum_context, sampled
        alone = self.most_steps > 1 and not (self._held and ranks.joins_next())
        k = ranks.stretch(self.most_steps) if alone else 1
        if k == 1:
            seconds, code = times.together(ranks.shapes())
            self._ends = array("d", (start_s + (seconds + self.overhead_s),))
            self._codes = bytes((code,))
            return
        step_s, codes = times.together_stretch(ranks.shapes(), k)
        ends = np.empty(k + 1)
        ends[0] = start_s
        np.add(step_s, self.overhead_s, out=ends[1:])
        self._ends = array("d", ends.cumsum()[1:].tobytes())
        self._codes = np.asarray(codes, np.int8).tobytes()
        if ranks.loading:  # the first step after a load's arrival is another one
            del self._ends[bisect_left(self._ends, self._next_ready_s()) + 1 :]


def maker(make: Callable[[int], Scheduler], ranks: int, in_turn: bool) -> Callable[[int], Scheduler]:
    """Makes the ranks of replica number i from what makes one scheduler."""

    def group(index: int) -> Scheduler:
        return cast(Scheduler, Ranks([make(index * ranks + rank) for rank in range(ranks)], in_turn))

    return group
