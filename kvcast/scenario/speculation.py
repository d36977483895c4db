"""The [speculative] section: which values it may have, what it costs in time and memory.

>>> with_speculation(resolved, resolved.step_time())
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.scenario import Scenario
from workloads.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from calibrate.latency import StepTime
    from calibrate.models import ModelSpec
    from calibrate.steptime import CurveStepTime
    from kvcast.scenario.resolve import Resolved


def speculation_problems(scenario: Scenario) -> Iterator[str]:
    """A line for every value that makes no sense."""
    from sim.engines import ENGINES, having

    given = scenario.speculative
    if given.method is None:
        for name in ("tokens", "acceptance", "draft_model", "draft_ms"):
            if getattr(given, name) not in (None, ()):
                yield f"[speculative] {name} = {getattr(given, name)!r}: expected method with it"
        return
    engine = ENGINES.get(scenario.engine.semantics)
    if engine is not None and not engine.has_speculation:
        yield (
            f"[speculative] method = {given.method!r} with [engine] semantics = {scenario.engine.semantics!r}: expected"
            f" semantics = {having('has_speculation')!r} with it"
        )
    for name in ("attention_dp", "pipeline_parallel"):
        if (n := getattr(scenario.hardware, name)) > 1:
            yield f"[speculative] method = {given.method!r} with [hardware] {name} = {n}: expected {name} = 1 with it"
    if given.tokens is None:
        yield "[speculative] tokens is missing: expected how many tokens are drafted for a step"
    yield from _acceptance_problems(given.acceptance, given.tokens)
    yield from _draft_model_problems(scenario)


def _acceptance_problems(acceptance: tuple[float, ...] | float, tokens: int | None) -> Iterator[str]:
    if acceptance == ():
        yield "[speculative] acceptance is missing: expected what was measured for each position, there is no default"
    elif isinstance(acceptance, tuple):
        if tokens is not None and len(acceptance) != tokens:
            yield (
                f"[speculative] acceptance has {len(acceptance)} numbers: expected one for each of tokens = {tokens},"
                " or one number for all"
            )
        for place, share in enumerate(acceptance, 1):
            if not 0 <= share <= 1:
                yield f"[speculative] acceptance = {share!r} at position {place}: expected 0 or more and at most 1"


def _draft_model_problems(scenario: Scenario) -> Iterator[str]:
    from calibrate.models import bundled_models

    given, known = scenario.speculative, bundled_models()
    if given.method == "draft" and given.draft_model is None:
        yield "[speculative] draft_model is missing: expected a bundled model with method = 'draft'"
    if given.method != "draft" and given.draft_model is not None:
        yield f"[speculative] draft_model = {given.draft_model!r}: expected method = 'draft' with it"
    elif given.draft_model is not None and given.draft_model not in known:
        yield (
            f"[speculative] draft_model = {given.draft_model!r}: expected a bundled model (docs/models.md)"
            f"{did_you_mean(given.draft_model, known)}"
        )


def with_speculation(resolved: Resolved, model: StepTime) -> StepTime:
    """The step times of a scheduler that verifies drafts; those of the model where there are none."""
    from calibrate.speculative import Layer, SpeculativeStepTime
    from calibrate.steptime import CurveStepTime

    given = resolved.scenario.speculative
    if given.method is None or given.tokens is None:
        return model
    if not isinstance(model, CurveStepTime):
        raise InputError(f"[speculative] method = {given.method!r}: not priced with this layout of a replica's GPUs")
    draft_s = None if given.draft_ms is None else given.draft_ms / 1e3
    drafter: Layer | CurveStepTime | None = None
    if given.method in ("eagle", "mtp"):
        drafter = Layer(model, resolved.model.layers)
    elif given.method == "draft" and draft_s is None:
        drafter = _draft_step_time(resolved)
    return SpeculativeStepTime(model, given.tokens, drafter, draft_s)


def _draft_step_time(resolved: Resolved) -> CurveStepTime:
    """The draft model's own, on the same GPUs."""
    from calibrate.latency import step_time
    from calibrate.resolve import profile_of_gpu, resolve_profile
    from calibrate.sources.roofline import gpu_key
    from calibrate.steptime import CurveStepTime

    draft, given, tp = (
        draft_model(resolved.scenario),
        resolved.scenario.model,
        resolved.scenario.hardware.tensor_parallel,
    )
    dtype, kv_dtype = draft.weight_dtype(given.dtype), str(given.kv_dtype)
    named = resolved.scenario.hardware.profile
    if named.partition(":")[0] not in ("roofline", "atlas"):
        named = profile_of_gpu(gpu_key(str(resolved.profile.device["name"])), draft, dtype, tp, kv_dtype)
    profile = resolve_profile(named, draft, dtype, tp, kv_dtype)
    priced = step_time(profile, draft, dtype, tp)  # within the step, whose host time is the model's
    assert isinstance(priced, CurveStepTime)
    return priced


def draft_model(scenario: Scenario) -> ModelSpec:
    from calibrate.models import bundled_model

    return bundled_model(str(scenario.speculative.draft_model))


def draft_bytes(scenario: Scenario, model: ModelSpec, dtype: str, kv_dtype: str) -> tuple[int, int]:
    """Bytes that the drafter takes on each GPU: of weights, and of KV for every token. A layer's are the model's mean
    layer's; its embedding and LM head are the model's own."""
    method, layout = scenario.speculative.method, scenario.hardware.layout
    tp = layout.tensor_parallel
    if method == "draft":
        draft = draft_model(scenario)
        return draft.weight_bytes(draft.weight_dtype(dtype), tp), draft.kv_bytes_per_token(kv_dtype, tp)
    if method not in ("eagle", "mtp"):
        return 0, 0
    parts = model.weights(dtype, layout)
    layers = sum(size for name, size in parts.items() if name not in ("embedding", "head"))
    return layers // model.layers, model.kv_bytes_per_token(kv_dtype, tp) // model.layers
