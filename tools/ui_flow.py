"""A planner's three questions in a browser, counted and timed: `make ui-test`.

  1  our coding agent has 300 users and a 16k system prompt, Llama-3.3-70B, H200, TTFT under 1 s: how many, what cost?
  2  8 GPUs: how many users?
  3  is the cache worth it for our RAG app, and what would another GPU cost?

Each begins at the first page of a dashboard that was just started and takes at most 6 clicks and texts; its answer must
be what `kvcast ask` says to the words that the page gives.

  python -m tools.ui_flow                  minutes of CPU a question
  python -m tools.ui_flow --only 2 --quick the same way through the page, on windows of minutes
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kvcast import text
from kvcast.jobs import example
from tests.ui.browser import ROOT, Reader, browser, dashboard, missing

MOST_INTERACTIONS = 6
LONG_S = 1800
"""For an answer, on a slow machine."""
ANSWERED, RUNS = "Where the numbers come from", ("run", "reused", "cpu_s", "wall_s")
"""Of a card that is whole; and what two machines, or two tries, may say differently about the same simulations."""
ENDED = "goes on from what it has simulated"
"""What the page says of a question that took longer than the server lets one take."""
QUICK = {
    **{"use": "chat", "model": "llama-3.1-8b", "weights": "bf16", "gpu": "l4", "tp": "1", "price": "0.8"},
    **{"ttft": "3s", "tpot": "100ms", "for": "95%", "seeds": "2", "no-recover": "yes", "users": "30"},
    "set": "run.warmup_s=120\nrun.duration_s=420\nworkload.duration_s=420",
}


def agent(reader: Reader) -> None:
    """The page opens on all of it, with an answer that was prepared: it is computed here."""
    step(reader, "Compute it here", reader.press, "Compute it here")


def reach(reader: Reader) -> None:
    step(reader, "how far do my GPUs reach?", reader.pick, "How far do my GPUs reach?")
    step(reader, "my GPUs: 8", reader.enter, "My GPUs", "8")
    step(reader, "How many users?", reader.press, "How many users?")


def worth(reader: Reader) -> None:
    step(
        reader, "use case: questions about long documents", reader.choose, "Use case", "questions about long documents"
    )
    step(reader, "How many GPUs?", reader.press, "How many GPUs?")


QUESTIONS: dict[int, tuple[Callable[[Reader], None], str, Callable[[dict[str, Any]], list[str]]]] = {
    1: (agent, "Fleet", lambda card: [f"{card['answer']['gpus']} × {card['answer']['device']}", "A month"]),
    2: (reach, "Users at once", lambda card: [f"{card['answer']['users']:,.0f}"]),
    3: (worth, "Fleet", lambda card: ["Without the prefix cache", "a replica more: "]),
}
"""What is done, the number to wait for, and what the page must say of the card."""


def step(reader: Reader, words: str, do: Any, *arguments: Any) -> None:
    began_s = time.monotonic()
    do(*arguments)
    print(f"  {reader.interactions:2}  {words}  ({time.monotonic() - began_s:.1f} s)", flush=True)


def answer(reader: Reader, number: int, path: str) -> dict[str, Any]:
    """The card that the page comes to; what it took is printed."""
    do, headline, _ = QUESTIONS[number]
    began_s = time.monotonic()
    reader.open(path).see("How many GPUs do I need?")
    print(f"question {number}: the page is there after {time.monotonic() - began_s:.1f} s", flush=True)
    do(reader)
    asked_s = time.monotonic()
    reader.patience_s = LONG_S
    reader.see(headline)
    print(f"      headline {time.monotonic() - asked_s:.0f} s after the press", flush=True)
    reader.see(ANSWERED).rest()
    while ENDED in reader.words():
        go = reader.page.get_by_test_id("stBaseButton-primary").inner_text()
        print(f"      ended {time.monotonic() - asked_s:.0f} s after the press, with what it had found", flush=True)
        step(reader, f"{go} (it goes on)", reader.press, go)
        reader.see(ANSWERED).rest()
    print(f"      whole {time.monotonic() - asked_s:.0f} s after it, {reader.interactions} interactions", flush=True)
    if reader.interactions > MOST_INTERACTIONS:
        raise SystemExit(f"ui_flow: {reader.interactions} interactions, expected at most {MOST_INTERACTIONS}")
    reader.click(reader.page.get_by_text(ANSWERED))
    with reader.page.expect_download() as found:
        reader.page.get_by_role("button", name="card.json", exact=True).click()
    card: dict[str, Any] = json.loads(Path(found.value.path()).read_bytes())
    print(f"      {card['plan']['simulations']['cpu_s']:.0f} CPU-s, load {os.getloadavg()[0]:.1f}", flush=True)
    return card


def check(reader: Reader, number: int, card: dict[str, Any]) -> None:
    """The card is the command line's, to the last digit, and the page says it."""
    words = reader.page.get_by_test_id("stCode").filter(has_text="kvcast ask").first.inner_text()
    argv = [sys.executable, "-m", *shlex.split(words), "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, check=False, text=True)
    again = json.loads(done.stdout)
    if without_runs(card) != without_runs(again):
        differ = [key for key in again if without_runs(card.get(key)) != without_runs(again[key])]
        raise SystemExit(f"ui_flow: {', '.join(differ)} differs from {words}")
    said = reader.words()
    parts = QUESTIONS[number][2](card) if card["answer"]["feasible"] else []
    for part in [*parts, text.percent(card["answer"]["attainment"]["mean"])]:
        if part not in said:
            raise SystemExit(f"ui_flow: the page does not say {part!r}")
    if reader.outside() or reader.faults:
        raise SystemExit(f"ui_flow: asked for {reader.outside()}, script errors {reader.faults}")
    print(f"      the same as {words} --json", flush=True)


def without_runs(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_runs(inner) for key, inner in value.items() if key not in (*RUNS, example.PREPARED)}
    return [without_runs(inner) for inner in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="address of a dashboard that runs already; default: start one")
    parser.add_argument("--only", type=int, nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS))
    parser.add_argument("--quick", action="store_true", help="begin at a link with short windows and a small GPU")
    args = parser.parse_args()
    if missing():
        raise SystemExit(f"ui_flow: not run: {missing()}")
    with (
        tempfile.TemporaryDirectory() as name,
        nullcontext(args.server) if args.server else dashboard(Path(name) / "runs") as server,
        browser() as chromium,
    ):
        for number in args.only:
            context = chromium.new_context(viewport={"width": 1440, "height": 900})
            reader = Reader(context.new_page(), server)
            card = answer(reader, number, f"?{urlencode(QUICK)}" if args.quick else "")
            check(reader, number, card)
            context.close()


if __name__ == "__main__":
    main()
