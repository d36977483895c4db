"""From a Scenario to a Report: resolve every default, load the workload, run, measure.

The one idea: `prepare` turns names into things (model, profile, step times, KV blocks, requests) and returns them with
a scenario in which nothing is left open; `simulate` is `prepare`, run and measure. Two runs that share a workload share
it.

    >>> from kvcast import load_scenario, simulate
    >>> report = simulate(load_scenario("examples/demo.toml"))
    >>> report.summary["prefix_hit_rate"]
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.scenario import EngineParams, Scenario, TierParams
from workloads.config import WorkloadConfig
from workloads.errors import InputError

if TYPE_CHECKING:
    from calibrate.latency import StepTime
    from calibrate.memory import GpuMemory
    from calibrate.models import ModelSpec
    from calibrate.profile import DeviceProfile
    from calibrate.utilization import StepWork
    from sim.measure.report import Report
    from sim.recording import Recording
    from workloads.columns import Workload

OPTIMAL = "optimal"
"""cache.policy of a run that evicts by the future and proves afterwards that no eviction would have hit more in its
schedule."""
GIVEN, CONTEXT = "given", "the model's context"
"""Origins: of an engine key that the scenario sets, and of a max_model_len that is the model's own."""


@dataclass(frozen=True)
class Resolved:
    """A scenario with nothing left open, and what its names stand for."""

    scenario: Scenario  #: as given, with every engine default filled in
    model: ModelSpec
    profile: DeviceProfile
    origins: dict[str, str]  #: engine key -> where its value came from
    kv_lines: tuple[str, ...] = ()  #: the arithmetic of the KV capacity

    @property
    def lowered(self) -> bool:
        """Whether max_model_len is below the model's context because no more fits in the KV memory."""
        return self.origins["max_model_len"] not in (GIVEN, CONTEXT)

    @property
    def params(self) -> EngineParams:
        tp = self.scenario.hardware.tensor_parallel
        per_token = self.model.kv_bytes_per_token(str(self.scenario.model.kv_dtype), tp) * tp
        return engine_params(self.scenario, per_token * self.scenario.engine.block_size)

    @property
    def memory(self) -> GpuMemory:
        """What decides the memory of each of its GPUs."""
        from calibrate.memory import GpuMemory

        given, engine = self.scenario, self.scenario.engine
        return GpuMemory(
            self.profile,
            self.model,
            given.model.dtype,
            str(given.model.kv_dtype),
            given.hardware.tensor_parallel,
            engine.gpu_memory_utilization,
            engine.block_size,
            engine.max_num_batched_tokens or 0,
            engine.max_num_seqs,
            given.hardware.weights_gib,
            given.hardware.overhead_gib,
        )

    def step_time(self) -> StepTime:
        from calibrate.latency import step_time

        given = self.scenario
        overhead_s = 0.0  # the engine adds [engine] step_overhead_ms itself
        return step_time(self.profile, self.model, given.model.dtype, given.hardware.tensor_parallel, overhead_s)


@dataclass(frozen=True)
class Prepared:
    resolved: Resolved
    workload: Workload
    step_time: StepTime = field(repr=False)

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


def simulate(scenario: Scenario) -> Report:
    """Simulate a scenario and measure the run. Raises InputError for anything wrong in it."""
    return run(prepare(scenario)).report


def resolve(scenario: Scenario) -> Resolved:
    """Look up model and profile and fill in the engine's defaults for that GPU. Raises InputError."""
    from calibrate.latency import engine_defaults
    from calibrate.models import bundled_model, load_model_at
    from calibrate.profile import resolve_profile
    from kvcast.config import check
    from kvcast.scenario.paths import absolute_scenario
    from kvcast.scenario.steady import with_window

    check(scenario)
    scenario = absolute_scenario(scenario, Path.cwd())
    model = load_model_at(Path(scenario.model.config)) if scenario.model.config else bundled_model(scenario.model.name)
    kv_dtype = scenario.model.kv_dtype or model.kv_dtype(scenario.model.dtype)
    dtype = model.weight_dtype(scenario.model.dtype)
    profile = resolve_profile(scenario.hardware.profile, model, dtype, scenario.hardware.tensor_parallel, kv_dtype)
    defaults: dict[str, tuple[Any, str]] = {"max_model_len": (model.max_context, CONTEXT)}
    if scenario.engine.semantics == "sglang":
        defaults["chunked_prefill_size"] = (sglang_chunk(profile), f"SGLang's default on {profile.device['name']}")
    else:
        batched_tokens, num_seqs = engine_defaults(profile)
        defaults["max_num_batched_tokens"] = (batched_tokens, f"vLLM's default on {profile.device['name']}")
        defaults["max_num_seqs"] = (num_seqs, f"vLLM's default on {profile.device['name']}")
    engine, origins = scenario.engine, {}
    for key, (value, origin) in defaults.items():
        origins[key] = origin if getattr(engine, key) is None else GIVEN
        if getattr(engine, key) is None:
            engine = replace(engine, **{key: value})
    scenario = replace(scenario, engine=engine, model=replace(scenario.model, dtype=dtype, kv_dtype=kv_dtype))
    resolved = _with_max_seqs(_with_max_model_len(_with_kv_blocks(Resolved(scenario, model, profile, origins))))
    resolved = replace(
        resolved, scenario=with_window(resolved.scenario, _kv_tokens(resolved.scenario), lambda: _token_s(resolved))
    )
    for tier in resolved.params.tiers:
        if tier.blocks < 1:
            raise InputError(
                f"[cache.tiers.{tier.name}] capacity_gib: expected room for one block of {tier.block_bytes:,} bytes at"
                " least"
            )
    return resolved


