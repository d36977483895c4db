"""Run a workload on a fleet of replicas and return what happened.

    recording = run(workload, EngineParams(kv_blocks=25_000), step_time, replicas=8)

`sim` takes frozen config, a latency function and a workload; it knows no files, plots or torch.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrate.latency import StepTime
from sim.alone import prefill_alone
from sim.engine import Common, Engine
from sim.engines import client_problems, engine_of, having
from sim.fleet.apart import Copies, may_be_apart, places, run_apart
from sim.fleet.arrivals import Arrivals
from sim.fleet.clients import Clients
from sim.fleet.clock import Clock
from sim.fleet.cluster import Cluster
from sim.fleet.fleet import Fleet
from sim.fleet.gate import Gate
from sim.fleet.hopeless import Hopeless
from sim.fleet.kv_events import check as check_events
from sim.fleet.mixed import Mixed, mixed_front
from sim.fleet.mixed import check as check_mixed
from sim.fleet.oracle import Oracle
from sim.fleet.pools import PooledCluster, Pools, pooled
from sim.fleet.pools import check as check_pools
from sim.fleet.processes import Process, begin
from sim.fleet.recorded import Left, recorded
from sim.fleet.replica import Replica
from sim.fleet.router import Router
from sim.fleet.router import find as find_router
from sim.fleet.router import make as make_router
from sim.fleet.routers.explained import Explained, explains
from sim.fleet.warm import CacheState, restore
from sim.front_end import FrontEnd
from sim.kvcache.chains import Paths
from sim.kvcache.policies import POLICIES
from sim.kvcache.store import stores_of
from sim.log import RequestLog
from sim.recording import Recording
from sim.scenario import ClientConfig, EngineParams
from workloads.columns import Workload
from workloads.errors import InputError

POLICY_NAMES = (*POLICIES, "clairvoyant")


def run(
    workload: Workload,
    params: EngineParams,
    step_time: StepTime,
    *,
    replicas: int = 1,
    router: str = "round-robin",
    seed: int = 0,
    horizon_s: float | None = None,
    until_arrival_s: float | None = None,
    fast_forward: bool = True,
    record_life: bool = False,
    record_cache: bool = False,
    step_log: list | None = None,
    on_clock: Callable[[float, float], None] | None = None,
    on_end: Callable[[list[Replica]], object] | None = None,
    hopeless: Hopeless | None = None,
    oracle: bool = False,
    warm: CacheState | None = None,
    processes: Sequence[Process] = (),
    client: ClientConfig | None = None,
    shed_over: int | None = None,
    sessions_first: bool = False,
    apart: bool = True,
    pools: Pools | None = None,
    kv_event_delay_s: float = 0.0,
    explain_routing: bool = False,
    mixed: Mixed | None = None,
    copies: Copies | None = None,
) -> Recording:
    """Simulate; deterministic for a given workload, parameters and seed.

    horizon_s stops the clock; until_arrival_s stops arrivals and lets the rest drain. fast_forward=False steps one by
    one, with the same result. step_log collects (replica, start_s, [(request, tokens)], preempted, blocks taken, blocks
    evicted, blocks free, running, waiting) of every step and implies stepping. on_clock is called every 500 arrivals
    and completions with the simulated time and the share of the work that is done, from 0 to 1 (progress). on_end gets
    the replicas as they are when the clock stops. hopeless stops the clock once too many requests have missed their
    limits. oracle: sim.fleet.oracle routes instead. warm begins with a saved cache (sim.fleet.warm) and serves what
    arrives after it was saved. record_cache keeps every acquisition and release of cached blocks (sim.optimum.schedule
    needs it). client: what clients do when no answer comes (sim.fleet.clients). shed_over, sessions_first: what a
    gateway refuses (sim.fleet.gate). apart=False simulates all replicas on one clock even where they have nothing to do
    with each other (sim.fleet.apart), with the same result. pools: the first of the replicas only prefill, the others
    have `params` and `step_time` (sim.fleet.pools). kv_event_delay_s: how late routers that ask caches know of a change
    (sim.fleet.kv_events; such a run is simulated step by step). explain_routing notes what requests met
    (Recording.routed). mixed: replicas of several kinds, of the first of which `params` and `step_time` are
    (sim.fleet.mixed). copies: of this process, which simulate replicas that have nothing to do with each other, with
    the same result (sim.fleet.apart.Copies). With SGLang's semantics a row of step_log is (replica, start_s, P or D,
    [(request, tokens)], retracted, tokens evicted, available, evictable and protected at the end of the step,
    waiting)."""
    engine = engine_of(params)
    engine.check(params, record_cache)
    _check_speculation(params, engine, oracle)
    if params.ranks > 1:
        _check_ranks(params, step_time, record_cache or oracle or warm is not None)
    asks = find_router(router).reads_caches
    if asks and not engine.has_oracle:
        raise InputError(
            f"[cluster] router = {router!r} with {engine.title}: expected semantics = {having('has_oracle')!r} with it,"
            " whose caches say what they hold"
        )
    if processes:
        _check_processes(params, record_cache, warm)
    if client is not None:
        _check_client(client, params, record_cache)
    if pools is not None:
        check_pools(pools, engine, params, replicas)
        _check_beside_pools(
            {
                "processes or shocks": bool(processes),
                "[client] timeouts or retries": client is not None,
                "[cluster] shed_over": shed_over is not None,
                "an optimum or an oracle": record_cache or oracle,
                "a saved cache to begin with": warm is not None,
                "[run] explain_routing": explain_routing,
            }
        )
    if mixed is not None:
        _check_mixed(
            mixed,
            engine,
            replicas,
            {
                "processes, shocks or [autoscale]": bool(processes),
                "[disaggregation]": pools is not None,
                "an optimum or an oracle": record_cache or oracle,
                "a saved cache to begin with, or to keep": warm is not None or on_end is not None,
                "[run] explain_routing": explain_routing,
            },
        )
        for kind in mixed.kinds:
            engine.check(kind.params, record_cache)
    asks = asks or (pools is not None and find_router(pools.router).reads_caches)
    if asks and kv_event_delay_s:
        check_events(params, warm is not None)
    log = RequestLog(workload, len(params.tiers), FrontEnd.of(params) is not None, shared=copies is not None)
    paths = Paths(workload, params.hit_block, chains=engine.walks_chains(params))
    prefill_s = prefill_alone(step_time, params.max_num_batched_tokens, params.step_overhead_s)
    cache_events: list[array[int]] | None = [array("q") for _ in range(replicas)] if record_cache else None
    common = Common(params, workload, step_time, log, paths, seed, replicas * params.ranks, prefill_s, cache_events)
    common.stores = stores_of(params.tiers)
    life: list[list[tuple]] | None = [[] for _ in range(len(workload))] if record_life else None
    fleet = Fleet(engine, common, Arrivals(workload), until_arrival_s, on_clock, fast_forward, life, step_log)
    fleet.kv_event_delay_s = kv_event_delay_s if asks and not oracle else 0.0

    def stream() -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))  # stream 1: routing

    def routing() -> Router:
        if oracle:
            return Oracle(params, step_time, log)
        rng = stream()
        made = make_router(router, rng, workload)
        return Explained(made) if explain_routing and explains(made) else made

    given = (hopeless, warm, client, shed_over, step_log, on_end, pools, mixed)
    of_all = oracle or record_cache or bool(processes) or any(one is not None for one in given)
    if apart and replicas > 1 and not of_all and may_be_apart(find_router(router), workload, params):
        place = places(fleet, routing(), replicas)
        if place is not None:
            with _quiet_gc():
                left, end_s = run_apart(fleet, place, replicas, horizon_s, copies if life is None else None)
            return recorded(engine, params, log, left, end_s, life)
    env = Clock()
    beside: dict[str, Any] = {
        "clients": None if client is None else Clients(env, log, client, seed),
        "gate": None if shed_over is None else Gate(workload, shed_over, sessions_first),
    }
    if pools is not None:
        cluster: Cluster = pooled(fleet, env, routing(), pools, seed, replicas)
    elif mixed is not None:
        rng, any_list = stream(), find_router(router).any_list
        cluster = mixed_front(fleet, env, lambda: make_router(router, rng, workload), any_list, mixed, **beside)
    else:
        cluster = fleet.front(env, routing(), **beside)
        cluster.replicas += fleet.replicas(cluster, range(replicas))
    if hopeless is not None:
        cluster.watch(hopeless.every, lambda now_s: hopeless.look(now_s, log, cluster.replicas))
    if warm is not None:
        restore(warm, cluster.replicas)
        cluster.begin_after(warm.until_s, warm.routed)
    begin(processes, cluster)
    cluster.start()
    with _quiet_gc():
        if processes:
            env.run_beside(horizon_s, lambda: cluster.occupied)
        else:
            env.run(until=horizon_s)
    cluster.stop()
    if on_end is not None:
        on_end(cluster.replicas)
    left = [Left.of(replica) for replica in cluster.replicas]
    handed = cluster.columns() if isinstance(cluster, PooledCluster) else None
    recording = recorded(engine, params, log, left, env.now, life, cache_events, cluster.clients, handed)
    if mixed is not None:
        recording = replace(recording, kv_blocks_each=tuple(r.scheduler.cache.total for r in cluster.replicas))
    if isinstance(cluster.router, Explained):
        recording = replace(recording, routed=cluster.router.routed())
    return replace(recording, **_fleet_columns(cluster)) if processes else recording


def _fleet_columns(cluster: Cluster) -> dict[str, Any]:
    """When each replica held its GPUs, and how often each request had to begin again."""
    now_s, n = cluster.env.now, len(cluster.log.status)
    retries = np.zeros(n, np.int64)
    retries[list(cluster.retries)] = list(cluster.retries.values())
    return {"held_s": [replica.held_s(now_s) for replica in cluster.replicas], "retries": retries}


def _check_speculation(params: EngineParams, engine: Engine, oracle: bool) -> None:
    if params.speculative is None:
        return
    if not engine.has_speculation:
        raise InputError(
            f"[speculative] method = {params.speculative.method!r} with {engine.title}: expected semantics ="
            f" {having('has_speculation')!r} with it"
        )
    if oracle:
        raise InputError("[speculative] with a router that knows everything: it does not know what drafts will give")
    if params.ranks > 1:
        raise InputError(f"[speculative] with attention_dp = {params.ranks}: expected attention_dp = 1 with it")


def _check_ranks(params: EngineParams, step_time: StepTime, one_cache: bool) -> None:
    if one_cache:
        raise InputError(
            f"attention_dp = {params.ranks} with an optimum, an oracle or a saved cache: expected attention_dp = 1,"
            " they are defined for one cache a replica"
        )
    if getattr(step_time, "ranks", 1) != params.ranks:
        raise InputError(
            f"attention_dp = {params.ranks}: expected step times of that many ranks together (hardware.profile ="
            " atlas:GPU)"
        )


def _check_processes(params: EngineParams, record_cache: bool, warm: CacheState | None) -> None:
    for wrong, what in (
        (
            params.policy == "clairvoyant",
            "cache.policy = 'clairvoyant': it knows the future of a fleet that never fails",
        ),
        (record_cache, "an optimum: it is defined for caches that nothing empties"),
        (params.speculative is not None, "[speculative]: whose output tokens a failure would lose is not known"),
        (warm is not None, "a saved cache to begin with"),
    ):
        if wrong:
            raise InputError(f"processes ([[shock]], [autoscale], or your own) with {what}; expected a run without")


def _check_beside_pools(wanted: dict[str, bool]) -> None:
    for what, wrong in wanted.items():
        if wrong:
            raise InputError(f"[disaggregation] with {what}: not simulated together, expected a run without one")


def _check_mixed(mixed: Mixed, engine: Engine, replicas: int, wanted: dict[str, bool]) -> None:
    check_mixed(mixed, engine)
    if mixed.replicas != replicas:
        raise InputError(f"[[pool]] replicas: {mixed.replicas} together, expected {replicas} as of the run")
    for what, wrong in wanted.items():
        if wrong:
            raise InputError(f"[[pool]] with {what}: not simulated together, expected a run without one")


def _check_client(client: ClientConfig, params: EngineParams, record_cache: bool) -> None:
    for problem in client_problems(client, params):
        raise InputError(problem)
    for wrong, what in (
        (params.ranks > 1, f"attention_dp = {params.ranks}"),
        (params.speculative is not None, "[speculative]"),
    ):
        if client.gives_up and wrong:
            raise InputError(f"[client] timeouts with {what}: expected a scenario without one of them")
    if record_cache or params.policy == "clairvoyant":
        raise InputError(
            "[client] with an optimum or cache.policy = 'clairvoyant': they know the future of requests that come once;"
            " expected a run without"
        )


class _quiet_gc:  # noqa: N801
    """Cyclic garbage collection costs a quarter of the run and finds nothing: what is loaded is frozen, the rest dies
    by count."""

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if self._was_on:
            gc.enable()
