"""The seam between a replica and an engine's rules: what a Scheduler answers, and in what order it is asked.

The one idea: an engine is a queue, a batch and a cache that move only when the replica tells them to. Nothing in it
knows the clock's events or how long a step takes; it decides what a step holds, and the replica what that costs.

    submit             at any time; everything else at the end of a step or in an idle moment
    schedule           mutates: decides one step. Then `shape`, `stretch` and `announce` look at it
    fast_forward(k)    mutates: takes k more steps of the same stretch
    complete           mutates: ends the step. Then `schedule` again, while `busy`

`sim.engines` has the engines by name.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from calibrate.latency import StepTime
from sim.kvcache.ceilings import Seen, UnderWay
from sim.kvcache.chains import Paths
from sim.kvcache.policies.base import World
from sim.kvcache.saved import Saved
from sim.kvcache.store import Store
from sim.kvcache.tiers import Tiers
from sim.log import RequestLog
from sim.scenario import EngineConfig, EngineParams
from workloads.columns import Workload

if TYPE_CHECKING:
    from calibrate.profile import DeviceProfile


PREFILL, DECODE = "prefill", "decode"
"""Pools of replicas."""


class Cache(Protocol):
    """A replica's KV memory in blocks: total = in use + idle (cached, nobody's) + blank."""

    total: int
    blank: int
    idle: int
    taken: int  #: blocks given out so far
    evicted: int  #: cached blocks lost so far
    seen: Seen  #: all that was ever cached, for the ceilings
    now_s: float  #: the replica sets it, and `turn`, before every step
    turn: int


class Scheduler(Protocol):
    """One replica's queue, batch, cache and step plan."""

    waiting_tokens: int
    running_tokens: int  #: known tokens of the running requests, at the last completed step
    stall_s: float  #: what the present step waits before it begins: for LoRA adapters
    ahead: bool  #: a step is decided when the one before it begins
    tiers: Tiers | None
    decoded: int  #: requests that decode in the present step
    preempted: list[int]  #: by it, ids
    changed: bool  #: the batch is another
    freed: bool  #: somebody let go after the step was decided

    @property
    def cache(self) -> Cache: ...

    @property
    def waiting(self) -> Sized: ...

    @property
    def running(self) -> Sized:
        """Requests in the batch, in their order."""
        ...

    @property
    def loading(self) -> Sequence[Any]:
        """Of the running, those whose blocks are on their way from a cache tier; each has a `ready_s`."""
        ...

    @property
    def chunks(self) -> Sequence[tuple[Any, int]]:
        """(request, prefill tokens) of the present step."""
        ...

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        ...

    def submit(self, request: int) -> bool:
        """Queue a request (mutates). True when it may join before the present stretch is over."""
        ...

    def joins_next(self) -> bool:
        """The same of a request that would be submitted now."""
        ...

    def schedule(self, now_s: float) -> bool:
        """Decide one step (mutates); False when there is nothing to do now."""
        ...

    def shape(self) -> tuple[list[tuple[int, int]], int, int, int, int]:
        """(chunks (new, cached), decodes, sum and maximum of their contexts, rows sampled) of the step."""
        ...

    def stretch(self, most: int) -> int:
        """How many steps, this one included, run with this batch (1 to `most`)."""
        ...

    def announce(self, ends_s: array[float]) -> None:
        """A stretch with a chunk has begun whose steps end then (mutates what others may look up)."""
        ...

    def fast_forward(self, k: int) -> None:
        """Take k more steps of the present stretch (mutates)."""
        ...

    def finishing_now(self) -> bool:
        """Whether somebody lets go at the end of the present step."""
        ...

    def complete(self) -> list[int]:
        """Sample and free at the end of a step (mutates); the requests that finished."""
        ...

    def cancel(self, request: int) -> int:
        """A request that waits or runs leaves and frees its memory (mutates; between the end of a step and the next
        `schedule`): the tokens that it has computed, or found, before. Only with Engine.has_cancel."""
        ...

    def write_out(self) -> None:
        """Enter what decodes have generated, which else waits until somebody looks: cache tiers count it. Only with
        Engine.has_tiers."""
        ...

    def begin_at(self, steps: int) -> None:
        """Count steps from here (before the first one): what the replica's earlier engines have taken."""
        ...

    def unfinished(self) -> Iterable[int]:
        """Everybody that runs or waits, by id: running ones in their order, then the queue."""
        ...

    def row_at_start(self, taken: int, evicted: int) -> tuple | None:
        """A row of the step log just after `schedule`, or None; blocks taken and evicted by it."""
        ...

    def row_at_end(self) -> tuple | None:
        """A row of the step log just after `complete`, or None."""
        ...

    def cached_tokens(self, request: int) -> int:
        """Tokens of a request's prompt that it would hit if it were admitted now (Engine.has_oracle)."""
        ...

    def saved(self) -> Saved:
        """What it holds and knows when nothing runs. Raises ValueError when that cannot be kept."""
        ...

    def restore(self, kept: Saved) -> None:
        """What another one held and knew (mutates; before the first step)."""
        ...


