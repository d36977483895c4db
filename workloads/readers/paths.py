"""Fields of nested rows by dotted paths, and the names a row has.

The one idea: a key that holds dots itself ("gen_ai.usage.input_tokens") is found like one that is nested.

    >>> at({"usage": {"prompt_tokens": 7}, "spans": [{"a.b": 1}]}, "usage.prompt_tokens")
    7
    >>> at({"spans": [{"a.b": 1}]}, "spans.0.a.b")
    1
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from workloads.readers.values import NOT_JSON

MAX_DEPTH, MAX_NAMES = 5, 500


def getter(path: str) -> Callable[[dict[str, Any]], Any]:
    """row -> the value at a dotted path (`a.b`, `a.0.b`, `a[0].b`); None where there is none."""
    if not re.search(r"[.\[]", path):
        return lambda row: row.get(path)
    dotted = re.sub(r"\[(\d+)\]", r".\1", path).lstrip(".")
    head, _, rest = dotted.partition(".")

    def get(row: dict[str, Any]) -> Any:
        if path in row:
            return row[path]
        inner = row.get(head)
        return inner[rest] if type(inner) is dict and rest in inner else at(row, dotted)

    return get


def at(value: Any, path: str) -> Any:
    """The value at a path in dicts and lists, and in texts that are those in JSON; None where there is none."""
    if type(value) is str and value[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except NOT_JSON:
            return None
    if type(value) is list:
        head, _, rest = path.partition(".")
        if not head.isdecimal() or int(head) >= len(value):
            return None
        return at(value[int(head)], rest) if rest else value[int(head)]
    if type(value) is not dict:
        return None
    if path in value:
        return value[path]
    for dot in re.finditer(r"\.", path):
        if path[: dot.start()] in value:
            found = at(value[path[: dot.start()]], path[dot.end() :])
            if found is not None:
                return found
    return None


def flat(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Dotted name -> first value that is neither None nor "" of all that rows hold but lists; insertion order."""
    names: dict[str, Any] = {}
    for row in rows:
        _flatten(row, "", names, MAX_DEPTH)
    return names


def _flatten(row: dict[str, Any], before: str, names: dict[str, Any], depth: int) -> None:
    for key, value in row.items():
        if len(names) >= MAX_NAMES:
            return
        if type(value) is dict and value and depth:
            _flatten(value, f"{before}{key}.", names, depth - 1)
        elif names.get(before + key) is None or names[before + key] == "":
            names[before + key] = value


def columns_of(document: Any) -> list[dict[str, Any]]:
    """Rows of an object that holds columns: lists of one length by name, or as pandas writes a frame ({name: {row:
    value}}, or columns beside data); [] for anything else."""
    if type(document) is not dict or not document:
        return []
    names, data = document.get("columns"), document.get("data")
    if type(names) is list and type(data) is list and all(type(row) is list and len(row) == len(names) for row in data):
        return [dict(zip(map(str, names), row, strict=True)) for row in data]
    columns = {name: list(c.values()) if type(c) is dict else c for name, c in document.items()}
    columns = {name: column for name, column in columns.items() if type(column) is list}
    lengths = {len(column) for column in columns.values()}
    if len(columns) < 2 or len(lengths) != 1:
        return []
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [] if any(type(value) in (dict, list) for value in (rows[0] if rows else {}).values()) else rows


def lists_of_objects(document: Any, depth: int = 2) -> dict[str, list[Any]]:
    """Dotted path -> list of objects in a document of objects; "" for the document itself."""
    if type(document) is list:
        return {"": document} if document and all(type(item) is dict for item in document[:20]) else {}
    found: dict[str, list[Any]] = {}
    if type(document) is dict and depth:
        for key, value in document.items():
            inner = lists_of_objects(value, depth - 1)
            found |= {f"{key}.{path}".rstrip("."): items for path, items in inner.items()}
    return found
