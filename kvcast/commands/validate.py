"""Recompute comparisons with recorded truth and print what differs.

Sets: golden-cache (published hit rates of public traces), golden-optimum (the most hits possible on them),
vllm-counters (the prefix-cache counters of a real vLLM), vllm-rtx4090 (a real vLLM run against its card's kernel
tables), roofline (datasheet model against measured tables), engine-cases (what vLLM's and SGLang's schedulers did, step
by step), fit (held-out error of fitted forms on measured H200 kernels), passes (whole passes of the atlas against the
package of its tables). Without names, all of these run. Only when named: atlas (held-out errors of the operator atlas;
it misses some of its goals today, and says which), engine (your own recording of python -m calibrate.gpu.engine,
--record FOLDER), silicon (closed-loop runs that others measured, from the installed aiconfigurator-core or --data FILE;
about five CPU-minutes, --jobs processes; goals that are missed are named).

The recorded data is found through --data or the environment variable KVCAST_DATA.

  kvcast validate
  kvcast validate vllm-rtx4090
  kvcast validate engine-cases --cases recorded/engine_cases
  kvcast validate engine --record recording --profile profile.json
  kvcast validate silicon --jobs 2 --write docs/accuracy.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

FAILED = 1
BAD_INPUT = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sets", metavar="SET", nargs="*", help="which sets (default: all)")
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
        "--write", metavar="FILE", type=Path, help="silicon: write its page (docs/accuracy.md), the figure beside it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import text, validation

    options = {
        key: value
        for key in ("cases", "record", "profile", "jobs", "sample")
        if (value := getattr(args, key)) is not None
    }
    outcomes = []
    for name in validation.chosen(args.sets):
        text.progress(f"validating {name}")
        outcome = validation.run(name, validation.data_dir(args.data, name, options), **options)
        outcomes.append(outcome)
        if args.write and name == "silicon":
            from kvcast.present import accuracy_page

            accuracy_page.write(args.write, outcome.figures)
        if not args.json:
            print(
                "\n".join(
                    [
                        f"{outcome.name}: {'passed' if outcome.passed else 'FAILED'}",
                        *(f"  {line}" for line in outcome.lines),
                    ]
                )
            )
    if args.json:
        print(
            text.to_json(
                [{"name": o.name, "passed": o.passed, "lines": o.lines, "figures": o.figures} for o in outcomes]
            )
        )
    if any(o.figures.get("malformed") for o in outcomes):
        return BAD_INPUT
    return 0 if all(o.passed for o in outcomes) else FAILED
