"""How long a reader of the dashboard waits, in a real browser, and what that costs the server: `make ui-times`.

Medians of several tries with the largest beside them, and the machine's load: on a busy one the seconds are longer, the
CPU seconds of the server's process and of the page's main thread less so. What the eye waits for ends with the frame
after the words have changed; the CPU seconds are counted until the page has come to rest.

  python -m tools.ui_times                     five tries of each, about a minute
  python -m tools.ui_times --server http://localhost:8501 --tries 3     of one that runs already: no CPU seconds
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ui.browser import Reader, browser, dashboard, missing

VERDICT = "[data-testid=stMain] [data-testid=stAlert]"
METRICS = "[data-testid=stMetric]"
MAIN = "[data-testid=stMain]"
SEEN = """
([selector, part]) => {
  const words = () => [...document.querySelectorAll(selector)].map(one => one.innerText).join('\\n');
  const before = words();
  let began = null;
  document.addEventListener('keydown', event => { if (event.key === 'Enter') began ??= performance.now(); }, true);
  window.seen = new Promise((done, never) => {
    setTimeout(() => never(new Error(`no other words with ${part}`)), 120e3);
    const look = () => {
      const now = words();
      if (began !== null && now !== before && now.includes(part))
        requestAnimationFrame(() => done((performance.now() - began) / 1e3));
      else requestAnimationFrame(look);
    };
    look();
  });
}
"""
"""Seconds from the next Enter to the frame that shows other words in the selected places, with `part` among them."""
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass
class Figure:
    """What is measured, and what it may take."""

    name: str
    most_s: float
    most_cpu_s: float | None = None
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)  #: of the server
    page_s: list[float] = field(default_factory=list)  #: of the page's main thread

    def row(self) -> str:
        cpu = f"{statistics.median(self.cpu_s):8.2f}" if self.cpu_s else f"{'-':>8}"
        most_cpu = "-" if self.most_cpu_s is None else f"{self.most_cpu_s:g}"
        return (
            f"{self.name:60} {statistics.median(self.seconds):7.2f} {max(self.seconds):7.2f} {self.most_s:6g}"
            f" {cpu} {most_cpu:>6} {statistics.median(self.page_s):8.2f}"
        )

    def missed(self) -> bool:
        cpu = self.most_cpu_s is not None and bool(self.cpu_s) and statistics.median(self.cpu_s) > self.most_cpu_s
        return statistics.median(self.seconds) > self.most_s or cpu


def server_cpu_s(port: int) -> float | None:
    """CPU seconds so far of the process that serves the port, its jobs apart; None where that is not known."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            if b"--server.port" in words and words[words.index(b"--server.port") + 1] == str(port).encode():
                spent = (place / "stat").read_text().rpartition(")")[2].split()
                return (int(spent[11]) + int(spent[12])) / TICKS_A_SECOND
        except (OSError, IndexError):
            continue
    return None


class Watched(Reader):
    """A reader whose page's main thread is watched."""

    def __init__(self, page: Any, server: str) -> None:
        super().__init__(page, server)
        self.thread = page.context.new_cdp_session(page)
        self.thread.send("Performance.enable", {"timeDomain": "threadTicks"})


def _page_cpu_s(reader: Watched) -> float:
    """CPU seconds of the page's main thread since it was opened."""
    found = reader.thread.send("Performance.getMetrics")["metrics"]
    return next(float(one["value"]) for one in found if one["name"] == "TaskDuration")


