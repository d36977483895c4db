"""A model as groups of equal layers: what attention and what feed-forward a layer has, before any parallel split.

The one idea: whoever prices or sizes a model asks for its groups and never for its family. What a layer weighs, keeps
and computes follows from its two halves alone.

    python -c "from calibrate.layer_groups import layer_groups; from calibrate.models import resolve_model as m;
    print(*layer_groups(m('mixtral-8x7b')), sep='\\n')"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

INDEX_SCALE_BYTES = 4
"""A sparse-attention indexer keeps its key in fp8 with one fp32 scale, whatever the KV type."""


@dataclass(frozen=True)
class Attention:
    """One layer's attention. Widths in elements, counts over all ranks.

    kind: full; window (the last `window` tokens); chunked (from the last multiple of `window` on); mla (one latent of
    `kv_lora_rank` + `qk_rope_head_dim` for all heads); linear (a state of constant size instead of KV: `heads` value
    heads of `head_dim`, `kv_heads` key heads of `state_dim`); none."""

    kind: str
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    window: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    gated: bool = False  #: the q projection makes a gate on the output as well
    index_heads: int = 0  #: mla: an indexer picks the `index_topk` tokens that are attended
    index_dim: int = 0
    index_topk: int = 0
    mixer: str = ""  #: linear: gdn (Gated DeltaNet) or mamba2
    state_dim: int = 0
    conv: int = 0  #: linear: taps of the causal convolution
    state_item_bytes: int = 2

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def weights(self, hidden: int, tp: int = 1) -> int:
        """Projection weights of one rank: query heads are split; KV heads, and key heads of a state, are copied when
        there are fewer of them than ranks; the down-projections of MLA and an indexer are on every rank."""
        heads, kv_heads = -(-self.heads // tp), -(-self.kv_heads // tp)
        if self.kind == "mla":
            up = (self.q_lora_rank or hidden) * heads * self.qk_head_dim
            up += self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
            down = hidden * (self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim)
            return up + down + heads * self.v_head_dim * hidden + self._index_weights(hidden)
        if self.kind == "linear":
            value, key = heads * self.head_dim, kv_heads * self.state_dim
            steps = heads * (2 if self.mixer == "gdn" else 1)
            return hidden * (2 * value + 2 * key + steps) + value * hidden
        return hidden * self.head_dim * ((3 if self.gated else 2) * heads + 2 * kv_heads)

    def _index_weights(self, hidden: int) -> int:
        if not self.index_heads:
            return 0
        query = (self.q_lora_rank or hidden) * self.index_heads * self.index_dim
        return query + hidden * (self.index_dim + self.index_heads)

    @property
    def conv_width(self) -> int:
        """Channels of the convolution of a linear layer: its queries, keys and values."""
        return self.heads * self.head_dim + 2 * self.kv_heads * self.state_dim if self.kind == "linear" else 0

    @property
    def small_weights(self) -> int:
        """Norms, convolution and decay of one layer, which stay in 16 bits on every rank."""
        if self.kind == "mla":
            return self.kv_lora_rank + self.q_lora_rank
        return self.conv_width * (self.conv + 1) + 3 * self.heads if self.kind == "linear" else 0

    def kv_bytes(self, item: float, tp: int = 1) -> int:
        """KV bytes of one token on one rank: the latent is on every rank; nothing in linear layers."""
        if self.kind == "mla":
            index = self.index_dim + INDEX_SCALE_BYTES if self.index_heads else 0
            return int((self.kv_lora_rank + self.qk_rope_head_dim) * item) + index
        if self.kind in ("linear", "none"):
            return 0
        return int(2 * -(-self.kv_heads // tp) * self.head_dim * item)

    def state_bytes(self, tp: int = 1) -> int:
        """Bytes of one sequence's state in one layer of one rank: what the convolution still sees, and the state."""
        if self.kind != "linear":
            return 0
        heads, kv_heads = -(-self.heads // tp), -(-self.kv_heads // tp)
        seen = (self.conv - 1) * (heads * self.head_dim + 2 * kv_heads * self.state_dim) * 2
        return seen + heads * self.head_dim * self.state_dim * self.state_item_bytes

    @property
    def state_flops(self) -> int:
        """FLOPs of one token on the state: read it, correct it (gdn), add to it, query it."""
        if self.kind != "linear":
            return 0
        return (6 if self.mixer == "gdn" else 4) * self.heads * self.head_dim * self.state_dim


@dataclass(frozen=True)
class Mlp:
    """One layer's feed-forward. kind: dense (`inter`), moe (`experts` of `expert_inter`, `topk` of them a token, and a
    shared expert of `shared_inter`) or none."""

    kind: str
    inter: int = 0
    experts: int = 0
    topk: int = 0
    expert_inter: int = 0
    shared_inter: int = 0
    gated: bool = True  #: gate, up and down projections; else up and down
    latent: int = 0  #: routed experts work on a projection of this width instead of the hidden one

    @property
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    def dense_weights(self, hidden: int) -> int:
        return self._matrices * hidden * self.inter if self.kind == "dense" else 0

    def expert_weights(self, hidden: int) -> int:
        """One routed expert."""
        return self._matrices * (self.latent or hidden) * self.expert_inter

    def shared_weights(self, hidden: int) -> int:
        return self._matrices * hidden * self.shared_inter + 2 * hidden * self.latent

    def router_weights(self, hidden: int) -> int:
        return hidden * self.experts

    def width(self) -> int:
        """Columns that a token has between the projections, of all matrices together (gate, up and their product)."""
        return self._matrices * (self.inter or self.topk * self.expert_inter + self.shared_inter)


@dataclass(frozen=True)
class LayerGroup:
    """`count` layers of one shape."""

    count: int
    attention: Attention
    mlp: Mlp


class Grouped(Protocol):
    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]: ...


