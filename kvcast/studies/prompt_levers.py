"""Changes of what the prompts of a mix are made of: the order of their layers, what changes in them, cache salts.

>>> order(Given(scenario, resolved, ()))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvcast.scenario.toml import inline
from kvcast.studies.change import Change, Given, Made
from sim.scenario import Scenario
from workloads.config import MixClass
from workloads.estimate import best_order
from workloads.mix import resolve

ANSWERS = "a check of the answers' quality"


# -- the prompts -------------------------------------------------------------------------------------------------------

ORDER = "prompt layers in the order global, project, session, dynamic"
TRACE = "a trace: its prompts are what they are"


def order(given: Given) -> Made:
    if given.scenario.workload.trace is not None:
        return TRACE
    return _classes(given, ORDER, _ordered, "layers", ANSWERS) or "the layers of every class are in that order"


def steady_layers(given: Given) -> Made:
    if given.scenario.workload.trace is not None:
        return TRACE
    alone = _classes(given, "no layer that shuffles, is redeployed or holds the time", _steady, "layers", ANSWERS)
    if not alone:
        return "no layer shuffles, is redeployed or holds the time"
    both = "both: layers in that order, and none that changes"
    ordered = _classes(given, ORDER, _ordered, "layers", ANSWERS)
    return alone + (_classes(given, both, lambda c: _ordered(_steady(c)), "layers", ANSWERS) if ordered else [])


def one_salt(given: Given) -> Made:
    if given.scenario.workload.trace is not None:
        return TRACE
    asks = "tenants can tell from latency what others sent"
    return (
        _classes(given, "one cache salt for all tenants", lambda c: replace(c, isolation=False), "isolation", asks)
        or "no class has tenants with a salt of their own"
    )


def _ordered(c: MixClass) -> MixClass:
    return replace(c, layers=best_order(c.layers))


def _steady(c: MixClass) -> MixClass:
    return replace(c, layers=tuple(replace(one, shuffle=0, redeploy_s=0.0, timestamp_s=0.0) for one in c.layers))


def _classes(given: Given, words: str, step: Callable[[MixClass], MixClass], key: str, asks_for: str) -> list[Change]:
    """Every class of the mix changed in this key; nothing where that changes none."""
    changed = with_classes(given.scenario, step)
    if changed is None:
        return []
    named = given.scenario.workload.class_  # a preset's classes are not in the scenario file: there is nothing to set
    classes = changed.workload.class_ if named else ()
    sets = tuple(f"workload.class.{c.name}.{key}={inline(getattr(c, key))}" for c in classes)
    return [Change(words, sets, changed, asks_for)]


def with_classes(scenario: Scenario, step: Callable[[MixClass], MixClass]) -> Scenario | None:
    """The scenario with every class of its mix changed; None where nothing changes."""
    mix = resolve(scenario.workload)
    changed = replace(mix, preset=None, class_=tuple(step(c) for c in mix.class_))
    return None if changed.class_ == mix.class_ else replace(scenario, workload=changed)
