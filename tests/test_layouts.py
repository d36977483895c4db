"""Layouts of a replica: what they weigh, keep, take and refuse; sparse attention, which only they make fit.

python -m pytest tests/test_layouts.py
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from calibrate.atlas.exchange import DEEPEP_ERROR, deepep, gather_scatter
from calibrate.atlas.linear import GDN_ERROR
from calibrate.atlas.price import Pricer
from calibrate.atlas.shapes import neighbours
from calibrate.atlas.sparse import SPARSE_ERROR
from calibrate.atlas.steps import atlas_profile, operators, points
from calibrate.atlas.tables import load
from calibrate.latency import step_time
from calibrate.layout import HIGH_THROUGHPUT, LOW_LATENCY, Layout
from calibrate.memory import GIB, GpuMemory, capacity
from calibrate.model_spec import ModelSpec
from calibrate.models import resolve_model
from calibrate.profile import load_profile, save_profile
from calibrate.resolve import resolve_profile
from calibrate.sources.lock_step import LockStepTime
from calibrate.sources.pipeline import PipelineStepTime, in_batches
from calibrate.sources.roofline import roofline_profile
from calibrate.sources.tables import TableStepTime
from calibrate.utilization import StepWork
from kvcast import api
from kvcast.config import scenario_from_doc
from tests.worlds import LinearSteps
from workloads.errors import InputError

V3, QWEN = resolve_model("deepseek-v3"), resolve_model("qwen3-235b-a22b")
EP8, DP8 = Layout(8, expert_parallel=True), Layout(1, attention_dp=8, expert_parallel=True)

# -- weights and KV by hand ------------------------------------------------------------------------------------------

TINY = ModelSpec(
    "tiny", 6, 64, 4, 2, 16, 0, 100, 4096, experts=8, experts_per_token=2, expert_intermediate=32, moe_layers=6
)


def test_experts_are_spread_and_attention_is_whole_on_every_data_rank() -> None:
    experts = 6 * 8 * 3 * 64 * 32
    attention = 6 * 64 * 16 * (2 * 4 + 2 * 2)
    for layout, held, copies in (
        (Layout(4), 4, 4),
        (Layout(4, expert_parallel=True), 4, 4),
        (Layout(1, attention_dp=4), 4, 1),
        (Layout(2, attention_dp=2, expert_parallel=True), 4, 2),
    ):
        weights = TINY.weights("bf16", layout)
        assert weights["experts"] == 2 * experts // held
        share = attention // copies if copies <= 2 else 6 * 64 * 16 * (2 * 1 + 2 * 1)  # two KV heads on four ranks
        assert weights["attention"] == 2 * share
        assert TINY.kv_bytes_per_token("bf16", layout) == 6 * 2 * max(2 // layout.tensor_parallel, 1) * 16 * 2


def test_a_stage_holds_its_share_of_the_layers() -> None:
    whole, stages = TINY.weights("bf16"), TINY.weights("bf16", Layout(1, pipeline_parallel=4))
    assert stages["experts"] * 3 == whole["experts"]  # two of six layers: the largest stage of 2, 2, 1, 1
    assert TINY.kv_bytes_per_token("bf16", Layout(1, pipeline_parallel=4)) * 3 == TINY.kv_bytes_per_token("bf16")
    hybrid = resolve_model("qwen3-next-80b-a3b")
    assert hybrid.kv_bytes_per_token("bf16", Layout(1, pipeline_parallel=4)) == hybrid.kv_bytes_per_token("bf16")
    assert hybrid.state_bytes(Layout(1, pipeline_parallel=4)) * 3 == hybrid.state_bytes()  # 12 of its 36


def test_deepseek_v3_fits_eight_h200_at_three_layouts() -> None:
    """Latent KV is on every tensor-parallel rank: attention_dp holds up to eight times as many tokens."""
    profile, room = roofline_profile("h200", "fp8_block", 8), {}
    for layout in (Layout(8), EP8, DP8):
        memory = GpuMemory(profile, V3, "fp8_block", "bf16", layout, 0.92, 16, 8192, 1024)
        fits = capacity(memory)
        room[layout] = fits.tokens * layout.attention_dp
        assert fits.tokens == memory.free // (16 * 70_272) * 16
    assert room[DP8] > 4 * room[Layout(8)]
    whole, cut = (GpuMemory(profile, V3, "fp8_block", "bf16", one, 0.92, 16, 8192, 1024) for one in (DP8, Layout(8)))
    kept = {k: v for k, v in V3.weights("fp8_block").items() if k != "experts"}
    least = sum(kept[k] for k in ("embedding", "head", "mlp", "shared"))  # the latent's projections are on every rank
    assert least * 7 / 8 < whole.weights - cut.weights < sum(kept.values()) * 7 / 8
    lines = capacity(whole).lines
    assert "experts 1/8 each, the rest whole" in lines[1]
    assert lines[4].endswith("on each of 8 attention_dp ranks")


def test_buffers_go_by_the_gpus_that_talk_to_each_other() -> None:
    def nccl(layout: Layout) -> float:
        return GpuMemory(roofline_profile("h200"), V3, "bf16", "bf16", layout, 0.9, 16, 8192).overheads()["NCCL"] / GIB

    assert nccl(Layout(8)) == nccl(DP8) == nccl(Layout(2, attention_dp=4)) == pytest.approx(0.383)
    assert nccl(Layout(2, pipeline_parallel=2)) == pytest.approx(2 * 0.334)
    assert nccl(replace(DP8, all_to_all=HIGH_THROUGHPUT)) == pytest.approx(1.383)
    assert nccl(replace(DP8, all_to_all=LOW_LATENCY)) == pytest.approx(0.383 + 4 * 256 * 256 * 7168 * 2 / GIB)


def test_work_of_all_ranks_is_shared_by_their_gpus() -> None:
    """The same decodes on one rank and on four: as many FLOPs in all, a quarter of the KV bytes a GPU."""
    n = (np.array([8]), np.array([8 * 1000]), np.array([8]), *(np.empty(0, np.int64),) * 3)
    one, four = (StepWork(TINY, "bf16", "bf16", layout).of(*n) for layout in (Layout(1), Layout(1, attention_dp=4)))
    assert four[0] == one[0]
    kv, experts = 8 * 1000 + 8, 8 * (1 - (1 - 2 / 8) ** 8) * TINY.weights("bf16")["experts"] / 8
    assert one[1][0] - four[1][0] == pytest.approx(0.75 * (kv * 6 * 2 * 2 * 16 * 2 + experts))


# -- prices ----------------------------------------------------------------------------------------------------------


def test_an_expert_parallel_rank_is_the_tables_own_row() -> None:
    """moe_tp 1 and moe_ep 8, all tokens of the step; with data ranks those of all, and the way to the experts."""
    row = load("h200").table("vllm", "moe").where(moe_dtype="fp8_block")
    asked = (7168, 2048, 8, 256, 1, 8)
    seconds = row.seconds[int(np.flatnonzero((row.keys == np.array(asked)).all(axis=1))[0])]
    for layout in (EP8, DP8):
        found = {o.name: o for o in operators("h200", V3, "fp8_block", "bf16", layout)}
        there = np.isfinite(seconds)
        assert found["experts"].seconds[there] == pytest.approx(seconds[there], rel=1e-6)
        assert found["experts"].basis == "vllm/moe measured shape"
        assert found["experts"].axis == ("all tokens" if layout == DP8 else "tokens")
        assert ("all_gather_reduce_scatter" in found) == (layout == DP8)
        assert ("all_reduce" in found) == (layout == EP8)  # ranks of one tensor-parallel group hold the same tokens


def test_collectives_are_the_tables_times_and_run_at_the_links_rate() -> None:
    price = Pricer(load("h200"))
    tokens, both = gather_scatter(price, 8, 7168)
    nccl = load("h200").table("nccl", "all")
    at = 65536 * 7168 / 8  # elements; a measured size is 2^26
    times = [nccl.where(op_name=name, num_gpus=8).seconds[0] for name in ("all_gather", "reduce_scatter")]
    measured = sum(np.interp(at, nccl.axes[0][1], t) for t in times)
    assert np.interp(65536 / 8, tokens, both.seconds) == pytest.approx(measured, rel=0.02)
    rate = 2 * 2 * 7168 * 32768 * 7 / 8 / np.interp(32768, tokens, both.seconds)
    assert 0.5 * 450e9 < rate < 450e9
    _, form = gather_scatter(Pricer(load("h200")), 6, 7168)  # no table of six
    assert (form.cover, form.error, form.basis) == (2, 0.3, "latency and bytes over the link")


def test_deepep_is_microseconds_and_low_latency_goes_in_calls_of_256() -> None:
    """A fleet survey has 77 and 114 us for 128 tokens a rank of DeepSeek-V3 over eight H800."""
    price, ranks = Pricer(load("h200")), (8, 7168, 8, 256)
    tokens, low = deepep(price, LOW_LATENCY, *ranks)
    _, high = deepep(price, HIGH_THROUGHPUT, *ranks)
    assert 77e-6 < np.interp(128, tokens, low.seconds) < 2 * (77 + 114) * 1e-6
    assert np.interp(1024, tokens, low.seconds) == pytest.approx(4 * np.interp(256, tokens, low.seconds))
    assert np.interp(16, tokens, low.seconds) < np.interp(16, tokens, high.seconds)
    assert np.interp(8192, tokens, high.seconds) < np.interp(8192, tokens, low.seconds)
    assert (low.error, deepep(price, LOW_LATENCY, 8, 5120, 8, 256)[1].error) == (0.0, DEEPEP_ERROR)
    assert deepep(Pricer(load("l40s")), LOW_LATENCY, *ranks)[1].cover == 2


LAYOUTS = {
    "deepseek-v3": [
        *(Layout(8), EP8, DP8, Layout(2, attention_dp=4, expert_parallel=True), Layout(4, attention_dp=2)),
        *(replace(DP8, all_to_all=LOW_LATENCY), replace(DP8, all_to_all=HIGH_THROUGHPUT)),
    ],
    "deepseek-v3.2": [Layout(8), DP8],
    "qwen3-235b-a22b": [Layout(4), Layout(8), Layout(4, expert_parallel=True), EP8, Layout(4, pipeline_parallel=2)],
    "qwen3-next-80b-a3b": [Layout(4), Layout(2, attention_dp=2, expert_parallel=True)],
}


def _together(times, layout: Layout, shape) -> float:
    """Seconds of a step with this shape on every rank."""
    return times.together([shape] * layout.attention_dp)[0] if layout.attention_dp > 1 else times.step(*shape)[0]


@pytest.mark.parametrize(("name", "layout"), [(name, one) for name, some in LAYOUTS.items() for one in some], ids=str)
def test_no_layout_beats_the_hardware_and_more_never_takes_less(name: str, layout: Layout) -> None:
    model, gpu = resolve_model(name), "h100" if name.startswith("qwen3-235b") else "h200"
    dtype = "fp8_block" if name.startswith("deepseek") else "fp8"
    times = step_time(atlas_profile(gpu, model, dtype, layout, "bf16"), model, dtype, layout)
    price = Pricer(load(gpu))
    work = StepWork(model, dtype, "bf16", layout)
    none = np.empty(0, np.int64)
    last = 0.0
    for n in (1, 2, 4, 16, 33, 64, 129, 256):
        seconds = _together(times, layout, ([], n, n * 2048, 2048, n))
        assert seconds >= last
        last = seconds
        total = np.array([n * layout.attention_dp])
        flops, moved = work.of(total, total * 2048, total, none, none, none)
        assert seconds > float(flops[0]) / (layout.gpus * price.peak(dtype))
        assert seconds > 0.5 * float(moved[0]) / layout.pipeline_parallel / price.bandwidth  # uneven routing reads less
    chunk = [_together(times, layout, ([(new, 0)], 0, 0, 0, 1)) for new in (2, 100, 1000, 4000, 8000)]
    assert chunk == sorted(chunk)
    flops = 8000 * layout.attention_dp * model.linear_flops_per_token
    assert chunk[-1] > flops / (layout.gpus * price.peak(dtype))
    over = [_together(times, layout, ([(1000, cached)], 0, 0, 0, 1)) for cached in (0, 1000, 16_000, 64_000)]
    assert over == sorted(over)


def test_a_stretch_of_ranks_is_its_steps_to_the_last_bit() -> None:
    times = step_time(atlas_profile("h200", V3, "fp8_block", DP8, "bf16"), V3, "fp8_block", DP8)
    shapes = [([], 3, 4000, 3000, 3), ([], 40, 90_000, 9000, 40), ([], 1, 70, 70, 1)]
    seconds, codes = times.together_stretch(shapes, 200)
    steps = [
        times.together([(c, n, total + i * n, longest + i, s) for c, n, total, longest, s in shapes])
        for i in range(200)
    ]
    assert [(s, c) for s, c in zip(seconds.tolist(), codes.tolist(), strict=True)] == steps
    alone, _ = times.decode_stretch(7, 9000, 3000, 50)
    assert alone.tolist() == [times.step([], 7, 9000 + 7 * i, 3000 + i, 7)[0] for i in range(50)]


def test_a_lone_rank_is_slower_than_a_rank_of_tensor_parallel_and_all_of_them_faster() -> None:
    """What attention_dp is for: many sequences. One alone has a GPU for its attention instead of eight."""
    wide, data = (
        step_time(atlas_profile("h200", V3, "fp8_block", one, "bf16"), V3, "fp8_block", one) for one in (Layout(8), DP8)
    )
    assert data.step([], 1, 4000, 4000, 1)[0] > wide.step([], 1, 4000, 4000, 1)[0]
    many = data.together([([], 128, 128 * 4000, 4000, 128)] * 8)[0]
    assert many < wide.step([], 1024, 1024 * 4000, 4000, 1024)[0]


def test_a_rank_waits_for_the_slowest_and_idle_ones_run_one_token() -> None:
    table = points(load("h200"), V3, "fp8_block", "bf16", DP8)
    times = LockStepTime(table, 8)
    one, other = ([], 4, 4000, 1000, 4), ([], 64, 64_000, 1000, 64)
    shared = [sum(np.interp(t, o["tokens"], o["us"]) * o["repeat"] for o in table["all_ranks"]) for t in (11, 71, 74)]
    own = [times.step(*shape)[0] * 1e6 - s for shape, s in ((one, shared[0]), (other, shared[1]))]
    assert times.together([one, other])[0] * 1e6 == pytest.approx(max(own) + shared[2])


def test_sparse_attention_is_its_projections_and_the_rest_of_the_module() -> None:
    """DeepSeek-V3.2 at TP 8: the module's own table, put together again from its parts; over a prefix at least what
    SGLang's kernels take."""
    model = resolve_model("deepseek-v3.2")
    table = points(load("h200"), model, "fp8_block", "bf16", Layout(8))
    found = [o for o in operators("h200", model, "fp8_block", "bf16", Layout(8)) if o.name == "sparse_projections"]
    assert sum(o.repeat for o in found) == 61
    decode = table["decode_attention"]
    rows = {"model": "deepseek-ai/DeepSeek-V3.2", "gemm_type": "fp8_block", "kv_cache_dtype": "bfloat16"}
    module = load("h200").table("vllm", "sparse_decode")
    row = module.where(**rows, num_heads=16).seconds[0]
    for batch, context in ((1, 1024), (64, 1024), (64, 65536)):
        at = decode["us"][decode["batch"].index(batch)][decode["context"].index(context)] / 61e6
        measured = row[list(module.axes[0][1]).index(batch), list(module.axes[1][1]).index(context)]
        assert np.interp(batch, found[0].x, found[0].seconds) + at == pytest.approx(measured, rel=0.03)
    prefill = table["prefill_attention"]
    sglang = load("h200").table("sglang", "sparse_prefill")
    over = sglang.where(**rows, num_heads=16, step=65536).seconds[0][0, list(sglang.axes[1][1]).index(2048)]
    at = prefill["us"][prefill["new"].index(2048)][prefill["cached"].index(65536)] / 61e6
    assert over * 0.7 < at < over  # its projections are elsewhere
    long, dense = (
        step_time(atlas_profile("h200", one, "fp8_block", Layout(8), "bf16"), one, "fp8_block", Layout(8))
        for one in (model, V3)
    )
    shape = ([], 64, 64 * 130_000, 130_000, 64)
    assert long.step(*shape)[0] < 0.7 * dense.step(*shape)[0], "what sparse attention is for"


