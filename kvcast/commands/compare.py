"""Simulate variants of a scenario on the same arrivals, side by side.

Every combination of the --vary values is one variant; all variants of a seed see the same requests at the same times,
so their differences are paired. With --seeds N, each value is the mean over N seeds with its 95 % interval, and `vs
first` is the mean paired difference to the first variant; the verdict is over all of a variant's seeds. Of a recorded
trace nothing is drawn: it is simulated once, whatever --seeds says.

  kvcast compare examples/demo.toml --vary cache.policy=lru,lfu --vary cluster.replicas=1,2
  kvcast compare examples/demo.toml --vary cache.enabled=true,false --seeds 5 --jobs 2
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvcast.commands.run import add_scenario_arguments

    add_scenario_arguments(parser)
    parser.add_argument(
        "--vary",
        metavar="a.b=V1,V2",
        action="append",
        default=[],
        required=True,
        help="a key and the values to try, separated by commas; may be repeated",
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=int,
        default=1,
        help="repeat with N seeds, from the scenario's own upwards (default 1)",
    )
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="processes to use (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from kvcast.config import load_doc, naming
    from kvcast.studies import compare
    from workloads.limits import from_1, within

    within("--seeds", args.seeds, from_1(10_000))
    within("--jobs", args.jobs, from_1(256))
    variants = compare.variants(load_doc(args.scenario, args.overrides), args.vary, args.seeds, args.scenario)
    with naming(args.scenario):
        variants, refused = compare.that_fit(variants)
        results = compare.simulate_all(variants, args.jobs)
    text.clear_clock()
    told = compare.as_table(results, refused=refused)
    print(text.to_json(compare.as_document(results, refused)) if args.json else told)
    return 0
