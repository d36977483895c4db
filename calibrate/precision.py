"""How many bytes a weight takes, by part of a model: what a checkpoint's own quantization says, or a type by name.

The one idea: quantized checkpoints leave parts in 16 bits (embeddings, LM head, router, norms always; attention or
shared experts often), so bytes are kept per part and never for the model as a whole.

    >>> of_checkpoint({"quant_method": "mxfp4"}, 36, "config.json").experts
    0.53125
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, replace
from typing import Any

from workloads.errors import InputError

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}
"""Types of a KV cache, and of a whole model's weights."""
WEIGHT_BYTES: dict[str, float] = {
    **DTYPE_BYTES,
    "fp8_block": 1,  # one fp32 scale per 128 x 128 block
    "int8": 1,
    "int4": 0.5 + 2 / 128,  # a 16-bit scale per 128 weights
    "mxfp4": 0.5 + 1 / 32,  # an 8-bit scale per 32 weights: 4.25 bits
    "nvfp4": 0.5 + 1 / 16,  # an fp8 scale per 16 weights: 4.5 bits
}
PARTS = ("attention", "linear", "mlp", "experts", "shared")
"""What a quantization may take or leave: attention projections, linear-attention projections, dense feed-forward,
routed experts, shared experts."""
FAMILY = {"fp8_block": "fp8"}
"""Types that a scenario does not tell apart."""


@dataclass(frozen=True)
class Precision:
    """Bytes of a weight in each part. name: the type of the quantized parts, as an operator table calls it."""

    name: str
    attention: float
    linear: float
    mlp: float
    experts: float
    shared: float
    wide: int = 2  #: embeddings, LM head, router, norms
    kv: str | None = None  #: KV type that the checkpoint asks for

    @property
    def dtype(self) -> str:
        """The type as a scenario names it."""
        return FAMILY.get(self.name, self.name)

    def type_of(self, part: str) -> str:
        """The type of a part: the quantized one, or bf16 where it was left alone."""
        return self.name if getattr(self, part) != self.wide or self.name in DTYPE_BYTES else "bf16"


def of_dtype(dtype: str) -> Precision:
    """All weights in one type; mxfp4 is a type of routed experts only. InputError for a type that is not understood."""
    if dtype not in WEIGHT_BYTES:
        raise InputError(f"dtype {dtype!r}: expected one of {', '.join(WEIGHT_BYTES)}")
    size, wide = WEIGHT_BYTES[dtype], 4 if dtype == "fp32" else 2
    rest = wide if dtype == "mxfp4" else size
    return Precision(dtype, rest, rest, rest, size, rest, wide)


