"""A scenario with nothing left open: its names become model and profile, every engine default a number.

The one idea: what a scenario leaves open is filled in one key after the other, each from the GPU, the model and the
keys before it, and `origins` says where every value came from.

    >>> resolve(load_scenario("examples/demo.toml")).origins["kv_blocks"]
    "what fits in the GPU's memory"
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.factors import PLAIN, Factors
from calibrate.per_token import PerToken
from kvcast.scenario.autoscale import with_autoscale
from kvcast.scenario.checks import check
from kvcast.scenario.disaggregation import with_prefill_pool
from kvcast.scenario.fitting import fitting_profile, model_of
from kvcast.scenario.gpu_prices import priced
from kvcast.scenario.mixed import alike_only, with_pools
from kvcast.scenario.paths import absolute_scenario
from kvcast.scenario.shocks import with_surges
from kvcast.scenario.speculation import draft_bytes, with_speculation
from kvcast.scenario.steady import with_window
from sim.engine import DECODE, PREFILL
from sim.engines import engine_of
from sim.scenario import EngineParams, Scenario, TierParams
from sim.sections.lora import adapters_of
from workloads.errors import InputError

if TYPE_CHECKING:
    from calibrate.host import HostTime
    from calibrate.latency import StepTime
    from calibrate.layout import Layout
    from calibrate.memory import GpuMemory
    from calibrate.models import ModelSpec
    from calibrate.profile import DeviceProfile

OPTIMAL = "optimal"
"""cache.policy of a run that evicts by the future and proves afterwards that no eviction would have hit more in its
schedule."""
GIVEN, CONTEXT = "given", "the model's context"
"""Origins: of an engine key that the scenario sets, and of a max_model_len that is the model's own."""
USUAL_BATCH, USUAL_CONTEXT = 16, 4096
WHOLE_PROMPTS = 1 << 30
"""Tokens of a batch that cuts no prompt."""
HOST_KEYS = ("host_step_ms", "host_sequence_us", "launch_layer_us")
"""Engine keys that make a step's host time."""


