"""A planner's way from the first page to a verdict, in a browser, counted: `make ui-test`.

The question: "our coding agent has 300 users and a 16k-token system prompt; how many H200 for a first token within 1
s?" At most 12 clicks and texts may answer it, and the answer must be the one of `kvcast plan` on the scenario that the
page hands out.

  python -m tools.ui_flow
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from kvcast import text
from tests.ui.browser import ROOT, Reader, browser, dashboard, missing

MOST_INTERACTIONS = 12
FOUND = re.compile("Fewest GPUs:|This is the fewest:")
LONG_S = 1800
"""For the plan, on a slow machine."""
SEARCH_ONLY = ("--no-capacity", "--no-binding", "--no-advice", "--no-growth", "--no-n-plus-1")
COMPARED = ("slo", "answer", "candidates", "rejected_by")


def ask(reader: Reader) -> None:
    """The question, from the first page to the answer."""
    reader.open().see("Meets the target.")
    step(reader, "Workload: coding-agent", reader.choose, "Workload", "coding-agent")
    step(reader, "the page Workload", reader.go, "Workload")
    step(reader, "system prompt: 16,000 tokens", reader.enter, "mean tokens", "16000", 1)
    step(reader, "users at once: 300", reader.enter, "coding-agent: users at once (about)", "300")
    step(reader, "TTFT: 1000 ms", reader.enter, "TTFT", "1000")
    step(reader, "Target: 95 %", reader.enter, "Target (%)", "95")
    step(reader, "Run", reader.press, "Run")
    step(reader, "the page Plan", reader.go, "Plan")
    reader.patience_s = LONG_S
    reader.see("coding-agent, edited: ")
    press(reader, "Find the fewest GPUs")
    press(reader, "Try wider replicas")
    reader.see(FOUND)


def press(reader: Reader, button: str) -> None:
    """Press the button, where the server has not got the answer from an earlier visit."""
    reader.see(re.compile(f"{button}|{FOUND.pattern}|No fleet (meets|is shown)"))
    if reader.page.get_by_role("button", name=button).count():
        step(reader, button, reader.press, button)


def step(reader: Reader, words: str, do: Any, *arguments: Any) -> None:
    began_s = time.monotonic()
    do(*arguments)
    print(f"  {reader.interactions:2}  {words}  ({time.monotonic() - began_s:.1f} s)", flush=True)


def downloaded(reader: Reader, button: str) -> bytes:
    with reader.page.expect_download() as found:
        reader.page.get_by_role("button", name=button, exact=True).first.click()
    return Path(found.value.path()).read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="address of a dashboard that runs already; default: start one")
    args = parser.parse_args()
    if missing():
        raise SystemExit(f"ui_flow: not run: {missing()}")
    with (
        tempfile.TemporaryDirectory() as name,
        nullcontext(args.server) if args.server else dashboard(Path(name) / "runs") as server,
        browser() as chromium,
    ):
        reader = Reader(chromium.new_context(viewport={"width": 1440, "height": 900}).new_page(), server)
        began_s = time.monotonic()
        ask(reader)
        print(f"{reader.interactions} interactions, {time.monotonic() - began_s:.0f} s")
        print(reader.page.get_by_test_id("stAlert").filter(has_text=FOUND).inner_text())
        plan, scenario = json.loads(downloaded(reader, "plan.json")), downloaded(reader, "scenario.toml")
        file = Path(name) / "scenario.toml"
        file.write_bytes(scenario)
        words = shlex.split(
            reader.page.get_by_test_id("stCode").filter(has_text="kvcast plan scenario.toml").inner_text()
        )[3:-2]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "kvcast",
                "plan",
                str(file),
                *words,
                "--out",
                str(Path(name) / "plan"),
                "--json",
                *SEARCH_ONLY,
            ],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        again = json.loads(done.stdout)
        check(reader, plan, again)
    print("kvcast plan on the page's scenario.toml says the same")


def check(reader: Reader, plan: dict[str, Any], again: dict[str, Any]) -> None:
    if reader.interactions > MOST_INTERACTIONS:
        raise SystemExit(f"ui_flow: {reader.interactions} interactions, expected at most {MOST_INTERACTIONS}")
    for key in COMPARED:
        if plan[key] != again[key]:
            raise SystemExit(
                f"ui_flow: {key} differs from kvcast plan:\n{json.dumps(plan[key])}\n{json.dumps(again[key])}"
            )
    words = f"{text.percent(plan['answer']['attainment']['mean'])}"
    if words not in reader.words():
        raise SystemExit(f"ui_flow: the page does not say {words!r}")
    if reader.outside() or reader.faults:
        raise SystemExit(f"ui_flow: asked for {reader.outside()}, script errors {reader.faults}")


if __name__ == "__main__":
    main()
