"""Simulate variants of a scenario on the same arrivals, side by side.

Every combination of the --vary values is one variant; all variants of a seed see the same requests at the same times,
so their differences are paired. With --seeds N, each value is the mean over N seeds with its 95 % interval, and `vs
first` is the mean paired difference to the first variant; the verdict is over all of a variant's seeds. Of a recorded
trace nothing is drawn: it is simulated once, whatever --seeds says.

  kvcast compare examples/demo.toml --vary cache.policy=lru,lfu --vary cluster.replicas=1,2
  kvcast compare examples/demo.toml --vary cache.enabled=true,false --seeds 5 --jobs 2
  kvcast compare two-h200.toml one-b200.toml --html side-by-side.html

Without --vary, two scenario files or more are the variants, by the files' names, and may differ in anything, model and
GPU included; a file of [variant.NAME] tables, each a scenario, holds several. The first one's seed is everybody's.
"""

from __future__ import annotations

import argparse

from kvcast.commands import jobs_of, jobs_options, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_grid_arguments(parser, or_files=True)
    parser.add_argument(
        "--html", metavar="FILE", type=output, help="write the comparison as one page that opens anywhere"
    )


def add_grid_arguments(parser: argparse.ArgumentParser, or_files: bool = False) -> None:
    """or_files: scenario files may be the variants, in place of --vary."""
    from kvcast.commands.run import add_scenario_arguments

    add_scenario_arguments(parser, several=or_files)
    parser.add_argument(
        "--vary",
        metavar="a.b=V1,V2",
        action="append",
        default=[],
        required=not or_files,
        help="a key and the values to try, separated by commas; may be repeated",
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=int,
        default=1,
        help="repeat with N seeds, from the scenario's own upwards (default 1)",
    )
    jobs_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from kvcast.config import load_doc, naming
    from kvcast.present.html_comparison import of_comparison
    from kvcast.studies import compare, named_variants
    from workloads.errors import InputError
    from workloads.files import replace_file
    from workloads.limits import from_1, within

    within("--seeds", args.seeds, from_1(10_000))
    named, first = {}, str(args.scenario[0])
    if args.vary and len(args.scenario) > 1:
        raise InputError(f"--vary with {len(args.scenario)} scenario files: expected one file with it, or no --vary")
    if args.vary:
        variants = compare.variants(load_doc(first, args.overrides), args.vary, args.seeds, first)
    else:
        named = named_variants.read(args.scenario, args.overrides)
        variants = named_variants.variants(named, args.seeds)
    with jobs_of(args) as jobs, naming(first):
        variants, refused = compare.that_fit(variants)
        results = compare.simulate_all(variants, jobs)
    text.clear_clock()
    found = compare.as_document(results, refused)
    if named:
        found |= {"names": list(named), "settings": named_variants.settings(named)}
    if args.html:
        replace_file(args.html, of_comparison(found).encode())
    print(text.to_json(found) if args.json else compare.as_table(results, refused=refused))
    return 0
