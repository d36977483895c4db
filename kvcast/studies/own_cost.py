"""What a simulation takes of this machine, before it is begun: CPU time and memory, from a piece of it.

The one idea: a request costs in the whole run what it costs in a stretch of it that is simulated first, here; memory
is that of its columns and of its steps, whose number the stretch tells too, and of the caches of the replicas that are
simulated at once: of one where they may be simulated apart (sim.fleet.apart). Within 1.5 times on the mixes of
benchmarks/bench_scale.py (docs/speed.md).

    >>> cost = own_cost(api.prepare(scenario)); cost.cpu_s, cost.peak_bytes
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from kvcast import api
from kvcast.studies.estimate import arriving, stretches
from kvcast.system import available_bytes
from sim.fleet.apart import may_be_apart
from sim.fleet.router import find as find_router
from sim.log import PACKS_FROM
from sim.recording import Recording
from sim.scenario import RunConfig
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.transform import picked

PIECE = 2000
"""Requests that are simulated to tell."""
LARGE = 200_000
"""Requests from which on a run is asked what it takes before it begins."""
BASE_BYTES = 100 << 20
"""Interpreter, libraries, and what a report needs whatever the number of requests."""
REQUEST_BYTES, PACKED_REQUEST_BYTES = 650, 320
"""Columns, samples and stretches, and what the report needs of them (benchmarks/bench_scale.py)."""
STEP_BYTES, PACKED_STEP_BYTES = 9.0, 0.9
RECORD_BYTES = 75_000
"""Of every replica: the newest steps, stretches and samples."""
CACHE_REQUEST_BYTES, CACHE_BYTES = 500, 1_000_000
"""Of a request that is remembered in the caches of replicas simulated at once, and the most in those of one replica."""
SCATTERED = 1.4
"""Times as much a request takes where more than 100 replicas are simulated at once, whose state lies too far apart for
a processor's caches."""
REPORT_S = 0.7
"""CPU seconds of a report, whatever the number of requests."""


@dataclass(frozen=True)
class OwnCost:
    """Of one simulation and its report, without the twin that has the cache off."""

    requests: int
    cpu_s: float
    peak_bytes: float


def own_cost(prepared: api.Prepared) -> OwnCost:
    workload, cluster = arriving(prepared.workload, prepared.resolved.each[0].params), prepared.scenario.cluster
    some, replicas = workload, cluster.replicas
    if not (prepared.scenario.shock or prepared.scenario.pool):  # it may be of so many replicas
        some, replicas = _of_some_replicas(workload, replicas)
    if len(some) <= PIECE or workload.concurrency is not None:
        part, warmup_s = picked(some, np.arange(min(PIECE, len(some)))), 0.0
    else:
        part, warmup_s = stretches(some, PIECE, prepared.scenario.run)[0]
    scenario = replace(prepared.scenario, run=RunConfig(warmup_s=warmup_s), cluster=replace(cluster, replicas=replicas))
    resolved = replace(prepared.resolved, scenario=scenario)
    _, begin_s = _recorded(prepared, resolved, picked(part, np.arange(min(len(part), 1))))  # a prefix tree is whole
    recording, part_s = _recorded(prepared, resolved, part)
    share = max(part_s - begin_s, 0.0) / max(len(part), 1)
    n, steps = len(workload), sum(len(steps) for steps in recording.steps) / max(len(part), 1)
    packed = int(workload.output_tokens.sum()) >= PACKS_FROM
    each = PACKED_REQUEST_BYTES + steps * PACKED_STEP_BYTES if packed else REQUEST_BYTES + steps * STEP_BYTES
    at_once = 1 if _apart(prepared) else cluster.replicas
    caches = min(n * CACHE_REQUEST_BYTES / cluster.replicas, CACHE_BYTES) * at_once
    peak = BASE_BYTES + n * each + cluster.replicas * RECORD_BYTES + caches
    if at_once > 100:
        share *= SCATTERED
    return OwnCost(n, REPORT_S + begin_s + n * share * 1.25, peak)  # a quarter more for the report


def _recorded(prepared: api.Prepared, resolved: api.Resolved, part: Workload) -> tuple[Recording, float]:
    """A part of the requests simulated, and the CPU seconds of it."""
    begun_s = time.process_time()
    recording = api.record(replace(prepared, workload=part, resolved=resolved))
    return recording, time.process_time() - begun_s


def _apart(prepared: api.Prepared) -> bool:
    """Whether its replicas are simulated one after the other (sim.simulate.run)."""
    scenario = prepared.scenario
    if scenario.pool or scenario.shock or scenario.client.acts or scenario.cluster.shed_over is not None:
        return False
    return may_be_apart(find_router(scenario.cluster.router), prepared.workload, prepared.resolved.params)


def _of_some_replicas(workload: Workload, replicas: int) -> tuple[Workload, int]:
    """The requests of so few replicas that they are no more than PIECE, by whole sessions, and how many those are: a
    request's cost depends on how many come to one replica."""
    few = min(replicas, max(1, 4 * PIECE * replicas // (5 * max(len(workload), 1))))
    if few == replicas or workload.concurrency is not None:
        return workload, replicas
    up, after = np.arange(len(workload)), workload.column("after")
    up[after >= 0] = after[after >= 0]
    while not np.array_equal(up[up], up):
        up = up[up]  # whom the first of them waits for
    _, chain = np.unique(up, return_inverse=True)
    return picked(workload, np.flatnonzero(chain % replicas < few)), few


def check_memory(prepared: api.Prepared) -> OwnCost | None:
    """What a large run takes; None for a small one. Raises InputError where this machine has not half of the memory."""
    if len(prepared.workload) < LARGE:
        return None
    cost, free = own_cost(prepared), available_bytes()
    if free is not None and cost.peak_bytes > 2 * free:
        raise InputError(
            f"{cost.requests:,} requests: simulating them takes about {cost.peak_bytes / 2**30:.1f} GiB, and"
            f" {free / 2**30:.1f} GiB are free here; expected a shorter run ([run] duration_s, [workload] requests) or"
            " fewer replicas with their share of the load"
        )
    return cost


def words(cost: OwnCost) -> str:
    """A line about it, with a warning where memory is short."""
    from kvcast import text

    free = available_bytes()
    short = free is not None and cost.peak_bytes > 0.8 * free
    return (
        f"simulating {text.count(cost.requests)} requests takes about {text.seconds(cost.cpu_s)} of CPU time and"
        f" {cost.peak_bytes / 2**20:,.0f} MiB here"
        + (f": WARNING, {free / 2**20:,.0f} MiB are free" if short and free is not None else "")
    )
