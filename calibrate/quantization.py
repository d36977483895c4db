"""A checkpoint's quantization_config, asked of a model's parts: bytes and types by layer, and what is left alone.

The one idea: a method is one scheme for all linear layers, and patterns of module names with a scheme of their own or
none (`calibrate.quantization_methods`). A part is asked by the names of its modules, layer by layer.

    >>> of_checkpoint({"quant_method": "mxfp4"}, 36, "config.json").experts
    0.53125
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from calibrate.config_fields import short
from calibrate.precision import PARTS, Precision, of_dtype
from calibrate.quantization_methods import FIELD, INSTEAD, LEFT, METHODS, Given, Scheme, Schemes
from workloads.errors import InputError

# -- a model's parts --------------------------------------------------------------------------------------------------


def of_checkpoint(config: Any, layers: int | Mapping[str, Sequence[int]], where: str) -> Precision:
    """From the `quantization_config` of a config.json (or modelopt's hf_quant_config.json). layers: of the model, or
    for every part (`precision.PARTS`) those that have it. A part's size is the mean over its layers. InputError names
    the field that is not understood, and what says it instead."""
    q = Given(config, where)
    if "quantization" in q.config:
        q = Given({"quant_method": "modelopt", **q.inner("quantization").config}, where)
    method = q.get("quant_method") if q.get("quant_method") is not None else _unnamed(q.config)
    if not isinstance(method, str) or method.lower() not in METHODS:
        understood = f"understood: {', '.join(METHODS)}"
        raise InputError(f"{where}: {FIELD}: quantization {short(method)} is not understood ({understood}); {INSTEAD}")
    schemes: Schemes = METHODS[method.lower()](q)
    left = [(name, None) for name in q.names(*LEFT)]
    names = _Names([*left, *schemes.patterns], where)
    found = {part: [names.scheme(part, layer, schemes) for layer in _layers_of(part, layers)] for part in PARTS}
    head = names.head() or schemes.head
    return replace(_precision(found, _kv(q)), head=head.size if head else None)


def _unnamed(config: dict[str, Any]) -> str | None:
    return "modelopt" if "quant_algo" in config else "compressed-tensors" if "config_groups" in config else None


def _layers_of(part: str, layers: int | Mapping[str, Sequence[int]]) -> Sequence[int]:
    return range(layers) if isinstance(layers, int) else layers.get(part, ())


HEAVIEST = ("experts", "mlp", "attention", "linear", "shared")
"""Parts, the one first whose type speaks for a model."""


def _precision(found: Mapping[str, Sequence[Scheme | None]], kv: str | None) -> Precision:
    """Bytes by part, and what most layers of each part are in."""
    wide = of_dtype("bf16")
    most = {part: Counter(one.name if one else "bf16" for one in schemes) for part, schemes in found.items()}
    types = {part: count.most_common(1)[0][0] for part, count in most.items() if count}
    name = next((types[part] for part in HEAVIEST if types.get(part, "bf16") != "bf16"), "bf16")
    sizes: dict[str, Any] = {
        part: sum(one.size if one else wide.wide for one in schemes) / len(schemes) if schemes else wide.wide
        for part, schemes in found.items()
    }
    others = tuple((part, kind) for part, kind in types.items() if kind != name)
    return replace(wide, name=name, kv=kv, others=others, **sizes)


def _kv(q: Given) -> str | None:
    """The KV type that a checkpoint carries scales for."""
    key = q.first("kv_cache_scheme", "kv_cache_quant_algo")
    scheme = q.get(key)
    if scheme is None or (isinstance(scheme, str) and scheme.lower() == "none"):
        return None
    eight = isinstance(scheme, dict) and scheme.get("num_bits") == 8 and scheme.get("type", "float") == "float"
    if eight or (isinstance(scheme, str) and scheme.lower() in ("fp8", "fp8_e4m3")):
        return "fp8"
    raise InputError(
        f"{q.where}: {q.field}.{key}: KV cache quantization {short(scheme)} is not understood (expected fp8)"
    )


# -- module names -----------------------------------------------------------------------------------------------------

MODULES = {
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
"""What families call the modules of a part: a pattern that matches one of them means the part."""
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")


class _Names:
    """Patterns of module names, asked layer by layer; those that name one layer are only asked for it."""

    def __init__(self, patterns: Sequence[tuple[str, Scheme | None]], where: str) -> None:
        self.where = where
        self.general: list[_Rule] = []
        self.of_layer: dict[int, list[_Rule]] = {}
        for i, (pattern, scheme) in enumerate(patterns):
            plain = (
                pattern.replace("language_model.", "").replace(r"language_model\.", "").replace("backbone.", "model.")
            )
            layer = None if plain.startswith("re:") else _LAYER.search(plain)
            rules = self.of_layer.setdefault(int(layer[1]), []) if layer else self.general
            rules.append(_Rule(i, plain, self._matcher(plain), scheme))

    def scheme(self, part: str, layer: int, schemes: Schemes) -> Scheme | None:
        """What a part is in: nothing when one of its modules is left alone, else the widest of its modules' types."""
        if part not in schemes.parts:
            return None
        asked = sorted([*self.general, *self.of_layer.get(layer, ())], key=lambda rule: rule.place)
        named = [self._first(asked, f"model.layers.{layer}.{module}") for module in MODULES[part]]
        own = [one for one in named if one is not _NOBODY]
        if None in own:
            return None
        return max((one for one in own if isinstance(one, Scheme)), key=lambda s: s.size, default=schemes.default)

    def head(self) -> Scheme | None:
        """What the LM head is in, where it is named: engines leave it alone otherwise."""
        named = (rule.scheme for rule in sorted(self.general) if rule.name.endswith("lm_head"))
        return next(named, None)

    def _first(self, asked: Sequence[_Rule], name: str) -> Scheme | object | None:
        return next((rule.scheme for rule in asked if rule.matches(name)), _NOBODY)

    def _matcher(self, pattern: str) -> Callable[[str], Any]:
        """A regular expression (re:), a wildcard, or whole components of the module's name."""
        try:
            if pattern.startswith("re:"):
                return re.compile(pattern[3:]).match
            if "*" in pattern:
                loose = f"*{pattern}*" if "." in pattern else pattern
                return re.compile(f"{fnmatch.translate(pattern)}|{fnmatch.translate(loose)}").match
        except (re.error, OverflowError, RecursionError) as error:
            what = f"pattern {short(pattern)} is no regular expression ({error})"
            raise InputError(f"{self.where}: {FIELD}: {what}") from None
        return lambda name: f".{pattern}." in f".{name}."


class _Rule(NamedTuple):
    place: int  #: among all patterns: the first that matches decides
    name: str
    matches: Callable[[str], Any]
    scheme: Scheme | None


_NOBODY = object()
"""No pattern names a module."""
