"""Replay a trace through one prefix cache, without time: which policy keeps the right blocks, and at what capacity.

Counting rules: all-ids counts every block of a prompt, its partial last one too; full-blocks counts what an engine can
reuse: full blocks only, and never the whole prompt. leaf-first is the engine's own cache, one request at a time, and
takes every policy of a timed run (docs/policies.md): what is served is pinned, answers are entered, and only blocks
with nothing cached below them go. A hit rate means nothing without its rule and block size, so every row states both.

The policy "optimal" is the most hits any eviction could have under the rule, with its proof checked (leaf-first: the
request being served holds all its blocks), and beside it every other policy's share of it; --depth-weight adds the
bound on prefill work saved and its gap (docs/optimum.md).

Requests come in order of time, as a cache would see them: at their recorded arrivals, and after an answer by its
nominal length and the delay. --order file takes them row by row instead, which for a trace of sessions is one session
after another. A scenario file in place of the trace replays its workload in blocks of its engine's size.

  kvcast cache conversation_trace.jsonl --format mooncake --policy lru,fifo,lfu --capacity-blocks 1000,10000 --rule
  all-ids kvcast cache conversation_trace.jsonl --policy lru,s3fifo,my_policy:MyPolicy --capacity-blocks 200000 --rule
  leaf-first --block-size 16 kvcast cache conversation_trace.jsonl --policy lru,optimal --capacity-blocks 32000,96000
  --block-size 16 --depth-weight 0.0167 kvcast cache conversation_trace.jsonl --policy all --capacity-blocks auto kvcast
  cache conversation_trace.jsonl --policy all --rule leaf-first --capacity-blocks auto --block-size 16 kvcast cache
  conversation_trace.jsonl --policy lru,optimal --capacity-blocks 32000 --block-size 16,32,64,128 kvcast cache
  examples/demo.toml --policy all --capacity-blocks auto
"""

from __future__ import annotations

import argparse
import itertools
from typing import TYPE_CHECKING, Any

from kvcast.commands import block_sizes, depth_weight, no_trace_options, of_trace, source, trace_options

if TYPE_CHECKING:
    from workloads.columns import Workload

AUTO = 16
"""Capacities of --capacity-blocks auto, besides unlimited."""
ONE_PASS_FROM = 2
"""Beyond this many capacities one pass over LRU's stack distances is cheaper than replays."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace", metavar="TRACE", type=source, help="a trace file with prefix identity, or a scenario file (.toml)"
    )
    trace_options(parser)
    parser.add_argument(
        "--policy",
        metavar="P,...",
        default="lru",
        help="eviction policies, separated by commas, or all of the rule and the optimum (default lru)",
    )
    parser.add_argument(
        "--capacity-blocks",
        metavar="N,...",
        default="unlimited",
        help="capacities in blocks, unlimited (the default), or auto: 16 up to where LRU hits all it can",
    )
    parser.add_argument(
        "--rule", metavar="R,...", default="full-blocks", help="all-ids, full-blocks (the default) or leaf-first"
    )
    parser.add_argument(
        "--block-size",
        metavar="TOKENS,...",
        type=block_sizes,
        default=[None],
        help=(
            "tokens per block, separated by commas (default: that of the trace's own hashes, or of the scenario's"
            " engine); capacities then count blocks of the first size, the same memory for all"
        ),
    )
    parser.add_argument(
        "--capacity-rule",
        metavar="R",
        default="bypass",
        help=(
            "optimal only: bypass (blocks may go as soon as their request has ended: the default, and the rule of a"
            " flat replay's other policies) or must-insert (always so under leaf-first)"
        ),
    )
    parser.add_argument(
        "--depth-weight",
        metavar="W",
        type=depth_weight,
        help=(
            "optimal only: extra cost of a token per 512 tokens before it, relative to the first (Llama-3.1-8B: 1/60 ="
            " 0.0167)"
        ),
    )
    parser.add_argument(
        "--order",
        choices=("time", "file"),
        default="time",
        help="take requests by the time they would start (the default), or in the order of the file",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON rows even on a terminal (elsewhere they are the default)"
    )


def run(args: argparse.Namespace) -> int:
    import sys

    from kvcast import text
    from sim.optimum.curve import optimum_curve

    fixed = None if args.capacity_blocks == "auto" else [_capacity(value) for value in args.capacity_blocks.split(",")]
    workload, sizes = _source(args)
    rows = []
    asked = {
        (rule, size): _policies(args.policy, rule) for rule, size in itertools.product(args.rule.split(","), sizes)
    }
    done, total = 0, sum(map(len, asked.values()))
    for (rule, size), policies in asked.items():
        first = _spread(workload, rule, sizes[0], args.order) if fixed is None else fixed
        capacities = [c if c is None or size is None else max(c * sizes[0] // size, 1) for c in first]
        for policy in policies:
            text.progress_share(done, total, f"{policy}, {rule}, block size {size or 'of the trace'}")
            done += 1
            if policy == "optimal":
                rows += optimum_curve(
                    workload, capacities, rule, size, args.capacity_rule, args.depth_weight, args.order
                )
            else:
                found = _policy_rows(workload, capacities, policy, rule, size, args.order)
                rows += (
                    found
                    if args.depth_weight is None
                    else [
                        row | {"work_ratio": _work_ratio(workload, row, args.depth_weight, args.order)} for row in found
                    ]
                )
    _add_shares(rows)
    if not workload.prefix_identity:
        print(f"kvcast: {args.trace}: the trace says nothing about shared text; every hit rate is 0", file=sys.stderr)
    if args.json or not sys.stdout.isatty():
        print(text.to_json(rows))
    else:
        print("\n".join([_table(rows), *_share_lines(rows), f"requests taken {rows[0]['order']}"]))
    return 0


def _source(args: argparse.Namespace) -> tuple[Workload, list[Any]]:
    """(requests, block sizes) of a trace, or of a scenario file: its own workload, in its engine's blocks."""
    from kvcast import api, config

    if not args.trace.endswith(".toml"):
        return api.load_workload(of_trace(args.trace, args), untimed=True), args.block_size
    no_trace_options(args.trace, args)
    scenario = config.load_scenario(args.trace, [])
    with config.naming(args.trace):
        workload = api.load_workload(scenario.workload, scenario.seed)
    return workload, [scenario.engine.block_size] if args.block_size == [None] else args.block_size


