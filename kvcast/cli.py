"""The kvcast command: one subcommand per question; each lives in `kvcast.commands`.

Exit codes: 0 done; 2 for input a user can fix (one line on stderr); 1 only for a failed validation or, with --check, a
missed SLO; 70 for a bug in kvcast; 130 and 143 when stopped by Ctrl-C or SIGTERM.

    $ kvcast run examples/demo.toml
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import kvcast
from kvcast.system import refuse_dead_pipes
from kvcast.text import Harmless
from workloads.errors import InputError, on_one_line

COMMANDS = {
    "ask": "how many GPUs so many users need, or how many users some GPUs serve",
    "run": "simulate one scenario and say whether it meets its targets",
    "import-bench": "a serving benchmark's command as a scenario",
    "observe": "a running server's metrics page as a scenario of its load",
    "fit-server": "a scenario fitted to your own server, from what a benchmark measured of it",
    "replay": "the simulated requests as a file that a serving benchmark sends",
    "estimate": "what a run would say, from at most 2,000 of its requests",
    "compare": "simulate variants of a scenario on the same arrivals, side by side",
    "sweep": "simulate a grid of scenarios in several processes, and keep every run",
    "plan": "the fewest GPUs that meet the SLOs, how far they reach, what binds, what to change",
    "resilience": "does the fleet come back after a shock, and what would make it",
    "value": "GPUs the prefix cache saves at equal attainment, over KV memory",
    "cache": "replay a trace through a prefix cache alone, without time",
    "optimum": "how much of what any eviction could hit did a run hit",
    "explain": "where missed prompt tokens went, and what would recover them",
    "timeline": "what happened in a window: the lives of its requests, chunk by chunk",
    "export": "a run as the time series of a vLLM server, for its Grafana dashboard",
    "report": "a run or a plan as one HTML page that opens anywhere",
    "price": "what a hosted API with prompt caching would charge for the same requests",
    "workload": "describe a trace or mix, or convert it to Mooncake JSONL",
    "profile": "list device profiles and models; show what fits on a GPU",
    "calibrate": "measure this machine's kernels and write a device profile",
    "validate": "recompute comparisons with recorded truth",
    "doctor": "is a folder of runs whole, and if not, what to remove or do again",
    "demo": "simulate the bundled mix: what the prefix cache is worth",
    "dashboard": "open the dashboard in a browser",
}


BUG = 70
"""Exit code of an error that is kvcast's own (EX_SOFTWARE of sysexits.h)."""


class Parser(argparse.ArgumentParser):
    """Reports a bad flag in one line, and a help text that cannot be written as what it is."""

    def print_help(self, file: Any = None) -> None:
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)'", message)
        close = get_close_matches(wrong[1], COMMANDS, n=1) if wrong else []
        line = f"{self.prog}: {message} ({f'did you mean {close[0]}? ' if close else ''}see {self.prog} --help)"
        self.exit(2, on_one_line(line) + "\n")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kvcast", description="Simulate LLM serving from measured kernels: latency, prefix cache, cost."
    )
    parser.add_argument("--version", action="version", version=f"kvcast {kvcast.__version__} ({kvcast.core})")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        module = import_module(f"kvcast.commands.{name.replace('-', '_')}")
        command = commands.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, goes_on=getattr(module, "GOES_ON", False))
    return parser


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM. Of the class itself CPython remembers that code it ran with exec() raised it, and kills itself
    at exit."""


def main(argv: Sequence[str] | None = None) -> int:
    if sys.stderr is None:  # closed (2>&-): print would fall back to stdout, where nobody expects a message
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        return _failed("standard output is closed; expected somewhere to print the result")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a path that is not text, a terminal without the character
    refuse_dead_pipes()
    _warn_if_kernels_is_shadowed()
    with contextlib.suppress(FileNotFoundError):  # a folder that somebody has deleted
        sys.path.append(os.getcwd())  # where a user's own policy, module:Class, may lie
    stopped: list[int] = []
    args = argparse.Namespace()
    try:
        with _raising_at_signals(stopped):
            return _run(argv, args)
    except InputError as error:
        return _failed(str(error))
    except BrokenPipeError:  # the reader of a pipe left, as `kvcast ... | head` does
        _drop_stdout()
        return 0
    except OSError as error:
        if not os.path.exists("."):
            return _failed("the current folder has been deleted, expected one that is there")
        if error.filename is None:
            _drop_stdout()
        return _failed(
            f"{'the output cannot be written' if error.filename is None else error.filename}: {error.strerror or error}"
        )
    except UnicodeEncodeError as error:
        return _failed(f"{error.object[:200]!r}: a name that is not text, expected UTF-8")
    except MemoryError as error:
        return _failed(
            f"not enough memory{f': {error}' if str(error) else ''}; expected a smaller workload or a larger machine"
        )
    except KeyboardInterrupt:
        return _failed(_what_is_kept(args), 128 + (stopped or [signal.SIGINT])[0])
    except Exception as error:
        if stopped:  # an import that was cut short says something else
            return _failed(_what_is_kept(args), 128 + stopped[0])
        if os.environ.get("KVCAST_TRACEBACK"):
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return _failed(f"internal error: {what} (this is a bug; run with KVCAST_TRACEBACK=1 for the traceback)", BUG)


def _run(argv: Sequence[str] | None, args: argparse.Namespace) -> int:
    try:
        with (
            contextlib.redirect_stdout(Harmless(sys.stdout, "stdout")),
            contextlib.redirect_stderr(Harmless(sys.stderr, "stderr")),
        ):
            build_parser().parse_args(argv, args)
            return int(args.run(args))
    finally:
        sys.stdout.flush()  # here, where a full disk is still one line


def _what_is_kept(args: argparse.Namespace) -> str:
    """That a command was stopped, and what of it the same command finds again."""
    if not getattr(args, "goes_on", False):
        return "stopped"
    if not args.out:
        return "stopped; nothing is kept without --out"
    if not any(any(Path(args.out).glob(f"{kind}/[!.]*")) for kind in ("runs", "sketches", "what-if")):
        return f"stopped; nothing is finished yet in {args.out}"
    return f"stopped; what is finished is kept in {args.out}: the same command goes on"


def _failed(line: str, code: int = 2) -> int:
    with contextlib.suppress(OSError, ValueError):  # stderr full or gone: the exit code still says it
        print(f"kvcast: {on_one_line(line)}", file=sys.stderr, flush=True)
    return code


def _drop_stdout() -> None:
    """What is still buffered goes nowhere, so that Python does not fail on it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _raising_at_signals(stopped: list[int]) -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt as Ctrl-C does, so that whatever is half done is cleaned up; `stopped` gets the
    signal.

    Only a main thread may catch signals; one that is ignored (nohup) or has its handler stays as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> NoReturn:
        stopped.append(number)
        raise Stopped

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    caught = {
        number: handler for number, handler in before.items() if handler in (signal.SIG_DFL, signal.default_int_handler)
    }
    try:
        for number in caught:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in caught.items():
            signal.signal(number, handler)


def _warn_if_kernels_is_shadowed() -> None:
    """Serving engines install another package named kernels; calibration would import that one."""
    ours = Path(kvcast.__file__).parent.parent / "kernels"
    spec = find_spec("kernels")
    found = Path(spec.origin).parent if spec and spec.origin else None
    if found is None or found.resolve() != ours.resolve():
        print(
            f"kvcast: another package named kernels ({found or 'none found'}) hides kvcast's own; calibration will not"
            " work here: run kvcast from its own virtual environment",
            file=sys.stderr,
        )
