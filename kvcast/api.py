"""From a Scenario to a Report: resolve every default, load the workload, run, measure.

The one idea: `prepare` turns names into things (model, profile, step times, KV blocks, requests) and returns them with
a scenario in which nothing is left open (kvcast.scenario.resolve); `simulate` is `prepare`, run and measure. Two runs
that share a workload share it.

    >>> from kvcast import load_scenario, simulate
    >>> report = simulate(load_scenario("examples/demo.toml"))
    >>> report.summary["prefix_hit_rate"]
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvcast.scenario.resolve import OPTIMAL
from kvcast.scenario.resolve import Resolved as Resolved
from kvcast.scenario.resolve import resolve as resolve
from sim.scenario import Scenario, SloClass, SloConfig
from workloads.config import WorkloadConfig
from workloads.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from calibrate.latency import StepTime
    from calibrate.models import ModelSpec
    from calibrate.utilization import StepWork
    from kvcast.scenario.disaggregation import Changed
    from sim.fleet.processes import Process
    from sim.measure.report import Report
    from sim.recording import Recording
    from workloads.columns import Workload


@dataclass(frozen=True)
class Prepared:
    resolved: Resolved
    workload: Workload
    step_time: StepTime = field(repr=False)
    changed: Changed | None = field(default=None, repr=False)  #: what `step_time` has been changed by, for all replicas

    @property
    def scenario(self) -> Scenario:
        return self.resolved.scenario


@dataclass(frozen=True)
class Result:
    """A run: what was simulated and what came out."""

    resolved: Resolved
    report: Report

    @property
    def scenario(self) -> Scenario:
        return self.resolved.scenario


def simulate(scenario: Scenario, processes: Sequence[Process] = ()) -> Report:
    """Simulate a scenario and measure the run. Raises InputError for anything wrong in it.

    processes: generator functions that let replicas fail, drain and start meanwhile (docs/fleet.md)."""
    return run(prepare(scenario), processes=processes).report


def windowed(scenario: Scenario) -> Scenario:
    """The scenario as given, but for its window, which is in numbers: every later use of it sees the same requests."""
    resolved = resolve(scenario).scenario
    return replace(scenario, workload=resolved.workload, run=resolved.run)


def load_workload(config: WorkloadConfig, seed: int = 0, untimed: bool = False) -> Workload:
    """The requests of a [workload] section. Raises InputError. untimed: a trace without times may stay so (NaN)."""
    from workloads.load import load

    workload = load(config, seed, untimed=untimed)
    if config.trace is None:
        from workloads.estimate import order_notes

        workload = workload.with_notes(*order_notes(config, seed))
    same = (
        "" if workload.max_tokens is not None else "max_tokens: equal to the true output length, the source gives none"
    )
    return workload.with_notes(same) if same else workload


def prepare(scenario: Scenario, workload: Workload | None = None) -> Prepared:
    """Everything a run needs. `workload`: one already loaded from the same [workload] section and seed."""
    from kvcast.scenario.autoscale import warm_note
    from kvcast.scenario.disaggregation import price_note
    from kvcast.scenario.steady import clock_note

    resolved = resolve(scenario)
    step_time = resolved.each[0].engine_step_time()
    workload = load_workload(resolved.scenario.workload, scenario.seed) if workload is None else workload
    told = (clock_note(resolved.scenario), warm_note(resolved.scenario), price_note(resolved))
    notes = [note for note in told if note]
    workload = workload.with_notes(*notes) if notes else workload
    check_slo_classes(scenario.slo, workload.class_slo)
    if scenario.cache.policy == OPTIMAL and (workload.concurrency is not None or (workload.column("after") >= 0).any()):
        raise InputError(
            "[cache] policy = 'optimal': expected recorded arrivals with it (requests here wait for answers, so their"
            " order is not known before), or policy = 'clairvoyant'"
        )
    return Prepared(resolved, workload, step_time)


def check_slo_classes(slo: SloConfig, class_slo: Sequence[str]) -> None:
    """Limits that apply to nobody would be a verdict about nothing. class_slo: the SLO class of every workload
    class."""
    for name in slo.classes:
        if name not in class_slo:
            known = ", ".join(sorted({one for one in class_slo if one})) or "none"
            raise InputError(
                f"[slo.classes.{name}] applies to no request: expected the slo_class of a workload class (there are:"
                f" {known})"
            )


def class_limits(prepared: Prepared) -> list[tuple[str, SloClass]]:
    """(name, limits) of every workload class, by class_id."""
    from sim.measure.metrics import limits_of
    from sim.measure.verdict import named_limits

    return named_limits(prepared.workload, limits_of(prepared.workload, prepared.scenario.slo))


def with_steps(prepared: Prepared, changed: Changed) -> Prepared:
    """The same run with other step times: those that changed(resolved, step_time) makes of them, of every replica."""
    return replace(prepared, step_time=changed(prepared.resolved, prepared.step_time), changed=changed)


def at_step_times(prepared: Prepared, factor: float) -> Prepared:
    """The same run with every step of the GPU taking `factor` times as long (host time of [engine] as it is)."""
    from calibrate.scaled import Scaled

    return with_steps(prepared, lambda _, step_time: Scaled(step_time, factor))


def without_cache(prepared: Prepared) -> Prepared:
    """The twin of a run with the prefix cache off: same requests, same arrivals, same everything else."""

    def off(resolved: Resolved) -> Resolved:
        scenario = resolved.scenario
        first = None if resolved.prefill is None else off(resolved.prefill)
        cache, kinds = replace(scenario.cache, enabled=False), tuple(map(off, resolved.kinds))
        return replace(resolved, scenario=replace(scenario, cache=cache), prefill=first, kinds=kinds)

    return replace(prepared, resolved=off(prepared.resolved))


def record(prepared: Prepared, **options: Any) -> Recording:
    """Run the simulation alone. Options are those of `sim.simulate.run` (record_life, step_log, fast_forward, on_clock,
    processes)."""
    from kvcast.scenario.autoscale import scaler_of
    from kvcast.scenario.disaggregation import pools_of
    from kvcast.scenario.mixed import mixed_of
    from sim import simulate as engine
    from sim.fleet.shocks import processes_of

    scenario = prepared.scenario
    run = scenario.run
    duration, horizon = run.duration_s, run.horizon_s
    if duration is not None and not run.drain:
        horizon = duration if horizon is None else min(duration, horizon)
    if scenario.cache.policy == OPTIMAL and scenario.cache.enabled:
        options["record_cache"] = True
    beside = [*scaler_of(scenario), *processes_of(scenario.shock, run.warmup_s or 0.0, scenario.seed)]
    return engine.run(
        prepared.workload,
        prepared.resolved.each[0].params,
        prepared.step_time,
        replicas=scenario.cluster.replicas,
        router=scenario.cluster.router,
        seed=scenario.seed,
        horizon_s=horizon,
        until_arrival_s=duration,
        client=scenario.client if scenario.client.acts else None,
        shed_over=scenario.cluster.shed_over,
        sessions_first=scenario.cluster.sessions_first,
        kv_event_delay_s=scenario.cluster.kv_event_delay_ms / 1e3,
        pools=pools_of(prepared.resolved, prepared.changed),
        mixed=mixed_of(prepared.resolved, prepared.workload.class_names, prepared.changed),
        explain_routing=run.explain_routing,
        **{**options, "processes": [*beside, *options.get("processes", ())]},
    )


def run(prepared: Prepared, **options: Any) -> Result:
    """Run and measure. Options are those of `record`."""
    return measure(prepared, record(prepared, **options))


def measure(prepared: Prepared, recording: Recording) -> Result:
    """The report of a recording."""
    from calibrate.utilization import peaks
    from kvcast.scenario.steady import offered_per_s
    from sim.measure.metrics import run_end_s
    from sim.measure.report import build_report

    resolved = prepared.resolved
    end_s, warmup_s = run_end_s(recording), resolved.scenario.run.warmup_s or 0.0
    if 0 < warmup_s >= end_s and resolved.scenario.run.duration_s is None:
        raise InputError(f"[run] warmup_s = {warmup_s:g}: expected a time before the run ends, at {end_s:g} s")
    if resolved.scenario.cache.policy == OPTIMAL and resolved.scenario.cache.enabled:
        _check_optimal(prepared, recording)
    report = build_report(
        recording,
        prepared.workload,
        resolved.scenario,
        **_of_the_fleet(resolved),
        peaks=peaks(resolved.profile),
        offered_per_s=offered_per_s(resolved.scenario, prepared.workload),
    )
    report.summary["cost"]["at_offered"] = bill(resolved.scenario, report.summary, report.requests)
    return Result(resolved, report)


def _of_the_fleet(resolved: Resolved) -> dict[str, Any]:
    """What a report needs of profiles and models; of a fleet of several kinds only what one number can say."""
    kinds = resolved.each
    names = {kind.profile.content_hash: kind.profile.id for kind in kinds}
    shapes = [(kind.model, kind.scenario.hardware, kind.scenario.model) for kind in kinds]
    return {
        "profile": " + ".join(names.values()),
        "profile_hash": " + ".join(names),
        "prefill_flops": prefill_flops(resolved.model) if all(shape[0] == shapes[0][0] for shape in shapes) else None,
        "step_work": step_work(resolved) if all(shape == shapes[0] for shape in shapes) else None,
    }


def bill(
    scenario: Scenario, summary: Mapping[str, Any], requests: Mapping[str, np.ndarray]
) -> dict[str, float | None] | None:
    """What the fleet costs at a mix's nominal load, which a window has more or less of; None for a trace or a closed
    loop. A fleet that does not scale is paid for whole, whatever a shock takes of it. What one that does costs is not
    known from a window with a shock, and a month of any fleet only of whole periods of its load or its schedule."""
    from kvcast.scenario.autoscale import sees_whole_periods
    from kvcast.scenario.steady import is_mix
    from sim.measure.money import money

    offered, price, inside = (summary["offered_per_s"], scenario.cost.gpu_hour_usd, requests["in_window"].astype(bool))
    if offered is None or price is None or not is_mix(scenario):
        return None
    most, scales = scenario.cluster.replicas, scenario.autoscale.scales
    held = summary.get("replicas_held", most)
    paid = most if scenario.shock and not scales else held
    made = money(
        None if scenario.shock and scales else paid * scenario.gpus_per_replica * price,
        offered,
        requests["prompt_tokens"][inside],
        requests["output_tokens"][inside],
    )
    lasts = sees_whole_periods(scenario) if scenario.autoscale.scales else math.isclose(held, most)
    return made if lasts else {**made, "usd_per_month": None}


def _check_optimal(prepared: Prepared, recording: Recording) -> None:
    """A run that calls itself optimal hits what its schedule's certificate says is the most."""
    from sim.optimum.schedule import schedule_optimum

    best, hit = schedule_optimum(prepared.workload, recording), int(recording.hit_tokens.sum())
    if hit < best.bound_tokens:
        raise InputError(
            f"[cache] policy = 'optimal': knowing the order of arrivals gave {best.share(hit)}, so this run may not be"
            " called optimal; expected policy = 'clairvoyant'"
        )


