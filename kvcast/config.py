"""Scenario files: TOML in, one frozen Scenario out.

The one idea: `sim.scenario` and `workloads.config` define every key once; `workloads.toml` reads tables into those
classes, `kvcast.scenario.checks` checks the values, and whatever is wrong becomes one line that names the file,
section, key, value and what was expected.

    >>> from kvcast.config import load_scenario
    >>> load_scenario("examples/demo.toml", ["cache.policy=lfu"]).cache.policy
"""

from __future__ import annotations

import contextlib
import datetime
import tomllib
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from kvcast.scenario.checks import check, check_text
from kvcast.scenario.paths import absolute
from sim.scenario import Scenario
from workloads.errors import InputError, hint
from workloads.toml import read

MAX_BYTES = 64 << 20  # of a scenario file
LISTS = {
    "cache.tiers": (
        "expected --set 'cache.tiers=[{name = \"dram\", capacity_gib = 256, bandwidth_gb_per_s = 40}]', or the table in"
        " the file"
    ),
    "pool": "expected the [[pool]] tables in the file, or --set 'pool=[{name = \"a\", replicas = 2}]'",
    "workload.class": (
        "expected the classes in the file (a preset has them in workloads/presets: copy the file to change one)"
    ),
}
"""Lists of tables, and what to do where a scenario has none."""
INSTEAD = {
    "hardware.gpu": "hardware.profile",
    "hardware.profile": "hardware.gpu",
    "model.name": "model.config",
    "model.config": "model.name",
}
"""Two keys that say the same thing in two ways: whoever sets one does not mean the other any more."""
FITTED_TO = (
    "hardware.gpu",
    "hardware.profile",
    "hardware.tensor_parallel",
    "model.name",
    "model.config",
    "model.dtype",
)
FITTED = ("hardware.dense_factor", "hardware.attention_factor")
"""What was fitted to one server (kvcast fit-server) is not taken to another GPU, model or width."""


def load_scenario(path: str | Path, overrides: Iterable[str] = ()) -> Scenario:
    """The scenario in a TOML file, with `--set`-style overrides ("cache.policy=lfu") applied."""
    return scenario_from_doc(load_doc(path, overrides), str(path))


def load_doc(path: str | Path, overrides: Iterable[str] = ()) -> dict:
    """The tables of a scenario file with overrides applied and paths made absolute: the file's paths are taken from its
    own folder, an override's from the current one."""
    return override(absolute(read_toml(path), Path(path).parent), overrides)


def override(doc: dict, overrides: Iterable[str]) -> dict:
    """A copy of the tables (their own paths absolute already) with overrides applied; an override's paths are taken
    from the current folder."""
    return absolute(apply_overrides(doc, overrides), Path.cwd())


def read_toml(path: str | Path) -> dict:
    """The tables of a scenario file. Raises InputError when it is not one."""
    path = Path(path)
    try:
        with shallow(str(path)):
            return tomllib.loads(_text(path))
    except OSError as error:
        raise InputError(
            f"{path}: {(error.strerror or 'cannot be read').lower()}; expected a scenario file (TOML)"
        ) from None
    except InputError:
        raise
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise InputError(f"{path}: not valid TOML: {error}") from None


def _text(path: Path) -> str:
    """The file's text; some editors begin one with a byte order mark, and a device has no end."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InputError(f"{path}: more than {MAX_BYTES >> 20} MiB; expected a scenario file (TOML)")
    return content.decode("utf-8-sig")


@contextlib.contextmanager
def naming(source: str) -> Iterator[None]:
    """Whatever is wrong inside is wrong in this scenario file: its line begins with the file."""
    try:
        yield
    except InputError as error:
        line = str(error)
        raise InputError(line if line.startswith(f"{source}: ") else f"{source}: {line}") from None


@contextlib.contextmanager
def shallow(source: str) -> Iterator[None]:
    """Tables within tables beyond what Python's stack takes are one line."""
    try:
        yield
    except RecursionError:
        raise InputError(f"{source}: tables or lists are nested too deeply; expected a scenario's few levels") from None


