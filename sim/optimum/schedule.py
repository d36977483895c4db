"""The optimum beside a timed run: how much of what was possible did its cache hit?

Three references, from the tightest to the loosest, all over every replica with the routing as it was:

    schedule   the best eviction given these admissions and pins. The reference for "X % of the optimum" and for causes.
               Two policies have two schedules: it does not compare policies.
    order      no eviction does better in any run that admits each replica's requests in this order, when every prompt
               is
               allocated before the next admission (the engine's default, not with a long-prefill threshold). It does
               compare policies. Output blocks may be generated late: what they occupy is left out, which leaves a gap
               between the bound and the best schedule found when answers are reused.
    ceiling    a cache that never evicts; in the recording already.

The one idea: a request holds its path from its admission to its release, and an item lies between. Blocks an admission
may hit are cut at its recorded ceiling, so nothing is hit before it was computed.

    >>> rec = run(workload, params, step_time, record_cache=True)
    >>> schedule_optimum(workload, rec).hit_tokens.sum() / rec.ceiling_replica_tokens.sum()
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.kvcache.observed import ACQUIRE, BLOCKS, IN_USE, KIND, RELEASE, REQUEST
from sim.kvcache.visits import node_visits
from sim.optimum.check import feasible, upper_bound
from sim.optimum.hits import most_hits
from sim.optimum.items import NEVER, Items, joined, must_insert, sorted_visits, spans, touches_in_order
from sim.optimum.work import block_work, most_work
from sim.recording import Recording
from workloads.columns import Workload


@dataclass(frozen=True)
class Problem:
    """What one replica's cache could keep. Item requests are positions in `rows`."""

    items: Items
    capacity: np.ndarray  #: int64 [slots], blocks
    rows: np.ndarray  #: int64, workload row of every position; a row can stand here again after a preemption


@dataclass(frozen=True)
class Optimum:
    """Most hit tokens of first admissions, proven by checkpoints."""

    name: str  #: "optimum for this schedule" or "optimum for this order"
    rule: str  #: the capacity rule, in words
    bound_tokens: int  #: nothing hits more
    hit_tokens: (
        np.ndarray
    )  #: int64 [n requests], a possible schedule; of equal ones the one that drops deepest blocks first
    checkpoints: int  #: slots in the proof, all replicas
    objective: str = "hit tokens"

    @property
    def gap(self) -> float:
        """Share of the bound that is not shown to be reachable; 0 for a schedule's optimum."""
        return 1 - int(self.hit_tokens.sum()) / self.bound_tokens if self.bound_tokens else 0.0

    def share(self, hit_tokens: float) -> str:
        """Hit tokens as a share of the bound, with all that the figure means nothing without."""
        share = f"{100 * hit_tokens / self.bound_tokens:.1f} %" if self.bound_tokens else "nothing could be hit:"
        return f"{share} of the {self.name} ({self.objective}, {self.rule}, proved gap {100 * self.gap:.2f} %)"


def schedule_optimum(workload: Workload, rec: Recording) -> Optimum:
    """The best eviction given the run's own admissions and pins."""
    problems = [schedule_problem(workload, rec, replica) for replica in range(len(_events(rec)))]
    return _solved("optimum for this schedule", "pinned blocks as they were", problems, rec)


def order_optimum(workload: Workload, rec: Recording) -> Optimum:
    """The best eviction in any run with each replica's order of admission."""
    problems = [order_problem(workload, rec, replica) for replica in range(len(_events(rec)))]
    return _solved("optimum for this order", "a prompt resident while it is admitted", problems, rec)


@dataclass(frozen=True)
class WorkBound:
    """Prefill work of first admissions, in blocks at depth 0, all replicas."""

    bound: float  #: no eviction saves more given the run's admissions and pins
    reached: float  #: by the best schedule found
    saved: float  #: by the run's own hits
    checkpoints: int  #: slots with a price
    depth_weight: float

    @property
    def gap(self) -> float:
        return max(0.0, 1 - self.reached / self.bound) if self.bound else 0.0

    def share(self) -> str:
        share = f"{100 * self.saved / self.bound:.1f} %" if self.bound else "nothing could be saved:"
        about = (
            f"prefill work, depth weight {self.depth_weight:.4g}, pinned blocks as they were, proved gap"
            f" {100 * self.gap:.2f} %"
        )
        return f"{share} of the bound for this schedule ({about})"


def schedule_work(workload: Workload, rec: Recording, depth_weight: float) -> WorkBound:
    """How much prefill work any eviction could save in this schedule; depth_weight as in `work.block_work`."""
    work, bound, reached, priced = block_work(rec.block_size, depth_weight), 0.0, 0.0, 0
    for replica in range(len(_events(rec))):
        problem = schedule_problem(workload, rec, replica)
        best = most_work(problem.items, problem.capacity, work, most_hits(problem.items, problem.capacity).checkpoints)
        feasible(problem.items, problem.capacity, best.kept)
        bound, reached, priced = bound + best.bound, reached + best.saved, priced + int((best.prices > 0).sum())
    hit = rec.hit_tokens // rec.block_size
    return WorkBound(bound, reached, float(work.of(np.zeros_like(hit), hit).sum()), priced, depth_weight)


