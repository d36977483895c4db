"""The one script for a GPU, rehearsed on the CPU: every part runs, records and is compared, and a failing part does not
take the rest with it."""

import argparse
import ast
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calibrate.points_file import read_points
from kvcast import validation
from kvcast.cli import main
from tests.conftest import require_kernel_tools

require_kernel_tools(__name__)

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("session")
    done = subprocess.run(
        [sys.executable, "tools/gpu_session.py", "--rehearse", "--out", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_every_part_prints_its_seconds_and_leaves_its_recording(session):
    folder, printed = session
    for part in ("checks", "rates", "calibration", "rows", "mixes", "loop"):
        assert f"\n{part}: " in printed
    assert "0 parts failed" in printed
    assert "REHEARSAL on a CPU" in (folder / "report.md").read_text()
    assert {
        "points.jsonl",
        "checks.json",
        "rates.json",
        "iterations.jsonl",
        "requests.jsonl",
        "steps.jsonl",
        "meta.json",
    } <= {p.name for p in folder.iterdir()}
    assert len(read_points(folder / "points.jsonl")[1]) > 5


def test_a_rehearsal_gives_no_verdict_on_any_rate(session):
    folder, printed = session
    assert printed.index("REHEARSAL on a CPU with a tiny model") < printed.index("## checks")
    assert "BELOW FLOOR" not in printed
    assert "ceilings" not in printed
    rates = json.loads((folder / "rates.json").read_text())
    assert rates["rehearsal"] is True
    assert [c["verdict"] for c in rates["cases"]] == ["rehearsal, no figure"] * 6
    assert all(c["torch_us"] > 0 and "torch sdpa" in c["torch_note"] for c in rates["cases"]), (
        "torch's attention stands beside every case"
    )


def test_every_kernel_is_checked_in_both_types_the_rarest_before_time_runs_out(session):
    checks = json.loads((session[0] / "checks.json").read_text())
    assert all(c["passed"] for c in checks)
    first = " ".join(c["case"] for c in checks[:7])
    for kernel in (
        "prefill d128",
        "decode d128",
        "decode table reused",
        "rotary embedding and KV write",
        "grouped GEMM",
    ):
        assert kernel in first
    assert {c["dtype"] for c in checks[:4]} == {"float32", "float16"}


BROKEN = """
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
sys.path[:0] = ["tools", "."]
import gpu_session, kernels.checks
rope = kernels.checks.rope_and_write
def wrong_rope(q, k, v, k_cache, v_cache, *rest):
    rope(q, k, v, k_cache, v_cache, *rest)
    v_cache.mul_(1.01)
def no_gemm(*args):
    raise RuntimeError("no such instruction")
kernels.checks.rope_and_write, kernels.checks.grouped_gemm = wrong_rope, no_gemm
gpu_session.REHEARSAL_SECONDS = {"checks": 60.0}
sys.argv[1:] = ["--rehearse", "--out", sys.argv[1]]
sys.exit(gpu_session.main())
"""


def test_a_wrong_kernel_and_one_that_does_not_run_are_told_apart_and_fail_the_part(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "checks: 9 of 11 passed" in done.stdout
    assert "RuntimeError: no such instruction" in done.stdout
    assert "FAILED: RuntimeError: 2 of 11 kernel checks are wrong" in done.stdout
    wrong = {c["case"]: c for c in json.loads((tmp_path / "checks.json").read_text()) if not c["passed"]}
    assert float(wrong["rotary embedding and KV write"]["error"]) == pytest.approx(0.01, rel=0.1)
    assert wrong["grouped GEMM"]["failure"]


def test_fitting_ends_with_the_parts_time(session, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import gpu_session

    lines = gpu_session.fit(session[0] / "points.jsonl", "tiny", tmp_path / "p.json", 0.05)
    assert len(lines) == 1
    assert lines[0].startswith(
        "not fitted: not done in the 0.1 s left of this part; elsewhere: kvcast calibrate --points"
    )
    assert not (tmp_path / "p.json").exists()
    asked = {}
    monkeypatch.setattr(gpu_session, "measure", lambda *_, budget_s, **__: asked.update(budget_s=budget_s))
    monkeypatch.setattr(gpu_session, "outcome_lines", lambda *_: [])
    monkeypatch.setattr(gpu_session, "fit", lambda *args: asked.update(fit_s=args[-1]) or [])
    part = gpu_session.Session(argparse.Namespace(out=tmp_path, rehearse=True, model=None))
    part.calibration(time.perf_counter() + 20.0)
    assert 0 < asked["budget_s"] <= 20.0 - gpu_session.FIT_SECONDS["cpu"]
    assert 0 < asked["fit_s"] <= 20.0


def test_its_recordings_are_compared_like_any_other(session):
    folder, _ = session
    assert (folder / "profile.json").exists()
    outcome = validation.run("engine", None, record=folder)
    assert outcome.figures["iterations"]["count"] == 25
    assert outcome.figures["p50_ttft_s"]["recorded"] > 0


def test_other_rows_are_measured_and_what_is_lacking_is_said(session, tmp_path):
    folder, printed = session
    assert "bf16-all_reduce: not measured: this machine has one GPU" in printed
    for package in ("vllm", "flashinfer"):
        if importlib.util.find_spec(package) is None:
            assert f"bf16-attention-{package}: not measured: --attention {package}: the package" in printed
    for name, operators in (("fp8-gemm", {"gemm"}), ("bf16-attention-torch", {"prefill", "decode"})):
        points = folder / f"points-{name}.jsonl"
        assert main(["calibrate", "--points", str(points), "--model", "tiny", "--out", str(tmp_path / name)]) == 0
        assert operators <= {path.stem for path in (tmp_path / name).glob("*.csv")}
    assert sum(gpu_seconds().values()) <= 480


def gpu_seconds():
    source = ast.parse((ROOT / "tools" / "gpu_session.py").read_text())
    found = next(n for n in source.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "SECONDS")
    return ast.literal_eval(found.value)


def test_without_a_gpu_it_says_so(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "tools/gpu_session.py", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "torch sees no GPU" in done.stderr
