"""Measure this machine's kernels for a model and write a device profile that simulations use.

Points are appended to PROFILE.points.jsonl as they come; --resume adds what is missing. PROFILE.html shows measured
against fitted. Fitting needs no device: --points FILE makes a profile from a file that `python -m
calibrate.gpu.measure` wrote elsewhere, also for another model (shapes it lacks are interpolated and named).

  kvcast calibrate --model llama-3.1-8b --device cuda --out h200.json
  kvcast calibrate --model tiny --device cpu --budget-s 60 --out cpu.json
  kvcast calibrate --points h200.points.jsonl --model qwen3-8b --out h200-qwen3-8b.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from calibrate.gpu.measure import add_arguments as measuring

    measuring(parser)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PROFILE",
        help="device profile to write (.json); wider tensor parallel gets -tpN",
    )
    parser.add_argument("--points", type=Path, metavar="FILE", help="fit these measured points instead of measuring")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from workloads.errors import InputError

    if args.out.suffix != ".json":
        raise InputError(f"--out {args.out}: expected a file name that ends in .json")
    lines: list[str] = []
    points = args.points or args.out.with_suffix(".points.jsonl")
    if args.points is None:
        lines += _measure(args, points)
    try:
        document = _fit(args, points)
    except OSError as e:
        again = f"--points {points}" if args.points else "--resume"
        raise InputError(
            f"{e.filename or args.out}: {e.strerror}; the measured points are kept in {points}: {again} fits them again"
        ) from None
    if args.json:
        print(text.to_json(document))
    else:
        print("\n".join(dict.fromkeys([*lines, *document["lines"]])))  # a failed point is named by both
    return 0


def _measure(args: argparse.Namespace, points: Path) -> list[str]:
    from calibrate.gpu.measure import outcome_lines, run
    from workloads.errors import InputError

    try:
        return outcome_lines(run(args, points), points)
    except ImportError as e:
        raise InputError(
            f"calibrating needs torch ({e}): pip install 'kvcast[calibrate]', or fit points measured elsewhere with"
            " --points"
        ) from None


def _fit(args: argparse.Namespace, points: Path) -> dict[str, Any]:
    from calibrate.assemble import from_points, profile_of
    from calibrate.fit import as_json
    from calibrate.models import resolve_model
    from calibrate.profile import save_profile
    from kvcast.present.profile_report import write_html

    calibration, model = from_points(points), resolve_model(args.model)
    written, notes = [], []
    for tp in args.tensor_parallel:
        path = args.out if tp == args.tensor_parallel[0] else args.out.with_stem(f"{args.out.stem}-tp{tp}")
        profile = profile_of(calibration, model, tp, path.stem)
        save_profile(profile, path)
        write_html(profile, path.with_suffix(".html"))
        written.append({"path": str(path), "report": str(path.with_suffix(".html")), **profile.describe()})
        notes += profile.provenance["notes"]
    dtype = calibration.header["dtype"]
    lines = [
        *calibration.lines(),
        *sorted(set(notes)),
        "",
        *(f"wrote {w['path']} ({w['content_hash'][:19]}) and its report {w['report']}" for w in written),
    ]
    use = f"--set hardware.profile={written[0]['path']} --set model.name={args.model}" + (
        f" --set model.dtype={dtype}" if dtype != "bf16" else ""
    )
    lines.append(f"use it: kvcast run SCENARIO {use}")
    return {"points": str(points), "profiles": written, "fits": as_json(calibration.fitted), "lines": lines}