@dataclass(frozen=True)
class Resolved:
    """A scenario with nothing left open, and what its names stand for."""

    scenario: Scenario  #: as given, with every engine default filled in
    model: ModelSpec
    profile: DeviceProfile
    origins: dict[str, str] = field(default_factory=dict)  #: engine key -> where its value came from
    kv_lines: tuple[str, ...] = ()  #: the arithmetic of the KV capacity
    prefill: Resolved | None = None  #: what replicas that only prefill have, where there are any
    kinds: tuple[Resolved, ...] = ()  #: of a fleet whose replicas are not alike: each [[pool]]; the rest is the first's

    @property
    def each(self) -> tuple[Resolved, ...]:
        """Every kind of replica of the fleet, those that only prefill last."""
        return self.kinds or ((self,) if self.prefill is None else (self, self.prefill))

    @property
    def names(self) -> tuple[str, ...]:
        """What each of them is called."""
        return tuple(pool.name for pool in self.scenario.pool) or (DECODE, PREFILL)[: len(self.each)]

    def _one_kind(self) -> None:
        """Nobody is told of one kind of replica in the place of a fleet."""
        if self.kinds:
            alike_only(self.scenario)

    @property
    def lowered(self) -> bool:
        """Whether max_model_len is below the model's context because no more fits in the KV memory."""
        return self.origins["max_model_len"] not in (GIVEN, CONTEXT)

    @property
    def params(self) -> EngineParams:
        self._one_kind()
        params = engine_params(self.scenario, self.rank_kv_bytes * self.scenario.engine.block_size)
        pool = self.memory.pool
        return replace(params, kv_groups=pool.groups) if pool else params

    @property
    def layout(self) -> Layout:
        return self.scenario.hardware.layout

    @property
    def rank_kv_bytes(self) -> int:
        """KV bytes of a token over all GPUs of one attention_dp rank."""
        tp = self.layout.tensor_parallel
        return self.model.kv_bytes_per_token(str(self.scenario.model.kv_dtype), tp) * tp

    @property
    def memory(self) -> GpuMemory:
        """What decides the memory of each of its GPUs."""
        from calibrate.memory import GpuMemory

        self._one_kind()
        given, engine = self.scenario, self.scenario.engine
        weights, kv = draft_bytes(given, self.model, given.model.dtype, str(given.model.kv_dtype))
        return GpuMemory(
            self.profile,
            self.model,
            given.model.dtype,
            str(given.model.kv_dtype),
            self.layout,
            engine.gpu_memory_utilization,
            engine.block_size,
            engine.max_num_batched_tokens or 0,
            engine.max_num_seqs,
            given.hardware.weights_gib,
            given.hardware.overhead_gib,
            hybrid=engine_of(engine).has_groups and not engine.disable_hybrid_kv_cache_manager,
            cached=given.cache.enabled,
            steps=1 + engine.async_scheduling,
            of_the_rest=engine_of(engine).memory_of_the_rest,
            draft_weights=weights,
            draft_kv=kv,
            adapters=int(engine.max_loras * given.lora.adapter_mib * 2**20 / given.hardware.gpus),
        )

    @property
    def host(self) -> HostTime:
        """What the engine's own time adds to a step."""
        from calibrate.host import HostTime

        engine = self.scenario.engine
        return HostTime(
            (engine.host_step_ms or 0.0) / 1e3,
            (engine.host_sequence_us or 0.0) / 1e6,
            (engine.launch_layer_us or 0.0) / 1e6,
        )

    @property
    def host_line(self) -> str:
        """For people: host time, and where it comes from."""
        origins = list(dict.fromkeys(self.origins[key] for key in HOST_KEYS))
        line = f"host time: {self.host.words} ({', '.join(origins)})"
        return line if self.factors == PLAIN else f"{line}; steps take {self.factors.words} (given)"

    @property
    def factors(self) -> Factors:
        """How this server's steps differ from the profile's."""
        return Factors(self.scenario.hardware.dense_factor, self.scenario.hardware.attention_factor)

    def step_time(self) -> StepTime:
        from calibrate.latency import step_time

        self._one_kind()
        given = self.scenario
        overhead_s = 0.0  # the engine adds [engine] step_overhead_ms itself
        budget = given.engine.max_num_batched_tokens or given.engine.chunked_prefill_size or WHOLE_PROMPTS
        return step_time(
            self.profile, self.model, given.model.dtype, self.layout, overhead_s, self.host, budget, self.factors
        )

    def engine_step_time(self) -> StepTime:
        """The same of the steps that the scheduler takes, drafting included."""
        made, token_us = with_speculation(self, self.step_time()), self.scenario.lora.token_us
        return PerToken(made, token_us * 1e-6) if token_us else made

    def filled(self, key: str, value: Any, origin: str) -> Resolved:
        """With this value of an engine key, unless the scenario gives one."""
        engine = self.scenario.engine
        if getattr(engine, key) is not None:
            return self.told(key, GIVEN)
        scenario = replace(self.scenario, engine=replace(engine, **{key: value}))
        return replace(self, scenario=scenario).told(key, origin)

    def told(self, key: str, origin: str, *kv_lines: str) -> Resolved:
        """With the origin of an engine key, and lines about the KV memory."""
        return replace(self, origins={**self.origins, key: origin}, kv_lines=self.kv_lines + kv_lines)


def resolve(scenario: Scenario) -> Resolved:
    """Look up model and profile and fill in the engine's defaults for that GPU. Raises InputError."""
    check(scenario)
    scenario = absolute_scenario(scenario, Path.cwd())
    if scenario.pool:
        resolved = with_pools(scenario, _checked)
    else:
        resolved = with_prefill_pool(_placed(scenario), scenario, _placed)
    window = with_window(
        resolved.scenario, kv_tokens_of(resolved), lambda: max(map(_token_s, resolved.kinds or (resolved,)))
    )
    resolved = replace(resolved, scenario=with_surges(window))
    for tier in (tier for kind in resolved.each for tier in kind.params.tiers):
        if tier.blocks < 1:
            raise InputError(
                f"[cache.tiers.{tier.name}] capacity_gib: expected room for one block of {tier.block_bytes:,} bytes at"
                " least"
            )
    return resolved


def _checked(scenario: Scenario) -> Resolved:
    """As _placed, of a scenario that nobody has looked at."""
    check(scenario)
    return _placed(scenario)


def _placed(scenario: Scenario) -> Resolved:
    """A scenario's model and profile, and every engine default on that GPU."""
    from calibrate.resolve import profile_of_gpu, resolve_profile

    given, layout = scenario.model, scenario.hardware.layout
    model = model_of(scenario)
    dtype, kv_dtype = model.weight_dtype(given.dtype), given.kv_dtype or model.kv_dtype(given.dtype)
    if scenario.hardware.gpu is not None:
        backend = scenario.engine.semantics  # whose kernels, where there are any of it
        named = profile_of_gpu(scenario.hardware.gpu, model, dtype, layout, kv_dtype, backend)
        scenario = replace(scenario, hardware=replace(scenario.hardware, profile=named, gpu=None))
    profile = resolve_profile(scenario.hardware.profile, model, dtype, layout, kv_dtype, scenario.hardware.link)
    scenario = priced(scenario)
    resolved = Resolved(replace(scenario, model=replace(given, dtype=dtype, kv_dtype=kv_dtype)), model, profile)
    return with_autoscale(_with_engine_defaults(resolved))


