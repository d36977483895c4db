"""The operators of a decoder as functions on tensors: torch on a CPU, Triton kernels and torch on a GPU.

The one idea: calibration times these functions and the engine computes with the same ones, so a profile describes the
very code that the closed loop runs. A paged KV cache is [blocks, block_size, kv_heads, head_dim], one tensor each for
keys and values.

    python -m calibrate.gpu.measure --model tiny --device cpu --budget-s 20 --out points.jsonl
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Rope = tuple[Tensor, Tensor]
QUERY_TILE = 128
"""Queries whose scores are held at once by the torch prefill."""


class TorchBackend:
    """Plain torch, any device and type; deterministic, and exact enough in fp64 to compare tokens."""

    name = "torch"

    def rms_norm(
        self, x: Tensor, weight: Tensor, residual: Tensor | None = None, eps: float = 1e-5
    ) -> tuple[Tensor, Tensor]:
        """(normed, residual) of x [tokens, hidden] after adding the residual stream to it."""
        x = x if residual is None else x + residual
        return functional.rms_norm(x, weight.shape, weight, eps), x

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [tokens, k] times weight [n, k] transposed."""
        return functional.linear(x, weight)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of [tokens, 2 width]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        return functional.embedding(ids, table)

    def head_norm(self, x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
        """Norm over each head of [tokens, heads, head_dim]."""
        return functional.rms_norm(x, weight.shape, weight, eps)

    def rope_kv_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rope: Rope,
        positions: Tensor,
        slots: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        """Rotated q; writes rotated k and v to their slots (block * block_size + offset) of the cache.

        q [tokens, heads, d], k and v [tokens, kv_heads, d], rope: cosines and sines, each [positions, d / 2].
        """
        cos, sin = (table[positions].unsqueeze(1).to(q.dtype) for table in rope)
        k_cache.view(-1, *k_cache.shape[2:])[slots] = _rotate(k, cos, sin)
        v_cache.view(-1, *v_cache.shape[2:])[slots] = v
        return _rotate(q, cos, sin)

    def prefill_work(self, new: Sequence[int], cached: Sequence[int], heads: int, kv_heads: int, head_dim: int) -> Any:
        """What `prefill_attention` needs to know of a step's sequences; made once, used by every layer."""
        return list(zip(new, cached, strict=True))

    def decode_work(self, contexts: Sequence[int], heads: int, kv_heads: int, head_dim: int) -> Any:
        """The same for `decode_attention`; contexts count the token computed now."""
        return list(contexts)

    def prefill_attention(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, work: Any) -> Tensor:
        """Causal attention of packed queries [sum(new), heads, d] over each sequence's cached + new keys in the
        cache."""
        out = torch.empty_like(q)
        start = 0
        for i, (n, c) in enumerate(work):
            k, v = _gathered(k_cache, v_cache, block_tables[i], n + c)
            for first in range(0, n, QUERY_TILE):
                last = min(first + QUERY_TILE, n)
                rows = slice(start + first, start + last)
                out[rows] = _attend(q[rows], k[: c + last], v[: c + last], c + first)
            start += n
        return out

    def decode_attention(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, work: Any) -> Tensor:
        """Attention of one query per sequence, [batch, heads, d], over its context's keys (its own included)."""
        out = torch.empty_like(q)
        for i, context in enumerate(work):
            k, v = _gathered(k_cache, v_cache, block_tables[i], context)
            out[i] = _attend(q[i : i + 1], k, v, None)[0]
        return out

    def experts(self, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int) -> Tensor:
        """Sum over the top_k experts of each token; gate_up [experts, 2 width, k], down [experts, k, width]."""
        weights, chosen = functional.linear(x, router).softmax(-1).topk(top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            token, place = (chosen == expert).nonzero(as_tuple=True)
            hidden = functional.linear(self.silu_mul(functional.linear(x[token], gate_up[expert])), down[expert])
            out.index_add_(0, token, hidden * weights[token, place].unsqueeze(-1))
        return out

    def sample(self, logits: Tensor) -> Tensor:
        """Greedy tokens of [rows, vocab]."""
        return logits.argmax(-1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _gathered(k_cache: Tensor, v_cache: Tensor, table: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Keys and values [tokens, kv_heads, d] of one sequence."""
    blocks = table[: -(-tokens // k_cache.shape[1])]
    return (k_cache[blocks].flatten(0, 1)[:tokens], v_cache[blocks].flatten(0, 1)[:tokens])


def _attend(q: Tensor, k: Tensor, v: Tensor, first: int | None) -> Tensor:
    """q [n, heads, d] over k, v [keys, kv_heads, d]; query i sees keys up to first + i (None: all)."""
    n, heads, d = q.shape
    kv_heads = k.shape[1]
    grouped = q.view(n, kv_heads, heads // kv_heads, d).permute(1, 2, 0, 3).reshape(kv_heads, -1, d)
    scores = torch.bmm(grouped, k.permute(1, 2, 0)).mul_(d**-0.5)
    if first is not None:
        keys = torch.arange(k.shape[0], device=q.device)
        hidden = keys > torch.arange(first, first + n, device=q.device).unsqueeze(1)
        scores.view(kv_heads, -1, n, k.shape[0]).masked_fill_(hidden, float("-inf"))
    out = torch.bmm(scores.softmax(-1), v.permute(1, 0, 2))
    return out.view(kv_heads, -1, n, d).permute(2, 0, 1, 3).reshape(n, heads, d)
