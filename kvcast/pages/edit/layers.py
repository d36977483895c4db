"""The layers of a class's prompts: how long they are, which of them can be reused, and edits of them.

The one idea: everything before the first text that is new in every request is read by the cache, whatever its scope,
and nothing behind it is; so an edit shows at once what it does to the reusable prefix.

    >>> [part.name for part in parts(load_preset("coding-agent").class_[0]) if part.reusable]
    ['tools', 'system', 'repository', 'history']
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from kvcast.pages.mix import unused
from workloads import dists
from workloads.columns import SCOPES
from workloads.config import Dist, Layer, MixClass, WorkloadConfig
from workloads.errors import InputError
from workloads.estimate import after_history, best_order, order_cost

SCOPE_NAMES = SCOPES[1:]
HISTORY = "history"
GENERATED = 2000  #: requests that `cost` generates and reads


@dataclass(frozen=True)
class Part:
    """A stretch of the average request's prompt, in the order the model reads it."""

    name: str
    scope: str  #: global, project, session or dynamic
    tokens: float  #: mean over the class's requests
    reusable: bool  #: an earlier request may have left it in the cache


def parts(c: MixClass) -> list[Part]:
    """The average prompt of a class: its layers, the session's history, and the turn's own input at the end.

    Means over requests, in closed form: a session of T turns has T (T - 1) / 2 earlier exchanges in its prompts.
    """
    message = c.layers[-1] if c.layers[-1].scope == "dynamic" else None
    found, intact = [], True
    for layer in c.layers[:-1] if message else c.layers:
        intact = intact and layer.scope != "dynamic"
        found.append(Part(layer.name, layer.scope, dists.moments(layer.tokens)[0], intact))
    turns, turns_squared = dists.moments(c.turns)
    first = dists.moments(message.tokens)[0] if message else 0.0
    later = dists.moments(c.turn_input)[0] if c.turn_input else first
    exchanges = (turns_squared - turns) / 2 / turns
    own = first / turns + later * (1 - 1 / turns)
    if exchanges > 0:
        found.append(
            Part(HISTORY, "session", max(first + exchanges * (later + dists.moments(c.output)[0]) - own, 0.0), intact)
        )
    if own > 0:
        found.append(Part(message.name if message else "new input", "dynamic", own, False))
    return found


@functools.lru_cache(maxsize=256)
def cost(c: MixClass) -> dict[str, Any]:
    """What the order of a class's layers costs (workloads.estimate.order_cost), kept: a page asks again in every
    pass."""
    return order_cost(c, requests=GENERATED)


def first_turn_only(c: MixClass) -> str:
    """The name of the layer that later turns replace by their own input; empty when there is none."""
    last = c.layers[-1]
    return last.name if last.scope == "dynamic" and c.turn_input is not None and dists.can_exceed(c.turns, 1) else ""


# -- edits: WorkloadConfig -> WorkloadConfig
# -----------------------------------------------------------------------------


def of(config: WorkloadConfig, name: str) -> MixClass:
    found = [c for c in config.class_ if c.name == name]
    if not found:
        raise InputError(f"the mix has no class {name!r} any more")
    return found[0]


def with_layers(config: WorkloadConfig, name: str, layers: tuple[Layer, ...]) -> WorkloadConfig:
    """The mix with other layers for one class."""
    return replace(
        config, preset=None, class_=tuple(replace(c, layers=layers) if c.name == name else c for c in config.class_)
    )


def moved(config: WorkloadConfig, name: str, at: int, by: int) -> WorkloadConfig:
    """The layer at this place, `by` places later (earlier when negative); at the ends it stays."""
    layers = list(of(config, name).layers)
    layers.insert(min(max(at + by, 0), len(layers) - 1), layers.pop(at))
    return with_layers(config, name, tuple(layers))


def in_best_order(config: WorkloadConfig, name: str) -> WorkloadConfig:
    """Widest reuse first: global, project, session, dynamic."""
    return with_layers(config, name, best_order(of(config, name).layers))


def in_message(config: WorkloadConfig, name: str) -> WorkloadConfig:
    """What is new in every request after the history, inside the message; as it was where that is so already."""
    return replace(
        config, preset=None, class_=tuple((after_history(c) or c) if c.name == name else c for c in config.class_)
    )


def changed(config: WorkloadConfig, name: str, at: int, /, **values: Any) -> WorkloadConfig:
    """The layer at this place with other values. What a scope does not have (items, churn) goes with the scope."""
    layers = list(of(config, name).layers)
    layer = replace(layers[at], **values)
    if layer.scope != "project":
        layer = replace(layer, items=1, zipf=0.0)
    if layer.scope == "dynamic":
        layer = replace(layer, shuffle=0, redeploy_s=0.0, timestamp_s=0.0)
    if layer.scope not in ("global", "project"):
        layer = replace(layer, share="")
    layers[at] = layer
    return with_layers(config, name, tuple(layers))


def resized(config: WorkloadConfig, name: str, at: int, tokens: float) -> WorkloadConfig:
    """The layer with this mean length, the shape of its distribution kept."""
    return changed(config, name, at, tokens=dists.scaled(of(config, name).layers[at].tokens, tokens))


def without(config: WorkloadConfig, name: str, at: int) -> WorkloadConfig:
    """The mix without the layer at this place. Raises InputError for a class's only one."""
    layers = list(of(config, name).layers)
    if len(layers) == 1:
        raise InputError(f"{name}: its only layer cannot go; expected at least one")
    layers.pop(at)
    return with_layers(config, name, tuple(layers))


def added(config: WorkloadConfig, name: str, scope: str, tokens: float) -> WorkloadConfig:
    """One more layer, behind those of its scope and of wider ones, under a name of its own."""
    layers = of(config, name).layers
    label = unused(scope if scope != "dynamic" else "extra", [layer.name for layer in layers])
    at = (
        sum(SCOPES.index(layer.scope) <= SCOPES.index(scope) for layer in layers)
        if scope != "dynamic"
        else max(len(layers) - 1, 0)
    )
    return with_layers(
        config, name, (*layers[:at], Layer(name=label, scope=scope, tokens=Dist(value=tokens)), *layers[at:])
    )