def _with_engine_defaults(resolved: Resolved) -> Resolved:
    """Every [engine] key that is left open, in the order in which one needs another."""
    rules = engine_of(resolved.scenario.engine)
    resolved = resolved.filled("max_model_len", resolved.model.max_context, CONTEXT)
    for key, value in rules.defaults(resolved.profile).items():
        resolved = resolved.filled(key, value, f"{rules.title}'s default on {resolved.profile.device['name']}")
    resolved = _with_host_time(resolved, rules.host_mode(resolved.scenario.engine), rules.title)
    resolved = _with_kv_blocks(_with_state_blocks(resolved))
    if rules.whole_context:
        resolved = _with_max_model_len(resolved)
    if rules.most_seqs is None:
        return resolved
    engine = resolved.scenario.engine
    contexts = (engine.kv_blocks or 0) * engine.block_size / (engine.max_model_len or 1)
    origin = f"{rules.title}'s default for this much KV memory"
    return resolved.filled("max_num_seqs", rules.most_seqs(contexts), origin)


def _with_state_blocks(resolved: Resolved) -> Resolved:
    """Blocks as large as a state, where layers have one, as vLLM makes them: smaller ones are not possible."""
    from calibrate.memory import state_block_size

    given, engine = resolved.scenario, resolved.scenario.engine
    if not engine_of(engine).has_groups:
        return resolved
    size = state_block_size(resolved.model, str(given.model.kv_dtype), given.hardware.tensor_parallel)
    if size and engine.disable_hybrid_kv_cache_manager:
        raise InputError(
            f"[engine] disable_hybrid_kv_cache_manager = true: expected false, layers of {resolved.model.name} keep a"
            " state"
        )
    if size <= engine.block_size:
        return resolved
    scenario = replace(given, engine=replace(engine, block_size=size))
    line = f"blocks of {size} tokens instead of {engine.block_size}: as large as a state, as vLLM makes them"
    return replace(resolved, scenario=scenario, kv_lines=(*resolved.kv_lines, line))


def _with_host_time(resolved: Resolved, mode: str, title: str) -> Resolved:
    """The engine's host time by its scheduling mode; none on top of a profile that was measured with it."""
    from calibrate.host import BY_MODE, MODES, NONE, contained

    inside = contained(resolved.profile)
    host = NONE if inside else BY_MODE[mode]
    origin = f"none added: {inside}" if inside else f"{title}, {MODES[mode]}"
    for key, value in zip(HOST_KEYS, (host.step_s * 1e3, host.sequence_s * 1e6, host.layer_s * 1e6), strict=True):
        resolved = resolved.filled(key, value, origin)
    return resolved


def _with_kv_blocks(resolved: Resolved) -> Resolved:
    """The KV blocks that fit, or the number given, which is kept and compared with what fits."""
    from calibrate.memory import capacity, explicit_blocks_warning

    engine = resolved.scenario.engine
    one_must_fit = resolved.origins["max_model_len"] == GIVEN and engine_of(engine).whole_context
    try:
        fits = capacity(resolved.memory, int(engine.max_model_len or 1) if one_must_fit else 1)
    except InputError as error:
        if engine.kv_blocks is None:
            raise
        return resolved.told("kv_blocks", GIVEN, f"caution: {error}")
    if engine.kv_blocks is not None:
        warning = explicit_blocks_warning(engine.kv_blocks, fits)
        return resolved.told("kv_blocks", GIVEN, *([f"caution: {warning}"] if warning else []))
    filled = resolved.filled("kv_blocks", fits.blocks, "what fits in the GPU's memory")
    return replace(filled, kv_lines=resolved.kv_lines + fits.lines)