@pytest.mark.parametrize("gpu", ["h100", "b200", "l40s"])
@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5"])
def test_every_gpu_prices_sparse_attention_and_says_how(gpu: str, name: str) -> None:
    table = points(load(gpu), resolve_model(name), "fp8_block", "bf16", Layout(8))
    bases = {o["name"]: (o["coverage"], o["error"]) for o in table["rests_on"]}
    assert bases["sparse_prefill"] == (("extrapolated", 0.3) if gpu == "l40s" else ("interpolated", 0.15))
    assert bases["sparse_decode"] == (("extrapolated", 0.3) if gpu == "l40s" else ("measured", SPARSE_ERROR / 2))


def test_a_profile_of_a_layout_comes_back_from_its_file(tmp_path) -> None:
    profile = atlas_profile("h200", QWEN, "fp8", EP8)
    save_profile(profile, tmp_path / "p.json")
    again = load_profile(tmp_path / "p.json")
    assert again.layout == EP8
    assert again.fits("qwen3-235b-a22b", "fp8", EP8)
    assert not again.fits("qwen3-235b-a22b", "fp8", 8)
    with pytest.raises(InputError, match=r"is for .* tensor_parallel 8, expert_parallel; the scenario has .* 8$"):
        step_time(again, QWEN, "fp8", 8)


