"""The kernels, interpreted on the CPU, against the fp64 references; tests/kernels/interpret.py says what each case holds."""
import math
import os
import subprocess
import sys

import pytest

from tests.conftest import require_kernel_tools
from tests.kernels.cases import Run, interpreted
from tests.kernels.workers import ROOT

require_kernel_tools(__name__)
TOLERANCE = {"float32": 2e-6, "float16": 1e-3}


@pytest.mark.parametrize("run", interpreted(), ids=lambda r: r.id)
def test_matches_reference(run: Run, interpreted_results: dict[str, dict]) -> None:
    result = interpreted_results[run.id]
    assert "failure" not in result, result["failure"]
    assert math.isfinite(result["error"])
    assert result["error"] <= TOLERANCE[run.dtype]
    assert result["untouched"], "a row or cache place that no token owns was written"


def rehearse(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", *arguments, "--device", "cpu"], cwd=ROOT, capture_output=True, text=True, timeout=600,
        env={**os.environ, "TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_gpu_checks_rehearsed() -> None:
    assert "checks: 11 of 11 passed, 0 not reached" in rehearse("kernels.checks")


def test_the_gpu_rates_rehearsed_give_no_figures() -> None:
    text = rehearse("kernels.rates", "--candidates")
    assert "6 of 6 cases" in text
    assert text.count("rehearsal, no figure") == 8
    assert "torch sdpa" in text
    assert "% of" not in text