def step_work(resolved: Resolved) -> StepWork:
    """FLOPs and bytes of engine steps."""
    from calibrate.utilization import StepWork

    given = resolved.scenario
    return StepWork(resolved.model, given.model.dtype, str(given.model.kv_dtype), given.hardware.layout)


def prefill_flops(model: ModelSpec) -> Callable[..., Any]:
    """FLOPs of prefilling (new tokens, cached tokens), arrays of one shape."""
    from calibrate.models import flops

    return functools.partial(flops, model)


BESIDE_SUMMARY = (
    *("name", "cache_worth", "latency", "classes", "slo_classes", "tenants", "engine", "engine_origins"),
    *("kv_arithmetic", "profile_provenance", "measured_servers", "notes"),
)
"""What a run's document has beside its summary."""


def as_document(result: Result, baseline: Result | None = None) -> dict[str, Any]:
    """A run as one JSON-able document: what `kvcast run --json` prints and a run folder's summary.json holds.

    The summary's keys (those of `vllm bench serve` where they exist) stand at the top level.
    """
    from kvcast.trust import pooled
    from sim.measure.report import worth_of

    report = result.report
    keys = (*result.resolved.origins, "block_size", "gpu_memory_utilization")
    return {
        "name": result.scenario.name,
        **report.summary,
        "cache_worth": worth_of(report, baseline.report if baseline else None),
        "latency": report.latency,
        "classes": report.classes,
        "slo_classes": report.slo_classes,
        "tenants": report.tenants,
        "engine": pooled.engine_of_all(result.resolved, keys),
        "engine_origins": pooled.origins_of_all(result.resolved),
        "kv_arithmetic": pooled.kv_lines_of_all(result.resolved),
        "profile_provenance": pooled.provenance_of_all(result.resolved),
        "measured_servers": pooled.servers_of_all(result.resolved),
        "notes": list(report.notes),
    }
