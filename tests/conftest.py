"""Shared fixtures. Reference data that is never committed is found through KVCAST_DATA."""

import importlib.util
import os
from pathlib import Path

import pytest

NO_DATA = "KVCAST_DATA does not name the reference data folder"
NO_KERNEL_TOOLS = "torch or triton not installed: "
NO_BROWSER = "no browser: "
NO_TOKENIZERS = "tokenizers not installed"
NO_CLUSTER = "cannot start a cluster: "


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of reference traces and measurements; the test is skipped, loudly, without it."""
    folder = os.environ.get("KVCAST_DATA", "")
    if not folder or not Path(folder, "README.md").is_file():
        pytest.skip(NO_DATA)
    return Path(folder)


def require_kernel_tools(module: str) -> None:
    """Skip a whole test module, loudly, where torch or triton is not installed (looked up, not imported)."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
        pytest.skip(NO_KERNEL_TOOLS + module, allow_module_level=True)


def require_browser(module: str) -> None:
    """Skip a whole test module, loudly, where playwright or a Chromium is absent."""
    from tests.ui.browser import missing

    if missing():
        pytest.skip(f"{NO_BROWSER}{module}, {missing()}", allow_module_level=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not tested, from the reports themselves: the tests may have run in other processes."""
    reasons = [
        report.longrepr[2] for report in terminalreporter.getreports("skipped") if isinstance(report.longrepr, tuple)
    ]
    without_data, without_tokenizers = (sum(why in reason for reason in reasons) for why in (NO_DATA, NO_TOKENIZERS))
    without_kernels, without_browser, without_cluster = (
        dict.fromkeys(reason.partition(why)[2] for reason in reasons if why in reason)
        for why in (NO_KERNEL_TOOLS, NO_BROWSER, NO_CLUSTER)
    )
    for told, line in (
        (
            without_data,
            f"{without_data} tests against recorded truth did not run: set KVCAST_DATA to the reference data folder",
        ),
        (
            without_kernels,
            (
                f"not tested for want of torch or triton: {', '.join(without_kernels)}; `make test-kernels` and `make"
                " test-calibrate` do"
            ),
        ),
        (
            without_cluster,
            f"not tested on a cluster: {', '.join(without_cluster)} is not installed; `make test-clusters` has both",
        ),
        (without_tokenizers, f"{without_tokenizers} tests of tokenizers did not run: pip install tokenizers"),
        (without_browser, f"the dashboard was not tested in a browser: {'; '.join(without_browser)}"),
    ):
        if told:
            terminalreporter.write_line(f"WARNING: {line}", red=True, bold=True)
