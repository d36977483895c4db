"""Run a workload on a fleet of replicas and return what happened.

    recording = run(workload, EngineParams(kv_blocks=25_000), step_time, replicas=8)

`sim` takes frozen config, a latency function and a workload; it knows no files, plots or torch.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from calibrate.latency import StepTime
from sim.alone import prefill_alone
from sim.engine import Common, Engine, Scheduler
from sim.engines import client_problems, engine_of, having
from sim.fleet.clients import Clients
from sim.fleet.clock import Clock
from sim.fleet.cluster import Cluster
from sim.fleet.doorway import Doorway
from sim.fleet.gate import Gate
from sim.fleet.hopeless import Hopeless
from sim.fleet.oracle import Oracle
from sim.fleet.pools import PooledCluster, Pools
from sim.fleet.pools import check as check_pools
from sim.fleet.processes import Process, begin
from sim.fleet.ranks import LockStepReplica, maker
from sim.fleet.replica import Front, Replica
from sim.fleet.router import Router
from sim.fleet.router import find as find_router
from sim.fleet.router import make as make_router
from sim.fleet.warm import CacheState, restore
from sim.front_end import FrontEnd
from sim.kvcache.chains import Paths
from sim.kvcache.observed import as_table
from sim.kvcache.policies import POLICIES
from sim.log import RequestLog
from sim.recording import UNFINISHED, Handed, Recording, Steps, TierUse, Verified, by_replica, summed_use
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
    pools: Pools | None = None,
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
    gateway refuses (sim.fleet.gate). pools: the first of the replicas only prefill, the others have `params` and
    `step_time` (sim.fleet.pools). With SGLang's semantics a row of step_log is (replica, start_s, P or D, [(request,
    tokens)], retracted, tokens evicted, available, evictable and protected at the end of the step, waiting)."""
    engine = engine_of(params)
    engine.check(params, record_cache)
    _check_speculation(params, engine, oracle)
    if params.ranks > 1:
        _check_ranks(params, step_time, record_cache or oracle or warm is not None)
    if find_router(router).reads_caches and not engine.has_oracle:
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
            }
        )
    env, log = Clock(), RequestLog(workload, len(params.tiers), FrontEnd.of(params) is not None)
    paths = Paths(workload, params.hit_block, chains=engine.walks_chains(params))
    if oracle:
        routing: Router = Oracle(params, step_time, log)
    else:
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))  # stream 1: routing
        routing = make_router(router, rng, workload)
    holds, longest_prompt = partial(engine.holds, params), engine.longest_prompt(params)
    given = (env, workload, params, log, routing, holds, longest_prompt, until_arrival_s, on_clock)
    if pools is not None:
        cluster: Cluster = PooledCluster(*given, pools=pools, engine=engine, seed=seed, replicas=replicas)
    else:
        cluster = Cluster(
            *given,
            clients=None if client is None else Clients(env, log, client, seed),
            gate=None if shed_over is None else Gate(workload, shed_over, sessions_first),
        )
    life: list[list[tuple]] | None = [[] for _ in range(len(workload))] if record_life else None
    cache_events: list[array[int]] | None = [array("q") for _ in range(replicas)] if record_cache else None
    prefill_s = prefill_alone(step_time, params.max_num_batched_tokens, params.step_overhead_s)
    schedulers = replicas * params.ranks
    common = Common(params, workload, step_time, log, paths, seed, schedulers, prefill_s, cache_events)
    loop = (env, fast_forward, life, step_log)
    if isinstance(cluster, PooledCluster):
        first = cluster.of_the_prefill(common)
        cluster.replicas += _replicas(engine, first, cluster.front, range(cluster.pools.replicas), *loop)
        common.elsewhere = cluster.transfers
    cluster.replicas += _replicas(
        engine, common, cluster, range(len(cluster.replicas), schedulers // params.ranks), *loop
    )
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
    for replica in cluster.replicas:
        replica.stop(env.now)
    cluster.close()
    if on_end is not None:
        on_end(cluster.replicas)
    recording = _recording(workload, engine, params, cluster, log, life, cache_events)
    return replace(recording, **_fleet_columns(cluster)) if processes else recording


def _replicas(
    engine: Engine,
    common: Common,
    front: Front,
    places: range,
    env: Clock,
    fast_forward: bool,
    life: list[list[tuple]] | None,
    step_log: list | None,
) -> list[Replica]:
    make: Callable[[int], Scheduler] = engine.fleet(common)
    kind, ranks = Replica, common.params.ranks
    if ranks > 1:
        kind, make = LockStepReplica, maker(make, ranks, engine.ranks_in_turn)
    return [
        kind(
            index,
            env,
            make,
            common.step_time,
            common.log,
            front,
            door=partial(Doorway, common.params, common.log),
            overhead_s=common.params.step_overhead_s,
            front_end=FrontEnd.of(common.params),
            fast_forward=fast_forward and step_log is None,
            life=life,
            step_log=step_log,
        )
        for index in places
    ]


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
            raise InputError(f"processes with {what}; expected a run without")


def _check_beside_pools(wanted: dict[str, bool]) -> None:
    for what, wrong in wanted.items():
        if wrong:
            raise InputError(f"[disaggregation] with {what}: not simulated together, expected a run without one")


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


def _recording(
    workload: Workload,
    engine: Engine,
    params: EngineParams,
    cluster: Cluster,
    log: RequestLog,
    life: list[list[tuple]] | None,
    cache_events: list[array[int]] | None,
) -> Recording:
    columns, handed = cluster.columns() if isinstance(cluster, PooledCluster) else (log.columns(), None)
    steps = [r.record.steps() for r in cluster.replicas]
    sent_s = _sent(cluster.replicas, steps)
    columns |= _told(columns, steps, sent_s, cluster.env.now)
    if life is not None:
        _tell_lives(life, columns, steps, cluster.env.now)
        if handed is not None:
            _tell_hand_overs(life, handed, cluster.env.now)
    return Recording(
        **columns,  # type: ignore[arg-type]
        steps=steps,
        samples=[r.record.samples() for r in cluster.replicas],
        end_s=cluster.env.now,
        kv_blocks=params.kv_blocks * params.ranks,
        block_size=params.hit_block,
        evicted_blocks=sum(r.evicted_blocks for r in cluster.replicas),
        engine_semantics=engine.version,
        prefill_pauses=engine.prefill_pauses,
        life=life,
        tiers=_tier_use(cluster.replicas),
        sent_s=sent_s,
        clients=None if cluster.clients is None else cluster.clients.use(),
        verified=_verified(params, cluster.replicas, log),
        handed=handed,
        cache_events=None if cache_events is None else [as_table(events) for events in cache_events],
    )


def _told(
    columns: dict[str, np.ndarray], steps: list[Steps], sent_s: list[np.ndarray] | None, now_s: float
) -> dict[str, np.ndarray]:
    """first_token_s and finish_s, float64 [n]: when clients had the tokens of those steps."""
    found = {name: np.full(len(columns["replica"]), np.nan) for name in ("first_token_s", "finish_s")}
    for i, rows in enumerate(by_replica(columns["replica"], len(steps))):
        told_s = steps[i].end_s if sent_s is None else sent_s[i]
        for times_s, index in zip(found.values(), (columns["first_step"], columns["last_step"]), strict=True):
            had = rows[index[rows] >= 0]
            times_s[had] = told_s[index[had]]
    if sent_s is not None:
        for times_s in found.values():
            times_s[times_s > now_s] = np.nan  # the clock has stopped before
    return found


def _sent(replicas: list[Replica], steps: list[Steps]) -> list[np.ndarray] | None:
    """When the tokens of each replica's steps left its front end; None where that takes no time."""
    if not any(r.record.sent_s for r in replicas):
        return None
    return [np.array(r.record.sent_s[: len(s)]) for r, s in zip(replicas, steps, strict=True)]


def _verified(params: EngineParams, replicas: list[Replica], log: RequestLog) -> Verified | None:
    if params.speculative is None:
        return None
    emitted = [np.array(r.record.emitted, np.int64) for r in replicas]
    return Verified(1 + params.speculative.tokens, log.drafts, log.accepted, emitted)


def _tier_use(replicas: list[Replica]) -> list[TierUse]:
    """Each tier over all replicas."""
    each = [use for r in replicas for use in r.tiers_used()]
    return [summed_use(uses) for uses in zip(*each, strict=True)]


def _tell_hand_overs(life: list[list[tuple]], handed: Handed, now_s: float) -> None:
    """Fill in the phases between a prefill and the first step of the decode replica, until the clock stopped."""
    times = np.stack([handed.prefilled_s, handed.read_s, handed.ready_s, handed.placed_s])
    for request in np.flatnonzero(~np.isnan(handed.prefilled_s)).tolist():
        at_s, *later_s = times[:, request].tolist()
        for phase, until_s in zip(("queued", "loading", "queued"), later_s, strict=True):
            end_s = min(until_s, now_s) if until_s == until_s else now_s  # NaN: not yet
            if end_s > at_s:
                life[request].append((phase, at_s, end_s, 0))
            at_s = end_s
        life[request].sort(key=lambda phase: (phase[1], phase[2]))


def _tell_lives(life: list[list[tuple]], columns: dict[str, np.ndarray], steps: list, now_s: float) -> None:
    """Fill in the phases around the prefill chunks: queued, decode, and what interrupted it. What the clock cut (it
    stopped at `now_s`) goes on until then."""
    pauses: dict[int, list[tuple[float, float]]] = {}
    ends_s = [one.end_s for one in steps]
    for request, a, b in zip(columns["gaps_request"], columns["gaps_from_step"], columns["gaps_to_step"], strict=True):
        end_s = ends_s[columns["replica"][request]]
        if a < len(end_s):  # SGLang tells of a gap when it decides the step that ends it, which the clock may cut
            to_s = end_s[b] if b < len(end_s) else now_s
            pauses.setdefault(int(request), []).append((end_s[a], to_s))
    for request, phases in enumerate(life):
        arrival_s, admit_s, first_s, finish_s = (
            float(columns[c][request]) for c in ("arrival_s", "admit_s", "first_token_s", "finish_s")
        )
        if np.isnan(admit_s):
            continue
        prefills = [phase for phase in phases if phase[0] == "prefill"]
        stops = pauses.get(request, [])
        stops += [
            (start, np.inf)
            for what, start, end, _ in phases
            if what == "preempted" and end > start >= first_s and not any(a <= start < b for a, b in stops)
        ]
        phases[:] = prefills
        queued_s = arrival_s + float(columns["frontend_s"][request]) if "frontend_s" in columns else arrival_s
        if queued_s > arrival_s:
            phases.append(("frontend", arrival_s, queued_s, 0))
        phases.append(("queued", queued_s, admit_s, 0))
        if "load_s" in columns and columns["load_s"][request] > 0 and not columns["preemptions"][request]:
            phases.append(("loading", admit_s, admit_s + float(columns["load_s"][request]), 0))
        at_s = first_s
        at_once = [
            (start, end)
            for _, start, end, _ in prefills
            if start >= first_s and not any(a <= start < b for a, b in stops)
        ]
        for from_s, to_s in sorted(stops + at_once):  # at once: preempted and admitted again in the next step
            resumed_s = min((start for _, start, _, _ in prefills if from_s <= start < to_s), default=None)
            if resumed_s is None and to_s < np.inf:
                continue  # it kept its memory and waited for a step
            resumed_s = now_s if resumed_s is None else resumed_s
            if from_s > at_s:
                phases.append(("decode", at_s, from_s, 0))
            if resumed_s > from_s:
                phases.append(("preempted", from_s, resumed_s, 0))
            at_s = to_s
        ended_s = now_s if columns["status"][request] == UNFINISHED else finish_s
        if ended_s > at_s:
            phases.append(("decode", at_s, ended_s, 0))
        phases.sort(key=lambda phase: (phase[1], phase[2]))
