"""Is the prefix cache worth the memory it takes? GPUs saved at equal attainment, over GiB of KV memory.

For every KV size the fewest replicas that meet the target of [slo] (as kvcast run judges, and keep up with arrivals)
are found by simulation, with the cache on; the zero is the cache off in the largest of these sizes. Tokens, FLOPs, TTFT
and busy time stand beside it, because they are saved in different shares.

  kvcast value examples/demo.toml
  kvcast value examples/demo.toml --kv-blocks 2000,4000,8000,16000 --set slo.attainment=0.99
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvcast.commands import kv_sizes, replicas
    from kvcast.commands.run import add_scenario_arguments

    add_scenario_arguments(parser)
    parser.add_argument(
        "--kv-blocks",
        metavar="N,...",
        type=kv_sizes,
        help="KV blocks per replica to try (default: 1/16 to all of what the scenario has)",
    )
    parser.add_argument("--most", metavar="N", type=replicas, default=64, help="replicas to try at most (default 64)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from kvcast.config import load_scenario, naming
    from kvcast.studies import value

    scenario = load_scenario(args.scenario, args.overrides)
    with naming(args.scenario):
        found = value.curve(scenario, args.kv_blocks, args.most)
    print(text.to_json(value.as_document(found)) if args.json else value.as_table(found))
    return 0
