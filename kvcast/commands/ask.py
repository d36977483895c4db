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
import re
import sys
from typing import Any

from kvcast.commands import output
from kvcast.text import NO_FLEET

MOST_JOBS = 4

GOES_ON = True  #: with what --out keeps, when it is stopped and given again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument(
        "--use",
        metavar="USE",
        default="chat",
        help="what it is for: chat, coding-agent, rag, batch, tool-agent or reasoning (default chat)",
    )
    load.add_argument("--users", metavar="N", type=float, help="users at once: with a session in progress")
    load.add_argument("--sessions-a-day", metavar="N", type=float, help="sessions a day instead, in --hours of it")
    load.add_argument("--hours", metavar="H", type=float, default=8.0, help="of a day with sessions (default 8)")
    load.add_argument("--rps", metavar="R", type=float, help="requests a second instead")
    load.add_argument("--gpus", metavar="N", type=int, help="ask how many users so many GPUs serve")
    for name, what in (
        ("system", "system prompt and tools, which all prompts share"),
        ("input", "new input a turn, the median"),
        ("output", "an answer, the median"),
    ):
        load.add_argument(f"--{name}", metavar="TOKENS", type=int, help=f"tokens of {what} (default: the use's)")
    on = parser.add_argument_group("model and GPU")
    on.add_argument(
        "--model",
        metavar="MODEL",
        default="llama-3.1-8b",
        help="a bundled model, a published checkpoint's name, or the path of a config.json (default llama-3.1-8b)",
    )
    on.add_argument("--weights", metavar="TYPE", default="bf16", help="bf16, fp8, int4, ... (default bf16)")
    on.add_argument("--kv", metavar="TYPE", help="bf16 or fp8 (default: the weights')")
    on.add_argument("--gpu", metavar="GPU", default="h200", help="kvcast profile list has them (default h200)")
    on.add_argument(
        "--tp", metavar="N,...", type=widths, default=(), help="GPUs a replica (default: those that may do)"
    )
    on.add_argument(
        "--price",
        metavar="USD",
        type=prices,
        default={},
        help="of one GPU for an hour, or a list with those of others: h200=3.5,b200=6 (kvcast has no prices)",
    )
    on.add_argument(
        "--router", metavar="NAME", help="default session-affinity where there are sessions, else round-robin"
    )
    within = parser.add_argument_group("limits (default: the use's)")
    within.add_argument("--ttft", metavar="TIME", type=seconds, help="time to first token, such as 1.0, 1s or 800ms")
    within.add_argument("--tpot", metavar="TIME", type=seconds, help="time per output token after it, such as 50ms")
    within.add_argument(
        "--for", metavar="SHARE", type=share, dest="share", default=0.95, help="of requests, 95 or 0.95"
    )
    parser.add_argument(
        "--set", metavar="a.b=VALUE", action="append", default=[], dest="settings", help="any other key of the scenario"
    )
    parser.add_argument("--no-recover", action="store_true", help="do not ask the fleet to come back after a burst")
    parser.add_argument("--seeds", metavar="N", type=int, default=5, help="independent runs of the answer (default 5)")
    parser.add_argument(
        "--max-replicas", metavar="N", type=int, default=64, help="the largest fleet to look at (default 64)"
    )
    parser.add_argument(
        "--jobs", metavar="N", type=int, default=jobs(), help="processes to use (default: as many as CPUs, at most 4)"
    )
    parser.add_argument("--out", metavar="DIR", type=output, help="keep the plan, every run of it, and scenario.toml")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    shown.add_argument("--toml", action="store_true", help="print the scenario underneath and simulate nothing")


def jobs() -> int:
    """Processes to use where nobody says: what comes out is the same."""
    return min(os.cpu_count() or 1, MOST_JOBS)


def seconds(text: str) -> float:
    """1.0, 1s or 800ms."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(ms|s|)", text.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text[:40]}: expected seconds, such as 1.0, 1s or 800ms")
    return float(found[1]) / (1000 if found[2] == "ms" else 1)


def share(text: str) -> float:
    """95, 95% or 0.95."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(%|)", text.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text[:40]}: expected a share of requests, such as 95 or 0.95")
    value = float(found[1])
    return value / 100 if found[2] or value > 1 else value


def prices(text: str) -> dict[str, float]:
    """3.5, of the GPU that is asked for, or h200=3.5,b200=6."""
    found: dict[str, float] = {}
    for part in text.split(","):
        gpu, _, usd = part.strip().rpartition("=")
        if not re.fullmatch(r"(\d+\.?\d*|\.\d+)", usd) or (not gpu and len(text.split(",")) > 1) or gpu in found:
            raise argparse.ArgumentTypeError(f"{text[:40]}: expected USD an hour, such as 3.5 or h200=3.5,b200=6")
        found[gpu.strip()] = float(usd)
    return found


def widths(text: str) -> tuple[int, ...]:
    """1,2,4."""
    if not all(part.isdecimal() and len(part) < 5 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text[:40]}: expected GPUs a replica, such as 4 or 2,4,8")
    return tuple(dict.fromkeys(int(part) for part in text.split(",")))


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from kvcast.asking import answering, words
    from workloads.limits import from_1, within

    within("--seeds", args.seeds, from_1(1000))
    within("--jobs", args.jobs, from_1(256))
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

    options = {"jobs": args.jobs, "seeds": args.seeds, "most": args.max_replicas, "recover": not args.no_recover}
    made = answering.ask(question, out=args.out, tell=tell, **options)
    text.clear_clock()
    print(text.to_json(made) if args.json else words.as_text(made))
    if args.out and not args.json:
        print(f"plan folder: {args.out} (scenario.toml is the scenario underneath)")
    return 0 if made["answer"]["feasible"] else NO_FLEET


def question_of(args: argparse.Namespace) -> Any:
    from calibrate.resolve import gpu_name
    from kvcast.asking.question import Question

    same = ["use", "users", "sessions_a_day", "hours", "rps", "gpus", "system", "model", "weights", "kv", "gpu", "tp"]
    same += ["router", "share"]
    listed = {gpu_name(name or args.gpu): usd for name, usd in args.price.items()}
    return Question(
        **{name: getattr(args, name) for name in same},
        price=listed.pop(gpu_name(args.gpu), None),
        prices=tuple(sorted(listed.items())),
        new_tokens=args.input,
        answer=args.output,
        ttft_s=args.ttft,
        tpot_s=args.tpot,
        settings=tuple(args.settings),
    )


def toml(question: Any) -> str:
    """The scenario underneath, with the plan's command as a comment."""
    from kvcast.asking.answering import scenario_of
    from kvcast.scenario.toml import dumps

    scenario, varied = scenario_of(question)
    vary = "".join(f" --vary {one}" for one in varied)
    fixed = " --fixed" if question.gpus is not None else ""
    return f"# kvcast plan scenario.toml{vary}{fixed} --no-growth\n{dumps(scenario)}".rstrip()
