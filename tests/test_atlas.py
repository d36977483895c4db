"""The atlas: its files, prices of operators at any shape, and what physics demands of every step priced by it."""

import json

import numpy as np
import pytest

from calibrate.atlas.errors import ERRORS
from calibrate.atlas.experts import MoeShape, nearest_experts, other_kernel
from calibrate.atlas.heldout import expert_models, held_out
from calibrate.atlas.linear import GDN_ERROR, linear_decode, linear_prefill
from calibrate.atlas.price import Pricer, causal_pairs
from calibrate.atlas.shapes import along, completed, neighbours
from calibrate.atlas.steps import atlas_step_time, operators, points
from calibrate.atlas.tables import BUNDLED, bundled_gpus, load, load_file, pack, save, unpack
from calibrate.latency import EXTRAPOLATED, INTERPOLATED, MEASURED, load_step_time
from calibrate.layout import Layout
from calibrate.models import resolve_model
from calibrate.resolve import resolve_profile
from kvcast import api
from kvcast.config import scenario_from_doc
from kvcast.present import gpu_list
from kvcast.validation import atlas as atlas_set
from kvcast.validation import passes
from workloads.errors import InputError

LLAMA = resolve_model("llama-3.1-8b")

# -- the file


def test_the_files_are_small_and_hold_every_gpu():
    expected = ["a100", "b200", "b300", "gb200", "h100", "h200", "l40s", "rtx-pro-6000"]
    assert bundled_gpus() == expected
    assert sum((BUNDLED / f"{gpu}.npz").stat().st_size for gpu in expected) <= 8 * 2**20
    for gpu in expected:
        header = load(gpu).header
        assert header["provenance"]["licence"] == "Apache-2.0"
        assert {f"vllm/{op}" for op in ("gemm", "prefill", "decode", "moe", "all_reduce")} <= set(header["tables"])
        assert all({"version", "rows", "dropped", "levelled"} <= set(t) for t in header["tables"].values())


def test_a_file_written_twice_has_equal_bytes_and_another_hash_when_a_number_changes(tmp_path):
    arrays = {"vllm/gemm/ms": pack(np.array([[0.5, 1.0, 2.0]])), "vllm/gemm/keys": np.zeros((1, 1), np.int32)}
    header = {"schema": 1, "tables": {}}
    for name in ("a", "b"):
        save(tmp_path / f"{name}.npz", arrays, header)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    first = load_file(tmp_path / "a.npz").content_hash
    save(tmp_path / "a.npz", {**arrays, "vllm/gemm/ms": pack(np.array([[0.5, 1.0, 2.5]]))}, header)
    assert load_file(tmp_path / "a.npz").content_hash != first


def test_packed_times_come_back_to_a_thousandth_and_holes_as_holes():
    ms = np.array([[0.0023, 0.1, 87.3, np.nan, 1025.0]])
    back = unpack(pack(ms))
    assert np.isnan(back[0, 3])
    assert back[0, [0, 1, 2, 4]] == pytest.approx(ms[0, [0, 1, 2, 4]], rel=5e-4)


