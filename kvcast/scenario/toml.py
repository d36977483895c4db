"""A scenario as TOML text: every key that has a value, in the order of the classes, so that equal scenarios are equal
bytes.

>>> from kvcast.scenario.toml import dumps
>>> print(dumps(scenario))
"""

from __future__ import annotations

import json
from dataclasses import Field, fields, is_dataclass
from typing import Any

from sim.scenario import Scenario


def dumps(scenario: Scenario) -> str:
    """The scenario file that loads as exactly this scenario. Unset keys (None) and lists that are empty unless
    given are left out."""
    top = [f"{name} = {literal_of(value)}" for name, value in _items(scenario) if isinstance(value, int | str)]
    sections = [_table(name, value) for name, value in _items(scenario) if is_dataclass(value)]
    lists = (("pool", scenario.pool), ("shock", scenario.shock))
    tables = [f"\n[[{name}]]\n{_lines(one)}" for name, entries in lists for one in entries]
    return "\n".join(top) + "\n" + "".join(sections + tables)


def _table(path: str, node: Any) -> str:
    """One [section], then its sub-tables: dicts of tables ([slo.classes.x]) and lists of them ([[workload.class]])."""
    pairs = node.items() if isinstance(node, dict) else _items(node)
    lines, below = [], ""
    for name, value in pairs:
        if (path, name) == ("hardware", "profile") and node.gpu is not None:
            continue  # a GPU brings its profile
        if isinstance(value, dict) and all(is_dataclass(inner) for inner in value.values()):
            below += "".join(_table(f"{path}.{name}.{key_of(key)}", inner) for key, inner in value.items())
        elif isinstance(value, tuple) and value and is_dataclass(value[0]) and path in ("workload", "cache"):
            below += "".join(f"\n[[{path}.{name}]]\n" + _lines(inner) for inner in value)
        else:
            lines.append(f"{name} = {literal_of(value)}\n")
    return f"\n[{path}]\n" + "".join(lines) + below


def _lines(node: Any) -> str:
    return "".join(f"{name} = {literal_of(value, wide=True)}\n" for name, value in _items(node))


def _items(node: Any) -> list[tuple[str, Any]]:
    found = [(f, _declared(f.type, getattr(node, f.name))) for f in fields(node)]
    told = [(f, value) for f, value in found if value is not None and (value not in ((), {}) or _has(f))]
    return [(f.name.rstrip("_"), value) for f, value in told]


def _has(f: Field[Any]) -> bool:
    """Whether a key is a list that holds something where nothing is given."""
    return isinstance(f.default, tuple) and f.default != ()


def _declared(kind: Any, value: Any) -> Any:
    """A whole number in a float field as a float (1 as 1.0), as it will be read back."""
    if "float" not in str(kind):
        return value
    if isinstance(value, tuple):
        return tuple(float(item) for item in value)
    return float(value) if isinstance(value, int) else value


def inline(value: Any) -> str:
    """A value on one line, as --set takes it; of a part of a scenario what is not as it is by default."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(inline, value)) + "]"
    if is_dataclass(value):
        own = {f.name.rstrip("_") for f in fields(value) if getattr(value, f.name) != f.default}
        told = ", ".join(f"{name} = {literal_of(inner)}" for name, inner in _items(value) if name in own)
        return f"{{ {told} }}"
    return literal_of(value)


def literal_of(value: Any, wide: bool = False) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        items = [literal_of(item) for item in value]
        if wide and value and is_dataclass(value[0]):
            return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
        return "[" + ", ".join(items) + "]"
    if isinstance(value, dict):
        if not value:
            return "{}"
        return "{ " + ", ".join(f"{key_of(name)} = {literal_of(inner)}" for name, inner in value.items()) + " }"
    if is_dataclass(value):
        return "{ " + ", ".join(f"{name} = {literal_of(inner)}" for name, inner in _items(value)) + " }"
    return repr(value)


def key_of(key: str) -> str:
    """A key as TOML writes it, in quotes where it must."""
    bare = key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key)
    return key if bare else literal_of(key)