# -- pipelines by hand -----------------------------------------------------------------------------------------------


def test_prompts_fill_batches_of_the_budget() -> None:
    assert in_batches([(5, 0), (9, 100)], 8) == [[(5, 0), (3, 100)], [(6, 103)]]
    assert in_batches([(8, 0)], 8) == [[(8, 0)]]


def test_a_round_by_hand() -> None:
    """0.1 s a new token, 1 s a decode, 10 s overhead; two stages, batches of at most 100 new tokens."""
    whole = LinearSteps(10.0, 1.0, 0.0, 0.0, 0.1, 0.0)
    two = PipelineStepTime(whole, 2, 10, 100)
    assert two.step([], 1, 50, 50, 1)[0] == 11.0  # alone: all stages, one after the other
    assert two.step([], 8, 400, 50, 8)[0] == 14.0  # two batches of 4: each stage has one of them at any time
    assert two.step([(100, 0)], 0, 0, 0, 1)[0] == 20.0  # a lone prompt, as without a pipeline
    assert two.step([(200, 0)], 0, 0, 0, 1)[0] == 30.0  # the second batch leaves one stage (10 s) later
    assert two.step([(100, 0)], 8, 400, 50, 9)[0] == 24.0  # with half of the decodes; the other half beside it
    assert two.step([(1, 0)], 8, 400, 50, 9)[0] == pytest.approx(14.1)
    uneven = PipelineStepTime(whole, 4, 10, 100)  # stages of 3, 3, 2 and 2 layers
    assert uneven.step([], 8, 400, 50, 8)[0] == pytest.approx(12 * 3 / 2.5)


