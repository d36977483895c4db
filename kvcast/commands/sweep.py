"""Simulate a grid of scenarios in several processes, and keep every run.

Every combination of the --vary values is simulated once for each seed and kept under DIR/runs as a run folder; the same
command after a kill, or with a larger grid, simulates only what is not there yet. DIR/sweep.parquet has one row a run.
--differences adds every variant against the first one with 95 % intervals, as `kvcast compare` does
(docs/comparisons.md).

  kvcast sweep examples/demo.toml --vary cache.policy=lru,lfu,s3fifo --vary engine.kv_blocks=2000,4000,8000 --jobs 2
  --out sweeps/demo kvcast sweep examples/demo.toml --vary cluster.router=round-robin,least-loaded --seeds 5
  --differences --out sweeps/routers
"""

from __future__ import annotations

import argparse

from kvcast.commands import jobs_of

GOES_ON = True  #: with what --out keeps, when it is stopped and given again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvcast.commands.compare import add_grid_arguments

    add_grid_arguments(parser)
    parser.add_argument(
        "--out",
        metavar="DIR",
        required=True,
        help="where the sweep is kept: a new folder, or an earlier sweep to go on with",
    )
    parser.add_argument(
        "--differences", action="store_true", help="also print every variant against the first, with intervals"
    )


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from kvcast.studies import compare, sweeps
    from workloads.errors import InputError

    if not 1 <= args.seeds <= 10_000:
        raise InputError(f"--seeds {args.seeds}: expected 1 to 10,000")
    with jobs_of(args) as jobs:
        done = sweeps.sweep(
            args.scenario,
            args.vary,
            args.out,
            seeds=args.seeds,
            jobs=jobs,
            overrides=args.overrides,
            on_done=sweeps.watched(),
        )
    text.clear_clock()
    if args.json:
        print(text.to_json(compare.as_document(done.results, done.refused)))
        return 0
    print(compare.as_table(done.results, args.differences, done.refused))
    print(f"\n{len(done.results):,} runs ({done.reused:,} were there already): {done.folder}/sweep.parquet")
    return 0
