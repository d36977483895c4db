"""Fit a scenario to your own server, from what a benchmark measured of it.

Takes results with their requests (vllm bench serve --save-detailed, sglang.bench_serving --output-details, guidellm,
aiperf, or vLLM's own request timestamps), replays the same requests, and estimates on one half of them the few numbers
that they decide: factors of the profile's times, host time, front end, KV blocks. The other half is the test. What the
data leave open stays as it is and is named with its reason (docs/fit-server.md).

  kvcast fit-server R.json --log server.log --set hardware.gpu=h200 --out fitted.toml
  kvcast fit-server c1.json c16.json c64.json --scenario S.toml --out fitted.toml
  kvcast fit-server R.json --log server.log --scrapes pages/ --set hardware.gpu=h200
  kvcast run fitted.toml --against R.json
"""

from __future__ import annotations

import argparse
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast.commands import output, source

if TYPE_CHECKING:
    from sim.scenario import Scenario
    from workloads.columns import Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", metavar="RESULT", nargs="+", type=Path, help="what a benchmark measured; several are one fit"
    )
    parser.add_argument("--log", metavar="FILE", type=Path, help="the server's start-up log: its flags and KV blocks")
    parser.add_argument(
        "--scrapes",
        metavar="PATH",
        type=Path,
        help="the server's /metrics meanwhile, OpenMetrics text with timestamps or a folder of pages named by their"
        " second: its hit rate is taken, its time of an output token at each batch is held against the fit",
    )
    parser.add_argument(
        "--scenario", metavar="S.toml", type=source, help="the server as a scenario, instead of or beside its log"
    )
    parser.add_argument(
        "--set", metavar="a.b=VALUE", action="append", default=[], dest="overrides", help="a key more, as run takes it"
    )
    parser.add_argument("--run", metavar="NAME", dest="run_name", help="which one of a result with several (guidellm)")
    parser.add_argument("--out", metavar="FITTED.toml", type=output, help="write the fitted scenario here")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    import kvcast
    from kvcast import api, text
    from kvcast.fitted import as_toml, fit_server, held, read_run
    from kvcast.fitted.written import sets
    from kvcast.observed import logged, scraped
    from kvcast.present import fitted_text
    from workloads.files import replace_file

    scenario, fixed = _scenario(args)
    own = _own_trace(scenario, args)
    resolved = api.resolve(scenario)
    seen = scraped(args.scrapes) if args.scrapes else logged(args.log) if args.log else None
    hit_rate = (seen.hit_rate or 0.0) if seen is not None and resolved.scenario.cache.enabled else 0.0
    runs = [read_run(path, own, args.run_name, hit_rate, resolved.scenario.engine.block_size) for path in args.results]
    text.progress(f"fitting to {sum(map(len, runs)):,} requests")
    fitted = fit_server(resolved, runs, fixed)
    text.clear_clock()
    found = fitted.document() | ({} if seen is None else {"watched": held(fitted, seen)})
    if args.out is not None and fitted.improves:
        command = f"kvcast fit-server {' '.join(sys.argv[2:])}"
        written = as_toml(fitted, scenario, kvcast.__version__, command, date.today().isoformat())
        replace_file(args.out, written.encode())
    if args.json:
        print(text.to_json(found))
        return 0
    print(fitted_text.describe(found))
    if fitted.improves:
        print("\n" + (f"written: {args.out}" if args.out else "as overrides: --set " + " --set ".join(sets(fitted))))
    return 0


def _scenario(args: argparse.Namespace) -> tuple[Scenario, dict[str, str]]:
    """The server before the fit, and what is known of it and from where."""
    from kvcast.config import load_doc, override, scenario_from_doc
    from kvcast.planner.launch_log import read_log
    from workloads.errors import InputError

    document: dict[str, Any] = load_doc(args.scenario) if args.scenario else _asked(args.results[0], args.run_name)
    launch = read_log(args.log) if args.log else None
    document = override(document, [*(launch.sets if launch else ()), *args.overrides])
    if not {"gpu", "profile"} & set(document.get("hardware", {})):
        raise InputError(
            "fit-server: no GPU is named; expected --set hardware.gpu=NAME or hardware.profile, or --scenario with one"
        )
    if launch is not None:
        launch.fit(document, "the server's log")
        document = override(document, [*launch.sets, *args.overrides])
    fixed = {}
    if "kv_blocks" in document.get("engine", {}):
        fixed["engine.kv_blocks"] = "read from the log" if launch and launch.logged_tokens else "given by the scenario"
    return scenario_from_doc(document, str(args.scenario or "fit-server")), fixed


def _asked(result: Path, run: str | None) -> dict[str, Any]:
    """The load of a result, as the scenario of a run that is held against it."""
    from kvcast.benchmarks.against import read_truth
    from kvcast.fitted.runs import closed_places

    places = closed_places(read_truth(result, run))
    workload: dict[str, Any] = {"trace": str(result.absolute())}
    if places:
        workload |= {"loop": "concurrency", "concurrency": places}
    return {"name": f"fitted to {result.name}", "run": {"warmup_s": 0.0}, "workload": workload}


def _own_trace(scenario: Scenario, args: argparse.Namespace) -> Workload | None:
    """The requests of the scenario's own trace, whose prefixes a result does not say."""
    from kvcast.api import load_workload

    if not args.scenario or scenario.workload.trace is None:
        return None
    return load_workload(scenario.workload, scenario.seed)
