"""What physics demands of a step's time, on random queries over every source: models x GPUs x widths x precisions x
(batch, context, new, cached). What these found, and what was changed, is in docs/profiles.md ("How a step adds up")."""

import random
from collections.abc import Iterator

import numpy as np
import pytest

from calibrate.atlas.tables import bundled_gpus
from calibrate.latency import EXTRAPOLATED, StepTime, step_time
from calibrate.model_spec import ModelSpec
from calibrate.models import bundled_models, resolve_model
from calibrate.profile import bundled_profile, bundled_profiles
from calibrate.resolve import resolve_profile
from calibrate.sources.roofline import GPUS
from calibrate.utilization import StepWork
from workloads.errors import InputError

DTYPES = ("bf16", "fp8", "fp8_block", "int8", "int4", "mxfp4", "nvfp4")
NAMED = {spec.name: spec for spec in GPUS.values()}
ROUNDING = 1 - 1e-9


class Source:
    """A drawn source of step times and what it may not beat."""

    def __init__(self, name: str, model: ModelSpec, dtype: str, kv_dtype: str, tp: int):
        self.words = f"{name} {model.name} {dtype}/{kv_dtype} TP{tp}"
        profile = (
            bundled_profile(name) if name in bundled_profiles() else resolve_profile(name, model, dtype, tp, kv_dtype)
        )
        self.steps: StepTime = step_time(profile, model, dtype, tp)
        self.model, self.spec, self.tp = model, NAMED.get(str(profile.device["name"])), tp
        self.work = StepWork(model, dtype, kv_dtype, tp)
        self.peak = 0.0
        if self.spec is not None:
            wide, narrow = self.spec.bf16_flops, self.spec.fp8_flops
            self.peak = max(wide, {"fp8": narrow, "fp8_block": narrow, "nvfp4": 2 * narrow}.get(dtype, 0.0))
        self.forgets = any(reach.chunk for reach in model.reaches(kv_dtype, tp))
        self.windows = any(reach.window for reach in model.reaches(kv_dtype, tp))

    def s(self, chunks: list[tuple[int, int]], n: int = 0, context: int = 0) -> float:
        """Seconds of a step with n decodes of this context; every chunk samples."""
        return self.steps.step(chunks, n, n * context, context, n + len(chunks))[0]

    def least(self, chunks: list[tuple[int, int]], n: int = 0, context: int = 0) -> float:
        """Seconds that FLOPs at peak take, or bytes at full bandwidth (experts reached: as few as the top k)."""
        if self.spec is None:
            return 0.0
        new, cached = (np.array([c[i] for c in chunks], dtype=float) for i in (0, 1))
        rows = (np.array([n]), np.array([n * context]), np.array([n + len(chunks)]), np.zeros(len(chunks), int))
        flops, moved = self.work.of(*rows, new, cached)
        return max(flops[0] / (self.peak * self.tp), 0.0 if self.model.experts else moved[0] / self.spec.bandwidth)


def sources(seed: int, count: int) -> Iterator[Source]:
    rng, models = random.Random(seed), bundled_models()
    while count:
        kind = rng.choice(["atlas", "atlas", "atlas", "roofline", "bundled"])
        if kind == "bundled":
            profile = bundled_profile(rng.choice(bundled_profiles()))
            model = resolve_model(str(profile.model))
            asked = (profile.id, model, profile.dtype, profile.kv_dtype, profile.tensor_parallel)
        else:
            gpu = rng.choice(bundled_gpus()) + rng.choice(["", ":trtllm", ":sglang"]) if kind == "atlas" else ""
            name = f"atlas:{gpu}" if gpu else f"roofline:{rng.choice(list(GPUS))}"
            model = resolve_model(rng.choice(models))
            asked = (name, model, rng.choice(DTYPES), rng.choice(["bf16", "fp8"]), rng.choice([1, 2, 4, 8]))
        try:
            yield Source(*asked)
        except InputError:  # a width that does not divide its heads, an operator without a price
            continue
        count -= 1


