"""Operator rows: a folder of one's own over its GPU's atlas, for any model; and other projects' folders as rows."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from calibrate.as_rows import as_rows
from calibrate.assemble import from_points
from calibrate.atlas.own import Own, own_profile
from calibrate.atlas.own_tables import gpu_of
from calibrate.atlas.price import Pricer
from calibrate.atlas.shapes import along
from calibrate.atlas.tables import load
from calibrate.fake import TRUTH, FakeDevice, FakeStepTime
from calibrate.gpu.measure import measure
from calibrate.gpu.points import GPU, plan
from calibrate.latency import EXTRAPOLATED, step_time
from calibrate.models import resolve_model
from calibrate.operators import GROUPS
from calibrate.resolve import resolve_profile
from calibrate.rows import OperatorRows, once, read_rows, write_rows
from calibrate.sources.folder import expert_times, tables_of
from calibrate.sources.folder_rows import rows_from_folder
from calibrate.sources.tables import last_slope
from kvcast.cli import main
from workloads.errors import InputError

LLAMA, QWEN = resolve_model("llama-3.1-8b"), resolve_model("qwen3-8b")
MOE = resolve_model("qwen3-30b-a3b")
LAUNCH_US = 12_000.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows of the fake device between two GPUs, written and read again."""
    where = tmp_path_factory.mktemp("rows")
    device = FakeDevice(noise=0.01, seed=3, launch_us=LAUNCH_US, gpus=2)
    measure(device, LLAMA, GPU, where / "points.jsonl", dtype="bf16", tps=(1, 2))
    write_rows(as_rows(from_points(where / "points.jsonl"), "mine", None), where / "mine")
    return where / "mine"


@pytest.fixture(scope="module")
def rows(folder):
    return read_rows(folder)


