"""The kernels compiled for each target without a GPU: no spills, tensor cores used, shared memory within the limit."""

import re

import pytest

from kernels.configs import SHARED_LIMIT
from tests.conftest import require_kernel_tools
from tests.kernels.aot import Case
from tests.kernels.cases import compiled, spilling

require_kernel_tools(__name__)

MATRIX = {"sm_80": r"HMMA\.", "sm_90": r"H?G?MMA\.", "sm_100": r"(UTC\w*MMA|HMMA\.)", "gfx942": r"v_mfma"}
WIDE = {**MATRIX, "sm_90": r"HGMMA\.", "sm_100": r"UTC\w*MMA"}  # what prefill and the expert GEMM must use


def outcome(results: dict[str, dict], case: Case) -> dict:
    result = results[case.id]
    assert "failure" not in result, result["failure"]
    return result


@pytest.mark.parametrize("case", compiled(), ids=lambda c: c.id)
def test_compiles_without_spills(case: Case, compiled_results: dict[str, dict]) -> None:
    result = outcome(compiled_results, case)
    assert result["spills"] == 0
    assert result["stack"] == 0
    assert result["shared"] <= SHARED_LIMIT[case.target]
    if case.op in ("prefill", "moe"):
        assert re.match(WIDE[case.target], result["tensor_core"]), result["tensor_core"]
    elif case.op == "decode":
        assert re.match(MATRIX[case.target], result["tensor_core"]), result["tensor_core"]
        assert ("BF16" in result["tensor_core"].upper()) == (case.dtype == "bfloat16")


@pytest.mark.parametrize("case", spilling(), ids=lambda c: c.id)
def test_spill_check_sees_a_config_that_spills(case: Case, compiled_results: dict[str, dict]) -> None:
    result = outcome(compiled_results, case)
    assert result["spills"] > 0
    assert result["stack"] > 0
