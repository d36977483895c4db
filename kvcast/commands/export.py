"""A run as the time series that a vLLM server would have left in Prometheus: its own Grafana dashboard shows the run.

Takes a run folder (kvcast run --out), simulates it again, and writes OpenMetrics text with timestamps: requests running
and waiting, KV memory in use, tokens, prefix cache, and the histograms of TTFT, inter-token latency, TPOT and the rest,
an engine a replica. The run ends when its folder was written, unless --start says when it begins. How to load it:
docs/observe.md.

  kvcast export runs/a --grafana run.om
  promtool tsdb create-blocks-from openmetrics run.om data/
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kvcast.commands import output
from kvcast.commands.observe import seconds

if TYPE_CHECKING:
    from kvcast.store.runs import Run
    from sim.recording import Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", type=Path, help="a run folder (kvcast run --out)")
    parser.add_argument("--grafana", metavar="OUT", type=output, required=True, help="the OpenMetrics text to write")
    parser.add_argument(
        "--every", metavar="TIME", type=seconds, default=15.0, help="between two scrapes: 1s, 15s (the default), 1m"
    )
    parser.add_argument("--start", metavar="TIME", type=moment, help="when the run's clock began: 2026-11-30T09:00:00Z")
    parser.add_argument(
        "--model-name", metavar="NAME", help="the label model_name (default: the scenario's model, and (simulated))"
    )


def moment(text: str) -> float:
    """The value of --start, as seconds since 1970."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]}: expected a time such as 2026-11-30T09:00:00Z") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def run(args: argparse.Namespace) -> int:
    from kvcast import api, config, text
    from kvcast.observed.series import MOST_SCRAPES, SIMULATED, Labels, openmetrics, scrapes
    from kvcast.scenario.mixed import alike_only
    from kvcast.store.runs import load_run
    from sim.measure.metrics import run_end_s
    from workloads.errors import InputError
    from workloads.files import replacing

    given = load_run(args.folder)
    with config.naming(str(args.folder)):
        alike_only(given.scenario)
        prepared = api.prepare(given.scenario)
        rec = api.record(prepared, on_clock=text.clock())
    text.clear_clock()
    _check_same(args.folder, given, rec)
    end_s = run_end_s(rec)
    if end_s / args.every > MOST_SCRAPES:
        raise InputError(
            f"--every {args.every:g}s: {end_s / args.every:,.0f} scrapes of a run of {end_s:,.0f} s, expected at most"
            f" {MOST_SCRAPES:,}"
        )
    at_s = scrapes(end_s, args.every)
    start = moment(given.info["written_at"]) - float(at_s[-1]) if args.start is None else args.start
    model = args.model_name or f"{given.scenario.model.name}{SIMULATED}"
    labels = Labels(model, rec.block_size, given.scenario.cache.enabled)
    with replacing(args.grafana) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for line in openmetrics(rec, prepared.workload, labels, at_s, start):
            file.write(line + "\n")
    print(_told(args.grafana, model, start, at_s, args.every, len(rec.steps)))
    return 0


def _check_same(folder: Path, given: Run, rec: Recording) -> None:
    import numpy as np

    from workloads.errors import InputError

    if not np.array_equal(given.tables["requests"]["finish_s"], rec.finish_s, equal_nan=True):
        raise InputError(
            f"{folder}: simulated again it is another run (another version of kvcast, of the profile or of the trace);"
            " expected kvcast run of its scenario.toml first"
        )


def _told(path: Path, model: str, start: float, at_s: object, every_s: float, engines: int) -> str:
    began, ended = (
        datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S")
        for t in (start, start + float(at_s[-1]))  # type: ignore[index]
    )
    return (
        f"{path}: {len(at_s):,} scrapes of {engines} engine{'s' * (engines > 1)}, every {every_s:g} s, from {began} to"  # type: ignore[arg-type]
        f' {ended} UTC, model_name="{model}"'
    )
