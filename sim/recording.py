"""What a simulation leaves behind: columns only, in workload order, with no interpretation.

`sim.measure.metrics` turns a Recording into the Report's numbers; nothing here is a statistic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sim.packed_rows import Rows
from sim.step_times import StepTimes

STATUS = (
    "completed",
    "unfinished",
    "not_arrived",
    "rejected_too_long",
    "rejected_kv_too_small",
    "session_truncated",
    "aborted",
    "rejected_queue_full",
    "rejected_shed",
    "abandoned",
)
(
    COMPLETED,
    UNFINISHED,
    NOT_ARRIVED,
    TOO_LONG,
    KV_TOO_SMALL,
    SESSION_TRUNCATED,
    ABORTED,
    QUEUE_FULL,
    SHED,
    ABANDONED,
) = range(len(STATUS))
"""completed + unfinished + rejected + truncated + aborted + abandoned = arrived; `not_arrived` rows never reached the
router (their predecessor did not finish, or the horizon came first). Run folders keep these numbers: new ones go
last."""


UNVERIFIED = "unverified"
"""In the name of an engine whose rules no recorded case of it checks."""


START, N_STEPS, N_DECODE, PREFILL, SUM_CONTEXT, N_SAMPLED = range(6)
"""Columns of a stretch of steps: its start in seconds, steps (at least 1), and the shape of its first step."""
STRETCH, NEW, CACHED = range(3)
"""Columns of a stretch's prefill chunks."""


class StepShapes:
    """What else the work of a replica's steps depends on (calibrate.utilization).

    Kept by stretch; the columns by step are made whenever asked for, since they would be a third of a long run's
    memory. Within a stretch each decode's context grows by a token, and a chunk follows on the one before."""

    def __init__(self, stretches: Rows, chunks: Rows) -> None:
        self._stretches, self._chunks = stretches, chunks

    @property
    def _n_steps(self) -> np.ndarray:
        return _whole(self._stretches, N_STEPS)

    @property
    def _stretch(self) -> np.ndarray:
        return _whole(self._chunks, STRETCH)

    @property
    def sum_context(self) -> np.ndarray:
        """int64 [steps], contexts of the decodes, their new tokens included."""
        stretches = self._stretches
        return _growing(_whole(stretches, SUM_CONTEXT), _whole(stretches, N_DECODE), self._n_steps)

    @property
    def n_sampled(self) -> np.ndarray:
        """int32 [steps], rows that went through LM head and sampling."""
        return np.repeat(self._stretches.column(N_SAMPLED).astype(np.int32), self._n_steps)

    @property
    def chunk_step(self) -> np.ndarray:
        """int64 [chunks of all steps], position in the steps of every prefill chunk, ascending."""
        n_steps, stretch = self._n_steps, self._stretch
        first = np.cumsum(n_steps) - n_steps
        return _growing(first[stretch], np.ones_like(stretch), n_steps[stretch])

    @property
    def chunk_new(self) -> np.ndarray:
        """int64 [chunks of all steps], its tokens."""
        return np.repeat(_whole(self._chunks, NEW), self._n_steps[self._stretch])

    @property
    def chunk_cached(self) -> np.ndarray:
        """int64 [chunks of all steps], tokens of its request before it, already in the KV cache."""
        return _growing(_whole(self._chunks, CACHED), _whole(self._chunks, NEW), self._n_steps[self._stretch])

    def __eq__(self, other: object) -> bool:
        """Whether the columns are the same, whatever the stretches."""
        columns = ("sum_context", "n_sampled", "chunk_step", "chunk_new", "chunk_cached")
        return isinstance(other, StepShapes) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in columns
        )


def _whole(rows: Rows, column: int) -> np.ndarray:
    """int64 [rows]"""
    return rows.column(column).astype(np.int64)


def _growing(first: np.ndarray, by: np.ndarray, times: np.ndarray) -> np.ndarray:
    """first, first + by, first + 2 by... `times` (at least 1) numbers of each, one after the other: int64 [sum of
    times]."""
    out = np.repeat(by, times)
    last = first + by * (times - 1)
    start = np.cumsum(times) - times
    out[start] = first
    out[start[1:]] -= last[:-1]
    return np.cumsum(out, out=out)


