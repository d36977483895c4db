"""How many GPUs do so many users need, what do they cost, and what gives way first? Or how many users do some GPUs
serve?

Everything has a default, which the answer names. A first bound is on stderr within seconds; the answer is a plan's
(kvcast plan), in users. --out keeps the plan and its scenario.toml. Exit code 1 when no fleet meets.

  kvcast ask --users 300 --price 3.5
  kvcast ask --use coding-agent --users 300 --system 16000 --model llama-3.3-70b --weights fp8 --gpu h200 --price 3.5
    --ttft 1.0 --tpot 50ms --out plans/agent
  kvcast ask --use chat --gpus 8 --model qwen3-32b
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from kvcast import ask_flags
from kvcast.commands import jobs_of, jobs_options, output
from kvcast.text import NO_FLEET

MOST_JOBS = 4

GOES_ON = True  #: with what --out keeps, when it is stopped and given again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    ask_flags.add_arguments(parser)
    jobs_options(parser, jobs(), "default: as many as CPUs, at most 4")
    parser.add_argument("--out", metavar="DIR", type=output, help="keep the plan, every run of it, and scenario.toml")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    shown.add_argument("--toml", action="store_true", help="print the scenario underneath and simulate nothing")


def jobs() -> int:
    """Processes to use where nobody says: what comes out is the same."""
    return min(os.cpu_count() or 1, MOST_JOBS)


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from kvcast.asking import answering, words
    from kvcast.asking.question import question_of
    from workloads.limits import from_1, within

    within("--seeds", args.seeds, from_1(1000))
    within("--max-replicas", args.max_replicas, from_1(10_000))
    question = question_of(args)
    if args.toml:
        print(toml(question))
        return 0

    def tell(document: dict[str, Any]) -> None:
        text.tell(document)
        if line := words.told(document):
            text.clear_clock()
            print(text.wrapped(line), file=sys.stderr, flush=True)

    options = {"seeds": args.seeds, "most": args.max_replicas, "recover": not args.no_recover}
    with jobs_of(args) as used:
        made = answering.ask(question, out=args.out, tell=tell, jobs=used, **options)
    text.clear_clock()
    print(text.to_json(made) if args.json else words.as_text(made))
    if args.out and not args.json:
        print(f"plan folder: {args.out} (scenario.toml is the scenario underneath)")
    return 0 if made["answer"]["feasible"] else NO_FLEET


def toml(question: Any) -> str:
    """The scenario underneath, with the plan's command as a comment."""
    from kvcast.asking.answering import scenario_of
    from kvcast.scenario.toml import dumps

    scenario, varied = scenario_of(question)
    vary = "".join(f" --vary {one}" for one in varied)
    fixed = " --fixed" if question.gpus is not None else ""
    return f"# kvcast plan scenario.toml{vary}{fixed} --no-growth\n{dumps(scenario)}".rstrip()
