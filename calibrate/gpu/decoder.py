"""A decoder-only transformer of a model's true shapes with random weights, over a paged KV cache.

The one idea: one pass over all tokens of a step, prefill chunks first and decodes after them, so that every matrix
multiply runs once; only attention tells the two apart. Values are meaningless, times and data flow are real.

    python -m calibrate.gpu.engine --model tiny --device cpu --out recording
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrate.gpu.backend import TorchBackend
from calibrate.models import ModelSpec


@dataclass(frozen=True)
class Batch:
    """The tensors of one step. Rows of tables: prefill sequences, then decodes."""

    ids: Tensor  #: int64 [tokens]
    positions: Tensor  #: int64 [tokens]
    slots: Tensor  #: int64 [tokens], block * block_size + offset
    tables: Tensor  #: int32 [sequences, blocks]
    new: Sequence[int]  #: per prefill chunk
    cached: Sequence[int]
    contexts: Sequence[int]  #: per decode, the token computed now included
    rows: Tensor  #: int64 [sampled], rows that go through the LM head


@dataclass
class Layer:
    qkv: Tensor
    out: Tensor
    norm1: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor
    router: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


class Decoder:
    """Weights, KV cache and the forward pass."""

    def __init__(
        self,
        model: ModelSpec,
        backend: TorchBackend,
        device: str,
        dtype: torch.dtype,
        kv_blocks: int,
        block_size: int = 16,
        seed: int = 0,
        layers: int | None = None,
        max_positions: int | None = None,
    ):
        self.model, self.backend, self.device, self.dtype, self.block_size = model, backend, device, dtype, block_size
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self.shape = {"heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
        count = layers or model.layers
        self.embedding = self._weight(model.vocab, model.hidden, scale=1.0)
        self.layers = [self._layer() for _ in range(count)]
        self.norm = torch.ones(model.hidden, dtype=dtype, device=device)
        self.head = self.embedding if model.tied_embeddings else self._weight(model.vocab, model.hidden)
        cache = (kv_blocks, block_size, model.kv_heads, model.head_dim)
        # Random, never zeros: a GPU draws less power on zeros, so its clocks, and its times, would be another
        # workload's.
        self.k_cache, self.v_cache = (
            [torch.empty(cache, dtype=dtype, device=device).normal_(generator=self._generator) for _ in range(count)]
            for _ in range(2)
        )
        self.rope = rope_tables(
            max_positions or min(model.max_context, kv_blocks * block_size), model.head_dim, dtype, device
        )

    def _weight(self, *shape: int, scale: float | None = None) -> Tensor:
        drawn = torch.randn(
            *shape,
            generator=self._generator,
            device=self.device,
            dtype=torch.float32 if self.device == "cpu" else self.dtype,
        )
        return (drawn * (scale or 1 / math.sqrt(shape[-1]))).to(self.dtype)

    def _layer(self) -> Layer:
        m = self.model
        ones = lambda n: torch.ones(n, dtype=self.dtype, device=self.device)  # noqa: E731
        width, experts = (m.expert_intermediate, (m.experts,)) if m.experts else (m.intermediate, ())
        return Layer(
            qkv=self._weight((m.heads + 2 * m.kv_heads) * m.head_dim, m.hidden),
            out=self._weight(m.hidden, m.heads * m.head_dim),
            norm1=ones(m.hidden),
            norm2=ones(m.hidden),
            gate_up=self._weight(*experts, 2 * width, m.hidden),
            down=self._weight(*experts, m.hidden, width),
            router=self._weight(m.experts, m.hidden) if m.experts else None,
            q_norm=ones(m.head_dim) if m.qk_norm else None,
            k_norm=ones(m.head_dim) if m.qk_norm else None,
        )

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(greedy tokens [sampled], logits [sampled, vocab])."""
        prefill = self.backend.prefill_work(batch.new, batch.cached, **self.shape) if batch.new else None
        decode = self.backend.decode_work(batch.contexts, **self.shape) if batch.contexts else None
        return self.compute(batch, prefill, decode)

    def compute(self, batch: Batch, prefill: Any, decode: Any) -> tuple[Tensor, Tensor]:
        """The forward pass once the attention's work is planned; launches only, when tensors are on a GPU."""
        backend = self.backend
        x, residual = backend.embedding(batch.ids, self.embedding), None
        for layer, k_cache, v_cache in zip(self.layers, self.k_cache, self.v_cache, strict=True):
            h, residual = backend.rms_norm(x, layer.norm1, residual)
            x = self._attention(layer, h, batch, k_cache, v_cache, prefill, decode)
            h, residual = backend.rms_norm(x, layer.norm2, residual)
            x = self._feed_forward(layer, h)
        h, _ = backend.rms_norm(x, self.norm, residual)
        logits = backend.linear(h[batch.rows], self.head)
        return backend.sample(logits), logits

    def _attention(
        self, layer: Layer, h: Tensor, batch: Batch, k_cache: Tensor, v_cache: Tensor, prefill: Any, decode: Any
    ) -> Tensor:
        m, backend = self.model, self.backend
        qkv = backend.linear(h, layer.qkv).view(h.shape[0], -1, m.head_dim)
        q, k, v = qkv.split([m.heads, m.kv_heads, m.kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = backend.head_norm(q, layer.q_norm), backend.head_norm(k, layer.k_norm)
        q = backend.rope_kv_write(q, k, v, self.rope, batch.positions, batch.slots, k_cache, v_cache)
        tokens, sequences = sum(batch.new), len(batch.new)
        parts = []
        if prefill is not None:
            parts.append(backend.prefill_attention(q[:tokens], k_cache, v_cache, batch.tables[:sequences], prefill))
        if decode is not None:
            parts.append(backend.decode_attention(q[tokens:], k_cache, v_cache, batch.tables[sequences:], decode))
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return backend.linear(attended.view(h.shape[0], -1), layer.out)

    def _feed_forward(self, layer: Layer, h: Tensor) -> Tensor:
        backend = self.backend
        if layer.router is not None:
            return backend.experts(h, layer.router, layer.gate_up, layer.down, self.model.experts_per_token)
        return backend.linear(backend.silu_mul(backend.linear(h, layer.gate_up)), layer.down)


def rope_tables(
    positions: int, head_dim: int, dtype: torch.dtype, device: str, base: float = 10000.0
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position / base^(2i/d), [positions, head_dim / 2] each, fp32 (fp64 for an fp64 model)."""
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * base ** (
        -torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    )
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return angles.cos().to(device, wide).contiguous(), angles.sin().to(device, wide).contiguous()
