"""One value of a trace: what number it is, how an error line shows it, why a line is no JSON, whether a path is a
trace.

The one idea: what the languages' own parsers take for a number (1_000, Arabic digits, True, nan) is none in a trace.

    >>> number("4808"), number("1_000"), number(True)
    (4808, nan, nan)
"""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import Any

from workloads.errors import InputError
from workloads.table import number as number_of

NOT_JSON = (ValueError, RecursionError)
"""What json.loads raises: JSONDecodeError, UnicodeDecodeError, a plain ValueError for huge integers, RecursionError."""


def number(value: Any) -> int | float:
    """The number that a value is, or that its text is; NaN for anything else."""
    kind = type(value)
    if kind is int or kind is float:
        return value  # type: ignore[no-any-return]
    return number_of(value) if kind is str else float("nan")


def as_float(value: int | float) -> float:
    """The nearest float; infinity for whole numbers beyond all floats."""
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def short(value: Any) -> str:
    """The value as Python writes it, cut to one short line."""
    if isinstance(value, (list, dict)):  # however long or deep
        whole = reprlib.Repr()
        whole.maxlevel, whole.maxlist, whole.maxdict, whole.maxstring, whole.maxlong, whole.maxother = (
            3,
            20,
            20,
            60,
            60,
            60,
        )
        text = whole.repr(value)
    else:
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def why_not_json(problem: Exception) -> str:
    """What json.loads, given bytes, choked on, in a few words."""
    if isinstance(problem, json.JSONDecodeError):
        return f"column {problem.colno}" if problem.lineno == 1 else f"line {problem.lineno}, column {problem.colno}"
    if isinstance(problem, RecursionError):
        return "nested too deeply"
    return "not UTF-8" if isinstance(problem, UnicodeDecodeError) else "a number of thousands of digits"


def trace_file(path: str | Path) -> Path:
    """`path` as a Path; InputError unless it is a file or a folder."""
    path = Path(path)
    try:
        if path.is_file() or path.is_dir():
            return path
        there = path.exists()
    except (OSError, ValueError) as problem:  # a name too long, or one with a NUL
        raise InputError(f"{str(path)!r:.200}: no such file ({problem}), expected a trace") from None
    raise InputError(f"{path}: {'neither a file nor a folder' if there else 'no such file'}, expected a trace")
