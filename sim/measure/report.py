"""Recording -> Report: every number a run is judged by, with where it came from.

The one idea: a Report is columns plus one JSON-able `summary` whose keys are those of `vllm bench serve` results where
they exist. Nothing is dropped silently: the fates of the window's arrivals sum to `arrived`, and a number that should
not be trusted is None with a reason in `notes`, not a number.

    report = build_report(recording, workload, scenario, profile="h200-...", profile_hash="...")
    report.summary["p99_ttft_ms"], report.classes["chat"]["attainment"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.measure import judged, metrics, mixed, pools
from sim.measure.balance import balance, passed_over
from sim.measure.causes import miss_causes
from sim.measure.columns import Columns
from sim.measure.cost import busy_gpu_s, cache_worth, cost_summary
from sim.measure.fairness import fairness, with_service
from sim.measure.held import fleet_row, replicas_held
from sim.measure.metrics import Window
from sim.measure.notes import notes
from sim.measure.numbers import (
    by_scope,
    cache_numbers,
    engine_numbers,
    fate_counts,
    flat,
    flops,
    latencies,
    latency_of,
    throughput,
)
from sim.measure.regime import of_run
from sim.measure.shocks import told as told_of_shocks
from sim.measure.stability import BOUNDED, Stability, assess_fleet
from sim.measure.tables import (
    cache_table,
    class_table,
    clients_row,
    fate_columns,
    front_end_row,
    requests_table,
    tenant_table,
    tier_table,
)
from sim.measure.timeline import interval_ends, interval_of, timeline
from sim.measure.utilization import utilization
from sim.measure.verdict import named_limits
from sim.recording import ABANDONED, COMPLETED, NOT_ARRIVED, STATUS, Recording, Samples, Steps
from sim.scenario import RunConfig, Scenario, SloClass
from sim.tenants import tenants_of, weights_of
from workloads.columns import Workload

if TYPE_CHECKING:
    from calibrate.utilization import Peaks, StepWork


@dataclass(frozen=True)
class Report:
    """A run, measured. Columns are per request of the workload, in its order, window or not (`in_window` says)."""

    summary: dict[str, Any]  #: JSON-able; METRICS' keys
    latency: dict[str, dict[str, float | None]]  #: ms; of this finite run whatever its stability, unlike `summary`
    classes: dict[str, dict[str, Any]]  #: the same per workload class
    slo_classes: dict[str, dict[str, Any]]  #: limits, arrivals, good, attainment per SLO class; "" = the default limits
    tenants: dict[str, dict[str, Any]]
    requests: Mapping[str, np.ndarray]  #: [n] columns for requests.parquet; some are made whenever they are asked for
    sessions: dict[str, np.ndarray]  #: session_id, requests, gpu_hours (idle time included)
    timeline: dict[str, np.ndarray]  #: [points] cluster state over time, and where the prompt tokens went
    cache: dict[str, np.ndarray]  #: class, t_s, scope, fate, tokens: the same by all of them, of the window
    steps: list[Steps]
    samples: list[Samples]
    life: list[list[tuple]] | None
    notes: tuple[str, ...]  #: what a reader must know to read the numbers


def build_report(
    rec: Recording,
    workload: Workload,
    scenario: Scenario,
    *,
    profile: str = "",
    profile_hash: str = "",
    prefill_flops: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    step_work: StepWork | None = None,
    peaks: Peaks | None = None,
    offered_per_s: float | None = None,
) -> Report:
    """Measure a run. offered_per_s: requests a second that the scenario stands for, whatever came.
    prefill_flops(new_tokens, cached_tokens) gives FLOPs [n]; without it FLOPs are None. step_work and peaks: for MFU
    and MBU.

    A recording with the events of its caches (record_cache) has its evicted tokens split by the optimum of its
    schedule."""
    window, inside = judged_window(rec, workload, scenario.run)
    class_id = workload.column("class_id")
    times = metrics.per_request(rec, workload)
    completed = rec.status == COMPLETED
    admitted = ~np.isnan(rec.admit_s)
    slo = metrics.limits_of(workload, scenario.slo)
    limited = judged.is_limited(slo)
    columns = Columns(
        {"class_id": class_id, "status": rec.status, "arrival_s": rec.arrival_s, "in_window": inside, **times.given()}
    )
    good = judged.good_of(columns, slo)

    n_classes = max(len(workload.class_names), 1)
    counted = np.flatnonzero(inside & admitted).astype(np.int32)
    ends_s = interval_ends(rec)
    group = interval_of(ends_s, rec.admit_s[counted]).astype(np.int32)
    group += class_id[counted] * np.int32(len(ends_s))
    grouping = (counted, group, n_classes * len(ends_s))
    causes = miss_causes(rec, workload, *grouping, caching=scenario.cache.enabled)
    evicted = None
    if rec.cache_events is not None and scenario.cache.enabled:
        from sim.measure.evicted import evicted_parts  # only here is an optimum needed

        evicted = evicted_parts(rec, workload, *grouping)
    del group, grouping
    stability = stability_of(rec, workload, window)
    gpus, held = scenario.gpus_per_replica, replicas_held(rec, window.start_s, window.end_s)
    work = _computed(rec, workload)
    gpu_s = _gpu_seconds(rec, work, scenario)
    del work
    paid = mixed.paid(gpu_s, inside, rec, scenario, window) if scenario.pool else gpu_s
    output_tokens = metrics.tokens_emitted(rec, window)
    prefilled_tokens = int(workload.prompt_tokens[window.holds(rec.first_token_s)].sum())
    cost, gpu_hours, sessions = cost_summary(
        paid,
        inside,
        workload.column("session_id"),
        held * gpus * window.seconds,
        prefilled_tokens,
        output_tokens,
        scenario.cost.gpu_hour_usd,
    )

    told_apart = [inside & completed] + (
        [inside & completed & (class_id == c) for c in range(n_classes)] if n_classes > 1 else []
    )
    latency = latencies(rec, times, told_apart)
    del told_apart
    told = latency_of(stability, scenario)
    shares = metrics.step_shares(rec.steps, window)
    if rec.verified is not None:  # a decode has that many rows, and reads its context once: StepWork knows neither
        shares["decode_batch"] /= rec.verified.rows
        step_work = None
    gpu_busy_s = mixed.busy_gpus_s(rec, window, scenario) if scenario.pool else shares["busy_s"] * gpus
    if rec.handed is not None:
        gpu_busy_s = pools.busy_gpus_s(rec, window, scenario)
        step_work = step_work if len(set(pools.pool_gpus(scenario))) == 1 else None  # it is of one width
    fates = fate_counts(rec.status[inside])
    of_limits = judged.by_limits(
        columns, good, workload.class_names, slo, scenario.slo, stability.stable, window.seconds
    )
    fell = of_limits["fell"]
    shocks = _shocks(rec, workload, scenario, slo, class_id, good, inside, window) if scenario.shock else []
    even = _fairness(rec, workload, scenario, window)
    summary: dict[str, Any] = {
        **throughput(rec, workload, window, inside & completed, prefilled_tokens, output_tokens),
        "request_goodput": of_limits["request_goodput"],
        **flat(latency[0], told),
        "latency_of": told,
        "offered_per_s": offered_per_s,
        "arrived": int(inside.sum()),
        **fates,
        "outside_window": int((rec.status != NOT_ARRIVED).sum() - inside.sum()),
        "not_arrived": int((rec.status == NOT_ARRIVED).sum()),
        "lost_with_session": metrics.lost_with_session(rec, workload),
        "censored": bool(inside.sum() - (inside & completed).sum() > metrics.CENSORED_SHARE * inside.sum()),
        "single_token_outputs": int((workload.output_tokens[inside & completed] == 1).sum()),
        **cache_numbers(rec, workload, counted, causes),
        "evicted_split": (
            None
            if evicted is None
            else {
                **evicted.summary(counted),
                "by_scope": {part: by_scope(table) for part, table in evicted.by_scope.items()},
            }
        ),
        **({} if rec.verified is None else {"speculation": rec.verified.summary()}),
        **({"tiers": tier_table(rec, counted)} if rec.tiers else {}),
        **({} if rec.frontend_s is None else {"front_end": front_end_row(rec, inside & completed)}),
        **flops(rec, workload, counted, prefill_flops),
        **engine_numbers(rec, window, inside, shares, held),
        **utilization(rec, window, shares["busy_s"], gpus, step_work, peaks),
        **{key: of_limits[key] for key in ("attainment", "attainment_target", "verdict")},
        "model_error": None,
        "stable": stability.stable,
        "stable_reason": stability.reason,
        **({} if fell is None else {"fell": fell}),
        **({"shocks": shocks} if shocks else {}),
        "regime": of_run(stability.stable, shocks, scenario.plan.recover_within_s, fell),
        "backlog_growth_per_s": stability.growth_requests_per_s,
        "backlog_growth_tokens_per_s": stability.growth_tokens_per_s,
        "headroom": None,
        "gpu_hours": held * gpus * window.seconds / 3600,
        "gpu_busy_s": gpu_busy_s,
        "cost": cost,
        "replicas": len(rec.steps),
        **_by_replica(rec, workload, scenario, window, counted),
        **(
            mixed.summary(
                rec,
                workload,
                scenario,
                window,
                times,
                inside,
                counted,
                _computed(rec, workload) + workload.output_tokens,
                gpu_hours,
                told,
            )
            if scenario.pool
            else {}
        ),
        **({} if rec.routed is None else {"routing": passed_over(rec.routed, counted)}),
        **({} if even is None else {"fairness": even[0]}),
        **({} if rec.retries is None else {"replicas_held": held, "retries": int(rec.retries[inside].sum())}),
        **({} if rec.held_s is None else {"fleet": _fleet(rec, scenario, window)}),
        **({} if rec.clients is None else {"clients": clients_row(rec, workload, inside)}),
        "tensor_parallel": scenario.hardware.tensor_parallel,
        "gpus_per_replica": gpus,
        "layout": str(scenario.hardware.layout),
        "profile": profile,
        "profile_hash": profile_hash,
        "engine_semantics": rec.engine_semantics,
        "seed": scenario.seed,
        "workload": workload.source,
        "window": {"start_s": window.start_s, "end_s": window.end_s, "last_arrival_s": window.last_arrival_s},
    }
    fates_of = fate_columns(causes, evicted)
    classes = class_table(
        rec, workload, causes, evicted, inside, good, slo, latency[1:] or latency, gpu_hours, scenario.cost.gpu_hour_usd
    )
    if scenario.pool:
        dear_hours = gpu_hours * mixed.dearness(rec, scenario, gpu_hours)
        mixed.price_classes(classes, class_id, inside, dear_hours, scenario)
    summary["hit_tokens"]["by_class"] = {name: row["prefix_hit_tokens"] for name, row in classes.items()}
    summary["cost"]["usd_per_request_by_class"] = {name: row["usd_per_request"] for name, row in classes.items()}
    return Report(
        summary=summary,
        latency=latency[0],
        classes=classes,
        slo_classes=judged.slo_table(class_id, inside, good, slo),
        tenants=with_service(tenant_table(rec, workload, causes, evicted, inside), even),
        requests=requests_table(rec, workload, times, fates_of, gpu_hours, inside, good if limited else None),
        sessions=sessions,
        timeline=timeline(rec, workload.prompt_tokens, Columns({"hit_tokens": rec.hit_tokens, **fates_of.given()})),
        cache=cache_table(workload, ends_s, causes, evicted),
        steps=rec.steps,
        samples=rec.samples,
        life=rec.life,
        notes=(*workload.notes, *rec.notes, *notes(summary, workload, window, scenario, causes)),
    )


def _computed(rec: Recording, workload: Workload) -> np.ndarray:
    """int64 [n]: prompt tokens that each request had computed, again ones included; 0 of those never admitted."""
    computed = workload.prompt_tokens - rec.hit_tokens
    computed += rec.recomputed_tokens
    computed[np.isnan(rec.admit_s)] = 0
    return computed


def _gpu_seconds(rec: Recording, work: np.ndarray, scenario: Scenario) -> np.ndarray:
    """Busy GPU-seconds of every request, float64 [n]; work: int64 [n], prompt tokens computed for it."""
    if scenario.pool:
        return mixed.gpu_seconds(rec, work, scenario)
    if rec.handed is not None:
        return pools.gpu_seconds(rec, work, scenario)
    return busy_gpu_s(rec, work, scenario.gpus_per_replica)


def _by_replica(
    rec: Recording, workload: Workload, scenario: Scenario, window: Window, counted: np.ndarray
) -> dict[str, Any]:
    """How evenly the replicas of a fleet, or of its two pools, are loaded."""
    if rec.handed is None and len(rec.steps) == 1:
        return {}
    if scenario.pool and not mixed.alike(scenario):
        return {}  # who is slower should have less
    computed = _computed(rec, workload)
    if rec.handed is not None:
        return {"disaggregation": pools.summary(rec, scenario, window, counted, computed, workload.output_tokens)}
    computed += workload.output_tokens
    return {"balance": balance(rec, counted, computed)}


def _fairness(
    rec: Recording, workload: Workload, scenario: Scenario, window: Window
) -> tuple[dict[str, Any], dict[str, dict[str, float | None]]] | None:
    """How evenly tenants were served, or the classes of an engine that is to be fair to them; None with a single
    one."""
    _, names = tenants_of(workload)
    if len(names) < 2 or (len(workload.tenant_names) < 2 and scenario.engine.scheduler_policy != "vtc"):
        return None
    return fairness(rec, workload, window, np.array(weights_of(names, scenario.engine.tenant_weights)))


def _shocks(
    rec: Recording,
    workload: Workload,
    scenario: Scenario,
    slo: list[tuple[str, SloClass]],
    class_id: np.ndarray,
    good: np.ndarray,
    inside: np.ndarray,
    window: Window,
) -> list[dict[str, Any]]:
    """sim.measure.shocks.told of a recording."""
    columns = {
        "arrival_s": rec.arrival_s,
        "admit_s": rec.admit_s,
        "waited_until_s": _waited_until_s(rec),
        "in_window": inside,
        "good": good,
        "class_id": class_id,
        "prompt_tokens": workload.prompt_tokens,
        "hit_tokens": rec.hit_tokens,
    }
    return told_of_shocks(scenario, columns, named_limits(workload, slo), min(window.end_s, window.last_arrival_s))


def _fleet(rec: Recording, scenario: Scenario, window: Window) -> dict[str, Any]:
    return fleet_row(rec, window.start_s, window.end_s, scenario.hardware.gpus, scenario.autoscale.rule)


def _waited_until_s(rec: Recording) -> np.ndarray:
    """float64 [n]: admitted, given up or refused; NaN: waits to the end."""
    refused = np.array([name.startswith("rejected") for name in STATUS])[rec.status]
    gone_s = np.where(rec.status == ABANDONED, rec.left_s, np.where(refused, rec.arrival_s, np.nan))
    return np.where(np.isnan(rec.admit_s), gone_s, rec.admit_s)


def _waits_until_s(rec: Recording) -> np.ndarray:
    """float64 [n]: admitted, or given up; NaN: waits to the end."""
    return rec.admit_s if rec.clients is None else np.where(rec.status == ABANDONED, rec.left_s, rec.admit_s)


def worth_of(on: Report, off: Report | None = None) -> dict[str, Any]:
    """What the prefix cache saved, given the run and (for time and cost) its twin with the cache off."""
    return cache_worth(
        {**on.summary, "latency": on.latency}, None if off is None else {**off.summary, "latency": off.latency}
    )


def judged_window(rec: Recording, workload: Workload, run: RunConfig) -> tuple[Window, np.ndarray]:
    """`sim.measure.metrics.window_of`; a fixed concurrency without warmup_s is judged from when its sessions no longer
    run in step."""
    if run.warmup_s is None and workload.concurrency is not None:
        return metrics.window_of(rec, *metrics.closed_window(rec, workload))
    return metrics.window_of(rec, run.warmup_s or 0.0, run.duration_s)


def stability_of(rec: Recording, workload: Workload, window: Window) -> Stability:
    """Judged while arrivals still come from outside: later turns wait for answers, so after the last new session all is
    drain."""
    outside = rec.arrival_s[workload.column("after") < 0]
    last_new_s = float(np.nanmax(outside, initial=0.0))
    came = workload.concurrency is not None or not np.isnan(outside).all()  # else there is nothing to judge
    if came and (workload.concurrency is not None or (last_new_s == 0.0 and workload.after is not None)):
        return BOUNDED
    tokens = workload.prompt_tokens + workload.output_tokens
    tokens[~metrics.entered_system(rec)] = 0
    until_s = min(window.last_arrival_s, last_new_s)
    seen = [rec] if rec.handed is None else [pools.views(rec)[1], pools.views(rec)[0]]
    found = [
        assess_fleet(rec.arrival_s, _waits_until_s(one), rec.left_s, tokens, one.replica, window.start_s, until_s)
        for one in seen
    ]
    return next((one for one in found if one.stable is False), found[0])
