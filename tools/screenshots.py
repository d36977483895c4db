"""Pictures of every page of the dashboard: three sizes, light and dark, for the docs and for looking at critically.

  python -m tools.screenshots --out runs/screenshots              every page as the window shows it
  python -m tools.screenshots --tall --only Cache Compare         two of them to their ends
  python -m tools.screenshots --server http://localhost:8501      of a dashboard that runs already

Shown is the bundled example with its plan; Ask has the answer that kvcast comes with, or a small question's; Cache and
Compare have their button pressed, Workload its second class chosen, Resilience a shock."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image

from kvcast.jobs import example
from tests.ui.browser import Reader, browser, dashboard, missing
from tools.ui_flow import ANSWERED, QUICK

SIZES = ((1440, 900), (1024, 768), (390, 844))
SCHEMES = ("light", "dark")
LIMIT_BYTES = 300_000
LONG_MS = 900_000
"""For a plan on a slow machine."""


def ask(reader: Reader) -> None:
    reader.open("" if example.kept() else f"?{urlencode(QUICK)}")
    if not reader.metrics():
        reader.press("How many GPUs?").see(ANSWERED)
    reader.rest()


def plan(reader: Reader) -> None:
    _finished(reader.open("plan"), "Find the fewest GPUs")


def workload(reader: Reader) -> None:
    reader.open("workload").see("Goodput").pick("coding-agent").see("repository")


def cache(reader: Reader) -> None:
    reader.open("cache")
    for start in ("Replay the requests", "Find the GPUs", "Simulate the changes"):
        _finished(reader, start)


def compare(reader: Reader) -> None:
    reader.open("compare")
    _finished(reader, "Compare (")


def resilience(reader: Reader) -> None:
    reader.open("resilience").press("Run with this shock").see("Orange: the shock").rest()


def calibration(reader: Reader) -> None:
    reader.open("calibration")


def timeline(reader: Reader) -> None:
    reader.open("timeline")
    _finished(reader, "Simulate this window")


def life(reader: Reader) -> None:
    reader.open("life").see("New tokens")


def _finished(reader: Reader, start: str) -> None:
    """Press the page's button, unless its answer is there already, and wait for the answer."""
    button = reader.page.get_by_test_id("stMain").get_by_role("button", name=start)
    if button.count():
        reader.click(button.first)
        button.first.wait_for(state="hidden")
    reader.page.get_by_test_id("stMain").get_by_role("button", name="Cancel").first.wait_for(
        state="hidden", timeout=LONG_MS
    )
    reader.rest()


PAGES: dict[str, Callable[[Reader], None]] = {
    "Ask": ask,
    "Plan": plan,
    "Workload": workload,
    "Cache": cache,
    "Compare": compare,
    "Resilience": resilience,
    "Calibration": calibration,
    "Timeline": timeline,
    "Life": life,
}


def take(chromium: Any, server: str, out: Path, names: list[str], tall: bool) -> list[Path]:
    """Write NAME-WIDTH-SCHEME.png of each page; the paths."""
    found = []
    for width, height in SIZES:
        for scheme in SCHEMES:
            context = chromium.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
            )
            reader = Reader(context.new_page(), server)
            reader.patience_s = LONG_MS / 1e3
            for name in names:
                reader.page.set_viewport_size({"width": width, "height": height})
                PAGES[name](reader)
                if tall:
                    end = reader.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
                    reader.page.set_viewport_size({"width": width, "height": end})
                    reader.rest()
                path = out / f"{name.lower()}-{width}-{scheme}.png"
                reader.page.get_by_test_id("stMain").evaluate("main => main.scrollTo(0, 0)")
                _drawn(reader)
                reader.page.screenshot(path=path, animations="disabled")
                _compress(path)
                found.append(path)
                print(f"{path} {path.stat().st_size / 1e3:.0f} kB", flush=True)
            context.close()
    return found


def _drawn(reader: Reader) -> None:
    """Wait until every plot in the page has its lines, and the fonts are there."""
    reader.page.wait_for_function(
        "() => [...document.querySelectorAll('.stPlotlyChart')].every(p => p.querySelector('.main-svg')) &&"
        " document.fonts.status === 'loaded'"
    )
    reader.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def _compress(path: Path) -> None:
    """256 colours are enough for a page of text and lines."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/screenshots"))
    parser.add_argument("--only", nargs="+", choices=list(PAGES), default=list(PAGES), metavar="PAGE")
    parser.add_argument("--tall", action="store_true", help="windows as high as their pages")
    parser.add_argument("--server", help="address of a dashboard that runs already; default: start one")
    args = parser.parse_args()
    if missing():
        raise SystemExit(f"screenshots: {missing()}")
    args.out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        nullcontext(args.server) if args.server else dashboard(Path(folder) / "runs") as server,
        browser() as chromium,
    ):
        large = [
            path
            for path in take(chromium, server, args.out, args.only, args.tall)
            if path.stat().st_size > LIMIT_BYTES and not args.tall
        ]
    if large:
        raise SystemExit(f"screenshots: above {LIMIT_BYTES / 1e3:.0f} kB: {', '.join(map(str, large))}")


if __name__ == "__main__":
    main()
