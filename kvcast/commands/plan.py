"""The fewest GPUs that meet the SLOs: how far they reach, what binds them, and what to change.

For every combination of the --vary values the fewest replicas with which every class attains its target are found by
simulation on the same requests, and of those the cheapest, which is settled over independent runs (the lower end of
every interval must meet). Then: the highest load that fleet holds, the resource whose +20 % helps most, the three
changes that help most, the fleet at a larger load and with one replica down. --out keeps every run; the same command
after a kill goes on where it stopped.

  kvcast plan examples/demo.toml --vary hardware.tensor_parallel=1,2 --vary cache.policy=lru,lfu --out plans/demo
  kvcast plan examples/demo.toml --set slo.attainment=0.99 --seeds 3
  kvcast plan examples/mixed_fleet.toml --set plan.pools=true
  kvcast plan examples/demo.toml --from-launch "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 128"
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kvcast.commands import jobs_of, jobs_options, output
from kvcast.text import NO_FLEET

if TYPE_CHECKING:
    from sim.scenario import Scenario

MOST, CONFIDENCE, GROWTH = 64, 0.95, 3.0
GOES_ON = True  #: with what --out keeps, when it is stopped and given again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvcast.commands.run import add_scenario_arguments

    add_scenario_arguments(parser)
    parser.add_argument(
        "--vary",
        metavar="a.b=V1,V2",
        action="append",
        default=[],
        help="a key and the values to try, separated by commas; may be repeated",
    )
    parser.add_argument(
        "--max-replicas", metavar="N", type=int, default=MOST, help="the largest fleet to look at (default 64)"
    )
    parser.add_argument(
        "--fixed", action="store_true", help="the scenario's own cluster.replicas: how far does this fleet reach"
    )
    parser.add_argument(
        "--every",
        action="store_true",
        help="find the fewest replicas of every combination, also where they can only be dearer than the best",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--from-launch",
        metavar="COMMAND",
        help=(
            "take model, engine and fleet from a launch command, 'vllm serve ...', 'python -m sglang.launch_server ...'"
            " or 'trtllm-serve ...', or from the file of a script, compose file, Kubernetes manifest or Helm values"
        ),
    )
    source.add_argument(
        "--from-log",
        metavar="FILE",
        type=Path,
        help="take them, and the KV blocks, from the start-up log of vLLM or SGLang",
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=int,
        default=5,
        help=(
            "settle the answer over N independent runs, and once more over twice as many where they leave it open"
            " (default 5; 1: a sketch)"
        ),
    )
    parser.add_argument(
        "--confidence",
        metavar="SHARE",
        type=float,
        default=CONFIDENCE,
        help="of the attainment's interval (default 0.95)",
    )
    parser.add_argument(
        "--growth",
        metavar="FACTOR",
        type=float,
        default=GROWTH,
        help="also plan for this many times the load (default 3)",
    )
    jobs_options(parser)
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=output,
        help="keep every run and plan.json: a new folder, or an earlier plan to go on with",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    for name, what in (
        ("capacity", "the highest load the fleet holds"),
        ("binding", "what binds"),
        ("advice", "the changes that help most"),
        ("growth", "the larger load"),
        ("n-plus-1", "one replica down"),
        ("model-error", "the two runs at slower and faster step times"),
        ("recover", "whether the fleet comes back after a burst ([plan] has its size and the time)"),
        ("undisturbed", "the run with the prefix cache off, which says whether the fleet lives on its cache"),
    ):
        parser.add_argument(f"--no-{name}", action="store_true", help=f"leave out {what}")


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from kvcast.config import load_scenario, naming
    from kvcast.planner import plan, words
    from kvcast.planner.launch import read_command
    from kvcast.planner.launch_log import read_log
    from workloads.errors import InputError
    from workloads.limits import from_1, within

    within("--seeds", args.seeds, from_1(1000))
    within("--max-replicas", args.max_replicas, from_1(10_000))
    if not 0.5 <= args.confidence < 1:
        raise InputError(f"--confidence {args.confidence:g}: expected a share from 0.5 to below 1, such as 0.95")
    if not 1 < args.growth <= 1000:
        raise InputError(f"--growth {args.growth:g}: expected a factor above 1 and at most 1,000")
    launch = (
        read_command(args.from_launch)
        if args.from_launch is not None
        else read_log(args.from_log)
        if args.from_log is not None
        else None
    )
    given = load_scenario(args.scenario, args.overrides)
    if given.plan.pools:
        return _of_pools(args, given)
    with jobs_of(args) as jobs, naming(args.scenario):
        made = plan(
            args.scenario,
            args.vary,
            args.out,
            overrides=args.overrides,
            launch=launch,
            seeds=args.seeds,
            confidence=args.confidence,
            most=args.max_replicas,
            jobs=jobs,
            fixed=args.fixed,
            every=args.every,
            growth=None if args.no_growth else args.growth,
            capacity=not args.no_capacity,
            binding=not args.no_binding,
            advice=not args.no_advice,
            n_plus_1=not args.no_n_plus_1,
            model_error=not args.no_model_error,
            undisturbed=not args.no_undisturbed,
            recover=not args.no_recover,
        )
    text.clear_clock()
    print(text.to_json(made) if args.json else words.as_text(made))
    if args.out and not args.json:
        print(
            f"\nplan folder: {args.out}"
            + (f" (the chosen fleet with a change made: {args.out}/advice-N.toml)" if made["advice"] else "")
        )
    return 0 if made["answer"]["feasible"] else NO_FLEET


def _of_pools(args: argparse.Namespace, scenario: Scenario) -> int:
    """[plan] pools = true: the cheapest mix of the [[pool]] tables."""
    from kvcast import text
    from kvcast.config import naming
    from kvcast.planner.mixed import as_text, plan_pools
    from workloads.errors import InputError

    for flag, given in (
        ("--vary", args.vary),
        ("--out", args.out),
        ("--fixed", args.fixed),
        ("--from-launch", args.from_launch),
        ("--from-log", args.from_log),
        ("--every", args.every),
        ("--max-replicas", args.max_replicas != MOST),
        ("--confidence", args.confidence != CONFIDENCE),
        ("--growth", args.growth != GROWTH),
        ("[plan] splits = true", scenario.plan.splits),
    ):
        if given:
            raise InputError(f"{flag} with [plan] pools = true: expected one of them, it looks for mixes of [[pool]]")
    with jobs_of(args) as jobs, naming(args.scenario):
        if not scenario.pool:
            raise InputError("[plan] pools = true: expected [[pool]] tables with it, of which it looks for a mix")
        made = plan_pools(scenario, args.seeds, jobs)
    text.clear_clock()
    print(text.to_json(made) if args.json else as_text(made))
    return 0 if made["answer"]["feasible"] else NO_FLEET
