"""Device profiles: the bundled ones, the file format, what fits a scenario, and refusals."""

import json
import pickle
from dataclasses import replace

import pytest

from calibrate.latency import engine_defaults, step_time
from calibrate.models import resolve_model
from calibrate.profile import BUNDLED, bundled_profiles, load_profile, save_profile
from calibrate.resolve import resolve_profile
from calibrate.sources.roofline import GPUS, roofline_profile
from calibrate.sources.tables import check_points
from workloads.errors import InputError

LLAMA = resolve_model("llama-3.1-8b")


def test_bundled_profiles_load_and_say_whose_they_are():
    names = bundled_profiles()
    assert {
        "h100-llama-3.1-8b-aic",
        "h200-llama-3.1-70b-tp4-aic",
        "a100-llama-3.1-70b-tp8-aic",
        "h200-qwen3-32b-aic",
    } <= set(names)
    for name in names:
        profile = load_profile(BUNDLED / f"{name}.json")
        assert profile.id == name
        assert "not measured by kvcast" in profile.label
        assert profile.provenance["licence"] == "Apache-2.0"
        assert check_points(profile.points, name) == []
        assert (BUNDLED / f"{name}.json").stat().st_size < 300_000
        step_time(profile, resolve_model(profile.model), profile.dtype, profile.tensor_parallel).step(
            [(100, 0)], 2, 300, 200, 3
        )
    assert "Apache License" in (BUNDLED / "NOTICE").read_text()