@dataclass(frozen=True)
class Steps:
    """Engine steps of one replica, in time order. A step's start is `end_s - duration_s`."""

    end_s: np.ndarray  #: float64 [n_steps]
    duration_s: np.ndarray  #: float64 [n_steps]
    coverage: np.ndarray  #: int8 [n_steps], code into calibrate.latency.COVERAGE
    n_decode: np.ndarray  #: int32 [n_steps], decode tokens in the step
    prefill_tokens: np.ndarray  #: int32 [n_steps], new prefill tokens in the step
    work: StepShapes | None = None

    def __len__(self) -> int:
        return len(self.end_s)


class StepsByStretch(Steps):
    """Steps whose columns are made whenever asked for: a long run has hundreds of steps in a stretch."""

    _times: StepTimes
    _stretches: Rows

    def __init__(self, times: StepTimes, stretches: Rows, chunks: Rows) -> None:
        """times: of all steps."""
        for name, value in (("_times", times), ("_stretches", stretches), ("work", StepShapes(stretches, chunks))):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self._times)

    @property
    def end_s(self) -> np.ndarray:  # type: ignore[override]
        return self._times.ends_s()

    @property
    def coverage(self) -> np.ndarray:  # type: ignore[override]
        return self._times.codes()

    @property
    def duration_s(self) -> np.ndarray:  # type: ignore[override]
        starts, n_steps = self._stretches.column(START), _whole(self._stretches, N_STEPS)
        end_s = self.end_s
        start_s = np.empty(len(end_s))
        start_s[1:] = end_s[:-1]
        start_s[np.cumsum(n_steps) - n_steps] = (
            starts  # a step after an idle spell does not start at the last one's end
        )
        return np.subtract(end_s, start_s, out=start_s)

    @property
    def n_decode(self) -> np.ndarray:  # type: ignore[override]
        return self._by_step(N_DECODE)

    @property
    def prefill_tokens(self) -> np.ndarray:  # type: ignore[override]
        return self._by_step(PREFILL)

    def _by_step(self, column: int) -> np.ndarray:
        return np.repeat(self._stretches.column(column).astype(np.int32), _whole(self._stretches, N_STEPS))


@dataclass(frozen=True)
class Samples:
    """State of one replica after every event (an admission, a finish, a cut), in time order; step functions."""

    t_s: np.ndarray  #: float64 [n]
    blocks_in_use: np.ndarray  #: int64 [n], blocks with a reference
    blocks_cached_idle: np.ndarray  #: int64 [n], hashed blocks without a reference
    running: np.ndarray  #: int32 [n]
    waiting: np.ndarray  #: int32 [n]


class SamplesByRow(Samples):
    """Samples whose columns are made whenever asked for."""

    _rows: Rows

    def __init__(self, rows: Rows) -> None:
        """rows: of the columns in their order."""
        object.__setattr__(self, "_rows", rows)

    @property
    def t_s(self) -> np.ndarray:  # type: ignore[override]
        return self._rows.column(0)

    @property
    def blocks_in_use(self) -> np.ndarray:  # type: ignore[override]
        return _whole(self._rows, 1)

    @property
    def blocks_cached_idle(self) -> np.ndarray:  # type: ignore[override]
        return _whole(self._rows, 2)

    @property
    def running(self) -> np.ndarray:  # type: ignore[override]
        return self._rows.column(3).astype(np.int32)

    @property
    def waiting(self) -> np.ndarray:  # type: ignore[override]
        return self._rows.column(4).astype(np.int32)