def scenario_from_doc(doc: dict, source: str = "scenario") -> Scenario:
    """A checked Scenario from TOML tables; `source` is the file named in messages."""
    with shallow(source):
        check_text(doc, source)
        scenario = read(Scenario, doc, source)
    check(scenario, source)
    return scenario


# -- overrides ---------------------------------------------------------------------------------------------------------


def apply_overrides(doc: dict, overrides: Iterable[str]) -> dict:
    """A copy of the tables with every "a.b=value" applied; "a.b=" removes the key. A key of which a scenario has one or
    the other (INSTEAD) takes the other's place.

    The value is a TOML literal; what is none is taken as a bare string (cache.policy=lfu). An entry of a list of tables
    is addressed by its name or position: workload.class.chat.rate=2.
    """
    with shallow("scenario"):
        doc = deepcopy(doc)
    overrides = list(overrides)
    given = {text.partition("=")[0].strip() for text in overrides if text.partition("=")[2].strip()}
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise InputError(f"--set {text}: expected section.key=value, such as cache.policy=lfu")
        other = INSTEAD.get(key.strip())
        if other and value.strip() and other not in given:
            _assign(doc, other, "", text)
        if key.strip() in FITTED_TO and value.strip() and _value_at(doc, key.strip()) != literal(value.strip()):
            for factor in FITTED:
                if factor not in given and _value_at(doc, factor) is not None:
                    _assign(doc, factor, "", text)
        _assign(doc, key.strip(), value.strip(), text)
    return doc


def _value_at(doc: dict, key: str) -> Any:
    """What a key of a section has; None where it is not given."""
    section, _, name = key.partition(".")
    table = doc.get(section)
    return table.get(name) if isinstance(table, dict) else None


def literal(text: str) -> Any:
    """A TOML value, or the text itself when it is none; no key is a date."""
    try:
        with shallow(text[:40]):
            value = tomllib.loads(f"value = {text}")["value"]
    except InputError:
        raise
    except ValueError:
        return text
    return text if isinstance(value, datetime.date | datetime.time) else value


def place_of(doc: dict, key: str) -> tuple[str, ...]:
    """The key as parts, with entries of lists by position: the same for workload.class.chat.rate and
    workload.class.0.rate."""
    table: Any = doc
    place: list[str] = []
    for name in (part.strip() for part in key.split(".")):
        if isinstance(table, list):
            index = next((i for i, entry in enumerate(table) if _is_named(entry, i, name)), None)
            table, name = (None, name) if index is None else (table[index], str(index))
        else:
            table = table.get(name) if isinstance(table, dict) else None
        place.append(name)
    return tuple(place)


def _is_named(entry: Any, index: int, name: str) -> bool:
    return isinstance(entry, dict) and (entry.get("name") == name or str(index) == name)


def _assign(doc: dict, key: str, value: str, text: str) -> None:
    *parents, last = key.split(".")
    table: Any = doc
    for i, name in enumerate(parents):
        if isinstance(table, dict) and name not in table and (made_by := LISTS.get(".".join(parents[: i + 1]))):
            raise InputError(f"--set {text}: the scenario has no [[{'.'.join(parents[: i + 1])}]]; {made_by}")
        table = _entry(table, name, text) if isinstance(table, list) else table.setdefault(name, {})
        if not isinstance(table, dict | list):
            raise InputError(f"--set {text}: {name} is a value, not a section")
    if isinstance(table, list):
        raise InputError(f"--set {text}: expected the name of an entry and one of its keys after {parents[-1]}")
    if value:
        table[last] = literal(value)
    else:
        table.pop(last, None)


def _entry(tables: list, name: str, text: str) -> dict:
    """The entry of a list of tables with this name or position."""
    for index, entry in enumerate(tables):
        if _is_named(entry, index, name):
            return entry
    names = [str(entry.get("name", i)) for i, entry in enumerate(tables) if isinstance(entry, dict)]
    raise InputError(f"--set {text}: no entry {name!r}{hint(name, names)}")
