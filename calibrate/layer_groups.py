"""A model as groups of equal layers: what attention and what feed-forward a layer has, before any parallel split.

The one idea: whoever prices or sizes a model asks for its groups and never for its family.

    python -c "from calibrate.layer_groups import layer_groups; from calibrate.models import resolve_model as m;
    print(*layer_groups(m('mixtral-8x7b')), sep='\\n')"
"""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.model_spec import ModelSpec


@dataclass(frozen=True)
class Attention:
    """One layer's attention. kind: full, window, chunked, mla or linear. Widths in elements, counts over all ranks."""

    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0  #: tokens a window or chunk reaches back; 0: all of them
    kv_lora_rank: int = 0  #: mla: the latent, and the fields below
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0


@dataclass(frozen=True)
class Mlp:
    """One layer's feed-forward. kind: dense (inter) or moe (experts of expert_inter, topk of them a token, and a shared
    expert of shared_inter)."""

    kind: str
    inter: int = 0
    experts: int = 0
    topk: int = 0
    expert_inter: int = 0
    shared_inter: int = 0


@dataclass(frozen=True)
class LayerGroup:
    """`count` layers of one shape."""

    count: int
    attention: Attention
    mlp: Mlp


def layer_groups(model: ModelSpec) -> list[LayerGroup]:
    """The groups of a model; their counts add up to its layers. Which of the windowed layers hold experts is not known
    from the counts: both are dealt out in proportion, the remainder to the first group."""
    attentions = _attentions(model)
    experts = Mlp(
        "moe",
        experts=model.experts,
        topk=model.experts_per_token,
        expert_inter=model.expert_intermediate,
        shared_inter=model.shared_intermediate,
    )
    dense = Mlp("dense", inter=model.intermediate)
    groups, left = [], model.moe_layers
    for i, (count, attention) in enumerate(attentions):
        last = i == len(attentions) - 1
        moe = left if last else min(-(-count * model.moe_layers // model.layers), count)
        left -= moe
        groups += [LayerGroup(n, attention, mlp) for n, mlp in ((count - moe, dense), (moe, experts)) if n]
    return groups


def _attentions(model: ModelSpec) -> list[tuple[int, Attention]]:
    if model.is_mla:
        latent = Attention(
            "mla",
            model.heads,
            1,
            model.kv_lora_rank + model.qk_rope_head_dim,
            kv_lora_rank=model.kv_lora_rank,
            q_lora_rank=model.q_lora_rank,
            qk_rope_head_dim=model.qk_rope_head_dim,
            qk_nope_head_dim=model.qk_nope_head_dim,
            v_head_dim=model.v_head_dim,
        )
        return [(model.layers, latent)]
    full = Attention("full", model.heads, model.kv_heads, model.head_dim)
    window = Attention("window", model.heads, model.kv_heads, model.head_dim, window=model.window)
    return [(n, a) for n, a in ((model.full_layers, full), (model.sliding_layers, window)) if n]
