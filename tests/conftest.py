"""Shared fixtures. Reference data that is never committed is found through KVCAST_DATA."""

import importlib.util
import os
from pathlib import Path

import pytest

import kvcast
from kvcast.compiled import COMPILED

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


PURE_ONLY = (
    "test_chains.py::test_planted_faults_are_noticed",
    "test_chains.py::test_prefill_stretches_change_nothing",
    "test_engine.py::test_the_longest_prefix_is_looked_for_among_the_first_of_the_waiting",
    "test_fair.py::test_into_an_empty_queue_a_tenant_comes_back_no_lower_than_who_left_it_last",
    "test_fair.py::test_who_was_away_begins_no_lower_than_those_that_wait_and_no_higher",
    "test_policy_runs.py::test_a_turn_visits_no_turn_before_it",
    "test_policy_runs.py::test_planted_faults_are_noticed",
    "test_router.py::test_least_loaded_is_the_least_of_all",
    "test_router.py::test_what_is_wrong_names_the_class_and_the_method",  # the line has two words more
    "test_tiers.py::test_planted_faults_are_noticed",
    "test_tiers.py::test_random_worlds_reach_the_corners",
)
"""Tests that plant, count or fake in classes of the loop, which nobody can in compiled ones (`make test-fast`)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if kvcast.core != COMPILED:
        return
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(PURE_ONLY):
            item.add_marker(pytest.mark.skip(reason="of pure Python only"))


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
