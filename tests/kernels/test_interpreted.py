"""The kernels, interpreted on the CPU, against the fp64 references; tests/kernels/interpret.py says what each case
holds."""

import json
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


def interpret(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize(("edge", "dtype"), [("parts", "float32"), ("far", "float16"), ("guarded", "float32")])
def test_where_memory_ends(edge: str, dtype: str) -> None:
    """tests/kernels/edges.py says what each is; a read of what may not be read ends the process."""
    assert float(interpret("tests.kernels.edges", edge)) <= TOLERANCE[dtype]


def test_the_gpu_checks_rehearsed() -> None:
    assert "checks: 11 of 11 passed, 0 not reached" in interpret("kernels.checks", "--device", "cpu")


def test_the_gpu_rates_rehearsed_give_no_figures() -> None:
    text = interpret("kernels.rates", "--device", "cpu", "--candidates")
    assert "6 of 6 cases" in text
    assert text.count("rehearsal, no figure") == 8
    assert "torch sdpa" in text
    assert "% of" not in text


def test_wrong_calls_are_refused_with_the_value() -> None:
    said = json.loads(interpret("tests.kernels.refusals"))
    expected = {
        "bf16": "q is bfloat16, expected float16 or float32",
        "mixed dtypes": "q is torch.float16, k_cache torch.float32",
        "head size": "head size 96",
        "block size": "block size 48",
        "table dtype": "block_table is torch.int64, expected int32",
        "rows of q": "q has 1 rows, the plan 2",
        "rows of the table": "block_table is (1, 1) of blocks of 16, expected 2 rows of 4 positions",
        "width of the table": "expected 1 rows of 17 positions",
        "heads": "q is (1, 6, 64), expected (tokens, 8, 64)",
        "decode plan to prefill": "prefill_attention was given a decode plan",
        "prefill plan to decode": "decode_attention was given a prefill plan",
        "work too small": "plan needs 3 items, this work has room for 1",
        "other heads": "this work was made for",
        "other config": "plan.config is Config(block_m=16, block_n=16",
        "offsets": "do not fit together",
        "device": "not on meta",
    }
    assert said.keys() == expected.keys()
    for name, text in expected.items():
        assert text in said[name], (name, said[name])
