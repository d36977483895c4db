"""Simulate one scenario and say whether it meets its targets.

The scenario is a TOML file (examples/*.toml; unknown keys are errors). The same scenario is simulated a second time with
the prefix cache off, on the same arrivals, to say what the cache is worth; --no-baseline leaves that out.

  kvcast run examples/demo.toml
  kvcast run examples/demo.toml --set cluster.replicas=4 --set cache.policy=lfu --out runs/four
  kvcast run examples/demo.toml --set slo.ttft_s=0.5 --set slo.attainment=0.95 --check
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

MISSED_SLO = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_scenario_arguments(parser)
    parser.add_argument("--out", metavar="DIR", type=Path, help="write a run folder: scenario, summary, requests as Parquet")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the attainment target of [slo] is missed")
    parser.add_argument("--no-baseline", action="store_true", help="do not simulate again with the prefix cache off")
    parser.add_argument("--horizon", metavar="SECONDS", help="stop the clock here, whatever is unfinished (run.horizon_s)")


class PrintKeys(argparse.Action):
    """--keys: every key of a scenario file, and no run."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from kvcast.reference import as_text

        print(as_text())
        parser.exit()


def add_scenario_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO.toml", help="the scenario file")
    parser.add_argument("--keys", action=PrintKeys, nargs=0, help="list every key of a scenario file with its default and meaning, and exit")
    parser.add_argument(
        "--set", metavar="a.b=VALUE", action="append", default=[], dest="overrides",
        help="change one key, such as engine.kv_blocks=5000 or workload.class.chat.rate=2; a.b= removes it; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    from kvcast import api, config, text
    from workloads.errors import InputError

    overrides = args.overrides + ([f"run.horizon_s={args.horizon}"] if args.horizon else [])
    scenario = config.load_scenario(args.scenario, overrides)
    if args.check and scenario.slo.attainment is None:
        raise InputError(f"{args.scenario}: [slo] attainment is missing: --check needs a target, such as --set slo.attainment=0.95")
    if args.out:
        from kvcast import runs

        runs.check_replaceable(args.out)
    text.progress("loading the workload")
    prepared = api.prepare(scenario)
    text.progress(f"simulating {len(prepared.workload):,} requests")
    on_clock = text.clock(api.last_arrival_s(prepared))
    result = api.run(prepared, on_clock=on_clock)
    baseline = None
    if scenario.cache.enabled and not args.no_baseline:
        text.progress("simulating again with the prefix cache off")
        baseline = api.run(api.without_cache(prepared), on_clock=on_clock)
    text.clear_clock()
    if args.out:
        runs.save_run(args.out, result, baseline)
    if args.json:
        print(text.to_json(api.as_document(result, baseline)))
    else:
        from kvcast import summary_text

        print(summary_text.describe(result, baseline))
        if args.out:
            print(f"\nrun folder: {args.out}")
    if args.check and result.report.summary["attainment"] < scenario.slo.attainment:
        print(f"kvcast: attainment {result.report.summary['attainment']:.4f} is below {scenario.slo.attainment}", file=sys.stderr)
        return MISSED_SLO
    return 0
