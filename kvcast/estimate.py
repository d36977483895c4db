"""What a run will say, from at most 2,000 of its requests: an answer in a second while a mix is being edited.

The one idea: two stretches of the run itself, around its first and third quarter, at the run's own rates, simulated as they
are. The first third of each warms up caches and batch, the rest is measured. The run's goodput is then the share of requests
within their limits (measured) times the rate at which the whole run serves its requests (known from the workload alone).

A fleet at its limit has no such share: how much fails depends on how long it has been failing. When, in one stretch, the
backlog grows or the median request spends more than WAITING of its time to first token in the queue, the answer is `overloaded`,
and no goodput. A run of at most 2,000 requests is simulated whole.

    >>> estimate(load_scenario("examples/demo.toml"))["goodput_per_s"]
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvcast import api
from kvcast.api import Result
from sim.scenario import EngineParams, RunConfig, Scenario
from workloads.columns import Workload
from workloads.limits import earliest_s
from workloads.transform import picked

REQUESTS = 2000
STRETCHES = 2
WARM_UP = 1 / 3  #: of a stretch's requests
WAITING = 0.4  #: 0.47 where the estimate is off by half (long-context-chat on 2 H200), at most 0.24 wherever it is right


def estimate(scenario: Scenario, requests: int = REQUESTS, **options: Any) -> dict[str, Any]:
    """One JSON-able document. Options are those of `sim.simulate.run` (on_clock). Raises InputError."""
    prepared = api.prepare(scenario)
    workload = arriving(prepared.workload, prepared.resolved.params)
    if len(workload) <= requests or workload.concurrency is not None:  # the whole run, or the beginning of one that is always the same
        part = picked(workload, np.arange(min(requests, len(workload))))
        result = api.run(replace(prepared, workload=part), **options)
        return _document([result], len(workload), len(part), part, result.report.summary["duration"])
    results, sampled = [], 0
    for part, warmup_s in stretches(workload, requests):
        scenario = replace(prepared.scenario, run=RunConfig(warmup_s=warmup_s))
        results.append(api.run(replace(prepared, workload=part, resolved=replace(prepared.resolved, scenario=scenario)), **options))
        sampled += len(part)
    return _document(results, len(workload), sampled, workload, span_s(workload, _mean(results, "e2e_s")))


def arriving(workload: Workload, params: EngineParams) -> Workload:
    """The requests that will arrive: a session ends with its first request that no replica can serve."""
    if workload.after is None:
        return workload
    tokens = workload.prompt_tokens + workload.output_tokens
    ends = (tokens > params.max_model_len) | (tokens > params.kv_blocks * params.block_size)
    gone, after = np.zeros(len(workload), bool), workload.after.tolist()
    for r in np.flatnonzero(workload.after >= 0).tolist():  # after[r] < r: what it waits for is settled
        gone[r] = gone[after[r]] or ends[after[r]]
    return picked(workload, np.flatnonzero(~gone))


def stretches(workload: Workload, requests: int) -> list[tuple[Workload, float]]:
    """(neighbouring requests as a workload of their own, seconds of it that only warm up), from STRETCHES places.

    A session cut by the beginning goes on with its later turns: its history is part of their prompts, though nobody's cache
    holds it yet, which is what the warm-up is for.
    """
    at_s = earliest_s(workload)
    order = np.argsort(at_s, kind="stable")
    size = requests // STRETCHES
    found = []
    for k in range(STRETCHES):
        first = int((len(workload) - size) * (k + 0.5) / STRETCHES)
        rows = order[first : first + size]
        begins_s, warm_s = at_s[rows[0]], at_s[rows[int(size * WARM_UP)]]
        part = picked(workload, np.sort(rows))
        arrival_s = part.arrival_s - begins_s
        heads = part.column("after") < 0
        arrival_s[heads] = at_s[np.sort(rows)][heads] - begins_s
        found.append((replace(part, arrival_s=arrival_s), float(warm_s - begins_s)))
    return found


def span_s(workload: Workload, e2e_s: float) -> float:
    """How long the whole run takes, seconds: the latest nominal end, every answer taking the mean e2e_s."""
    before = workload.column("turn") if workload.after is not None else np.zeros(len(workload))
    return float((earliest_s(workload) + (before + 1) * e2e_s).max())


def _document(results: Sequence[Result], requests: int, sampled: int, of: Workload, lasts_s: float) -> dict[str, Any]:
    """of: the requests that take lasts_s seconds together."""
    summaries = [r.report.summary for r in results]
    first, total = summaries[0], lambda key: sum(s[key] for s in summaries)
    limited = first["attainment"] is not None
    good = sum(s["attainment"] * s["arrived"] for s in summaries) if limited else total("completed")
    share = good / max(total("arrived"), 1)
    overloaded = of.concurrency is None and (any(s["stable"] is False for s in summaries) or (sampled < requests and any(map(_waits, results))))
    offered = len(of) / lasts_s if lasts_s > 0 else None
    price, gpus = results[0].scenario.cost.gpu_hour_usd, first["replicas"] * first["tensor_parallel"]
    found = {
        "offered_per_s": offered, "goodput_per_s": None if offered is None else share * offered, "attainment": share if limited else None,
        **{f"{stat}_{name}_ms": _percentile(results, f"{name}_s", q) for name in ("ttft", "tpot") for stat, q in (("p50", 50), ("p99", 99))},
        **{
            f"usd_per_million_{name}_tokens": None if price is None else gpus * price * lasts_s / 3600 / max(int(tokens.sum()), 1) * 1e6
            for name, tokens in (("input", of.prompt_tokens), ("output", of.output_tokens), ("total", of.prompt_tokens + of.output_tokens))
        },
    }  # fmt: skip
    hits = {name: total(f"{name}_tokens") / max(total("prompt_tokens"), 1) for name in ("prefix_hit", "reuse_ceiling_fleet")}
    return {
        "requests": requests, "sampled": sampled, "measured": total("arrived"), "overloaded": overloaded, "limited": limited,
        **(dict.fromkeys(found) | {"offered_per_s": offered} if overloaded else found),
        "prefix_hit_rate": hits["prefix_hit"], "reuse_ceiling_fleet": hits["reuse_ceiling_fleet"],
        "extrapolated": max(s["coverage"]["extrapolated"] for s in summaries), "block_size": first["block_size"],
    }  # fmt: skip


def _waits(result: Result) -> bool:
    """Whether the median request spends most of its time to first token in the queue."""
    queue_s, ttft_s = (_columns([result], name) for name in ("queue_s", "ttft_s"))
    return len(queue_s) > 0 and float(np.median(queue_s)) > WAITING * float(np.median(ttft_s))


def _columns(results: Sequence[Result], name: str) -> np.ndarray:
    """A column of the measured, completed requests of all stretches."""
    tables = [r.report.requests for r in results]
    return np.concatenate([t[name][t["in_window"].astype(bool) & (t["status"] == 0)] for t in tables])


def _mean(results: Sequence[Result], name: str) -> float:
    values = _columns(results, name)
    return float(values.mean()) if len(values) else 0.0


def _percentile(results: Sequence[Result], name: str, q: float) -> float | None:
    values = _columns(results, name)
    values = values[~np.isnan(values)]
    return float(np.percentile(values, q) * 1e3) if len(values) else None
