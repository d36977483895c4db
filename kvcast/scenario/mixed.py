"""The [[pool]] tables: which values they may have, the scenario of each pool, and the kinds of replicas as the
simulation reads them.

The one idea: a pool is the rest of the file with some keys of [hardware], [model] and [engine] changed, so everything
that is known of a scenario (its profile, what fits in memory, its price) is known of each pool in the same way.

    >>> [kind.scenario.hardware.profile for kind in resolve(scenario).kinds]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from kvcast.scenario.fitting import fitting_profile
from kvcast.scenario.gpu_prices import priced
from sim.scenario import BURST, LONG_PROMPTS, CostConfig, PoolConfig, Scenario
from workloads import mix, toml
from workloads.config import MixClass
from workloads.errors import InputError, did_you_mean
from workloads.limits import MAX_REPLICAS, expectation

if TYPE_CHECKING:
    from kvcast.scenario.disaggregation import Changed
    from kvcast.scenario.resolve import Resolved
    from sim.fleet.mixed import Mixed

SECTIONS = ("hardware", "model", "engine")
EITHER = {"hardware": ("gpu", "profile"), "model": ("name", "config")}
"""Two keys of a section that say the same thing in two ways: a pool that gives one does not mean the other."""
OF_ONE_GPU = {
    "hardware": ("weights_gib", "overhead_gib", "link", "dense_factor", "attention_factor"),
    "engine": ("kv_blocks",),
}
"""Keys that are of one GPU, width and model: a pool on others has its own, or none."""
ALONE = (
    "expected a scenario without, this is answered of replicas that are alike; kvcast run, compare, sweep, timeline and"
    " price, and simulate() in Python, take [[pool]] tables"
)


def alike_only(scenario: Scenario) -> None:
    """Raise InputError for a fleet of several kinds, where one kind of replica is asked about."""
    if scenario.pool:
        raise InputError(f"[[pool]]: {ALONE}")


def mixed_problems(scenario: Scenario) -> Iterator[str]:
    """A line for every value of a [[pool]] that makes no sense, alone or beside the rest."""
    pools, total = scenario.pool, sum(pool.replicas for pool in scenario.pool)
    yield from _asking_problems(scenario)
    if not pools:
        return
    for wrong, what in (
        (scenario.disaggregation.on, "[disaggregation]"),
        (scenario.autoscale.scales, f"[autoscale] rule = {scenario.autoscale.rule!r}"),
        (scenario.cache.policy in ("clairvoyant", "optimal"), f"[cache] policy = {scenario.cache.policy!r}"),
        (scenario.run.explain_routing, "[run] explain_routing"),
        (any(shock.kind not in (BURST, LONG_PROMPTS) for shock in scenario.shock), "a [[shock]] of replicas"),
    ):
        if wrong:
            yield f"[[pool]] with {what}: not simulated together, expected a scenario without one of them"
    if scenario.cluster.replicas not in (1, total):
        yield (
            f"[cluster] replicas = {scenario.cluster.replicas} with [[pool]] tables: expected none, each pool has its"
            f" own (here {total} together)"
        )
    if total > MAX_REPLICAS:
        yield f"[[pool]] tables have {total:,} replicas together: expected at most {MAX_REPLICAS:,}"
    for i, pool in enumerate(pools):
        where = f"[pool.{pool.name or i}]"
        for f in fields(pool):
            value = getattr(pool, f.name)
            if not isinstance(value, dict) and (expected := expectation(f, value)):
                yield f"{where} {f.name} = {value!r}: expected {expected}"
        if not pool.name or pool.name in [other.name for other in pools[:i]]:
            yield f"{where} name = {pool.name!r}: expected a name of its own for each pool"
        if "semantics" in pool.engine and pool.engine["semantics"] != scenario.engine.semantics:
            yield (
                f"{where} engine.semantics = {pool.engine['semantics']!r}: expected {scenario.engine.semantics!r} as of"
                " the rest, one engine for all pools"
            )
        both = EITHER["hardware"]
        if all(pool.hardware.get(key) is not None for key in both):
            yield f"{where} has hardware.gpu and hardware.profile: expected one of them, a GPU brings its profile"


def _asking_problems(scenario: Scenario) -> Iterator[str]:
    """Classes that ask for a pool or a model that is not there."""
    names = [pool.name for pool in scenario.pool]
    for one in scenario.workload.class_:
        for key, known in (("pool", names), ("model", _models(scenario))):
            value = getattr(one, key)
            if value and value not in known:
                expected = (
                    f"one of {', '.join(known)}{did_you_mean(value, known)}"
                    if scenario.pool
                    else "[[pool]] tables with it"
                )
                yield f"[workload.class.{one.name}] {key} = {value!r}: expected {expected}"


def _models(scenario: Scenario) -> list[str]:
    """The models of the pools, as their keys name them, without repetition."""
    return list(dict.fromkeys(str(_model(scenario, pool)) for pool in scenario.pool))


def _model(scenario: Scenario, pool: PoolConfig) -> str | None:
    given = pool.model if any(key in pool.model for key in EITHER["model"]) else asdict(scenario.model)
    return given.get("config") or given.get("name")


def pool_scenario(scenario: Scenario, pool: PoolConfig) -> Scenario:
    """What a fleet of this pool alone would be. Raises InputError for keys that do not exist."""
    elsewhere = bool(pool.hardware or pool.model)
    sections: dict[str, Any] = {}
    for name in SECTIONS:
        section, own = getattr(scenario, name), dict(getattr(pool, name))
        dropped = OF_ONE_GPU.get(name, ()) if elsewhere else ()
        if any(key in own for key in EITHER.get(name, ())):
            dropped = (*dropped, *EITHER[name])
        kept = {f.name: value for f in fields(section) if (value := getattr(section, f.name)) != f.default}
        own = {**{key: value for key, value in kept.items() if key not in dropped}, **own}
        sections[name] = toml.read(type(section), own, f"[pool.{pool.name}]", name)
    alone = replace(
        scenario,
        pool=(),
        cluster=replace(scenario.cluster, replicas=pool.replicas),
        cost=_cost(scenario, pool),
        workload=replace(
            scenario.workload, class_=tuple(replace(c, pool="", model="") for c in scenario.workload.class_)
        ),
        **sections,
    )
    named = any(pool.hardware.get(key) is not None for key in EITHER["hardware"])
    fitting = None if named else fitting_profile(alone)
    if fitting is not None:
        alone = replace(alone, hardware=replace(alone.hardware, profile=fitting))
    return alone if pool.gpu_hour_usd is not None else priced(alone, scenario)


def _cost(scenario: Scenario, pool: PoolConfig) -> CostConfig:
    return scenario.cost if pool.gpu_hour_usd is None else CostConfig(gpu_hour_usd=pool.gpu_hour_usd)


def with_pools(given: Scenario, placed: Callable[[Scenario], Resolved]) -> Resolved:
    """A fleet of several kinds: each as it would be alone, and the scenario with nothing left open, whose sections are
    those of the first. placed(scenario): model, profile and engine defaults of one."""
    kinds = tuple(_placed_pool(given, pool, placed) for pool in given.pool)
    first = kinds[0]
    pools = tuple(
        replace(
            pool,
            hardware=_given(kind.scenario.hardware, first.scenario.hardware),
            model=_given(kind.scenario.model, first.scenario.model),
            engine=_given(kind.scenario.engine, first.scenario.engine),
            gpu_hour_usd=kind.scenario.cost.gpu_hour_usd,
        )
        for pool, kind in zip(given.pool, kinds, strict=True)
    )
    scenario = replace(
        first.scenario,
        pool=pools,
        workload=given.workload,
        cluster=replace(given.cluster, replicas=sum(pool.replicas for pool in pools)),
        cost=replace(given.cost, gpu_hour_usd=_mean_price(kinds), prices={}),
    )
    return replace(first, scenario=scenario, kinds=kinds)


def _placed_pool(given: Scenario, pool: PoolConfig, placed: Callable[[Scenario], Resolved]) -> Resolved:
    try:
        return placed(pool_scenario(given, pool))
    except InputError as error:
        line = str(error).removeprefix("scenario: ")
        raise InputError(line if line.startswith("[pool.") else f"[pool.{pool.name}] {line}") from None


def _given(section: Any, first: Any) -> dict[str, Any]:
    """The keys of a resolved section that say what it is, beside the same section of the first pool."""
    values = {f.name: (getattr(section, f.name), f.default, getattr(first, f.name)) for f in fields(section)}
    return {
        key: value
        for key, (value, default, of_first) in values.items()
        if value is not None and (value != default or value != of_first)
    }


def _mean_price(kinds: Sequence[Resolved]) -> float | None:
    """USD for one GPU and hour, over all GPUs of the fleet; None where any pool's is not known."""
    prices = [kind.scenario.cost.gpu_hour_usd for kind in kinds]
    if len(set(prices)) == 1:
        return prices[0]
    gpus = [kind.scenario.gpus for kind in kinds]
    known = [price for price in prices if price is not None]
    return sum(n * price for n, price in zip(gpus, known, strict=True)) / sum(gpus) if len(known) == len(gpus) else None


