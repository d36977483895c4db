"""Every key of a scenario file with its default and meaning, from the classes themselves: docs/scenario.md is this
text.

$ python -m kvcast.scenario.reference > docs/scenario.md
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

from kvcast.scenario.toml import literal_of
from sim.scenario import PoolConfig, Scenario, Shock, SloClass, TierConfig
from workloads.config import Arrival, Columns, Demand, Dist, Layer, MixClass

SECTIONS: dict[str, tuple[str, type]] = {
    "workload.columns": ("which field of a trace's rows is what; see docs/workloads.md", Columns),
    "workload.demand": ("a mix's load over time; see docs/fleet-over-time.md", Demand),
    "workload.class": ("the classes of a mix, one `[[workload.class]]` table each", MixClass),
    "workload.class.layers": ("the layers of a prompt, in the order the model reads them", Layer),
    "workload.class.arrival": ("when sessions arrive", Arrival),
    "workload.class.output": (
        "a distribution; the same keys wherever one is asked for (tokens, turns, think, ...)",
        Dist,
    ),
    "pool": (
        "replicas that are not alike behind one router, one `[[pool]]` table each; see docs/mixed-fleets.md",
        PoolConfig,
    ),
    "shock": ("what happens to the fleet meanwhile, one `[[shock]]` table each; see docs/resilience.md", Shock),
    "cache.tiers": ("cache tiers, nearest first, one `[[cache.tiers]]` table each; see docs/tiers.md", TierConfig),
    "slo.classes.NAME": ("limits of the workload classes whose slo_class is NAME", SloClass),
}
"""Tables that a section holds, beside the sections themselves."""

INTRODUCTION = """# Scenario files

A scenario is a TOML file with these sections; every key but one of `preset`, `trace` and `class` in `[workload]` is optional. Unknown
keys are errors that suggest the right one. On the command line `--set section.key=value` changes one key, and `section.key=` removes it; a
class or layer goes by its name, as in `--set workload.class.chat.layers.system.tokens.value=2000`.

Paths: `workload.trace`, `model.config` and a `hardware.profile` that is not the name of a bundled profile are taken from the folder of
the scenario file, whether they hold a `/` or not, and never from the current folder. A path in `--set` (or `--vary`) is taken from the
current folder, as is a trace named on the command line itself (`kvcast cache TRACE`). `${VARIABLES}` and `~` are expanded; a path that
begins with one is taken from the current folder when what it stands for is not absolute.

What is out of a key's range is one line that states the range; the numbers of a mix's classes are checked together with their kind.

This page is made from the code: `python -m kvcast.scenario.reference > docs/scenario.md`.
"""


def tables() -> Iterator[tuple[str, str, type]]:
    """(section, what it is, class) in the order of the file; "" is the top level."""
    hints = get_type_hints(Scenario)
    yield "", "keys before the first section", Scenario
    for f in fields(Scenario):
        if is_dataclass(hints[f.name]):
            yield f.name, "", hints[f.name]
        if is_dataclass(hints[f.name]) or f.name in SECTIONS:
            yield from ((name, what, cls) for name, (what, cls) in SECTIONS.items() if name.split(".")[0] == f.name)


def keys(cls: type) -> Iterator[tuple[str, str, str, str]]:
    """(key, default as TOML or "-", range or choices, meaning) of a class's own keys."""
    for f in fields(cls):
        about = f.metadata
        if about:
            limit = about["limit"].words if about["limit"] else ", ".join(about["choices"])
            yield f.name.rstrip("_"), _default(f), limit, about["help"]


def _default(f: Any) -> str:
    value = f.default if f.default is not MISSING else f.default_factory() if f.default_factory is not MISSING else None
    if value is None or is_dataclass(value) or value in ((), {}):
        return "-"
    return literal_of(value)


def as_markdown() -> str:
    parts = [INTRODUCTION]
    for section, what, cls in tables():
        heading = f"## [{section}]" if section else "## Top level"
        rows = [f"| `{key}` | {default} | {limit} | {help} |" for key, default, limit, help in keys(cls)]
        parts.append(
            "\n".join(
                [
                    heading,
                    *([f"\n{what}"] if what else []),
                    "",
                    "| key | default | range | meaning |",
                    "|---|---|---|---|",
                    *rows,
                ]
            )
        )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def as_text() -> str:
    """The same for a terminal."""
    lines = []
    for section, _, cls in tables():
        lines += ["", f"[{section}]"] if section else []
        lines += [
            f"{key} ({default}): {help}" if default != "-" else f"{key}: {help}" for key, default, _, help in keys(cls)
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_markdown(), end="")
