"""The kernels, interpreted on the CPU, against the fp64 references; tests/kernels/interpret.py says what each case holds."""
import math

import pytest

from tests.conftest import require_kernel_tools
from tests.kernels.cases import Run, interpreted

require_kernel_tools(__name__)
TOLERANCE = {"float32": 2e-6, "float16": 1e-3}


@pytest.mark.parametrize("run", interpreted(), ids=lambda r: r.id)
def test_matches_reference(run: Run, interpreted_results: dict[str, dict]) -> None:
    result = interpreted_results[run.id]
    assert "failure" not in result, result["failure"]
    assert math.isfinite(result["error"])
    assert result["error"] <= TOLERANCE[run.dtype]
    assert result["untouched"], "a row or cache place that no token owns was written"
