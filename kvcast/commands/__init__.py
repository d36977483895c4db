"""One module per subcommand: `add_arguments(parser)` and `run(args) -> exit code`. Heavy imports wait for `run`."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcast.pools import Jobs
    from workloads.config import WorkloadConfig


def source(text: str) -> str:
    """The file or preset a command reads; "" would be the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected the name of what to read, not an empty text")
    return text


def trace_options(parser: argparse.ArgumentParser) -> None:
    """Flags that say how a trace is read, where a command takes one: keys of [workload]."""
    parser.add_argument("--format", metavar="F", help="the trace's format (default: recognised from the content)")
    parser.add_argument(
        "--timestamp-unit",
        metavar="U",
        choices=("s", "ms", "us", "ns"),
        help="unit of the trace's times: s, ms, us or ns (default: the format's own)",
    )
    parser.add_argument(
        "--columns",
        metavar="KEY=COLUMN,...",
        type=columns,
        help="which column of the trace is what, as [workload.columns]: time=startTime,input=usage.prompt_tokens,...",
    )
    parser.add_argument(
        "--block-tokens",
        metavar="TOKENS",
        type=block_size,
        help="tokens that one of the trace's block ids stands for (default: the format's own)",
    )
    parser.add_argument(
        "--turns",
        choices=("whole", "delta"),
        help="whether a row of a session holds the whole prompt or what is new in the turn (default: as the rows say)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="the tokenizer.json that counts the tokens of conversations (default: estimated from their characters)",
    )


def jobs_options(parser: argparse.ArgumentParser, default: int = 1, said: str = "default 1") -> None:
    """Flags that say where a command's runs are simulated."""
    parser.add_argument("--jobs", metavar="N", type=int, default=default, help=f"processes to use ({said})")
    parser.add_argument(
        "--backend",
        choices=("loky", "dask", "ray"),
        default="loky",
        help="simulate in processes of this machine (loky), or on the workers of a cluster (docs/clusters.md)",
    )
    parser.add_argument(
        "--address", metavar="A", help="of the cluster: tcp://HOST:8786 (dask), HOST:6379 or auto (ray)"
    )
    parser.set_defaults(jobs_default=default)


@contextmanager
def jobs_of(args: argparse.Namespace) -> Iterator[Jobs]:
    """What those flags say, while the body runs: what a cluster's packages print meanwhile is no result."""
    from kvcast.pools import workers
    from workloads.errors import InputError
    from workloads.limits import from_1, within

    within("--jobs", args.jobs, from_1(256))
    if args.backend == "loky" and args.address is None:
        yield args.jobs
        return
    if args.jobs != args.jobs_default:
        raise InputError(f"--jobs {args.jobs} with --backend {args.backend}: a cluster has its own number of workers")
    with redirect_stdout(io.StringIO()), workers(args.backend, args.address) as cluster:
        yield cluster


def columns(text: str) -> dict[str, str]:
    """The value of --columns."""
    pairs = dict(part.partition("=")[::2] for part in text.split(","))
    for name, column in pairs.items():
        if not name or not column:
            raise argparse.ArgumentTypeError(f"{text[:60]}: expected KEY=COLUMN, separated by commas")
    return pairs


def of_trace(path: str, args: argparse.Namespace) -> WorkloadConfig:
    """The [workload] section of a trace file and the flags that say how it is read."""
    from workloads import toml
    from workloads.config import Columns, WorkloadConfig

    named = dict(args.columns or {})
    if str(named.get("block_tokens", "")).isdecimal():
        named["block_tokens"] = int(named["block_tokens"])
    return WorkloadConfig(
        trace=path,
        format=args.format,
        timestamp_unit=args.timestamp_unit,
        tokenizer=args.tokenizer,
        columns=toml.read(Columns, named, "--columns", "workload", "columns") if named else None,
        block_tokens=args.block_tokens,
        turns=args.turns,
    )


def no_trace_options(path: str, args: argparse.Namespace) -> None:
    """Refuse those flags with what is no trace: a scenario has its own keys, a mix none."""
    from workloads.errors import InputError

    named = args.columns and ",".join(f"{key}={name}" for key, name in args.columns.items())
    for flag, value in (
        ("--format", args.format),
        ("--timestamp-unit", args.timestamp_unit),
        ("--columns", named),
        ("--block-tokens", args.block_tokens),
        ("--turns", args.turns),
        ("--tokenizer", args.tokenizer),
    ):
        if value:
            raise InputError(f"{flag} {value}: expected a trace file with it, but {path} is none")


def output(text: str) -> Path:
    """The value of an --out flag."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected the name of what to write, not an empty text")
    return Path(text)


def block_size(text: str) -> int:
    """The value of a --block-size flag."""
    from workloads.limits import MAX_BLOCK_SIZE

    return whole_number(text, 1, MAX_BLOCK_SIZE)


def block_sizes(text: str) -> list[int]:
    """The value of a --block-size flag that takes several, separated by commas."""
    return [block_size(part) for part in text.split(",")]


def kv_sizes(text: str) -> list[int]:
    """The value of --kv-blocks."""
    return [whole_number(part, 1, 10**12) for part in text.split(",")]


def replicas(text: str) -> int:
    """The value of --most."""
    return whole_number(text, 1, 100_000)


def tokens(text: str) -> int:
    """The value of a flag that counts tokens."""
    from workloads.limits import MAX_TOKENS

    return whole_number(text, 1, MAX_TOKENS)


def gpus(text: str) -> int:
    """The value of a --tensor-parallel flag."""
    from workloads.limits import MAX_GPUS

    return whole_number(text, 1, MAX_GPUS)


def replica_counts(text: str) -> list[int]:
    """The value of a --replicas flag: counts, separated by commas."""
    from workloads.limits import MAX_REPLICAS

    return [whole_number(part, 1, MAX_REPLICAS) for part in text.split(",")]


def port(text: str) -> int:
    """The value of a --port flag."""
    return whole_number(text, 1, 65_535)


def depth_weight(text: str) -> float:
    """The value of a --depth-weight flag."""
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 <= weight <= 1e6:
        raise argparse.ArgumentTypeError(f"{text[:40]}: expected a number from 0 to 1e6")
    return weight


def seed(text: str) -> int:
    """The value of a --seed flag."""
    from workloads.limits import MAX_SEED

    return whole_number(text, 0, MAX_SEED)


def whole_number(text: str, least: int, most: int) -> int:
    """The number, when it is from least to most."""
    try:
        number = int(text)
    except ValueError:
        number = None
    if number is None or not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text[:40]}: expected a whole number from {least} to {most:,}")
    return number


def price_list(path: str) -> str:
    """The value of a --prices flag: a file (TOML, a line `h200 = 3.5` a GPU: USD an hour) as --set takes it."""
    from kvcast.config import read_toml
    from kvcast.scenario.checks import price_problems
    from kvcast.scenario.toml import literal_of
    from sim.scenario import CostConfig
    from workloads.errors import InputError

    try:
        prices = read_toml(path)
        wrong = next(
            (usd for usd in prices.values() if isinstance(usd, bool) or not isinstance(usd, int | float)), None
        )
        if wrong is not None or not prices:
            found = "no price" if wrong is None else repr(str(wrong)[:80])
            raise InputError(f"{path}: {found}; expected lines such as h200 = 3.5, USD for one GPU and hour")
        for problem in price_problems(CostConfig(prices=prices)):
            raise InputError(f"{path}: {problem.removeprefix('[cost.prices] ')}")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return f"cost.prices={literal_of(prices)}"
