"""What a trace or mix asks for: lengths, arrivals, shared text, and how much of it a cache can reuse.

FILE is a trace, a scenario (.toml) whose [workload] is taken, or the name of a bundled mix.

  kvcast workload describe conversation_trace.jsonl
  kvcast workload describe coding-agent --block-size 16
  kvcast workload convert sessions.tar.xz --out sessions.jsonl     (Mooncake JSONL)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvcast.commands import block_size, no_trace_options, of_trace, output, seed, source, trace_options

if TYPE_CHECKING:
    from workloads.columns import Workload

CAPACITY_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Capacities of the hit-rate curve, as shares of the workload's distinct blocks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    describe = actions.add_parser(
        "describe", help="counts, lengths, arrivals, reuse ceiling, hit rate against capacity"
    )
    convert = actions.add_parser("convert", help="write it as Mooncake JSONL (512-token block ids)")
    for command in (describe, convert):
        command.add_argument("file", metavar="FILE", type=source, help="a trace, a scenario (.toml), or a bundled mix")
        trace_options(command)
        command.add_argument(
            "--seed",
            metavar="N",
            type=seed,
            help="seed of a generated mix (default: a scenario's own, 0 for a bundled mix)",
        )
    describe.add_argument(
        "--block-size",
        metavar="TOKENS",
        type=block_size,
        help="tokens per block (default: the trace's own, 16 for a mix)",
    )
    describe.add_argument(
        "--capacity-blocks",
        metavar="N,...",
        help="capacities of the hit-rate curve (default: shares of the distinct blocks)",
    )
    describe.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    convert.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    convert.add_argument("--out", metavar="FILE", type=output, required=True, help="the file to write")


def run(args: argparse.Namespace) -> int:
    from kvcast import text

    workload = _load(args)
    if args.action == "convert":
        from workloads.convert import to_mooncake

        notes = to_mooncake(workload, args.out)
        print(
            text.to_json({"out": str(args.out), "requests": len(workload), "notes": notes})
            if args.json
            else "\n".join(notes)
        )
        return 0
    from workloads.describe import as_text, describe

    tokens = args.block_size or workload.hash_block_tokens or 16
    document = describe(workload, tokens, _capacities(workload, tokens, args.capacity_blocks), _hit_rates)
    print(text.to_json(document) if args.json else as_text(document))
    return 0


def _capacities(workload: Workload, block_size: int, given: str | None) -> list[int]:
    """The capacities asked for, or shares of the distinct blocks; none when nothing is known to be shared."""
    from workloads.errors import InputError
    from workloads.limits import MAX_KV_BLOCKS, from_1, within
    from workloads.reuse import distinct_blocks

    if given is not None:
        try:
            return [within("--capacity-blocks", int(value), from_1(MAX_KV_BLOCKS)) for value in given.split(",")]
        except InputError:
            raise
        except ValueError:
            raise InputError(f"--capacity-blocks {given}: expected numbers of blocks, separated by commas") from None
    if not workload.prefix_identity:
        return []
    _, distinct = distinct_blocks(workload, block_size)
    return sorted({max(1, round(distinct * share)) for share in CAPACITY_SHARES})


def _hit_rates(workload: Workload, block_size: int, capacities: Sequence[int]) -> dict[str, list[float]]:
    """LRU's hit ratio in tokens at every capacity, full blocks counted; `kvcast cache` replays the other policies."""
    from sim.optimum.lru_curve import lru_curve

    curve = lru_curve(workload, "full-blocks", block_size)
    return {"lru": (curve.hit_tokens_at(capacities) / max(curve.prompt_tokens, 1)).tolist()}


def _load(args: argparse.Namespace) -> Workload:
    from kvcast import api, config
    from workloads.config import WorkloadConfig
    from workloads.errors import InputError
    from workloads.toml import list_presets

    if args.file.endswith(".toml"):
        no_trace_options(args.file, args)
        scenario = config.load_scenario(args.file)
        with config.naming(args.file):
            return api.load_workload(scenario.workload, scenario.seed if args.seed is None else args.seed, untimed=True)
    if args.file in list_presets() and not Path(args.file).exists():
        no_trace_options(args.file, args)
        return api.load_workload(WorkloadConfig(preset=args.file), args.seed or 0)
    if args.seed is not None:
        raise InputError(
            f"--seed {args.seed}: {args.file} is a trace, in which nothing is drawn; expected a scenario or a bundled"
            " mix with it"
        )
    return api.load_workload(of_trace(args.file, args), untimed=True)