def _with_max_model_len(resolved: Resolved) -> Resolved:
    """vLLM starts only when one request of max_model_len fits in its KV memory: the model's context is lowered to what
    does, a length that was given is refused. SGLang starts anyway and turns away the requests that do not fit."""
    from calibrate.memory import DoesNotFitError

    engine = resolved.scenario.engine
    length, blocks, size = engine.max_model_len or 0, engine.kv_blocks or 0, engine.block_size
    most = resolved.memory.longest(blocks)
    if length <= most:
        return resolved
    if resolved.origins["max_model_len"] == GIVEN:
        raise DoesNotFitError(
            f"[engine] max_model_len = {length}: vLLM refuses to start, one such request does not fit in {blocks:,} KV"
            f" blocks of {size} tokens; expected at most {most:,}, or {_holding(resolved, length)}"
        )
    lowered = replace(resolved.scenario, engine=replace(engine, max_model_len=most))
    origin = f"what fits in the KV memory; the model's context is {length:,}"
    return replace(resolved, scenario=lowered).told("max_model_len", origin)


def _holding(resolved: Resolved, length: int) -> str:
    """What to set so that one request of this length fits: KV blocks where those were given, else the least
    tensor_parallel."""
    from calibrate.memory import WIDTHS, wider

    given = resolved.scenario
    if resolved.origins["kv_blocks"] == GIVEN:
        return f"engine.kv_blocks = {resolved.memory.needs(length)}"
    found = wider(resolved.memory, length)
    if found is None:
        return f"a GPU with more memory (no tensor_parallel up to {WIDTHS[-1]} holds it)"
    widened = replace(given, hardware=replace(given.hardware, tensor_parallel=found[0]))
    profile = fitting_profile(widened) or given.hardware.profile
    return f"hardware.tensor_parallel = {found[0]} with hardware.profile = {profile!r}, where {found[1]:,} tokens fit"


def kv_tokens_of(resolved: Resolved) -> float:
    """Tokens that the prefix caches of the fleet hold."""
    if resolved.kinds:
        return sum(map(kv_tokens_of, resolved.kinds))
    scenario = resolved.scenario
    prefills = scenario.disaggregation.prefill_replicas
    caches = scenario.hardware.attention_dp * (scenario.cluster.replicas - prefills)
    tokens = resolved.memory.tokens(scenario.engine.kv_blocks or 0) * caches
    if resolved.prefill is not None:
        first = resolved.prefill
        tokens += first.memory.tokens(first.scenario.engine.kv_blocks or 0) * prefills
    return float(tokens) if scenario.cache.enabled else 0.0


def _token_s(resolved: Resolved) -> float:
    """Seconds of an output token in a batch of some, for how long a mix's sessions last."""
    engine = resolved.scenario.engine
    batch = min(USUAL_BATCH, engine.max_num_seqs or USUAL_BATCH)
    step_s = resolved.step_time().step([], batch, batch * USUAL_CONTEXT, USUAL_CONTEXT, batch)[0]
    return step_s + engine.step_overhead_ms / 1e3


def engine_params(scenario: Scenario, block_bytes: int) -> EngineParams:
    """What the simulation reads of a resolved scenario. block_bytes: KV of one block over all GPUs of a rank.

    Of a pipeline a step is a round of as many batches as it has stages, each with the engine's token budget."""
    engine, cache, hardware = scenario.engine, scenario.cache, scenario.hardware
    same = {f.name: value for f in fields(EngineParams) if (value := getattr(engine, f.name, None)) is not None}
    for budget in ("max_num_batched_tokens", "chunked_prefill_size", "max_prefill_tokens"):
        if budget in same:
            same[budget] *= hardware.pipeline_parallel
    return EngineParams(
        **same,
        ranks=hardware.attention_dp,
        caching=cache.enabled,
        policy="clairvoyant" if cache.policy == OPTIMAL else cache.policy,
        policy_params=cache.policy_params,
        tiers=tier_params(scenario, block_bytes) if cache.enabled else (),
        speculative=scenario.speculative.resolved(),
        adapters=adapters_of(scenario.lora, engine.max_loras),
        step_overhead_s=engine.step_overhead_ms / 1e3,
        frontend_s=engine.frontend_ms / 1e3,
    )


def tier_params(scenario: Scenario, block_bytes: int) -> tuple[TierParams, ...]:
    """The cache tiers in blocks and bytes; the attention_dp ranks of a replica have equal shares of each."""
    ranks = scenario.hardware.attention_dp
    return tuple(
        TierParams(
            t.name,
            int(t.capacity_blocks or 0) // ranks
            if t.capacity_gib is None
            else int(t.capacity_gib / ranks * 2**30 // block_bytes),
            t.bandwidth_gb_per_s * 1e9 / ranks,
            t.latency_s,
            block_bytes,
            t.write,
            t.policy,
            t.prefetch,
            t.shared,
            t.total_bandwidth_gb_per_s * 1e9,
        )
        for t in scenario.cache.tiers
    )
