"""A scenario of the load that a running vLLM or SGLang server has, from its /metrics (docs/observe.md).

Reads the page at most 21 times, sends nothing, changes nothing. What a metrics page cannot say is listed, and what
was assumed instead. Pages that were saved are read too: two with the seconds between them, or one with the seconds
since the server started, or pages over time in one file (OpenMetrics with timestamps, as kvcast export writes it).

  kvcast observe http://localhost:8000 --for 5m --set hardware.gpu=h200 --out S.toml
  kvcast observe before.txt after.txt --seconds 60
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from kvcast.commands import output, source

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
LONGEST_S = 24 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pages", metavar="URL", nargs="+", type=source, help="the server, or one or two saved pages")
    parser.add_argument(
        "--for", metavar="TIME", type=seconds, dest="watched_s", help="how long to watch: 60s, 5m (default: 60s)"
    )
    parser.add_argument(
        "--seconds", metavar="TIME", type=seconds, help="saved pages: between them, or since the server started"
    )
    parser.add_argument("--served-model", metavar="NAME", default="", help="which, where the server names several")
    parser.add_argument("--out", metavar="S.toml", type=output, help="write the scenario here instead of printing it")
    parser.add_argument(
        "--set", metavar="a.b=VALUE", action="append", default=[], dest="overrides", help="a key more, as run takes it"
    )


def seconds(text: str) -> float:
    """The value of --for and --seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *(s|m|min|h)?", text.strip())
    value = float(found[1]) * UNITS[found[2] or ""] if found else 0.0
    if not 0.1 <= value <= LONGEST_S * 365:
        raise argparse.ArgumentTypeError(f"{text[:40]}: expected a time such as 60s, 5m or 2h")
    return value


def run(args: argparse.Namespace) -> int:
    from kvcast.observed import as_scenario, is_series, saved, seen, series, watch
    from workloads.errors import InputError
    from workloads.files import replace_file

    if args.pages[0].startswith(("http://", "https://")):
        watched_s = args.watched_s or 60.0
        if len(args.pages) > 1 or args.seconds or watched_s > LONGEST_S:
            raise InputError(f"{args.pages[-1][:80]}: expected one server, watched --for at most a day")
        found = seen(watch(args.pages[0], watched_s), model=args.served_model)
    elif len(args.pages) == 1 and is_series(Path(args.pages[0])):
        if args.seconds or args.watched_s:
            raise InputError(
                f"{args.pages[0]}: pages over time say when they are of, expected no --seconds and no --for"
            )
        found = seen(series(Path(args.pages[0])), model=args.served_model)
    else:
        if len(args.pages) > 2 or args.seconds is None or args.watched_s:
            raise InputError(
                f"{args.pages[0]}: expected a URL (http://...), or one or two saved pages and --seconds, the time"
                " between them or since the server started"
            )
        pages = [saved(Path(name)) for name in args.pages]
        found = seen([(0.0, page) for page in pages], args.seconds, args.served_model)
    scenario = as_scenario(found, args.overrides)
    if args.out is None:
        print(scenario, end="")
        return 0
    replace_file(args.out, scenario.encode())
    print(f"{args.out}: {found.engine}, {found.model or 'no model named'}, {found.rate:.4g} requests/s")
    for line in scenario.splitlines():
        if line.startswith("# "):
            print(f"  {line[2:]}", file=sys.stderr)
    return 0
