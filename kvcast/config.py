"""Scenario files: TOML in, one frozen Scenario out, and back.

The one idea: `sim.scenario` and `workloads.config` define every key once; pydantic checks types and unknown keys
against those classes, `kvcast.scenario.checks` the values, and whatever is wrong becomes one line that names the file,
section, key, value and what was expected.

    >>> from kvcast.config import load_scenario, dumps
    >>> print(dumps(load_scenario("examples/demo.toml", ["cache.policy=lfu"])))
"""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from kvcast.scenario.checks import hint, problems
from kvcast.scenario.paths import absolute
from sim.scenario import Scenario
from workloads.errors import InputError, unprintable

MAX_BYTES = 64 << 20  # of a scenario file
LISTS = {
    "cache.tiers": (
        "expected --set 'cache.tiers=[{name = \"dram\", capacity_gib = 256, bandwidth_gb_per_s = 40}]', or the table in"
        " the file"
    ),
    "workload.class": (
        "expected the classes in the file (a preset has them in workloads/presets: copy the file to change one)"
    ),
}
"""Lists of tables, and what to do where a scenario has none."""


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
    scenario = _validate(doc, source)
    check(scenario, source)
    return scenario


def check(scenario: Scenario, source: str = "scenario") -> None:
    """Raise InputError for the first value that makes no sense; types are the caller's to get right."""
    check_text(asdict(scenario), source)
    for problem in problems(scenario):
        raise InputError(f"{source}: {problem}")


def check_text(tables: Any, source: str, place: str = "") -> None:
    """Raise InputError for the first text, or key, that would break a line or command a terminal when it is printed."""
    if isinstance(tables, str) and (wrong := unprintable(tables)):
        raise InputError(
            f"{source}: {place} = {tables[:80]!r}: expected text without control characters, not {wrong!r}"
        )
    if isinstance(tables, dict):
        for key, value in tables.items():
            check_text(str(key), source, f"a key of {place or 'the file'}")
            check_text(value, source, f"{place}.{key}".lstrip("."))
    elif isinstance(tables, list | tuple):
        for i, value in enumerate(tables):
            check_text(value, source, f"{place}[{i}]")


# -- overrides ---------------------------------------------------------------------------------------------------------


def apply_overrides(doc: dict, overrides: Iterable[str]) -> dict:
    """A copy of the tables with every "a.b=value" applied; "a.b=" removes the key.

    The value is a TOML literal; what is none is taken as a bare string (cache.policy=lfu). An entry of a list of tables
    is addressed by its name or position: workload.class.chat.rate=2.
    """
    with shallow("scenario"):
        doc = deepcopy(doc)
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise InputError(f"--set {text}: expected section.key=value, such as cache.policy=lfu")
        _assign(doc, key.strip(), value.strip(), text)
    return doc


def literal(text: str) -> Any:
    """A TOML value, or the text itself when it is none."""
    try:
        with shallow(text[:40]):
            return tomllib.loads(f"value = {text}")["value"]
    except InputError:
        raise
    except ValueError:
        return text


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


# -- checks ------------------------------------------------------------------------------------------------------------


def _validate(doc: dict, source: str) -> Scenario:
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # slow to import: only when a file is read

    if isinstance(doc.get("workload"), dict):
        workload = doc["workload"]
        if "class_" in workload:
            raise InputError(f"{source}: [workload] has no key 'class_' (did you mean class?)")
        doc = {**doc, "workload": {("class_" if k == "class" else k): v for k, v in workload.items()}}
    # The tuple is there because pydantic takes a config for what is around a standard dataclass, not for the class
    # itself.
    adapter = TypeAdapter(tuple[Scenario], config=ConfigDict(extra="forbid", strict=True))
    try:
        with shallow(source):
            return adapter.validate_json(json.dumps([doc], default=str))[0]
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        wrong.sort(key=lambda p: p["type"] != "unexpected_keyword_argument")  # a misspelt key explains a missing one
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputError(f"{source}: {_explain(wrong[0], doc)}{more}") from None


def _explain(problem: Any, doc: dict) -> str:
    """One line for one pydantic error."""
    if not problem["loc"]:
        return f"not text a scenario can hold: {problem['msg']}"
    *parents, key = problem["loc"][1:]
    section = _section(parents, doc)
    if problem["type"] == "unexpected_keyword_argument":
        keys = [f.name.rstrip("_") for f in fields(_class_at(parents))]
        return f"{section or 'the file'} has no key {key!r}{hint(str(key), keys, 'it has')}"
    where = f"{section} {str(key).rstrip('_')}".strip()
    if problem["type"] == "missing":
        return f"{where} is missing"
    expected = (
        problem["msg"]
        .removeprefix("Input should be ")
        .replace("an object", "a table")
        .replace("a valid array", "an array")
        .replace("a valid integer", "an integer")
        .replace("valid ", "")
    )
    return f"{where} = {json.dumps(problem['input'], default=str)[:80]}: expected {expected}"


def _section(location: Sequence[Any], doc: Any) -> str:
    """[workload.class.chat] for ("workload", "class_", 0); entries of a list go by their names where they have one."""
    names = []
    for part in location:
        doc = doc[part]
        named = isinstance(part, int) and isinstance(doc, dict) and doc.get("name")
        names.append(str(named or part).rstrip("_"))
    return f"[{'.'.join(names)}]" if names else ""


def _class_at(location: Sequence[Any]) -> type:
    """The dataclass that the tables at this place are checked against."""
    current: Any = Scenario
    for part in location:
        hints = get_type_hints(current)
        if part in hints:  # otherwise a position in a list or a name in a dict of tables of the same class
            current = _inner_class(hints[part])
    return current


def _inner_class(hint: Any) -> type:
    """The one dataclass in X, X | None, tuple[X, ...] or dict[str, X]."""
    return (
        hint
        if isinstance(hint, type) and is_dataclass(hint)
        else next(_inner_class(a) for a in get_args(hint) if is_dataclass(a) or get_args(a))
    )
