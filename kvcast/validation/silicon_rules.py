"""From a measured row to the scenario that was run, by the rules of silicon.toml.

The one idea: a row's scenario is every rule that matches it, one over the other; nothing is decided elsewhere, so the
file says all that was assumed.

    >>> rules().scenario(row)      # the tables of a scenario file
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kvcast.validation.silicon_rows import Row

FILE = Path(__file__).parent / "silicon.toml"
FIELDS = (*(f.name for f in fields(Row)), "moe")
SECTIONS = ("client", "model", "hardware", "engine", "cache")
CLIENT = ("start", "first_wave", "prompts_per_slot", "shortest", "turnaround_s")
BURST = "burst"
RATE = 1e6
"""Sessions a second of a mix whose clock nobody reads: a place that is free decides."""


@dataclass(frozen=True)
class Group:
    """Rows by name, and the mean absolute errors aimed at."""

    name: str
    when: Mapping[str, Any]
    goal: Mapping[str, float]
    vendor: Mapping[str, float]  #: mean errors of the vendor's own estimator, where known

    def holds(self, row: Row) -> bool:
        return matches(self.when, row)


@dataclass(frozen=True)
class Rules:
    """The file."""

    models: Mapping[str, str]
    rule: Sequence[Mapping[str, Any]]
    groups: Sequence[Group]
    unknown: Sequence[Mapping[str, Any]]
    findings: Sequence[Mapping[str, str]]  #: what residuals were found to come from

    def vendor(self, name: str) -> Mapping[str, float]:
        """Of the group of this name."""
        return next((group.vendor for group in self.groups if group.name == name), {})

    def told(self, row: Row) -> Row:
        """The row with what is known of its protocol."""
        return replace(row, known=not any(matches(one["when"], row) for one in self.unknown))

    def merged(self, row: Row) -> dict[str, dict[str, Any]]:
        """Section -> key -> value of all rules that match, sums worked out."""
        found: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for rule in self.rule:
            if matches(rule["when"], row):
                for section in SECTIONS:
                    found[section].update(rule.get(section, {}))
        return {section: {key: number(value, row) for key, value in keys.items()} for section, keys in found.items()}

    def scenario(self, row: Row) -> dict[str, Any]:
        """The scenario file's tables."""
        found = self.merged(row)
        client = found["client"]
        if client["start"] != BURST or not client["first_wave"]:
            raise ValueError(f"{FILE.name}: start = {client['start']!r}, expected {BURST!r} with its first wave")
        one = {
            "name": "client",
            "share": 1.0,
            "layers": [{"name": "prompt", "tokens": _length(row.isl, client["shortest"])}],
            "output": _length(row.osl, client["shortest"]),
        }
        requests = row.concurrency * client["prompts_per_slot"]
        return {
            "name": row.id,
            "run": {"warmup_s": 0.0},
            "model": {"name": row.model, **found["model"]},
            "hardware": {
                "gpu": row.gpu,
                "tensor_parallel": row.tp,
                "attention_dp": row.dp,
                "expert_parallel": row.ep,
                **found["hardware"],
            },
            "engine": {"semantics": row.backend, **found["engine"]},
            "cache": found["cache"],
            "workload": {
                "loop": "concurrency",
                "concurrency": row.concurrency,
                "requests": requests,
                "turnaround_s": client["turnaround_s"],
                "rate": RATE,
                "duration_s": RATE,
                "class": [one],
            },
        }


def _length(tokens: int, shortest: float) -> dict[str, Any]:
    """Uniform from the shortest share to the whole, or fixed."""
    if shortest == 1:
        return {"kind": "fixed", "value": tokens}
    return {"kind": "uniform", "low": int(shortest * tokens), "high": tokens}


def matches(when: Mapping[str, Any], row: Row) -> bool:
    """Whether the row has every value, or one of each list."""
    return all(
        getattr(row, name) in value if isinstance(value, list) else getattr(row, name) == value
        for name, value in when.items()
    )


def number(value: Any, row: Row) -> Any:
    """A value as it stands, or the sum of the row's own that a table asks for."""
    if not isinstance(value, dict):
        return value
    of_row = {name: factor for name, factor in value.items() if name in FIELDS}
    total = value.get("plus", 0) + sum(factor * getattr(row, name) for name, factor in of_row.items())
    step = value.get("multiple_of", 1)
    return max(total // step * step + (step if total % step else 0), value.get("at_least", 1))


@functools.cache
def rules(path: Path = FILE) -> Rules:
    """The committed rules, checked: a field that no row has, or a section that no scenario has, is a mistake."""
    doc = tomllib.loads(path.read_text(encoding="utf-8"))
    for one in (*doc["rule"], *doc["group"], *doc["unknown"]):
        for name in one["when"]:
            if name not in FIELDS:
                raise ValueError(f"{path.name}: when = {{{name} = ...}}, expected one of {', '.join(FIELDS)}")
    for rule in doc["rule"]:
        odd = [name for name in rule if name not in ("why", "when", *SECTIONS)]
        odd += [name for name in rule.get("client", {}) if name not in CLIENT]
        if odd:
            raise ValueError(f"{path.name}: {', '.join(odd)} in a rule, expected {', '.join((*SECTIONS, *CLIENT))}")
    groups = [Group(one["name"], one["when"], one.get("goal", {}), one.get("vendor", {})) for one in doc["group"]]
    return Rules(doc["models"], doc["rule"], groups, doc["unknown"], doc["finding"])