class Elsewhere(Protocol):
    """KV blocks of prompts that other replicas have computed (sim.fleet.transfer)."""

    def keeps(self, request: int) -> bool:
        """Whether a request's prompt lies on another replica, unread."""
        ...

    def read(self, request: int, replica: int, hit: int, blocks: int, now_s: float) -> float:
        """Replica `replica`, which has the first `hit` blocks itself, begins to read the other `blocks` (mutates): when
        they are there."""
        ...


@dataclass
class Common:
    """What the replicas of one simulation share."""

    params: EngineParams
    workload: Workload
    step_time: StepTime
    log: RequestLog
    paths: Paths
    seed: int
    replicas: int  #: schedulers, each with a cache of its own
    prefill_s: Callable[[int, int], float]  #: (cached, prompt) tokens -> seconds of a prefill alone
    cache_events: list[array[int]] | None = None  #: acquisitions and releases, of each replica
    pool: str = ""  #: PREFILL or DECODE, of replicas that do only the one; "": both
    elsewhere: Elsewhere | None = None  #: of a decode pool
    fleet_seen: dict[int, int] = field(default_factory=dict)
    seen: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))  #: the same by each replica
    under_way: UnderWay = field(default_factory=UnderWay)  #: what they compute in stretches
    stores: dict[str, Store] = field(default_factory=dict)  #: cache tiers that all have together, by name

    def world(self, index: int) -> World:
        """What a policy of replica `index` may know; its random numbers are stream 2 of the seed."""
        stream = np.random.SeedSequence(self.seed, spawn_key=(2, index)).generate_state(4)
        return World(self.workload, self.params.kv_blocks, self.params.block_size, Random(stream.tobytes()))


@dataclass(frozen=True)
class Engine:
    """The rules of one engine, and what it has. A third one is a package with these, and a row in `sim.engines`."""

    title: str  #: as its makers write it
    version: str  #: whose rules, for every summary; with sim.recording.UNVERIFIED where no recorded case checks them
    check: Callable[[EngineParams, bool], None]  #: InputError for what it has no rule for; True: cache events wanted
    problems: Callable[[EngineConfig | EngineParams], Iterator[str]]  #: a line for each key that contradicts another
    check_policy: Callable[[str, Mapping[str, Any]], None]  #: InputError for an eviction policy or its parameters
    walks_chains: Callable[[EngineParams], bool]  #: paths of chains instead of nodes are enough
    fleet: Callable[[Common], Callable[[int], Scheduler]]  #: makes the scheduler of replica number i, anew each time
    holds: Callable[[EngineParams, Any], Any]  #: whether a request of so many tokens, prompt and output, can be served
    lone_chunk: Callable[[EngineParams, int], int]  #: prompt tokens in a step of one request with nothing beside it
    defaults: Callable[[DeviceProfile], dict[str, int]]  #: of [engine] keys, on this GPU
    budget: tuple[str, str]  #: the [engine] key that bounds the prefill tokens of a step, and that in words
    own_policies: tuple[str, ...]  #: eviction policies that the engine itself has
    try_policies: tuple[str, ...]  #: those worth a try in place of another
    longest_prompt: Callable[[EngineParams], float] = lambda _: inf  #: of a request that it takes, tokens
    host_mode: Callable[[EngineConfig | EngineParams], str] = lambda keys: "async"  #: of calibrate.host.BY_MODE
    most_seqs: Callable[[float], int] | None = None  #: max_num_seqs where no GPU says it, by whole contexts that fit
    ranks_in_turn: bool = False  #: requests go to attention data-parallel ranks in turn, not to the least loaded
    prefill_pauses: bool = False  #: decodes wait while a prompt is computed
    memory_of_the_rest: bool = False  #: gpu_memory_utilization is KV's share of what weights and overhead leave
    whole_context: bool = False  #: it starts only when one request of max_model_len fits in its KV memory
    has_groups: bool = False  #: KV groups for layers that keep a window, a chunk or a state
    has_speculation: bool = False  #: speculative decoding
    has_tiers: bool = False  #: cache tiers below its GPU memory
    has_optimum: bool = False  #: its caches can tell what they held, so that the best eviction can be found
    has_pools: bool = False  #: replicas that only prefill, and others that only decode
    has_cancel: bool = False  #: a request can leave its schedulers before it has ended
    has_lora: bool = False  #: slots for LoRA adapters
    has_oracle: bool = False  #: its schedulers say what a request would hit