def test_a_stretch_of_rounds_is_its_rounds_to_the_last_bit() -> None:
    layout = Layout(2, pipeline_parallel=4)
    times = step_time(atlas_profile("h100", QWEN, "fp8", layout), QWEN, "fp8", layout)
    for n, total, longest in ((1, 70, 70), (3, 4000, 3000), (41, 90_000, 9000)):
        seconds, codes = times.decode_stretch(n, total, longest, 100)
        rounds = [times.step([], n, total + i * n, longest + i, n) for i in range(100)]
        assert [(s, c) for s, c in zip(seconds.tolist(), codes.tolist(), strict=True)] == rounds


def test_stages_double_the_decodes_of_a_second_and_leave_a_lone_request_alone() -> None:
    model = resolve_model("llama-3.1-70b")
    one, four = (
        step_time(atlas_profile("h200", model, "fp8", layout), model, "fp8", layout)
        for layout in (Layout(1), Layout(1, pipeline_parallel=4))
    )
    lone, many = ([], 1, 2000, 2000, 1), ([], 512, 512 * 2000, 2000, 512)
    assert one.step(*lone)[0] < four.step(*lone)[0] < 1.02 * one.step(*lone)[0]  # three sends
    assert 2.5 < one.step(*many)[0] / four.step(*many)[0] < 4  # a quarter of the sequences reads the weights as often


