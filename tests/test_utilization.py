"""MFU and MBU: a run worked out by hand, the shapes of steps as the step-time function got them, formulas against the
roofline's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibrate.model_spec import ModelSpec
from calibrate.models import bundled_models, resolve_model
from calibrate.profile import BUNDLED as PROFILES
from calibrate.profile import load_profile
from calibrate.resolve import resolve_profile
from calibrate.sources.roofline import RooflineStepTime, roofline_profile
from calibrate.utilization import DRIVER_NAMES, Peaks, StepWork, peaks
from kvcast import api
from sim.measure.report import build_report
from sim.recording import Recording
from sim.scenario import EngineConfig, EngineParams, HardwareConfig, RunConfig
from sim.simulate import run
from tests.recordings import recording, scenario, steps
from tests.test_explain import SYSTEM
from tests.test_explain import scenario as mix
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload

SMALL = ModelSpec(
    "small", layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocab=32, max_context=1000
)
GPU = Peaks("gpu", 10_000.0, 4_000.0, "made up")


def test_a_run_by_hand() -> None:
    """A prompt of 4 tokens, then two decodes that see 5 and 6; every step takes a second."""
    work = plain([0.0], [4], [3])
    rec = run(work, EngineParams(kv_blocks=10, block_size=4), UnitSteps())
    linear = (
        2 * 2 * (8 * 4 * (2 * 2 + 2 * 1) + 3 * 8 * 16)
    )  # 2 FLOPs a weight, 2 layers of attention and feed-forward weights
    pair, head = 4 * 2 * 4, 2 * 32 * 8  # one (query, key) pair in a layer; one sampled row
    flops = (4 * linear + 2 * 10 * pair + head) + (linear + 2 * 5 * pair + head) + (linear + 2 * 6 * pair + head)
    assert flops == 16_704
    weights = (
        linear + (2 * 2 * 8 + 8) * 2 + 32 * 8 * 2
    )  # 2 bytes a weight, norms, LM head; not the table that rows are looked up in
    key = 2 * 1 * 4 * 2  # K and V of a token in a layer
    moved = 3 * weights + key * 2 * ((4 + 4) + (5 + 1) + (6 + 1))  # read and written
    assert moved == 9_360
    summary = build_report(rec, work, scenario(), step_work=StepWork(SMALL, "bf16", "bf16"), peaks=GPU).summary
    assert (summary["step_flops"], summary["step_bytes_per_gpu"]) == (flops, moved)
    assert summary["mfu"] == pytest.approx(flops / (3 * 10_000))
    assert summary["mbu"] == pytest.approx(moved / (3 * 4_000))
    half = build_report(
        rec, work, scenario(run=RunConfig(duration_s=1.5)), step_work=StepWork(SMALL, "bf16", "bf16"), peaks=GPU
    ).summary
    assert half["step_flops"] == (4 * linear + 2 * 10 * pair + head) + (linear + 2 * 5 * pair + head) / 2
    assert half["mfu"] == pytest.approx(half["step_flops"] / 15_000)
    two = build_report(
        rec,
        work,
        scenario(hardware=HardwareConfig(tensor_parallel=2)),
        step_work=StepWork(SMALL, "bf16", "bf16", 2),
        peaks=GPU,
    ).summary
    assert two["mfu"] == pytest.approx(summary["mfu"] / 2)
    kv = key * 2 * 21  # on every GPU: the one KV head, its projections, and the norms
    copied = (2 * 2 * 8 + 8) * 2 + 2 * 2 * (2 * 8 * 1 * 4)
    assert two["step_bytes_per_gpu"] == 3 * ((weights - copied) / 2 + copied) + kv


class Spy(LinearSteps):
    """Notes the shape of every step it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple] = []

    def step(self, chunks, n_decode, sum_context, max_context, n_sampled):
        self.seen.append((list(chunks), n_decode, sum_context, n_sampled))
        return super().step(chunks, n_decode, sum_context, max_context, n_sampled)


