"""A run folder, or a plan's folder, as one HTML page that opens anywhere: verdict, numbers, plots, assumptions,
provenance.

The page is self-contained (no scripts, nothing fetched, plots as SVG), reads in dark and light, prints, and is the same
for the same folder. docs/report.md says what is on it.

  kvcast report runs/a --html report.html
  kvcast report plans/agent --html plan.html
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from kvcast.commands import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="a run folder (kvcast run --out) or a plan's (kvcast plan --out)"
    )
    parser.add_argument("--html", metavar="FILE", type=output, required=True, help="the page to write")


def run(args: argparse.Namespace) -> int:
    from kvcast.present.html_report import of_folder
    from workloads.errors import InputError
    from workloads.files import replace_file

    if not args.folder.is_dir():
        raise InputError(
            f"{args.folder}: {'not a folder' if args.folder.exists() else 'no such folder'}; expected one that kvcast"
            " run --out or kvcast plan --out wrote"
        )
    if args.html.suffix != ".html" and args.html.exists() and _is_below(args.html, args.folder):
        raise InputError(f"--html {args.html}: one of the folder's own files; expected a new name, such as report.html")
    replace_file(args.html, of_folder(args.folder).encode())
    print(f"report: {args.html} ({args.html.stat().st_size / 1024:,.0f} KiB)")
    return 0


def _is_below(path: Path, folder: Path) -> bool:
    """Whether the file lies in the folder, whatever links lead there; also of a link that leads to itself."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