def queries(rng: random.Random, count: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(batch, context, new, cached, more)."""
    for _ in range(count):
        yield (
            int(2 ** rng.uniform(0, 9.5)),
            int(2 ** rng.uniform(0.1, 16)),
            int(2 ** rng.uniform(1, 14)),
            int(2 ** rng.uniform(0, 17)) - 1,
            rng.choice([1, 7, 300]),
        )


@pytest.mark.parametrize("seed", range(4))
def test_a_step_obeys_physics(seed):
    rng = random.Random(100 + seed)
    for source in sources(seed, 40):
        s, told = source.s, source.words
        for n, context, new, cached, more in queries(rng, 6):
            where = f"{told}: {n} x {context}, {new} over {cached}, {more} more"
            decode, chunk, alone = s([], n, context), s([(new, cached)]), s([(new, 0)])
            mixed = s([(new, cached)], n, context)
            for seconds, *shape in (
                (decode, [], n, context),
                (chunk, [(new, cached)]),
                (mixed, [(new, cached)], n, context),
            ):
                assert seconds >= 0.999 * source.least(*shape), f"beats the hardware: {where}"
            assert s([], n + 1, context) >= decode * ROUNDING, f"a larger batch: {where}"
            assert s([], n, context + more) >= decode * ROUNDING, f"longer contexts: {where}"
            assert s([(new + more, cached)]) >= chunk * ROUNDING, f"a longer chunk: {where}"
            assert s([(new + more, cached)], n, context) >= mixed * ROUNDING, f"a longer chunk beside decodes: {where}"
            if not source.forgets:  # a chunk's first token starts with nothing to attend to, whatever is cached
                assert chunk >= alone * ROUNDING, f"a prefix makes it cheaper: {where}"
                assert s([(new, cached + more)]) >= chunk * ROUNDING, f"a longer prefix: {where}"
            assert mixed >= max(chunk, decode) * ROUNDING, f"a mixed step below its parts: {where}"
            assert s([(new, cached), (new, 0)]) >= chunk * ROUNDING, f"a second chunk: {where}"


@pytest.mark.parametrize("seed", range(4, 6))
def test_one_token_over_a_context_is_one_more_decode_and_two_are_no_less(seed):
    rng = random.Random(seed)
    for source in sources(seed, 30):
        for n, context, _, cached, _ in queries(rng, 6):
            where = f"{source.words}: {n} x {context}, over {cached}"
            one = source.steps.step([(1, context - 1)], n, n * context, context, n + 1)
            assert one == source.steps.step([], n + 1, (n + 1) * context, context, n + 1), where
            if not (source.windows or source.forgets):
                # a batch's windows are counted by its sum of contexts, a chunk's by itself
                assert source.s([(2, cached)], n, context) >= 0.999 * source.s([(1, cached)], n, context), where


def test_a_mixed_call_pays_its_constant_once():
    """Where nothing but the constants counts: a short chunk beside short decodes."""
    rng = random.Random(6)
    for source in sources(6, 25):
        for _ in range(4):
            n, context, new = rng.randint(1, 64), rng.randint(1, 256), rng.randint(2, 64)
            together, chunk, decode = source.s([(new, 0)], n, context), source.s([(new, 0)]), source.s([], n, context)
            assert together < 0.97 * (chunk + decode), f"{source.words}: {new} beside {n} x {context}"


def test_below_the_shortest_context_the_form_goes_on_and_says_so():
    for source in sources(7, 25):
        table = getattr(source.steps, "_decode", None)
        if table is None or table.shortest < 3:
            continue
        for n in (1, 16, 100):
            shortest = int(table.shortest)
            below, code = source.steps.step([], n, n * (shortest // 2), shortest // 2, n)
            assert code == EXTRAPOLATED, source.words
            assert source.least([], n, shortest // 2) <= below <= source.s([], n, shortest), source.words
