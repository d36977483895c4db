"""The flags of a question (kvcast.asking): what `kvcast ask` reads, and a page that asks the same.

The one idea: a question in words is parsed in one place, so whoever gives them is told the same about what cannot be
asked.

    >>> add_arguments(parser); parser.parse_args(["--use", "chat", "--users", "300"]).users
"""

from __future__ import annotations

import argparse
import re


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The question itself, and how much is simulated for it."""
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
