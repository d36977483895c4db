"""The Calibration page: what step times rest on; its figures, the left-out points, and its words."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from calibrate.latency import step_time
from calibrate.models import resolve_model
from calibrate.profile import BUNDLED, load_profile
from calibrate.resolve import resolve_profile
from kvcast import api, figures, text
from kvcast.pages import calibration, shell
from kvcast.pages.edit import inputs, settings
from kvcast.store.runs import load_run
from kvcast.trust import accuracy, step_fit
from kvcast.validation import fit, vllm_rtx4090
from tests.ui.conftest import Session

H200 = "h200-llama-3.1-8b-aic"


@pytest.fixture(scope="module")
def profile():
    return load_profile(BUNDLED / f"{H200}.json")


@pytest.fixture(scope="module")
def open_run(folder):
    return load_run(Session("calibration").at.session_state.job.folder)


# -- points left out ---------------------------------------------------------------------------------------------------


def test_left_out_points_are_predicted_by_their_neighbours(profile):
    steps = step_fit.left_out(profile)
    table = step_time(profile, resolve_model("llama-3.1-8b"))
    decode = profile.points["decode_attention"]
    kept_out = decode["context"][1:-1:2]
    found = [s for s in steps if s.kind == step_fit.DECODE]
    assert {s.words for s in found if s.words.startswith("decode, 1 seq")} <= {
        f"decode, 1 sequences of {c:,} tokens" for c in kept_out
    }
    one = next(s for s in found if s.words == f"decode, 8 sequences of {kept_out[-2]:,} tokens")
    assert one.measured_s == table.step([], 8, 8 * kept_out[-2], kept_out[-2], 8)[0]
    assert 0 < abs(one.error) < 0.2
    found_summary = step_fit.summary(steps)
    assert found_summary["decode"]["points"] == len(found)
    assert found_summary["decode"]["mean"] == pytest.approx(np.mean([abs(s.error) for s in found]))


def test_a_table_that_is_linear_is_predicted_exactly(profile):
    points = copy.deepcopy(profile.points)
    for op in points["dense"]:
        op["us"] = [10.0 + 0.5 * t for t in op["tokens"]]
    for op in points["per_sequence"]:
        op["us"] = [1.0 + 0.1 * r for r in op["rows"]]
    for part, (a, b) in (("decode_attention", ("batch", "context")), ("prefill_attention", ("new", "cached"))):
        points[part]["us"] = [[5.0 + 0.01 * x * y + x for y in points[part][b]] for x in points[part][a]]
    steps = [s for s in step_fit.left_out(replace(profile, points=points)) if s.kind == step_fit.DECODE]
    assert max(abs(s.error) for s in steps) < 1e-9
    points["decode_attention"]["us"][0][1] *= 3
    assert (
        max(abs(s.error) for s in step_fit.left_out(replace(profile, points=points)) if s.kind == step_fit.DECODE)
        > 0.001
    )


def test_a_roofline_has_nothing_to_leave_out():
    roofline = resolve_profile("roofline:h200", resolve_model("llama-3.1-8b"), "bf16", 1)
    assert step_fit.left_out(roofline) == []
    assert "Nothing was measured" in accuracy.statement(roofline.describe())[0]


def test_points_beyond_the_measurement_are_not_compared(profile):
    points = copy.deepcopy(profile.points)
    points["decode_attention"]["measured_context"] = [64] * len(points["decode_attention"]["batch"])
    steps = step_fit.left_out(replace(profile, points=points))
    assert all(
        int(s.words.split(" of ")[1].split()[0].replace(",", "")) <= 64 for s in steps if s.kind == step_fit.DECODE
    )


# -- accuracy in words -------------------------------------------------------------------------------------------------


def test_the_statement_fits_the_kind_of_profile(profile):
    lines = accuracy.statement(profile.describe(), {"measured": 0.1, "interpolated": 0.7, "extrapolated": 0.2})
    assert "others measured" in lines[0]
    assert f"{fit.LIMITS['whole prefill']:.0%}" in lines[0]
    assert "was not compared with an engine" in lines[0]
    assert lines[1] == "Of the simulated time, 10.0 % measured, 70.0 % interpolated, 20.0 % extrapolated."
    assert f"{vllm_rtx4090.LIMIT:.0%}" in lines[2]
    calibrated = profile.describe() | {"label": "measured by kvcast calibrate on H200 (triton)"}
    assert "kvcast's own kernels" in accuracy.statement(calibrated)[0]


def test_the_validation_table_is_that_of_the_docs():
    table = calibration.validation_table()
    assert table.startswith("| set | recorded by |")
    assert "`vllm-rtx4090`" in table
    assert "](" not in table


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_says_what_the_run_rests_on(folder, open_run):
    session = Session("calibration")
    s, words, numbers = open_run.summary, session.words(), session.numbers()
    assert f"{text.percent(1 - s['coverage']['extrapolated'])} of this run's simulated time lies inside" in words
    assert "H200-SXM, 139.81 GiB; llama-3.1-8b, bf16 weights, bf16 KV" in words
    assert numbers["KV tokens a replica"] == "922,096"
    assert numbers["In measured range"].split(" †")[0] == text.percent(1 - s["coverage"]["extrapolated"])
    assert s["profile_hash"].removeprefix("sha256:")[:12] in words
    assert f"kvcast profile show {H200}" in words
    assert "= 57,631 blocks of 16 tokens" in words
    assert all(m.help for m in session.at.metric)
    session.at.selectbox(key="calibration.other").set_value("h100-llama-3.1-8b-aic").run()
    beside = next(frame.value for frame in session.at.dataframe if "change" in frame.value.columns)
    assert beside["step"][0] == "prefill 512"
    assert beside["change"][0].startswith("+")


def test_a_roofline_is_said_to_be_one(folder):
    session = Session("calibration")
    demo = settings.demo()
    job = shell.runner_of(str(folder)).submit(
        inputs.Asked(replace(demo, hardware=replace(demo.hardware, profile="roofline:h200"))).toml
    )
    job.wait()
    assert job.done, job.failure()
    session.at.session_state["job"] = job
    session.settle(session.at.run())
    assert "Nothing was measured: compare variants with it" in session.words()
    assert session.numbers()["Error between points"] == "-"


# -- figures -----------------------------------------------------------------------------------------------------------


def test_memory_of_a_gpu_adds_up(open_run):
    resolved = api.resolve(open_run.scenario)
    parts = calibration.memory_of(resolved, open_run.summary)
    assert sum(parts.values()) == pytest.approx(resolved.profile.memory_gib)
    assert parts["KV in use, peak"] + parts["KV, cached or free"] == pytest.approx(57_631 * 16 * 131_072 / 2**30)
    figure = figures.gpu_memory(parts)
    assert sum(trace.x[0] for trace in figure.data) == pytest.approx(139.81, abs=0.01)


def test_where_the_run_lies(profile, open_run):
    figure = figures.covered(profile.points, open_run.summary, open_run.tables["timeline"], 59_558)
    grid, run, longest = figure.data
    assert len(grid.x) == sum(us is not None for row in profile.points["decode_attention"]["us"] for us in row)
    timeline = open_run.tables["timeline"]
    assert len(run.x) == (timeline["running"] > 0).sum()
    at = int(np.argmax(timeline["running"]))
    busy_before = int((timeline["running"][:at] > 0).sum())
    assert run.y[busy_before] == pytest.approx(timeline["blocks_in_use"][at] * 16 / timeline["running"][at])
    assert list(longest.y) == [59_558] * 2


def test_curves_go_through_the_table(profile):
    table = step_time(profile, resolve_model("llama-3.1-8b"))
    figure = figures.decode_curves(table, profile.points)
    assert [trace.name for trace in figure.data] == ["batch 1", "batch 8", "batch 32", "batch 128"]
    assert figure.data[1].y[3] == pytest.approx(table.step([], 8, 8 * 16, 16, 8)[0] * 1e3)
    assert len(figures.prefill_curve(table, profile.points).data) == 3
    steps = step_fit.left_out(profile)
    points = sum(len(trace.x) for trace in figures.predicted_against_measured(steps).data) - 2
    assert points == len(steps) == sum(len(trace.x) for trace in figures.residuals(steps).data)
    coverage = figures.coverage({"coverage": {"measured": 0.25, "interpolated": 0.5, "extrapolated": 0.25}})
    assert [trace.x[0] for trace in coverage.data] == [25, 50, 25]
