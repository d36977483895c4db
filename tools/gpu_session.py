"""Everything a GPU is needed for, in at most eight minutes: checks, rates, calibration, other operator rows (fp8
products, attention of installed packages, all-reduces between GPUs), iteration mixes, closed loop.

Most valuable first, each part within its own seconds and printing them; a part that fails says so and the next one
runs. The folder holds what was recorded and report.md. Needs torch, triton and numpy only; fitting and comparing happen
anywhere later (`kvcast calibrate --points`, `kvcast validate engine`). --rehearse runs the same script on the CPU with
a tiny model.

    python tools/gpu_session.py --out session
    python tools/gpu_session.py --rehearse --out /tmp/session
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from calibrate.gpu.cuda import CudaCalibration
from calibrate.gpu.devices import Calibration, CpuCalibration
from calibrate.gpu.engine import Engine, build, example_arrivals, replay, warm_up, write_recording
from calibrate.gpu.measure import measure, outcome_lines
from calibrate.gpu.mixes import example_mixes
from calibrate.gpu.mixes import record as record_mixes
from calibrate.gpu.points import CPU, GPU
from calibrate.gpu.serving import Limits
from calibrate.models import ModelSpec, resolve_model
from workloads.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
SECONDS = {"checks": 60.0, "rates": 60.0, "calibration": 180.0, "rows": 60.0, "mixes": 60.0, "loop": 60.0}
REHEARSAL_SECONDS = {"checks": 60.0, "rates": 60.0, "calibration": 20.0, "rows": 6.0, "mixes": 60.0, "loop": 2.0}
ROWS = (
    ("fp8", ["gemm"], "kvcast"),
    ("bf16", ["all_reduce"], "kvcast"),
    *(("bf16", ["attention"], package) for package in ("vllm", "flashinfer", "torch")),
)
"""(type, operators, whose attention) of the points files that the other rows come from, each with an equal share of the
time."""
FIT_SECONDS = {"cuda": 30.0, "cpu": 12.0}
"""Of the calibration's seconds, kept for fitting what was measured."""
MIXES, FEWEST_MIXES = 25, 20


