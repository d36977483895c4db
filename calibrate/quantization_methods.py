"""Quantization methods of published checkpoints: what each one's fields say of linear layers, or a line that names one.

The one idea: whatever a method calls things, it comes to `Schemes`: one scheme for all linear layers and patterns of
module names with a scheme of their own. What is not understood is refused with what says it instead.

    >>> METHODS["gptq"](Given({"bits": 4, "group_size": 128}, "config.json")).default
    Scheme(name='int4', size=0.51953125)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from calibrate.config_fields import short
from calibrate.precision import PARTS, WEIGHT_BYTES
from workloads.errors import InputError

FIELD = "quantization_config"
INSTEAD = "a copy of the file without that field, model.dtype and hardware.weights_gib say it instead"


class Scheme(NamedTuple):
    """name: the type as an operator table calls it; size: bytes of a weight, scales and zero points included."""

    name: str
    size: float


FP8, FP8_BLOCK, MXFP4, NVFP4 = (Scheme(name, WEIGHT_BYTES[name]) for name in ("fp8", "fp8_block", "mxfp4", "nvfp4"))
INT8, NVFP4_WEIGHTS = Scheme("int8", 1), Scheme("int4", NVFP4.size)
"""Computed on 16-bit units: also fp8, and nvfp4, weights without such activations."""


@dataclass(frozen=True)
class Schemes:
    """default: of every linear layer that no pattern names. patterns: module names, the first that matches decides;
    None leaves a module in 16 bits. parts: all that is quantized at all. head: the LM head's, where the method
    quantizes it without naming it."""

    default: Scheme | None
    patterns: tuple[tuple[str, Scheme | None], ...] = ()
    parts: tuple[str, ...] = PARTS
    head: Scheme | None = None


class Given:
    """A quantization_config, or an object in it, with checks; whatever is wrong is a line that names file and field."""

    def __init__(self, config: Any, where: str, field: str = FIELD) -> None:
        self.where, self.field = where, field
        if not isinstance(config, dict):
            raise InputError(f"{where}: field {field} is {short(config)}; expected an object with a quant_method")
        self.config: dict[str, Any] = config

    def get(self, key: str) -> Any:
        return self.config.get(key)

    def wrong(self, key: str, expected: str) -> InputError:
        return InputError(f"{self.where}: field {self.field}.{key} is {short(self.get(key))}; expected {expected}")

    def not_understood(self, key: str) -> InputError:
        value = short(self.get(key))
        return InputError(f"{self.where}: field {self.field}.{key} = {value} is not understood; {INSTEAD}")

    def inner(self, key: str) -> Given:
        if not isinstance(self.get(key), dict):
            raise self.wrong(key, "an object")
        return Given(self.get(key), self.where, f"{self.field}.{key}")

    def word(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "a word")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        if value is not None and type(value) is not bool:
            raise self.wrong(key, "true or false")
        return default if value is None else value

    def bits(self, *keys: str, known: tuple[int, ...] = (4, 8)) -> int:
        key = self.first(*keys)
        value = self.get(key)
        if type(value) is not int or value not in known:
            raise self.wrong(key, " or ".join(map(str, known)) + f" bits, or {INSTEAD}")
        return value

    def group(self, *keys: str) -> int:
        """Weights that share a scale: -1, null or absent for a whole column."""
        key = self.first(*keys)
        value = self.get(key)
        if value is None or (type(value) is int and value == -1):
            return 0
        if type(value) is not int or not 1 <= value <= 65536:
            raise self.wrong(key, "-1 or a whole number of at least 1")
        return value

    def first(self, *keys: str) -> str:
        """The first of these fields that is there."""
        return next((key for key in keys if self.get(key) is not None), keys[0])

    def names(self, *keys: str) -> list[str]:
        """Modules that any of these fields lists."""
        found: list[str] = []
        for key in keys:
            value = self.get(key)
            if value is None:
                continue
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise self.wrong(key, "a list of module names")
            found += value
        return found


LEFT = (
    *("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules"),
    *("exclude", "exclude_layers"),
)
"""Fields that list modules which stay in 16 bits, by method."""


# -- methods ----------------------------------------------------------------------------------------------------------


def _int(bits: int, group: int, zero_points: bool) -> Scheme:
    """A 16-bit scale per group, and a zero point as wide as a weight when there is one."""
    return Scheme(f"int{bits}", bits / 8 + ((2 + (bits / 8 if zero_points else 0)) / group if group else 0))


def _fp8(q: Given) -> Schemes:
    block = q.get("weight_block_size")
    if block is None:
        return Schemes(FP8)
    if not isinstance(block, list) or len(block) != 2 or any(type(n) is not int or n < 1 for n in block):
        raise q.wrong("weight_block_size", "two whole numbers of at least 1, rows and columns")
    return Schemes(FP8_BLOCK)


def _awq(q: Given) -> Schemes:
    return Schemes(_int(q.bits("bits", "w_bit"), q.group("group_size", "q_group_size"), q.flag("zero_point", True)))


def _gptq(q: Given) -> Schemes:
    """`dynamic`: regular expressions of modules that are left (-:) or have a size of their own (+: or nothing)."""
    default = _int(q.bits("bits"), q.group("group_size"), True)
    patterns: list[tuple[str, Scheme | None]] = []
    own = q.inner("dynamic") if q.get("dynamic") is not None else None
    for pattern in own.config if own else ():
        if pattern.startswith("-:"):
            patterns.append((f"re:{pattern[2:]}", None))
            continue
        assert own is not None
        one = own.inner(pattern)
        bits = one.bits("bits") if one.get("bits") is not None else q.bits("bits")
        group = one.group("group_size") if "group_size" in one.config else q.group("group_size")
        patterns.append((f"re:{pattern.removeprefix('+:')}", _int(bits, group, True)))
    head = default if q.flag("lm_head") else None
    only = _inside(q)
    if not only:
        return Schemes(default, tuple(patterns), head=head)
    return Schemes(None, (*patterns, *((name, default) for name in only)), head=head)


def _inside(q: Given) -> list[str]:
    """The modules of a layer that are quantized at all, where a file lists them."""
    listed = q.get("modules_in_block_to_quantize")
    if listed is None:
        return []
    flat = [n for one in listed for n in (one if isinstance(one, list) else [one])] if isinstance(listed, list) else []
    if not flat or not all(isinstance(name, str) for name in flat):
        raise q.wrong("modules_in_block_to_quantize", "a list of module names, or of lists of them")
    return flat


def _auto_round(q: Given) -> Schemes:
    kind = q.word("data_type") or "int"
    if kind != "int":
        if q.bits("bits") != 4 or not kind.startswith(("mx_fp", "mxfp", "nv_fp", "nvfp")):
            raise q.not_understood("data_type")
        return Schemes(MXFP4 if kind.startswith("mx") else NVFP4)
    default = _int(q.bits("bits"), q.group("group_size"), not q.flag("sym", True))
    patterns: list[tuple[str, Scheme | None]] = []
    own = q.inner("extra_config") if q.get("extra_config") is not None else None
    for name in own.config if own else ():
        assert own is not None
        one = own.inner(name)
        bits = one.bits("bits", known=(4, 8, 16, 32)) if one.get("bits") is not None else q.bits("bits")
        group = one.group("group_size") if "group_size" in one.config else q.group("group_size")
        patterns.append((name, None if bits >= 16 else _int(bits, group, not one.flag("sym", True))))
    return Schemes(default, tuple(patterns))


def _compressed(q: Given) -> Schemes:
    """Groups of targets: module names and regular expressions before the class Linear, which is everything else."""
    if q.get("sparsity_config") is not None and q.inner("sparsity_config").get("format") not in (None, "dense"):
        raise q.not_understood("sparsity_config")
    if q.word("format") == "marlin-24":
        raise q.not_understood("format")
    groups = q.inner("config_groups")
    default: Scheme | None = None
    patterns: list[tuple[str, Scheme | None]] = []
    for name in groups.config:
        group = groups.inner(name)
        if group.get("weights") is None:
            continue  # activations or KV of an attention only
        scheme = _weights(group.inner("weights"), weights_only=group.config.get("input_activations", "") is None)
        for target in group.names("targets") or ["Linear"]:
            if target == "Linear":
                default = scheme
            elif target.startswith("re:") or "." in target or target.islower():
                patterns.append((target, scheme))
            else:
                raise group.not_understood("targets")
    if default is None and not patterns:
        raise q.wrong("config_groups", "at least one group with weights")
    return Schemes(default, tuple(patterns))


def _weights(w: Given, weights_only: bool) -> Scheme:
    kind = w.word("type") or "int"
    bits, group = w.bits("num_bits"), w.group("group_size")
    if kind not in ("int", "float"):
        raise w.wrong("type", "int or float")
    if kind == "int":
        return _int(bits, group, not w.flag("symmetric", True))
    if bits == 4 and group == 16:
        return NVFP4_WEIGHTS if weights_only else NVFP4
    if bits == 4:
        return MXFP4
    if w.word("strategy") == "block":
        return FP8_BLOCK
    return INT8 if weights_only else FP8


AWQ = _int(4, 128, True)
ALGORITHMS = {
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "FP8_PB_WO": FP8_BLOCK,
    "MXFP8": Scheme("fp8", 1 + 1 / 32),
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4_WEIGHTS,
    "FP8_BLOCK_SCALES": FP8_BLOCK,
    "W4A16_AWQ": AWQ,
    "W4A8_AWQ": AWQ,
    "W4A16_MXFP4": MXFP4,
    "W4A8_MXFP4_FP8": MXFP4,
    "W4A8_MXFP4_MXFP8": MXFP4,
}
UNQUANTIZED = ("UNQUANTIZED", "NONE")


def _modelopt(q: Given) -> Schemes:
    algorithm = (q.word("quant_algo") or "").upper()
    if algorithm != "MIXED_PRECISION":
        return Schemes(_algorithm(q))
    if q.get("quantized_layers") is None and q.get("config_groups") is not None:
        return _compressed(q)
    layers = q.inner("quantized_layers")
    own = {name: layers.inner(name) for name in layers.config}
    bare = {name for name, one in own.items() if (one.word("quant_algo") or "").upper() in UNQUANTIZED}
    return Schemes(None, tuple((name, None if name in bare else _algorithm(one)) for name, one in own.items()))


def _algorithm(q: Given) -> Scheme:
    scheme = ALGORITHMS.get((q.word("quant_algo") or "").upper())
    if scheme is None:
        raise q.wrong("quant_algo", f"one of {', '.join(ALGORITHMS)}, MIXED_PRECISION; or {INSTEAD}")
    group = q.group("group_size")
    return _int(4, group, True) if scheme is AWQ and group else scheme


def _bitsandbytes(q: Given) -> Schemes:
    """A 4-bit weight has a 32-bit scale per 64, or an 8-bit one that is scaled again."""
    if q.flag("load_in_4bit") or q.flag("_load_in_4bit"):
        twice = q.flag("bnb_4bit_use_double_quant", True)
        return Schemes(Scheme("int4", 0.5 + (1 if twice else 4) / 64))
    if q.flag("load_in_8bit") or q.flag("_load_in_8bit"):
        return Schemes(INT8)
    raise q.wrong("load_in_4bit", "load_in_4bit or load_in_8bit true")


TORCHAO = {
    "int4weightonly": "int4",
    "int8dynamicactivationint4weight": "int4",
    "float8dynamicactivationint4weight": "int4",
    "int8weightonly": "int8",
    "int8dynamicactivationint8weight": "int8",
    "float8weightonly": "int8",
    "float8dynamicactivationfloat8weight": "fp8",
}
"""torchao's configurations, without underscores and the word Config -> the type that they are priced as."""


