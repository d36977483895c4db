"""What importing the kernels package needs: nothing; using a kernel: torch and triton, said in one line; never a
GPU."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import require_kernel_tools

ROOT = Path(__file__).parents[2]
WITHOUT = "import sys\nfor name in {absent}: sys.modules[name] = None\n"


def python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("absent", [("torch", "triton"), ("triton",)], ids="+".join)
def test_without_the_tools_planning_works_and_a_kernel_says_what_is_missing(absent: tuple[str, ...]) -> None:
    code = (
        WITHOUT.format(absent=absent)
        + "import kernels\nkernels.plan_decode([100, 3], group=4, kv_heads=8, config=kernels.config_for('sm_90',"
        " 'decode', 128), sms=132)\ntry: kernels.decode_attention\nexcept kernels.KernelsUnavailableError as error:"
        " print(error)\nelse: print('no error')\n"
    )
    if absent == ("triton",) and find_spec("torch") is None:
        pytest.skip("torch is not installed: the case without both says the same")
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    assert f"{absent[0]} is missing" in result.stdout
    assert "pip install" in result.stdout


def test_an_unknown_name_lists_the_known_ones() -> None:
    result = python("import kernels\nkernels.prefil")
    assert "has no attribute 'prefil'; it has prefill_attention" in result.stderr


def test_kernels_import_without_a_gpu() -> None:
    require_kernel_tools(__name__)
    result = python(
        "from kernels import prefill_attention, decode_attention, rope_and_write, grouped_gemm, check_on_device,"
        " rates_on_device"
    )
    assert result.returncode == 0, result.stderr
