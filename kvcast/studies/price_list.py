"""A price file: what an API charges and caches, checked key by key.

>>> name, prices, retentions = read_prices(Path("examples/prices.toml"), is_mix=True)
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from difflib import get_close_matches
from math import inf
from typing import Any

from kvcast.config import read_toml, shallow
from kvcast.scenario.checks import check_text
from kvcast.studies.api_price import NO_CACHING, Prices, Retention
from workloads.errors import InputError

CEILING = "ceiling"
TRACE_BREAKPOINT_TOKENS = 128


_NUMBERS = {
    "input_usd_per_mtok": 0.0,
    "output_usd_per_mtok": 0.0,
    "read_multiplier": 0.0,
    "minimum_tokens": 0,
    "max_breakpoints": 1,
    "seconds": 0.0,
    "write_multiplier": 0.0,
}
"""Key -> the least value that makes sense."""
_MOST = 1e9
"""Of every number but seconds: a retention may be endless."""


def read_prices(path: str, is_mix: bool) -> tuple[str, Prices, list[Retention]]:
    """(name, prices, retentions) of a price file. Raises InputError naming file, key, value and what was expected."""
    table = read_toml(path)
    with shallow(path):
        check_text(table, path)
    name, sold = str(table.pop("name", "unnamed")), table.pop("retention", None)
    if table.get("breakpoints", "auto") == "auto":
        table["breakpoints"] = "layers" if is_mix else TRACE_BREAKPOINT_TOKENS
    if table["breakpoints"] != "layers" and (type(table["breakpoints"]) is not int or table["breakpoints"] < 1):
        raise InputError(
            f"{path}: breakpoints = {table['breakpoints']!r}, expected 'auto', 'layers' or a number of tokens of at"
            " least 1"
        )
    if type(table.get("prompt_end", True)) is not bool:
        raise InputError(f"{path}: prompt_end = {table['prompt_end']!r}, expected true or false")
    prices = _checked(path, "", table, Prices)
    if not isinstance(sold, list) or not sold:
        raise InputError(
            f"{path}: [[retention]] is missing, expected at least one table with name, seconds and write_multiplier"
        )
    return name, prices, _retentions(path, sold)


def _retentions(path: str, sold: list[Any]) -> list[Retention]:
    """Every [[retention]]; each is a column of the bill under its own name."""
    found: list[Retention] = []
    taken = {NO_CACHING.name, CEILING}
    for entry in sold:
        if not isinstance(entry, dict):
            raise InputError(
                f"{path}: [[retention]] {entry!r}, expected a table with name, seconds and write_multiplier"
            )
        found.append(_checked(path, "[[retention]] ", entry, Retention))
        name = found[-1].name
        if not isinstance(name, str) or not name or name in taken:
            raise InputError(
                f"{path}: [[retention]] name = {name!r}, expected a name that no other column of the bill has"
            )
        taken.add(name)
    return found


def _checked(path: str, where: str, table: dict[str, Any], kind: type) -> Any:
    """kind(**table) after looking at every key."""
    known = {f.name: f for f in fields(kind)}
    for key, value in table.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "expected one of " + ", ".join(known)
            raise InputError(f"{path}: {where}{key} is no key of a price file, {hint}")
        low, most = _NUMBERS.get(key), inf if key == "seconds" else _MOST
        whole = isinstance(low, int)
        if low is not None and (
            isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= most
        ):
            above = "" if most == inf else f" and at most {most:g}"
            raise InputError(
                f"{path}: {where}{key} = {value!r}, expected a {'whole ' if whole else ''}number of at least"
                f" {low:g}{above}"
            )
    for key, f in known.items():
        if key not in table and f.default is MISSING:
            raise InputError(f"{path}: {where}{key} is missing, expected a value")
    return kind(**table)
