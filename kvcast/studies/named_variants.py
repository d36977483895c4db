"""Variants that have a name and may differ in anything, model and GPU included, on the same arrivals.

The one idea: they are whole scenarios, so nothing needs to be a key and a value; with the seeds and the window of the
first one they are variants like any others (kvcast.studies.compare), and differences between them are paired.

    >>> named = read(["a.toml", "b.toml"]); results = simulate_all(variants(named, seeds=3))
    >>> Path("variants.toml").write_text(dumps(named))          # one file; kvcast compare variants.toml
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast.config import override, read_toml, scenario_from_doc
from kvcast.scenario import toml
from kvcast.scenario.gpu_prices import priced
from kvcast.scenario.paths import absolute
from kvcast.studies.replications import Variant
from sim.scenario import Scenario
from workloads.errors import InputError

KEY = "variant"
MOST = 24
"""Variants of a comparison: more is a sweep's work."""
LONGEST = 48
"""Characters of a setting that is told whole."""
Named = Mapping[str, Scenario]


def read(paths: Sequence[str | Path], overrides: Sequence[str] = ()) -> dict[str, Scenario]:
    """Every scenario of the files by its name: that of the file, or in a file of [variant.NAME] tables their own.

    overrides: --set of every one. Raises InputError."""
    found: dict[str, Scenario] = {}
    for path in map(Path, paths):
        doc = read_toml(path)
        inner = doc.get(KEY)
        if isinstance(inner, dict) and set(doc) == {KEY}:
            rows = {str(name): (table, f"{path} [{KEY}.{name}]") for name, table in inner.items()}
        else:
            rows = {path.stem: (doc, str(path))}
        for name, (table, source) in rows.items():
            if not isinstance(table, dict):
                raise InputError(f"{source}: expected the tables of a scenario")
            if name in found:
                raise InputError(f"{source}: a second variant {name!r}; expected every name once")
            found[name] = scenario_from_doc(override(absolute(table, path.parent), overrides), source)
    if not 2 <= len(found) <= MOST:
        raise InputError(
            f"{', '.join(map(str, paths))}: {len(found)} to compare, expected 2 to {MOST}: more scenario files, or one"
            " with --vary"
        )
    return found


def variants(named: Named, seeds: int = 1) -> list[Variant]:
    """For each seed from the first scenario's upwards, every variant with it: common random numbers."""
    first = next(iter(named.values())).seed
    return [
        Variant((name,), (KEY,), priced(replace(scenario, seed=seed)))
        for seed in range(first, first + seeds)
        for name, scenario in named.items()
    ]


def dumps(named: Named) -> str:
    """The one file that `read` takes back."""
    return "\n".join(_nested(name, toml.dumps(scenario)) for name, scenario in named.items())


def _nested(name: str, text: str) -> str:
    place = f"{KEY}.{toml.key_of(name)}"
    return f"[{place}]\n" + re.sub(r"^(\[+)", lambda found: f"{found[1]}{place}.", text, flags=re.MULTILINE)


def settings(named: Named) -> dict[str, list[str]]:
    """Every key in which the variants differ -> its value in each, as a scenario file writes it; empty where it is not
    set."""
    flat = [dict(_flat(tomllib.loads(toml.dumps(scenario)), "")) for scenario in named.values()]
    keys = dict.fromkeys(key for one in flat for key in one if key not in ("name", "seed"))
    return {key: row for key in keys if len(set(row := [one.get(key, "") for one in flat])) > 1}


def _flat(table: Mapping[str, Any], prefix: str) -> Any:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            words = value if isinstance(value, str) else toml.literal_of(value)
            yield f"{prefix}{key}", words if len(words) <= LONGEST else f"{words[: LONGEST - 3]}..."
