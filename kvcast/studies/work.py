"""About how many replicas a workload needs, by arithmetic alone: where a search for the fewest begins.

>>> guess_replicas(scenario, load_workload(scenario.workload, scenario.seed))
"""

from __future__ import annotations

import math

import numpy as np

from kvcast import api
from sim.engines import engine_of
from sim.scenario import Scenario
from workloads.clock import earliest_s
from workloads.columns import Workload
from workloads.estimate import reusable_tokens


def guess_replicas(scenario: Scenario, workload: Workload) -> int:
    """Replicas that the work alone asks for: prefill of what no cache can hold in full steps, decode in full batches,
    in the time in which requests come. A start for the search, never an answer: queueing and evictions ask for more."""
    begins_s, work_s = scenario.workload.skip_ended_s, seconds_of_work(api.prepare(scenario, workload))
    last_s = float(np.nanmax(workload.arrival_s, initial=0.0))
    span_s = last_s - begins_s
    if begins_s:  # before it only some of the sessions are there
        at_s = earliest_s(workload)
        work_s *= float(np.mean((begins_s <= at_s) & (at_s <= last_s)))
    if scenario.run.duration_s is not None:
        lasts_s = scenario.run.duration_s - begins_s
        work_s, span_s = work_s * min(1.0, lasts_s / span_s) if span_s else work_s, min(span_s, lasts_s)
    return max(1, math.ceil(work_s / span_s)) if span_s > 0 else max(1, scenario.cluster.replicas)


def seconds_of_work(prepared: api.Prepared) -> float:
    """Seconds that one replica takes for all requests of a workload when every step is full: prefill of what no cache
    can hold, and decode."""
    params, times, workload = prepared.resolved.params, prepared.step_time, prepared.workload
    new = workload.prompt_tokens - (reusable_tokens(workload) if params.caching else 0)
    context = float((workload.prompt_tokens + workload.output_tokens / 2).mean())
    chunk = engine_of(params).lone_chunk(params, params.max_prefill_tokens)
    prefill_s = times.step([(chunk, 0)], 0, 0, 0, 1)[0] / chunk
    batch = max(1, min(params.max_num_seqs, int(params.kv_tokens / context), 256))
    decode_s = times.step([], batch, int(batch * context), int(context), batch)[0] / batch
    return (float(new.sum()) * prefill_s + float(workload.output_tokens.sum()) * decode_s) / params.ranks
