"""A fleet in two pools: replicas that only compute prompts, and replicas that decode what those have computed.

The one idea: a request is served twice. A prefill replica has it with one output token, which nobody is told of, and
keeps its KV; then a decode replica has it, reads that KV and serves it to the end (sim.vllm.pools, sim.fleet.transfer).
The first service is written to a log of its own; `columns` makes one row of both.

A client's first token is the decode replica's first, as behind vLLM's proxies: the prefill's is computed again there.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from typing import Any, cast

import numpy as np

from calibrate.latency import StepTime
from sim.engine import PREFILL, Common, Engine
from sim.engines import having
from sim.fleet.clock import Clock
from sim.fleet.cluster import Cluster
from sim.fleet.fleet import Fleet
from sim.fleet.replica import Replica
from sim.fleet.router import Router
from sim.fleet.router import make as make_router
from sim.fleet.transfer import Link, Transfers
from sim.front_end import FrontEnd
from sim.log import RequestLog
from sim.recording import KV_TOO_SMALL, TOO_LONG, Handed
from sim.scenario import EngineParams
from workloads.columns import Workload
from workloads.errors import InputError

HAND_OVER = 2
"""Place of a hand-over among what may be pending of a request (Clock.call_at)."""
OF_THE_PREFILL = (
    "admit_s",
    "hit_tokens",
    "ceiling_replica_tokens",
    "ceiling_fleet_tokens",
    "window_tokens",
    "prefill_chunks",
)
OF_BOTH = ("preemptions", "preempted_s", "recomputed_tokens", "readmission_hit_tokens")
"""Columns of a handed request that are those of its first service, and sums of both."""


@dataclass(frozen=True)
class Pools:
    """The prefill pool, and what lies between it and the replicas that decode: the others, as the run says."""

    replicas: int  #: the first ones of the fleet
    params: EngineParams
    step_time: StepTime
    router: str
    link: Link
    decode_first: bool = True  #: the decode replica is chosen when a request arrives, not when its prompt is computed
    local_below: int = 0  #: uncached prompt tokens below which the chosen decode replica computes them itself
    handoff_s: float = 0.0  #: from the end of a prefill until its request is with the decode replica


def check(pools: Pools, engine: Engine, params: EngineParams, replicas: int) -> None:
    """Raise InputError for a fleet that cannot be in two pools. params: of the replicas that decode."""
    if not engine.has_pools:
        raise InputError(
            f"[disaggregation] prefill_replicas = {pools.replicas} with {engine.title}: expected semantics ="
            f" {having('has_pools')!r} with it"
        )
    if not 0 < pools.replicas < replicas:
        raise InputError(
            f"[disaggregation] prefill_replicas = {pools.replicas}: expected fewer than cluster.replicas = {replicas},"
            " the others decode"
        )
    apart = "layers that keep a window or a state (engine.disable_hybrid_kv_cache_manager = true takes them all as full"
    for both in (params, pools.params):
        for wrong, what in (
            (both.ranks > 1, "attention_dp above 1"),
            (both.speculative is not None, "[speculative]"),
            (bool(both.tiers), "cache tiers"),
            (both.policy == "clairvoyant", f"cache.policy = {both.policy!r}"),
            (bool(both.max_num_queued_reqs or both.max_num_queued_tokens), "replicas that refuse (max_num_queued_*)"),
            (len(both.kv_groups) > 1, f"{apart} attention)"),
        ):
            if wrong:
                raise InputError(f"[disaggregation] with {what}: not simulated together, expected a scenario without")
    if params.block_size != pools.params.block_size:
        raise InputError(
            f"[disaggregation] block_size = {pools.params.block_size} of the prefill replicas: expected"
            f" {params.block_size} as of the others, blocks are read one to one"
        )


def prefill_log(workload: Workload, front_end: bool) -> RequestLog:
    """Of requests with one output token each."""
    log = RequestLog(workload, front_end=front_end)
    log.output = np.ones(len(workload), np.int64).data
    return log


class PrefillFront:
    """What prefill replicas tell of their requests."""

    def __init__(self, cluster: PooledCluster) -> None:
        self._cluster = cluster
        self.env = cluster.env

    def finished(self, request: int) -> None:
        self._cluster.prefilled(request)

    def refused(self, request: int) -> None:
        raise TypeError("replicas that refuse are not simulated in pools")

    def dropped(self, request: int, computed: int) -> None:
        raise TypeError("who gives up is not simulated in pools")

    def returned(self, requests: list[int], retried: bool) -> None:
        raise TypeError("replicas that fail are not simulated in pools")

    def resized(self) -> None:
        raise TypeError("replicas that come and go are not simulated in pools")


class PooledCluster(Cluster):
    """`router` chooses among the decode replicas, `prefill_router` among the others."""

    def __init__(
        self,
        env: Clock,
        workload: Workload,
        *given: Any,
        pools: Pools,
        engine: Engine,
        seed: int,
        replicas: int,
        **more: Any,
    ) -> None:
        """given, more: as of a Cluster. replicas: of the whole fleet."""
        super().__init__(env, workload, *given, **more)
        self.pools = pools
        self.front = PrefillFront(self)
        self.prefill_log = prefill_log(workload, FrontEnd.of(pools.params) is not None)
        self.transfers = Transfers(env, pools.link, len(workload), replicas)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, 1)))
        self._prefill_router = make_router(pools.router, rng, workload)
        self._engine = engine
        self._chosen: dict[int, Replica] = {}  # decode replicas of requests whose prompts are computed
        self._prefilled_s = array("d", [nan]) * len(workload)

    @property
    def prefilling(self) -> list[Replica]:
        return self.replicas[: self.pools.replicas]

    def start(self) -> None:
        super().start()
        self.taking = self.replicas[self.pools.replicas :]

    def cannot_serve(self, request: int) -> int:
        reason, tokens, params = super().cannot_serve(request), self.log.prompt[request] + 1, self.pools.params
        if reason or tokens > params.max_model_len:
            return reason or TOO_LONG
        return 0 if self._engine.holds(params, tokens) else KV_TOO_SMALL

    def _route(self, request: int) -> None:
        if self.pools.decode_first:
            decode = self.router.choose(request, self.taking)
            if self.log.prompt[request] - self._known(decode, request) < self.pools.local_below:
                decode.receive(request)
                return
            self._chosen[request] = decode
        self.prefill_log.arrival_s[request] = self.env.now
        self._prefill_router.choose(request, self.prefilling).receive(request)

    def _known(self, decode: Replica, request: int) -> int:
        return decode.cached_tokens(request) if self.pools.local_below else 0

    def prefilled(self, request: int) -> None:
        """A prefill replica has sampled a request's first token."""
        log, now_s = self.prefill_log, self.env.now
        replica = self.replicas[log.replica[request]]
        self._prefilled_s[request] = now_s
        self._prefill_router.finished(request, replica)
        self.transfers.keep(request, replica, log.admit_s[request])
        self.env.call_at(now_s + self.pools.handoff_s, request, self._hand_over, place=HAND_OVER)

    def _hand_over(self, request: int) -> None:
        decode = self._chosen.pop(request, None) or self.router.choose(request, self.taking)
        decode.receive(request)

    def of_the_prefill(self, common: Common) -> Common:
        """What the prefill replicas share among themselves, given what those that decode do."""
        pools = self.pools
        return replace(common, params=pools.params, step_time=pools.step_time, log=self.prefill_log, pool=PREFILL)

    def columns(self) -> tuple[dict[str, np.ndarray], Handed]:
        """A run's columns by request, of both services: where tokens were found and when work began is of the prefill,
        what clients were told of the decode replica."""
        main, first = self.log.columns(), self.prefill_log.columns()
        handed, decoded = first["replica"] >= 0, main["replica"]
        told = {
            **main,
            **{name: np.where(handed, first[name], main[name]) for name in OF_THE_PREFILL},
            **{name: main[name] + np.where(handed, first[name], 0) for name in OF_BOTH},
            "replica": np.where(decoded < 0, first["replica"], decoded),
        }
        if "frontend_s" in main:
            told["frontend_s"] = np.where(handed, first["frontend_s"], main["frontend_s"])
        transfers, block = self.transfers, self.pools.params.block_size
        return told, Handed(
            prefill_replicas=self.pools.replicas,
            kv_blocks=tuple(replica.scheduler.cache.total for replica in self.replicas),
            prefill_replica=first["replica"],
            decode_replica=decoded,
            prefill_step=first["first_step"],
            prefilled_s=np.frombuffer(self._prefilled_s),
            read_s=np.frombuffer(transfers.begin_s),
            ready_s=np.frombuffer(transfers.ready_s),
            placed_s=main["admit_s"],
            read_blocks=np.frombuffer(transfers.blocks, np.int64),
            decode_hit_tokens=np.frombuffer(transfers.hit_blocks, np.int64) * block,
            nic_busy_s=np.array(transfers.busy_s()),
            block_bytes=self.pools.link.block_bytes,
        )


def pooled(fleet: Fleet, clock: Clock, router: Router, pools: Pools, seed: int, replicas: int) -> PooledCluster:
    """The front of a fleet in two pools, with its replicas. fleet: of those that decode."""
    kind = partial(PooledCluster, pools=pools, engine=fleet.engine, seed=seed, replicas=replicas)
    cluster = cast(PooledCluster, fleet.front(clock, router, kind=kind))
    first = replace(fleet, common=cluster.of_the_prefill(fleet.common))
    cluster.replicas += first.replicas(cluster.front, range(pools.replicas))
    fleet.common.elsewhere = cluster.transfers
    cluster.replicas += fleet.replicas(cluster, range(pools.replicas, replicas))
    return cluster
