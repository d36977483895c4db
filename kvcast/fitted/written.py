"""A fitted scenario as a file: the keys that were fitted, and in comments where they come from.

>>> as_toml(fitted, scenario, "kvcast fit-server R.json", "2026-11-30")
"""

from __future__ import annotations

from typing import Any

from kvcast.fitted.server import Fitted
from kvcast.scenario.toml import dumps, literal_of
from kvcast.text import percent
from sim.scenario import Scenario
from workloads.errors import on_one_line


def as_toml(fitted: Fitted, given: Scenario, version: str, command: str, date: str) -> str:
    """The scenario with the fitted keys, as `kvcast run` takes it. given: what was fitted, as its file says it."""
    found = fitted.document()
    lines = [
        f"fitted on {date} with kvcast {version}: {on_one_line(command)}",
        f"profile {fitted.resolved.profile.id}, {fitted.resolved.profile.content_hash}",
        *(f"{run['result']}, sha256 {run['sha256']}: {run['requests']} requests" for run in found["runs"]),
        *(f"{row['key']} = {said(row['value'])}, 95 % from {ends(row)}" for row in found["parameters"]),
        *(f"{key} = {said(value)}, its least" for key, value in found["at_least"].items()),
        *(f"not fitted: {key}: {why}" for key, why in found["refused"].items()),
        "held out, error before and after: "
        + "; ".join(_error(row) for row in found["held_out"] if row["stat"] == "mean"),
    ]
    return "".join(f"# {line}\n" for line in lines) + "\n" + dumps(fitted.applied(given))


def sets(fitted: Fitted) -> list[str]:
    """The same keys as --set takes them."""
    return [f"{key}={literal_of(value)}" for key, value in fitted.found.values.items() if value is not None]


def said(value: Any) -> str:
    """A key's value in four digits; "none" for a limit that is none."""
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def ends(row: dict[str, Any]) -> str:
    """An interval in words; the end where a limit is none comes last."""
    low, high = row["low"], row["high"]
    if low is None or (high is not None and high < low):
        low, high = high, low
    return f"{said(low)} to {said(high)}"


def _error(row: dict[str, Any]) -> str:
    name = row["metric"].removesuffix("_s").upper()
    return f"{row['run']} {row['stat']} {name} {percent(row['before'])} to {percent(row['after'])}"
