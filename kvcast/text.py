"""Plain-text output: numbers as people read them, and tables whose columns line up."""
from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

UNKNOWN = "-"


def count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def percent(value: float | None, digits: int = 1) -> str:
    return UNKNOWN if value is None else f"{100 * value:.{digits}f} %"


def seconds(value: float | None) -> str:
    """Three significant digits in the unit people use: 4.21 ms, 1.32 s."""
    if value is None:
        return UNKNOWN
    return f"{_significant(value * 1e3)} ms" if abs(value) < 1 else f"{_significant(value)} s"


def milliseconds(value: float | None) -> str:
    return UNKNOWN if value is None else seconds(value / 1e3)


def _significant(value: float) -> str:
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def usd(value: float | None) -> str:
    return UNKNOWN if value is None else f"${value:,.2f}" if abs(value) >= 0.1 or value == 0 else f"${value:.3g}"


def scaled(value: float | None) -> str:
    """1.23e15 as 1.23 P."""
    if value is None:
        return UNKNOWN
    for factor, prefix in ((1e18, " E"), (1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor:
            return f"{value / factor:.2f}{prefix}"
    return f"{value:.0f} "


def wrapped(block: str, width: int = 100) -> str:
    """Lines longer than `width` go on below, indented; tables are expected to fit."""
    return "\n".join(
        line if len(line) <= width else textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        for line in block.splitlines()
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns lined up: the first `left` to the left, the others to the right."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()

    return "\n".join([line(cells[0]), line(["-" * w for w in widths]), *[line(row) for row in cells[1:]]])


def to_json(value: Any) -> str:
    """One JSON document; what is not a number (NaN) or not finite is null."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """The value with numpy scalars as Python's and non-finite floats as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def progress(message: str) -> None:
    """A line on stderr, only when someone is watching."""
    if sys.stderr.isatty():
        print(message, file=sys.stderr, flush=True)


def clock(last_arrival_s: float) -> Callable[[float], None] | None:
    """A simulation's `on_clock`: one line on stderr that is written over, or None when nobody is watching."""
    if not sys.stderr.isatty():
        return None

    def show(now_s: float) -> None:
        ahead = f" of {last_arrival_s:,.0f}" if now_s <= last_arrival_s else ", arrivals have ended"
        print(f"\r\033[Ksimulated {now_s:,.0f} s{ahead}\r", end="", file=sys.stderr, flush=True)

    return show


def clear_clock() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