def windowed(scenario: Scenario) -> Scenario:
    """The scenario as given, but for its window, which is in numbers: every later use of it sees the same requests."""
    resolved = resolve(scenario).scenario
    return replace(scenario, workload=resolved.workload, run=resolved.run)


def _kv_tokens(scenario: Scenario) -> float:
    """Tokens that the prefix caches of the fleet hold."""
    engine = scenario.engine
    return (
        float((engine.kv_blocks or 0) * engine.block_size * scenario.cluster.replicas)
        if scenario.cache.enabled
        else 0.0
    )


USUAL_BATCH, USUAL_CONTEXT = 16, 4096


def _token_s(resolved: Resolved) -> float:
    """Seconds of an output token in a batch of some, for how long a mix's sessions last."""
    engine = resolved.scenario.engine
    batch = min(USUAL_BATCH, engine.max_num_seqs or USUAL_BATCH)
    return (
        resolved.step_time().step([], batch, batch * USUAL_CONTEXT, USUAL_CONTEXT, batch)[0]
        + engine.step_overhead_ms / 1e3
    )


def sglang_chunk(profile: DeviceProfile) -> int:
    """SGLang's chunked_prefill_size: 2,048 below 35 GiB of GPU memory, 4,096 below 60, 8,192 below 160, else 16,384."""
    return next((chunk for below, chunk in ((35, 2048), (60, 4096), (160, 8192)) if profile.memory_gib < below), 16384)


def _with_max_seqs(resolved: Resolved) -> Resolved:
    """SGLang bounds the running requests by memory: 512 for each whole context that fits, at least 2,048, at most
    4,096."""
    engine = resolved.scenario.engine
    if engine.max_num_seqs is not None:
        return replace(resolved, origins={"max_num_seqs": GIVEN, **resolved.origins})
    contexts = engine.kv_blocks * engine.block_size / engine.max_model_len  # type: ignore[operator]
    engine = replace(engine, max_num_seqs=min(max(int(contexts * 512), 2048), 4096))
    origins = {**resolved.origins, "max_num_seqs": "SGLang's default for this much KV memory"}
    return replace(resolved, scenario=replace(resolved.scenario, engine=engine), origins=origins)


def _with_kv_blocks(resolved: Resolved) -> Resolved:
    """The KV blocks that fit, or the number given, which is kept and compared with what fits."""
    from calibrate.memory import capacity, explicit_blocks_warning

    scenario = resolved.scenario
    given = scenario.engine.kv_blocks
    length_given = resolved.origins["max_model_len"] == GIVEN and scenario.engine.semantics == "vllm"
    try:
        fits = capacity(resolved.memory, int(scenario.engine.max_model_len or 1) if length_given else 1)
    except InputError as error:
        if given is None:
            raise
        return replace(resolved, origins={**resolved.origins, "kv_blocks": GIVEN}, kv_lines=(f"caution: {error}",))
    if given is not None:
        warning = explicit_blocks_warning(given, fits)
        return replace(
            resolved,
            origins={**resolved.origins, "kv_blocks": GIVEN},
            kv_lines=(f"caution: {warning}",) if warning else (),
        )
    engine = replace(scenario.engine, kv_blocks=fits.blocks)
    origins = {**resolved.origins, "kv_blocks": "what fits in the GPU's memory"}
    return replace(resolved, scenario=replace(scenario, engine=engine), origins=origins, kv_lines=fits.lines)


