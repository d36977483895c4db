"""Everything a GPU is needed for, in at most eight minutes: checks, rates, calibration, iteration mixes, closed loop.

Most valuable first, each part within its own seconds and printing them; a part that fails says so and the next one runs. The folder
holds what was recorded and report.md. Needs torch, triton and numpy only; fitting and comparing happen anywhere later
(`kvcast calibrate --points`, `kvcast validate engine`). --rehearse runs the same script on the CPU with a tiny model.

    python tools/gpu_session.py --out session
    python tools/gpu_session.py --rehearse --out /tmp/session
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from calibrate.backend import TorchBackend
from calibrate.cuda import CudaCalibration
from calibrate.devices import Calibration, CpuCalibration
from calibrate.engine import Engine, build, example_arrivals, replay, warm_up, write_recording
from calibrate.measure import measure, outcome_lines
from calibrate.mixes import example_mixes
from calibrate.mixes import record as record_mixes
from calibrate.models import ModelSpec, resolve_model
from calibrate.operators import Point, attention_shape, features
from calibrate.plan import CPU, GPU
from calibrate.serving import Limits

SECONDS = {"checks": 60.0, "rates": 60.0, "calibration": 240.0, "mixes": 60.0, "loop": 60.0}
REHEARSAL_SHARE = 0.03
ERROR = {"bf16": 5e-3, "fp16": 1e-3, "fp32": 1e-5}
"""Largest relative error of a kernel, of the largest value of its result."""

RATES: list[tuple[str, str, dict[str, int], float, float]] = [
    ("prefill 8k new, causal", "matmul", {"new": 8192, "cached": 0, "seqs": 1}, 0.40, 0.55),
    ("prefill 2k new + 8k cached", "matmul", {"new": 2048, "cached": 8192, "seqs": 1}, 0.40, 0.55),
    ("decode batch 64, context 4k", "copy", {"batch": 64, "context": 4096, "longest": 4096}, 0.75, 0.88),
    ("decode batch 16, context 1k", "copy", {"batch": 16, "context": 1024, "longest": 1024}, 0.35, 0.50),
    ("decode 1 x 64k + 31 x 512", "copy", {"batch": 32, "context": 512, "longest": 65536}, 0.50, 0.70),
]
"""(case, ceiling, shape, floor, target) of CALIBRATION: shares of the same run's measured ceiling."""
SMALLEST_US = (25.0, 15.0)


