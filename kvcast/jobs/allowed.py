"""What a server may use beside what is bundled, named where it is started: a page, a link or a scenario can only choose
from it, by name.

    kvcast dashboard --policy my_policy:MyPolicy --model my-model/config.json --trace production=/data/day.jsonl
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kvcast.scenario.toml import literal_of
from sim.scenario import Scenario
from workloads.errors import InputError

POLICIES, MODELS, TRACES = "KVCAST_POLICIES", "KVCAST_MODELS", "KVCAST_TRACES"
"""Environment: module:Class by commas; paths by os.pathsep; {name: path}, JSON."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def policies() -> list[str]:
    """Own eviction policies, module:Class."""
    return [name for name in os.environ.get(POLICIES, "").split(",") if name]


def models() -> list[str]:
    """Paths of own config.json."""
    return [name for name in os.environ.get(MODELS, "").split(os.pathsep) if name]


def traces() -> dict[str, str]:
    """{name: path} of own traces, of any size."""
    return dict(json.loads(os.environ.get(TRACES, "{}")))


def named_traces(given: Sequence[str]) -> dict[str, str]:
    """{name: absolute path} of the values of --trace NAME=FILE. Raises InputError for what is none."""
    found: dict[str, str] = {}
    for value in given:
        name, _, file = value.partition("=")
        path = Path(file).absolute()
        if not NAME.fullmatch(name) or not file or name in found:
            raise InputError(f"--trace {value[:80]}: expected NAME=FILE, each name once, of letters, digits, . _ and -")
        if not path.is_file() or not os.access(path, os.R_OK):
            raise InputError(f"--trace {value[:80]}: no file that can be read, expected a trace")
        found[name] = str(path)
    return found


def trace_name(path: str | None) -> str | None:
    """The name that a trace's path has here, None of any other."""
    return next((name for name, own in traces().items() if own == path), None)


def by_name(scenario: Scenario) -> Scenario:
    """The scenario with an own trace by its name, as a link says it."""
    name = trace_name(scenario.workload.trace)
    return replace(scenario, workload=replace(scenario.workload, trace=name)) if name else scenario


def versions(scenario_toml: str) -> Iterator[str]:
    """What tells the files of this list that a scenario reads from what they were earlier: unlike an upload, a file of
    the operator's may change under its name."""
    for path in (*models(), *traces().values()):
        if literal_of(path) in scenario_toml:
            try:
                stat = os.stat(path)
                yield f"{path} {stat.st_mtime_ns} {stat.st_size}"
            except OSError:
                yield f"{path} gone"


def without_paths(line: str) -> str:
    """The line with these files by their names."""
    for name, path in traces().items():
        line = line.replace(path, name)
    for path in models():
        line = line.replace(path, Path(path).name)
    return line
