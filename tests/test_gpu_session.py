"""The one script for a GPU, rehearsed on the CPU: every part runs, records and is compared, and a failing part does not take the rest with it."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.measure import read_points
from kvcast import validation
from tests.conftest import require_kernel_tools

require_kernel_tools(__name__)

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("session")
    done = subprocess.run([sys.executable, "tools/gpu_session.py", "--rehearse", "--out", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_every_part_prints_its_seconds_and_leaves_its_recording(session):
    folder, printed = session
    for part in ("checks", "rates", "calibration", "mixes", "loop"):
        assert f"\n{part}: " in printed
    assert "0 parts failed" in printed
    assert "REHEARSAL on a CPU" in (folder / "report.md").read_text()
    assert {"points.jsonl", "rates.json", "iterations.jsonl", "requests.jsonl", "steps.jsonl", "meta.json"} <= {p.name for p in folder.iterdir()}
    assert len(read_points(folder / "points.jsonl")[1]) > 5
    assert json.loads((folder / "rates.json").read_text())["matmul_tflops"] > 0


def test_its_recordings_are_compared_like_any_other(session, tmp_path):
    folder, _ = session
    subprocess.run([sys.executable, "-m", "kvcast", "calibrate", "--model", "tiny", "--device", "fake", "--dtype", "fp32", "--out", str(tmp_path / "p.json")], check=True, cwd=ROOT, capture_output=True)
    outcome = validation.run("engine", None, record=folder, profile=tmp_path / "p.json")
    assert outcome.figures["iterations"]["count"] >= 1
    assert outcome.figures["p50_ttft_s"]["recorded"] > 0


def test_without_a_gpu_it_says_so(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, "tools/gpu_session.py", "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "torch sees no GPU" in done.stderr