# -- scenarios -------------------------------------------------------------------------------------------------------


def _doc(model: str = "qwen3-30b-a3b", dtype: str = "bf16", **hardware):
    return {
        "workload": {"preset": "chat", "duration_s": 30.0},
        "model": {"name": model, "dtype": dtype},
        "hardware": {"gpu": "h200", **hardware},
        "run": {"warmup_s": 0.0},
        "cost": {"gpu_hour_usd": 2.0},
    }


def _resolved(**hardware):
    return api.resolve(scenario_from_doc(_doc(**hardware)))


@pytest.mark.parametrize(
    ("hardware", "says"),
    [
        ({"tensor_parallel": 3}, "tensor_parallel 3: expected a divisor of qwen3-30b-a3b's 32 heads"),
        (
            {"tensor_parallel": 8, "attention_dp": 2},
            "tensor_parallel = 8 x attention_dp = 2: 16 GPUs, expected at most 8",
        ),
        ({"expert_parallel": True}, "expert_parallel on one GPU"),
        (
            {"attention_dp": 7, "expert_parallel": True},
            r"over 7 GPUs \(tensor_parallel 1 x attention_dp 7\).*128 experts",
        ),
        ({"attention_dp": 5}, r"experts cut over 5 GPUs .* 768 columns of an expert, or expert_parallel"),
        ({"attention_dp": 2, "pipeline_parallel": 2}, "attention_dp = 2 with pipeline_parallel = 2"),
        ({"pipeline_parallel": 60}, "pipeline_parallel 60: qwen3-30b-a3b has 48 layers"),
        ({"all_to_all": "deepep_low_latency"}, "expected attention_dp above 1 and expert_parallel = true"),
        (
            {"model": "llama-3.1-8b", "attention_dp": 2},
            "llama-3.1-8b has no experts to share; expected cluster.replicas = 2",
        ),
        ({"model": "llama-3.1-8b", "tensor_parallel": 2, "expert_parallel": True}, "llama-3.1-8b has no experts"),
    ],
)
def test_an_impossible_layout_is_one_line(hardware, says: str) -> None:
    with pytest.raises(InputError, match=says):
        _resolved(**hardware)