def shapes(rec: Recording) -> list[tuple]:
    (all_steps,) = rec.steps
    w = all_steps.work
    assert w is not None
    chunks: list[list[tuple]] = [[] for _ in all_steps.end_s]
    for step, new, cached in zip(w.chunk_step, w.chunk_new, w.chunk_cached, strict=True):
        chunks[step].append((new, cached))
    return list(zip(chunks, all_steps.n_decode, w.sum_context, w.n_sampled, strict=True))


@pytest.mark.parametrize("semantics", ["vllm", "sglang"])
@pytest.mark.parametrize("seed", range(4))
def test_steps_keep_the_shapes_they_were_timed_by(seed: int, semantics: str) -> None:
    """Stepping one by one and in stretches, with preemptions and prompts in several chunks, and cut by a horizon."""
    work = random_workload(seed, n=50, closed=True)
    params = EngineParams(
        kv_blocks=45,
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        semantics=semantics,
        chunked_prefill_size=32,
    )
    spy = Spy()
    stepping = run(work, params, spy, fast_forward=False)
    assert shapes(stepping) == spy.seen
    fast = run(work, params, LinearSteps())
    assert shapes(fast) == spy.seen
    cut = run(work, params, LinearSteps(), horizon_s=stepping.end_s / 2)
    assert shapes(cut) == spy.seen[: len(cut.steps[0].end_s)]
    assert len(cut.steps[0].end_s) > 20
    if semantics == "vllm":
        assert stepping.preemptions.sum() + stepping.evicted_blocks > 0


@pytest.mark.parametrize("name", [*bundled_models(), "sliding"])
def test_formulas_are_the_rooflines(name: str) -> None:
    """At 100 % of peak a roofline step takes FLOPs / peak when memory is free, and bytes / bandwidth when compute
    is."""
    model = (
        replace(resolve_model("qwen3-8b"), name=name, sliding_layers=12, window=96)
        if name == "sliding"
        else resolve_model(name)
    )
    profile = roofline_profile("h100")
    free = {"mfu": 1.0, "attention_mfu": 1.0, "memory_efficiency": 1.0, "layer_s": 0.0}

    def seconds(points: dict[str, float], *shape: object) -> float:
        given = replace(profile, points={**profile.points, **free, **points})
        return RooflineStepTime(given, model).step(*shape)[0]  # type: ignore[arg-type]

    def parts(*shape: object) -> tuple[float, float]:
        chunks, n, contexts, _, sampled = shape
        new, cached = np.array(chunks, np.int64).reshape(-1, 2).T  # type: ignore[arg-type]
        columns = (np.array([n]), np.array([contexts]), np.array([sampled]), np.zeros(len(new), np.int64), new, cached)
        flops, moved = StepWork(model, "bf16", "bf16").of(*columns)
        written = (n + new.sum()) * model.layers * model.layer_kv_bytes("bf16")  # which the roofline leaves out
        return float(flops[0]), float(moved[0] - written)

    for shape in (
        ([], 40, 40 * 300, 500, 40),
        ([(700, 50)], 0, 0, 0, 1),
        ([(64, 0), (10, 1000)], 8, 8 * 90, 200, 9),
        ([(512, 512)], 3, 60, 30, 3),
    ):
        flops, moved = parts(*shape)
        assert flops == pytest.approx(
            1e12 * seconds({"flops": 1e12, "attention_flops": 1e12, "bandwidth": 1e30}, *shape), rel=1e-9
        )
        assert moved == pytest.approx(
            1e12 * seconds({"flops": 1e30, "attention_flops": 1e30, "bandwidth": 1e12}, *shape), rel=1e-9
        )


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("name", bundled_models())
def test_a_roofline_never_beats_the_hardware(name: str, dtype: str) -> None:
    """MFU and MBU of single steps, on one GPU and on four."""
    model = resolve_model(name)
    if name == "tiny":
        return  # so small that a step's KV write, which a roofline leaves out, shows
    for gpu, tp in (("h100", 1), ("a100", 4)):
        profile = roofline_profile(gpu, model.weight_dtype(dtype), tp)
        source, work = RooflineStepTime(profile, model), StepWork(model, profile.dtype, profile.kv_dtype, tp)
        top = peaks(profile)
        assert top is not None
        for chunks, n, context in (
            ([], 1, 100),
            ([], 256, 700),
            ([], 64, 60_000),
            ([(8192, 0)], 0, 0),
            ([(16, 60_000)], 0, 0),
            ([(4096, 20_000), (64, 0)], 32, 9_000),
        ):
            new, cached = np.array(chunks, np.int64).reshape(-1, 2).T
            rows = n + len(chunks)
            one = lambda value: np.array([value])  # noqa: E731
            flops, moved = work.of(one(n), one(n * context), one(rows), np.zeros(len(new), np.int64), new, cached)
            seconds = source.step(chunks, n, n * context, context, rows)[0]
            assert 0 < flops[0] / seconds <= top.flops_per_s * tp
            assert 0 < moved[0] / seconds <= top.bytes_per_s


