"""profile show and diff of calibrated profiles: what a person judges them by."""

import json
from dataclasses import replace

import pytest

from calibrate.assemble import from_points, profile_of
from calibrate.fake import FakeDevice
from calibrate.gpu.measure import measure
from calibrate.gpu.points import CPU
from calibrate.models import resolve_model
from calibrate.profile import save_profile
from kvcast.cli import main
from kvcast.present.profile_diff import diff
from kvcast.present.profile_report import calibration_lines, figures, is_calibrated

TINY = resolve_model("tiny")


class SlowDecode(FakeDevice):
    """Decode attention takes a fifth longer, everything else as before."""

    def measure(self, point):
        return [v * (1.2 if point.op == "decode" else 1.0) for v in super().measure(point)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    for name, device in (("before", FakeDevice()), ("after", SlowDecode())):
        measure(device, TINY, CPU, folder / f"{name}.jsonl", dtype="bf16")
        save_profile(profile_of(from_points(folder / f"{name}.jsonl"), TINY, 1, name), folder / f"{name}.json")
    return folder


def test_show_prints_fits_errors_and_what_was_measured(folder, capsys):
    assert main(["profile", "show", str(folder / "before.json")]) == 0
    printed = capsys.readouterr().out
    for text in (
        "fake device",
        "measured decode attention: 1 sequences to 2,048 tokens",
        "beyond that every step is marked extrapolated",
        "us_per_sequence",
        "good",
    ):
        assert text in printed, text
    assert "POOR" not in printed


def test_the_page_holds_a_plot_per_operator_and_needs_nothing_else(folder, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["profile", "show", str(folder / "before.json"), "--html", str(page)]) == 0
    html = page.read_text()
    assert html.count("<svg") >= 12
    assert "gemm k=256 n=512" in html
    assert "<script" not in html
    assert len(html) < 400_000
    capsys.readouterr()
    assert main(["profile", "show", "h200-llama-3.1-8b-aic", "--html", str(page)]) == 2
    assert "keep no raw points to plot" in capsys.readouterr().err


def test_plots_show_measured_against_fitted(folder):
    calibration = from_points(folder / "before.jsonl")
    profile = profile_of(calibration, TINY, 1, "x")
    assert is_calibrated(profile)
    plot = next(f for f in figures(profile) if f.layout.title.text.startswith("decode"))
    points = plot.data[0]
    assert len(points.x) == len(calibration.values("decode", {"heads": 4, "kv_heads": 2, "head_dim": 64}))
    assert all(abs(fitted / measured - 1) < 0.05 for measured, fitted in zip(points.x, points.y, strict=True))


def test_diff_names_the_operator_that_moved(folder, capsys):
    assert main(["profile", "diff", str(folder / "before.json"), str(folder / "after.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    first, *others = document["operators"]
    assert first["operator"].startswith("decode")
    assert first["median"] == pytest.approx(0.2, abs=1e-6)
    assert all(o["median"] == 0 for o in others if not o["operator"].startswith("decode"))
    steps = {s["step"]: s["change"] for s in document["steps"]}
    assert steps["prefill 512"] == 0
    assert 0 < steps["decode 32 x 2048"] < 0.2
    assert main(["profile", "diff", str(folder / "before.json"), str(folder / "before.json")]) == 0
    assert "nothing moved" in capsys.readouterr().out


def test_profiles_of_different_models_compare_operators_only(folder, capsys):
    assert main(["profile", "diff", str(folder / "before.json"), "h200-llama-3.1-8b-aic"]) == 0
    printed = capsys.readouterr().out
    assert "whole steps are not compared" in printed
    assert "only in h200-llama-3.1-8b-aic" in printed


def test_interpolated_operators_are_said_aloud(folder):
    wider = replace(TINY, name="wider", intermediate=1408)
    lines = calibration_lines(profile_of(from_points(folder / "before.jsonl"), wider, 1, "x"))
    assert "NOT MEASURED gate_up: interpolated from other shapes" in lines
    assert not any(line.startswith("NOT MEASURED qkv") for line in lines)


def test_two_widths_have_an_assumed_all_reduce(folder):
    profile = profile_of(from_points(folder / "before.jsonl"), TINY, 2, "x")
    assert any("ASSUMED" in note for note in profile.provenance["notes"])
    assert "NOT MEASURED all_reduce: assumed" in calibration_lines(profile)
    assert diff(profile, profile)["same_points"]


def test_kv_log_prints_what_to_set(tmp_path, capsys):
    log = tmp_path / "v.log"
    log.write_text("GPU KV cache size: 178,880 tokens\n")
    assert main(["profile", "kv-log", str(log)]) == 0
    assert "--set engine.kv_blocks=11180 --set engine.block_size=16" in capsys.readouterr().out
