"""Tables (from TOML) to the frozen dataclasses of workloads.config, strictly, and the bundled presets.

The one idea: the dataclasses are the schema; an unknown key or a wrong type is one line with the path and the right
name.

    >>> load_preset("coding-agent").class_[0].layers[0].name
"""

from __future__ import annotations

import difflib
import functools
import tomllib
import types
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from workloads.config import WorkloadConfig
from workloads.errors import InputError

PRESETS = Path(__file__).parent / "presets"


def list_presets() -> list[str]:
    return sorted(p.stem for p in PRESETS.glob("*.toml"))


@functools.cache
def load_preset(name: str) -> WorkloadConfig:
    """The bundled mix of this name."""
    if name not in list_presets():
        close = difflib.get_close_matches(name, list_presets(), n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise InputError(f"[workload] preset = {name!r}, expected one of {', '.join(list_presets())}{hint}")
    path = PRESETS / f"{name}.toml"
    return parse_workload(tomllib.loads(path.read_text(encoding="utf-8"))["workload"])


def parse_workload(table: dict[str, Any]) -> WorkloadConfig:
    """The [workload] table of a scenario or a preset file."""
    return parse(WorkloadConfig, table, "[workload]")


def parse(cls: type, table: Any, where: str) -> Any:
    """An instance of the dataclass `cls`; unknown keys and wrong types raise InputError. TOML `class` is field
    `class_`."""
    if not isinstance(table, dict):
        raise InputError(f"{where} = {table!r}, expected a table")
    hints = typing.get_type_hints(cls)
    names = {f.name.rstrip("_"): f.name for f in fields(cls)}
    values = {}
    for key, value in table.items():
        if key not in names:
            close = difflib.get_close_matches(key, names, n=1)
            raise InputError(
                f"{where}: unknown key {key!r}"
                + (f" (did you mean {close[0]}?)" if close else f", expected one of {', '.join(names)}")
            )
        values[names[key]] = _value(hints[names[key]], value, _join(where, key, table))
    return cls(**values)


def _join(where: str, key: str, table: dict[str, Any]) -> str:
    """The path of a key; a class goes by its name: [[workload.class]] 'chat': layers[2].scope."""
    if where.startswith("[[workload.class]] "):
        return f"{where}.{key}" if ": " in where else f"{where}: {key}"
    return f"{where} {key}" if where == "[workload]" else f"{where}.{key}"


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _value(next(a for a in args if a is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise InputError(f"{where} = {value!r}, expected a list")
        return tuple(_value(args[0], v, _element(where, i, v)) for i, v in enumerate(value))
    if is_dataclass(hint):
        return parse(typing.cast(type, hint), value, where)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = {
        float: number,
        int: number and float(value).is_integer(),
        str: isinstance(value, str),
        bool: isinstance(value, bool),
    }
    if not fits[hint]:
        kind = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}[hint]
        raise InputError(f"{where} = {value!r}, expected {kind}")
    return hint(value)


def _element(where: str, i: int, value: Any) -> str:
    if where != "[workload] class":
        return f"{where}[{i}]"
    name = value.get("name") if isinstance(value, dict) else None
    return f"[[workload.class]] {name!r}" if name else f"[[workload.class]] number {i + 1}"
