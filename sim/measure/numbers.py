"""The numbers of a report's summary: latency, throughput, cache and engine, of the window that is judged.

>>> latency_of(stability, scenario)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sim.measure import gaps, metrics
from sim.measure.causes import CAUSES, Causes
from sim.measure.metrics import Window
from sim.measure.stability import Stability
from sim.recording import ABANDONED, ABORTED, SESSION_TRUNCATED, STATUS, UNFINISHED, Recording
from sim.scenario import Scenario
from workloads import portable
from workloads.columns import SCOPES, Workload

STEADY, OVERLOADED_TRACE, MEANS_ONLY = "steady state", "overloaded trace", "means only"
"""What a summary's latencies are of: a run whose fleet keeps up; a trace, whose every request is there, that ends with
a growing backlog; of an unstable mix only the means, which say how long it ran as much as how fast it is."""

LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue")
COUNTING_RULE = "full blocks found at first admission / prompt tokens, whole cluster"


def latencies(
    rec: Recording, times: Mapping[str, np.ndarray], groups: list[np.ndarray]
) -> list[dict[str, dict[str, float | None]]]:
    column = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s", "queue": "queue_s"}
    tables = []
    for group, itl in zip(groups, gaps.describe(rec, groups), strict=True):
        table = {name: metrics.describe(_ms(times[column[name]][group])) for name in column}
        table["itl"] = itl
        tables.append({name: table[name] for name in LATENCIES})
    return tables


def _ms(seconds: np.ndarray) -> np.ndarray:
    """In place."""
    return np.multiply(seconds, 1e3, out=seconds)


def latency_of(stability: Stability, scenario: Scenario) -> str:
    """Which of the latencies may be told: STEADY, OVERLOADED_TRACE or MEANS_ONLY."""
    if stability.stable is not False:
        return STEADY
    return MEANS_ONLY if scenario.workload.trace is None else OVERLOADED_TRACE


def flat(latency: dict[str, dict[str, float | None]], told: str) -> dict[str, float | None]:
    """{"mean_ttft_ms": ...}; percentiles and spread are None where only means are told."""
    return {
        f"{stat}_{name}_ms": None if told == MEANS_ONLY and stat != "mean" else value
        for name, stats in latency.items()
        for stat, value in stats.items()
    }


def throughput(
    rec: Recording, workload: Workload, window: Window, done: np.ndarray, prefilled: int, output_tokens: int
) -> dict[str, Any]:
    """Things done inside the window, whoever's they are, over its length."""
    span = window.seconds if window.seconds > 0 else np.nan
    finished = int(window.holds(rec.finish_s).sum())
    rates = {
        "request_throughput": finished / span,
        "input_throughput": prefilled / span,
        "output_throughput": output_tokens / span,
        "total_token_throughput": (prefilled + output_tokens) / span,
    }
    return {
        "duration": window.seconds,
        "completed": int(done.sum()),
        "total_input_tokens": int(workload.prompt_tokens[done].sum()),
        "total_output_tokens": int(workload.output_tokens[done].sum()),
        **{k: None if np.isnan(v) else float(v) for k, v in rates.items()},
    }


def fate_counts(status: np.ndarray) -> dict[str, Any]:
    count = np.bincount(status, minlength=len(STATUS))
    rejected = {
        STATUS[s].removeprefix("rejected_"): int(count[s])
        for s in range(len(STATUS))
        if STATUS[s].startswith("rejected_")
    }
    return {
        "rejected": rejected,
        "session_truncated": int(count[SESSION_TRUNCATED]),
        "aborted": int(count[ABORTED]),
        "abandoned": int(count[ABANDONED]),
        "unfinished": int(count[UNFINISHED]),
    }