def test_only_an_atlas_prices_more_than_a_width() -> None:
    for spec in ("roofline:h200", "h200-llama-3.1-8b-aic"):
        with pytest.raises(
            InputError, match=r"has no times for tensor_parallel 2, expert_parallel; expected atlas:GPU"
        ):
            resolve_profile(spec, QWEN, "bf16", Layout(2, expert_parallel=True))


def test_gpus_and_cost_follow_the_layout() -> None:
    """Two replicas of 2 x 2 GPUs: 8 GPU-hours an hour, whatever the ranks do."""
    scenario = scenario_from_doc({**_doc(tensor_parallel=2, attention_dp=2), "cluster": {"replicas": 2}})
    summary = api.run(api.prepare(scenario)).report.summary
    hours = summary["window"]["end_s"] / 3600
    assert summary["gpus_per_replica"] == 4
    assert summary["gpu_hours"] == pytest.approx(8 * hours)
    assert summary["cost"]["usd"] == pytest.approx(16 * hours)
    assert summary["layout"] == "tensor_parallel 2, attention_dp 2"
    assert summary["mfu"] > 0
    assert summary["kv_blocks"] == 2 * api.resolve(scenario).scenario.engine.kv_blocks


def test_a_pipelines_round_has_the_budget_of_all_its_batches() -> None:
    resolved = _resolved(pipeline_parallel=2)
    assert resolved.params.max_num_batched_tokens == 2 * (resolved.scenario.engine.max_num_batched_tokens or 0)
    flat = _resolved()
    assert resolved.scenario.engine.kv_blocks > 2 * flat.scenario.engine.kv_blocks  # half the weights, half the layers
    assert math.isclose(resolved.rank_kv_bytes, flat.rank_kv_bytes)


def test_a_run_of_a_pipeline_says_on_which_side_it_errs() -> None:
    report = api.run(api.prepare(scenario_from_doc(_doc(pipeline_parallel=4)))).report
    assert any("pipeline_parallel 4 is simulated in rounds" in note and "up to 43%" in note for note in report.notes)
    assert not Layout(8, attention_dp=1).caution


def test_tiers_are_shared_out_to_the_ranks() -> None:
    tiers = [{"name": "ram", "capacity_gib": 64.0, "bandwidth_gb_per_s": 40.0}]
    one, two = (
        api.resolve(scenario_from_doc({**_doc(attention_dp=n), "cache": {"tiers": tiers}})).params.tiers[0]
        for n in (1, 2)
    )
    assert two.blocks == one.blocks // 2
    assert two.bandwidth_bytes_s == one.bandwidth_bytes_s / 2
    assert two.block_bytes == one.block_bytes


