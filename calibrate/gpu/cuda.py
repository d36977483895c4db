"""An NVIDIA GPU as calibration measures it: captured CUDA graphs, replayed.

The one idea: twenty or more calls in one graph, so an operator's time holds no host time.

    python -m calibrate.gpu.measure --model llama-3.1-8b --device cuda --out points.jsonl
"""

from __future__ import annotations

import gc
import subprocess
from typing import Any

import torch

from calibrate.gpu.bench import Call
from calibrate.gpu.devices import REPLAYS, Calibration
from calibrate.models import ModelSpec
from workloads.errors import InputError

MIN_CALLS = 20
UTILIZATION = 0.92


class CudaCalibration(Calibration):
    """One NVIDIA GPU: at least twenty calls in one CUDA graph, replayed five times."""

    kind = "cuda"

    def __init__(self, model: ModelSpec, dtype: str = "bf16", attention: str = "kvcast"):
        if not torch.cuda.is_available():
            raise InputError(
                "--device cuda: torch sees no GPU; expected a CUDA device and a torch built for it (--device cpu runs"
                " the same code)"
            )
        self.properties = torch.cuda.get_device_properties(0)
        self.gpus = torch.cuda.device_count()
        super().__init__(model, dtype, self.properties.L2_cache_size, attention)

    def about(self) -> dict[str, Any]:
        import triton

        driver = _smi("driver_version")
        return {
            "name": self.properties.name,
            "memory_gib": round(torch.cuda.mem_get_info()[1] / 2**30, 2),
            "driver": driver,
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "sm_count": self.properties.multi_processor_count,
        }

    def kernels(self) -> str:
        if self.attention.name != "kvcast":
            return f"attention of {self.attention.about()}; kvcast triton rotary embedding and experts; cuBLAS"
        from kernels.attention import default_config

        d = self.model.head_dim
        return (
            f"kvcast triton prefill {default_config('cuda', 'prefill', d).as_text()}, decode"
            f" {default_config('cuda', 'decode', d).as_text()}; cuBLAS"
        )

    def clocks(self) -> dict[str, float]:
        names = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
        values = _smi(",".join(names)).split(",")
        return {name: float(value) for name, value in zip(names, values, strict=False) if _is_number(value)}

    def wait(self) -> None:
        torch.cuda.synchronize()

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def time(self, calls: list[Call]) -> list[float]:
        """Microseconds per call. Calls are warmed up on a side stream (compiles), then captured in turn."""
        rounds = -(-MIN_CALLS // len(calls))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in calls[:2]:
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # a graph's memory is its own
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(rounds):
                for call in calls:
                    call()
        graph.replay()
        torch.cuda.synchronize()
        samples = []
        for _ in range(REPLAYS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            samples.append(start.elapsed_time(end) * 1e3 / (rounds * len(calls)))
        return samples

    def _activation_bytes(self, s: dict[str, int]) -> list[float]:
        """Peak of the allocator above what weights and cache hold."""
        decoder, batch = self._one_prompt(s["tokens"], 1)
        decoder.forward(batch)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        decoder.forward(batch)
        torch.cuda.synchronize()
        return [float(torch.cuda.max_memory_allocated() - before)]

    def _kv_blocks(self, s: dict[str, int]) -> list[float]:
        """Blocks that can really be allocated beside the weights within 92 % of the memory; activations are measured
        apart."""
        total = torch.cuda.mem_get_info()[1]
        weights = torch.empty(self.model.weight_bytes(self.dtype), dtype=torch.uint8, device="cuda")
        used = total - torch.cuda.mem_get_info()[0]
        blocks = max(0, int(UTILIZATION * total) - used) // self._block_bytes()
        held: list[torch.Tensor] = [weights]
        per_layer = blocks * self._block_bytes() // self.model.layers
        held += [torch.empty(per_layer, dtype=torch.uint8, device="cuda") for _ in range(self.model.layers)]
        return [float(blocks)] if len(held) == self.model.layers + 1 else [0.0]


def _smi(query: str) -> str:
    """One query of nvidia-smi, "" where it is missing."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().split("\n")[0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
