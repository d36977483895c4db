"""One change of a scenario, the --set values that make it, and what it costs.

>>> Given(scenario, resolved, ()).change("prefix cache on", {"cache.enabled": True})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvcast.scenario.toml import inline
from sim.scenario import Scenario

FREE, ENGINE, QUALITY, HARDWARE = COSTS = ("free", "engine", "quality", "hardware")
"""A setting; an engine that can; something for users to accept; memory or GPUs. In order, the dearest last."""


@dataclass(frozen=True)
class Change:
    """One thing to do differently. sets: the --set values that make it; the classes of a preset have none."""

    words: str
    sets: tuple[str, ...]
    scenario: Scenario
    asks_for: str = ""  #: what the simulation does not charge
    costs: str = FREE

    def and_then(self, other: Change) -> Change:
        """Both; other was made of this one's scenario."""
        asks = "; ".join(dict.fromkeys(one for one in (self.asks_for, other.asks_for) if one))
        costs = max(self.costs, other.costs, key=COSTS.index)
        return Change(f"{self.words}, and {other.words}", (*self.sets, *other.sets), other.scenario, asks, costs)


@dataclass(frozen=True)
class Given:
    """What a lever looks at. resolved: the scenario with nothing left open; it may be the scenario itself."""

    scenario: Scenario
    resolved: Scenario
    policies: Sequence[str]

    def change(self, words: str, values: Mapping[str, Any], asks_for: str = "") -> Change:
        """With other values of keys such as "cache.policy"."""
        changed = self.scenario
        for key, value in values.items():
            section, name = key.split(".")
            changed = replace(changed, **{section: replace(getattr(changed, section), **{name: value})})
        sets = (f"{key}={value if isinstance(value, str) else inline(value)}" for key, value in values.items())
        return Change(words, tuple(sets), changed, asks_for)


Made = list[Change] | str
"""Changes, or the one-line reason why there are none."""