def test_profile_show_prices_a_layout_and_says_what_each_operator_rests_on(capsys) -> None:
    from kvcast.cli import main

    asked = "profile show atlas:h200 --model qwen3-30b-a3b --attention-dp 2 --expert-parallel"
    assert main(asked.split()) == 0
    told = capsys.readouterr().out
    assert "tensor_parallel 1, attention_dp 2, expert_parallel" in told
    assert re.search(r"experts +48 +measured +[\d.]+ % +vllm/moe measured shape\n", told)
    assert re.search(r"all_gather_reduce_scatter +48 +interpolated +- +nccl/all measured", told)
    assert "on each of 2 attention_dp ranks" in told
    assert main(["profile", "show", "--model", "qwen3-30b-a3b", "--attention-dp", "2"]) == 2
    assert "expected a PROFILE with tensor_parallel 1, attention_dp 2" in capsys.readouterr().err


def test_stated_errors_between_shapes_are_those_held_out() -> None:
    """Leave one shape out, predict it from its neighbours as prices do: no stated error is below the mean over GPUs."""
    gdn: dict[str, list[float]] = {"context": [], "generation": []}
    sparse, a2a = [], []
    for gpu in ("h100", "h200", "b200"):
        for backend in ("vllm", "sglang"):
            table = load(gpu).table(backend, "gdn")
            for phase, errors in gdn.items():
                rows = table.where(phase=phase)
                for kernel in np.unique(rows.keys[:, 0]):
                    one = rows.among(lambda keys, kernel=kernel: keys[:, 0] == kernel)
                    grid = one.seconds[:, 0] if phase == "context" else one.seconds[:, :, 0]
                    errors += _left_out(one.keys[:, 1:].astype(float), grid, by=1)
            table = load(gpu).table(backend, "sparse_decode")
            for model in table.values("model"):
                for gemm in table.values("gemm_type"):
                    rows = table.where(model=model, gemm_type=gemm, kv_cache_dtype="bfloat16")
                    sparse += _left_out(rows.keys.astype(float), rows.seconds, by=None) if len(rows) else []
        for name in ("deepep_ht", "deepep_ll"):
            for phase in ("dispatch", "combine"):
                rows = load(gpu).table("vllm", "all_to_all").where(comm_backend=name, phase=phase)
                a2a += _nearest_left_out(rows.keys.astype(float), rows.seconds)
    assert 0.5 * GDN_ERROR["context"] < np.mean(gdn["context"]) <= GDN_ERROR["context"]
    assert 0.5 * GDN_ERROR["generation"] < np.mean(gdn["generation"]) <= GDN_ERROR["generation"]
    assert 0.4 * SPARSE_ERROR < np.mean(sparse) <= SPARSE_ERROR
    assert 0.5 * DEEPEP_ERROR < np.mean(a2a) <= DEEPEP_ERROR


def _left_out(keys: np.ndarray, grid: np.ndarray, by: int | None) -> list[float]:
    """Mean error of each shape inside the others. by: the column that work is in proportion to."""
    errors = []
    for i, key in enumerate(keys):
        rest = np.arange(len(keys)) != i
        weights, outside = neighbours(keys[rest], tuple(key))
        if outside:
            continue
        flat = [g[np.isfinite(grid).all(axis=0)] for g in grid[rest]]
        asked = grid[i][np.isfinite(grid).all(axis=0)]
        scale = [1.0 if by is None else key[by] / other[by] for other in keys[rest]]
        told = sum(w * (flat[row][0] + (flat[row] - flat[row][0]) * scale[row]) for row, w in weights)
        errors.append(float(np.abs(told / asked - 1).mean()))
    return errors


def _nearest_left_out(keys: np.ndarray, grid: np.ndarray) -> list[float]:
    """The same from the nearest other shape alone; work goes by hidden size x top-k."""
    errors = []
    for i, key in enumerate(keys):
        distance = np.abs(np.log2(keys / key)).sum(axis=1)
        distance[i] = np.inf
        j = int(np.argmin(distance))
        there = np.isfinite(grid[i]) & np.isfinite(grid[j])
        other, scale = grid[j][there], key[0] * key[1] / (keys[j][0] * keys[j][1])
        errors.append(float(np.abs((other[0] + (other - other[0]) * scale) / grid[i][there] - 1).mean()))
    return errors


