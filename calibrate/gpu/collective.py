"""All-reduces between the GPUs of one machine, timed by all ranks together.

The one idea: the ranks live as long as the calibration and answer one size after the other; a sample is the slowest
rank's. On a GPU the calls are captured and replayed like every other operator; on a CPU the same code runs over gloo, a
rehearsal of the way and nothing more.

    python -m calibrate.gpu.measure --model llama-3.1-8b --device cuda --operators all_reduce --out points.jsonl
"""

from __future__ import annotations

import atexit
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CALLS, REPLAYS, WARM_UP = 20, 5, 3
ANSWER_S = 120.0
"""Seconds that the ranks may take for one size."""
_running: dict[tuple[str, int], Ranks] = {}


def all_reduce_us(kind: str, gpus: int, elements: int) -> list[float]:
    """Microseconds of one all-reduce of so many 16-bit elements between `gpus` GPUs, a sample a replay. kind: cuda, or
    cpu for a rehearsal."""
    key = (kind, gpus)
    if key not in _running:
        _running[key] = Ranks(kind, gpus)
    return _running[key].measure(elements)


class Ranks:
    """A process a rank; `measure` asks all of them, `close` ends them."""

    def __init__(self, kind: str, gpus: int):
        context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._pipes, self._processes = [], []
        for rank in range(gpus):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(kind, rank, gpus, store, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        atexit.register(self.close)

    def measure(self, elements: int) -> list[float]:
        """Samples, each the slowest rank's. RuntimeError when a rank fails or does not answer."""
        for pipe in self._pipes:
            pipe.send(elements)
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(ANSWER_S):
                raise RuntimeError(f"all-reduce of {elements} elements: rank {rank} did not answer in {ANSWER_S:.0f} s")
            answer = pipe.recv()
            if isinstance(answer, str):
                raise RuntimeError(f"all-reduce of {elements} elements: rank {rank}: {answer}")
            answers.append(answer)
        return [max(samples) for samples in zip(*answers, strict=True)]

    def close(self) -> None:
        for pipe in self._pipes:
            try:
                pipe.send(0)
            except OSError:
                continue
        for process in self._processes:
            process.join(5.0)
            if process.is_alive():
                process.terminate()
        self._folder.cleanup()


def _serve(kind: str, rank: int, gpus: int, store: str, pipe: Any) -> None:
    """One rank: answers sizes until it is asked for none."""
    if kind == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=gpus)
    while elements := pipe.recv():
        try:
            x = torch.ones(elements, dtype=torch.bfloat16, device=kind)
            pipe.send(_graphed(x) if kind == "cuda" else _plain(x))
        except RuntimeError as e:
            pipe.send(str(e).split("\n")[0])
    dist.destroy_process_group()


def _graphed(x: torch.Tensor) -> list[float]:
    for _ in range(WARM_UP):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            dist.all_reduce(x)
    graph.replay()
    torch.cuda.synchronize()
    samples = []
    for _ in range(REPLAYS):
        dist.barrier()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / CALLS)
    return samples


def _plain(x: torch.Tensor) -> list[float]:
    samples = []
    for i in range(WARM_UP + REPLAYS):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(x)
        if i >= WARM_UP:
            samples.append((time.perf_counter() - start) * 1e6)
    return samples
