"""A reader in front of the dashboard: the real server, a real headless Chromium.

The one idea: everything waits for what a reader would wait for (the page has come to rest, a text is there), with time
to spare on a slow machine, and every click or text counts, so that a flow can be held to a number of interactions.

    with dashboard(folder) as server, browser() as chromium:
        reader = Reader(chromium.new_context().new_page(), server)
        reader.open("workload"); reader.press("Run")
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent.parent
WAIT_MS = 120_000
"""For anything that a page does; nothing takes as long, unless the machine does much else."""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
APP = ".stApp"
AT_REST = f'{APP}[data-test-script-state="notRunning"][data-test-connection-state="CONNECTED"]'


def missing() -> str:
    """What a browser test lacks here, in words; empty when nothing."""
    from importlib.util import find_spec

    if find_spec("playwright") is None:
        return "playwright is not installed (pip install -e '.[test]')"
    return "" if executable() else f"no {' or '.join(CHROMIUM)} on the PATH (Debian: apt install chromium)"


def executable() -> str | None:
    return next((found for name in CHROMIUM if (found := shutil.which(name))), None)


@contextlib.contextmanager
def dashboard(runs: Path, *options: str, **environment_more: str) -> Iterator[str]:
    """The address of `kvcast dashboard`, started as a user starts it; its jobs lie in `runs`, and beside them `opened`
    has the addresses that it opened in the user's browser."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    log, mine = runs.parent / "dashboard.log", runs.parent / "browser"
    runs.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text(f'#!/bin/sh\necho "$1" >> "{runs.parent / "opened"}"\n')
    mine.chmod(0o755)
    environment = {
        **os.environ,
        "KVCAST_RUNS": str(runs),
        "PYTHONPATH": str(ROOT),
        "BROWSER": f"{mine} %s",
        "KVCAST_PREPARE": "",  # the example's plan, a minute of CPU that no test waits for
        **environment_more,
    }
    with log.open("wb") as out:
        argv = [sys.executable, "-m", "kvcast", "dashboard", "--port", str(port), *options]
        server = subprocess.Popen(argv, env=environment, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    try:
        _answers(server, f"http://localhost:{port}/_stcore/health", log)
        yield f"http://localhost:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, 2)  # as Ctrl-C: the server ends its jobs
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, 9)


def _answers(server: subprocess.Popen, url: str, log: Path) -> None:
    """Return once the server answers."""
    until_s = time.monotonic() + WAIT_MS / 1e3
    while time.monotonic() < until_s:
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    raise RuntimeError(f"the dashboard does not answer:\n{log.read_text(errors='replace')}")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium of the system's, that fetches nothing of its own accord."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=executable(), args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