def layer_groups(model: Grouped) -> tuple[LayerGroup, ...]:
    """The groups of a model; their counts add up to its layers."""
    return model.layer_groups


@dataclass(frozen=True)
class Reach:
    """How far the layers of a kind look back, and what one (query, key) pair costs in one of them.

    window: keys a query sees at most, 0 for all; chunk: keys are forgotten at its multiples. A sparse-attention layer
    has two reaches: its indexer sees all keys, its attention the best of them."""

    count: int
    window: int
    chunk: int
    pair_flops: int  #: prefill form; MLA expands the latent
    decode_flops: int  #: decode form; MLA works on the latent itself
    key_bytes: int  #: of one rank

    def pairs(self, new: Any, cached: Any) -> Any:
        """(query, key) pairs of `new` tokens over `cached` ones; scalars or float arrays."""
        if self.chunk:
            return _pairs_before(cached + new, self.chunk) - _pairs_before(cached, self.chunk)
        if self.window:
            return windowed_pairs(new, cached, self.window)
        return new * cached + new * (new + 1) * 0.5

    def kept(self, new: Any, cached: Any) -> Any:
        """Keys that these queries read at least once."""
        if self.chunk:
            return new + cached % self.chunk
        return np.minimum(new + cached, new + self.window) if self.window else new + cached

    def decode_keys(self, sequences: Any, sum_context: Any) -> Any:
        """Keys that one token of each sequence sees: at most its window, or a whole chunk."""
        most = self.window or self.chunk
        return np.minimum(sum_context, sequences * float(most)) if most else sum_context


def _pairs_before(position: Any, chunk: int) -> Any:
    """Pairs of all tokens before this position: each sees its chunk from the start to itself."""
    rest = position % chunk
    return position // chunk * (chunk * (chunk + 1) / 2) + rest * (rest + 1) / 2


def windowed_pairs(new: Any, cached: Any, window: int) -> Any:
    """Sum over the new tokens of min(position, window): causal pairs of a sliding-window layer."""
    growing = np.clip(window - cached, 0, new)
    return growing * cached + growing * (growing + 1) / 2 + (new - growing) * window


def reaches(groups: tuple[LayerGroup, ...], item: float, tp: int = 1) -> tuple[Reach, ...]:
    """The reaches of all layers that keep KV, equal ones counted together. item: bytes of a KV element."""
    counts: dict[Attention, int] = {}
    for group in groups:
        counts[group.attention] = counts.get(group.attention, 0) + group.count
    return tuple(reach for attention, count in counts.items() for reach in _reaches(attention, count, item, tp))


def _reaches(a: Attention, count: int, item: float, tp: int) -> list[Reach]:
    if a.kind in ("linear", "none"):
        return []
    if a.kind != "mla":
        window, chunk = (a.window, 0) if a.kind == "window" else (0, a.window if a.kind == "chunked" else 0)
        flops = 4 * a.heads * a.head_dim
        return [Reach(count, window, chunk, flops, flops, a.kv_bytes(item, tp))]
    flops, absorbed = a.qk_head_dim + a.v_head_dim, 2 * a.kv_lora_rank + a.qk_rope_head_dim
    index = a.index_dim + INDEX_SCALE_BYTES if a.index_heads else 0
    latent = Reach(count, a.index_topk, 0, 2 * a.heads * flops, 2 * a.heads * absorbed, a.kv_bytes(item, tp) - index)
    if not index:
        return [latent]
    scores = 2 * a.index_heads * a.index_dim
    return [latent, Reach(count, 0, 0, scores, scores, index)]
