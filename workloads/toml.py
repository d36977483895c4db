"""TOML tables to the frozen dataclasses of a scenario, strictly, and the bundled presets.

The one idea: the dataclasses are the schema. An unknown key, a missing one and a wrong type are each one line that
names file, section, key, value and what was expected; where several are wrong it names the first and counts the others.

    >>> load_preset("coding-agent").class_[0].layers[0].name
"""

from __future__ import annotations

import functools
import json
import math
import tomllib
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from workloads.config import WorkloadConfig
from workloads.errors import InputError, did_you_mean, hint

PRESETS = Path(__file__).parent / "presets"
SCALARS = {float: "a number", int: "an integer", str: "a string", bool: "a boolean"}

T = TypeVar("T")


def list_presets() -> list[str]:
    return sorted(p.stem for p in PRESETS.glob("*.toml"))


@functools.cache
def load_preset(name: str) -> WorkloadConfig:
    """The bundled mix of this name."""
    known = list_presets()
    if name not in known:
        raise InputError(f"[workload] preset = {name!r}, expected one of {', '.join(known)}{did_you_mean(name, known)}")
    path = PRESETS / f"{name}.toml"
    return read(WorkloadConfig, tomllib.loads(path.read_text(encoding="utf-8"))["workload"], str(path), "workload")


def read(cls: type[T], table: dict[str, Any], source: str, *section: str) -> T:
    """An instance of the dataclass `cls`; InputError for what is wrong with its table, named by `source` and `section`.

    The key of a field `class_` is `class`; an integer where a number is asked for becomes a float."""
    wrong: list[str] = []
    made = _table(cls, table, section, wrong)
    if wrong:
        raise InputError(f"{source}: {wrong[0]}{f' (and {len(wrong) - 1} more)' if len(wrong) > 1 else ''}")
    return typing.cast(T, made)


def _table(cls: type, table: dict[str, Any], at: tuple[str, ...], wrong: list[str]) -> Any:
    """The instance, unless something is `wrong`. at: the names that lead to the table."""
    named = {f.name.rstrip("_"): f for f in fields(cls)}
    place = f"[{'.'.join(at)}]" if at else "the file"
    wrong += [f"{place} has no key {key!r}{hint(key, named, 'it has')}" for key in table if key not in named]
    values = {}
    for key, f in named.items():
        if key in table:
            values[f.name] = _value(_kinds(cls)[f.name], table[key], (*at, key), wrong)
        elif f.default is MISSING and f.default_factory is MISSING:
            wrong.append(f"{_where((*at, key))} is missing")
    return None if wrong else cls(**values)


@functools.cache
def _kinds(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _value(kind: Any, value: Any, at: tuple[str, ...], wrong: list[str]) -> Any:
    """A value of this kind: a table, a list or a dict of values, a scalar, or anything."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):  # X | None, which a file leaves out; or a list | each of its entries
        listed = typing.get_origin(args[0]) is not tuple or isinstance(value, list | tuple)
        return _value(args[0] if listed else args[1], value, at, wrong)
    if is_dataclass(kind) and isinstance(value, dict):
        return _table(typing.cast(type, kind), value, at, wrong)
    if origin is dict and isinstance(value, dict):
        return {key: _value(args[1], inner, (*at, key), wrong) for key, inner in value.items()}
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_value(args[0], inner, (*at, _entry(inner, i)), wrong) for i, inner in enumerate(value))
    if kind is Any or type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value) if abs(value) < 2**1023 else math.inf
    expected = SCALARS.get(kind) or ("an array" if origin is tuple else "a table")
    wrong.append(f"{_where(at)} = {json.dumps(value, default=str)[:80]}: expected {expected}")
    return None


def _entry(value: Any, i: int) -> str:
    """An entry of a list goes by its name where it has one, else by its position."""
    return str((isinstance(value, dict) and value.get("name")) or i)


def _where(at: tuple[str, ...]) -> str:
    *section, key = at
    return f"[{'.'.join(section)}] {key}" if section else key
