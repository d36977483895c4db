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

WRAPPED = ("thinker_config", "text_config", "llm_config", "language_config", "language_model_config")
"""Where the config of a multimodal model keeps its decoder, or what holds it."""
MOST = 100_000_000
"""No width, count or context of a model is larger."""
DTYPES = ("bfloat16", "float16", "float32")
"""Types of the weights that a checkpoint has not quantized; an engine serves float32 in 16 bits."""


def short(value: Any) -> str:
    """The value as an error line shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Reader:
    """The fields of a config.json with checks; whatever is wrong with one is an InputError that names file, field and
    value."""

    config: dict[str, Any]
    where: str

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type"))

    def count(self, key: str, default: int | None = None, most: int = MOST) -> int:
        """A positive whole number; null counts as absent."""
        value = self.config.get(key)
        if value is None:
            value = default
        if value is None:
            raise InputError(f"{self.where}: field {key} is missing; expected a positive whole number")
        return self._whole(key, value, 1, "a positive whole number", most)

    def _whole(self, key: str, value: Any, low: int, expected: str, most: int = MOST) -> int:
        if type(value) is not int or value < low:
            raise self.wrong(key, value, expected)
        if value > most:
            raise self.wrong(key, value, f"at most {most:,}")
        return value

    def wrong(self, key: str, value: Any, expected: str) -> InputError:
        """The error for a field whose value is not what it should be."""
        return InputError(f"{self.where}: field {key} is {short(value)}; expected {expected}")

    def optional(self, key: str) -> int | None:
        """A positive whole number, or None where the field is absent, null or 0: what it would size is not there."""
        return self.at_least_0(key) or None

    def per_layer(self, key: str, layers: int, default: int | None = None) -> list[int]:
        """A positive whole number for each layer: one for all of them, or a list."""
        values = self.config.get(key)
        if not isinstance(values, list):
            return [self.count(key, default)] * layers
        return [
            self._whole(f"{key}[{i}]", v, 1, "a positive whole number")
            for i, v in enumerate(self.listed(key, layers) or [])
        ]

    def first(self, *keys: str) -> int:
        """The first of these fields that is there."""
        there = next((key for key in keys if self.config.get(key) is not None), None)
        if there is None:
            raise InputError(f"{self.where}: field {' or '.join(keys)} is missing; expected a positive whole number")
        return self.count(there)

    def at_least_0(self, key: str) -> int:
        """A whole number of at least 0; 0 where the field is absent or null."""
        value = self.config.get(key)
        return 0 if value is None else self._whole(key, value, 0, "a whole number of at least 0")

    def choice(self, key: str, known: tuple[str, ...]) -> str | None:
        """One of these words, or None where the field is absent or null."""
        value = self.config.get(key)
        if value is not None and value not in known:
            raise self.wrong(key, value, f"one of {', '.join(known)}")
        return value

    def check_dtype(self) -> None:
        """InputError for a type of weights that no engine serves as 16 bits."""
        for key in ("torch_dtype", "dtype"):
            value = self.config.get(key)
            name = value.removeprefix("torch.") if isinstance(value, str) else value
            if value is not None and name not in DTYPES:
                expected = f"one of {', '.join(DTYPES)}; what is quantized stands in quantization_config"
                raise self.wrong(key, value, expected)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return default if value is None else value

    def listed(self, key: str, layers: int) -> list[Any] | None:
        """One entry a layer, or None when the field is not there."""
        values = self.config.get(key)
        if values is None:
            return None
        if not isinstance(values, (list, str)):
            raise self.wrong(key, values, "one entry a layer")
        if len(values) != layers:
            raise InputError(f"{self.where}: {key} has {len(values)} entries; expected num_hidden_layers = {layers}")
        return list(values)

    def context(self) -> int:
        """Tokens of the longest sequence, as vLLM derives them: a rope scaling by a factor makes it longer, where
        max_position_embeddings does not count it already."""
        length = self.count("max_position_embeddings")
        field = next((f for f in ("rope_scaling", "rope_parameters") if self.config.get(f) is not None), "")
        scaling = self.config.get(field)
        if scaling is None:
            return length
        if not isinstance(scaling, dict):
            raise self.wrong(field, scaling, "an object with a rope_type")
        if self.kind in ALREADY_SCALED or not scaling:
            return length
        kind = scaling.get("rope_type") or scaling.get("type")
        if kind is None and (field == "rope_parameters" or any(isinstance(one, dict) for one in scaling.values())):
            kind = "default"
        if isinstance(kind, dict) or any(isinstance(one, dict) for one in scaling.values()):
            return length  # one entry a kind of layer: no factor of the whole
        if kind not in ROPE_SCALED + ROPE_AS_IT_IS:
            known = ", ".join(ROPE_SCALED + ROPE_AS_IT_IS)
            raise InputError(f"{self.where}: field {field} has rope_type {short(kind)}; expected one of {known}")
        factor = scaling.get("factor")
        if factor is not None and (type(factor) not in (int, float) or not 0 < factor < 1e6):
            raise InputError(f"{self.where}: field {field} has factor {short(factor)}; expected a number above 0")
        if kind in ROPE_AS_IT_IS:
            return length
        if kind == "yarn" and scaling.get("original_max_position_embeddings") is not None:
            key = "original_max_position_embeddings"
            length = self._whole(f"{field}.{key}", scaling[key], 1, "a positive whole number")
        longest = int(length * (1.0 if factor is None else factor))
        return self._whole(f"{field}, with max_position_embeddings", longest, 1, "a context of at least a token")


ALREADY_SCALED = ("gemma3_text",)
ROPE_SCALED = ("yarn", "linear", "dynamic")
"""Kinds of rope scaling whose factor lengthens the context."""
ROPE_AS_IT_IS = ("default", "llama3", "longrope", "su", "mrope", "proportional")


def text_part(config: dict[str, Any], where: str) -> dict[str, Any]:
    """The decoder's own fields: a multimodal config keeps them one level down."""
    for _ in range(DEEPEST):
        name = next((name for name in WRAPPED if config.get(name) is not None), None)
        if name is None:
            return config
        text = config[name]
        if not isinstance(text, dict):
            raise InputError(f"{where}: field {name} is {short(text)}; expected the fields of the text model")
        shared = {key: config[key] for key in SHARED if key in config}
        config = {"model_type": config.get("model_type"), **shared, **text}
    raise InputError(
        f"{where}: field {name} is nested deeper than {DEEPEST} levels; expected the fields of the text model"
    )


