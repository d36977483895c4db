"""ModelSpec: what the simulator must know of a model, read from a Hugging Face config.json.

The one idea: weights, KV cache and FLOPs follow from a dozen shapes. A field or a model type that would change them
and is not understood (linear attention, state-space layers, sparse indexers, cross attention) is refused, not guessed.

    python -c "from calibrate.models import resolve_model; print(resolve_model('llama-3.1-8b').parameters)"
"""
from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from workloads.errors import InputError

BUNDLED = Path(__file__).parent / "models"
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}

_DENSE = {"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "mimo"}
_MOE = {"mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"}
_MLA = {"deepseek_v2", "deepseek_v3", "kimi_k2"}
UNDERSTOOD = sorted(_DENSE | _MOE | _MLA)

_REFUSED_KEYS = {
    "linear_attn_config": "linear attention",
    "linear_num_value_heads": "linear attention",
    "full_attention_interval": "linear attention between full layers",
    "mamba_d_state": "state-space layers",
    "ssm_cfg": "state-space layers",
    "hybrid_override_pattern": "state-space layers",
    "index_topk": "a sparse-attention indexer",
    "attention_chunk_size": "chunked local attention",
    "cross_attention_layers": "cross attention",
    "num_kv_shared_layers": "layers that share a KV cache",
    "block_configs": "layers of different shapes",
}


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
            q = self.hidden * self.q_lora_rank + self.q_lora_rank * self.heads * qk if self.q_lora_rank else self.hidden * self.heads * qk
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
        return embeddings + self.layers * self.attention_parameters + int(self._mlp_parameters(self.experts)) + self._small_parameters

    @cached_property
    def active_parameters(self) -> int:
        """Weights one token goes through, embeddings and LM head included (how "A3B" is counted)."""
        return self.parameters - self.moe_layers * (self.experts - self.experts_per_token) * self.expert_parameters

    # ---- bytes -----------------------------------------------------------------------------------------------

    def weight_bytes(self, dtype: str, tp: int = 1) -> int:
        """Bytes of weights on one rank. fp8 checkpoints keep embeddings, LM head, router and norms in 16 bits."""
        wide = self.vocab * self.hidden * (1 if self.tied_embeddings else 2) + self.moe_layers * self.hidden * self.experts
        narrow = self.parameters - wide - self._small_parameters
        sharded = narrow * dtype_bytes(dtype) + wide * 2
        return -(-sharded // tp) + self._small_parameters * 2

    def layer_kv_bytes(self, kv_dtype: str, tp: int = 1) -> int:
        """KV bytes one token takes in one layer on one rank: 2 x ceil(kv_heads / tp) x head_dim, or the MLA latent on every rank."""
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
        """FLOPs of one (query, key) pair in one layer: q.k and p.v over all heads (MLA: prefill form, latent expanded)."""
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
    """Sum over the new tokens of min(position, window): causal pairs of a sliding-window layer. Float arrays in and out."""
    growing = np.clip(window - cached, 0, new)
    return growing * cached + growing * (growing + 1) / 2 + (new - growing) * window


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; InputError for a type that is not understood."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise InputError(f"dtype {dtype!r}: expected one of {', '.join(DTYPE_BYTES)}") from None


# ---- reading ---------------------------------------------------------------------------------------------------


def bundled_models() -> list[str]:
    """Names of the models that ship with kvcast."""
    return sorted(p.stem for p in BUNDLED.glob("*.json"))


def resolve_model(name_or_path: str) -> ModelSpec:
    """A bundled model by name (case and a leading organisation are ignored) or a config.json by path."""
    path = Path(name_or_path)
    if path.suffix == ".json" or path.is_dir():
        return load_model(path / "config.json" if path.is_dir() else path)
    names = bundled_models()
    key = name_or_path.split("/")[-1].lower().removeprefix("meta-").replace("_", "-")
    if key in names:
        return load_model(BUNDLED / f"{key}.json")
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"model {name_or_path!r} is not bundled{hint} (bundled: {', '.join(names)}; or the path of a config.json)")


def known_as(model: ModelSpec) -> str:
    """Name of the bundled model that has these shapes (a fine-tune's step times are its base model's), else the model's own name."""
    if model.name in bundled_models():
        return model.name
    for name in bundled_models():
        bundled = load_model(BUNDLED / f"{name}.json")
        if replace(model, name=name, max_context=bundled.max_context) == bundled:
            return name
    return model.name


def load_model(path: Path) -> ModelSpec:
    """ModelSpec from a Hugging Face config.json. InputError names the file and the field that is missing or not understood."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"{path}: cannot read the model config ({e.strerror})") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: not a JSON model config ({e})") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected a JSON object with the keys of a Hugging Face config.json")
    return model_from_config(config, name=path.parent.name if path.name == "config.json" else path.stem, where=str(path))


def model_from_config(config: dict[str, Any], name: str, where: str = "config") -> ModelSpec:
    """ModelSpec from the keys of a Hugging Face config.json; `where` names the source in errors."""
    _refuse_unknown(config, where)
    read = _Reader(config, where)
    layers, heads, hidden = read.count("num_hidden_layers"), read.count("num_attention_heads"), read.count("hidden_size")
    kind = config["model_type"]
    shapes: dict[str, Any] = {
        "layers": layers, "hidden": hidden, "heads": heads,
        "kv_heads": read.count("num_key_value_heads", heads),
        "head_dim": read.count("head_dim", hidden // heads),
        "intermediate": read.count("intermediate_size"),
        "vocab": read.count("vocab_size"),
        "max_context": read.count("max_position_embeddings"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", kind in ("gemma2", "gemma3_text"))),
        "qkv_bias": bool(config.get("attention_bias", kind in ("qwen2", "qwen2_moe"))),
        "qk_norm": kind in ("qwen3", "qwen3_moe", "gemma3_text"),
        "sandwich_norms": kind in ("gemma2", "gemma3_text"),
    }  # fmt: skip
    shapes.update(_window(config, read, layers))
    if kind in _MOE or (kind in _MLA and config.get("n_routed_experts")):
        shapes.update(_experts(config, read, layers))
    if kind in _MLA:
        fields = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        shapes.update({f: read.count(f) for f in fields}, q_lora_rank=config.get("q_lora_rank") or 0)
    return ModelSpec(name=name, **shapes)


@dataclass(frozen=True)
class _Reader:
    config: dict[str, Any]
    where: str

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


def _refuse_unknown(config: dict[str, Any], where: str) -> None:
    kind = config.get("model_type")
    if kind not in UNDERSTOOD:
        raise InputError(f"{where}: model_type {kind!r} is not understood (understood: {', '.join(UNDERSTOOD)})")
    for key, what in _REFUSED_KEYS.items():
        if config.get(key):
            raise InputError(f"{where}: field {key} means {what}, which is not understood (KV bytes and FLOPs would be wrong)")
    if config.get("is_encoder_decoder"):
        raise InputError(f"{where}: field is_encoder_decoder is true; only decoder-only models are understood")
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method not in (None, "fp8", "fbgemm_fp8"):
        raise InputError(f"{where}: quantization {method!r} is not understood (weights in bf16, fp16 or fp8)")


def _window(config: dict[str, Any], read: _Reader, layers: int) -> dict[str, int]:
    """How many layers slide, and their window, from `layer_types` or the older per-family rules."""
    kinds = config.get("layer_types")
    if kinds is not None:
        unknown = sorted({str(k) for k in kinds} - {"full_attention", "sliding_attention"})
        if unknown:
            raise InputError(f"{read.where}: layer_types has {unknown[0]!r}; expected full_attention or sliding_attention")
        if len(kinds) != layers:
            raise InputError(f"{read.where}: layer_types has {len(kinds)} entries; expected num_hidden_layers = {layers}")
        sliding = sum(k == "sliding_attention" for k in kinds)
    elif not config.get("sliding_window") or config.get("use_sliding_window") is False:
        sliding = 0
    elif config["model_type"] == "gemma2":
        sliding = (layers + 1) // 2
    elif config["model_type"] == "gemma3_text":
        sliding = layers - layers // read.count("sliding_window_pattern", 6)
    elif config["model_type"] in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mimo"):
        sliding = max(0, layers - int(config.get("max_window_layers", layers)))
    else:
        sliding = layers
    return {"sliding_layers": sliding, "window": read.count("sliding_window") if sliding else 0}


def _experts(config: dict[str, Any], read: _Reader, layers: int) -> dict[str, int]:
    """Expert shapes under the names the families use, and which layers are MoE."""
    count = next((k for k in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(k)), "num_experts")
    width = read.count("moe_intermediate_size", config.get("intermediate_size"))
    shared = config.get("shared_expert_intermediate_size") or width * (config.get("n_shared_experts") or 0)
    dense = set(config.get("mlp_only_layers") or [])
    first, every = config.get("first_k_dense_replace") or 0, config.get("decoder_sparse_step") or config.get("moe_layer_freq") or 1
    offset = 1 if "decoder_sparse_step" in config else 0
    moe = [i for i in range(layers) if i >= first and i not in dense and (i + offset) % every == 0]
    return {
        "experts": read.count(count), "experts_per_token": read.count("num_experts_per_tok"),
        "expert_intermediate": width, "shared_intermediate": shared, "moe_layers": len(moe),
    }  # fmt: skip