def mixed_of(resolved: Resolved, class_names: Sequence[str], changed: Changed | None = None) -> Mixed | None:
    """The kinds of a fleet, their steps `changed`, as the simulation reads them; None where all replicas are alike.
    class_names: of the workload."""
    import numpy as np

    from sim.fleet.mixed import Kind, Mixed

    if not resolved.kinds:
        return None
    kinds = []
    for pool, of in zip(resolved.scenario.pool, resolved.kinds, strict=True):
        step_time = of.engine_step_time()
        step_time = step_time if changed is None else changed(of, step_time)
        kinds.append(Kind(pool.name, pool.replicas, of.params, step_time, shared_word(of)))
    asks = asked(resolved.scenario, class_names)
    for name, row in zip(class_names, asks, strict=True):
        models = {of.model.name for of, open_ in zip(resolved.kinds, row, strict=True) if open_}
        if len(models) != 1:
            if resolved.scenario.workload.trace:
                raise InputError(
                    f"[workload] trace with [[pool]] tables of {len(models)} models: expected pools of one, a trace"
                    " does not say which model a request asks for"
                )
            raise InputError(
                f"[workload] class {name!r} may go to pools of {len(models)} models: expected the model (or the pool)"
                " that it asks for, keys of its [[workload.class]] table"
            )
    if any(kind.params.shares_tiers for kind in kinds) and len({_kv_layout(of) for of in resolved.kinds}) > 1:
        raise InputError(
            "[[pool]] with shared [cache] tiers: expected pools of one model, KV type and tensor_parallel, others"
            " cannot read each other's blocks"
        )
    everywhere = all(all(row) for row in asks)
    return Mixed(kinds, None if everywhere else np.array(asks))


def shared_word(resolved: Resolved) -> str:
    """The same for replicas whose KV is the same."""
    return f"{resolved.model.name} {resolved.scenario.model.kv_dtype}"


def _kv_layout(resolved: Resolved) -> tuple[str, int]:
    """What KV blocks in a store are: replicas read only their own."""
    return shared_word(resolved), resolved.scenario.hardware.tensor_parallel


def asked(scenario: Scenario, class_names: Sequence[str]) -> list[list[bool]]:
    """Of each workload class, to which pools of a scenario its requests may go."""
    classes = {} if scenario.workload.trace else {one.name: one for one in mix.resolve(scenario.workload).class_}
    return [
        [
            (not one.pool or one.pool == pool.name) and (not one.model or one.model == _model(scenario, pool))
            for pool in scenario.pool
        ]
        for one in (classes.get(name, MixClass()) for name in class_names)
    ]
