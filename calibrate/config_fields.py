"""The fields of a Hugging Face config.json: read with checks, and refused where they mean what is not understood.

The one idea: a field that would change weights, KV bytes or FLOPs, in a family where nobody reads it, is a line that
names it, never ignored.

    >>> Reader({"num_hidden_layers": 32}, "config.json").count("num_hidden_layers")
    32
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from workloads.errors import InputError

WRAPPED = ("text_config", "llm_config", "language_config")
"""Where the config of a multimodal model keeps its decoder."""


@dataclass(frozen=True)
class Reader:
    """The fields of a config.json with checks; whatever is wrong with one is an InputError that names file, field and
    value."""

    config: dict[str, Any]
    where: str

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type"))

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number; null counts as absent."""
        value = self.config.get(key)
        if value is None:
            value = default
        if value is None:
            raise InputError(f"{self.where}: field {key} is missing; expected a positive whole number")
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise InputError(f"{self.where}: field {key} is {value!r}; expected a positive whole number")
        return value

    def first(self, *keys: str) -> int:
        """The first of these fields that is there."""
        return self.count(next((key for key in keys if self.config.get(key) is not None), keys[0]))

    def at_least_0(self, key: str) -> int:
        return self.count(key) if self.config.get(key) else 0

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if value is not None and not isinstance(value, bool):
            raise InputError(f"{self.where}: field {key} is {value!r}; expected true or false")
        return default if value is None else value

    def listed(self, key: str, layers: int) -> list[Any] | None:
        """One entry a layer, or None when the field is not there."""
        values = self.config.get(key)
        if values is None:
            return None
        if not isinstance(values, (list, str)):
            raise InputError(f"{self.where}: field {key} is {values!r}; expected one entry a layer")
        if len(values) != layers:
            raise InputError(f"{self.where}: {key} has {len(values)} entries; expected num_hidden_layers = {layers}")
        return list(values)

    def context(self) -> int:
        """Tokens of the longest sequence, as vLLM derives them: a rope scaling by a factor makes it longer, where
        max_position_embeddings does not count it already."""
        length = self.count("max_position_embeddings")
        scaling = self.config.get("rope_scaling") or self.config.get("rope_parameters")
        if not scaling or self.kind in ALREADY_SCALED:
            return length
        if not isinstance(scaling, dict):
            raise InputError(f"{self.where}: field rope_scaling is {scaling!r}; expected an object with a rope_type")
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if isinstance(kind, dict) or any(isinstance(one, dict) for one in scaling.values()):
            return length  # one entry a kind of layer: no factor of the whole
        if kind not in ROPE_SCALED + ROPE_AS_IT_IS:
            known = ", ".join(ROPE_SCALED + ROPE_AS_IT_IS)
            raise InputError(f"{self.where}: field rope_scaling has rope_type {kind!r}; expected one of {known}")
        if kind in ROPE_AS_IT_IS:
            return length
        factor = scaling.get("factor", 1.0)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1e6:
            raise InputError(f"{self.where}: field rope_scaling has factor {factor!r}; expected a number above 0")
        original = scaling.get("original_max_position_embeddings") if kind == "yarn" else None
        return int((original or length) * factor)


ALREADY_SCALED = ("gemma3_text",)
ROPE_SCALED = ("yarn", "linear", "dynamic")
"""Kinds of rope scaling whose factor lengthens the context."""
ROPE_AS_IT_IS = ("default", "llama3", "longrope", "su", "mrope", "proportional")


def text_part(config: dict[str, Any], where: str) -> dict[str, Any]:
    """The decoder's own fields: a multimodal config keeps them one level down."""
    name = next((name for name in WRAPPED if config.get(name) is not None), None)
    if name is None:
        return config
    text = config[name]
    if not isinstance(text, dict):
        raise InputError(f"{where}: field {name} is {text!r}; expected the fields of the text model")
    shared = {key: config[key] for key in ("quantization_config", "tie_word_embeddings") if key in config}
    return {"model_type": config.get("model_type"), **shared, **text}


LINEAR = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa")
MEANINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "linear_attn_config": ("linear attention", ()),
    "linear_num_value_heads": ("linear attention", LINEAR),
    "full_attention_interval": ("linear attention between full layers", LINEAR),
    "mamba_d_state": ("state-space layers", ()),
    "ssm_cfg": ("state-space layers", ()),
    "hybrid_override_pattern": ("state-space layers", ("nemotron_h",)),
    "layers_block_type": ("layers of several kinds", ("nemotron_h",)),
    "attn_type_list": ("attention of several kinds", ("minimax_m2",)),
    "hybrid_layer_pattern": ("window layers of another shape", ()),
    "index_topk": ("a sparse-attention indexer", ("deepseek_v32", "glm_moe_dsa")),
    "sparse_attention_config": ("sparse attention", ()),
    "compress_ratios": ("a compressed KV cache", ()),
    "kv_lora_rank": ("latent attention", LATENT),
    "v_head_dim": ("values of another width than keys", LATENT),
    "attention_chunk_size": ("chunked local attention", ("llama4_text",)),
    "cross_attention_layers": ("cross attention", ()),
    "num_kv_shared_layers": ("layers that share a KV cache", ()),
    "attention_k_eq_v": ("keys that are values", ()),
    "hidden_size_per_layer_input": ("embeddings of every layer", ()),
    "block_configs": ("layers of different shapes", ("nemotron-nas",)),
}
"""Fields that change a model's shapes, what they mean, and the families in which they are understood."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def refuse_unknown(read: Reader, understood: Collection[str], mixtures: Collection[str]) -> None:
    """InputError for a family that is not understood, or a field that is not understood in it. mixtures: the families
    whose experts are read."""
    config, where = read.config, read.where
    if config.get("model_type") is None or read.kind not in understood:
        kind = config.get("model_type")
        raise InputError(f"{where}: model_type {kind!r} is not understood (understood: {', '.join(understood)})")
    in_experts = ((key, ("experts", tuple(mixtures))) for key in EXPERTS)
    for key, (what, families) in (*MEANINGS.items(), *in_experts):
        value = config.get(key)
        if value and not (key in EXPERTS and value == 1) and read.kind not in families:
            raise InputError(
                f"{where}: field {key} means {what}, which is not understood in {read.kind} (weights, KV bytes or"
                " FLOPs would be wrong)"
            )
    if config.get("is_encoder_decoder"):
        raise InputError(f"{where}: field is_encoder_decoder is true; only decoder-only models are understood")
