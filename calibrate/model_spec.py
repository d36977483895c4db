"""The shapes of a decoder-only transformer, and the weights, KV bytes and FLOPs that follow from them.

The one idea: a model is its groups of equal layers between an embedding and an LM head; how much memory it takes and
how much a token costs are sums over the groups. `calibrate.models` reads the shapes from a Hugging Face config.json.

    python -c "from calibrate.models import resolve_model;
    print(resolve_model('llama-3.1-8b').kv_bytes_per_token('bf16'))"
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from calibrate.layer_groups import Attention, LayerGroup, Mlp, Reach, reaches, windowed_pairs
from calibrate.layout import Layout, as_layout
from calibrate.precision import DTYPE_BYTES, Precision, of_dtype
from workloads.errors import InputError

__all__ = ["DTYPE_BYTES", "Layout", "ModelSpec", "dtype_bytes", "flops", "windowed_pairs"]

WIDE_DTYPES = ("bf16", "fp16")
ONE_GPU = Layout()


@dataclass(frozen=True)
class ModelSpec:
    """Shapes of one decoder-only transformer. Widths are in elements, counts are totals before tensor parallelism.

    groups: the layers when they differ in more than full attention or a sliding window, and experts or none; the
    fields above then say what most layers have."""

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
    moe_layers: int = 0
    groups: tuple[LayerGroup, ...] = ()
    quantization: Precision | None = None  #: the checkpoint's own

    @cached_property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers as groups of equal ones; counts add up to `layers`."""
        if self.groups:
            return self.groups
        full = Attention("full", self.heads, self.kv_heads, self.head_dim)
        window = replace(full, kind="window", window=self.window)
        dense = Mlp("dense", self.intermediate)
        moe = Mlp("moe", experts=self.experts, topk=self.experts_per_token, expert_inter=self.expert_intermediate)
        halves = [(full, self.full_layers), (window, self.sliding_layers)]
        kinds, left = [], self.layers - self.moe_layers  # dense layers come first
        for attention, count in halves:
            first = min(left, count)
            kinds += [(first, attention, dense), (count - first, attention, moe)]
            left -= first
        return tuple(LayerGroup(*kind) for kind in kinds if kind[0])

    @property
    def is_mla(self) -> bool:
        return any(group.attention.kind == "mla" for group in self.layer_groups)

    @property
    def full_layers(self) -> int:
        """Layers whose attention sees the whole context."""
        return self.layers - self.sliding_layers

    def check(self, layout: Layout) -> None:
        """InputError for a layout that no engine makes of this model, one line with the numbers."""
        tp = layout.tensor_parallel
        for group in self.layer_groups:
            a, mlp = group.attention, group.mlp
            if a.heads % tp:
                raise InputError(f"tensor_parallel {tp}: expected a divisor of {self.name}'s {a.heads} heads")
            if a.kv_heads and a.kv_heads % tp and tp % a.kv_heads:
                raise InputError(
                    f"tensor_parallel {tp}: expected a divisor or a multiple of {self.name}'s {a.kv_heads} KV heads"
                )
            if mlp.inter % tp:
                raise InputError(f"tensor_parallel {tp}: expected a divisor of {self.name}'s {mlp.inter} columns")
        if layout.pipeline_parallel > self.layers:
            raise InputError(f"pipeline_parallel {layout.pipeline_parallel}: {self.name} has {self.layers} layers")
        self._check_experts(layout)

    def _check_experts(self, layout: Layout) -> None:
        mlps = [group.mlp for group in self.layer_groups if group.mlp.experts]
        if not mlps and layout.attention_dp > 1:
            raise InputError(
                f"attention_dp {layout.attention_dp}: {self.name} has no experts to share; expected cluster.replicas ="
                f" {layout.attention_dp} instead, which is the same without the lock-step"
            )
        if not mlps and layout.expert_parallel:
            raise InputError(f"expert_parallel: {self.name} has no experts; expected it off")
        if layout.expert_parallel and layout.expert_ranks == 1:
            raise InputError("expert_parallel on one GPU: expected tensor_parallel or attention_dp above 1 with it")
        for mlp in mlps:
            if layout.expert_parallel and mlp.experts % layout.expert_ranks:
                raise InputError(
                    f"expert_parallel over {layout.expert_ranks} GPUs (tensor_parallel {layout.tensor_parallel} x"
                    f" attention_dp {layout.attention_dp}): expected a divisor of {self.name}'s {mlp.experts} experts"
                )
            if mlp.expert_inter % layout.expert_slices:
                raise InputError(
                    f"experts cut over {layout.expert_slices} GPUs (tensor_parallel {layout.tensor_parallel} x"
                    f" attention_dp {layout.attention_dp}): expected a divisor of {self.name}'s {mlp.expert_inter}"
                    " columns of an expert, or expert_parallel"
                )

    # ---- parameters ------------------------------------------------------------------------------------------

    def _layer_parameters(self, group: LayerGroup, experts: int) -> int:
        """Matrix weights of one layer with `experts` of its routed experts counted."""
        mlp, h = group.mlp, self.hidden
        return (
            group.attention.weights(h)
            + mlp.dense_weights(h)
            + experts * mlp.expert_weights(h)
            + mlp.shared_weights(h)
            + mlp.router_weights(h)
        )

    @cached_property
    def _small_parameters(self) -> int:
        """Norms, biases, convolutions: in 16 bits on every rank."""
        total = self.hidden
        for group in self.layer_groups:
            a = group.attention
            halves = (a.kind != "none") + (group.mlp.kind != "none")
            small = halves * (2 if self.sandwich_norms else 1) * self.hidden + a.small_weights
            if a.kind not in ("mla", "linear"):
                small += 2 * a.head_dim if self.qk_norm else 0
                small += a.head_dim * (a.heads + 2 * a.kv_heads) if self.qkv_bias else 0
            total += group.count * small
        return total

    @cached_property
    def parameters(self) -> int:
        """All weights, embeddings included."""
        layers = sum(g.count * self._layer_parameters(g, g.mlp.experts) for g in self.layer_groups)
        return self._table * (1 if self.tied_embeddings else 2) + layers + self._small_parameters

    @property
    def _table(self) -> int:
        return self.vocab * self.hidden

    @cached_property
    def active_parameters(self) -> int:
        """Weights one token goes through, embeddings and LM head included (how "A3B" is counted)."""
        idle = sum(
            g.count * (g.mlp.experts - g.mlp.topk) * g.mlp.expert_weights(self.hidden) for g in self.layer_groups
        )
        return self.parameters - idle

    # ---- bytes -----------------------------------------------------------------------------------------------

    def precision(self, dtype: str) -> Precision:
        """Bytes by part. bf16 and fp16 are what a checkpoint's own quantization leaves alone; another type is asked for
        by name and takes all of the model, quantized already or not."""
        own = self.quantization
        return own if own is not None and dtype in (*WIDE_DTYPES, own.dtype, own.name) else of_dtype(dtype)

    def weight_dtype(self, dtype: str) -> str:
        """What its weights are in when a scenario says `dtype`: fp8 for an fp8 checkpoint that is served in bf16."""
        own = self.quantization
        return own.dtype if own is not None and self.precision(dtype) is own else dtype

    def kv_dtype(self, dtype: str) -> str:
        """An engine's automatic KV type: what the checkpoint carries scales for, else that of the activations."""
        by = self.precision(dtype)
        return by.kv or (by.name if by.name in WIDE_DTYPES or by.name == "fp32" else "bf16")

    def weights(self, dtype: str, layout: Layout = ONE_GPU) -> dict[str, int]:
        """Bytes on the GPU that holds most, by part: embedding, head, attention, linear, mlp, experts, shared, router,
        norms. Pipeline stages hold whole layers, the largest groups first; the first stage has the embedding too."""
        by, tp, h = self.precision(dtype), layout.tensor_parallel, self.hidden
        stages = layout.pipeline_parallel
        table = -(-self._table * by.wide // tp)
        sums = dict.fromkeys(("attention", "linear", "mlp", "experts", "shared", "router"), 0.0)
        left = -(-self.layers // stages)
        for group in self._heaviest_first(by):
            count, left = min(group.count, left), left - min(group.count, left)
            a, mlp = group.attention, group.mlp
            part = "linear" if a.kind == "linear" else "attention"
            sums[part] += count * a.weights(h, tp) * getattr(by, part)
            sums["mlp"] += count * mlp.dense_weights(h) * by.mlp / tp
            sums["experts"] += count * mlp.experts * mlp.expert_weights(h) * by.experts / layout.expert_ranks
            sums["shared"] += count * mlp.shared_weights(h) * by.shared / tp
            sums["router"] += count * mlp.router_weights(h) * by.wide
        own = table if by.head is None else math.ceil(self._table * by.head / tp)
        head = 0 if self.tied_embeddings or stages > 1 else own  # on the last stage
        norms = -(-self._small_parameters * by.wide // stages)
        return {"embedding": table, "head": head, **{k: math.ceil(v) for k, v in sums.items()}, "norms": norms}

    def _heaviest_first(self, by: Precision) -> list[LayerGroup]:
        def size(group: LayerGroup) -> float:
            mlp = group.mlp
            return mlp.experts * mlp.expert_weights(self.hidden) * by.experts + mlp.dense_weights(self.hidden) * by.mlp

        return sorted(self.layer_groups, key=size, reverse=True)

    def weight_bytes(self, dtype: str, tp: int | Layout = 1) -> int:
        """Bytes of weights on the GPU that holds most; tp: a tensor-parallel width or a whole layout."""
        return sum(self.weights(dtype, as_layout(tp)).values())

    def layer_kv_bytes(self, kv_dtype: str, tp: int = 1) -> float:
        """KV bytes one token takes in one layer on one rank, the mean over the layers."""
        total = self.kv_bytes_per_token(kv_dtype, tp)
        return total // self.layers if total % self.layers == 0 else total / self.layers

    def kv_bytes_per_token(self, kv_dtype: str, tp: int | Layout = 1) -> int:
        """KV bytes per token on one GPU, while every layer still keeps the token (see `kv_bytes` for sliding windows);
        of pipeline stages the one that keeps most."""
        item, layout = dtype_bytes(kv_dtype), as_layout(tp)
        return self._largest_stage(
            layout, [g.attention.kv_bytes(item, layout.tensor_parallel) for g in self.layer_groups]
        )

    def state_bytes(self, tp: int | Layout = 1) -> int:
        """Bytes of a sequence on one GPU whatever its length: the states of linear-attention layers."""
        layout = as_layout(tp)
        return self._largest_stage(layout, [g.attention.state_bytes(layout.tensor_parallel) for g in self.layer_groups])

    def _largest_stage(self, layout: Layout, a_layer: list[int]) -> int:
        """Bytes of the pipeline stage whose layers take most, when each layer of group i takes a_layer[i]: its share of
        the layers, the largest ones."""
        left, total = -(-self.layers // layout.pipeline_parallel), 0
        for size, group in sorted(zip(a_layer, self.layer_groups, strict=True), key=lambda one: -one[0]):
            count = min(group.count, left)
            total, left = total + count * size, left - count
        return total

    def kv_bytes(self, tokens: int, kv_dtype: str, tp: int = 1) -> int:
        """KV bytes of one sequence of `tokens` tokens on one rank; layers with a window or chunk keep no more than
        that."""
        item, total = dtype_bytes(kv_dtype), self.state_bytes(tp)
        for g in self.layer_groups:
            kept = min(tokens, g.attention.window or tokens)
            total += g.count * kept * g.attention.kv_bytes(item, tp)
        return total

    # ---- FLOPs -----------------------------------------------------------------------------------------------

    @cached_property
    def linear_flops_per_token(self) -> int:
        """FLOPs per token of everything but attention over other tokens and the LM head: 2 per active weight, and the
        states of linear-attention layers."""
        return sum(
            g.count * (2 * self._layer_parameters(g, g.mlp.topk) + g.attention.state_flops) for g in self.layer_groups
        )

    def reaches(self, kv_dtype: str = "bf16", tp: int = 1) -> tuple[Reach, ...]:
        """How far its layers look back, and at what cost."""
        return reaches(self.layer_groups, dtype_bytes(kv_dtype), tp)

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
    attention = sum(reach.count * reach.pair_flops * reach.pairs(n, c) for reach in model.reaches())
    total = n * model.linear_flops_per_token + attention + model.lm_head_flops
    return np.where(n > 0, total, 0.0)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of a KV cache; InputError for a type that is not understood."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise InputError(f"dtype {dtype!r}: expected one of {', '.join(DTYPE_BYTES)}") from None
