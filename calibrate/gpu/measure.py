"""Measures a model's operators on this machine and appends every point to a file as it comes.

The one idea: the file is the state. Each point is one JSON line, written and synced before the next is measured, so a
killed run, a lost GPU or a full disk keeps what was measured; --resume skips what is there. Needs torch, triton and
numpy only.

    python -m calibrate.gpu.measure --model llama-3.1-8b --device cuda --out points.jsonl --budget-s 240
"""

from __future__ import annotations

import argparse
import errno
import json
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calibrate.gpu.points import CPU, GPU, Grid, anchors, plan
from calibrate.gpu.session import LOST, Device, Log, Session
from calibrate.models import ModelSpec, resolve_model
from calibrate.operators import GROUPS
from calibrate.points_file import DRIFT, SCHEMA, failed_lines, read_points
from workloads.errors import InputError

RESERVE = 0.03
"""Share of the budget kept for re-measuring the anchors."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SAME_RUN = ("schema", "device", "model", "dtype", "kernels", "tensor_parallel")
"""What must agree before a file is added to."""


@dataclass(frozen=True)
class Measured:
    """How a session ended."""

    planned: int
    done: int  #: of the plan, earlier sessions included
    failed: dict[str, str]  #: why a point of the plan has no time, by key
    drift: dict[str, float]
    stopped: str  #: "" when the plan is complete, else why it stopped


def measure(
    device: Device,
    model: ModelSpec,
    grid: Grid,
    path: Path,
    *,
    dtype: str,
    tps: Sequence[int] = (1,),
    groups: Collection[str] = tuple(GROUPS),
    budget_s: float = 240.0,
    resume: bool = False,
    retry_failed: bool = False,
    show: Callable[[int, int, float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Measured:
    """Measures what the plan still lacks until the budget is spent. show(done, planned, seconds left) is called after
    every point.

    groups: keys of GROUPS. retry_failed: points that an earlier session recorded as failed are lacking too.
    """
    points = plan(model, grid, tps, groups, dtype, getattr(device, "gpus", 1))
    header = {
        "schema": SCHEMA,
        "device": device.about(),
        "model": model.name,
        "config": asdict(model),
        "dtype": dtype,
        "kernels": device.kernels(),
        "tensor_parallel": list(tps),
    }
    known = {k: r for k, r in _open(path, header, resume).items() if not (retry_failed and "error" in r)}
    planned = {p.key for p in points}
    stop_s = clock() + budget_s
    with Log(path) as log:
        session = Session(device, log, known, clock)
        log.write(
            {"op": "session", "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "clocks": device.clocks()}
        )
        stopped = session.run(
            points,
            stop_s - RESERVE * budget_s,
            lambda: show and show(len(known.keys() & planned), len(points), max(0.0, stop_s - clock())),
        )
        drift: dict[str, float] = {}
        if stopped != LOST:
            drift, ended = session.drift(anchors(model, grid, dtype))
            stopped = ended or stopped
        log.write(
            {"op": "end", "stopped": stopped, "drift": drift, "clocks": {} if stopped == LOST else device.clocks()}
        )
    failed = {k: known[k]["error"] for k in known.keys() & planned if "error" in known[k]}
    return Measured(len(points), len(known.keys() & planned), failed, drift, stopped)


# ---- the file --------------------------------------------------------------------------------------------------


def _open(path: Path, header: dict[str, Any], resume: bool) -> dict[str, dict[str, Any]]:
    """The rows already there; starts the file, or cuts off a line a kill left unfinished."""
    if not path.exists() or (
        path.is_file() and b"\n" not in path.read_bytes()
    ):  # nothing, or a header that a kill cut short
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        with Log(path) as log:
            log.write({"op": "header", **header})
        return {}
    if not resume:
        raise InputError(f"{path}: exists; expected --resume to add to it, or another --out")
    found, known, _ = read_points(path)
    for key in SAME_RUN:
        if json.loads(json.dumps(header[key])) != found.get(key):
            raise InputError(
                f"{path}: field {key} is {found.get(key)!r}; this run has {header[key]!r}: expected the same to resume"
            )
    data = path.read_bytes()
    with path.open("r+b") as f:
        f.truncate(data.rfind(b"\n") + 1)
    return known


# ---- command line ----------------------------------------------------------------------------------------------


def open_device(kind: str, model: ModelSpec, dtype: str, attention: str = "kvcast") -> tuple[Device, Grid]:
    """A device by name, with the attention of kvcast or of a package, and the grid that suits it."""
    if kind == "fake":
        from calibrate.fake import FakeDevice

        if attention != "kvcast":
            raise InputError(f"--attention {attention}: a fake device computes nothing; expected kvcast")
        return FakeDevice(), GPU
    if kind == "cuda":
        from calibrate.gpu.cuda import CudaCalibration

        return CudaCalibration(model, dtype, attention), GPU
    from calibrate.gpu.devices import CpuCalibration

    return CpuCalibration(model, dtype, attention=attention), CPU


ATTENTION = ("kvcast", "torch", "flashinfer", "vllm")


def groups_of(text: str) -> list[str]:
    """The keys of GROUPS in a list with commas; InputError for one that is none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in GROUPS:
            raise InputError(f"--operators {text}: {name!r}: expected {', '.join(GROUPS)}")
    if not names:
        raise InputError(f"--operators {text!r}: expected at least one of {', '.join(GROUPS)}")
    return names


