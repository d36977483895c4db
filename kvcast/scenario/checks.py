"""Which values a scenario may have, once its types are right.

The one idea: ranges, choices and the engine that has a key stand beside its default (`workloads.limits.key`); here are
the relations between keys. Whatever is wrong is one line with key, value and what was expected.

    >>> list(problems(Scenario(WorkloadConfig(preset="chat"), engine=EngineConfig(block_size=0))))
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from calibrate.layout import COLLECTIVES, NODE_GPUS
from kvcast.scenario.autoscale import autoscale_problems
from kvcast.scenario.disaggregation import pool_problems
from kvcast.scenario.lora import lora_problems
from kvcast.scenario.mixed import mixed_problems
from kvcast.scenario.speculation import speculation_problems
from sim.scenario import SHOCKS, CostConfig, EngineConfig, HardwareConfig, Scenario
from workloads.config import WorkloadConfig
from workloads.errors import InputError, did_you_mean, unprintable
from workloads.limits import expectation

ENDLESS = "bandwidth_gb_per_s"
"""A link without a limit is one of infinite bandwidth."""


def check(scenario: Scenario, source: str = "scenario") -> None:
    """Raise InputError for the first value that makes no sense; types are the caller's to get right."""
    check_text(asdict(scenario), source)
    for problem in problems(scenario):
        raise InputError(f"{source}: {problem}")
    for place, value in _numbers(asdict(scenario), ""):
        if not (math.isfinite(value) or (place.endswith(ENDLESS) and value == math.inf)):
            raise InputError(f"{source}: {place} = {value}: expected a finite number")


def _numbers(tables: Any, place: str) -> Iterator[tuple[str, float]]:
    """Every float of a scenario and where it is; of a key without limits, or one that another makes idle, too."""
    if isinstance(tables, float):
        yield place, tables
    for key, value in tables.items() if isinstance(tables, dict) else ():
        yield from _numbers(value, f"{place}.{key}".lstrip(".").rstrip("_"))
    for i, value in enumerate(tables) if isinstance(tables, list | tuple) else ():
        yield from _numbers(value, f"{place}[{i}]")


def check_text(tables: Any, source: str, place: str = "") -> None:
    """Raise InputError for the first text, or key, that no file can hold, or that would break a line or command a
    terminal when it is printed."""
    if isinstance(tables, str) and (wrong := unprintable(tables)):
        raise InputError(
            f"{source}: {place} = {tables[:80]!r}: expected text without control characters, not {wrong!r}"
        )
    if isinstance(tables, str) and any("\ud800" <= c <= "\udfff" for c in tables):
        raise InputError(f"{source}: {place} = {tables[:80]!r}: not text a scenario can hold, expected Unicode")
    if isinstance(tables, dict):
        for key, value in tables.items():
            check_text(str(key), source, f"a key of {place or 'the file'}")
            check_text(value, source, f"{place}.{key}".lstrip("."))
    elif isinstance(tables, list | tuple):
        for i, value in enumerate(tables):
            check_text(value, source, f"{place}[{i}]")


def problems(scenario: Scenario) -> Iterator[str]:
    """A line for every value that makes no sense."""
    yield from _value_problems(scenario, "")
    for name, limits in scenario.slo.classes.items():
        yield from _value_problems(limits, f"slo.classes.{name}")
    if scenario.run.duration_s is not None and scenario.run.duration_s <= (scenario.run.warmup_s or 0.0):
        yield f"[run] duration_s = {scenario.run.duration_s}: expected a time after warmup_s = {scenario.run.warmup_s}"
    for place, shock in enumerate(scenario.shock, 1):
        yield from _value_problems(shock, f"shock {place}")
        if shock.kind in SHOCKS and (name := shock.unread()):
            yield f"[shock {place}] {name} = {getattr(shock, name)!r}: {shock.kind} has no such key, expected none"
    yield from autoscale_problems(scenario)
    yield from _hardware_problems(scenario.hardware)
    yield from price_problems(scenario.cost)
    yield from _workload_problems(scenario.workload)
    yield from _name_problems(scenario)
    yield from speculation_problems(scenario)
    yield from pool_problems(scenario)
    yield from lora_problems(scenario)
    yield from mixed_problems(scenario)