def _solved(name: str, rule: str, problems: list[Problem], rec: Recording) -> Optimum:
    depth, bound, checkpoints = np.zeros(len(rec.hit_tokens), np.int64), 0, 0
    for problem in problems:
        best = most_hits(problem.items, problem.capacity)
        kept = _leading(problem.items, best.kept)
        feasible(problem.items, problem.capacity, kept)
        bound += upper_bound(problem.items, problem.capacity, best.checkpoints)
        np.add.at(depth, problem.rows, problem.items.depth(kept))
        checkpoints += len(best.checkpoints)
    return Optimum(name, rule, bound * rec.block_size, depth * rec.block_size, checkpoints)


def _leading(items: Items, kept: np.ndarray) -> np.ndarray:
    """Without what cannot be hit because something above it is not kept: items without a load may be kept all the
    same."""
    short = np.cumsum(kept < items.amount)
    above = np.append(0, short[:-1])
    first = (
        np.flatnonzero(np.append(True, items.request[1:] != items.request[:-1]))
        if len(items)
        else np.empty(0, np.int64)
    )
    before = np.repeat(above[first], np.diff(np.append(first, len(items))))
    return np.where(above > before, 0, kept)


def _events(rec: Recording) -> list[np.ndarray]:
    if rec.cache_events is None:
        raise ValueError("the run kept no record of its cache: simulate with record_cache = True")
    return rec.cache_events


def schedule_problem(workload: Workload, rec: Recording, replica: int) -> Problem:
    """Items of one replica from its acquisitions and releases; slot j lies between its events j and j + 1."""
    events = _events(rec)[replica]
    acquired, released, left = _stays(events)
    rows = events[acquired, REQUEST]
    first = np.zeros(len(rows), bool)
    first[np.unique(rows, return_index=True)[1]] = True
    total = (workload.prompt_tokens + workload.output_tokens)[rows]
    held = np.where(released == NEVER, total // rec.block_size, left)
    limit = np.where(
        first, rec.ceiling_replica_tokens[rows] // rec.block_size, 0
    )  # hits after a preemption count apart
    position, node, lo, hi = node_visits(workload, rows, held, rec.block_size)
    visits = sorted_visits(node, lo, position, acquired[position], released[position], hi)
    visit, last, lo, hi = spans(visits)
    position = visits.request[visit]
    hi = np.minimum(hi, limit[position])
    some = lo < hi
    position, last, lo, hi = joined(position[some], last[some], lo[some], hi[some])
    in_use = last > acquired[position]
    free = np.bincount(position[in_use], (hi - lo)[in_use], len(rows)).astype(np.int64)
    columns = (column[~in_use] for column in (position, lo, hi, last, acquired[position]))
    request, lo, hi, start, end = columns
    return Problem(Items(request, lo, hi, start, end, free), rec.kv_blocks - events[1:, IN_USE], rows)


def _stays(events: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(acquisition event, its release event or NEVER, blocks left) of every stay of a request, by acquisition."""
    order = np.argsort(events[:, REQUEST], kind="stable")  # a request's events alternate
    kind, request = events[order, KIND], events[order, REQUEST]
    at = np.flatnonzero(kind == ACQUIRE)
    after = np.minimum(at + 1, len(order) - 1)
    ends = (kind[after] == RELEASE) & (request[after] == request[at])
    released, left = np.where(ends, order[after], NEVER), np.where(ends, events[order[after], BLOCKS], 0)
    by_time = np.argsort(order[at])
    return order[at][by_time], released[by_time], left[by_time]


def order_problem(workload: Workload, rec: Recording, replica: int) -> Problem:
    """Items of one replica's order of first admissions; slot t = while request t is admitted."""
    events, block = _events(rec)[replica], rec.block_size
    admitted = events[events[:, KIND] == ACQUIRE, REQUEST]
    rows = admitted[np.sort(np.unique(admitted, return_index=True)[1])]
    prompt, output = workload.prompt_tokens[rows], workload.output_tokens[rows]
    visits = node_visits(workload, rows, (prompt + output - 1) // block, block)
    used = touches_in_order([visits], -(-prompt // block), (prompt - 1) // block, cut=prompt // block)
    items, capacity = must_insert(used, rec.kv_blocks)
    generated = (
        items.lo >= (prompt // block)[items.start - 1]
    )  # by the request that used it last: may not exist yet at any slot
    return Problem(
        Items(items.request, items.lo, items.hi, np.where(generated, items.end, items.start), items.end, items.free),
        capacity,
        rows,
    )


# ---- evicted tokens ----


@dataclass(frozen=True)
class EvictedSplit:
    """Why tokens that were once in a replica's cache were not hit; int64 [n] each, tokens.

    hit + policy + memory = ceiling, and optimum - hit = policy - gave_up, for every request, exactly.
    """

    policy: np.ndarray  #: the optimum kept them
    memory: np.ndarray  #: the optimum gave them up as well, or was not needed to
    gave_up: np.ndarray  #: hit, though the optimum gave them up


def split_evicted(hit: np.ndarray, optimum: np.ndarray, ceiling: np.ndarray) -> EvictedSplit:
    """Split `ceiling - hit` against an optimum of the same schedule; depths in tokens, int64 [n], hit <= ceiling,
    optimum <= ceiling."""
    bad = np.flatnonzero((hit > ceiling) | (optimum > ceiling))
    if len(bad):
        r = bad[0]
        raise ValueError(
            f"request {r}: hit {hit[r]} and optimum {optimum[r]} tokens, expected at most the ceiling {ceiling[r]}"
        )
    return EvictedSplit(np.maximum(optimum - hit, 0), ceiling - np.maximum(hit, optimum), np.maximum(hit - optimum, 0))
