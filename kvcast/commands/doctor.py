"""Whether a folder that kvcast wrote is whole, and if not, what to remove or do again.

A run's folder, or one of a sweep, a plan, a comparison or kvcast resilience with many runs in it. Every file is read.
What was stopped before its answer (sweep.parquet, plan.json) is not whole either: the same command goes on.

  kvcast doctor runs/a
  kvcast doctor plans/agent --json
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="what kvcast wrote with --out")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from kvcast.store.doctor import as_document, examine

    found = examine(args.folder)
    if args.json:
        print(text.to_json(as_document(args.folder, found)))
        return int(any(one.wrong for one in found))
    for one in found:
        if one.wrong:
            print(f"{one.path}: {one.wrong}\n    {one.remedy}")
    sick = sum(bool(one.wrong) for one in found)
    print(f"{args.folder}: {len(found) - sick} of {len(found)} parts are whole")
    return int(bool(sick))