def _policies(named: str, rule: str) -> list[str]:
    """The names asked for; all: every policy that the rule has, and the optimum."""
    from sim.kvcache.policies import POLICIES as OF_THE_ENGINE
    from sim.kvcache.replay import POLICIES
    from sim.kvcache.rows import LEAF_FIRST

    if named != "all":
        return named.split(",")
    return [*(OF_THE_ENGINE if rule == LEAF_FIRST else POLICIES), "optimal"]


def _policy_rows(
    workload: Workload, capacities: list[int | None], policy: str, rule: str, block_size: int | None, order: str
) -> list[dict]:
    """LRU at many capacities takes one pass, every other replay one for each."""
    from sim.kvcache.replay import hit_rate_curve
    from sim.kvcache.rows import LEAF_FIRST
    from sim.optimum.lru_curve import lru_curve

    size = workload.hash_block_tokens if block_size is None else block_size
    in_one = (
        policy == "lru"
        and rule != LEAF_FIRST
        and len(capacities) > ONE_PASS_FROM
        and all(c is None or c > 0 for c in capacities)
    )
    if in_one and size is not None and size > 0:  # otherwise the replay says what is wrong
        return lru_curve(workload, rule, size, order).rows(workload, capacities)
    return hit_rate_curve(workload, capacities, policy, rule, block_size, order)


def _spread(workload: Workload, rule: str, block_size: int | None, order: str) -> list[int | None]:
    from sim.kvcache.rows import LEAF_FIRST
    from sim.optimum.lru_curve import lru_curve
    from workloads.errors import InputError

    size = workload.hash_block_tokens if block_size is None else block_size
    if size is None or size < 1:
        raise InputError(
            f"--block-size {size}: expected tokens, at least 1 (a trace without hashes has no block size of its own)"
        )
    return [*lru_curve(workload, "full-blocks" if rule == LEAF_FIRST else rule, size, order).spread(AUTO), None]


def _work_ratio(workload: Workload, row: dict, depth_weight: float, order: str) -> float:
    from sim.kvcache.replay import replay
    from sim.optimum.curve import work_ratio

    result = replay(workload, row["policy"], row["capacity_blocks"], row["rule"], row["block_size"], order)
    return work_ratio(workload, result.depth_blocks, row["block_size"], depth_weight)


def _add_shares(rows: list[dict]) -> None:
    """Beside every policy's row, what it is of the optima asked for at the same capacity."""
    from sim.optimum.curve import shares

    optima = [row for row in rows if row["policy"] == "optimal"]
    for row in rows:
        if optima and row["policy"] != "optimal":
            row["optimum_shares"] = shares(row, optima)


def _share_lines(rows: list[dict]) -> list[str]:
    from kvcast import text

    return [
        f"{row['policy']}, {row['rule']}, block size {row['block_size']},"
        f" {'unlimited' if row['capacity_blocks'] is None else text.count(row['capacity_blocks'])} blocks: {share}"
        for row in rows
        for share in row.get("optimum_shares", ())
    ]


def _capacity(value: str) -> int | None:
    from workloads.errors import InputError
    from workloads.limits import MAX_KV_BLOCKS, from_1, within

    if value in ("unlimited", "infinite", "inf"):
        return None
    try:
        blocks = int(value)
    except ValueError:
        raise InputError(f"--capacity-blocks {value}: expected a number of blocks, or unlimited") from None
    return within("--capacity-blocks", blocks, from_1(MAX_KV_BLOCKS))


def _table(rows: list[dict]) -> str:
    from kvcast import text

    header = ["policy", "rule", "block size", "capacity (blocks)", "hit rate (blocks)", "hit rate (tokens)"]
    work = any(row.get("work_ratio") is not None for row in rows)
    cells = [
        [
            row["policy"] if "objective" not in row else f"{row['policy']}: {row['objective']}, {row['capacity_rule']}",
            row["rule"],
            text.count(row["block_size"]),
            "unlimited" if row["capacity_blocks"] is None else text.count(row["capacity_blocks"]),
            f"{row['hit_ratio_blocks']:.4f}",
            f"{row['hit_ratio_tokens']:.4f}",
            *([f"{row['work_ratio']:.4f}"] if work else []),
        ]
        for row in rows
    ]
    return text.table([*header, *(["prefill work saved"] if work else [])], cells, left=2)
