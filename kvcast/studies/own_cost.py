"""What a simulation takes of this machine, before it is begun: CPU time and memory, from a piece of it.

The one idea: a request costs in the whole run what it costs in a stretch of it that is simulated first, here; memory
is that of its columns and of its steps, whose number the stretch tells too. Within 1.5 times on the mixes of
benchmarks/bench_scale.py.

    >>> cost = own_cost(api.prepare(scenario)); cost.cpu_s, cost.peak_bytes
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from kvcast import api
from kvcast.studies.estimate import arriving, stretches
from kvcast.system import available_bytes
from sim.log import PACKS_FROM
from sim.scenario import RunConfig
from workloads.errors import InputError
from workloads.transform import picked

PIECE = 2000
"""Requests that are simulated to tell."""
LARGE = 200_000
"""Requests from which on a run is asked what it takes before it begins."""
BASE_BYTES = 115 << 20
"""Interpreter, libraries, and what a report needs whatever the number of requests."""
REQUEST_BYTES = 1750
"""Columns, samples, stretches and the caches' share (benchmarks/bench_scale.py)."""
STEP_BYTES, PACKED_STEP_BYTES = 9.0, 0.9
REPORT_S = 0.7
"""CPU seconds of a report, whatever the number of requests."""


@dataclass(frozen=True)
class OwnCost:
    """Of one simulation and its report, without the twin that has the cache off."""

    requests: int
    cpu_s: float
    peak_bytes: float


def own_cost(prepared: api.Prepared) -> OwnCost:
    workload = arriving(prepared.workload, prepared.resolved.params)
    if len(workload) <= PIECE or workload.concurrency is not None:
        part, warmup_s = picked(workload, np.arange(min(PIECE, len(workload)))), 0.0
    else:
        part, warmup_s = stretches(workload, PIECE, prepared.scenario.run)[0]
    resolved = replace(prepared.resolved, scenario=replace(prepared.scenario, run=RunConfig(warmup_s=warmup_s)))
    begun_s = time.process_time()
    recording = api.record(replace(prepared, workload=part, resolved=resolved))
    share = (time.process_time() - begun_s) / max(len(part), 1)
    n, steps = len(workload), sum(len(steps) for steps in recording.steps) / max(len(part), 1)
    packed = int(workload.output_tokens.sum()) >= PACKS_FROM
    each = REQUEST_BYTES + steps * (PACKED_STEP_BYTES if packed else STEP_BYTES)
    return OwnCost(n, REPORT_S + n * share * 1.25, BASE_BYTES + n * each)  # a quarter more for the report


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
