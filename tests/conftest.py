"""Shared fixtures. Reference data that is never committed is found through KVCAST_DATA."""
import importlib.util
import os
from pathlib import Path

import pytest

_missing: list[str] = []
_without_kernel_tools: list[str] = []
_without_browser: list[str] = []


@pytest.fixture
def data_dir(request: pytest.FixtureRequest) -> Path:
    """The folder of reference traces and measurements; the test is skipped, loudly, without it."""
    folder = os.environ.get("KVCAST_DATA", "")
    if not folder or not Path(folder, "README.md").is_file():
        _missing.append(request.node.nodeid)
        pytest.skip("KVCAST_DATA does not name the reference data folder")
    return Path(folder)


def require_kernel_tools(module: str) -> None:
    """Skip a whole test module, loudly, where torch or triton is not installed (looked up, not imported)."""
    absent = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if absent:
        _without_kernel_tools.append(module)
        pytest.skip(f"{' and '.join(absent)} not installed", allow_module_level=True)


def require_browser(module: str) -> None:
    """Skip a whole test module, loudly, where playwright or a Chromium is absent."""
    from tests.ui.browser import missing

    if missing():
        _without_browser.append(f"{module.rsplit('.', 1)[-1]}, {missing()}")
        pytest.skip(missing(), allow_module_level=True)


def pytest_terminal_summary(terminalreporter) -> None:
    if _missing:
        terminalreporter.write_line(
            f"WARNING: {len(_missing)} tests against recorded truth did not run: set KVCAST_DATA to the reference data folder", red=True, bold=True
        )
    if _without_kernel_tools:
        terminalreporter.write_line(
            f"WARNING: not tested for want of torch or triton: {', '.join(dict.fromkeys(_without_kernel_tools))}; `make test-kernels` and `make test-calibrate` do",
            red=True, bold=True,
        )  # fmt: skip
    if _without_browser:
        terminalreporter.write_line(f"WARNING: the dashboard was not tested in a browser: {'; '.join(_without_browser)}", red=True, bold=True)
