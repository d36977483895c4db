"""What a server may have otherwise than its scenario: a row a parameter.

The one idea: a parameter is a scenario key on an axis on which a difference means the same everywhere (the logarithm of
a factor, the milliseconds of a time), with a step that is small and a width that is all that is known of it before
anything is measured. A parameter that data leave more open than that is not fitted.

    >>> PARAMETERS[0].axis(scenario)
    0.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sim.scenario import Scenario


def _same(value: Any) -> float:
    return float(value or 0.0)


def _log(value: Any) -> float:
    return math.log(value)


def _turn_ms(rate: Any) -> float:
    return 1e3 / rate if rate else 0.0


def _rate(turn_ms: float) -> float | None:
    return 1e3 / turn_ms if turn_ms > 1e-3 else None


@dataclass(frozen=True)
class Parameter:
    """A key and its axis."""

    key: str
    words: str
    part: str  #: of a request's time that it makes longer
    step: float  #: on the axis: a small change, for a derivative
    wide: float  #: on the axis: half the width of what one would believe unmeasured
    unit: str = ""
    onto: Callable[[Any], float] = _same  #: from the key's value to the axis
    back: Callable[[float], Any] = _same
    least: float = 0.0  #: on the axis

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]

    def value(self, scenario: Scenario) -> Any:
        return getattr(getattr(scenario, self.section), self.name)

    def axis(self, scenario: Scenario) -> float:
        """Where a scenario with nothing left open stands."""
        return self.onto(self.value(scenario))

    def at(self, axis: float) -> Any:
        """The key's value at a place of the axis, in the digits that a file shows."""
        value = self.back(max(axis, self.least))
        return float(f"{value:.6g}") if isinstance(value, float) else value


DENSE = Parameter(
    "hardware.dense_factor",
    "everything of a step but attention, times the profile's",
    "compute",
    0.04,
    0.35,
    onto=_log,
    back=math.exp,
    least=math.log(0.05),
)
ATTENTION = replace(
    DENSE, key="hardware.attention_factor", words="attention, times the profile's", part="attention", step=0.1, wide=0.7
)
HOST_STEP = Parameter("engine.host_step_ms", "host time of every step", "host", 0.4, 4.0, "ms")
HOST_SEQUENCE = Parameter("engine.host_sequence_us", "host time of every sequence of a step", "host", 5.0, 60.0, "us")
CONSTANT = Parameter("engine.frontend_ms", "front end, of every request", "front end", 3.0, 30.0, "ms")
PROMPT_TOKEN = Parameter(
    "engine.frontend_us_per_prompt_token", "front end, of every prompt token", "front end", 3.0, 20.0, "us"
)
OUTPUT_TOKEN = Parameter(
    "engine.frontend_us_per_output_token", "front end, of every output token of anybody", "front end", 5.0, 50.0, "us"
)
RATE = Parameter(
    "engine.frontend_requests_per_s",
    "front end, requests a second that one worker takes",
    "front end",
    0.5,
    5.0,
    "requests/s",
    onto=_turn_ms,
    back=_rate,
)
KV = Parameter(
    "engine.kv_blocks", "KV blocks", "KV", 0.05, 0.3, "blocks", onto=_log, back=lambda x: max(round(math.exp(x)), 1)
)
PARAMETERS = (DENSE, ATTENTION, HOST_STEP, HOST_SEQUENCE, CONSTANT, PROMPT_TOKEN, OUTPUT_TOKEN, RATE, KV)
FRONT_END = (CONSTANT, PROMPT_TOKEN, OUTPUT_TOKEN, RATE)


def with_values(scenario: Scenario, values: Mapping[str, Any]) -> Scenario:
    """The scenario with other values of keys such as "engine.host_step_ms"."""
    for key, value in values.items():
        section, _, name = key.partition(".")
        scenario = replace(scenario, **{section: replace(getattr(scenario, section), **{name: value})})
    return scenario