SHARED = ("quantization_config", "compression_config", "tie_word_embeddings", "torch_dtype", "dtype")
"""Fields of the whole that hold for its decoder where that has none of its own."""
DEEPEST = 3

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
    if "model_type" not in config and {"dim", "n_layers"} <= config.keys():
        raise InputError(f"{where}: Mistral's own params.json; expected the Hugging Face config.json of the model")
    if not isinstance(config.get("model_type"), str) or read.kind not in understood:
        kind = short(config.get("model_type"))
        raise InputError(f"{where}: model_type {kind} is not understood (understood: {', '.join(understood)})")
    if isinstance(config.get("quantization"), dict) and config.get("quantization_config") is None:
        raise InputError(
            f"{where}: field quantization is MLX's, which no engine here serves; expected a quantization_config, or a"
            " copy of the file without it, with model.dtype and hardware.weights_gib"
        )
    in_experts = ((key, ("experts", tuple(mixtures))) for key in EXPERTS)
    for key, (what, families) in (*MEANINGS.items(), *in_experts):
        value = config.get(key)
        if value and not (key in EXPERTS and value == 1) and read.kind not in families:
            raise InputError(
                f"{where}: field {key} means {what}, which is not understood in {read.kind} (weights, KV bytes or"
                " FLOPs would be wrong)"
            )
    if read.flag("is_encoder_decoder", False):
        raise InputError(f"{where}: field is_encoder_decoder is true; only decoder-only models are understood")