class Session:
    """The device, the model, the folder and the report; every part is a method that stops at `stop_s`."""

    def __init__(self, args: argparse.Namespace):
        self.out: Path = args.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.rehearsal: bool = args.rehearse
        self.kind = "cpu" if self.rehearsal else "cuda"
        self.dtype = "fp32" if self.rehearsal else "bf16"
        self.seconds = REHEARSAL_SECONDS if self.rehearsal else SECONDS
        self.model_name: str = args.model or ("tiny" if self.rehearsal else "llama-3.1-8b")
        self.model: ModelSpec = resolve_model(self.model_name)
        self.device = self._fresh_device()
        self.kv_blocks, self.batched, self.seqs = (1024, 256, 16) if self.rehearsal else (20_000, 8192, 256)
        self.report: list[str] = []
        self.say(f"# GPU session on {self.device.about()['name']}\n")
        if self.rehearsal:
            self.say("REHEARSAL on a CPU with a tiny model: no figure here says anything about a GPU.\n")
        self.say(f"{json.dumps(self.device.about())}\n{self.device.kernels()}")
        self.engine: Engine | None = None

    def _fresh_device(self, dtype: str | None = None, attention: str = "kvcast") -> Calibration:
        if self.rehearsal:
            return CpuCalibration(self.model, dtype or self.dtype, attention=attention)
        return CudaCalibration(self.model, dtype or self.dtype, attention)

    def say(self, line: str) -> None:
        print(line, flush=True)
        self.report.append(line)

    def run(self) -> int:
        """All parts; how many failed."""
        failed, started = 0, time.perf_counter()
        for name, seconds in self.seconds.items():
            begun = time.perf_counter()
            self.say(f"\n## {name} (at most {seconds:.0f} s)\n")
            try:
                getattr(self, name)(min(begun + seconds, started + sum(self.seconds.values())))
            except (
                Exception
            ) as e:  # one part must not take the others with it; the report shows it and the exit code counts it
                failed += 1
                self.say(f"FAILED: {type(e).__name__}: {e}")
                (self.out / f"{name}.error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            self.say(f"\n{name}: {time.perf_counter() - begun:.1f} s")
            (self.out / "report.md").write_text("\n".join(self.report) + "\n", encoding="utf-8")
        self.say(f"\nwhole session: {time.perf_counter() - started:.1f} s, {failed} parts failed")
        (self.out / "report.md").write_text("\n".join(self.report) + "\n", encoding="utf-8")
        return failed

    # ---- parts ---------------------------------------------------------------------------------------------------

    def checks(self, stop_s: float) -> None:
        """Every kernel against fp64 on caches that are NaN where no sequence has a token (kernels/checks.py)."""
        from kernels.checks import as_text, check_on_device, planned_checks

        done = check_on_device(self.kind, stop_s - time.perf_counter())
        self.say(as_text(done, planned_checks(self.kind)))
        (self.out / "checks.json").write_text(
            json.dumps([{**asdict(c), "error": str(c.error), "passed": c.passed} for c in done], indent=1),
            encoding="utf-8",
        )
        self.device.release()
        wrong = sum(not c.passed for c in done)
        if wrong or not done:
            raise RuntimeError(f"{wrong} of {len(done)} kernel checks are wrong")

    def rates(self, stop_s: float) -> None:
        """Kernel rates against this run's own ceilings, torch's attention beside every one (kernels/rates.py)."""
        from kernels.rates import as_text, rates_on_device

        ceilings, rates = rates_on_device(self.kind, stop_s - time.perf_counter())
        self.say(as_text(ceilings, rates))
        rows = [{k: None if v != v else v for k, v in asdict(r).items()} | {"verdict": r.verdict} for r in rates]
        (self.out / "rates.json").write_text(
            json.dumps({"rehearsal": self.rehearsal, "ceilings": ceilings, "cases": rows}, indent=1), encoding="utf-8"
        )
        self.device.release()
        failed = [r.case for r in rates if r.failure]
        if failed or not rates:
            raise RuntimeError(f"{len(failed)} of {len(rates)} cases did not run: {', '.join(failed)}")

    def calibration(self, stop_s: float) -> None:
        """The points of the model, into points.jsonl; fitted too where that can be done in what is left of the part's
        time."""
        path = self.out / "points.jsonl"
        budget_s = max(stop_s - time.perf_counter() - FIT_SECONDS[self.kind], 1.0)
        outcome = measure(
            self._fresh_device(),
            self.model,
            CPU if self.rehearsal else GPU,
            path,
            dtype=self.dtype,
            budget_s=budget_s,
            resume=True,
        )
        for line in outcome_lines(outcome, path):
            self.say(line)
        for line in fit(path, self.model_name, self.out / "profile.json", stop_s - time.perf_counter()):
            self.say(line)

    def rows(self, stop_s: float) -> None:
        """Operators beyond the model's own calibration, a points file each; what this machine lacks is said."""
        found = list(self._rows_here())
        for i, (name, dtype, groups, device) in enumerate(found):
            path, left = self.out / f"points-{name}.jsonl", stop_s - time.perf_counter()
            grid, share_s = CPU if self.rehearsal else GPU, max(left / (len(found) - i), 0.5)
            outcome = measure(device, self.model, grid, path, dtype=dtype, groups=groups, budget_s=share_s, resume=True)
            self.say("\n".join(outcome_lines(outcome, path)))
            self.say(f"rows of it: kvcast calibrate --points {path} --model {self.model_name} --out {self.out / name}")
            device.release()
        if not found:
            raise RuntimeError("no row was measured")

    def _rows_here(self) -> Iterator[tuple[str, str, list[str], Calibration]]:
        """(name, type, operators, device) of ROWS that this machine can measure."""
        for dtype, groups, attention in ROWS:
            name = f"{dtype}-{groups[0]}" + ("" if attention == "kvcast" else f"-{attention}")
            try:
                device = self._fresh_device(dtype, attention)
            except InputError as e:
                self.say(f"{name}: not measured: {e}")
                continue
            if groups == ["all_reduce"] and device.gpus < 2:
                self.say(f"{name}: not measured: this machine has one GPU")
                continue
            yield name, dtype, groups, device

    def _engine(self) -> Engine:
        if self.engine is None:
            limits = Limits(self.kv_blocks, 16, self.seqs, self.batched)
            self.engine = build(
                self.model,
                self.kind,
                self.dtype,
                limits,
                max_positions=min(self.model.max_context, self.kv_blocks * 16),
            )
        return self.engine

    def mixes(self, stop_s: float) -> None:
        """Whole steps of shapes off the grid."""
        mixes = example_mixes(MIXES, self.kv_blocks * 16, self.batched, self.seqs)
        clock = time.thread_time if self.rehearsal else time.perf_counter
        done = record_mixes(self._engine(), mixes, self.out, clock, stop_s)
        self.say(f"{done} of {len(mixes)} step shapes in {self.out / 'iterations.jsonl'}")
        if done < FEWEST_MIXES:
            raise RuntimeError(
                f"{done} step shapes, expected at least {FEWEST_MIXES}: kvcast validate engine needs as many"
            )

    def loop(self, stop_s: float) -> None:
        """A served workload in real time."""
        engine = self._engine()
        engine.limits = Limits(self.kv_blocks, 16, self.seqs, self.batched)
        seconds = max(stop_s - time.perf_counter(), 1.0)
        rate, own, output = (8.0, (16, 64), (4, 12)) if self.rehearsal else (12.0, (64, 2048), (32, 256))
        count = max(4, int(rate * seconds * 0.5))
        arrivals = example_arrivals(count, rate, self.model.vocab, 128 if self.rehearsal else 2048, own, output)
        warm_up(engine, arrivals)
        with torch.inference_mode():
            recorded = replay(engine, arrivals)
        meta = {
            "model": self.model_name,
            "dtype": self.dtype,
            "device": self.kind,
            "kv_blocks": self.kv_blocks,
            "block_size": 16,
            "max_num_seqs": self.seqs,
            "max_num_batched_tokens": self.batched,
            "caching": True,
            "clock": "wall",
            "torch": torch.__version__,
        }
        write_recording(self.out, meta, arrivals, recorded)
        ttft = statistics.median(r["token_s"][0] - r["arrival_s"] for r in recorded["requests"])
        self.say(
            f"{count} requests, {len(recorded['steps'])} steps, median TTFT {1e3 * ttft:.1f} ms; compare: kvcast"
            f" validate engine --record {self.out}"
        )


def fit(points: Path, model: str, out: Path, seconds: float) -> list[str]:
    """`kvcast calibrate --points` in a process that is ended after `seconds`: what it said, or how to do it
    elsewhere."""
    command = ["kvcast", "calibrate", "--points", str(points), "--model", model, "--out", str(out)]
    elsewhere = f"elsewhere: {' '.join(command)}"
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(seconds, 0.0),
        )
    except subprocess.TimeoutExpired:
        return [f"not fitted: not done in the {max(seconds, 0.0):.1f} s left of this part; {elsewhere}"]
    if done.returncode:
        return [f"not fitted here: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}; {elsewhere}"]
    return done.stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", default=None, help="default: llama-3.1-8b (tiny in a rehearsal)")
    parser.add_argument(
        "--rehearse", action="store_true", help="the same script on the CPU, a tiny model and the kernels interpreted"
    )
    args = parser.parse_args()
    if args.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # decided when kernels is imported
    return 1 if Session(args).run() else 0


if __name__ == "__main__":
    sys.exit(main())
