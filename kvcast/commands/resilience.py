"""Does the fleet come back? Its two branches under a load that rises and falls, collapses by itself, shocks by kind,
and the changes that make it come back.

A fleet that lives on its prefix cache may hold a load for hours and not come back to it once a burst has filled it with
waiting requests (docs/resilience.md). Asked are the scenario's own replicas; its [plan] section has the burst and the
time to come back. --out keeps every run; the same command after a kill goes on where it stopped.

  kvcast resilience examples/demo.toml --set cluster.replicas=1
  kvcast resilience examples/demo.toml --no-remedies --seeds 5 --hours 8 --out resilience/demo --html demo.html
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from kvcast.commands import jobs_of, jobs_options, output

PARTS = (
    ("sweep", "the load that rises and falls"),
    ("collapse", "collapses without a shock"),
    ("shocks", "shocks of every kind"),
    ("remedies", "the changes that help"),
)

GOES_ON = True  #: with what --out keeps, when it is stopped and given again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvcast.commands.run import add_scenario_arguments

    add_scenario_arguments(parser)
    parser.add_argument("--seeds", metavar="N", type=int, default=3, help="runs of every question (default 3)")
    parser.add_argument(
        "--hours", metavar="H", type=float, default=2.0, help="in which a collapse is waited for (default 2)"
    )
    jobs_options(parser)
    parser.add_argument("--out", metavar="DIR", type=output, help="keep every run and resilience.json, and go on")
    parser.add_argument("--html", metavar="FILE", type=output, help="also write the plot of the two branches as a page")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    for name, what in PARTS:
        parser.add_argument(f"--no-{name}", action="store_true", help=f"leave out {what}")


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from kvcast.config import load_scenario, naming
    from kvcast.planner.resilience import resilience
    from kvcast.present import resilience_text
    from workloads.errors import InputError
    from workloads.files import replace_file
    from workloads.limits import above_0, from_1, within

    within("--seeds", args.seeds, from_1(1000))
    within("--hours", args.hours, above_0(10_000))
    if args.html is not None and not Path(args.html).parent.is_dir():
        raise InputError(f"--html {args.html}: no such folder; expected a file in one that is there")
    scenario = load_scenario(args.scenario, args.overrides)
    asked: dict[str, Any] = {name: not getattr(args, f"no_{name}") for name, _ in PARTS}
    asked |= {"seeds": args.seeds, "hours": args.hours}
    with jobs_of(args) as jobs, naming(args.scenario):
        if args.out is None:
            with tempfile.TemporaryDirectory(prefix="kvcast-resilience-") as folder:
                made = resilience(scenario, Path(folder), jobs=jobs, **asked)
        else:
            made = resilience(scenario, Path(args.out), jobs=jobs, **asked)
            replace_file(Path(args.out) / "resilience.json", (text.to_json(made) + "\n").encode())
    print(text.to_json(made) if args.json else resilience_text.as_text(made))
    if args.html is not None:
        replace_file(Path(args.html), resilience_text.as_html(made).encode())
    return 0
