"""The [disaggregation] section: which values it may have, what a replica that only prefills has, and the two pools as
the simulation reads them.

>>> pools_of(resolve(scenario)).link.prefill_bytes_s
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcast.scenario.fitting import fitting_profile
from sim.scenario import AT_ARRIVAL, BURST, LONG_PROMPTS, Scenario
from workloads.errors import InputError

if TYPE_CHECKING:
    from calibrate.latency import StepTime
    from kvcast.scenario.resolve import Resolved
    from sim.fleet.pools import Pools

    Changed = Callable[[Resolved, StepTime], StepTime]
    """Other step times of the replicas that a Resolved is of."""


def pool_problems(scenario: Scenario) -> Iterator[str]:
    """A line for every value that makes no sense together with replicas that only prefill."""
    from sim.engines import ENGINES, having
    from sim.fleet.router import find

    pools, cluster, engine = scenario.disaggregation, scenario.cluster, ENGINES.get(scenario.engine.semantics)
    if not pools.on or scenario.pool:  # the two together are refused as such
        return
    if pools.prefill_replicas >= cluster.replicas:
        yield (
            f"[disaggregation] prefill_replicas = {pools.prefill_replicas}: expected fewer than cluster.replicas ="
            f" {cluster.replicas}, the others decode"
        )
    if pools.local_below and pools.decode_chosen != AT_ARRIVAL:
        yield (
            f"[disaggregation] local_below = {pools.local_below} with decode_chosen = {pools.decode_chosen!r}: expected"
            f" {AT_ARRIVAL!r}, it asks the chosen decode replica"
        )
    if pools.prefill_router is not None:
        try:
            find(pools.prefill_router)
        except InputError as error:
            yield str(error).replace("[cluster] router", "[disaggregation] prefill_router")
    if engine is not None and not engine.has_pools:
        yield (
            f"[disaggregation] prefill_replicas with [engine] semantics = {scenario.engine.semantics!r}: expected"
            f" semantics = {having('has_pools')!r} with it"
        )
    keys = scenario.engine
    for wrong, what in (
        (scenario.hardware.attention_dp > 1, f"[hardware] attention_dp = {scenario.hardware.attention_dp}"),
        (scenario.speculative.method is not None, "[speculative]"),
        (bool(scenario.cache.tiers), "[cache] tiers"),
        (scenario.cache.policy in ("clairvoyant", "optimal"), f"[cache] policy = {scenario.cache.policy!r}"),
        (scenario.client.acts, "[client] timeouts or retries"),
        (scenario.autoscale.scales, f"[autoscale] rule = {scenario.autoscale.rule!r}"),
        (cluster.shed_over is not None, "[cluster] shed_over"),
        (any(shock.kind not in (BURST, LONG_PROMPTS) for shock in scenario.shock), "a [[shock]] of replicas"),
        (keys.max_num_queued_reqs is not None, "[engine] max_num_queued_reqs"),
        (keys.max_num_queued_tokens is not None, "[engine] max_num_queued_tokens"),
    ):
        if wrong:
            yield (
                f"[disaggregation] prefill_replicas = {pools.prefill_replicas} with {what}: not simulated together,"
                " expected a scenario without one of them"
            )


def with_prefill_pool(resolved: Resolved, given: Scenario, placed: Callable[[Scenario], Resolved]) -> Resolved:
    """With what a replica that prefills has, where there are any. given: the scenario before its defaults;
    placed(scenario): model, profile and engine defaults of one."""
    if not given.disaggregation.on:
        return resolved
    try:
        first = placed(_prefill_scenario(given))
    except InputError as error:
        raise InputError(f"[disaggregation] a replica that prefills: {error}") from None
    told, main = first.scenario, resolved.scenario
    apart = told.hardware != main.hardware
    pools = replace(
        given.disaggregation,
        prefill_profile=told.hardware.profile if apart else given.disaggregation.prefill_profile,
        prefill_kv_blocks=told.engine.kv_blocks if apart else given.disaggregation.prefill_kv_blocks,
    )
    return replace(resolved, scenario=replace(main, disaggregation=pools), prefill=first)


def price_note(resolved: Resolved) -> str:
    """Where one price is taken for two GPUs."""
    if resolved.prefill is None or not resolved.scenario.cost.gpu_hour_usd:
        return ""
    first, other = (str(one.profile.device["name"]) for one in (resolved.prefill, resolved))
    return "" if first == other else f"cost: an hour of {first}, which prefills, at the price of {other}"


def _prefill_scenario(given: Scenario) -> Scenario:
    """What a fleet of replicas that prefill would be."""
    pools, hardware, engine = given.disaggregation, given.hardware, given.engine
    width = pools.prefill_tensor_parallel or hardware.tensor_parallel
    same = width == hardware.tensor_parallel and pools.prefill_profile in (None, hardware.profile)
    own = pools.prefill_profile
    alone = replace(
        given,
        disaggregation=type(pools)(),
        hardware=replace(
            hardware, tensor_parallel=width, profile=own or hardware.profile, gpu=None if own else hardware.gpu
        ),
        engine=replace(
            engine,
            kv_blocks=pools.prefill_kv_blocks or (engine.kv_blocks if same else None),
            max_num_batched_tokens=pools.prefill_max_num_batched_tokens or engine.max_num_batched_tokens,
        ),
    )
    fitting = None if own else fitting_profile(alone)
    return alone if fitting is None else replace(alone, hardware=replace(alone.hardware, profile=fitting))


def pools_of(resolved: Resolved, changed: Changed | None = None) -> Pools | None:
    """The prefill pool, its steps `changed`, and its link, as the simulation reads them; None where every replica does
    both."""
    from sim.fleet.pools import Pools
    from sim.fleet.transfer import Link

    keys, first = resolved.scenario.disaggregation, resolved.prefill
    if first is None:
        return None
    each_bytes_s = keys.bandwidth_gb_per_s * 1e9
    link = Link(
        block_bytes=resolved.rank_kv_bytes * resolved.scenario.engine.block_size,
        layers=resolved.model.layers,
        prefill_bytes_s=each_bytes_s * first.scenario.hardware.gpus,
        decode_bytes_s=each_bytes_s * resolved.scenario.hardware.gpus,
        latency_s=keys.latency_ms / 1e3,
        descriptor_s=keys.descriptor_us / 1e6,
        layerwise=keys.layerwise,
    )
    step_time = first.engine_step_time()
    return Pools(
        keys.prefill_replicas,
        first.params,
        step_time if changed is None else changed(first, step_time),
        keys.prefill_router or resolved.scenario.cluster.router,
        link,
        decode_first=keys.decode_chosen == AT_ARRIVAL,
        local_below=keys.local_below,
        handoff_s=keys.handoff_ms / 1e3,
    )