def _with_max_model_len(resolved: Resolved) -> Resolved:
    """vLLM starts only when one request of max_model_len fits in its KV memory: the model's context is lowered to what
    does, a length that was given is refused. SGLang starts anyway and turns away the requests that do not fit."""
    from calibrate.memory import longest_request

    engine = resolved.scenario.engine
    if engine.semantics != "vllm":
        return resolved
    length, blocks, size = engine.max_model_len or 0, engine.kv_blocks or 0, engine.block_size
    most = longest_request(resolved.model, blocks, size, engine.max_num_batched_tokens or 0)
    if length <= most:
        return resolved
    if resolved.origins["max_model_len"] == GIVEN:
        raise InputError(
            f"[engine] max_model_len = {length}: vLLM refuses to start, one such request does not fit in {blocks:,} KV"
            f" blocks of {size} tokens; expected at most {most:,}, or {_holding(resolved, length)}"
        )
    origins = {**resolved.origins, "max_model_len": f"what fits in the KV memory; the model's context is {length:,}"}
    return replace(
        resolved, scenario=replace(resolved.scenario, engine=replace(engine, max_model_len=most)), origins=origins
    )


def _holding(resolved: Resolved, length: int) -> str:
    """What to set so that one request of this length fits: KV blocks where those were given, else the least
    tensor_parallel."""
    from calibrate.memory import WIDTHS, wider
    from kvcast.scenario.fitting import fitting_profile

    given, engine = resolved.scenario, resolved.scenario.engine
    if resolved.origins["kv_blocks"] == GIVEN:
        return f"engine.kv_blocks = {-(-length // engine.block_size)}"
    found = wider(resolved.memory, length)
    if found is None:
        return f"a GPU with more memory (no tensor_parallel up to {WIDTHS[-1]} holds it)"
    widened = replace(given, hardware=replace(given.hardware, tensor_parallel=found[0]))
    profile = fitting_profile(widened) or given.hardware.profile
    return f"hardware.tensor_parallel = {found[0]} with hardware.profile = {profile!r}, where {found[1]:,} tokens fit"


def engine_params(scenario: Scenario, block_bytes: int) -> EngineParams:
    """What the simulation reads of a resolved scenario. block_bytes: KV of one block over all GPUs of a replica."""
    engine = scenario.engine
    same = (
        "block_size",
        "kv_blocks",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "scheduler_policy",
        "watermark",
        "reserve_full_isl",
        "max_loras",
        "async_scheduling",
        "preemption_victim",
        "semantics",
        "chunked_prefill_size",
        "max_prefill_tokens",
        "schedule_policy",
        "schedule_conservativeness",
        "priority_scheduling",
        "retraction_policy",
    )
    return EngineParams(
        **{key: getattr(engine, key) for key in same if getattr(engine, key) is not None},
        caching=scenario.cache.enabled,
        policy="clairvoyant" if scenario.cache.policy == OPTIMAL else scenario.cache.policy,
        policy_params=scenario.cache.policy_params,
        tiers=tier_params(scenario, block_bytes) if scenario.cache.enabled else (),
        step_overhead_s=engine.step_overhead_ms / 1e3,
        frontend_s=engine.frontend_ms / 1e3,
    )