def _torchao(q: Given) -> Schemes:
    if q.flag("include_input_output_embeddings"):
        raise q.not_understood("include_input_output_embeddings")
    given = q.get("quant_type")
    if isinstance(given, dict):
        one = q.inner("quant_type").inner("default")
        kind, sizes = one.word("_type"), one.inner("_data") if one.get("_data") is not None else one
    else:
        kind = q.word("quant_type")
        sizes = q.inner("quant_type_kwargs") if q.get("quant_type_kwargs") is not None else q
    name = TORCHAO.get((kind or "").replace("_", "").lower().removesuffix("config"))
    if name is None:
        raise q.not_understood("quant_type")
    if name == "int4":
        return Schemes(_int(4, sizes.group("group_size") or 128, True))
    return Schemes(FP8 if name == "fp8" else INT8)


QUARK = {
    **dict.fromkeys(("fp8_e4m3", "fp8_e5m2"), FP8),
    "int8": INT8,
    **dict.fromkeys(("fp4", "fp4_e2m1", "mxfp4", "mx"), MXFP4),
}


def _quark(q: Given) -> Schemes:
    """AMD's: one scheme for all, and schemes by wildcard."""
    patterns: list[tuple[str, Scheme | None]] = []
    own = q.inner("layer_quant_config") if q.get("layer_quant_config") is not None else None
    for name in own.config if own else ():
        assert own is not None
        patterns.append((name if "*" in name else f"*{name}*", _quark_weight(own.inner(name))))
    return Schemes(_quark_weight(q.inner("global_quant_config")), tuple(patterns))


def _quark_weight(q: Given) -> Scheme | None:
    if q.get("weight") is None:
        return None
    weight = q.inner("weight")
    dtype = (weight.word("dtype") or "").lower()
    if dtype in ("int4", "uint4"):
        return _int(4, weight.group("group_size"), dtype == "uint4")
    if dtype not in QUARK:
        raise weight.wrong("dtype", f"one of {', '.join(QUARK)}, int4 or uint4; or {INSTEAD}")
    return QUARK[dtype]


METHODS: dict[str, Any] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "compressed-tensors": _compressed,
    "awq": _awq,
    "awq_marlin": _awq,
    "gptq": _gptq,
    "gptq_marlin": _gptq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "mxfp4": lambda _: Schemes(MXFP4, parts=("experts",)),
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "torchao": _torchao,
    "quark": _quark,
}