def cache_numbers(rec: Recording, workload: Workload, counted: np.ndarray, causes: Causes) -> dict[str, Any]:
    prompt = int(workload.prompt_tokens[counted].sum())

    def rate(column: np.ndarray) -> float | None:
        return float(column[counted].sum()) / prompt if prompt else None

    hit = rec.hit_tokens[counted]
    return {
        "prompt_tokens": prompt,
        "prefix_hit_tokens": int(hit.sum()),
        "prefix_hit_rate": rate(rec.hit_tokens),
        "reuse_ceiling_replica": rate(rec.ceiling_replica_tokens),
        "reuse_ceiling_fleet": rate(rec.ceiling_fleet_tokens),
        "reuse_ceiling_replica_tokens": int(rec.ceiling_replica_tokens[counted].sum()),
        "reuse_ceiling_fleet_tokens": int(rec.ceiling_fleet_tokens[counted].sum()),
        "requests_with_hit_share": float((hit > 0).mean()) if len(hit) else None,
        "hit_tokens_per_request": {f"p{p}": float(np.percentile(hit, p)) if len(hit) else None for p in (10, 50, 90)},
        "counting_rule": COUNTING_RULE,
        "block_size": rec.block_size,
        "kv_blocks": rec.kv_blocks,
        "prefix_identity": workload.prefix_identity,
        "miss_tokens": {c: causes.total(c) if causes.determinable.get(c, True) else None for c in CAUSES},
        "shared_partial_block_tokens": int(causes.shared_partial[counted].sum()),
        "hit_tokens": {"by_scope": by_scope(causes.by_scope["hit"])},
        "preemptions": int(rec.preemptions[counted].sum()),
        "recomputed_tokens": int(rec.recomputed_tokens[counted].sum()),
        "readmission_hit_tokens": int(rec.readmission_hit_tokens[counted].sum()),
        "evicted_blocks": rec.evicted_blocks,
    }


def by_scope(counts: np.ndarray) -> dict[str, int]:
    return {scope: int(total) for scope, total in zip(SCOPES, counts.sum(axis=0), strict=True) if total}


def flops(rec: Recording, workload: Workload, counted: np.ndarray, flops: Callable | None) -> dict[str, float | None]:
    """FLOPs of the counted prompts without a cache, and what the first admissions' hits saved of them."""
    if flops is None:
        return {"prefill_flops": None, "prefill_flops_saved": None}

    def whole(part: slice) -> np.ndarray:
        prompt = workload.prompt_tokens[counted[part]]
        return flops(prompt, np.zeros_like(prompt))

    def computed(part: slice) -> np.ndarray:
        prompt, hit = workload.prompt_tokens[counted[part]], rec.hit_tokens[counted[part]].astype(np.int64)
        return flops(prompt - hit, hit)

    of_all, of_computed = (portable.total_of(each, len(counted)) for each in (whole, computed))
    return {"prefill_flops": of_all, "prefill_flops_saved": of_all - of_computed}


def engine_numbers(
    rec: Recording, window: Window, inside: np.ndarray, shares: dict[str, float], held: float
) -> dict[str, Any]:
    """held: mean number of replicas that hold their GPUs in the window."""
    each = rec.kv_blocks_of
    blocks = float(each.mean()) * held or 1

    def mean(column: str) -> float:
        return sum(metrics.time_mean(s, column, window) for s in rec.samples)

    running, present = mean("running"), metrics.in_system_mean(rec, window)
    pairs = zip(rec.samples, each.tolist(), strict=True)
    peak = max((int(s.blocks_in_use.max()) / size for s, size in pairs if len(s.t_s)), default=0.0)
    return {
        "kv_usage_mean": mean("blocks_in_use") / blocks,
        "kv_usage_peak": peak,
        "kv_cached_idle_mean": mean("blocks_cached_idle") / blocks,
        "in_system_mean": present,
        "running_mean": running,
        "waiting_mean": present - running,
        "decode_batch_mean": shares["decode_batch"],
        "tokens_per_step_mean": shares["tokens_per_step"],
        "busy_share": shares["busy_s"] / (window.seconds * held) if window.seconds > 0 and held else None,
        "preempted_s": portable.total(rec.preempted_s[inside]),
        "coverage": {k: shares[k] for k in ("measured", "interpolated", "extrapolated")},
    }
