"""Decode steps as CUDA graphs: one captured forward pass per batch size, replayed with the next step's tensors.

The one idea: everything a step changes lives in tensors that stay where they are; a batch between two captured sizes is
padded with places that hold nothing (context 0, slot -1). A step with prefill chunks, or larger than the largest size,
runs uncaptured.

    python -m calibrate.gpu.engine --model llama-3.1-8b --device cuda --out recording
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrate.gpu.decoder import Batch, Decoder
from calibrate.gpu.serving import Limits

SIZES = (1, 2, 4, 8, *range(16, 257, 16), 320, 384, 448, 512)
Capture = Callable[[Callable[[], tuple[Tensor, Tensor]]], tuple[Callable[[], None], tuple[Tensor, Tensor]]]
"""Runs a pass once and returns (replay, the tensors its results are in)."""


def cuda_graph(call: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Callable[[], None], tuple[Tensor, Tensor]]:
    """Warmed up on a side stream (which compiles the kernels), then captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph.replay, results


def rerun(call: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Callable[[], None], tuple[Tensor, Tensor]]:
    """In a graph's place where there is none: every replay runs the pass again, into the same tensors."""
    tokens, logits = call()

    def replay() -> None:
        for old, new in zip((tokens, logits), call(), strict=True):
            old.copy_(new)

    return replay, (tokens, logits)


class GraphedDecode:
    """A decoder's forward pass with captured decode steps; `decoder.backend` is a TritonBackend."""

    def __init__(self, decoder: Decoder, limits: Limits, sizes: tuple[int, ...] = SIZES, capture: Capture = cuda_graph):
        self.decoder, self.capture = decoder, capture
        self.backend: Any = decoder.backend
        largest = next((s for s in sizes if s >= limits.max_num_seqs), sizes[-1])
        self.sizes = [s for s in sizes if s <= largest]
        device, blocks = decoder.device, -(-decoder.rope[0].shape[0] // limits.block_size) + 1
        self._ids, self._positions, self._slots = (
            torch.zeros(largest, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._tables = torch.zeros(largest, blocks, dtype=torch.int32, device=device)
        self._rows = torch.arange(largest, device=device)
        self._captured: dict[int, tuple[Any, Callable[[], None], tuple[Tensor, Tensor]]] = {}

    def capture_all(self) -> None:
        """Capture every size now, largest first (they share memory), rather than in the middle of a run."""
        for size in reversed(self.sizes):
            self._of(size)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        n = len(batch.contexts)
        if batch.new or n > self.sizes[-1]:
            return self.decoder.forward(batch)
        size = self.sizes[bisect_left(self.sizes, n)]
        self._ids[:n], self._positions[:n], self._slots[:n] = batch.ids, batch.positions, batch.slots
        self._slots[n:size] = -1
        self._tables[:n, : batch.tables.shape[1]] = batch.tables
        work, replay, (tokens, logits) = self._of(size)
        work.load(self.backend.decode_plan([*batch.contexts, *([0] * (size - n))], **self.decoder.shape))
        replay()
        return tokens[:n], logits[:n]

    def _of(self, size: int) -> tuple[Any, Callable[[], None], tuple[Tensor, Tensor]]:
        if size not in self._captured:
            work = self.backend.fixed_decode_work(size, **self.decoder.shape)
            slots, self._slots[:size] = self._slots[:size].clone(), -1  # capturing must not write to the cache
            fixed = Batch(
                self._ids[:size],
                self._positions[:size],
                self._slots[:size],
                self._tables[:size],
                [],
                [],
                [1] * size,
                self._rows[:size],
            )
            replay, results = self.capture(lambda: self.decoder.compute(fixed, None, work))
            self._slots[:size] = slots
            self._captured[size] = (work, replay, results)
        return self._captured[size]
