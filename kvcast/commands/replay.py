"""The simulated requests as a file that a serving benchmark sends, and the command that sends it (docs/observe.md).

Token ids or made-up words with the same shared beginnings; times, places or sessions as the tool takes them. What it
cannot express is listed once. Where requests wait for answers and the tool has no way to say so, they are sent when the
simulation released them.

  kvcast replay S.toml --for vllm --out S.jsonl --model meta-llama/Llama-3.1-8B-Instruct
  kvcast replay S.toml --for sglang --out S.jsonl --tokenizer tokenizer.json
  kvcast run S.toml --against RESULT.json                      then: what was measured beside what was simulated
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from kvcast.commands import block_size, output
from kvcast.commands.run import add_scenario_arguments

if TYPE_CHECKING:
    from kvcast.api import Prepared
    from workloads.columns import Workload

TOOLS = ("vllm", "sglang", "aiperf", "guidellm", "mooncake")
URL = "http://localhost:8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_scenario_arguments(parser)
    parser.add_argument("--for", required=True, choices=TOOLS, dest="tool", help="who sends it")
    parser.add_argument("--out", required=True, metavar="FILE.jsonl", type=output, help="the file to write")
    parser.add_argument("--model", metavar="NAME", help="the model as the server calls it (default: the scenario's)")
    parser.add_argument("--url", default=URL, metavar="URL", help=f"the server (default: {URL})")
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="the model's tokenizer.json: words that are exactly as many tokens"
    )
    parser.add_argument(
        "--block-tokens",
        metavar="TOKENS",
        type=block_size,
        help="tokens of a block, where shared text is said by blocks (default: the engine's; for mooncake 512)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import api, config, text
    from workloads import replay

    scenario = config.load_scenario(args.scenario, args.overrides)
    with config.naming(args.scenario):
        prepared = api.prepare(scenario)
    workload, notes = prepared.workload, list[str]()
    if not replay.takes(args.tool, workload):
        workload, notes = _as_simulated(prepared, args.tool)
    block = args.block_tokens or (512 if args.tool == "mooncake" else prepared.scenario.engine.block_size)
    target = replay.Target(args.model or str(prepared.scenario.model.name), args.url, _tokenizer(args.tokenizer))
    sent = replay.write(workload, args.tool, args.out, target, block)
    if args.model is None and args.tool != "mooncake":
        notes.append(f"--model is the scenario's, {target.model}: give the name that the server serves")
    if args.json:
        print(text.to_json({"out": str(args.out), "requests": len(workload), **sent._asdict(), "notes": notes}))
        return 0
    for line in sent.says:
        print(line)
    print(f"\nto send it:\n  {sent.command}")
    if cannot := [*notes, *sent.cannot]:
        print("\nnot the same as simulated:" + "".join(f"\n  {line}" for line in cannot))
    return 0


def _as_simulated(prepared: Prepared, tool: str) -> tuple[Workload, list[str]]:
    """The requests that the simulation released, in that order, each at the time that it gave it."""
    from dataclasses import replace

    import numpy as np

    from kvcast import api
    from workloads.transform import picked

    arrival_s = api.record(prepared).arrival_s
    order = np.argsort(arrival_s, kind="stable")  # NaN, which never came, is last
    order = order[: int(np.isfinite(arrival_s).sum())]
    timed = replace(prepared.workload, arrival_s=arrival_s, after=None, delay_s=None, concurrency=None, paced=False)
    timed = replace(picked(timed, order), turnaround_s=0.0)
    gone = len(arrival_s) - len(order)
    return timed, [
        f"{tool} does not send a request after the answer before it: times are those at which the simulation released"
        " them, whatever the server does" + (f"; {gone} that it did not release are left out" if gone else "")
    ]


def _tokenizer(path: str | None) -> Any:
    from workloads.text import tokenizer_of

    return None if path is None else tokenizer_of(path)
