"""Models by name or by config.json: which fields of a Hugging Face config mean what, and what is refused.

The one idea: a field or a model type that would change weights, KV bytes or FLOPs and is not understood (linear
attention, state-space layers, sparse indexers, cross attention) is refused, not guessed.

    python -c "from calibrate.models import resolve_model; print(resolve_model('llama-3.1-8b').parameters)"
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrate.model_spec import DTYPE_BYTES, ModelSpec, dtype_bytes, flops, windowed_pairs
from workloads.errors import InputError

__all__ = [
    "DTYPE_BYTES",
    "ModelSpec",
    "bundled_models",
    "dtype_bytes",
    "flops",
    "known_as",
    "load_model",
    "model_from_config",
    "resolve_model",
    "windowed_pairs",
]

BUNDLED = Path(__file__).parent / "models"

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


def bundled_models() -> list[str]:
    """Names of the models that ship with kvcast."""
    return sorted(p.stem for p in BUNDLED.glob("*.json"))


def resolve_model(name_or_path: str) -> ModelSpec:
    """A bundled model by name, or else a config.json (or its folder) by path."""
    path = Path(name_or_path)
    if _bundled_name(name_or_path) not in bundled_models() and (path.suffix == ".json" or path.exists()):
        return load_model_at(path)
    return bundled_model(name_or_path)


def bundled_model(name: str) -> ModelSpec:
    """A bundled model by name (case and a leading organisation are ignored)."""
    names, key = bundled_models(), _bundled_name(name)
    if key in names:
        return load_model(BUNDLED / f"{key}.json")
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"model {name!r} is not bundled{hint} (bundled: {', '.join(names)}; or the path of a config.json)")


def _bundled_name(name: str) -> str:
    return name.split("/")[-1].lower().removeprefix("meta-").replace("_", "-")


def load_model_at(path: Path) -> ModelSpec:
    """ModelSpec from a config.json, or from the folder that holds it."""
    return load_model(path / "config.json" if path.is_dir() else path)


def known_as(model: ModelSpec) -> str:
    """Name of the bundled model that has these shapes (a fine-tune's step times are its base model's), else the model's
    own name."""
    if model.name in bundled_models():
        return model.name
    for name in bundled_models():
        bundled = load_model(BUNDLED / f"{name}.json")
        if replace(model, name=name, max_context=bundled.max_context) == bundled:
            return name
    return model.name


def load_model(path: Path) -> ModelSpec:
    """ModelSpec from a Hugging Face config.json. InputError names the file and the field that is missing or not
    understood."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"{path}: cannot read the model config ({e.strerror})") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: not a JSON model config ({e})") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected a JSON object with the keys of a Hugging Face config.json")
    return model_from_config(
        config, name=path.parent.name if path.name == "config.json" else path.stem, where=str(path)
    )


def model_from_config(config: dict[str, Any], name: str, where: str = "config") -> ModelSpec:
    """ModelSpec from the keys of a Hugging Face config.json; `where` names the source in errors."""
    _refuse_unknown(config, where)
    read = _Reader(config, where)
    layers, heads, hidden = (
        read.count("num_hidden_layers"),
        read.count("num_attention_heads"),
        read.count("hidden_size"),
    )
    kind = config["model_type"]
    shapes: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": read.count("num_key_value_heads", heads),
        "head_dim": read.count("head_dim", hidden // heads),
        "intermediate": read.count("intermediate_size"),
        "vocab": read.count("vocab_size"),
        "max_context": read.count("max_position_embeddings"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", kind in ("gemma2", "gemma3_text"))),
        "qkv_bias": bool(config.get("attention_bias", kind in ("qwen2", "qwen2_moe"))),
        "qk_norm": kind in ("qwen3", "qwen3_moe", "gemma3_text"),
        "sandwich_norms": kind in ("gemma2", "gemma3_text"),
    }
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
            raise InputError(
                f"{where}: field {key} means {what}, which is not understood (KV bytes and FLOPs would be wrong)"
            )
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
            raise InputError(
                f"{read.where}: layer_types has {unknown[0]!r}; expected full_attention or sliding_attention"
            )
        if len(kinds) != layers:
            raise InputError(
                f"{read.where}: layer_types has {len(kinds)} entries; expected num_hidden_layers = {layers}"
            )
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
    first, every = (
        config.get("first_k_dense_replace") or 0,
        config.get("decoder_sparse_step") or config.get("moe_layer_freq") or 1,
    )
    offset = 1 if "decoder_sparse_step" in config else 0
    moe = [i for i in range(layers) if i >= first and i not in dense and (i + offset) % every == 0]
    return {
        "experts": read.count(count),
        "experts_per_token": read.count("num_experts_per_tok"),
        "expert_intermediate": width,
        "shared_intermediate": shared,
        "moe_layers": len(moe),
    }
