"""The shapes of a decoder-only transformer, and the weights, KV bytes and FLOPs that follow from them.

The one idea: a dozen shapes decide how much memory a model and its KV cache take and how much a token costs; everything
here is a closed form of them. `calibrate.models` reads the shapes from a Hugging Face config.json.

    python -c "from calibrate.models import resolve_model;
    print(resolve_model('llama-3.1-8b').kv_bytes_per_token('bf16'))"
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from workloads.errors import InputError

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}


@dataclass(frozen=True)
class ModelSpec:
    """Shapes of one decoder-only transformer. Widths are in elements, counts are totals before tensor parallelism."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_context: int
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    sandwich_norms: bool = False
    sliding_layers: int = 0
    window: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    moe_layers: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def full_layers(self) -> int:
        """Layers whose attention sees the whole context."""
        return self.layers - self.sliding_layers

    # ---- parameters ------------------------------------------------------------------------------------------

    @cached_property
    def attention_parameters(self) -> int:
        """Projection weights of one layer's attention."""
        if self.is_mla:
            qk = self.qk_nope_head_dim + self.qk_rope_head_dim
            q = (
                self.hidden * self.q_lora_rank + self.q_lora_rank * self.heads * qk
                if self.q_lora_rank
                else self.hidden * self.heads * qk
            )
            kv_a = self.hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
            kv_b = self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
            return q + kv_a + kv_b + self.heads * self.v_head_dim * self.hidden
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @cached_property
    def expert_parameters(self) -> int:
        """Weights of one routed expert in one layer (gate, up and down projections)."""
        return 3 * self.hidden * self.expert_intermediate

    def _mlp_parameters(self, experts: float) -> float:
        """Feed-forward weights of all layers with `experts` routed experts counted in each MoE layer."""
        dense = (self.layers - self.moe_layers) * 3 * self.hidden * self.intermediate
        moe = self.hidden * self.experts + 3 * self.hidden * self.shared_intermediate + experts * self.expert_parameters
        return dense + self.moe_layers * moe

    @cached_property
    def _small_parameters(self) -> int:
        norms = (4 if self.sandwich_norms else 2) * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        if self.is_mla:
            norms += self.kv_lora_rank + self.q_lora_rank
        bias = self.head_dim * (self.heads + 2 * self.kv_heads) if self.qkv_bias else 0
        return self.layers * (norms + bias) + self.hidden

    @cached_property
    def parameters(self) -> int:
        """All weights, embeddings included."""
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return (
            embeddings
            + self.layers * self.attention_parameters
            + int(self._mlp_parameters(self.experts))
            + self._small_parameters
        )

    @cached_property
    def active_parameters(self) -> int:
        """Weights one token goes through, embeddings and LM head included (how "A3B" is counted)."""
        return self.parameters - self.moe_layers * (self.experts - self.experts_per_token) * self.expert_parameters

    # ---- bytes -----------------------------------------------------------------------------------------------

    def weight_bytes(self, dtype: str, tp: int = 1) -> int:
        """Bytes of weights on one rank. fp8 checkpoints keep embeddings, LM head, router and norms in 16 bits."""
        wide = (
            self.vocab * self.hidden * (1 if self.tied_embeddings else 2) + self.moe_layers * self.hidden * self.experts
        )
        narrow = self.parameters - wide - self._small_parameters
        sharded = narrow * dtype_bytes(dtype) + wide * 2
        return -(-sharded // tp) + self._small_parameters * 2

    def layer_kv_bytes(self, kv_dtype: str, tp: int = 1) -> int:
        """KV bytes one token takes in one layer on one rank: 2 x ceil(kv_heads / tp) x head_dim, or the MLA latent on
        every rank."""
        if self.is_mla:
            return (self.kv_lora_rank + self.qk_rope_head_dim) * dtype_bytes(kv_dtype)
        return 2 * -(-self.kv_heads // tp) * self.head_dim * dtype_bytes(kv_dtype)

    def kv_bytes_per_token(self, kv_dtype: str, tp: int = 1) -> int:
        """KV bytes per token per rank while every layer still keeps the token (see `kv_bytes` for sliding windows)."""
        return self.layers * self.layer_kv_bytes(kv_dtype, tp)

    def kv_bytes(self, tokens: int, kv_dtype: str, tp: int = 1) -> int:
        """KV bytes of one sequence of `tokens` tokens on one rank; sliding-window layers keep the window only."""
        kept = self.full_layers * tokens + self.sliding_layers * min(tokens, self.window)
        return kept * self.layer_kv_bytes(kv_dtype, tp)

    # ---- FLOPs -----------------------------------------------------------------------------------------------

    @cached_property
    def linear_flops_per_token(self) -> int:
        """FLOPs per token of every matrix multiply but attention and the LM head: 2 per active weight."""
        return 2 * int(self.layers * self.attention_parameters + self._mlp_parameters(self.experts_per_token))

    @cached_property
    def layer_attention_flops(self) -> int:
        """FLOPs of one (query, key) pair in one layer: q.k and p.v over all heads (MLA: prefill form, latent
        expanded)."""
        if self.is_mla:
            return 2 * self.heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)
        return 4 * self.heads * self.head_dim

    @cached_property
    def decode_attention_flops(self) -> int:
        """As `layer_attention_flops` for decode; MLA works on the latent itself (absorbed form)."""
        if self.is_mla:
            return 2 * self.heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)
        return self.layer_attention_flops

    @property
    def lm_head_flops(self) -> int:
        """FLOPs per sampled row."""
        return 2 * self.vocab * self.hidden


def flops(model: ModelSpec, new: Any, cached: Any = 0) -> np.ndarray:
    """Prefill FLOPs of requests that compute `new` tokens on top of `cached` ones, one sampled row each.

    new, cached: token counts, scalars or arrays that broadcast. Returns float64 of the broadcast shape.
    linear x new + attention x causal pairs + LM head; a request with nothing to compute costs nothing.
    """
    n, c = np.broadcast_arrays(np.asarray(new, dtype=np.float64), np.asarray(cached, dtype=np.float64))
    pairs = n * c + n * (n + 1) / 2
    attention = model.full_layers * pairs
    if model.sliding_layers:
        attention = attention + model.sliding_layers * windowed_pairs(n, c, model.window)
    total = n * model.linear_flops_per_token + attention * model.layer_attention_flops + model.lm_head_flops
    return np.where(n > 0, total, 0.0)


def windowed_pairs(new: np.ndarray, cached: np.ndarray, window: int) -> np.ndarray:
    """Sum over the new tokens of min(position, window): causal pairs of a sliding-window layer. Float arrays in and
    out."""
    growing = np.clip(window - cached, 0, new)
    return growing * cached + growing * (growing + 1) / 2 + (new - growing) * window


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; InputError for a type that is not understood."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise InputError(f"dtype {dtype!r}: expected one of {', '.join(DTYPE_BYTES)}") from None