class Reader:
    """Somebody who reads and uses the dashboard in one tab. `interactions` counts clicks and texts; scrolling and
    reading are free."""

    def __init__(self, page: Any, server: str) -> None:
        self.page, self.server, self.interactions = page, server, 0
        self.patience_s = WAIT_MS / 1e3
        self.requests: list[str] = []  #: every address that the tab asked for
        self.faults: list[str] = []  #: errors of the page's scripts
        page.set_default_timeout(WAIT_MS)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", lambda socket: self.requests.append(socket.url))
        page.on("pageerror", lambda error: self.faults.append(str(error)))

    def outside(self) -> list[str]:
        """Addresses beyond the server that were asked for."""
        return [
            url
            for url in self.requests
            if urlsplit(url).scheme not in ("data", "blob") and urlsplit(url).netloc != urlsplit(self.server).netloc
        ]

    # -- waiting
    # -----------------------------------------------------------------------------------------------------------

    def rest(self) -> Reader:
        """Wait until the page has drawn everything."""
        self.page.wait_for_selector(AT_REST, state="attached")
        self.page.wait_for_function("() => !document.querySelector('[data-stale=\"true\"], [data-testid=stSkeleton]')")
        return self

    def _begun(self) -> Reader:
        """Wait, not for long, until the page has heard of an interaction: it takes a moment, and some need no
        drawing."""
        from playwright.sync_api import TimeoutError as LateError

        with contextlib.suppress(LateError):
            self.page.wait_for_selector(
                f'{APP}:not([data-test-script-state="notRunning"])', state="attached", timeout=1000
            )
        return self

    def until(self, read: Callable[[], Any], expected: Any) -> Reader:
        """Wait until what is read is what is expected; AssertionError with both when it never is."""
        until_s = time.monotonic() + self.patience_s
        while (found := read()) != expected:
            assert time.monotonic() < until_s, f"{found!r}, expected {expected!r}"
            self.page.wait_for_timeout(100)
        return self

    def see(self, words: str | re.Pattern[str]) -> Reader:
        """Wait until the words can be read on the page, sidebar and what has popped up included."""
        return self._wait_for(words, True)

    def gone(self, words: str | re.Pattern[str]) -> Reader:
        return self._wait_for(words, False)

    def _wait_for(self, words: str | re.Pattern[str], there: bool) -> Reader:
        pattern = re.compile(re.escape(words)) if isinstance(words, str) else words
        until_s = time.monotonic() + self.patience_s
        while bool(pattern.search(found := self.page.locator("body").inner_text())) != there:
            assert time.monotonic() < until_s, (
                f"{pattern.pattern!r} {'never came' if there else 'stayed'}; the page says:\n{found}"
            )
            self.page.wait_for_timeout(100)
        return self

    # -- reading
    # -----------------------------------------------------------------------------------------------------------

    def words(self) -> str:
        """What the page says, sidebar apart."""
        return self.page.locator("[data-testid=stMain]").inner_text()

    def metrics(self) -> dict[str, str]:
        """Label -> value of the big numbers."""
        found = self.page.locator("[data-testid=stMetric]")
        return {
            found.nth(i).locator("[data-testid=stMetricLabel]").inner_text().strip(): (
                found.nth(i).locator("[data-testid=stMetricValue]").inner_text().strip()
            )
            for i in range(found.count())
        }

    # -- interactions
    # ------------------------------------------------------------------------------------------------------

    def open(self, path: str = "") -> Reader:
        self.page.goto(f"{self.server}/{path}")
        self.page.wait_for_selector("[data-testid=stButton]")
        return self.rest()

    def go(self, name: str) -> Reader:
        """Choose a page of the navigation."""
        return self.click(self.page.get_by_test_id("stTopNavLinkContainer").get_by_role("link", name=name, exact=True))

    def press(self, label: str) -> Reader:
        return self.click(self.page.get_by_role("button", name=label, exact=True).first)

    def pick(self, label: str) -> Reader:
        """Choose one of a few that stand side by side."""
        return self.click(self.page.get_by_role("radio", name=label, exact=True))

    def click(self, place: Any) -> Reader:
        self.interactions += 1
        place.click()
        return self._begun().rest()

    def enter(self, label: str, value: str, which: int = 0) -> Reader:
        """Write into the field of this label, the first or a later one."""
        self.interactions += 1
        place = self.page.get_by_label(label, exact=True).nth(which)
        place.fill(value)
        place.press("Enter")
        return self._begun().rest()

    def edit(self, row: int, column: int, value: str) -> Reader:
        """Write into a cell of the page's first table."""
        self.interactions += 1
        field = self._opened(row, column)
        field.fill(value)
        field.press("Enter")
        return self._begun().rest()

    def _opened(self, row: int, column: int) -> Any:
        """The field of a cell. A table that is being drawn anew loses keys: then once more, from the first column."""
        from playwright.sync_api import TimeoutError as NotThereError

        field = self.page.locator("#portal").locator("input, textarea").first
        chosen = self.page.locator(f"#glide-cell-{column + 1}-{row}[aria-selected=true]")  # column 0 chooses rows
        for _ in range(10):
            self.page.get_by_test_id("stDataFrame").first.click(position={"x": 60, "y": 52 + 35 * row})
            for _ in range(column):
                self.page.keyboard.press("ArrowRight")
            try:
                chosen.wait_for(state="attached", timeout=3_000)
                self.page.keyboard.press("Enter")
                field.wait_for(timeout=10_000)
                break
            except NotThereError:
                continue
        return field

    def choose(self, label: str, option: str) -> Reader:
        """Pick from a list: two clicks."""
        self.interactions += 2
        self.page.locator("[data-testid=stSelectbox]").filter(has_text=label).locator(
            "[data-baseweb=select], input"
        ).first.click()
        self.page.get_by_role("option", name=option).first.click()
        return self._begun().rest()