@dataclass(frozen=True)
class Verified:
    """What speculative decoding did in a run, all replicas together."""

    rows: int  #: tokens that a decode step of a request verifies: its own and those drafted
    drafts: int  #: verifications of requests that had not finished
    accepted: int  #: drafted tokens that the model accepted, those beyond the last output wanted among them
    emitted: list[np.ndarray]  #: per replica, int64 [n_steps], output tokens of each step

    @property
    def acceptance_length(self) -> float | None:
        """Mean output tokens of a verification, as vLLM logs it: 1 + accepted / drafts."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    def summary(self) -> dict[str, float | int | None]:
        drafted = self.drafts * (self.rows - 1)
        return {
            "mean_acceptance_length": self.acceptance_length,
            "draft_acceptance_rate": self.accepted / drafted if drafted else None,
            "drafts": self.drafts,
            "draft_tokens": drafted,
            "accepted_tokens": self.accepted,
        }


@dataclass(frozen=True)
class TierUse:
    """What one cache tier did in a run, all replicas together."""

    name: str
    capacity_blocks: int | None  #: per replica; None where theirs differ
    block_bytes: int  #: of the first, where they differ
    bandwidth_bytes_s: float  #: per replica
    loaded_blocks: int
    written_blocks: int
    dropped_blocks: int  #: given away for lack of room
    stored_blocks: int  #: at the end
    link_busy_s: float  #: seconds its link was loading, latency included
    loaded_bytes: int
    written_bytes: int
    # of a store that all replicas share (sim.kvcache.store), whose capacity is that of all
    shared: bool = False
    total_bytes_s: float = float("inf")  #: of all its loads
    store_busy_s: float = 0.0  #: seconds in which it was at its total bandwidth
    store_waited_s: float = 0.0  #: that loads waited for their turn at it, summed
    loads: int = 0


def summed_use(uses: Sequence[TierUse]) -> TierUse:
    """What a tier of several schedulers did, together."""
    blocks = ("loaded_blocks", "written_blocks", "dropped_blocks", "stored_blocks", "loaded_bytes", "written_bytes")
    summed = (*blocks, "link_busy_s", "store_busy_s", "store_waited_s", "loads")
    sums = {name: sum(getattr(use, name) for use in uses) for name in summed}
    return replace(uses[0], **sums, capacity_blocks=same(use.capacity_blocks for use in uses))


def same(values: Iterable[int | None]) -> int | None:
    """The value of all, None where they differ."""
    each = set(values)
    return each.pop() if len(each) == 1 else None


@dataclass(frozen=True)
class ClientUse:
    """What clients did (sim.fleet.clients). int64 [n requests] but the last."""

    attempts: np.ndarray
    refusals: np.ndarray  #: of them
    timeouts: np.ndarray  #: and attempts whose client gave up waiting
    wasted_tokens: np.ndarray  #: computed for those
    abandoned_s: np.ndarray  #: float64, when a client gave up for good; NaN: it did not


@dataclass(frozen=True)
class Routed:
    """What requests met on their replica and on the other one with the longest match (the fewest waiting of equal
    ones), when a router that looks for prefixes chose, and as it knew: int64 [n requests], -1 = never routed, or no
    other replica."""

    match_tokens: np.ndarray
    waiting_there: np.ndarray  #: requests in its front end and queue
    other_match_tokens: np.ndarray
    other_waiting: np.ndarray


@dataclass(frozen=True)
class Handed:
    """How requests went from the replicas that prefill to those that decode (sim.fleet.pools): [n requests] unless said
    otherwise. A request that its decode replica prefilled itself has -1, NaN and 0 here."""

    prefill_replicas: int  #: the first ones of the fleet
    kv_blocks: tuple[int, ...]  #: of every replica
    prefill_replica: np.ndarray  #: int32
    decode_replica: np.ndarray  #: int32, -1 = not yet
    prefill_step: np.ndarray  #: int64, index into the prefill replica's steps of its last one
    prefilled_s: np.ndarray  #: float64, end of the prefill
    read_s: np.ndarray  #: float64, the decode replica has memory for it and begins to read its blocks
    ready_s: np.ndarray  #: float64, they are there
    placed_s: np.ndarray  #: float64, start of the decode replica's first step with it
    read_blocks: np.ndarray  #: int64
    decode_hit_tokens: np.ndarray  #: int64, that the decode replica had: not read
    nic_busy_s: np.ndarray  #: float64 [replicas], seconds that their network interfaces were taken
    block_bytes: int

    @property
    def waited_s(self) -> np.ndarray:
        """float64 [n]: seconds in queues after the prefill, for memory and for a place in a batch; 0 of others."""
        waits_s = self.read_s - self.prefilled_s + (self.placed_s - self.ready_s)
        return np.where(np.isnan(waits_s), 0.0, waits_s)


@dataclass(frozen=True)
class Recording:
    """All columns are float64/int64 numpy arrays of shape [n requests] unless said otherwise; NaN = did not happen."""

    arrival_s: np.ndarray  #: when it reached the router (closed loops resolved)
    admit_s: (
        np.ndarray
    )  #: start of the step that admitted it: its first tokens are computed in it, or its loads from cache tiers begin
    first_token_s: np.ndarray  #: end of the step that sampled its first output token, or when the front end sent it
    finish_s: np.ndarray  #: the same of its last output token
    status: np.ndarray  #: int8, code into STATUS
    replica: np.ndarray  #: int32, -1 = never routed
    hit_tokens: np.ndarray  #: prompt tokens served from cache, any tier of it, at the FIRST admission
    ceiling_replica_tokens: np.ndarray  #: the same had this replica never evicted anything (same schedule)
    ceiling_fleet_tokens: np.ndarray  #: the same had every replica shared one cache that never evicts
    window_tokens: np.ndarray  #: of the replica's ceiling, what layers with a window or a state had not kept anyway
    readmission_hit_tokens: np.ndarray  #: hits of later admissions, after preemptions (kept out of every hit rate)
    preemptions: np.ndarray  #: int64
    preempted_s: np.ndarray  #: float64, seconds between each preemption and re-admission, summed
    recomputed_tokens: np.ndarray  #: int64, tokens computed a second time because of preemption
    prefill_chunks: np.ndarray  #: int64, number of prefill chunks of the first admission
    first_step: np.ndarray  #: int64, index into the replica's steps of the first output token; -1
    last_step: np.ndarray  #: int64, likewise of the last output token; -1
    gaps_request: np.ndarray  #: int64 [m], requests with an output gap longer than one step (preempted or skipped)...
    gaps_from_step: np.ndarray  #: int64 [m], ...step index of the token before the gap
    gaps_to_step: np.ndarray  #: int64 [m], ...and of the token after it
    steps: list[Steps]  #: one per replica
    samples: list[Samples]  #: one per replica
    end_s: float  #: clock when the run stopped (last event, or the horizon)
    kv_blocks: int  #: per replica
    block_size: int  #: tokens
    evicted_blocks: int  #: all replicas
    engine_semantics: str  #: e.g. "vllm-0.33.0"
    prefill_pauses: bool = False  #: decodes emit nothing in steps without decodes (SGLang): no gap is listed for that, but each one that begins or ends at a prefill  # noqa: E501
    life: list[list[tuple]] | None = (
        None  #: per request, when asked for: ("queued"|"loading"|"prefill"|"decode"|"preempted", start_s, end_s, tokens)  # noqa: E501
    )
    cache_events: list[np.ndarray] | None = (
        None  #: per replica, when asked for: int64 [events, 4] (sim.kvcache.observed)
    )
    tiers: list[TierUse] = field(
        default_factory=list
    )  #: nearest first; empty without cache tiers, and then the next two are None
    tier_hit_tokens: np.ndarray | None = (
        None  #: int64 [n, tiers], hit tokens that had to be loaded from each tier; the rest were in GPU memory
    )
    load_s: np.ndarray | None = None  #: float64 [n], seconds it held a place in the batch and waited for loads
    # with a front end that takes time (sim.front_end); else None
    frontend_s: np.ndarray | None = None  #: float64 [n], arrival to when its engine had it
    sent_s: list[np.ndarray] | None = None  #: per replica, float64 [n_steps], when each step's output tokens left it
    # with processes that let replicas fail, drain and start (sim.fleet.processes); else None
    held_s: list[list[tuple[float, float]]] | None = None  #: per replica, (from, to) seconds in which it was not down
    verified: Verified | None = None  #: with speculative decoding; a decode row of a step is then one verified token
    retries: np.ndarray | None = None  #: int64 [n], how often a failure has sent a request back to begin again
    clients: ClientUse | None = None  #: with clients that give up or try again, or a gateway that refuses; else None
    handed: Handed | None = None  #: with replicas that only prefill
    routed: Routed | None = None  #: when asked for, of a router that looks for prefixes
    kv_blocks_each: tuple[int, ...] = ()  #: per replica, with replicas that are not alike
    notes: list[str] = field(default_factory=list)

    @property
    def kv_blocks_of(self) -> np.ndarray:
        """int64 [replicas]"""
        each = self.handed.kv_blocks if self.handed is not None else self.kv_blocks_each
        return np.array(each or [self.kv_blocks] * len(self.steps))

    @property
    def left_s(self) -> np.ndarray:
        """float64 [n]: when a request was over for its client: its last output token, or the end of its patience."""
        if self.clients is None:
            return self.finish_s
        return np.where(self.status == ABANDONED, self.clients.abandoned_s, self.finish_s)

    def told_s(self, replica: int) -> np.ndarray:
        """float64 [n_steps]: when clients have the output tokens of each of its steps."""
        return self.steps[replica].end_s if self.sent_s is None else self.sent_s[replica]


def by_replica(replica: np.ndarray, replicas: int) -> list[np.ndarray]:
    """Places in a column of replicas of each of them, ascending; -1: of none."""
    few = replica.astype(np.int16) if replicas <= np.iinfo(np.int16).max else replica  # numpy sorts those in one pass
    ends = np.cumsum(np.bincount(replica + 1, minlength=replicas + 1))
    return np.split(np.argsort(few, kind="stable"), ends)[1 : replicas + 1]
