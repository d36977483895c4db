"""A serving benchmark's command as a scenario: the same lengths and arrivals, to be simulated.

Reads vllm bench serve (and benchmark_serving.py), sglang.bench_serving, guidellm benchmark, aiperf profile and
genai-perf profile (docs/import.md). What is not taken over is listed once, in the file and on stderr.

  kvcast import-bench "vllm bench serve --dataset-name random --request-rate 4 --num-prompts 500" --out S.toml
  kvcast import-bench bench.sh --from-log server.log --set hardware.gpu=h200 --result R.json --out S.toml
  kvcast run S.toml --against R.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvcast.commands import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", metavar="COMMAND", help="the benchmark's command, or a file with it")
    parser.add_argument("--out", metavar="S.toml", type=output, help="write the scenario here instead of printing it")
    parser.add_argument(
        "--result",
        metavar="R.json",
        type=Path,
        help="what it measured: lengths of data sets that are texts come from it",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--from-launch", metavar="COMMAND", help="model, engine and fleet of the server, as plan takes it"
    )
    source.add_argument(
        "--from-log", metavar="FILE", type=Path, help="the same, and its KV blocks, from its start-up log"
    )
    parser.add_argument(
        "--set", metavar="a.b=VALUE", action="append", default=[], dest="overrides", help="a key more, as run takes it"
    )


NO_GPU = (
    "no GPU is named, and a benchmark's command has none: set hardware.gpu (or profile), else kvcast's default profile"
    " is simulated"
)


def run(args: argparse.Namespace) -> int:
    from kvcast.benchmarks import as_toml, document_of, read_benchmark
    from kvcast.config import override, scenario_from_doc
    from kvcast.planner.launch import read_command
    from kvcast.planner.launch_log import read_log
    from workloads.errors import InputError
    from workloads.files import replace_file

    if args.result is not None and not args.result.is_file():
        raise InputError(f"--result {args.result}: no such file")
    question = read_benchmark(_text(args.benchmark), args.result)
    document = document_of(question)
    launch = read_command(args.from_launch) if args.from_launch else read_log(args.from_log) if args.from_log else None
    asked = override(document, [*(launch.sets if launch else ()), *args.overrides])
    placed = bool({"gpu", "profile"} & set(asked.get("hardware", {})))
    if launch is not None and placed:
        launch.fit(asked, "the imported scenario")  # may take another profile, and KV bytes as blocks
        asked = override(document, [*launch.sets, *args.overrides])
    if launch is not None:
        question.notes += [*launch.cautions(), *launch.notes]
    if not placed:
        question.notes.append(NO_GPU)
    document = asked
    scenario_from_doc(document, "the imported scenario")
    text = as_toml(question, document)
    if args.out is None:
        print(text, end="")
    else:
        replace_file(args.out, text.encode())
        print(f"{args.out}: {question.tool}, {question.name}")
    for line in question.says() if args.out is not None else ():
        print(f"  {line}", file=sys.stderr)
    return 0


def _text(benchmark: str) -> str:
    from workloads.errors import InputError

    name = benchmark.strip()
    try:
        if "\n" in name or len(name) > 1000 or not Path(name).is_file():
            return benchmark
        return Path(name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        raise InputError(f"import-bench {name}: cannot be read as text; expected a file with the command") from None
