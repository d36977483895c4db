"""What a run will say, from at most 2,000 of its requests: an answer in a second while a mix is being edited.

The one idea: a stretch of the run's own window (two, apart, where no turn follows another), at the run's own rates,
simulated as it is, sessions in progress included. The first WARM_UP of it warms up caches and batch, the rest is
measured. The goodput is then the share of requests within their limits (measured) times the rate at which requests come
(nominal: known before any run).

A fleet at its limit has no such share: how much fails depends on how long it has been failing. When, in one stretch,
the backlog grows or the median request spends more than WAITING of its time to first token in the queue (a step apart),
the answer is `overloaded`, and no goodput. A run of at most 2,000 requests, warm-up included, is simulated whole.

    >>> estimate(load_scenario("examples/demo.toml"))["goodput_per_s"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvcast import api
from kvcast.api import Result
from kvcast.scenario.steady import is_mix, offered_per_s
from sim.engines import engine_of
from sim.measure.metrics import limits_of
from sim.measure.money import PER_MILLION, money
from sim.measure.verdict import all_stable, judge, named_limits, sample_in
from sim.scenario import EngineParams, RunConfig, Scenario
from workloads.clock import earliest_s
from workloads.columns import Workload
from workloads.transform import picked

REQUESTS = 2000
STRETCHES = 2  #: of single turns; sessions take one long enough for their caches and queue
WARM_UP = 0.6  #: of a stretch's requests
WAITING = (
    0.4  #: 0.47 where the estimate is off by half (long-context-chat on 2 H200), at most 0.24 wherever it is right
)


def estimate(scenario: Scenario, requests: int = REQUESTS, **options: Any) -> dict[str, Any]:
    """One JSON-able document. Options are those of `sim.simulate.run` (on_clock). Raises InputError."""
    prepared = api.prepare(scenario)
    workload = arriving(prepared.workload, prepared.resolved.params)
    if (
        len(workload) <= requests or workload.concurrency is not None
    ):  # the whole run, or the beginning of one that is always the same
        part = picked(workload, np.arange(min(requests, len(workload))))
        results = [api.run(replace(prepared, workload=part), **options)]
        summary = results[0].report.summary
        rates = {
            "goodput_per_s": summary["request_goodput"] or summary["request_throughput"],
            **{key: summary["cost"][key] for key in PER_MILLION},
        }
        return _document(prepared, results, len(workload), len(part), rates)
    results, sampled = [], 0
    for part, warmup_s in stretches(workload, requests, prepared.scenario.run):
        measured = replace(prepared.scenario, run=RunConfig(warmup_s=warmup_s))
        results.append(
            api.run(replace(prepared, workload=part, resolved=replace(prepared.resolved, scenario=measured)), **options)
        )
        sampled += len(part)
    return _document(prepared, results, len(workload), sampled, _rates(prepared, workload, results))


def arriving(workload: Workload, params: EngineParams) -> Workload:
    """The requests that will arrive: a session ends with its first request that no replica can serve."""
    if workload.after is None:
        return workload
    tokens = workload.prompt_tokens + workload.output_tokens
    ends = (tokens > params.max_model_len) | ~engine_of(params).holds(params, tokens)
    gone, after = np.zeros(len(workload), bool), workload.after.tolist()
    for r in np.flatnonzero(workload.after >= 0).tolist():  # after[r] < r: what it waits for is settled
        gone[r] = gone[after[r]] or ends[after[r]]
    return picked(workload, np.flatnonzero(~gone))


def stretches(workload: Workload, requests: int, run: RunConfig) -> list[tuple[Workload, float]]:
    """(neighbouring requests as a workload of their own, seconds of it that only warm up), from one or STRETCHES places
    of the run's window.

    A session cut by the beginning goes on with its later turns: its history is part of their prompts, though nobody's
    cache holds it yet, which is what the warm-up is for. A window with too few requests for that is one stretch, with
    what comes before it."""
    at_s = earliest_s(workload)
    order = np.argsort(at_s, kind="stable")
    order = order[at_s[order] <= (np.inf if run.duration_s is None else run.duration_s)]
    opens = int(np.searchsorted(at_s[order], run.warmup_s or 0.0))
    places = STRETCHES if workload.after is None else 1
    size = requests // places
    measured, inside = size - int(size * WARM_UP), len(order) - opens
    if inside < places * measured:
        return [_stretch(workload, at_s, order[-requests:], max(requests - inside, 0))]
    firsts = [opens + int((inside - measured) * (k + 0.5) / places) for k in range(places)]
    return [
        _stretch(workload, at_s, order[max(first + measured - size, 0) : first + measured], min(size - measured, first))
        for first in firsts
    ]


def _stretch(workload: Workload, at_s: np.ndarray, rows: np.ndarray, warm: int) -> tuple[Workload, float]:
    """rows: in the order of at_s, the first `warm` of them before what is measured."""
    begins_s, warm_s, rows = at_s[rows[0]], at_s[rows[warm]], np.sort(rows)
    part = picked(workload, rows)
    arrival_s, heads = part.arrival_s - begins_s, part.column("after") < 0
    arrival_s[heads] = at_s[rows][heads] - begins_s
    return replace(part, arrival_s=arrival_s), float(warm_s - begins_s)


def _rates(prepared: api.Prepared, workload: Workload, results: Sequence[Result]) -> dict[str, float | None]:
    """Goodput and cost at the rate at which requests come. workload: those that arrive.

    Of a mix that is its nominal rate, less the turns of sessions that end early; else the mean over the whole run.
    """
    offered = offered_per_s(prepared.scenario, prepared.workload)
    if is_mix(prepared.scenario) and offered is not None:
        come_per_s = offered * len(workload) / len(prepared.workload)
    else:
        come_per_s = len(workload) / span_s(workload, _mean(results, "e2e_s"))
    summaries = [r.report.summary for r in results]
    price, gpus = results[0].scenario.cost.gpu_hour_usd, summaries[0]["replicas"] * summaries[0]["gpus_per_replica"]
    bill = money(None if price is None else gpus * price, come_per_s, workload.prompt_tokens, workload.output_tokens)
    return {"goodput_per_s": come_per_s * _good_share(summaries), **{key: bill[key] for key in PER_MILLION}}


def _good_share(summaries: Sequence[dict[str, Any]]) -> float:
    """Of the measured arrivals; without limits, of those that completed."""
    good = sum(s["completed"] if s["attainment"] is None else s["attainment"] * s["arrived"] for s in summaries)
    return good / max(sum(s["arrived"] for s in summaries), 1)


def span_s(workload: Workload, e2e_s: float) -> float:
    """How long the whole run takes, seconds: the latest nominal end, every answer taking the mean e2e_s."""
    before = workload.column("turn") if workload.after is not None else np.zeros(len(workload))
    return float((earliest_s(workload) + (before + 1) * e2e_s).max())


def _document(
    prepared: api.Prepared, results: Sequence[Result], requests: int, sampled: int, rates: dict[str, float | None]
) -> dict[str, Any]:
    summaries = [r.report.summary for r in results]
    first, total = summaries[0], lambda key: sum(s[key] for s in summaries)
    limited, open_loop = first["attainment"] is not None, prepared.workload.concurrency is None
    overloaded = open_loop and (
        any(s["stable"] is False for s in summaries) or (sampled < requests and any(map(_waits, results)))
    )
    found = {
        **rates,
        "attainment": _good_share(summaries) if limited else None,
        **{
            f"{stat}_{name}_ms": _percentile(results, f"{name}_s", q)
            for name in ("ttft", "tpot")
            for stat, q in (("p50", 50), ("p99", 99))
        },
    }
    hits = {
        name: total(f"{name}_tokens") / max(total("prompt_tokens"), 1) for name in ("prefix_hit", "reuse_ceiling_fleet")
    }
    return {
        "requests": requests,
        "sampled": sampled,
        "measured": total("arrived"),
        "overloaded": overloaded,
        "limited": limited,
        "offered_per_s": offered_per_s(prepared.scenario, prepared.workload),
        **(dict.fromkeys(found) if overloaded else found),
        "attainment_target": prepared.scenario.slo.attainment,
        "verdict": _verdict(prepared, results, overloaded),
        "prefix_hit_rate": hits["prefix_hit"],
        "reuse_ceiling_fleet": hits["reuse_ceiling_fleet"],
        "extrapolated": max(s["coverage"]["extrapolated"] for s in summaries),
        "block_size": first["block_size"],
    }


def _verdict(prepared: api.Prepared, results: Sequence[Result], overloaded: bool) -> dict[str, Any] | None:
    """As summary["verdict"], of the measured requests of all stretches; None without a target or a limit."""
    if any(r.report.summary["verdict"] is None for r in results):
        return None
    slo, workload = prepared.scenario.slo, prepared.workload
    samples = [sample_in(r.report.requests, named_limits(workload, limits_of(workload, slo))) for r in results]
    stable = False if overloaded else all_stable([r.report.summary["stable"] for r in results])
    return judge(samples, slo, stable).as_document()


def _waits(result: Result) -> bool:
    """Whether the median request spends most of its time to first token in the queue, a decode step apart: an engine
    that decides ahead lets everybody wait for one."""
    queue_s, ttft_s, tpot_s = (_columns([result], name) for name in ("queue_s", "ttft_s", "tpot_s"))
    if not len(queue_s):
        return False
    step_s = 0.0 if np.isnan(tpot_s).all() else float(np.nanmedian(tpot_s))
    return float(np.median(queue_s)) - step_s > WAITING * (float(np.median(ttft_s)) - step_s)


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