def shapes(count, seed=1):
    """Steps as a server runs them: decodes of unequal contexts, up to two chunks over a prefix."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        contexts = rng.lognormal(7.5, 1, int(rng.integers(1, 200))).astype(int) + 16
        chunks = [(int(rng.integers(20, 2000)), int(rng.integers(0, 20000))) for _ in range(int(rng.integers(0, 3)))]
        yield chunks, len(contexts), int(contexts.sum()), int(contexts.max()), len(contexts) + len(chunks)


def errors(profile, model, launch_us=LAUNCH_US):
    ours, truth = step_time(profile, model), FakeStepTime(model, launch_us)
    return np.array([ours.step(*shape)[0] / truth.step(*shape)[0] - 1 for shape in shapes(120)])


def within(error):
    """Noise of 1 %, levelled upwards."""
    return np.abs(error).mean() < 0.006 and np.abs(error).max() < 0.03


# -- the round trip


def test_a_step_priced_from_ones_own_rows_is_the_known_law(rows):
    assert within(errors(own_profile(rows, LLAMA), LLAMA))


@pytest.mark.parametrize("operator", ["gemm", "prefill", "decode", "elementwise", "mixed"])
def test_the_loop_sees_an_operator_that_is_a_fifth_off(rows, operator):
    found = rows.operators[operator]
    slower = OperatorRows(tuple({**row, "us": row["us"] * 1.2} for row in found.rows), found.about)
    wrong = replace(rows, operators={**rows.operators, operator: slower})
    assert not within(errors(own_profile(wrong, LLAMA), LLAMA))


@pytest.mark.parametrize("part", ["form", "host"])
def test_the_loop_sees_what_the_header_alone_says(rows, part):
    assert not within(errors(own_profile(replace(rows, **{part: {}}), LLAMA), LLAMA))


def test_another_model_of_the_same_heads_is_priced_between_the_measured_shapes(rows):
    """Qwen3-8B shares heads and hidden width with Llama-3.1-8B and has other feed-forward and vocabulary widths."""
    profile = own_profile(rows, QWEN)
    error = errors(profile, QWEN, LAUNCH_US * QWEN.layers / LLAMA.layers)
    assert np.abs(error).mean() < 0.015
    basis = {o["name"]: (o["coverage"], o["basis"]) for o in profile.points["rests_on"]}
    assert basis["qkv"] == ("measured", "own/gemm measured shape")
    assert basis["gate_up"] == ("interpolated", "own/gemm between measured shapes")
    assert basis["lm_head"][0] == "extrapolated"
    stated = next(o["error"] for o in profile.points["rests_on"] if o["name"] == "gate_up")
    assert 0 < stated < 0.05, "held out of the folder's own shapes"


def test_two_gpus_rest_on_the_measured_all_reduce(rows):
    profile = own_profile(rows, LLAMA, tp=2)
    found = next(o for o in profile.points["dense"] if o["name"] == "all_reduce")
    at = found["tokens"].index(1024)
    moved = 2e-6 * 2 * 1024 * LLAMA.hidden / 2
    assert found["us"][at] == pytest.approx(TRUTH["all_reduce"].us({"mb": moved}), rel=0.02)
    assert {o["coverage"] for o in profile.points["rests_on"]} == {"measured"}


def test_what_is_written_is_what_is_read(rows, folder, tmp_path):
    write_rows(rows, tmp_path / "again")
    assert read_rows(tmp_path / "again").content_hash == rows.content_hash
    assert (tmp_path / "again" / "gemm.csv").read_bytes() == (folder / "gemm.csv").read_bytes()
    header = json.loads((folder / "operators.json").read_text())
    assert header["operators"]["gemm"]["kernels"] == "formulas of calibrate/fake.py"
    assert header["operators"]["gemm"]["date"][:2] == "20"
    assert {"gemm", "prefill", "decode", "mixed", "elementwise", "all_reduce", "host"} == set(header["operators"])
    assert "NOT A MEASUREMENT" in "\n".join(rows.lines())
    assert own_profile(rows, LLAMA).label.startswith("NOT A MEASUREMENT OF A GPU")


def test_a_price_adds_no_time_that_was_not_measured(rows):
    """Between two rows of a shape a price is their straight line, and a row is kept though no table has its tokens."""
    odd = {"gemm_dtype": "bfloat16", "n": 4096, "k": 14336, "m": 37, "us": 90.0}
    gemm = replace(rows.operators["gemm"], rows=(*rows.operators["gemm"].rows, odd))
    price = Own(replace(rows, operators={**rows.operators, "gemm": gemm}), Pricer(load("h200")))
    found = sorted((r["m"], r["us"]) for r in gemm.rows if (r["n"], r["k"]) == (4096, 14336))
    x, us = (np.array(v, dtype=float) for v in zip(*found, strict=True))
    priced = price.gemm("bf16", 4096, 14336)
    inside = (price.tokens >= x[0]) & (price.tokens <= x[-1])
    straight = np.maximum.accumulate(us) * 1e-6
    assert priced.seconds[inside] == pytest.approx(np.interp(price.tokens[inside], x, straight), rel=0.02)
    assert priced.seconds[price.tokens == 37].tolist() == pytest.approx([90e-6])
    assert priced.reach == x[-1]


def test_what_moves_bytes_takes_another_widths_time_at_equal_bytes(rows):
    price = Own(rows, None)
    for width in (7168, 28672):
        priced = price.measured("silu_mul", 6.0 * width)
        at = price.tokens == 1024
        assert priced.seconds[at] * 1e6 == pytest.approx(TRUTH["silu_mul"].us({"mb": 6e-6 * width * 1024}), rel=0.03)


# -- over the atlas


def subset(rows, *operators, gpu="h200"):
    return replace(rows, gpu=gpu, host={}, form={}, operators={k: rows.operators[k] for k in operators})


def test_rows_win_where_they_cover_and_the_rest_is_the_atlas(rows):
    atlas = resolve_profile("atlas:h200", LLAMA)
    gemm = own_profile(subset(rows, "gemm"), LLAMA)
    basis = {o["name"]: o["basis"].split("/")[0] for o in gemm.points["rests_on"]}
    assert {name for name, source in basis.items() if source == "own"} == {
        *("qkv", "attention_out", "gate_up", "down", "lm_head")
    }
    assert (basis["full_prefill"], basis["full_decode"]) == ("vllm", "vllm")
    assert gemm.points["decode_attention"] == atlas.points["decode_attention"]
    assert gemm.points["prefill_attention"] == atlas.points["prefill_attention"]
    attention = own_profile(subset(rows, "decode"), LLAMA)
    theirs = {o["name"]: o for o in atlas.points["dense"]}
    for o in attention.points["dense"]:
        assert o["us"] == pytest.approx(theirs[o["name"]]["us"]), o["name"]
    assert attention.points["decode_attention"] != atlas.points["decode_attention"]
    assert "5 of" in gemm.label
    assert "the others rest on atlas:h200" in gemm.label


def test_a_shape_outside_the_rows_is_the_atlas_to_the_last_digit(rows):
    wider = resolve_model("qwen2.5-14b")  # 5,120 wide, 40 heads: neither among the rows' shapes
    over, atlas = own_profile(subset(rows, "gemm", "prefill", "decode"), wider), resolve_profile("atlas:h200", wider)
    assert not [o for o in over.points["rests_on"] if o["basis"].startswith("own")]
    a, b = step_time(over, wider), step_time(atlas, wider)
    for shape in shapes(40):
        assert a.step(*shape)[0] == pytest.approx(b.step(*shape)[0], rel=1e-6)


def test_fp8_rows_are_for_fp8_models_alone(tmp_path):
    measure(FakeDevice(), LLAMA, GPU, tmp_path / "p.jsonl", dtype="fp8", groups=["gemm"])
    rows = replace(as_rows(from_points(tmp_path / "p.jsonl"), "mine", None), gpu="h200")
    kinds = {(r["gemm_dtype"], r["n"]) for r in rows.operators["gemm"].rows}
    assert ("fp8", 6144) in kinds
    assert {kind for kind, n in kinds if n == LLAMA.vocab} == {"bfloat16"}, "the LM head stays in 16 bits"
    for dtype, source in (("fp8", "own"), ("bf16", "vllm")):
        basis = {o["name"]: o["basis"].split("/")[0] for o in own_profile(rows, LLAMA, dtype).points["rests_on"]}
        assert (basis["qkv"], basis["lm_head"]) == (source, "own")


def test_a_board_of_another_make_does_not_lie_over_the_atlas():
    assert gpu_of("NVIDIA H200") == "h200"
    assert gpu_of("NVIDIA H100 80GB HBM3") == "h100"
    assert gpu_of("NVIDIA GB200") == "gb200"
    assert gpu_of("NVIDIA RTX PRO 6000 Blackwell Server Edition") == "rtx-pro-6000"
    for other in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA GeForce RTX 4090", "fake device", "NVIDIA L4"):
        assert gpu_of(other) is None


def test_an_operator_that_is_nowhere_is_named(rows):
    for model, tp, lacking in (
        (MOE, 1, "needs moe, which these rows lack"),
        (resolve_model("deepseek-v3"), 1, r"needs latent attention \(MLA\)"),
        (resolve_model("qwen3.5-27b"), 1, "needs linear attention"),
        (LLAMA, 4, "needs all_reduce of 4 GPUs"),
    ):
        with pytest.raises(InputError, match=f"{lacking}.*has no atlas that it could rest on"):
            own_profile(rows, model, tp=tp)
    for operator, words in (("gemm", "in bf16"), ("prefill", "over a bf16 cache"), ("decode", "over a bf16 cache")):
        without = {k: v for k, v in rows.operators.items() if k != operator}
        with pytest.raises(InputError, match=f"the model needs {operator} {words}, which these rows lack"):
            own_profile(replace(rows, operators=without), LLAMA)


def test_rows_in_32_bits_are_no_times_in_16(tmp_path):
    measure(FakeDevice(), LLAMA, GPU, tmp_path / "p.jsonl", dtype="fp32")
    rows = as_rows(from_points(tmp_path / "p.jsonl"), "mine", None)
    with pytest.raises(InputError, match="needs gemm in bf16, which these rows lack"):
        own_profile(rows, LLAMA)
    attention = replace(rows, operators={k: rows.operators[k] for k in ("prefill", "decode")}, gpu="h200")
    assert "0 of" in own_profile(attention, LLAMA).label


# -- bad folders


def test_a_folder_that_is_not_understood_is_one_line(folder, tmp_path, rows):
    def broken(file, text, problem):
        write_rows(rows, tmp_path / "mine")
        path = tmp_path / "mine" / file
        path.write_text(text(path.read_text()))
        with pytest.raises(InputError, match=problem):
            resolve_profile(str(tmp_path / "mine"), LLAMA)

    broken(
        "gemm.csv",
        lambda t: t.replace("gemm_dtype,n,k,m,us", "gemm_dtype,n,k,m,ms"),
        r"gemm.csv, row 1: no column 'us'",
    )
    broken("gemm.csv", lambda t: t.replace(",8,", ",-8,", 1), r"gemm.csv, row \d+: m = '-8', expected a whole number")
    broken(
        "decode.csv",
        lambda t: t.rsplit(",", 1)[0] + ",0\n",
        r"decode.csv, row \d+: us = '0', expected microseconds above",
    )
    broken("operators.json", lambda t: t.replace('"schema": 1', '"schema": 9'), "field schema is 9; expected 1")
    broken("operators.json", lambda t: t.replace('"gemm"', '"gem"'), "operator 'gem': expected one of gemm, prefill")
    broken("operators.json", lambda t: t[:40], "not the header of a folder of operator rows")
    (tmp_path / "mine" / "prefill.csv").unlink()
    write_rows(rows, tmp_path / "mine")
    (tmp_path / "mine" / "prefill.csv").unlink()
    with pytest.raises(InputError, match=r"prefill.csv: cannot read"):
        read_rows(tmp_path / "mine")


def test_a_shape_measured_twice_is_its_median():
    row = {"gemm_dtype": "bfloat16", "n": 8, "k": 8, "m": 1}
    assert once("gemm", [{**row, "us": us} for us in (3.0, 1.0, 2.0)]) == ({**row, "us": 2.0},)


# -- the command


def test_the_plan_holds_only_what_is_asked_for():
    everything = {p.op for p in plan(LLAMA, GPU)}
    for group, ops in GROUPS.items():
        some = {p.op for p in plan(LLAMA, GPU, groups=[group])} - {"copy", "matmul", "node_gap"}
        assert some == everything & set(ops), group
    assert {p.shape["gpus"] for p in plan(LLAMA, GPU, gpus=4) if p.op == "all_reduce"} == {2, 4}


def test_the_command_writes_a_folder_and_a_scenario_of_another_model_uses_it(tmp_path, capsys):
    out = tmp_path / "mine"
    assert main(["calibrate", "--model", "llama-3.1-8b", "--device", "fake", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "NOT A MEASUREMENT OF A GPU: the times of a fake device are known formulas" in printed
    assert f"hardware.profile={out}" in printed
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        "[workload]\nrate = 5\nduration_s = 4\n[[workload.class]]\nname = 'a'\nshare = 1\noutput = {value = 8}\n"
        "layers = [{name = 'x', scope = 'dynamic', tokens = {value = 200}}]\n[engine]\nmax_model_len = 4096\n"
    )
    assert (
        main(["run", str(scenario), "--json", "--set", f"hardware.profile={out}", "--set", "model.name=qwen3-8b"]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["completed"] == document["arrived"] > 0
    assert document["profile_provenance"]["content_hash"] == resolve_profile(str(out), QWEN).content_hash
    assert main(["profile", "show", str(out), "--model", "qwen3-8b"]) == 0
    shown = capsys.readouterr().out
    assert "own/gemm between measured shapes" in shown
    assert "rests on" in shown
    again = tmp_path / "again"
    assert main(["calibrate", "--points", str(out / "points.jsonl"), "--out", str(again)]) == 0
    assert read_rows(again).content_hash == read_rows(out).content_hash


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--operators", "gemm,foo"], "'foo': expected gemm, attention, elementwise, moe, all_reduce, host"),
        (["--operators", "all_reduce"], "all_reduce needs two GPUs; this machine has 1"),
        (["--attention", "torch"], "--attention torch: a fake device computes nothing"),
    ],
)
def test_what_cannot_be_measured_is_one_line(tmp_path, capsys, options, problem):
    assert main(["calibrate", "--device", "fake", *options, "--out", str(tmp_path / "x")]) == 2
    assert problem in capsys.readouterr().err


def test_fp8_points_are_no_profile_of_one_model(tmp_path, capsys):
    measure(FakeDevice(), LLAMA, GPU, tmp_path / "p.jsonl", dtype="fp8")
    assert main(["calibrate", "--points", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "x.json")]) == 2
    assert "field dtype is 'fp8': expected a folder's name" in capsys.readouterr().err


def test_a_profile_of_one_model_takes_no_part_of_the_operators(tmp_path, capsys):
    for options in (["--operators", "gemm"], ["--dtype", "fp8"]):
        assert main(["calibrate", "--device", "fake", *options, "--out", str(tmp_path / "x.json")]) == 2
        assert "expected a folder's name" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# -- LLMServingSim's folders


def published(where, model, moe=True):
    """Tables as they are published: meta.yaml above tp1, and moe.csv beside dense.csv; every layer takes 10 us + 10 ns
    a token, an expert 5 us."""
    tables = where / "bf16" / "tp1"
    tables.mkdir(parents=True)
    (where / "bf16" / "meta.yaml").write_text(
        f"vllm_version: 0.19.0\ngpu: NVIDIA RTX PRO 6000 Blackwell Server Edition\nmodel: {model}\nvariant: bf16\n"
        "tp_degrees: [1, 2]\nengine_effective:\n  tensor_parallel_size: 1\n"
    )
    layers = ["embedding", "layernorm", "qkv_proj", "qk_norm", "rotary_emb", "o_proj", "final_layernorm"]
    layers += [] if moe else ["gate_up_proj", "act_fn", "down_proj"]
    tokens = (1, 64, 1024)
    write(
        tables / "dense.csv", [{"layer": name, "tokens": n, "time_us": 10 + n / 100} for name in layers for n in tokens]
    )
    sampled = [{"layer": name, "sequences": n, "time_us": 20.0} for name in ("lm_head", "sampler") for n in (1, 64)]
    write(tables / "per_sequence.csv", sampled)
    axes = [(p, c, d, k) for p in (0, 16, 512) for c in (0, 256) for d in (0, 1, 32) for k in (0, 64, 2048)]
    attention = [
        dict(
            zip(
                ("layer", "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "decode_q_len"),
                ("attention", *a, 1),
                strict=True,
            )
        )
        | {"time_us": 5 + a[0] * (a[1] + a[0] / 2) / 1e3 + a[2] * a[3] / 1e3}
        for a in axes
        if (a[0] or a[2]) and (a[0] or not a[1]) and bool(a[2]) == bool(a[3])
    ]
    write(tables / "attention.csv", attention)
    experts = [
        {"ep": ep, "tokens": n, "activated_experts": active, "time_us": active * 5.0}
        for ep in (1, 2)
        for n in tokens
        for active in (4, 16, 64, 128)
    ]
    if moe:
        write(tables / "moe.csv", experts)
    return tables


def write(path, rows):
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_a_mixture_is_read_with_its_experts_as_published(tmp_path):
    tables = published(tmp_path, "Qwen/Qwen3-30B-A3B-Instruct-2507")
    for where in (tables, tables.parent):
        profile = resolve_profile(str(where), MOE)
        assert (profile.model, profile.tensor_parallel) == ("qwen3-30b-a3b", 1)
        moe = next(o for o in profile.points["dense"] if o["name"] == "moe")
        assert moe["repeat"] == MOE.layers
        touched = 128 * (1 - (1 - 8 / 128) ** 64)
        assert moe["us"][moe["tokens"].index(64)] == pytest.approx(5 * touched, rel=1e-6)
    experts_s = 48 * 5e-6 * 128 * (1 - (1 - 8 / 128) ** 64)
    others_s = (48 * (10 + 0.64) * 6 + 2 * (10 + 0.64) + 2 * 20 + 48 * (5 + 64 * 1e-3 * 64)) * 1e-6
    seconds = step_time(profile, MOE).step([], 64, 64 * 64, 64, 64)[0]
    assert seconds == pytest.approx(experts_s + others_s, rel=0.01)


def test_a_mixture_without_its_experts_is_refused(tmp_path):
    """Read so, its steps were eleven times too fast, without a word."""
    tables = published(tmp_path, "Qwen/Qwen3-30B-A3B-Instruct-2507")
    (tables / "moe.csv").unlink()
    for tp in (1, 2):
        with pytest.raises(
            InputError, match=r"tp1: qwen3-30b-a3b needs the experts \(moe.csv\); a step without is far too"
        ):
            resolve_profile(str(tables.parent), MOE, tp=tp)


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        ("dense.csv", ("gate_up_proj", "mystery"), "needs gate_up_proj in dense.csv"),
        ("dense.csv", ("act_fn", "mystery"), "layer 'mystery' is not understood"),
        ("per_sequence.csv", ("lm_head", "head"), "needs lm_head in per_sequence.csv"),
        ("attention.csv", ("kv_prefill", "prefill_key"), "no column 'kv_prefill' among"),
        ("attention.csv", ("\nattention,16", "\nindexer,16"), "layer 'indexer' is not understood"),
        ("../meta.yaml", ("variant: bf16", "variant: mine"), "field variant is 'mine'; expected bf16, fp16 or fp8"),
        ("../meta.yaml", ("Llama-3.1-8B", "Llama-9"), "field model is 'meta-llama/Llama-9'"),
    ],
)
def test_tables_that_are_not_understood_are_one_line(tmp_path, file, change, problem):
    tables = published(tmp_path, "meta-llama/Llama-3.1-8B", moe=False)
    path = tables / file
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match=problem):
        resolve_profile(str(tables), LLAMA)


def test_tables_of_one_model_price_another_and_another_width(tmp_path):
    tables = published(tmp_path, "meta-llama/Llama-3.1-8B", moe=False)
    assert tables_of(tables.parent) == [(1, tables)]
    other = resolve_profile(str(tables), QWEN)
    basis = {o["name"]: o["basis"].split("/")[0] for o in other.points["rests_on"]}
    assert (basis["qkv"], basis["full_decode"], basis["lm_head"]) == ("own", "own", "vllm")
    assert other.points["host_inside"] == resolve_profile(str(tables), LLAMA).points["host_inside"]
    wide = resolve_profile(str(tables.parent), LLAMA, tp=2)
    assert next(o for o in wide.points["rests_on"] if o["name"] == "all_reduce")["basis"].startswith("vllm/")


def test_all_reduces_of_a_card_lie_above_its_models(tmp_path):
    tables = published(tmp_path / "RTX4090" / "meta-llama" / "Llama-3.1-8B", "meta-llama/Llama-3.1-8B", moe=False)
    meta = tables.parent / "meta.yaml"
    meta.write_text(meta.read_text().replace("NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA GeForce RTX 4090"))
    with pytest.raises(InputError, match="needs all_reduce of 2 GPUs"):
        resolve_profile(str(tables), LLAMA, tp=2)
    hardware = tmp_path / "RTX4090" / "hardware.yaml"
    samples = [("all_gather", 8192, 5.0), ("all_reduce", 8192, 12.5), ("all_reduce", 2**23, 250.0)]
    text = "measured:\n  interconnect:\n    npus: 2\n    samples:\n" + "".join(
        f"    - collective: {name}\n      bytes: {size}\n      us: {us}\n      us_graphed: {us}\n"
        for name, size, us in samples
    )
    hardware.write_text(text)
    found = next(o for o in resolve_profile(str(tables), LLAMA, tp=2).points["dense"] if o["name"] == "all_reduce")
    assert [found["us"][found["tokens"].index(n)] for n in (1, 1024)] == pytest.approx([12.5, 250.0])
    for change, problem in ((("npus: 2", "npus: 1"), "npus is 1"), (("us: 12.5", "us: fast"), "us = 'fast', expected")):
        hardware.write_text(text.replace(*change))
        with pytest.raises(InputError, match=problem):
            resolve_profile(str(tables), LLAMA, tp=2)


def test_rows_of_a_folder_price_its_own_model_as_its_tables_do(data_dir):
    for name, most in (("rtx4090_llama-3.1-8b", 0.01), ("rtxpro6000_llama-3.1-8b", 0.02)):
        path = data_dir / "measured" / name / "kernels"
        direct = resolve_profile(str(path), LLAMA)
        rows = replace(rows_from_folder(path), host={"step_us": 0.0, "sequence_us": 0.0, "launch_us_per_layer": 0.0})
        ours, theirs = step_time(own_profile(rows, LLAMA), LLAMA), step_time(direct, LLAMA)
        rng, off = np.random.default_rng(1), []
        for _ in range(60):
            contexts = rng.lognormal(6.5, 1, int(rng.integers(1, 120))).astype(int) + 16
            chunks = [(int(rng.integers(20, 900)), int(rng.integers(0, 4000))) for _ in range(int(rng.integers(0, 3)))]
            step = (chunks, len(contexts), int(contexts.sum()), int(contexts.max()), len(contexts) + len(chunks))
            off.append(ours.step(*step)[0] / theirs.step(*step)[0] - 1)
        assert np.abs(off).mean() < most


def test_experts_lie_between_the_measured_numbers_of_activated_ones(tmp_path):
    path = tmp_path / "moe.csv"
    write(path, [{"ep": 1, "tokens": 16, "activated_experts": a, "time_us": t} for a, t in ((8, 50.0), (128, 850.0))])
    reached = 128 * (1 - (1 - 8 / 128) ** 16)
    assert expert_times(path, 128, 8)[1][16] == pytest.approx(50 + 800 * (reached - 8) / 120)
    write(path, [{"ep": 2, "tokens": 16, "activated_experts": 8, "time_us": 50.0}])
    with pytest.raises(InputError, match="no row with ep = 1"):
        expert_times(path, 128, 8)


# -- beyond the points, and differences


def test_an_operator_goes_on_as_over_its_last_half_or_quarter():
    """Sixteen tokens apart the last two points are noise; so much so that a longer step could take no longer. Where the
    last quarter is steeper than the last half, that goes on."""
    tokens = [*range(16, 2049, 16)]
    us = [100 + n - (50 if n == 2048 else 0) for n in tokens]
    assert last_slope(tokens, us) == pytest.approx(1 - 50 / 1024)
    assert along(np.array(tokens, float), np.array(us, float), np.array([4096.0])) == pytest.approx(
        us[-1] + 2048 * (1 - 50 / 1024)
    )
    assert last_slope([1, 2, 4, 8], [1, 2, 4, 8]) == 1
    assert last_slope([4, 6, 8], [4, 5, 7]) == 1
    assert last_slope([5], [7.0]) == last_slope([1, 2], [7.0, 3.0]) == 0


def test_a_prefill_of_twice_the_longest_table_agrees_with_the_atlas(data_dir):
    """Of the PRO 6000's tables it was 38 % short of the same GPU's atlas, as the last two points happened to lie."""
    folder = resolve_profile(str(data_dir / "measured/rtxpro6000_llama-3.1-8b/kernels"), LLAMA)
    atlas = resolve_profile("atlas:rtx-pro-6000", LLAMA)
    step = ([(4096, 0)], 0, 0, 0, 1)
    (seconds, cover), (other, _) = (step_time(p, LLAMA).step(*step) for p in (folder, atlas))
    assert cover == EXTRAPOLATED
    assert seconds == pytest.approx(other, rel=0.05)


@pytest.mark.parametrize(
    "pair", [("mine", "atlas:h200"), ("atlas:h200", "h200-llama-3.1-8b-aic"), ("roofline:h200", "mine")]
)
def test_any_two_profiles_are_compared_step_by_step(folder, capsys, pair):
    a, b = (str(folder) if name == "mine" else name for name in pair)
    assert main(["profile", "diff", a, b, "--model", "llama-3.1-8b", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["steps"]) == 7
    for step in document["steps"]:
        for side in ("a_s", "b_s"):
            assert sum(part[side] for part in step["parts"].values()) <= step[side] * (1 + 1e-9)
    names = {o["operator"] for o in document["operators"]}
    assert ("qkv" in names) == (not a.startswith("roofline"))
    one, two = (step_time(resolve_profile(spec, LLAMA), LLAMA) for spec in (a, b))
    shape = ([], 32, 65536, 2048, 32)
    decode = next(s for s in document["steps"] if s["step"] == "decode 32 x 2048")
    assert decode["change"] == pytest.approx(two.step(*shape)[0] / one.step(*shape)[0] - 1)


def test_a_difference_names_the_operator_that_a_row_moved(rows, tmp_path, capsys):
    found = rows.operators["gemm"]
    slower = tuple({**r, "us": r["us"] * (1.5 if r["n"] == 28672 else 1.0)} for r in found.rows)
    for name, one in (("a", found), ("b", OperatorRows(slower, found.about))):
        write_rows(replace(rows, operators={**rows.operators, "gemm": one}), tmp_path / name)
    assert main(["profile", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    first, second, *_ = json.loads(capsys.readouterr().out)["operators"]
    assert (first["operator"], first["median"]) == ("gate_up", pytest.approx(0.5, rel=0.02))
    assert abs(second["median"]) < 0.01


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ("host", {"step_us": -5.0, "sequence_us": 1.0}, "0 or more"),
        ("host", {"step_us": True, "sequence_us": 1.0}, "0 or more"),
        ("host", {"step_us": float("nan"), "sequence_us": 1.0}, "0 or more"),
        ("host", {"step_us": 5.0}, "step_us, sequence_us"),
        ("host", {"x": 1}, "step_us, sequence_us"),
        ("form", {"mb_us": 1.0}, "overhead_us"),
        ("form", {"skew": -5}, "overhead_us"),
    ],
)
def test_times_of_a_header_that_are_none_are_one_line(tmp_path, part, value, expected):
    import json

    header = {"schema": 1, "device": {"name": "X", "memory_gib": 80}, "gpu": None, "rehearsal": "", "notes": []}
    header |= {"host": {}, "form": {}, "operators": {"gemm": {}}, part: value}
    (tmp_path / "operators.json").write_text(json.dumps(header))
    (tmp_path / "gemm.csv").write_text("gemm_dtype,n,k,m,us\nbfloat16,64,64,1,2.0\n")
    with pytest.raises(InputError, match=expected):
        read_rows(tmp_path)


@pytest.mark.parametrize(
    "row", ["bfloat16,0,64,1,2.0", "bfloat16,64,64,0,2.0", "bfloat16,64,64,99999999999999999999,2"]
)
def test_a_row_of_no_shape_is_one_line(tmp_path, row):
    import json

    header = {"schema": 1, "device": {"name": "X", "memory_gib": 80}, "gpu": None, "rehearsal": "", "notes": []}
    (tmp_path / "operators.json").write_text(json.dumps(header | {"host": {}, "form": {}, "operators": {"gemm": {}}}))
    (tmp_path / "gemm.csv").write_text(f"gemm_dtype,n,k,m,us\n{row}\n")
    with pytest.raises(InputError, match=r"gemm.csv.*1 to 2\^40"):
        read_rows(tmp_path)
