"""The kvcast command: one subcommand per question; each lives in `kvcast.commands`.

Exit codes: 0 done; 2 for input a user can fix (one line on stderr); 1 only for a failed validation or, with --check, a
missed SLO.

    $ kvcast run examples/demo.toml
"""
from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import kvcast
from workloads.errors import InputError

COMMANDS = {
    "run": "simulate one scenario and say whether it meets its targets",
    "compare": "simulate variants of a scenario on the same arrivals, side by side",
    "sweep": "simulate a grid of scenarios in several processes, and keep every run",
    "cache": "replay a trace through a prefix cache alone, without time",
    "optimum": "how much of what any eviction could hit did a run hit",
    "explain": "where missed prompt tokens went, and what would recover them",
    "price": "what a hosted API with prompt caching would charge for the same requests",
    "workload": "describe a trace or mix, or convert it to Mooncake JSONL",
    "profile": "list device profiles and models; show what fits on a GPU",
    "calibrate": "measure this machine's kernels and write a device profile",
    "validate": "recompute comparisons with recorded truth",
    "demo": "simulate the bundled mix: what the prefix cache is worth",
    "dashboard": "open the dashboard in a browser",
}


class Parser(argparse.ArgumentParser):
    """Reports a bad flag in one line."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)'", message)
        close = get_close_matches(wrong[1], COMMANDS, n=1) if wrong else []
        self.exit(2, f"{self.prog}: {message} ({f'did you mean {close[0]}? ' if close else ''}see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="kvcast", description="Simulate LLM serving from measured kernels: latency, prefix cache, cost.")
    parser.add_argument("--version", action="version", version=f"kvcast {kvcast.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        module = import_module(f"kvcast.commands.{name}")
        command = commands.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    _warn_if_kernels_is_shadowed()
    sys.path.append(os.getcwd())  # where a user's own policy, module:Class, may lie
    try:
        args = build_parser().parse_args(argv)
        code = args.run(args)
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"kvcast: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe left, as `kvcast ... | head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        print(f"kvcast: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kvcast: stopped", file=sys.stderr)
        return 130


def _warn_if_kernels_is_shadowed() -> None:
    """Serving engines install another package named kernels; calibration would import that one."""
    ours = Path(kvcast.__file__).parent.parent / "kernels"
    spec = find_spec("kernels")
    found = Path(spec.origin).parent if spec and spec.origin else None
    if found is None or found.resolve() != ours.resolve():
        print(
            f"kvcast: another package named kernels ({found or 'none found'}) hides kvcast's own; calibration will not work here: "
            "run kvcast from its own virtual environment",
            file=sys.stderr,
        )
