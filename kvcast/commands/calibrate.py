"""Measure this machine's kernels for a model, as operator rows for any model or as a profile of this one.

--out FOLDER holds the rows of the atlas (gemm, prefill, decode, all_reduce, elementwise, ..) as CSV files, and with
what they were measured; hardware.profile = FOLDER takes them where they cover a shape and the GPU's atlas elsewhere.
--out PROFILE.json is a profile of the one model with its fits, PROFILE.html shows measured against fitted.

Points are appended to points.jsonl in the folder (PROFILE.points.jsonl) as they come; --resume adds what is missing.
Neither needs a device later: --points FILE takes a file that `python -m calibrate.gpu.measure` wrote elsewhere.

  kvcast calibrate --model llama-3.1-8b --device cuda --out mine
  kvcast calibrate --model llama-3.1-8b --operators gemm --dtype fp8 --device cuda --out mine-fp8
  kvcast calibrate --model llama-3.1-8b --operators attention --attention flashinfer --device cuda --out flashinfer
  kvcast calibrate --model tiny --device cpu --budget-s 60 --out cpu.json
  kvcast calibrate --points h200.points.jsonl --model qwen3-8b --out h200-qwen3-8b.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

POINTS = "points.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from calibrate.gpu.measure import add_arguments as measuring

    measuring(parser)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="OUT",
        help="folder of operator rows to write, or a profile of this model (.json); wider tensor parallel gets -tpN",
    )
    parser.add_argument("--points", type=Path, metavar="FILE", help="fit these measured points instead of measuring")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")


def run(args: argparse.Namespace) -> int:
    from kvcast import text
    from workloads.errors import InputError

    one_model = args.out.suffix == ".json"
    _check(args, one_model)
    lines: list[str] = []
    points = args.points or (args.out.with_suffix(".points.jsonl") if one_model else args.out / POINTS)
    if args.points is None:
        lines += _measure(args, points)
    try:
        document = _fit(args, points) if one_model else _rows(args, points)
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


def _check(args: argparse.Namespace, one_model: bool) -> None:
    """What a profile of one model cannot hold, before anything is measured; the rows' own type."""
    from calibrate.operators import GROUPS
    from workloads.errors import InputError

    if not one_model:
        if args.out.suffix or args.out.is_file():
            raise InputError(f"--out {args.out}: expected a folder's name, or a file name that ends in .json")
        args.dtype = args.dtype or "bf16"  # what prices know; a CPU's default is fp32
        return
    if args.dtype == "fp8" or set(args.operators.split(",")) != set(GROUPS):
        raise InputError(
            f"--out {args.out}: a profile of one model holds every operator in one type; for --operators or --dtype fp8"
            " expected a folder's name"
        )


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


def _rows(args: argparse.Namespace, points: Path) -> dict[str, Any]:
    from calibrate.as_rows import as_rows
    from calibrate.assemble import from_points
    from calibrate.atlas.own_tables import gpu_of
    from calibrate.rows import read_rows, write_rows

    calibration = from_points(points)
    device = calibration.header["device"]["name"]
    written = write_rows(as_rows(calibration, args.out.name, gpu_of(str(device))), args.out)
    rows = read_rows(args.out)
    use = f"--set hardware.profile={args.out} --set model.name={args.model}"
    lines = [*rows.lines(), "", f"wrote {args.out} ({rows.content_hash[:19]}): {', '.join(p.name for p in written)}"]
    lines.append(f"what a model rests on: kvcast profile show {args.out} --model {args.model}")
    return {
        "points": str(points),
        "folder": str(args.out),
        "files": [str(path) for path in written],
        "gpu": rows.gpu,
        "rehearsal": rows.rehearsal,
        "operators": {name: {"rows": len(found.rows), **found.about} for name, found in rows.operators.items()},
        "content_hash": rows.content_hash,
        "lines": [*lines, f"use it: kvcast run SCENARIO {use}"],
    }


def _fit(args: argparse.Namespace, points: Path) -> dict[str, Any]:
    from calibrate.assemble import from_points, profile_of
    from calibrate.fit import as_json
    from calibrate.models import resolve_model
    from calibrate.profile import save_profile
    from kvcast.present.profile_report import write_html
    from workloads.errors import InputError

    calibration, model = from_points(points), resolve_model(args.model)
    if calibration.header["dtype"] == "fp8":
        raise InputError(f"{points}: field dtype is 'fp8': expected a folder's name for --out {args.out}")
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
