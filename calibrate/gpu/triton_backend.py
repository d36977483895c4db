"""The operators of a decoder on a GPU: kvcast's Triton kernels for attention, rotary embedding and experts, torch for
the rest.

The one idea: the interface is TorchBackend's, and attention work is planned on the host once per step.

    python -m calibrate.gpu.measure --model llama-3.1-8b --device cuda --out points.jsonl
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from calibrate.gpu.backend import Rope, TorchBackend
from kernels.attention import Work, default_config, sm_count
from kernels.decode import decode_attention
from kernels.moe import grouped_gemm
from kernels.plan import capacity, plan_decode, plan_prefill
from kernels.prefill import prefill_attention
from kernels.rope import rope_and_write


class TritonBackend(TorchBackend):
    """bf16 or fp16 on a CUDA device; fp32 and fp16 on the CPU under TRITON_INTERPRET=1."""

    name = "triton"

    def __init__(self, device: str = "cuda"):
        self.device = device
        self.sms = sm_count(device)

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
        rope_and_write(q, k, v, k_cache, v_cache, *rope, positions, slots)
        return q

    def prefill_work(self, new: Sequence[int], cached: Sequence[int], heads: int, kv_heads: int, head_dim: int) -> Work:
        config = default_config(self.device, "prefill", head_dim)
        return Work(
            plan_prefill(new, cached, group=heads // kv_heads, kv_heads=kv_heads, config=config, sms=self.sms),
            self.device,
            head_dim,
        )

    def decode_work(self, contexts: Sequence[int], heads: int, kv_heads: int, head_dim: int) -> Work:
        return Work(self.decode_plan(contexts, heads, kv_heads, head_dim), self.device, head_dim)

    def decode_plan(self, contexts: Sequence[int], heads: int, kv_heads: int, head_dim: int) -> Any:
        config = default_config(self.device, "decode", head_dim)
        return plan_decode(contexts, group=heads // kv_heads, kv_heads=kv_heads, config=config, sms=self.sms)

    def fixed_decode_work(self, batch: int, heads: int, kv_heads: int, head_dim: int) -> Work:
        """Work with room for any decode of up to `batch` sequences: what a CUDA graph captures."""
        items, slots = capacity(
            batch, kv_heads=kv_heads, config=default_config(self.device, "decode", head_dim), sms=self.sms
        )
        return Work(
            self.decode_plan([1] * batch, heads, kv_heads, head_dim), self.device, head_dim, items=items, slots=slots
        )

    def prefill_attention(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, work: Work
    ) -> Tensor:
        return prefill_attention(q, k_cache, v_cache, block_tables, work)

    def decode_attention(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, work: Work) -> Tensor:
        return decode_attention(q, k_cache, v_cache, block_tables, work)

    def experts(self, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int) -> Tensor:
        """Tokens sorted by expert, two grouped GEMMs; nothing waits for the GPU."""
        weights, chosen = functional.linear(x, router).softmax(-1).topk(top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.zeros(router.shape[0], dtype=torch.int64, device=x.device).scatter_add_(
            0, flat, torch.ones_like(flat)
        )
        offsets = functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
        hidden = grouped_gemm(self.silu_mul(grouped_gemm(x[order // top_k], gate_up, offsets)), down, offsets)
        out = torch.zeros_like(x)
        return out.index_add_(0, order // top_k, hidden * weights.flatten()[order].unsqueeze(-1).to(hidden.dtype))
