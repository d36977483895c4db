"""A server of one's own whose steps are not the profile's: one factor for attention, one for everything else.

The one idea: a measured server differs from a profile by its clocks, its kernels' version and its compiler, which move
whole kinds of operators; so a profile's points are multiplied by two numbers, and nothing else about it changes. Host
time is no part of either: it has keys of its own.

    factored(profile, Factors(dense=1.06, attention=0.97))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from calibrate.host import OPERATOR
from calibrate.profile import DeviceProfile

DENSE, ATTENTION = ("dense", "per_sequence", "all_ranks"), ("prefill_attention", "decode_attention", "mixed_attention")
"""Tables of a profile's points by what multiplies them."""


@dataclass(frozen=True)
class Factors:
    """How many times the profile's seconds. dense: everything but attention."""

    dense: float = 1.0
    attention: float = 1.0

    @property
    def words(self) -> str:
        return f"{self.dense:g} times the profile's seconds, attention {self.attention:g} times"


PLAIN = Factors()


def factored(profile: DeviceProfile, factors: Factors) -> DeviceProfile:
    """The profile with its points multiplied; the same object for factors of 1."""
    if factors == PLAIN:
        return profile
    scaled = _roofline if profile.kind == "roofline" else _tables
    return replace(profile, points={**profile.points, **scaled(profile.points, factors)})


def _tables(points: dict[str, Any], factors: Factors) -> dict[str, Any]:
    """Every time of a table is its number times `repeat`."""
    found: dict[str, Any] = {
        name: [_times(op, factors.dense) for op in points[name]] for name in DENSE if name in points
    }
    return found | {name: _times(points[name], factors.attention) for name in ATTENTION if points.get(name)}


def _times(table: dict[str, Any], factor: float) -> dict[str, Any]:
    if table.get("name") == OPERATOR:  # host time that was measured with the GPU's
        return table
    return {**table, "repeat": table["repeat"] * factor}


def _roofline(points: dict[str, Any], factors: Factors) -> dict[str, Any]:
    """Assumed efficiencies; the latency of an all-reduce stays."""
    return {
        "mfu": points["mfu"] / factors.dense,
        "memory_efficiency": points["memory_efficiency"] / factors.dense,
        "layer_s": points["layer_s"] * factors.dense,
        "link_bandwidth": points["link_bandwidth"] / factors.dense,
        "attention_mfu": points["attention_mfu"] / factors.attention,
        "kv_memory_efficiency": points["memory_efficiency"] / factors.attention,
    }