def of_checkpoint(config: Any, layers: int, where: str) -> Precision:
    """From the `quantization_config` of a config.json (or modelopt's hf_quant_config.json). layers: of the model; the
    one in the middle stands for all. InputError names what is not understood."""
    if not isinstance(config, dict):
        raise InputError(f"{where}: field quantization_config is {config!r}; expected an object with a quant_method")
    if "quantization" in config:
        config = {"quant_method": "modelopt", **config["quantization"]}
    method = str(config.get("quant_method") or ("modelopt" if "quant_algo" in config else None)).lower()
    if method not in _METHODS:
        raise InputError(f"{where}: quantization {method!r} is not understood (understood: {', '.join(_METHODS)})")
    for key in ("dynamic", "sparsity_config"):  # overrides by module, and weights of which half are not stored
        given = config.get(key)
        if given and not (isinstance(given, dict) and given.get("format") == "dense"):
            raise InputError(
                f"{where}: field quantization_config.{key} is not understood (bytes of weights would be wrong)"
            )
    try:
        name, size = _METHODS[method](config)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(
            f"{where}: quantization_config of {method!r} is not understood ({type(error).__name__}: {error})"
        ) from None
    taken = {part: size for part in PARTS if not _left_out(_left_alone(config), part, layers // 2)}
    if method == "mxfp4":
        taken = {"experts": size}
    sizes = {part: taken.get(part, 2) for part in PARTS}
    return replace(of_dtype("bf16"), name=name, kv=_kv(config, where), **sizes)


def _fp8(config: dict[str, Any]) -> tuple[str, float]:
    return ("fp8_block" if config.get("weight_block_size") else "fp8"), 1


def _int4(bits: Any, group: Any, zero_point: bool) -> tuple[str, float]:
    """A 16-bit scale per group, and a zero point as wide as a weight when there is one."""
    if bits not in (4, 8):
        raise ValueError(f"{bits} bits; expected 4 or 8")
    group = group if isinstance(group, int) and group > 0 else 10**9  # -1: one scale a column
    return f"int{bits}", bits / 8 + (2 + (bits / 8 if zero_point else 0)) / group


def _compressed(config: dict[str, Any]) -> tuple[str, float]:
    weights = [g["weights"] for g in config["config_groups"].values()]
    if any(w != weights[0] for w in weights[1:]):
        raise ValueError("groups of different weights")
    w = weights[0]
    bits, group = w["num_bits"], w.get("group_size")
    if w.get("type") == "float" and bits == 4:
        return ("nvfp4", WEIGHT_BYTES["nvfp4"]) if group == 16 else ("mxfp4", WEIGHT_BYTES["mxfp4"])
    if w.get("type") == "float" and bits == 8:
        return ("fp8_block" if w.get("strategy") == "block" else "fp8"), 1
    return _int4(bits, group, not w.get("symmetric", True))


def _modelopt(config: dict[str, Any]) -> tuple[str, float]:
    algorithms = {"FP8": "fp8", "FP8_PB_WO": "fp8_block", "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "MXFP8": "fp8"}
    algorithm = str(config["quant_algo"]).upper()
    if algorithm not in algorithms:
        raise ValueError(f"quant_algo {algorithm}; expected one of {', '.join(algorithms)}")
    name = algorithms[algorithm]
    return name, WEIGHT_BYTES[name]


def _bitsandbytes(config: dict[str, Any]) -> tuple[str, float]:
    if config.get("load_in_4bit") or config.get("_load_in_4bit"):
        return "int4", 0.5 + 1 / 64  # an 8-bit scale per 64 weights, scaled again
    return "int8", 1


_METHODS: dict[str, Any] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "compressed-tensors": _compressed,
    "awq": lambda c: _int4(c.get("bits", c.get("w_bit")), c.get("group_size", c.get("q_group_size")), True),
    "gptq": lambda c: _int4(c["bits"], c.get("group_size"), True),
    "mxfp4": lambda c: ("mxfp4", WEIGHT_BYTES["mxfp4"]),
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "bitsandbytes": _bitsandbytes,
}
_METHODS["awq_marlin"], _METHODS["gptq_marlin"] = _METHODS["awq"], _METHODS["gptq"]


def _kv(config: dict[str, Any], where: str) -> str | None:
    """The KV type that a checkpoint carries scales for."""
    scheme = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    if scheme is None or str(scheme).lower() == "none":
        return None
    if (isinstance(scheme, dict) and scheme.get("num_bits") == 8) or str(scheme).lower() in ("fp8", "fp8_e4m3"):
        return "fp8"
    raise InputError(f"{where}: KV cache quantization {scheme!r} is not understood (expected fp8)")


# -- which parts a checkpoint leaves in 16 bits -----------------------------------------------------------------------

_MODULES = {
    "attention": ("self_attn.q_proj", "self_attn.qkv_proj", "self_attn.q_b_proj", "self_attn.o_proj", "mixer.q_proj"),
    "linear": ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv", "linear_attn.out_proj", "mixer.in_proj"),
    "mlp": ("mlp.gate_proj", "mlp.gate_up_proj", "mlp.down_proj", "feed_forward.gate_proj", "mixer.up_proj"),
    "experts": (
        "mlp.experts.0.gate_proj",
        "mlp.experts.0.up_proj",
        "block_sparse_moe.experts.0.w1",
        "feed_forward.experts.gate_up_proj",
        "mixer.experts.0.up_proj",
    ),
    "shared": (
        "mlp.shared_experts.gate_proj",
        "mlp.shared_expert.gate_proj",
        "feed_forward.shared_expert.gate_proj",
        "mixer.shared_experts.up_proj",
    ),
}


def _left_alone(config: dict[str, Any]) -> list[str]:
    listed = [
        config.get(key) or []
        for key in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
    ]
    return [str(name).replace("language_model.", "") for names in listed for name in names]


def _left_out(patterns: list[str], part: str, layer: int) -> bool:
    names = [f"model.layers.{layer}.{module}" for module in _MODULES[part]]
    return any(_matches(pattern, name) for pattern in patterns for name in names)


def _matches(pattern: str, name: str) -> bool:
    """A regular expression (re:), a wildcard, or whole components of the module's name."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    if "*" in pattern:
        return fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, f"*{pattern}*" if "." in pattern else pattern)
    return f".{pattern}." in f".{name}."