def tier_params(scenario: Scenario, block_bytes: int) -> tuple[TierParams, ...]:
    """The cache tiers in blocks and bytes."""
    return tuple(
        TierParams(
            t.name,
            int(t.capacity_blocks or 0) if t.capacity_gib is None else int(t.capacity_gib * 2**30 // block_bytes),
            t.bandwidth_gb_per_s * 1e9,
            t.latency_s,
            block_bytes,
            t.write,
            t.policy,
            t.prefetch,
        )
        for t in scenario.cache.tiers
    )


def load_workload(config: WorkloadConfig, seed: int = 0) -> Workload:
    """The requests of a [workload] section. Raises InputError."""
    from workloads.load import load

    workload = load(config, seed)
    if config.trace is None:
        from workloads.estimate import order_notes

        workload = workload.with_notes(*order_notes(config, seed))
    same = (
        "" if workload.max_tokens is not None else "max_tokens: equal to the true output length, the source gives none"
    )
    return workload.with_notes(same) if same else workload


def prepare(scenario: Scenario, workload: Workload | None = None) -> Prepared:
    """Everything a run needs. `workload`: one already loaded from the same [workload] section and seed."""
    from kvcast.scenario.steady import clock_note

    resolved = resolve(scenario)
    step_time = resolved.step_time()
    workload = load_workload(resolved.scenario.workload, scenario.seed) if workload is None else workload
    if note := clock_note(resolved.scenario):
        workload = workload.with_notes(note)
    _check_slo_classes(scenario, workload)
    if scenario.cache.policy == OPTIMAL and (workload.concurrency is not None or (workload.column("after") >= 0).any()):
        raise InputError(
            "[cache] policy = 'optimal': expected recorded arrivals with it (requests here wait for answers, so their"
            " order is not known before), or policy = 'clairvoyant'"
        )
    return Prepared(resolved, workload, step_time)


def _check_slo_classes(scenario: Scenario, workload: Workload) -> None:
    """Limits that apply to nobody would be a verdict about nothing."""
    for name in scenario.slo.classes:
        if name not in workload.class_slo:
            known = ", ".join(sorted({slo for slo in workload.class_slo if slo})) or "none"
            raise InputError(
                f"[slo.classes.{name}] applies to no request: expected the slo_class of a workload class (there are:"
                f" {known})"
            )


def at_step_times(prepared: Prepared, factor: float) -> Prepared:
    """The same run with every step of the GPU taking `factor` times as long (host time of [engine] as it is)."""
    from calibrate.scaled import Scaled

    return replace(prepared, step_time=Scaled(prepared.step_time, factor))


def without_cache(prepared: Prepared) -> Prepared:
    """The twin of a run with the prefix cache off: same requests, same arrivals, same everything else."""
    scenario = prepared.scenario
    off = replace(scenario, cache=replace(scenario.cache, enabled=False))
    return replace(prepared, resolved=replace(prepared.resolved, scenario=off))


def record(prepared: Prepared, **options: Any) -> Recording:
    """Run the simulation alone. Options are those of `sim.simulate.run` (record_life, step_log, fast_forward,
    on_clock)."""
    from sim import simulate as engine

    scenario = prepared.scenario
    run = scenario.run
    duration, horizon = run.duration_s, run.horizon_s
    if duration is not None and not run.drain:
        horizon = duration if horizon is None else min(duration, horizon)
    if scenario.cache.policy == OPTIMAL and scenario.cache.enabled:
        options["record_cache"] = True
    return engine.run(
        prepared.workload,
        prepared.resolved.params,
        prepared.step_time,
        replicas=scenario.cluster.replicas,
        router=scenario.cluster.router,
        seed=scenario.seed,
        horizon_s=horizon,
        until_arrival_s=duration,
        **options,
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
        profile=resolved.profile.id,
        profile_hash=resolved.profile.content_hash,
        prefill_flops=prefill_flops(resolved.model),
        step_work=step_work(resolved),
        peaks=peaks(resolved.profile),
        offered_per_s=offered_per_s(resolved.scenario, prepared.workload),
    )
    report.summary["cost"]["at_offered"] = _bill(resolved.scenario, prepared.workload, report)
    return Result(resolved, report)


def _bill(scenario: Scenario, workload: Workload, report: Report) -> dict[str, float | None] | None:
    """What the fleet costs at a mix's nominal load, which a window has more or less of; None for a trace or a closed
    loop."""
    from kvcast.scenario.steady import is_mix
    from kvcast.studies.money import money

    offered, price, inside = (
        report.summary["offered_per_s"],
        scenario.cost.gpu_hour_usd,
        report.requests["in_window"].astype(bool),
    )
    if offered is None or price is None or not is_mix(scenario):
        return None
    gpus = scenario.cluster.replicas * scenario.hardware.tensor_parallel
    return money(gpus * price, offered, workload.prompt_tokens[inside], workload.output_tokens[inside])


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
    return StepWork(resolved.model, given.model.dtype, str(given.model.kv_dtype), given.hardware.tensor_parallel)


def prefill_flops(model: ModelSpec) -> Callable[..., Any]:
    """FLOPs of prefilling (new tokens, cached tokens), arrays of one shape."""
    from calibrate.models import flops

    return functools.partial(flops, model)


def as_document(result: Result, baseline: Result | None = None) -> dict[str, Any]:
    """A run as one JSON-able document: what `kvcast run --json` prints and a run folder's summary.json holds.

    The summary's keys (those of `vllm bench serve` where they exist) stand at the top level.
    """
    from sim.measure.report import worth_of

    report = result.report
    engine = result.scenario.engine
    keys = (*result.resolved.origins, "block_size", "gpu_memory_utilization")
    return {
        "name": result.scenario.name,
        **report.summary,
        "cache_worth": worth_of(report, baseline.report if baseline else None),
        "latency": report.latency,
        "classes": report.classes,
        "slo_classes": report.slo_classes,
        "tenants": report.tenants,
        "engine": {key: getattr(engine, key) for key in keys},
        "engine_origins": result.resolved.origins,
        "kv_arithmetic": list(result.resolved.kv_lines),
        "profile_provenance": result.resolved.profile.describe(),
        "notes": list(report.notes),
    }