def _value_problems(node: Any, section: str) -> Iterator[str]:
    """Keys out of their range or choices, in a section and those below it; lists of tables have checks of their own."""
    for f in fields(node):
        value = getattr(node, f.name)
        if is_dataclass(value):
            yield from _value_problems(value, f"{section}.{f.name}".lstrip("."))
        elif not isinstance(value, dict | tuple) and (expected := expectation(f, value)):
            yield f"{f'[{section}] ' if section else ''}{f.name} = {value!r}: expected {expected}"


def _hardware_problems(hardware: HardwareConfig) -> Iterator[str]:
    if hardware.gpu is not None and hardware.profile != HardwareConfig.profile:
        yield (
            f"[hardware] has gpu = {hardware.gpu!r} and profile = {hardware.profile!r}: expected one of them, a GPU"
            " brings its profile"
        )
    layout = hardware.layout
    if layout.expert_ranks > NODE_GPUS:
        yield (
            f"[hardware] tensor_parallel = {layout.tensor_parallel} x attention_dp = {layout.attention_dp}:"
            f" {layout.expert_ranks} GPUs, expected at most {NODE_GPUS}, those of one node"
        )
    if layout.attention_dp > 1 and layout.pipeline_parallel > 1:
        yield (
            f"[hardware] attention_dp = {layout.attention_dp} with pipeline_parallel = {layout.pipeline_parallel}:"
            " expected one of them, the two together are not modelled"
        )
    if layout.all_to_all != COLLECTIVES and not (layout.attention_dp > 1 and layout.expert_parallel):
        yield (
            f"[hardware] all_to_all = {layout.all_to_all!r}: expected attention_dp above 1 and expert_parallel = true"
            " with it, other layouts have no all-to-all"
        )


def price_problems(cost: CostConfig) -> Iterator[str]:
    """A line for every entry of [cost.prices] that is none."""
    if not cost.prices:
        return
    from calibrate.resolve import known_gpus

    price = CostConfig.__dataclass_fields__["gpu_hour_usd"]
    for gpu, usd in cost.prices.items():
        if gpu not in known_gpus():
            expected = f"one of {', '.join(known_gpus())}{did_you_mean(gpu, known_gpus())}"
            yield f"[cost.prices] {gpu} = {usd}: expected the price of a GPU by name, {expected}"
        if wrong := expectation(price, usd):
            yield f"[cost.prices] {gpu} = {usd}: expected {wrong}"


def _workload_problems(workload: WorkloadConfig) -> Iterator[str]:
    given = [
        name
        for name, value in (("preset", workload.preset), ("trace", workload.trace), ("class", workload.class_))
        if value
    ]
    if len(given) != 1:
        yield (
            f"[workload] has {' and '.join(given) or 'none of preset, trace and class'}: expected exactly one of"
            " preset, trace and class"
        )
    if workload.loop == "concurrency" and workload.concurrency is None:
        yield '[workload] concurrency is missing: expected a number of sessions, since loop = "concurrency"'
    if workload.end_s is not None and workload.end_s <= workload.start_s:
        yield f"[workload] end_s = {workload.end_s}: expected a time after start_s = {workload.start_s}"


def _name_problems(scenario: Scenario) -> Iterator[str]:
    from sim.engines import ENGINES, client_problems, having
    from sim.fleet.router import ROUTERS
    from sim.fleet.router import find as find_router

    engine = ENGINES.get(scenario.engine.semantics)
    try:
        asks = find_router(scenario.cluster.router).reads_caches
    except InputError as error:
        yield str(error)
    else:
        if asks and engine is not None and not engine.has_oracle:
            yield (
                f"[cluster] router = {scenario.cluster.router!r}: it asks caches what they hold, and those of"
                f" semantics = {scenario.engine.semantics!r} do not say; expected another router, or semantics ="
                f" {having('has_oracle')!r}"
            )
    for router in scenario.plan.routers:
        if router not in ROUTERS:
            yield f"[plan] routers = {router!r}: expected some of {', '.join(ROUTERS)}{did_you_mean(router, ROUTERS)}"
    yield from _semantics_problems(scenario.engine)
    if scenario.cluster.sessions_first and scenario.cluster.shed_over is None:
        yield "[cluster] sessions_first = true: expected shed_over with it, which says when anybody is refused"
    if scenario.engine.semantics in ENGINES:
        yield from client_problems(scenario.client, scenario.engine)
    yield from _policy_problems(scenario)
    yield from _tier_problems(scenario)


