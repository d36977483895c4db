"""From a Hugging Face config.json to a model's shapes: which fields of which family mean what, and what is refused.

The one idea: a family is how its attention and its feed-forward are laid out by layer; layers that turn out equal are
one group. A field or a model type that would change weights, KV bytes or FLOPs and is not understood is refused, not
guessed. Of a multimodal model the text part counts.

    >>> model_from_config(json.load(open("config.json")), "mine").parameters
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from calibrate.config_fields import Reader, refuse_unknown, text_part
from calibrate.config_layers import (
    NO_MLP,
    Halves,
    chunked,
    dense,
    gdn,
    gqa,
    llama4_moe,
    mla,
    moe,
    moe_if_experts,
    nemotron_h,
    nemotron_nas,
)
from calibrate.layer_groups import Attention, LayerGroup, Mlp
from calibrate.model_spec import ModelSpec
from calibrate.quantization import of_checkpoint
from workloads.errors import InputError

MOST_LAYERS = 10_000


# -- families ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Family:
    attention: Callable[[Reader, int], list[Attention]] | None
    mlp: Callable[[Reader, int], list[Mlp]] | None
    both: Callable[[Reader, int], Halves] | None = None
    tied: bool = False  #: when the field is not there
    qkv_bias: bool = False  #: when the field is not there
    qk_norm: bool = False
    sandwich_norms: bool = False

    def halves(self, read: Reader, layers: int) -> Halves:
        if self.both is not None:
            return self.both(read, layers)
        assert self.attention is not None
        assert self.mlp is not None
        return self.attention(read, layers), self.mlp(read, layers)


_GEMMA3 = _Family(gqa, dense, tied=True, qk_norm=True, sandwich_norms=True)
FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "ministral3", "phi3", "mimo", "nemotron"), _Family(gqa, dense)),
    **dict.fromkeys(
        ("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"),
        _Family(gqa, dense, qkv_bias=True),
    ),
    "qwen3": _Family(gqa, dense, qk_norm=True),
    "qwen3_vl_text": _Family(gqa, dense, qk_norm=True),
    "gemma2": _Family(gqa, dense, tied=True, sandwich_norms=True),
    "gemma3_text": _GEMMA3,
    "mixtral": _Family(gqa, moe),
    "gpt_oss": _Family(gqa, moe, qkv_bias=True),
    "qwen2_moe": _Family(gqa, moe, qkv_bias=True),
    "qwen3_moe": _Family(gqa, moe, qk_norm=True),
    "qwen3_vl_moe_text": _Family(gqa, moe, qk_norm=True),
    "qwen3_omni_moe_text": _Family(gqa, moe, qk_norm=True),
    "minimax_m2": _Family(gqa, moe, qk_norm=True),
    "glm4_moe": _Family(gqa, moe),
    "llama4_text": _Family(chunked, llama4_moe),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa"), _Family(mla, moe_if_experts)
    ),
    "qwen3_next": _Family(gdn, moe, qk_norm=True),
    "qwen3_5_text": _Family(gdn, dense, qk_norm=True),
    "qwen3_5_moe_text": _Family(gdn, moe, qk_norm=True),
    "nemotron_h": _Family(None, None, nemotron_h),
    "nemotron-nas": _Family(None, None, nemotron_nas),
}
UNDERSTOOD = sorted(FAMILIES)
_MIXTURES = [name for name, family in FAMILIES.items() if family.mlp is not dense and name != "nemotron-nas"]
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 256},
    "gemma3_text": {
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
}
"""Fields that a published file of a family leaves out where they are the family's defaults: a head size that is not
hidden_size / num_attention_heads would else be misread."""


def model_from_config(config: dict[str, Any], name: str, where: str = "config") -> ModelSpec:
    """ModelSpec from the keys of a Hugging Face config.json; `where` names the source in errors."""
    given = text_part(config, where)
    read = Reader({**_DEFAULTS.get(str(given.get("model_type")), {}), **given}, where)
    refuse_unknown(read, UNDERSTOOD, _MIXTURES)
    family, layers = FAMILIES[read.kind], read.count("num_hidden_layers", _listed_layers(read), MOST_LAYERS)
    attentions, mlps = family.halves(read, layers)
    if not any(a.kind in ("full", "window", "chunked", "mla") for a in attentions):
        raise InputError(f"{where}: no layer keeps KV; expected at least one attention layer")
    read.check_dtype()
    quantized = next((read.config[k] for k in ("quantization_config", "compression_config") if k in read.config), None)
    return ModelSpec(
        name=name,
        layers=layers,
        hidden=read.count("hidden_size"),
        vocab=read.count("vocab_size"),
        max_context=read.context(),
        tied_embeddings=read.flag("tie_word_embeddings", family.tied),
        qkv_bias=read.flag("attention_bias", family.qkv_bias),
        qk_norm=read.flag("use_qk_norm", family.qk_norm) if read.kind != "llama4_text" else False,
        sandwich_norms=family.sandwich_norms,
        **_shapes(attentions, mlps),
        quantization=None if quantized is None else of_checkpoint(quantized, _parts(attentions, mlps), where),
    )


def _parts(attentions: list[Attention], mlps: list[Mlp]) -> dict[str, list[int]]:
    """The layers that have each part of a model (`calibrate.precision.PARTS`)."""
    has = {
        "attention": [a.kind not in ("linear", "none") for a in attentions],
        "linear": [a.kind == "linear" for a in attentions],
        "mlp": [m.kind == "dense" for m in mlps],
        "experts": [m.kind == "moe" for m in mlps],
        "shared": [m.shared_inter > 0 for m in mlps],
    }
    return {part: [i for i, one in enumerate(layers) if one] for part, layers in has.items()}


def _listed_layers(read: Reader) -> int | None:
    """Layers of a file that lists them instead of counting them."""
    kinds = read.config.get("layers_block_type")
    return len(kinds) if isinstance(kinds, list) and kinds else None


def _shapes(attentions: list[Attention], mlps: list[Mlp]) -> dict[str, Any]:
    """The fields of a ModelSpec: groups only where full attention, one window, and experts or none do not say it."""
    a = next(a for a in attentions if a.kind in ("full", "window", "chunked", "mla"))
    experts = next((m for m in mlps if m.kind == "moe"), NO_MLP)
    plain_mlp = next((m for m in mlps if m.kind == "dense"), NO_MLP)
    fields: dict[str, Any] = {
        "heads": a.heads,
        "kv_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "intermediate": plain_mlp.inter,
        "sliding_layers": sum(x.kind == "window" for x in attentions),
        "window": next((x.window for x in attentions if x.kind == "window"), 0),
        "experts": experts.experts,
        "experts_per_token": experts.topk,
        "expert_intermediate": experts.expert_inter,
        "moe_layers": sum(m.kind == "moe" for m in mlps),
    }
    plain = {Attention("full", a.heads, a.kv_heads, a.head_dim)}
    plain.add(Attention("window", a.heads, a.kv_heads, a.head_dim, fields["window"]))
    simple = set(mlps) in ({Mlp("dense", plain_mlp.inter)}, {experts}) and not (experts.shared_inter or experts.latent)
    if simple and set(attentions) <= plain:
        return fields
    counts: dict[tuple[Attention, Mlp], int] = {}
    for layer in zip(attentions, mlps, strict=True):
        counts[layer] = counts.get(layer, 0) + 1
    return {**fields, "groups": tuple(LayerGroup(count, *layer) for layer, count in counts.items())}
