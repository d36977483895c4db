"""The error of step times, and runs at scaled step times."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import numpy as np
import pytest

from calibrate.assemble import from_points, profile_of
from calibrate.fake import FakeDevice, FakeStepTime
from calibrate.gpu.measure import measure
from calibrate.gpu.points import GPU
from calibrate.latency import load_step_time, step_time
from calibrate.models import resolve_model
from calibrate.profile import BUNDLED, bundled_profiles, load_profile
from calibrate.resolve import resolve_profile
from calibrate.scaled import Scaled
from kvcast import api
from kvcast.config import scenario_from_doc
from kvcast.planner.trials import Trial, Trials
from kvcast.store.simulations import Lab, steps_times
from kvcast.trust import step_fit
from kvcast.trust.step_error import step_error
from kvcast.validation import roofline
from sim.measure.metrics import per_request
from sim.scenario import EngineParams
from sim.simulate import run
from tests.fuzz import unequal
from tests.worlds import LinearSteps, UnitSteps, plain, random_workload

LLAMA = resolve_model("llama-3.1-8b")

# -- scaled steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.045, 0.957, 1.3])
@pytest.mark.parametrize(
    "params",
    [
        EngineParams(kv_blocks=40, block_size=4, max_num_batched_tokens=24),
        EngineParams(kv_blocks=60, block_size=4, async_scheduling=True),
        EngineParams(kv_blocks=260, block_size=1, semantics="sglang", chunked_prefill_size=32),
    ],
    ids=["preempting", "asynchronous", "sglang"],
)
def test_stepping_and_fast_forward_are_the_same_recording(factor, params):
    for base in (LinearSteps(), load_step_time("h200-llama-3.1-8b-aic"), load_step_time("roofline:h100")):
        workload = random_workload(3, n=60, closed=True)
        steps = Scaled(base, factor)
        fast, slow = (run(workload, params, steps, fast_forward=ahead) for ahead in (True, False))
        assert next(unequal(fast, slow), "") == ""
        assert np.isfinite(fast.finish_s).any()


def test_every_step_takes_factor_times_as_long_and_is_as_well_covered():
    base = load_step_time("h200-llama-3.1-8b-aic")
    slower, rng = Scaled(base, 1.045), random.Random(0)
    for _ in range(100):
        chunks = [(rng.randint(1, 4000), rng.randint(0, 8000)) for _ in range(rng.randint(0, 3))]
        n = rng.randint(1, 200)
        longest = rng.randint(10, 90_000)
        total = longest + sum(rng.randint(1, longest) for _ in range(n - 1))
        seconds, covered = base.step(chunks, n, total, longest, n)
        assert slower.step(chunks, n, total, longest, n) == (seconds * 1.045, covered)
        times, covers = slower.decode_stretch(n, total, longest, 7)
        stepped = [slower.step([], n, total + i * n, longest + i, n) for i in range(7)]
        assert list(zip(times.tolist(), covers.tolist(), strict=True)) == stepped


def test_alone_a_request_takes_factor_times_as_long_and_in_a_queue_more():
    params = EngineParams(kv_blocks=1000, max_num_seqs=1, caching=False)

    def ttft(arrivals, steps):
        workload = plain(arrivals, [100] * len(arrivals), [10] * len(arrivals))
        return per_request(run(workload, params, steps), workload)["ttft_s"]

    one, longer = UnitSteps(), Scaled(UnitSteps(), 1.25)
    assert ttft([0.0], longer) == 1.25 * ttft([0.0], one)
    queue = [10.0 * i for i in range(50)]  # ten steps each, one every ten seconds: exactly what it can do
    assert ttft(queue, one).tolist() == [1.0] * 50
    assert ttft(queue, longer)[-1] == pytest.approx(1.25 + 49 * 2.5)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_no_other_factor(factor):
    with pytest.raises(ValueError, match="above 0"):
        Scaled(UnitSteps(), factor)


def test_a_trial_at_scaled_step_times(tmp_path):
    mix = {
        "requests": 150,
        "class": [
            {"name": "a", "rate": 4.0, "layers": [{"name": "q", "tokens": {"value": 3000}}], "output": {"value": 100}}
        ],
    }
    asked = scenario_from_doc(
        {
            "workload": mix,
            "run": {"warmup_s": 0.0},
            "hardware": {"profile": "l40s-llama-3.1-8b-aic"},
            "slo": {"ttft_s": 2.0, "attainment": 0.9},
        }
    )
    share = step_error(api.resolve(asked).profile).share
    with Trials(Lab(tmp_path), seeds=[0], confidence=0.95) as trials:
        plain_, slower, faster = trials.judge(
            [
                Trial(asked, full=True),
                *(Trial(asked, steps_times(factor), full=True) for factor in (1 + share, 1 - share)),
            ]
        )
    assert steps_times(1.045) == "steps x 1.045"
    busy = {
        name: one.summaries[0]["gpu_busy_s"]
        for name, one in (("plain", plain_), ("slower", slower), ("faster", faster))
    }
    assert busy["faster"] < busy["plain"] < busy["slower"]
    assert faster.ttft_ms["p99"] < plain_.ttft_ms["p99"] < slower.ttft_ms["p99"]
    assert slower.ttft_ms["p99"] / plain_.ttft_ms["p99"] > 1 + 2 * share, "near saturation a step's error is multiplied"
    again = api.run(api.at_step_times(api.prepare(asked), float(f"{1 + share:g}"))).report.summary
    assert again["p99_ttft_ms"] == pytest.approx(slower.ttft_ms["p99"], rel=1e-9)
    assert slower.runs[0] != plain_.runs[0]


# -- the share ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", bundled_profiles())
def test_a_bundled_profile_errs_as_its_own_points_say(name):
    profile = load_profile(BUNDLED / f"{name}.json")
    found = step_error(profile)
    errors = {
        kind: [abs(step.error) for step in step_fit.left_out(profile) if step.kind == kind]
        for kind in (step_fit.PREFILL, step_fit.DECODE)
    }
    assert found.share == pytest.approx(max(np.mean(values) for values in errors.values()))
    assert 0.013 < found.share < 0.062, "the range in docs/profiles.md"
    assert (
        f"decode {100 * np.mean(errors['decode']):.1f} % off on average ({len(errors['decode'])} steps)" in found.source
    )


def test_a_roofline_errs_by_what_it_is_held_to():
    found = step_error(resolve_profile("roofline:h100", LLAMA))
    assert found.share == roofline.LIMIT == 0.30
    assert "nothing was measured" in found.source


def test_tables_with_nothing_to_leave_out_are_no_better_than_a_roofline():
    profile = load_profile(BUNDLED / "h200-llama-3.1-8b-aic.json")
    points = copy.deepcopy(profile.points)
    decode, prefill = points["decode_attention"], points["prefill_attention"]
    decode |= {"context": decode["context"][:2], "us": [row[:2] for row in decode["us"]]}
    prefill |= {"new": prefill["new"][:2], "us": prefill["us"][:2]}
    found = step_error(replace(profile, points=points))
    assert (found.share, found.source.split(":")[0]) == (0.30, "too few points to leave any out")


def test_a_batch_measured_only_where_points_are_left_out():
    profile = load_profile(BUNDLED / "h200-llama-3.1-8b-aic.json")
    points = copy.deepcopy(profile.points)
    table = points["decode_attention"]
    table["us"][3] = [us if j == 1 else None for j, us in enumerate(table["us"][3])]
    steps = step_fit.left_out(replace(profile, points=points))
    [one] = [
        step
        for step in steps
        if step.words == f"decode, {table['batch'][3]:,} sequences of {table['context'][1]:,} tokens"
    ]
    assert 0 < abs(one.error) < 0.3, "predicted from the batches beside it"


def test_it_is_an_upper_estimate_of_what_a_calibration_really_errs_by(tmp_path):
    """Against the truth of a fake device, at shapes between the points that were measured, with noise of 5 %."""
    measure(FakeDevice(noise=0.05, seed=3), LLAMA, GPU, tmp_path / "points.jsonl", dtype="bf16")
    profile = profile_of(from_points(tmp_path / "points.jsonl"), LLAMA, 1, "fake")
    ours, truth, rng = step_time(profile, LLAMA), FakeStepTime(LLAMA), random.Random(1)
    decodes = [([], n, n * c, c, n) for n, c in ((rng.randint(1, 128), rng.randint(50, 4000)) for _ in range(200))]
    prefills = [([(rng.randint(16, 4000), 0)], 0, 0, 0, 1) for _ in range(200)]
    real = max(
        np.mean([abs(ours.step(*shape)[0] / truth.step(*shape)[0] - 1) for shape in shapes])
        for shapes in (decodes, prefills)
    )
    assert 0.003 < real < step_error(profile).share < 0.1


# -- operators that state their errors ---------------------------------------------------------------------------------


def test_an_atlas_errs_by_its_operators_weighted_by_their_share_of_a_step():
    profile = resolve_profile("atlas:h200", LLAMA)
    found = step_error(profile)
    assert 0.01 < found.share < 0.08
    assert "held-out errors of its operators" in found.source
    sure = [{**one, "error": 0.0} for one in profile.points["rests_on"]]
    doubled = [{**one, "error": 2 * one["error"]} for one in profile.points["rests_on"]]
    assert step_error(replace(profile, points={**profile.points, "rests_on": sure})).share == 0.0
    assert step_error(replace(profile, points={**profile.points, "rests_on": doubled})).share == pytest.approx(
        2 * found.share
    )


def test_an_operator_of_which_only_the_form_is_known_weighs_by_its_share():
    """int4 products on an L40S are bf16 kernels with other bytes: 15 % of most of a prefill."""
    int4 = step_error(resolve_profile("atlas:l40s", LLAMA, "int4"))
    assert 0.10 < int4.share <= 0.20
    assert "most of it gate_up" in int4.source
