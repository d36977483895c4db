"""Recompute comparisons with recorded truth and print what differs.

Sets: golden-cache (published hit rates of public traces), golden-optimum (the most hits possible on them),
vllm-counters (the prefix-cache counters of a real vLLM), vllm-rtx4090 (a real vLLM run against its card's kernel
tables), roofline (datasheet model against measured tables), engine-cases (what vLLM's and SGLang's schedulers did, step
by step), fit (held-out error of fitted forms on measured H200 kernels), passes (whole passes of the atlas against the
package of its tables), kv-capacity (KV tokens against vLLM's start-up logs), aisimulate (another simulator's results,
with the same step times). Without names, all of these run. Only when named, or with --all: vllm-rtx-pro-6000 (the same
of another card; its TTFT is beyond the limit), atlas (held-out errors of the operator atlas), silicon (closed-loop runs
that others measured, from the installed aiconfigurator-core or --data FILE; about five CPU-minutes, --jobs processes;
goals that are missed are named). Only when named: engine (your own recording of python -m calibrate.gpu.engine,
--record FOLDER).

The recorded data is found through --data or the environment variable KVCAST_DATA.

  kvcast validate
  kvcast validate vllm-rtx4090
  kvcast validate engine-cases --cases recorded/engine_cases
  kvcast validate engine --record recording --profile profile.json
  kvcast validate silicon --jobs 2
  kvcast validate --all --jobs 2 --write docs/accuracy.md --table kvcast/trust/evidence.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcast.validation import Outcome

FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sets", metavar="SET", nargs="*", help="which sets (default: all)")
    parser.add_argument("--all", action="store_true", help="every set but engine, those without data named as such")
    parser.add_argument("--data", metavar="DIR", type=Path, help="folder of recorded data (default: $KVCAST_DATA)")
    parser.add_argument("--cases", metavar="DIR", type=Path, help="engine-cases: folder of recorded cases")
    parser.add_argument("--record", metavar="DIR", type=Path, help="engine: folder of a recording")
    parser.add_argument(
        "--profile",
        metavar="FILE",
        type=Path,
        help="engine: device profile to compare with (default: profile.json in the recording)",
    )
    parser.add_argument("--jobs", metavar="N", type=int, help="silicon: processes (default: 1)")
    parser.add_argument(
        "--sample", metavar="N", type=int, help="silicon: so many of its rows, the same ones every time"
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        type=Path,
        help="write the page of what came out (docs/accuracy.md), figure beside it",
    )
    parser.add_argument(
        "--table", metavar="FILE", type=Path, help="silicon: write the errors that a run's report looks up"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import text, validation
    from workloads.errors import InputError

    options = {
        key: value
        for key in ("cases", "record", "profile", "jobs", "sample")
        if (value := getattr(args, key)) is not None
    }
    if args.all and args.sets:
        raise InputError(f"validate --all {' '.join(args.sets)}: expected one or the other")
    names = validation.everything() if args.all else validation.chosen(args.sets)
    outcomes, missing = [], {}
    for name in names:
        text.progress(f"validating {name}")
        try:
            outcome = validation.run(name, validation.data_dir(_data(args, name), name, options), **options)
        except InputError as error:
            if not args.all:
                raise
            missing[name] = str(error)
            text.progress(f"{name}: NO DATA: {error}")
            continue
        outcomes.append(outcome)
        if not args.json:
            verdict = f"{outcome.name}: {'passed' if outcome.passed else 'FAILED'}"
            print("\n".join([verdict, *(f"  {line}" for line in outcome.lines)]))
    _write(args, outcomes, missing)
    if args.json:
        print(
            text.to_json(
                [{"name": o.name, "passed": o.passed, "lines": o.lines, "figures": o.figures} for o in outcomes]
            )
        )
    if missing and not args.json:
        print("\n".join(f"{name}: NO DATA\n  {why}" for name, why in missing.items()))
    if wrong := [o for o in outcomes if o.figures.get("malformed")]:
        raise InputError(
            f"{wrong[0].name}: files that could not be replayed: {wrong[0].figures['malformed']}, named above"
        )
    return 0 if all(o.passed for o in outcomes) and not missing else FAILED


def _data(args: argparse.Namespace, name: str) -> Path | None:
    """Where a set's data is: with --all only the recorded data's folder can be meant."""
    from kvcast import validation

    return None if args.all and name in validation.OWN_DATA else args.data


def _write(args: argparse.Namespace, outcomes: list[Outcome], missing: dict[str, str]) -> None:
    """The page and the table, where they are asked for."""
    if args.write or args.table:
        from kvcast.present import accuracy_page

        if args.write:
            accuracy_page.write(args.write, outcomes, missing)
        if args.table:
            accuracy_page.write_table(args.table, outcomes)