class Session:
    """The device, the model, the folder and the report; every part is a method that stops at `stop_s`."""

    def __init__(self, args: argparse.Namespace):
        self.out: Path = args.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.rehearsal: bool = args.rehearse
        self.kind = "cpu" if self.rehearsal else "cuda"
        self.dtype = "fp32" if self.rehearsal else "bf16"
        self.share = REHEARSAL_SHARE if self.rehearsal else 1.0
        self.model_name: str = args.model or ("tiny" if self.rehearsal else "llama-3.1-8b")
        self.model: ModelSpec = resolve_model(self.model_name)
        self.device: Calibration = CpuCalibration(self.model, self.dtype) if self.rehearsal else CudaCalibration(self.model, self.dtype)
        self.kv_blocks, self.batched, self.seqs = (1024, 256, 16) if self.rehearsal else (20_000, 8192, 256)
        self.report = [f"# GPU session on {self.device.about()['name']}", "", f"{json.dumps(self.device.about())}", f"{self.device.kernels()}", ""]
        if self.rehearsal:
            self.report.insert(1, "\nREHEARSAL on a CPU with a tiny model: no figure here says anything about a GPU.")
        self.engine: Engine | None = None

    def say(self, line: str) -> None:
        print(line, flush=True)
        self.report.append(line)

    def run(self) -> int:
        """All parts; how many failed."""
        failed, started = 0, time.perf_counter()
        for name, seconds in SECONDS.items():
            begun = time.perf_counter()
            self.say(f"\n## {name} (at most {seconds * self.share:.0f} s)\n")
            try:
                getattr(self, name)(min(begun + seconds, started + sum(SECONDS.values())) if not self.rehearsal else begun + seconds * self.share)
            except Exception as e:  # one part must not take the others with it; the report shows it and the exit code counts it
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
        """Attention of the device's kernels against torch in a wider type on the same tensors."""
        worst, done, bad = 0.0, 0, 0
        with torch.inference_mode():
            for point in check_points(self.model, self.rehearsal):
                if time.perf_counter() >= stop_s:
                    break
                error = self._error(point)
                done, worst = done + 1, max(worst, error)
                if not error <= ERROR[self.dtype]:
                    bad += 1
                    self.say(f"WRONG {point.key}: relative error {error:.2e}")
        self.say(f"{done} cases, worst relative error {worst:.1e} (limit {ERROR[self.dtype]:.0e}), {bad} wrong")
        if bad or not done:
            raise RuntimeError(f"{bad} of {done} kernel checks are wrong")

    def _error(self, point: Point) -> float:
        s, heads = point.shape, {k: point.shape[k] for k in ("heads", "kv_heads", "head_dim")}
        dev = self.device
        dev.rotating_bytes = 1
        lengths = [s["new"] + s["cached"]] * s["seqs"] if point.op == "prefill" else [s["longest"]] + [s["context"]] * (s["batch"] - 1)
        kc, vc, (table,) = dev._cache(s, lengths)
        ours, torch_backend = dev.backend, TorchBackend()
        wide = torch.float64 if self.kind == "cpu" else torch.float32
        if point.op == "prefill":
            new, cached = [s["new"]] * s["seqs"], [s["cached"]] * s["seqs"]
            q = dev._rand(sum(new), s["heads"], s["head_dim"]) * 10
            got = ours.prefill_attention(q.clone(), kc, vc, table, ours.prefill_work(new, cached, **heads))
            want = torch_backend.prefill_attention(q.to(wide), kc.to(wide), vc.to(wide), table, torch_backend.prefill_work(new, cached, **heads))
        else:
            q = dev._rand(s["batch"], s["heads"], s["head_dim"]) * 10
            got = ours.decode_attention(q.clone(), kc, vc, table, ours.decode_work(lengths, **heads))
            want = torch_backend.decode_attention(q.to(wide), kc.to(wide), vc.to(wide), table, torch_backend.decode_work(lengths, **heads))
        if torch.isnan(got).any():
            return float("inf")
        return float((got.to(wide) - want).abs().max() / want.abs().max())

    def rates(self, stop_s: float) -> None:
        """Kernel rates against this run's own ceilings, torch's attention beside them."""
        fresh: Calibration = CpuCalibration(self.model, self.dtype) if self.rehearsal else CudaCalibration(self.model, self.dtype)
        median = lambda point: statistics.median(fresh.measure(point))  # noqa: E731
        grid = CPU if self.rehearsal else GPU
        n, size = grid.matmul[0], grid.copy_bytes[0]
        element = 4 if self.rehearsal else 2
        tflops = features(Point("matmul", {"m": n, "n": n, "k": n}), element)["gflop"] * 1e3 / median(Point("matmul", {"m": n, "n": n, "k": n}))
        tb_s = 2e-6 * size / median(Point("copy", {"bytes": size}))
        self.say(f"ceilings: matmul {tflops:.4g} TFLOP/s, copy {tb_s:.4g} TB/s, graph node {median(Point('node_gap', {})):.2f} us")
        self.say("\n| case | time us | rate | share of ceiling | floor | target | torch us |\n|---|---|---|---|---|---|---|")
        rows: list[dict[str, Any]] = []
        for case, ceiling, shape, floor, target in RATES:
            if time.perf_counter() >= stop_s:
                self.say(f"out of time before {case}")
                break
            point = Point("prefill" if "new" in shape else "decode", {**attention_shape(self.model), **self._scaled(shape)})
            us, f = median(point), features(point, element)
            rate = f["gflop"] * 1e3 / us if ceiling == "matmul" else f["mb"] / us
            share = rate / (tflops if ceiling == "matmul" else tb_s)
            beside = torch_attention_us(fresh, point)
            verdict = "meets target" if share >= target else "above floor" if share >= floor else "BELOW FLOOR"
            unit = "TFLOP/s" if ceiling == "matmul" else "TB/s"
            self.say(f"| {case} | {us:.1f} | {rate:.4g} {unit} | {100 * share:.0f} % {verdict} | {100 * floor:.0f} % | {100 * target:.0f} % | {'-' if beside is None else f'{beside:.1f}'} |")
            rows.append({"case": case, "shape": point.shape, "us": us, "share": share, "torch_us": beside})
        small = median(Point("decode", {**attention_shape(self.model), "batch": 1, "context": 256, "longest": 256}))
        self.say(f"smallest decode call in a graph: {small:.1f} us (floor {SMALLEST_US[0]:.0f}, target {SMALLEST_US[1]:.0f})")
        (self.out / "rates.json").write_text(json.dumps({"matmul_tflops": tflops, "copy_tb_s": tb_s, "smallest_decode_us": small, "cases": rows}, indent=1), encoding="utf-8")

    def _scaled(self, shape: dict[str, int]) -> dict[str, int]:
        """A rehearsal's shapes are a 32nd, sequences as they are."""
        if not self.rehearsal:
            return shape
        return {k: v if k in ("seqs", "batch") else v // 32 for k, v in shape.items()}

    def calibration(self, stop_s: float) -> None:
        """The points of the model, into points.jsonl; fitted too where scipy is installed."""
        fresh: Calibration = CpuCalibration(self.model, self.dtype) if self.rehearsal else CudaCalibration(self.model, self.dtype)
        path = self.out / "points.jsonl"
        outcome = measure(fresh, self.model, CPU if self.rehearsal else GPU, path, dtype=self.dtype, budget_s=max(stop_s - time.perf_counter() - 5 * self.share, 1.0), resume=True)
        for line in outcome_lines(outcome, path):
            self.say(line)
        try:
            import scipy  # noqa: F401
        except ImportError:
            self.say(f"not fitted here (no scipy); elsewhere: kvcast calibrate --points {path} --model {self.model_name} --out {self.out / 'profile.json'}")
            return
        from calibrate.assemble import from_points, profile_of
        from calibrate.profile import save_profile

        calibration = from_points(path)
        for line in calibration.lines():
            self.say(f"- {line}")
        save_profile(profile_of(calibration, self.model, 1, "session"), self.out / "profile.json")

    def _engine(self) -> Engine:
        if self.engine is None:
            limits = Limits(self.kv_blocks, 16, self.seqs, self.batched)
            self.engine = build(self.model, self.kind, self.dtype, limits, max_positions=min(self.model.max_context, self.kv_blocks * 16))
        return self.engine

    def mixes(self, stop_s: float) -> None:
        """Whole steps of shapes off the grid."""
        mixes = example_mixes(25, self.kv_blocks * 16, self.batched, self.seqs)
        clock = time.thread_time if self.rehearsal else time.perf_counter
        done = record_mixes(self._engine(), mixes, self.out, clock, stop_s)
        self.say(f"{done} of {len(mixes)} step shapes in {self.out / 'iterations.jsonl'}")

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
        meta = {"model": self.model_name, "dtype": self.dtype, "device": self.kind, "kv_blocks": self.kv_blocks, "block_size": 16, "max_num_seqs": self.seqs,
                "max_num_batched_tokens": self.batched, "caching": True, "clock": "wall", "torch": torch.__version__}  # fmt: skip
        write_recording(self.out, meta, arrivals, recorded)
        ttft = statistics.median(r["token_s"][0] - r["arrival_s"] for r in recorded["requests"])
        self.say(f"{count} requests, {len(recorded['steps'])} steps, median TTFT {1e3 * ttft:.1f} ms; compare: kvcast validate engine --record {self.out}")


def check_points(model: ModelSpec, small: bool) -> list[Point]:
    """Lengths around block borders, prefixes, unequal contexts, split contexts; the most telling first."""
    shape = attention_shape(model)
    lengths = ((17, 33), (1, 0), (16, 16), (100, 0)) if small else ((300, 1000), (1, 0), (15, 1), (16, 16), (17, 4095), (2048, 0), (1024, 8192), (129, 20000))
    batches = ((3, 40, 200), (1, 1, 1), (8, 33, 33)) if small else ((32, 512, 65536), (1, 1, 1), (16, 1024, 1024), (64, 4096, 4096), (7, 17, 3000), (256, 100, 100), (1, 131072, 131072))
    prefill = [Point("prefill", {**shape, "new": n, "cached": c, "seqs": q}) for n, c in lengths for q in (1, 3)]
    decode = [Point("decode", {**shape, "batch": b, "context": c, "longest": longest}) for b, c, longest in batches]
    return [p for pair in zip(prefill, decode, strict=False) for p in pair] + prefill[len(decode) :] + decode[len(prefill) :]


def torch_attention_us(device: Calibration, point: Point) -> float | None:
    """torch's own attention at the same work, contiguous tensors; None where it has no equal (a prefix, unequal contexts)."""
    s, d = point.shape, point.shape["head_dim"]
    if s.get("cached", 0) or s.get("longest", s.get("context")) != s.get("context"):
        return None
    batch, queries, keys = (s["seqs"], s["new"], s["new"]) if point.op == "prefill" else (s["batch"], 1, s["context"])
    q = device._rand(batch, s["heads"], queries, d)
    k, v = (device._rand(batch, s["kv_heads"], keys, d) for _ in range(2))
    attention = torch.nn.functional.scaled_dot_product_attention
    call: Callable[[], Any] = lambda: attention(q, k, v, is_causal=point.op == "prefill", enable_gqa=True)  # noqa: E731
    with torch.inference_mode():
        return statistics.median(device.time([call]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", default=None, help="default: llama-3.1-8b (tiny in a rehearsal)")
    parser.add_argument("--rehearse", action="store_true", help="the same script on the CPU, tiny model, 3 %% of the time")
    return 1 if Session(parser.parse_args()).run() else 0


if __name__ == "__main__":
    sys.exit(main())
