"""Shared fixtures. Reference data that is never committed is found through KVCAST_DATA."""
import os
from pathlib import Path

import pytest

_missing: list[str] = []


@pytest.fixture
def data_dir(request: pytest.FixtureRequest) -> Path:
    """The folder of reference traces and measurements; the test is skipped, loudly, without it."""
    folder = os.environ.get("KVCAST_DATA", "")
    if not folder or not Path(folder, "README.md").is_file():
        _missing.append(request.node.nodeid)
        pytest.skip("KVCAST_DATA does not name the reference data folder")
    return Path(folder)


def pytest_terminal_summary(terminalreporter) -> None:
    if _missing:
        terminalreporter.write_line(
            f"WARNING: {len(_missing)} tests against recorded truth did not run: set KVCAST_DATA to the reference data folder", red=True, bold=True
        )