class Timed:
    """A reader with a clock."""

    def __init__(self, chromium: Any, server: str) -> None:
        self.chromium, self.server = chromium, server
        self.port = int(server.rpartition(":")[2].rstrip("/"))

    def reader(self) -> Watched:
        """In a browser that has never been here."""
        return Watched(self.chromium.new_context(viewport={"width": 1440, "height": 900}).new_page(), self.server)

    def measured(self, figure: Figure, reader: Watched, act: Callable[[], float]) -> None:
        """act: does it and says how long it took; the server's CPU is counted until the page has come to rest."""
        before, page_before = server_cpu_s(self.port), _page_cpu_s(reader)
        figure.seconds.append(act())
        print(f"{figure.seconds[-1]:7.2f} s  {figure.name}", file=sys.stderr, flush=True)
        reader.rest()
        after = server_cpu_s(self.port)
        figure.page_s.append(_page_cpu_s(reader) - page_before)
        if before is not None and after is not None:
            figure.cpu_s.append(after - before)

    def opened(self, figure: Figure, path: str, selector: str, words: str) -> None:
        reader = self.reader()
        clock = (
            "([selector, words]) => [...document.querySelectorAll(selector)].some(one => one.innerText.includes(words))"
            " && performance.now() / 1e3"
        )

        def act() -> float:
            reader.page.goto(f"{self.server}/{path}", wait_until="commit")
            return float(reader.page.wait_for_function(clock, arg=[selector, words], polling="raf").json_value())

        self.measured(figure, reader, act)
        reader.page.context.close()

    def entered(self, figure: Figure, reader: Watched, label: str, value: str, selector: str, words: str = "") -> None:
        fields = reader.page.get_by_test_id("stNumberInput").filter(has_text=label)
        place = fields.locator("input").last  # the sidebar's own comes first
        place.fill(value)

        def act() -> float:
            reader.page.evaluate(SEEN, [selector, words])
            place.press("Enter")
            return float(reader.page.evaluate("() => window.seen"))

        self.measured(figure, reader, act)


FIRST = Figure("first page: the verdict of its example, from the address", 4.0)
PLAN = Figure("Plan: first verdict of the bundled example, from its address", 4.0)
USERS = Figure("first page: other users, first bound of the new question", 2.0)
SETTING = Figure("Plan: a setting, the page says what has changed", 1.0, 0.2)
LIMIT = Figure("Plan: another limit, its verdict", 0.3, 0.2)
TARGET = Figure("Plan: another target, its verdict", 0.3, 0.2)
PRICE = Figure("Plan: another price, its cost", 0.3, 0.2)
FIGURES = (FIRST, PLAN, USERS, SETTING, LIMIT, TARGET, PRICE)


def measure(timed: Timed, tries: int) -> None:
    for _ in range(tries):
        timed.opened(FIRST, "", MAIN, "Meets, and recovers")
        timed.opened(PLAN, "plan", VERDICT, "%")
    first, plan = timed.reader(), timed.reader()
    first.open()
    for i in range(tries):
        timed.entered(USERS, first, "Users at once", str(600 * 2**i), MAIN, "First bound")
    plan.open("plan")
    for i in range(tries):
        timed.entered(SETTING, plan, "Replicas", str(3 + i), MAIN, f"→ {3 + i}")
    plan.open("plan")
    for i in range(tries):
        timed.entered(LIMIT, plan, "TTFT ms, chat", str(301 + 100 * i), VERDICT)
        timed.entered(TARGET, plan, "Target (%)", str(90 + i), VERDICT)
        timed.entered(PRICE, plan, "per h200 hour", str(5 + i), METRICS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="address of a dashboard that runs already; default: start one")
    parser.add_argument("--tries", type=int, default=5)
    args = parser.parse_args()
    if missing():
        raise SystemExit(f"ui_times: not run: {missing()}")
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as name,
        nullcontext(args.server) if args.server else dashboard(Path(name) / "runs") as server,
        browser() as chromium,
    ):
        measure(Timed(chromium, server), args.tries)
    median, most, limit, cpu, page = ("median", "most", "limit", "CPU", "page CPU")
    print(f"{'seconds':60} {median:>7} {most:>7} {limit:>6} {cpu:>8} {limit:>6} {page:>8}")
    for figure in FIGURES:
        print(figure.row())
    print(f"{args.tries} tries each, {os.cpu_count()} cores, load {load:.1f} before and {os.getloadavg()[0]:.1f} after")
    if late := [figure.name for figure in FIGURES if figure.missed()]:
        raise SystemExit(f"ui_times: above its limit: {'; '.join(late)}")


if __name__ == "__main__":
    main()