def test_content_hash_follows_the_points_and_survives_a_round_trip(tmp_path):
    profile = resolve_profile("h200-llama-3.1-8b-aic", LLAMA)
    path = tmp_path / "mine.json"
    save_profile(profile, path)
    assert load_profile(path) == profile
    assert resolve_profile(str(path), LLAMA).content_hash == profile.content_hash
    points = {**profile.points, "step_overhead_us": 1.0}
    assert replace(profile, points=points).content_hash != profile.content_hash
    assert replace(profile, label="other").content_hash == profile.content_hash
    assert [p.name for p in tmp_path.iterdir()] == ["mine.json"], "no temporary file left"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("schema", 9, "field schema is 9; expected 1"),
        ("kind", "magic", "field kind is 'magic'; expected one of tables, roofline"),
        ("device", {"name": "x", "memory_gib": -1}, "field device.memory_gib is -1"),
        ("device", {"name": "x", "memory_gib": float("nan")}, "holds NaN; expected finite numbers"),
        ("device", "H200", "field device.memory_gib is None"),
        ("tensor_parallel", 0, "field tensor_parallel is 0"),
        ("label", None, "field label is None; expected text"),
        ("points", {"dense": []}, "content_hash does not match the points"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path, field, value, message):
    document = json.loads((BUNDLED / "h200-llama-3.1-8b-aic.json").read_text())
    document[field] = value
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as error:
        load_profile(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_truncated_and_missing_files(tmp_path):
    path = tmp_path / "cut.json"
    path.write_text((BUNDLED / "h200-llama-3.1-8b-aic.json").read_text()[:500])
    with pytest.raises(InputError, match="not a JSON profile"):
        load_profile(path)
    with pytest.raises(InputError, match="cannot read the profile"):
        resolve_profile(str(tmp_path / "none.json"), LLAMA)


def test_unusable_points_are_named():
    points = resolve_profile("h200-llama-3.1-8b-aic", LLAMA).points
    assert check_points({**points, "dense": []}, "p") == ["p: points.dense is missing"]
    unordered = [{"name": "gemm", "repeat": 1, "tokens": [1, 1], "us": [1.0, 2.0]}]
    assert "tokens ascending" in check_points({**points, "dense": unordered}, "p")[0]
    negative = [{"name": "gemm", "repeat": 1, "tokens": [1, 2], "us": [1.0, -2.0]}]
    assert "zero or more" in check_points({**points, "dense": negative}, "p")[0]


def test_points_in_another_layout_are_one_clear_line():
    profile = resolve_profile("h200-llama-3.1-8b-aic", LLAMA)
    broken = {**profile.points, "decode_attention": {"batch": [1, 2]}}
    for kind, points in (("tables", broken), ("roofline", {"flops": 1.0})):
        with pytest.raises(InputError, match=f"field points is not in the layout of kind {kind}"):
            step_time(replace(profile, kind=kind, points=points), LLAMA)
    for us, message in (("fast", "points.prefill_attention.us: expected times"), (None, "too many holes")):
        table = {**profile.points["prefill_attention"], "us": [[us] * 11] * 17}
        with pytest.raises(InputError, match=message):
            step_time(replace(profile, points={**profile.points, "prefill_attention": table}), LLAMA)


def test_a_fine_tune_runs_on_the_profile_of_its_base_model():
    tuned = replace(LLAMA, name="my-tune", max_context=262144)
    profile = resolve_profile("h200-llama-3.1-8b-aic", tuned)
    assert step_time(profile, tuned).step([], 1, 10, 10, 1) == step_time(profile, LLAMA).step([], 1, 10, 10, 1)
    with pytest.raises(InputError, match="the scenario has wider"):
        resolve_profile("h200-llama-3.1-8b-aic", replace(LLAMA, name="wider", intermediate=20000))


def test_step_time_objects_travel_to_worker_processes():
    source = step_time(resolve_profile("h200-llama-3.1-8b-aic", LLAMA), LLAMA)
    shape = ([(100, 5)], 3, 900, 400, 4)
    assert pickle.loads(pickle.dumps(source)).step(*shape) == source.step(*shape)


def test_a_profile_of_something_else_is_refused_with_those_that_fit():
    with pytest.raises(
        InputError,
        match=r"is for llama-3.1-8b bf16 tensor_parallel 1; .*these fit: hardware.gpu = 'h200' .*a100-llama-3.1-70b-tp",
    ):
        resolve_profile("h200-llama-3.1-8b-aic", resolve_model("llama-3.1-70b"), "bf16", 4)
    with pytest.raises(InputError, match=r"hardware.gpu = 'h200' \(atlas:h200.* takes any model"):
        resolve_profile("h200-llama-3.1-8b-aic", resolve_model("mixtral-8x7b"))
    with pytest.raises(InputError, match=r"did you mean h200-llama-3.1-8b-aic\?"):
        resolve_profile("h200-llama-3.1-8b", LLAMA)
    with pytest.raises(InputError, match="made with a bf16 KV cache; the scenario's kv_dtype is fp8"):
        resolve_profile("h200-llama-3.1-8b-aic", LLAMA, kv_dtype="fp8")
    with pytest.raises(InputError, match=r"the scenario has llama-3\.1-8b fp8"):
        step_time(resolve_profile("h200-llama-3.1-8b-aic", LLAMA), LLAMA, "fp8")
    assert resolve_profile("h200-llama-3.1-8b-aic", LLAMA, "fp16").fits("llama-3.1-8b", "bf16", 1), (
        "fp16 has bf16's speed"
    )


def test_roofline_profiles_are_asked_for_by_name():
    for gpu in GPUS:
        assert resolve_profile(f"roofline:{gpu}", resolve_model("mixtral-8x7b"), "bf16", 2).kind == "roofline"
    with pytest.raises(InputError, match=r"no such GPU in the spec table; did you mean h200\?"):
        roofline_profile("h2000")
    a100 = roofline_profile("a100", "fp8")
    assert a100.points["flops"] == roofline_profile("a100").points["flops"], "no fp8 units: fp8 bytes at bf16 FLOPs"
    assert roofline_profile("h100", "mxfp4").points["flops"] == roofline_profile("h100").points["flops"]
    with pytest.raises(InputError, match="tensor_parallel is 3; expected 1, 2, 4 or 8"):
        roofline_profile("h200", tp=3)


def test_engine_defaults_follow_the_card():
    assert engine_defaults(roofline_profile("b200")) == (16384, 1024)
    assert engine_defaults(roofline_profile("mi300x")) == (16384, 1024)
    assert engine_defaults(resolve_profile("h200-llama-3.1-8b-aic", LLAMA)) == (8192, 1024)
    assert engine_defaults(resolve_profile("a100-llama-3.1-8b-aic", LLAMA)) == (2048, 256)
    assert engine_defaults(roofline_profile("l40s")) == (2048, 256)


def test_operator_tables_from_a_folder(data_dir):
    folder = data_dir / "measured/rtx4090_llama-3.1-8b/kernels"
    profile = resolve_profile(str(folder), LLAMA)
    assert profile.device == {"name": "NVIDIA GeForce RTX 4090", "memory_gib": 23.52}
    repeats = {op["name"]: op["repeat"] for op in profile.points["dense"]}
    assert (repeats["qkv_proj"], repeats["layernorm"], repeats["final_layernorm"], repeats["embedding"]) == (
        32,
        64,
        1,
        1,
    )
    assert "not measured by kvcast" in profile.label


def test_a_broken_folder_is_one_clear_line(tmp_path):
    with pytest.raises(InputError, match=r"meta.yaml: cannot read .*expected a folder of operator tables"):
        resolve_profile(str(tmp_path), LLAMA)
    (tmp_path / "meta.yaml").write_text("gpu: NVIDIA GeForce RTX 4090\nmodel: meta-llama/Llama-3.1-8B\nvariant: bf16\n")
    (tmp_path / "attention.csv").write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n16,0,0,0,nan\n")
    with pytest.raises(InputError, match=r"attention.csv, row 2: time_us = 'nan', expected a number of zero or more"):
        resolve_profile(str(tmp_path), LLAMA)
    (tmp_path / "attention.csv").write_text("prefill_chunk,kv_prefill\n")
    with pytest.raises(InputError, match=r"attention.csv, row 1: no column 'n_decode' among"):
        resolve_profile(str(tmp_path), LLAMA)
