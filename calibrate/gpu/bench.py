"""Times one point on real hardware: builds its tensors, calls the backend, returns the samples.

The one idea: weights and KV rotate over as many bytes as a forward pass of the model reads (at most three times the
last-level cache), while activations stay where they are, because that is what a forward pass does to the caches.

    python -m calibrate.gpu.measure --model tiny --device cpu --budget-s 20 --out points.jsonl
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrate.gpu.attention import attention_for
from calibrate.gpu.backends import backend_for
from calibrate.gpu.decoder import rope_tables
from calibrate.operators import Point

Call = Callable[[], Any]
BLOCK = 16
MAX_COPIES = 64
DTYPES = {
    "bf16": torch.bfloat16,
    "fp8": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
"""Of activations and KV; fp8 is a type of the layers' weights, and their points say so."""


class TorchDevice:
    """The calls of a point on one torch device; what times them is in calibrate.gpu.devices."""

    kind: str

    def __init__(
        self, dtype: str, rotating_bytes: float, block_size: int = BLOCK, seed: int = 0, attention: str = "kvcast"
    ):
        self.dtype, self.rotating_bytes, self.block_size = dtype, rotating_bytes, block_size
        self.torch_dtype, self.max_copies = DTYPES[dtype], MAX_COPIES
        self.backend = backend_for(self.kind)
        self.attention = attention_for(attention, self.backend, self.kind)
        self._random = torch.Generator(device=self.kind).manual_seed(seed)

    # ---- tensors -------------------------------------------------------------------------------------------------

    def _rand(self, *shape: int) -> Tensor:
        return (
            torch.randn(
                *shape,
                dtype=torch.float32 if self.kind == "cpu" else self.torch_dtype,
                device=self.kind,
                generator=self._random,
            ).to(self.torch_dtype)
            * 0.1
        )

    def _copies(self, nbytes: float) -> int:
        """How many copies of what a call reads take turns."""
        return max(1, min(self.max_copies, math.ceil(self.rotating_bytes / max(nbytes, 1))))

    def _cache(self, s: dict[str, int], lengths: list[int]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """(keys, values, block tables that take turns) of sequences of these lengths in one large cache.

        Blocks are shuffled, as in a cache that has served for a while.
        """
        counts = [-(-n // self.block_size) for n in lengths]
        blocks = sum(counts)
        copies = self._copies(2 * blocks * self.block_size * s["kv_heads"] * s["head_dim"] * self.torch_dtype.itemsize)
        shape = (blocks * copies, self.block_size, s["kv_heads"], s["head_dim"])
        order = torch.randperm(blocks * copies, generator=torch.Generator().manual_seed(blocks)).to(torch.int32)
        tables, first = [], 0
        for _ in range(copies):
            table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
            for row, count in enumerate(counts):
                table[row, :count] = order[first : first + count]
                first += count
            tables.append(table.to(self.kind))
        return self._rand(*shape), self._rand(*shape), tables

    # ---- calls ---------------------------------------------------------------------------------------------------

    def calls(self, point: Point) -> list[Call]:
        """The calls of a point, one per rotating copy."""
        return getattr(self, f"_{point.op}")(point.shape)

    def _gemm(self, s: dict[str, int]) -> list[Call]:
        if s.get("fp8"):
            return self._fp8_gemm(s)
        x = self._rand(s["m"], s["k"])
        copies = self._copies(s["n"] * s["k"] * self.torch_dtype.itemsize)
        weights = [self._rand(s["n"], s["k"]) for _ in range(copies)]
        return [partial(self.backend.linear, x, w) for w in weights]

    _matmul = _gemm

    def _fp8_gemm(self, s: dict[str, int]) -> list[Call]:
        """E4M3 in, bf16 out, a scale a row of x and a column of w: what an engine calls after it has quantized x."""
        kind = torch.float8_e4m3fn
        x, ones = self._rand(s["m"], s["k"]).to(kind), partial(torch.ones, dtype=torch.float32, device=self.kind)
        scales = ones(s["m"], 1), ones(1, s["n"])
        weights = [self._rand(s["n"], s["k"]).to(kind).t() for _ in range(self._copies(s["n"] * s["k"]))]
        return [partial(torch._scaled_mm, x, w, *scales, out_dtype=torch.bfloat16) for w in weights]

    def _all_reduce(self, s: dict[str, int]) -> list[Call]:
        raise NotImplementedError("all-reduces are timed by the ranks together (calibrate.gpu.collective)")

    def _copy(self, s: dict[str, int]) -> list[Call]:
        source = torch.empty(s["bytes"], dtype=torch.uint8, device=self.kind).random_(0, 255)
        target = torch.empty_like(source)
        return [lambda: target.copy_(source)]

    def _node_gap(self, s: dict[str, int]) -> list[Call]:
        """The smallest kernel there is: what one more call costs."""
        x = torch.zeros(1, device=self.kind)
        return [lambda: x.add_(1.0)]

    def _embedding(self, s: dict[str, int]) -> list[Call]:
        table, ids = self._rand(s["vocab"], s["hidden"]), self._ids(s["tokens"], s["vocab"])
        return [lambda: self.backend.embedding(ids, table)]

    def _rms_norm(self, s: dict[str, int]) -> list[Call]:
        x, residual, weight = (
            self._rand(s["tokens"], s["hidden"]),
            self._rand(s["tokens"], s["hidden"]),
            self._rand(s["hidden"]),
        )
        return [lambda: self.backend.rms_norm(x, weight, residual)]

    def _silu_mul(self, s: dict[str, int]) -> list[Call]:
        x = self._rand(s["tokens"], 2 * s["width"])
        return [lambda: self.backend.silu_mul(x)]

    def _qk_norm(self, s: dict[str, int]) -> list[Call]:
        q, k, w = (
            self._rand(s["tokens"], s["heads"], s["head_dim"]),
            self._rand(s["tokens"], s["kv_heads"], s["head_dim"]),
            self._rand(s["head_dim"]),
        )
        return [lambda: (self.backend.head_norm(q, w), self.backend.head_norm(k, w))]

    def _rope_kv_write(self, s: dict[str, int]) -> list[Call]:
        tokens, d = s["tokens"], s["head_dim"]
        qkv = self._rand(tokens, s["heads"] + 2 * s["kv_heads"], d)
        q, k, v = qkv.split([s["heads"], s["kv_heads"], s["kv_heads"]], dim=1)
        rope, positions = rope_tables(tokens, d, self.torch_dtype, self.kind), torch.arange(tokens, device=self.kind)
        kc, vc, tables = self._cache(s, [tokens])
        at = torch.arange(tokens)
        slots = [
            (t[0].cpu().long()[at // self.block_size] * self.block_size + at % self.block_size).to(self.kind)
            for t in tables
        ]
        return [partial(self.backend.rope_kv_write, q, k, v, rope, positions, slot, kc, vc) for slot in slots]

    def _prefill(self, s: dict[str, int]) -> list[Call]:
        new, cached = [s["new"]] * s["seqs"], [s["cached"]] * s["seqs"]
        kc, vc, tables = self._cache(s, [n + c for n, c in zip(new, cached, strict=True)])
        q = self._rand(sum(new), s["heads"], s["head_dim"])
        return self.attention.prefill(q, kc, vc, tables, new, cached)

    def _decode(self, s: dict[str, int]) -> list[Call]:
        contexts = _contexts(s)
        kc, vc, tables = self._cache(s, contexts)
        return self.attention.decode(self._rand(s["batch"], s["heads"], s["head_dim"]), kc, vc, tables, contexts)

    def _mixed(self, s: dict[str, int]) -> list[Call]:
        """One step's attention: the prefill kernel over its sequence, then the decode kernel over the others."""
        contexts, new = _contexts(s), s["new"]
        kc, vc, tables = self._cache(s, [new + s["cached"], *contexts])
        q = self._rand(new + s["batch"], s["heads"], s["head_dim"])
        chunk = self.attention.prefill(q[:new], kc, vc, [table[:1] for table in tables], [new], [s["cached"]])
        others = self.attention.decode(q[new:], kc, vc, [table[1:] for table in tables], contexts)
        return [partial(_both, *calls) for calls in zip(chunk, others, strict=True)]

    def _moe(self, s: dict[str, int]) -> list[Call]:
        x, router = self._rand(s["tokens"], s["hidden"]), self._rand(s["experts"], s["hidden"])
        copies = self._copies(3 * s["experts"] * s["width"] * s["hidden"] * self.torch_dtype.itemsize)
        weights = [
            (self._rand(s["experts"], 2 * s["width"], s["hidden"]), self._rand(s["experts"], s["hidden"], s["width"]))
            for _ in range(copies)
        ]
        return [partial(self.backend.experts, x, router, a, b, s["top_k"]) for a, b in weights]

    def _sample(self, s: dict[str, int]) -> list[Call]:
        logits = self._rand(s["rows"], s["vocab"])
        return [lambda: self.backend.sample(logits)]

    def _ids(self, count: int, vocab: int) -> Tensor:
        return torch.randint(vocab, (count,), device=self.kind, generator=self._random)


def _both(chunk: Call, others: Call) -> None:
    chunk()
    others()


def _contexts(shape: dict[str, int]) -> list[int]:
    """One sequence of the longest context, the others of the common one."""
    return [shape["longest"]] + [shape["context"]] * (shape["batch"] - 1)