def progress(done: int, planned: int, left_s: float) -> None:
    if sys.stderr.isatty():
        bar = "#" * (30 * done // planned)
        print(
            f"\r\033[K[{bar:<30}] {done} of {planned} points, at most {left_s:.0f} s left",
            end="",
            file=sys.stderr,
            flush=True,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="llama-3.1-8b", help="bundled model name or path of a Hugging Face config.json"
    )
    parser.add_argument("--device", choices=("cuda", "cpu", "fake"), default="cuda")
    parser.add_argument(
        "--dtype",
        choices=("bf16", "fp8", "fp16", "fp32"),
        default=None,
        help="default: bf16 on a GPU, fp32 on a CPU; fp8: the matrix multiplies of the layers, the rest in bf16",
    )
    parser.add_argument(
        "--operators",
        metavar="LIST",
        default=",".join(GROUPS),
        help=f"what to measure, of {','.join(GROUPS)} (default: all; all_reduce needs two GPUs or more)",
    )
    parser.add_argument(
        "--attention",
        choices=ATTENTION,
        default="kvcast",
        help="whose attention: kvcast's Triton kernels (default), or those of an installed package",
    )
    parser.add_argument(
        "--tensor-parallel", metavar="N", type=int, nargs="+", default=[1], help="widths whose slices are measured"
    )
    parser.add_argument(
        "--budget-s",
        metavar="S",
        type=float,
        default=240.0,
        help="stop after this many seconds, most valuable points first (default 240)",
    )
    parser.add_argument("--resume", action="store_true", help="add what is missing to the points file")
    parser.add_argument(
        "--retry-failed", action="store_true", help="with --resume: measure the points again that failed before"
    )


def run(args: argparse.Namespace, points: Path) -> Measured:
    """`measure` from parsed arguments."""
    model = resolve_model(args.model)
    dtype = args.dtype or ("fp32" if args.device == "cpu" else "bf16")
    if not args.budget_s > 0:
        raise InputError(f"--budget-s {args.budget_s:g}: expected seconds above 0")
    groups = groups_of(args.operators)
    device, grid = open_device(args.device, model, dtype, args.attention)
    gpus = getattr(device, "gpus", 1)
    if "all_reduce" in groups and len(groups) < len(GROUPS) and gpus < 2:
        raise InputError(f"--operators {args.operators}: all_reduce needs two GPUs; this machine has {gpus}")
    try:
        outcome = measure(
            device,
            model,
            grid,
            points,
            dtype=dtype,
            tps=args.tensor_parallel,
            groups=groups,
            budget_s=args.budget_s,
            resume=args.resume,
            retry_failed=args.retry_failed,
            show=progress,
        )
    except OSError as e:
        if e.errno not in DISK_FULL:
            raise
        raise InputError(
            f"{points}: {e.strerror}; the points measured so far are in it: make room, then --resume goes on"
        ) from None
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return outcome


def outcome_lines(outcome: Measured, path: Path) -> list[str]:
    lines = [
        f"{outcome.done} of {outcome.planned} points in {path}"
        + (f"; stopped: {outcome.stopped} (--resume goes on)" if outcome.stopped else "")
    ]
    lines += failed_lines(outcome.failed)
    for key, change in outcome.drift.items():
        flag = "  DRIFT: the clocks moved during the run" if abs(change) > DRIFT else ""
        lines.append(f"anchor {key}: {100 * change:+.1f} % at the end{flag}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m calibrate.gpu.measure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="points file (JSON lines)")
    args = parser.parse_args(argv)
    try:
        outcome = run(args, args.out)
    except (InputError, OSError) as e:
        print(f"calibrate.gpu.measure: {e}", file=sys.stderr)
        return 2
    except ImportError as e:
        print(f"calibrate.gpu.measure: measuring needs torch and triton ({e})", file=sys.stderr)
        return 2
    print("\n".join(outcome_lines(outcome, args.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