PACKAGE = [  # aiconfigurator-core 0.12's own sums of operators, ms: decode (batch a rank, context) or prefill (new)
    ("deepseek-v3", "h200", "fp8_block", Layout(8), {(64, 4096): 33.49, (128, 2048): 36.98}),
    ("deepseek-v3", "h200", "fp8_block", EP8, {(64, 4096): 35.69, (128, 2048): 39.74, (8192,): 462.62}),
    (
        "deepseek-v3",
        "h200",
        "fp8_block",
        DP8,
        {(16, 1024): 37.87, (64, 4096): 53.09, (128, 2048): 67.63, (8192,): 2523},
    ),
    (
        *("deepseek-v3", "h200", "fp8_block", Layout(2, attention_dp=4, expert_parallel=True)),
        {(64, 4096): 44.61, (128, 2048): 52.36, (1024,): 189.37, (8192,): 1418.82},
    ),
    ("deepseek-v3.2", "h200", "fp8_block", Layout(8), {(64, 4096): 37.79, (128, 2048): 42.80, (1024,): 166.02}),
    ("deepseek-v3.2", "h200", "fp8_block", DP8, {(64, 4096): 58.05, (128, 2048): 78.14, (8192,): 2930.01}),
    ("qwen3-235b-a22b", "h100", "fp8", Layout(4), {(1, 1024): 15.48, (64, 4096): 114.47, (8192,): 565.25}),
    ("qwen3-235b-a22b", "h100", "fp8", EP8, {(1, 1024): 10.30, (64, 4096): 61.65, (8192,): 456.91}),
    (
        *("qwen3-235b-a22b", "h100", "fp8", Layout(2, attention_dp=4, expert_parallel=True)),
        {(1, 1024): 31.72, (16, 1024): 60.36, (64, 4096): 71.20, (1024,): 205.98},
    ),
    ("qwen3.5-397b-a17b", "h200", "bf16", Layout(8), {(1, 1024): 5.07, (64, 4096): 22.36, (8192,): 199.80}),
    ("qwen3.5-35b-a3b", "h200", "bf16", Layout(1), {(1, 1024): 3.59, (64, 4096): 18.09, (8192,): 112.90}),
]


@pytest.mark.parametrize(("name", "gpu", "dtype", "layout", "passes"), PACKAGE, ids=str)
def test_whole_passes_at_a_layout_are_near_the_packages_own(name, gpu, dtype, layout, passes) -> None:
    """Every rank with the same work. Not compared where the two differ by intent: one DeepSeek sequence, whose blocks
    are all launches, and tensor-parallel prefill, where the package counts four all-reduces a layer."""
    table = points(load(gpu), resolve_model(name), dtype, "bf16", layout)
    times = LockStepTime(table, layout.attention_dp) if layout.attention_dp > 1 else TableStepTime(table)
    for asked, ms in passes.items():
        n, context = asked if len(asked) == 2 else (0, 0)
        shape = ([], n, n * context, context, n) if n else ([(asked[0], 0)], 0, 0, 0, 1)
        assert _together(times, layout, shape) * 1e3 == pytest.approx(ms, rel=0.1), asked


def test_a_shared_expert_runs_beside_the_routed_ones_in_small_steps() -> None:
    """Up to 256 tokens only what is longer than the routed experts remains of it; beyond, all of it."""
    price = Pricer(load("h200"))
    for layout in (Layout(8), DP8):
        found = {o.name: o for o in operators("h200", V3, "fp8_block", "bf16", layout) if o.repeat == 58}
        width = 2048 // layout.tensor_parallel
        whole = price.gemm("fp8_block", 2 * width, 7168).seconds + price.gemm("fp8_block", 7168, width).seconds
        whole = whole + price.elementwise(6.0 * width, price.tokens)
        own = np.sum([found[f"shared_{part}"].seconds for part in ("gate_up", "silu_mul", "down")], axis=0)
        few = price.tokens <= 256
        tokens = price.tokens * layout.attention_dp
        routed = np.interp(tokens, found["experts"].x, found["experts"].seconds)
        assert own[few] == pytest.approx(np.maximum(whole - routed, 0.0)[few], abs=1e-9)
        assert own[~few] == pytest.approx(whole[~few])
        assert (own[(tokens >= 32) & few] == 0.0).all()
        assert found["shared_down"].basis.endswith("up to 256 tokens beside the routed experts")