def test_an_unknown_gpu_or_backend_or_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"'h20' has no operator atlas; did you mean .*bundled: a100"):
        load("h20")
    with pytest.raises(InputError, match="backend 'torch': expected one of vllm, sglang, trtllm"):
        Pricer(load("h200"), "torch")
    (tmp_path / "x.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError, match="not an atlas file"):
        load_file(tmp_path / "x.npz")


# -- shapes


def test_neighbours_weigh_by_the_logarithm_and_hold_on_to_the_edge():
    keys = np.array([[1, 8], [1, 32], [4, 8], [4, 32]], dtype=float)
    assert neighbours(keys, (1, 8)) == ([(0, 1.0)], 0.0)
    weights, outside = neighbours(keys, (2, 16))
    assert outside == 0.0
    assert weights == [(i, pytest.approx(0.25)) for i in range(4)]
    assert neighbours(keys, (8, 8)) == ([(2, 1.0)], 1.0)


def test_a_grid_with_holes_is_completed_by_length_and_never_falls():
    grid = np.array([[1.0, np.nan, 3.0, np.nan], [2.0, 1.9, np.nan, np.nan]])
    filled = completed([np.array([1, 2]), np.array([1, 2, 3, 6])], grid)
    assert filled[0] == pytest.approx([1.0, 2.0, 3.0, 5.0])
    assert (np.diff(filled, axis=0) >= 0).all()
    assert (np.diff(filled, axis=1) >= 0).all()


# -- prices


def test_a_measured_shape_is_the_measured_time():
    price, table = Pricer(load("h200")), load("h200").table("vllm", "gemm").where(gemm_dtype="bfloat16", n=6144, k=4096)
    found = price.gemm("bf16", 6144, 4096)
    assert found.cover == MEASURED
    assert found.error == pytest.approx(0.01, abs=0.01), "that of its points along the tokens"
    assert found.seconds == pytest.approx(table.seconds[0])


def test_a_shape_between_measured_ones_states_its_held_out_error():
    found = Pricer(load("h200")).gemm("bf16", 7000, 9216)
    assert found.cover == INTERPOLATED
    assert 0.01 < found.error < 0.04


def test_wider_than_the_widest_measured_is_so_many_pieces():
    price = Pricer(load("h200"))
    assert price.gemm("bf16", 2 * 65536, 4096).seconds == pytest.approx(2 * price.gemm("bf16", 65536, 4096).seconds)


@pytest.mark.parametrize(("gpu", "dtype"), [("h200", "int4"), ("a100", "fp8"), ("h100", "nvfp4"), ("h200", "mxfp4")])
def test_a_weight_type_without_a_table_takes_its_bytes_on_bf16_units(gpu, dtype):
    price = Pricer(load(gpu))
    found, bf16 = price.gemm(dtype, 8192, 8192), price.gemm("bf16", 8192, 8192)
    assert found.cover == EXTRAPOLATED
    assert found.error == 0.15
    assert found.seconds[0] < bf16.seconds[0]
    if dtype != "fp8":
        assert found.seconds[-1] == pytest.approx(bf16.seconds[-1], rel=0.05)


def test_an_all_reduce_runs_at_the_rate_of_its_link():
    size, priced = Pricer(load("h200")).all_reduce(4)
    moved = 2 * size[-1] * 2 * 3 / 4
    assert 0.5 * 450e9 < moved / priced.seconds[-1] < 450e9
    _, unmeasured = Pricer(load("h200")).all_reduce(16)
    assert unmeasured.cover == EXTRAPOLATED


# -- physics, on random queries

MODELS = [("llama-3.1-8b", 1), ("llama-3.1-70b", 4), ("qwen3-30b-a3b", 2), ("mixtral-8x7b", 4)]


@pytest.mark.parametrize("gpu", ["h200", "b200", "l40s", "a100"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp8_block", "int4"])
def test_no_product_beats_the_hardware_or_falls_with_more_tokens(gpu, dtype):
    price, rng = Pricer(load(gpu)), np.random.default_rng(1)
    for n, k in rng.integers(16, 100_000, (40, 2)).tolist():
        seconds = price.gemm(dtype, n, k).seconds
        assert (seconds >= 2 * price.tokens * n * k / price.peak(dtype) * (1 - 1e-9)).all()
        assert (np.diff(seconds) >= 0).all()


@pytest.mark.parametrize("gpu", ["h200", "b200", "l40s", "a100"])
def test_no_attention_beats_the_hardware_or_falls_with_more_work(gpu):
    price, rng = Pricer(load(gpu)), np.random.default_rng(2)
    for _ in range(40):
        kv_heads, group, dim = int(rng.integers(1, 17)), int(rng.integers(1, 9)), int(rng.choice([64, 80, 128, 256]))
        window = int(rng.choice([0, 0, 128, 512, 4096]))
        shape = (kv_heads * group, kv_heads, dim, window, str(rng.choice(["bf16", "fp8"])))
        length, prefill = price.prefill(*shape)
        flops = 4.0 * shape[0] * dim * causal_pairs(length, 0.0, window)
        assert (prefill.seconds >= flops / price.flops["bf16"] * (1 - 1e-9)).all()
        assert (np.diff(prefill.seconds) >= 0).all()
        batch, context, _, decode = price.decode(*shape)
        seen = np.minimum(context, window) if window else context
        moved = 2.0 * kv_heads * dim * (2 if shape[4] == "bf16" else 1) * batch[:, None] * seen
        assert (decode.seconds >= moved / price.bandwidth * (1 - 1e-9)).all()
        assert (np.diff(decode.seconds, axis=0) >= 0).all()
        assert (np.diff(decode.seconds, axis=1) >= 0).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp8_block", "int4", "mxfp4"])
def test_no_experts_beat_the_hardware_or_fall_with_more_tokens(dtype):
    price, rng = Pricer(load("h200")), np.random.default_rng(3)
    for _ in range(20):
        experts, topk = int(rng.choice([8, 64, 128, 256])), int(rng.integers(1, 9))
        shape = MoeShape(dtype, 128 * int(rng.integers(8, 64)), 128 * int(rng.integers(4, 64)), topk, experts)
        tokens, priced = price.moe(shape)
        assert (priced.seconds >= np.maximum(*price.moe_times(shape, tokens)) * (1 - 1e-9)).all()
        assert (np.diff(priced.seconds) >= 0).all()


def test_uneven_routing_reaches_fewer_experts_and_fills_one_rank():
    tokens = np.array([1, 16, 64, 4096])
    experts, rows = MoeShape("bf16", 4096, 1536, 8, 128).reached(tokens)
    assert rows == pytest.approx(8 * tokens)
    assert experts[0] == pytest.approx(8.0, abs=0.01), "a token's experts are distinct"
    even = 128 * (1 - (1 - 8 / 128) ** tokens)
    assert (experts[1:3] < even[1:3]).all()
    assert experts[-1] == pytest.approx(128, abs=2)
    on_rank, rows_there = MoeShape("bf16", 4096, 1536, 8, 128, ep=8).reached(tokens)
    assert (rows_there > 8 * tokens / 8).all(), "the fullest of eight ranks has more than its share"
    assert (on_rank <= 16).all()
    again = MoeShape("fp8", 7168, 2048, 8, 128, ep=8).reached(tokens)
    assert [part.tolist() for part in again] == [on_rank.tolist(), rows_there.tolist()], "deals are the same ones"


def test_shapes_without_a_gate_are_read_as_two_matrices():
    """Three could not have been read as fast as Nemotron's experts ran."""
    price, table = Pricer(load("h200")), load("h200").table("vllm", "moe")
    rows = table.where(moe_dtype="bfloat16")
    at = int(np.flatnonzero((rows.keys == [2048, 5120, 22, 512, 1, 1]).all(axis=1))[0])
    tokens = rows.axes[0][1].astype(float)
    two, three = (price.moe_times(MoeShape("bf16", 2048, 5120, 22, 512, matrices=n), tokens) for n in (2, 3))
    decode = slice(6, 12)
    assert (rows.seconds[at][decode] > 1.05 * np.maximum(*two)[decode]).all()
    assert (rows.seconds[at][decode] < np.maximum(*three)[decode]).all()


def test_rows_of_the_other_kernel_say_little_where_there_are_two():
    keys = np.array([[4096, 2048, 8, 256, 1, 1], [6144, 3072, 4, 128, 1, 1], [2048, 512, 8, 256, 1, 1]])
    asked = MoeShape("bf16", 6144, 3072, 8, 128)
    weights, octaves = nearest_experts(keys, asked)
    assert (weights[0][0], octaves) == (1, 1.0)
    assert weights[0][1] > 0.5
    weights, octaves = nearest_experts(
        keys, MoeShape("bf16", 6144, 2560, 8, 160), other_kernel("b200", "vllm/moe", "bf16")
    )
    assert weights[0][0] == 0
    assert weights[0][1] > 0.5
    assert octaves < 3
    beside = MoeShape("bf16", 6144, 3584, 4, 128)
    assert nearest_experts(keys, beside)[0][0][0] == 1
    assert nearest_experts(keys, beside, other_kernel("b200", "vllm/moe", "bf16"))[0][0][0] == 0
    assert other_kernel("h200", "vllm/moe", "bf16") == set()
    assert other_kernel("b200", "sglang/moe", "bf16") == set()
    assert other_kernel("h200", "vllm/moe", "mxfp4") == {(3584, 3072)}


def test_weights_of_experts_carry_a_trend_on_and_count_a_cluster_once():
    """On a line of hidden sizes: between two rows half of each; beyond them the outer one at most, since a linear
    variogram goes level there; a third row at the place of the first takes from the first, not from the second."""
    line = np.array([[1024, 1024, 8, 64, 1, 1], [4096, 1024, 8, 64, 1, 1]])
    middle = MoeShape("bf16", 2048, 1024, 8, 64)
    assert [w for _, w in nearest_experts(line, middle)[0]] == pytest.approx([0.5, 0.5])
    doubled = np.array([*line, line[0]])
    found = dict(nearest_experts(doubled, middle)[0])
    assert sum(found.values()) == pytest.approx(1.0)
    assert found[0] == pytest.approx(found[2])
    assert found[1] == pytest.approx(0.5, abs=0.03)
    beyond = dict(nearest_experts(line, MoeShape("bf16", 16384, 1024, 8, 64))[0])
    assert beyond[1] > 0.85
    without_gate = nearest_experts(line, MoeShape("bf16", 1024, 1024, 8, 64, matrices=2))
    assert without_gate[1] == 2.0, "a gate counts two octaves"


@pytest.fixture(scope="module", params=MODELS, ids=lambda p: p[0])
def source(request):
    name, tp = request.param
    return atlas_step_time("h200", resolve_model(name), "fp8", "fp8", Layout(tp))


def test_a_prefix_never_makes_a_chunk_cheaper_and_more_never_takes_less(source):
    rng = np.random.default_rng(4)
    for _ in range(300):
        new, cached = int(2 ** rng.uniform(0, 14)), int(2 ** rng.uniform(0, 17)) - 1
        more = int(rng.integers(1, 500))
        chunk = source.step([(new, cached)], 0, 0, 0, 1)[0]
        assert chunk >= source.step([(new, 0)], 0, 0, 0, 1)[0]
        assert source.step([(new + more, cached)], 0, 0, 0, 1)[0] >= chunk
        assert source.step([(new, cached + more)], 0, 0, 0, 1)[0] >= chunk


def test_decode_never_takes_less_with_more_sequences_or_longer_contexts(source):
    rng = np.random.default_rng(5)
    for _ in range(300):
        n, context = int(2 ** rng.uniform(0, 10)), int(2 ** rng.uniform(1, 15))
        seconds = source.step([], n, n * context, context, n)[0]
        assert source.step([], n + 1, (n + 1) * context, context, n + 1)[0] >= seconds
        assert source.step([], n, n * (context + 7), context + 7, n)[0] >= seconds


def test_a_one_token_chunk_costs_what_one_more_decode_costs(source):
    for n, context in ((32, 4096), (1, 100), (200, 700)):
        chunk = source.step([(1, context - 1)], n, n * context, context, n + 1)
        assert chunk == source.step([], n + 1, (n + 1) * context, context, n + 1)
        two = source.step([(2, context - 1)], n, n * context, context, n + 1)[0]
        assert two >= chunk[0]


def test_a_stretch_is_its_steps_to_the_last_bit(source):
    for n, total, longest, k in ((1, 5, 5, 40), (7, 7000, 3000, 300), (64, 64 * 2000, 9000, 200), (3000, 9000, 3, 20)):
        seconds, covers = source.decode_stretch(n, total, longest, k)
        steps = [source.step([], n, total + i * n, longest + i, n) for i in range(k)]
        assert [(s, c) for s, c in zip(seconds.tolist(), covers.tolist(), strict=True)] == steps


# -- whole models


def test_a_mixed_call_pays_its_constant_once():
    step = atlas_step_time("h200", LLAMA).step
    apart = step([(512, 0)], 0, 0, 0, 1)[0] + step([], 32, 32 * 4096, 4096, 32)[0]
    together = step([(512, 0)], 32, 32 * 4096, 4096, 33)[0]
    assert step([(512, 0)], 0, 0, 0, 1)[0] < together < apart


def test_the_atlas_agrees_with_the_profile_tabulated_from_the_same_package():
    atlas, profile = atlas_step_time("h200", LLAMA), load_step_time("h200-llama-3.1-8b-aic")
    for shape in (
        ([], 1, 512, 512, 1),
        ([], 64, 65536, 1024, 64),
        ([(2048, 0)], 0, 0, 0, 1),
        ([(64, 1024)], 0, 0, 0, 1),
    ):
        both = atlas.step(*shape)[0], profile.step(*shape)[0]
        assert both[0] == pytest.approx(both[1], rel=0.04), "each levels the dips of its own tables"


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-32b", "mixtral-8x7b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("gpu", bundled_gpus())
def test_every_gpu_prices_every_model_and_says_what_each_operator_rests_on(gpu, name):
    table = points(load(gpu), resolve_model(name), "fp8", "bf16", Layout(2))
    rested = {o["name"]: o for o in table["rests_on"]}
    assert {"qkv", "attention_out", "all_reduce", "lm_head", "full_prefill", "full_decode"} <= set(rested)
    assert ("experts" in rested) == bool(resolve_model(name).experts)
    assert all(o["basis"] and 0 <= o["error"] <= 0.5 for o in rested.values())


def test_a_model_of_no_table_is_priced_near_its_neighbours():
    """Hidden 9,216: no measured width. Its products lie between those of 8,192 and 10,240."""
    price = Pricer(load("h200"))
    low, mid, high = (price.gemm("bf16", 4 * h, h).seconds for h in (8192, 9216, 10240))
    assert (low <= mid * 1.05).all()
    assert (mid <= high * 1.05).all()


def test_mla_is_its_projections_and_the_rest_of_the_module():
    """DeepSeek-V3 at TP 8: the module's own table, put together again from its parts."""
    model = resolve_model("deepseek-v3")
    table = points(load("h200"), model, "fp8_block", "bf16", Layout(8))
    ops = {o.name: o for o in operators("h200", model, "fp8_block", "bf16", Layout(8))}
    parts = along(ops["mla_projections"].x, ops["mla_projections"].seconds, np.array([64.0]))[0]
    decode = table["decode_attention"]
    at = decode["us"][decode["batch"].index(64)][decode["context"].index(1024)] / 61e6
    module = load("h200").table("vllm", "mla_decode")
    row = module.where(gemm_type="fp8_block", kv_cache_dtype="bfloat16", num_heads=16).seconds[0]
    measured = row[list(module.axes[0][1]).index(64), list(module.axes[1][1]).index(1024)]
    assert parts + at == pytest.approx(measured, rel=0.03)


def test_held_out_errors_are_those_the_files_state():
    atlas = load("h200")
    found = {(h.operator, h.dtype): h.mean for h in held_out(atlas, "vllm")}
    stated = atlas.header["tables"]["vllm/gemm"]["held_out"]
    assert found["gemm", "bf16"] == pytest.approx(stated["bf16"], abs=1e-3)
    assert found["gemm", "bf16"] <= 0.04
    assert found["gemm", "fp8"] <= 0.04
    assert found["gemm", "fp8_block"] <= 0.08
    assert found["prefill", "bf16"] <= 0.06
    assert found["decode", "bf16"] <= 0.06
    assert found["mla_prefill", "fp8_block"] <= 0.10
    assert found["mla_decode", "fp8_block"] <= 0.10


# -- the profile


def test_atlas_colon_gpu_is_a_profile_of_any_model_and_width():
    profile = resolve_profile("atlas:h200", resolve_model("qwen3-32b"), "fp8", 8)
    assert (profile.kind, profile.dtype, profile.kv_dtype, profile.tensor_parallel) == ("atlas", "fp8", "bf16", 8)
    assert profile.memory_gib == 139.81
    assert profile.provenance["content_hash"] == load("h200").content_hash
    assert load_step_time("atlas:b200:sglang").step([], 1, 100, 100, 1)[1] in (INTERPOLATED, EXTRAPOLATED)
    with pytest.raises(InputError, match="tensor_parallel 3: expected a divisor"):
        resolve_profile("atlas:h200", LLAMA, "bf16", 3)


def test_whole_passes_are_the_packages_own(data_dir):
    outcome = passes.run(data_dir)
    assert outcome.passed, outcome.lines
    judged = [f for f in outcome.figures.values() if f["judged"]]
    assert sum(f["passes"] for f in judged) > 1500
    assert all(abs(f["worst"]) <= 0.10 for f in judged)
    assert all(f["mean"] <= 0.03 for f in judged if "stated" not in f)
    unmeasured = [f for f in judged if "stated" in f]
    assert len(unmeasured) == 24, "two models in no table, all but single fp8 decodes on B200"
    assert all(f["mean"] <= f["stated"] <= 0.06 for f in unmeasured)


# -- layers without attention, states, gates


def test_a_linear_layer_without_a_table_reads_its_state_once_a_decode_and_computes_on_it_once_a_token():
    """Mamba-2 on an A100, where not even its convolution was measured."""
    price = Pricer(load("a100"))
    a = next(g.attention for g in resolve_model("nemotron-h-56b").layer_groups if g.attention.kind == "linear")
    state, flops = a.state_bytes(2), a.state_flops / 2
    length, prefill = linear_prefill(price, a, 2)
    a_token = (prefill.seconds[-1] - prefill.seconds[-2]) / (length[-1] - length[-2])
    assert a_token == pytest.approx(flops / price.flops["bf16"] / 0.7)
    batch, _, limits, decode = linear_decode(price, a, 2)
    assert np.diff(decode.seconds[:, 0])[0] == pytest.approx(2 * state / price.bandwidth / 0.7)
    assert (len(batch), limits[0], decode.cover) == (11, np.inf, EXTRAPOLATED)


@pytest.mark.parametrize("tp", [1, 4])
def test_gated_delta_net_is_its_convolution_and_its_recurrence_as_measured(tp):
    """Qwen3-Next's 16 key and 32 value heads, cut over tp ranks: both kernels of the table, added up."""
    price = Pricer(load("h200"))
    a = next(g.attention for g in resolve_model("qwen3-next-80b-a3b").layer_groups if g.attention.kind == "linear")
    length, prefill = linear_prefill(price, a, tp)
    batch, _, _, decode = linear_decode(price, a, tp)
    table = load("h200").table("vllm", "gdn")
    for phase, grid, priced in (("context", lambda s: s[0], prefill), ("generation", lambda s: s[:, 0], decode)):
        rows = table.where(phase=phase, num_k_heads=16 // tp, num_v_heads=32 // tp)
        assert len(rows) == 2
        summed = np.sum([grid(s) for s in rows.seconds], axis=0)
        assert priced.seconds.ravel() == pytest.approx(summed, rel=1e-6)
        assert (priced.cover, priced.error) == (MEASURED, GDN_ERROR[phase] / 2)
    assert (length[-1], batch[-1]) == (32768, 1024)


def test_mamba_adds_the_measured_convolution_to_the_form_of_its_recurrence():
    model = resolve_model("nemotron-3-nano-30b-a3b")
    a = next(g.attention for g in model.layer_groups if g.attention.kind == "linear")
    price = Pricer(load("h200"))
    _, _, _, decode = linear_decode(price, a, 1)
    table = load("h200").table("trtllm", "mamba2")
    row = table.where(phase="generation", nheads=64, n_groups=8, d_state=128, d_model=2688).seconds[0][0, 0]
    form = 5e-6 + 2 * a.state_bytes(1) / price.bandwidth / 0.7
    assert decode.seconds[0, 0] == pytest.approx(row + form, rel=0.02)
    assert (decode.cover, decode.error) == (EXTRAPOLATED, 0.3)


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "nemotron-3-super-120b-a12b", "llama-3.3-nemotron-super-49b"])
def test_a_hybrid_model_is_priced_layer_by_layer_and_its_states_know_no_context(name):
    model = resolve_model(name)
    kinds = {g.attention.kind: g.count for g in model.layer_groups}
    ops = {o.name: o for o in operators("h200", model)}
    assert ops.get("linear_in") is None or ops["linear_in"].repeat == kinds["linear"]
    source = atlas_step_time("h200", model)
    floor = model.active_parameters * 2 / Pricer(load("h200")).bandwidth
    times = [source.step([], 1, c, c, 1)[0] for c in (100, 1000, 10_000)]
    assert times == sorted(times)
    assert times[0] > 0.9 * floor
    halves = sum(g.count * ((g.attention.kind != "none") + (g.mlp.kind != "none")) for g in model.layer_groups)
    assert sum(o.repeat for o in operators("h200", model) if o.name == "norm") == halves


def test_a_gate_on_the_output_widens_the_query_projection():
    gated = resolve_model("qwen3.5-27b")
    full = next(g.attention for g in gated.layer_groups if g.attention.kind == "full")
    assert full.gated
    qkv = next(o for o in operators("h200", gated) if o.name == "qkv")
    width = (2 * full.heads + 2 * full.kv_heads) * full.head_dim
    assert qkv.seconds == pytest.approx(Pricer(load("h200")).gemm("bf16", width, gated.hidden).seconds)


def test_what_has_no_price_is_one_line():
    with pytest.raises(InputError, match="fp32 weights or KV has no price yet"):
        resolve_profile("atlas:h200", LLAMA, "fp32")


# -- a GPU by name


@pytest.mark.parametrize(
    ("gpu", "model", "dtype", "tp", "named"),
    [
        ("h200", "llama-3.1-8b", "bf16", 1, "h200-llama-3.1-8b-aic"),
        ("H200_SXM", "llama-3.1-70b", "fp16", 8, "h200-llama-3.1-70b-tp8-aic"),
        ("h200", "llama-3.1-8b", "fp8", 1, "atlas:h200"),
        ("h200", "llama-3.1-8b", "bf16", 2, "atlas:h200"),
        ("gb200", "llama-3.1-8b", "bf16", 1, "atlas:gb200"),
        ("h200", "deepseek-v3.2", "fp8", 8, "atlas:h200"),
        ("mi300x", "llama-3.1-8b", "bf16", 1, "roofline:mi300x"),
    ],
)
def test_a_gpu_brings_the_best_that_is_known_of_it(gpu, model, dtype, tp, named):
    doc = {
        "workload": {"preset": "chat"},
        "model": {"name": model, "dtype": dtype},
        "hardware": {"gpu": gpu, "tensor_parallel": tp},
    }
    resolved = api.resolve(scenario_from_doc(doc))
    assert (resolved.profile.id, resolved.scenario.hardware.profile) == (named, named)
    assert resolved.scenario.hardware.gpu is None
    assert api.resolve(resolved.scenario).profile.content_hash == resolved.profile.content_hash


def test_a_gpu_and_a_profile_or_an_unknown_gpu_is_one_line():
    hardware = {"gpu": "h200", "profile": "roofline:h200"}
    with pytest.raises(InputError, match=r"gpu = 'h200' and profile = 'roofline:h200': expected one of them"):
        scenario_from_doc({"workload": {"preset": "chat"}, "hardware": hardware})
    with pytest.raises(InputError, match=r"gpu = 'h20': expected one of a10, a100, .*did you mean h200"):
        api.resolve(scenario_from_doc({"workload": {"preset": "chat"}, "hardware": {"gpu": "h20"}}))


def test_the_list_of_profiles_says_what_every_atlas_holds():
    listed = {a["profile"]: a for a in gpu_list.document()["atlas"]}
    assert set(listed) == {f"atlas:{gpu}" for gpu in bundled_gpus()}
    assert {"bfloat16", "fp8", "fp8_block"} <= set(listed["atlas:h200"]["weights"])
    assert "mla_decode" in listed["atlas:h200"]["operators"]
    assert "mla_decode" not in listed["atlas:a100"]["operators"]


# -- TensorRT-LLM's kernels


def test_tensorrt_llm_is_priced_with_its_own_kernels():
    """A dense model's operators on every GPU; its decodes on an A100 are refused, so vLLM's stand there."""
    for gpu in bundled_gpus():
        table = points(load(gpu), LLAMA, "bf16", "bf16", Layout(2), "trtllm")
        basis = {o["name"]: o["basis"].split()[0] for o in table["rests_on"]}
        decode = "vllm/decode" if gpu == "a100" else "trtllm/decode"
        assert (basis["qkv"], basis["full_prefill"], basis["full_decode"], basis["all_reduce"]) == (
            *("trtllm/gemm", "trtllm/prefill", decode, "trtllm/all_reduce"),
        )
    refused = [line for line in load("a100").describe() if "refused" in line]
    assert refused == ["trtllm/decode: refused, 48% of its rows over 1e+09 bytes beat the memory"]
    assert load("h200").header["refused"] == {}


def test_experts_slower_than_in_pieces_are_left_out_and_counted():
    """llama-4-scout at width 1 on an H200: 8 times its bound as measured, 1.3 times at width 4. A piece's price."""
    h200 = load("h200")
    assert h200.header["tables"]["trtllm/moe"]["untuned"] == 108
    assert any("108 shapes left out (slower than in pieces)" in line for line in h200.describe())
    price, scout = Pricer(h200, "trtllm"), MoeShape("bf16", 5120, 8192, 1, 16)
    tokens, whole = price.moe(scout)
    assert whole.error > 0.05, "between other shapes"
    assert (whole.seconds[tokens >= 64] < 4 * np.maximum(*price.moe_times(scout, tokens))[tokens >= 64]).all()
    assert "untuned" not in h200.header["tables"]["vllm/moe"]


@pytest.mark.parametrize(("name", "dtype"), [("deepseek-v3", "fp8_block"), ("qwen3-235b-a22b", "fp8_block")])
def test_tensorrt_llm_prices_mixtures_and_latent_attention(name, dtype):
    ops = operators("h200", resolve_model(name), dtype, "bf16", Layout(8), "trtllm")
    experts = next(o for o in ops if o.name == "experts")
    assert experts.basis.startswith("trtllm/moe")
    assert experts.error < 0.1


def test_semantics_bring_their_own_kernels():
    for semantics, named in (
        ("vllm", "h200-llama-3.1-8b-aic"),
        ("sglang", "atlas:h200:sglang"),
        ("trtllm", "atlas:h200:trtllm"),
    ):
        doc = {
            "workload": {"preset": "chat"},
            "model": {"name": "llama-3.1-8b"},
            "hardware": {"gpu": "h200"},
            "engine": {"semantics": semantics},
        }
        assert api.resolve(scenario_from_doc(doc)).profile.id == named


def test_int4_and_int8_on_an_a100_are_tensorrt_llms_own_products_only_there():
    own, other = Pricer(load("a100"), "trtllm"), Pricer(load("a100"), "vllm")
    for dtype in ("int4", "int8"):
        assert own.gemm(dtype, 8192, 8192).basis == "trtllm/gemm measured shape"
        assert other.gemm(dtype, 8192, 8192).basis == f"{dtype} bytes on the bf16 kernel"


# -- stated errors


def test_the_errors_that_prices_state_are_those_found_again():
    """errors.json of the smallest file; kvcast validate atlas finds all."""
    stated = json.loads(ERRORS.read_text())
    assert sorted(stated) == bundled_gpus()
    found = held_out(load("a100"), "vllm")
    assert found
    for one in found:
        assert stated["a100"][f"vllm/{one.operator}"][one.dtype] == [
            [octaves, pytest.approx(error, abs=2e-4)] for octaves, error in one.by_distance
        ]


def test_experts_of_few_models_are_printed_with_their_error_and_not_judged(monkeypatch):
    monkeypatch.setattr(atlas_set, "bundled_gpus", lambda: ["rtx-pro-6000"])
    assert expert_models(load("rtx-pro-6000"), "vllm") == {"bf16": 16, "fp8": 14, "nvfp4": 17, "mxfp4": 2, "int4": 1}
    outcome = atlas_set.run()
    (line,) = [line for line in outcome.lines if line.startswith("moe mxfp4")]
    assert line.endswith("goal 10%; not judged: 2 models measured, not all on one kernel")
    goals, apart = outcome.lines[-1].split("; not judged: ")
    assert apart == "moe mxfp4"
    assert "moe" not in goals
    assert outcome.figures["rtx-pro-6000 moe mxfp4"]["mean"] > 0.10
    assert outcome.figures["rtx-pro-6000 moe nvfp4"]["mean"] < 0.08
    assert Pricer(load("rtx-pro-6000")).error("moe", "mxfp4", 2.0) > 0.15, "stated by prices"


def test_further_from_a_measured_shape_a_price_states_more():
    price = Pricer(load("h200"))
    near, far = (price.moe(MoeShape("bf16", hidden, 1024, 10, 512))[1].error for hidden in (4096, 12288))
    assert 0.005 < near < 0.03
    assert far > 2 * near
    for dtype in ("bf16", "fp8", "fp8_block"):
        errors = [price.error("moe", dtype, octaves) for octaves in (0.0, 0.4, 0.8, 1.6)]
        assert errors == sorted(errors)
        assert errors[-1] > 2 * errors[0]
    assert price.error("gemm", "bf16", 0.1) < price.error("gemm", "bf16", 1.0) < 0.04


# -- products that were timed with more than the product


def test_block_fp8_timed_by_the_host_gives_way_to_another_backends():
    for gpu in ("h100", "h200", "b200"):
        own = Pricer(load(gpu), "vllm")
        found, tabled = (
            own.gemm("fp8_block", 8192, 8192),
            Pricer(load(gpu), "vllm", as_tabled=True).gemm("fp8_block", 8192, 8192),
        )
        assert found.basis.startswith("sglang/gemm")
        assert tabled.basis.startswith("vllm/gemm")
        assert found.seconds[0] < tabled.seconds[0] / 2
        assert found.seconds == pytest.approx(Pricer(load(gpu), "sglang").gemm("fp8_block", 8192, 8192).seconds)
    for kind in ("bf16", "fp8"):
        assert Pricer(load("h200"), "vllm").gemm(kind, 8192, 8192).basis.startswith("vllm/gemm")


def test_tensorrt_llms_fp8_without_its_quantization_is_the_other_backends():
    for gpu in ("h100", "h200", "b200"):
        eight = {b: Pricer(load(gpu), b).gemm("fp8", 8192, 8192) for b in ("trtllm", "vllm", "sglang")}
        assert eight["trtllm"].basis.startswith("trtllm/gemm")
        times = {b: float(np.interp(8, Pricer(load(gpu)).tokens, priced.seconds)) for b, priced in eight.items()}
        assert times["trtllm"] == pytest.approx(min(times["vllm"], times["sglang"]), rel=0.2), gpu
        price, tabled = Pricer(load(gpu), "trtllm"), Pricer(load(gpu), "trtllm", as_tabled=True)
        table = load(gpu).table("trtllm", "gemm")
        beside = min(np.nanmin(table.where(gemm_dtype="fp8").seconds[:, 0]), 1.0) - np.nanmin(
            table.where(gemm_dtype="bfloat16").seconds[:, 0]
        )
        far = tabled.gemm("fp8", 8192, 8192).seconds[-1] - price.gemm("fp8", 8192, 8192).seconds[-1]
        assert far == pytest.approx(beside, rel=0.02)
        assert 9e-6 < beside < 11e-6
        for kind in ("bf16", "fp8_block", "nvfp4") if gpu == "b200" else ("bf16", "fp8_block"):
            assert price.gemm(kind, 4096, 4096).seconds == pytest.approx(tabled.gemm(kind, 4096, 4096).seconds)


MXFP4_KERNELS = [
    ("b200", "trtllm", "w4a8_mxfp4_mxfp8"),
    ("b200", "sglang", "w4a8_mxfp4_mxfp8"),
    ("b200", "vllm", "w4a16_mxfp4"),
    ("h200", "trtllm", "w4a16_mxfp4"),
]


@pytest.mark.parametrize(("gpu", "backend", "dtype"), MXFP4_KERNELS)
def test_mxfp4_experts_compute_on_what_their_engine_takes(gpu, backend, dtype):
    """A measured shape has the times of the rows of its engine's own kernel, not floored at another type's peak."""
    atlas = load(gpu)
    pricer = Pricer(atlas, backend)
    tokens, priced = pricer.moe(MoeShape("mxfp4", 2880, 2880, 4, 128))
    rows = atlas.table(backend, "moe").where(moe_dtype=dtype)
    (row,) = np.flatnonzero((rows.keys == np.array([2880, 2880, 4, 128, 1, 1])).all(axis=1))
    least = np.maximum(*pricer.moe_times(MoeShape("mxfp4", 2880, 2880, 4, 128), tokens))
    assert priced.seconds == pytest.approx(np.maximum.accumulate(np.maximum(rows.seconds[row], least)), rel=1e-6)
    assert (rows.seconds[row][-3:] >= least[-3:]).all(), "many tokens are computed no faster than the units can"