@pytest.mark.parametrize("name", ["gpt-oss-120b", "llama-4-scout", "deepseek-v3.2", "qwen3.5-27b", "gemma-3-12b"])
def test_a_roofline_step_grows_with_every_token(name: str) -> None:
    source = RooflineStepTime(roofline_profile("h200"), resolve_model(name))
    for context in (10, 500, 9_000, 100_000):
        shorter, longer = (source.step([], 8, 8 * c, c, 8)[0] for c in (context, context + 64))
        assert shorter <= longer
        assert longer <= source.step([], 9, 9 * (context + 64), context + 64, 9)[0]
        stretch, _ = source.decode_stretch(8, 8 * context, context, 40)
        assert stretch[39] == source.step([], 8, 8 * (context + 39), context + 39, 8)[0]
        assert source.step([(64, context)], 0, 0, 0, 1)[0] <= source.step([(128, context)], 0, 0, 0, 1)[0]


def test_peaks_are_those_of_the_card_or_unknown() -> None:
    for path in PROFILES.glob("*.json"):
        assert peaks(load_profile(path)) is not None, path.name
    h200 = peaks(resolve_profile("h200-llama-3.1-8b-aic", resolve_model("llama-3.1-8b")))
    assert h200 == Peaks("H200-SXM", 989e12, 4.8e12, "NVIDIA data sheet, H200 SXM")
    fp8 = roofline_profile("h100", "fp8")
    assert peaks(fp8).flops_per_s == 1979e12  # type: ignore[union-attr]
    for called in DRIVER_NAMES:
        assert peaks(replace(fp8, dtype="bf16", device={"name": called, "memory_gib": 80})) is not None
    assert peaks(replace(fp8, device={"name": "NVIDIA H100 PCIe", "memory_gib": 80})) is None
    a100 = peaks(replace(fp8, device={"name": "A100-SXM4-80GB", "memory_gib": 80}))
    assert a100 is not None
    assert a100.flops_per_s == 312e12, "fp8 weights are widened on the way to the bf16 units"
    assert peaks(replace(fp8, dtype="fp32")) is None


def test_a_run_says_what_its_utilization_is_measured_by_or_that_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = api.prepare(mix(SYSTEM, engine=EngineConfig(kv_blocks=2000)))
    summary = api.run(prepared).report.summary
    assert 0 < summary["mfu"] < 1
    assert 0 < summary["mbu"] < 1
    assert summary["peaks"]["source"].startswith("NVIDIA data sheet")
    monkeypatch.setattr("calibrate.utilization.peaks", lambda profile: None)
    unknown = api.run(prepared).report
    assert (unknown.summary["mfu"], unknown.summary["mbu"], unknown.summary["peaks"]) == (None, None, None)
    assert unknown.summary["step_flops"] == summary["step_flops"] > 0
    assert any(note.startswith("MFU and MBU unknown") for note in unknown.notes)
    bare = build_report(
        recording([0.0], [steps(np.array([1.0]))]),
        plain([0.0], [4], [1]),
        scenario(),
        step_work=StepWork(SMALL, "bf16", "bf16"),
        peaks=GPU,
    )
    assert bare.summary["mfu"] is None  # a recording that says nothing of its steps' shapes
