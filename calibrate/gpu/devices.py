"""What calibration measures of a device beyond its operators, and the CPU as such a device (the GPU:
calibrate.gpu.cuda).

The one idea: the host's own time of a step is measured by running the engine, planning and copies included, around a
decoder that computes nothing.

    python -m calibrate.gpu.measure --model tiny --device cpu --budget-s 20 --out points.jsonl
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from typing import Any

import torch

from calibrate.gpu.bench import BLOCK, Call, TorchDevice
from calibrate.gpu.decoder import Batch, Decoder, rope_tables
from calibrate.gpu.engine import batch_of, engine_of
from calibrate.gpu.serving import Limits, Request, Scheduler
from calibrate.gpu.session import DeviceLostError, OutOfMemoryError
from calibrate.models import ModelSpec
from calibrate.operators import ELEMENT_BYTES, Point
from workloads.errors import InputError

REPLAYS = 5
SWEEP_BYTES = 2**25
REFUSED = ("invalid argument", "invalid configuration argument", "too many resources requested")
"""Launches that CUDA turns down without harm to the calls that follow."""
MIN_US = 20_000.0
"""Work that is timed per point on a CPU, unless twenty samples hold less."""


class Calibration(TorchDevice):
    """What both devices do beyond timing operators: host time, activation memory, KV capacity."""

    gpus = 1

    def __init__(self, model: ModelSpec, dtype: str, cache_bytes: int, attention: str = "kvcast"):
        rotating = min(3 * cache_bytes, model.parameters * ELEMENT_BYTES[dtype])
        super().__init__(dtype, rotating, attention=attention)
        self.model = model
        self.clock = time.perf_counter
        self.graphs: dict[
            str, Any
        ] = {}  #: how decode steps are captured, where not as the device does it (calibrate.gpu.engine.engine_of)

    def measure(self, point: Point) -> list[float]:
        special = {
            "host": self._host_us,
            "launch": self._launch_us,
            "all_reduce": self._all_reduce_us,
            "activation": self._activation_bytes,
            "kv_capacity": self._kv_blocks,
        }
        try:
            with torch.inference_mode():
                samples = special[point.op](point.shape) if point.op in special else self.time(self.calls(point))
        except (OSError, ImportError):
            raise
        except Exception as e:
            error = self._meaning(e)
        else:
            self._give_back()
            return samples
        self._give_back()  # the error's frames, and the tensors they held, are gone by now
        raise error

    def _meaning(self, error: Exception) -> Exception:
        """The same error as a session knows it; unchanged when it is of the point alone."""
        text = str(error) or type(error).__name__
        line = text.split("\n")[0]
        if isinstance(error, torch.OutOfMemoryError):
            return OutOfMemoryError(text.split(".")[0])
        # memory that ran out while capturing is named so: the next point tells whether the device still answers
        if isinstance(error, MemoryError) or any(
            t in text for t in ("can't allocate memory", "out of memory", "during capture")
        ):
            return OutOfMemoryError(line)
        refused = any(t in text for t in REFUSED)
        if ("CUDA error" in text and not refused) or not self.answers():
            return DeviceLostError(line)
        return error.with_traceback(None)

    def _give_back(self) -> None:
        try:
            self.release()
        except RuntimeError as e:
            raise DeviceLostError(str(e).split("\n")[0]) from None

    def answers(self) -> bool:
        """Whether the device still computes: some errors end every later call, whatever they say."""
        try:
            self.wait()
            return bool(torch.ones(1, device=self.kind).add_(1.0).item() == 2.0)
        except RuntimeError:
            return False

    def time(self, calls: list[Call]) -> list[float]:
        raise NotImplementedError

    def release(self) -> None:
        """Give memory back between points."""
        gc.collect(0)

    def _host_us(self, s: dict[str, int]) -> list[float]:
        """Everything the host does in a decode step of this many sequences: scheduling, batch tensors, the attention
        kernel's plan and its copies to the device, starting a captured graph where decodes are captured, bookkeeping.
        Nothing is computed."""
        n, prompt, steps = s["seqs"], 40, 12
        limits = Limits(kv_blocks=n * 8, block_size=BLOCK, max_num_seqs=n, max_num_batched_tokens=n * prompt)
        engine = engine_of(_Nothing(self.model, self.backend, self.kind, limits), limits, sizes=(n,), **self.graphs)
        engine.scheduler = _scheduler(limits, n, prompt, 64)
        engine.step()
        samples = []
        for _ in range(steps):
            start = self.clock()
            engine.step()
            samples.append((self.clock() - start) * 1e6)
        return samples[2:]

    def _launch_us(self, s: dict[str, int]) -> list[float]:
        """Launching a whole uncaptured forward pass: one layer and three, continued to all layers."""
        took = {layers: statistics.median(self._launches(s["tokens"], layers)) for layers in (1, 3)}
        per_layer = max((took[3] - took[1]) / 2, 0.0)
        return [took[1] + per_layer * (self.model.layers - 1)]

    def _launches(self, tokens: int, layers: int) -> list[float]:
        decoder, batch = self._one_prompt(tokens, layers)
        samples = []
        for _ in range(REPLAYS + 2):
            self.wait()
            start = time.perf_counter()
            decoder.forward(batch)
            samples.append((time.perf_counter() - start) * 1e6)
        return samples[2:]

    def _one_prompt(self, tokens: int, layers: int) -> tuple[Decoder, Batch]:
        limits = Limits(
            kv_blocks=-(-tokens // BLOCK) + 1, block_size=BLOCK, max_num_seqs=1, max_num_batched_tokens=tokens
        )
        decoder = Decoder(
            self.model,
            self.backend,
            self.kind,
            self.torch_dtype,
            limits.kv_blocks,
            BLOCK,
            layers=layers,
            max_positions=tokens + 1,
        )
        return decoder, batch_of(_scheduler(limits, 1, tokens, 1).schedule(), BLOCK, self.kind)

    def _all_reduce_us(self, s: dict[str, int]) -> list[float]:
        from calibrate.gpu.collective import all_reduce_us

        return all_reduce_us(self.kind, s["gpus"], s["elements"])

    def wait(self) -> None:
        """Until the device has nothing to do."""

    def _activation_bytes(self, s: dict[str, int]) -> list[float]:
        raise NotImplementedError

    def _kv_blocks(self, s: dict[str, int]) -> list[float]:
        raise NotImplementedError

    def _block_bytes(self) -> int:
        m = self.model
        return 2 * BLOCK * m.kv_heads * m.head_dim * self.torch_dtype.itemsize * m.layers


class _Nothing(Decoder):
    """A decoder that plans its work as any other and then samples token 0 everywhere."""

    def __init__(self, model: ModelSpec, backend: Any, device: str, limits: Limits):
        self.model, self.backend, self.device = model, backend, device
        self.shape = {"heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
        self.rope = rope_tables(limits.kv_blocks * limits.block_size // limits.max_num_seqs, 2, torch.float32, device)

    def compute(self, batch: Batch, prefill: Any, decode: Any) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.zeros(len(batch.rows), dtype=torch.int64, device=self.device)
        return tokens, tokens


def _scheduler(limits: Limits, requests: int, prompt: int, output: int) -> Scheduler:
    scheduler = Scheduler(limits)
    for i in range(requests):
        scheduler.submit(Request(i, [i % 7 + 1] * prompt if i == 0 else [i, *range(prompt - 1)], output))
    return scheduler


class CpuCalibration(Calibration):
    """Torch on this machine's CPU, one thread, every call timed alone by the thread's own CPU time: others share the
    machine."""

    kind = "cpu"

    def __init__(self, model: ModelSpec, dtype: str = "fp32", sweep: bool = True, attention: str = "kvcast"):
        if not hasattr(os, "sysconf"):
            raise InputError(
                f"--device cpu: {platform.system()} does not tell its memory and caches; expected Linux or macOS"
            )
        torch.set_num_threads(1)
        super().__init__(model, dtype, _last_level_cache(), attention)
        self.clock = time.thread_time
        self._sweep = torch.ones(int(min(self.rotating_bytes, SWEEP_BYTES)) // 4 if sweep else 1)
        self.max_copies = model.layers if not sweep else self.max_copies

    def about(self) -> dict[str, Any]:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {
            "name": f"CPU {_cpu_name()}, 1 thread",
            "memory_gib": round(memory / 2**30, 2),
            "torch": torch.__version__,
        }

    def kernels(self) -> str:
        own = "" if self.attention.name == "kvcast" else f", attention of {self.attention.about()}"
        return f"torch {torch.__version__} on the CPU{own}"

    def clocks(self) -> dict[str, float]:
        return {"load_1min": os.getloadavg()[0]}

    def time(self, calls: list[Call]) -> list[float]:
        """Microseconds of each call, copies in turn. What ran before took the inner caches, code and all, as in a
        forward pass."""
        calls[0]()
        samples: list[float] = []
        while len(samples) < REPLAYS or (sum(samples) < MIN_US and len(samples) < 4 * REPLAYS):
            samples.append(self.one(calls[len(samples) % len(calls)]))
        return samples

    def one(self, call: Call) -> float:
        """Microseconds of one call."""
        self._sweep.mul_(1.0)
        start = self.clock()
        call()
        return (self.clock() - start) * 1e6

    def _activation_bytes(self, s: dict[str, int]) -> list[float]:
        """Peak bytes of tensors alive at once in a forward pass of one layer (more layers reuse them)."""
        from calibrate.gpu.live_bytes import peak_bytes

        decoder, batch = self._one_prompt(s["tokens"], 1)
        return [float(peak_bytes(lambda: decoder.forward(batch)))]

    def _kv_blocks(self, s: dict[str, int]) -> list[float]:
        """Blocks in an eighth of the free memory, at most 512 MiB, with every page written."""
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        blocks = min(free // 8, 2**29) // self._block_bytes()
        held = torch.full((blocks * self._block_bytes() // 4,), 1.0)
        return [float(blocks)] if held.numel() else [0.0]


def _last_level_cache() -> int:
    """Bytes; 32 MiB where the system does not say."""
    try:
        return os.sysconf("SC_LEVEL3_CACHE_SIZE") or 2**25
    except (ValueError, OSError):
        return 2**25


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            return next(
                (line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine()
            )
    except OSError:
        return platform.machine()