def _semantics_problems(engine: EngineConfig) -> Iterator[str]:
    """Keys that the chosen engine would not read: a value without effect would be a wrong answer."""
    from sim.engines import ENGINES

    as_it_comes = EngineConfig()
    for f in fields(engine):
        value, only = getattr(engine, f.name), f.metadata["engines"]
        if only and engine.semantics not in only and value != getattr(as_it_comes, f.name):
            yield f"[engine] {f.name} = {value!r}: only semantics = {' or '.join(map(repr, only))} has it"
    if engine.semantics in ENGINES:
        yield from ENGINES[engine.semantics].problems(engine)


def _policy_problems(scenario: Scenario) -> Iterator[str]:
    from sim.engines import ENGINES
    from sim.simulate import POLICY_NAMES

    policy, params = scenario.cache.policy, scenario.cache.policy_params
    engine = ENGINES.get(scenario.engine.semantics)
    if policy == "optimal":
        yield from _optimal_problems(scenario)
    elif policy not in POLICY_NAMES and ":" not in policy:
        names = (*POLICY_NAMES, "optimal")
        yield (
            f"[cache] policy = {policy!r}: expected one of {', '.join(names)}, or module:Class for your"
            f" own{did_you_mean(policy, names)}"
        )
    elif engine is not None:
        try:
            engine.check_policy(policy, params)
        except InputError as error:
            yield str(error)


def _optimal_problems(scenario: Scenario) -> Iterator[str]:
    """In a timed run the best eviction can be followed only where the order of admissions is known before."""
    from sim.engines import ENGINES, having

    engine, cluster, known = scenario.engine, scenario.cluster, ENGINES.get(scenario.engine.semantics)
    for ok, needed in (
        (known is None or known.has_optimum, f"engine.semantics = {having('has_optimum')!r}"),
        (cluster.replicas == 1, "cluster.replicas = 1"),
        (scenario.hardware.attention_dp == 1, "hardware.attention_dp = 1"),
        (engine.scheduler_policy == "fcfs", "engine.scheduler_policy = 'fcfs'"),
        (engine.long_prefill_token_threshold == 0, "engine.long_prefill_token_threshold = 0"),
        (not scenario.cache.tiers, "no cache.tiers"),
        (not scenario.cache.policy_params, "no cache.policy_params"),
    ):
        if not ok:
            yield (
                f"[cache] policy = 'optimal': expected {needed} with it, or policy = 'clairvoyant', a policy that knows"
                " the future; kvcast optimum says how much of its schedule's optimum any run hit"
            )


def _tier_problems(scenario: Scenario) -> Iterator[str]:
    from sim.engines import ENGINES, having

    tiers = scenario.cache.tiers
    for i, tier in enumerate(tiers):
        where = f"[cache.tiers.{tier.name or i}]"
        yield from _value_problems(tier, where.strip("[]"))
        given = [name for name in ("capacity_gib", "capacity_blocks") if getattr(tier, name) is not None]
        if len(given) != 1:
            yield (
                f"{where} has {' and '.join(given) or 'neither capacity_gib nor capacity_blocks'}: expected exactly one"
                " of capacity_gib and capacity_blocks"
            )
        if any(other.shared for other in tiers[:i]) and not tier.shared:
            yield (
                f"{where} shared = false behind a shared one: expected true too, what falls from a store falls into no"
                " replica's own tier"
            )
        if not tier.shared and tier.total_bandwidth_gb_per_s != math.inf:
            total = tier.total_bandwidth_gb_per_s
            yield f"{where} total_bandwidth_gb_per_s = {total:g}: expected shared = true with it"
        if tier.shared and scenario.hardware.attention_dp > 1:
            yield (
                f"{where} shared = true with [hardware] attention_dp = {scenario.hardware.attention_dp}: not simulated"
                " together, expected one of them"
            )
        if tier.name in ["gpu", *(other.name for other in tiers[:i])]:
            yield f"{where} name = {tier.name!r}: expected a name of its own for each tier, other than gpu"
    engine = ENGINES.get(scenario.engine.semantics)
    if tiers and engine is not None and not engine.has_tiers:
        yield (
            f"[cache] tiers with [engine] semantics = {scenario.engine.semantics!r}: expected semantics ="
            f" {having('has_tiers')!r} with them"
        )
    if tiers and scenario.cache.policy == "clairvoyant":
        yield "[cache] tiers with policy = 'clairvoyant': expected another policy, it knows of no tiers"
