"""Serves a few requests with the Triton backend under the interpreter and with torch, and compares logits; then runs
what calibration times on a GPU, once each, in fp16; then what the host's time of a step consists of.

    TRITON_INTERPRET=1 python -m tests.triton_backend_check
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from calibrate.gpu.attention import OwnAttention
from calibrate.gpu.backend import TorchBackend
from calibrate.gpu.bench import TorchDevice
from calibrate.gpu.decoder import Decoder
from calibrate.gpu.devices import CpuCalibration
from calibrate.gpu.engine import Engine
from calibrate.gpu.graphs import GraphedDecode, rerun
from calibrate.gpu.serving import Limits, Request
from calibrate.gpu.triton_backend import TritonBackend
from calibrate.models import resolve_model
from calibrate.operators import Point

LIMITS = Limits(kv_blocks=16, block_size=16, max_num_seqs=4, max_num_batched_tokens=24)


def main() -> None:
    torch.set_num_threads(1)
    dense = replace(
        resolve_model("tiny"), layers=1, hidden=64, heads=4, kv_heads=2, head_dim=64, intermediate=64, vocab=50
    )
    experts = replace(dense, experts=4, experts_per_token=2, expert_intermediate=32, moe_layers=1)
    for model in (dense, experts):
        logits = {}
        for name, backend in (
            ("torch", TorchBackend()),
            ("triton", TritonBackend("cpu")),
            ("graphs", TritonBackend("cpu")),
        ):
            engine = Engine(
                Decoder(model, backend, "cpu", torch.float32, LIMITS.kv_blocks, 16, seed=3, max_positions=100), LIMITS
            )
            if name == "graphs":  # padded, fixed decode batches, rerun instead of replayed
                engine.forward = GraphedDecode(engine.decoder, LIMITS, sizes=(2, 4), capture=rerun).forward
            for i, prompt in enumerate(([1] * 30, [1] * 16 + [2] * 3, [5])):
                engine.scheduler.submit(Request(i, prompt, 3))
            rows = []
            with torch.inference_mode():
                while engine.scheduler.busy:
                    rows.append(engine.step()[3].clone())
            logits[name] = torch.cat(rows)
        for name in ("triton", "graphs"):
            worst = float((logits["torch"] - logits[name]).abs().max())
            assert worst < 1e-4, f"{name}, {model.experts} experts: logits differ by {worst}"
            assert torch.equal(logits["torch"].argmax(-1), logits[name].argmax(-1))
            print(
                f"{name}, {model.experts} experts: {len(logits['torch'])} rows, logits within {worst:.1e}, same tokens"
            )


class Interpreted(TorchDevice):
    """The calls of calibration on a GPU, with the interpreter in its place."""

    kind = "cpu"

    def __init__(self, dtype: str):
        super().__init__(dtype, rotating_bytes=1e5)
        self.backend = TritonBackend("cpu")
        self.attention = OwnAttention(self.backend)


def timed_calls() -> None:
    """Every operator of a dense and a mixture model, attention of one step: results are finite and of the right
    size."""
    device = Interpreted("fp16")
    heads = {"heads": 4, "kv_heads": 2, "head_dim": 64}
    points = [
        Point("rope_kv_write", {**heads, "tokens": 20}),
        Point("prefill", {**heads, "new": 20, "cached": 33, "seqs": 2}),
        Point("decode", {**heads, "batch": 3, "context": 17, "longest": 70}),
        Point("mixed", {**heads, "new": 17, "cached": 16, "seqs": 1, "batch": 2, "context": 20, "longest": 20}),
        Point("moe", {"tokens": 5, "hidden": 64, "width": 32, "experts": 4, "top_k": 2}),
        Point("gemm", {"m": 4, "n": 32, "k": 16}),
        Point("qk_norm", {**heads, "tokens": 3}),
        Point("rms_norm", {"tokens": 3, "hidden": 64}),
        Point("silu_mul", {"tokens": 3, "width": 32}),
        Point("embedding", {"tokens": 3, "hidden": 64, "vocab": 50}),
        Point("sample", {"rows": 3, "vocab": 50}),
        Point("copy", {"bytes": 4096}),
        Point("node_gap", {}),
    ]
    with torch.inference_mode():
        for point in points:
            calls = device.calls(point)
            for call in calls[:2]:
                result = call()
                if isinstance(result, torch.Tensor):
                    assert bool(torch.isfinite(result.float()).all()), point.key
    print(f"{len(points)} operators of calibration ran")


def host_time() -> None:
    """A decode step's host time holds planning and loading: what they take is planted, 3 ms of CPU time each, and must
    be there in full."""
    device = CpuCalibration(replace(resolve_model("tiny"), head_dim=64), "fp32", sweep=False)
    backend = TritonBackend("cpu")
    device.backend, device.graphs = backend, {"capture": rerun}
    calls = {"plan": 0, "load": 0}

    def slowed(name: str, call: Any) -> Any:
        def slow(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            until = time.thread_time() + 0.003
            while time.thread_time() < until:
                pass
            return call(*args, **options)

        return slow

    backend.decode_plan = slowed("plan", backend.decode_plan)  # type: ignore[method-assign]
    fixed = backend.fixed_decode_work

    def slow_to_load(*args: Any, **options: Any) -> Any:
        work = fixed(*args, **options)
        work.load = slowed("load", work.load)
        return work

    backend.fixed_decode_work = slow_to_load  # type: ignore[method-assign]
    samples = device.measure(Point("host", {"seqs": 6}))
    assert calls["load"] >= len(samples), calls
    assert calls["plan"] >= len(samples), calls
    assert min(samples) >= 6000, samples
    print(f"host time of {len(samples)} decode steps holds plan and load")


if __name__ == "__main__":
    main()
    timed_calls()
    host_time()
