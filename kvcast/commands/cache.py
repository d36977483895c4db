"""Replay a trace through one prefix cache, without time: which policy keeps the right blocks, and at what capacity.

Counting rules: all-ids counts every block of a prompt, its partial last one too; full-blocks counts what an engine can
reuse: full blocks only, and never the whole prompt. A hit rate means nothing without its rule and block size, so every
row states both.

  kvcast cache conversation_trace.jsonl --format mooncake --policy lru,fifo,lfu --capacity-blocks 1000,10000 --rule all-ids
"""
from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a trace file with prefix identity")
    parser.add_argument("--format", metavar="F", help="its format (default: recognised from the content)")
    parser.add_argument("--policy", metavar="P,...", default="lru", help="eviction policies, separated by commas (default lru)")
    parser.add_argument("--capacity-blocks", metavar="N,...", default="unlimited", help="capacities in blocks, or unlimited (the default)")
    parser.add_argument("--rule", metavar="R,...", default="full-blocks", help="all-ids or full-blocks (default full-blocks)")
    parser.add_argument("--block-size", metavar="TOKENS", type=int, help="tokens per block (default: that of the trace's own hashes)")
    parser.add_argument("--json", action="store_true", help="print JSON rows even on a terminal (elsewhere they are the default)")


def run(args: argparse.Namespace) -> int:
    import sys

    from kvcast import api, text
    from sim.kvcache.replay import hit_rate_curve
    from workloads.config import WorkloadConfig

    capacities = [_capacity(value) for value in args.capacity_blocks.split(",")]
    workload = api.load_workload(WorkloadConfig(trace=args.trace, format=args.format))
    rows = []
    for rule in args.rule.split(","):
        for policy in args.policy.split(","):
            text.progress(f"{policy}, {rule}")
            rows += hit_rate_curve(workload, capacities, policy, rule, args.block_size)
    if not workload.prefix_identity:
        print(f"kvcast: {args.trace}: the trace says nothing about shared text; every hit rate is 0", file=sys.stderr)
    if args.json or not sys.stdout.isatty():
        print(text.to_json(rows))
    else:
        print(_table(rows))
    return 0


def _capacity(value: str) -> int | None:
    from workloads.errors import InputError

    if value in ("unlimited", "infinite", "inf"):
        return None
    try:
        return int(value)
    except ValueError:
        raise InputError(f"--capacity-blocks {value}: expected a number of blocks, or unlimited") from None


def _table(rows: list[dict]) -> str:
    from kvcast import text

    header = ["policy", "rule", "block size", "capacity (blocks)", "hit rate (blocks)", "hit rate (tokens)"]
    cells = [
        [
            row["policy"], row["rule"], text.count(row["block_size"]),
            "unlimited" if row["capacity_blocks"] is None else text.count(row["capacity_blocks"]),
            f"{row['hit_ratio_blocks']:.4f}", f"{row['hit_ratio_tokens']:.4f}",
        ]
        for row in rows
    ]
    return text.table(header, cells, left=2)
