"""The exact loop: a device with known formulas through measuring, fitting, the profile file and a simulation."""
import json

import numpy as np
import pytest

from calibrate.assemble import from_points, profile_of
from calibrate.fake import NODE_GAP_US, TRUTH, FakeDevice, FakeStepTime
from calibrate.latency import EXTRAPOLATED, step_time
from calibrate.measure import measure
from calibrate.models import resolve_model
from calibrate.plan import GPU
from calibrate.profile import load_profile, save_profile
from kvcast.cli import main
from sim.metrics import per_request
from sim.scenario import EngineParams
from sim.simulate import run
from tests.worlds import random_workload

LLAMA = resolve_model("llama-3.1-8b")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fake")
    measure(FakeDevice(noise=0.01, seed=3), LLAMA, GPU, folder / "points.jsonl", dtype="bf16")
    calibration = from_points(folder / "points.jsonl")
    save_profile(profile_of(calibration, LLAMA, 1, "fake"), folder / "fake.json")
    return calibration, load_profile(folder / "fake.json")


def test_every_parameter_is_found_within_two_percent(calibrated):
    calibration, _ = calibrated
    checked = 0
    for fitted in calibration.fitted:
        if fitted.op == "activation":
            continue
        truth, found = TRUTH[fitted.op], fitted.form
        assert found.overhead_us == pytest.approx(truth.overhead_us, rel=0.02), fitted.name
        for term, value in {**truth.compute, **truth.memory}.items():
            assert {**found.compute, **found.memory}[term] == pytest.approx(value, rel=0.02), (fitted.name, term)
            checked += 1
        assert fitted.held_out < 0.01, "noise of 1 %, medians of seven"
    assert checked >= 15


def test_simulated_latencies_are_within_one_percent_of_the_truth(calibrated):
    _, profile = calibrated
    workload = random_workload(5, n=300, longest=900, rate=20.0)  # near saturation a queue multiplies any error of a step
    params = EngineParams(kv_blocks=6000, max_num_batched_tokens=2048)
    ours, truth = (per_request(run(workload, params, s), workload) for s in (step_time(profile, LLAMA), FakeStepTime(LLAMA)))
    for key in ("ttft_s", "tpot_s"):
        for statistic in (np.nanmean, np.nanmedian, lambda v: np.nanpercentile(v, 99)):
            assert statistic(ours[key]) == pytest.approx(statistic(truth[key]), rel=0.01), key


def test_single_steps_inside_the_grid_are_close_and_say_what_they_rest_on(calibrated):
    _, profile = calibrated
    ours, truth = step_time(profile, LLAMA), FakeStepTime(LLAMA)
    rng = np.random.default_rng(1)
    for _ in range(60):
        contexts = rng.lognormal(7.5, 1, int(rng.integers(1, 200))).astype(int) + 16
        chunks = [(int(rng.integers(20, 2000)), int(rng.integers(0, 20000))) for _ in range(int(rng.integers(0, 3)))]
        shape = (chunks, len(contexts), int(contexts.sum()), int(contexts.max()), len(contexts) + len(chunks))
        assert ours.step(*shape)[0] == pytest.approx(truth.step(*shape)[0], rel=0.03)


def test_beyond_the_grid_the_physical_form_goes_on_and_is_marked(calibrated):
    _, profile = calibrated
    ours, truth = step_time(profile, LLAMA), FakeStepTime(LLAMA)
    for shape in (([(16384, 600_000)], 0, 0, 0, 1), ([(60_000, 0)], 0, 0, 0, 1), ([], 900, 900 * 4000, 4000, 900), ([], 2, 1_500_000, 900_000, 2)):
        seconds, coverage = ours.step(*shape)
        assert coverage == EXTRAPOLATED, shape
        assert seconds == pytest.approx(truth.step(*shape)[0], rel=0.05), shape
    assert ours.step([], 100, 100 * 3000, 3000, 100)[1] != EXTRAPOLATED


def test_stretches_equal_single_steps_to_the_last_bit(calibrated):
    _, profile = calibrated
    ours = step_time(profile, LLAMA)
    rng = np.random.default_rng(2)
    for _ in range(40):
        contexts = rng.lognormal(7, 1.5, int(rng.integers(1, 600))).astype(int) + 1
        n, total, longest, k = len(contexts), int(contexts.sum()), int(contexts.max()), int(rng.integers(1, 40))
        seconds, covers = ours.decode_stretch(n, total, longest, k)
        single = [ours.step([], n, total + i * n, longest + i, n) for i in range(k)]
        assert seconds.tolist() == [s for s, _ in single]
        assert covers.tolist() == [c for _, c in single]


def test_a_step_time_never_falls_when_work_grows(calibrated):
    _, profile = calibrated
    ours = step_time(profile, LLAMA)
    totals = [ours.step([], 64, 64 * c, c, 64)[0] for c in range(300, 200_000, 5000)]
    assert totals == sorted(totals)
    longest = [ours.step([], 64, 64 * 4000, c, 64)[0] for c in range(4000, 100_000, 4000)]
    assert longest == sorted(longest), "one longer sequence at the same sum"


def test_the_profile_keeps_the_points_the_forms_and_where_they_come_from(calibrated):
    calibration, profile = calibrated
    assert len(profile.points["raw"]) == len(calibration.rows) > 400
    assert {f["op"] for f in profile.points["forms"]} >= {"gemm", "prefill", "decode", "rms_norm"}
    assert profile.provenance["source"] == "kvcast calibrate"
    assert calibration.single("node_gap") == pytest.approx(NODE_GAP_US, rel=0.02)
    assert profile.points["memory"]["kv_blocks"] == 40_000


def test_the_command_calibrates_and_a_scenario_uses_the_profile(tmp_path, capsys):
    out = tmp_path / "fake.json"
    assert main(["calibrate", "--model", "tiny", "--device", "fake", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "held out" in printed
    assert f"wrote {out}" in printed
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        "[workload]\nrate = 5\nduration_s = 4\n[[workload.class]]\nname = 'a'\nshare = 1\noutput = {value = 8}\n"
        "layers = [{name = 'x', scope = 'dynamic', tokens = {value = 200}}]\n[engine]\nmax_model_len = 4096\n"
    )
    assert main(["run", str(scenario), "--json", "--set", f"hardware.profile={out}", "--set", "model.name=tiny"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["completed"] == document["arrived"] > 0
    assert document["profile_provenance"]["content_hash"] == load_profile(out).content_hash


def test_another_model_reuses_shapes_and_names_the_interpolated_ones(tmp_path, capsys):
    out = tmp_path / "llama.json"
    main(["calibrate", "--device", "fake", "--model", "llama-3.1-8b", "--out", str(out)])
    capsys.readouterr()
    assert main(["calibrate", "--points", str(out.with_suffix(".points.jsonl")), "--model", "qwen3-8b", "--out", str(tmp_path / "qwen.json")]) == 0
    printed = capsys.readouterr().out
    assert "gate_up: this shape was not measured; interpolated from other shapes of gemm" in printed
    assert "qk_norm" in printed
    assert "\nattention_out:" not in printed, "4096 x 4096 was measured for llama"
