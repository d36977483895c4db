"""What a drawn figure is made of: an axis, a line, a bar, a marker, a word, as SVG text. `kvcast.figures.svg` arranges
them.

>>> text_at(10, 20, "TTFT", "middle")
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvcast.figures.style import log_ticks

SMALL = 11  #: px
DASH = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3"}
FEW_TICKS = 6


# -- axes --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """From a value to a share of the axis' length, 0 at its start."""

    low: float
    high: float
    log: bool
    names: tuple[str, ...]  #: categories, from the start on; empty for numbers
    ticks: tuple[tuple[float, str], ...]  #: (value, label)
    title: str
    reversed: bool

    def share(self, values: Any) -> np.ndarray:
        """float64 [n]; NaN where the value is none or has no place on a log axis."""
        if self.names:
            places = {name: (i + 0.5) / len(self.names) for i, name in enumerate(self.names)}
            at = np.array([places.get(str(value), np.nan) for value in values])
        else:
            numbers = numbers_of(values)
            if self.log:
                numbers = np.log10(np.where(numbers > 0, numbers, np.nan))
            at = (numbers - self.low) / ((self.high - self.low) or 1.0)
        return 1 - at if self.reversed else at


def axis_of(layout: Any, values: Iterable[Any], from_zero: bool, room: float = 0.05) -> Axis:
    """From the layout's axis and all values that are drawn along it. room: free at both ends, as a share of their
    span."""
    groups = list(values)
    title = str(layout.title.text or "")
    backwards = layout.autorange == "reversed"
    if any(isinstance(value, str) for group in groups for value in group):
        given = [str(name) for name in layout.categoryarray] if layout.categoryarray is not None else []
        present = dict.fromkeys(str(value) for group in groups for value in group)
        names = tuple([name for name in given if name in present] + [name for name in present if name not in given])
        return Axis(0, 1, False, names, (), title, backwards)
    log = layout.type == "log"
    numbers = np.concatenate([np.asarray(numbers_of(group)).ravel() for group in groups] or [np.zeros(1)])
    numbers = numbers[np.isfinite(numbers) & ((numbers > 0) | (not log))]
    if from_zero or layout.rangemode == "tozero":
        numbers = np.append(numbers, 0.0) if not log else numbers
    if log:
        numbers = np.log10(numbers)
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    if layout.range is not None:
        low, high = (float(end) for end in layout.range)
    else:
        free = room * ((high - low) or abs(high) or 1.0)
        low, high = (max(low - free, 0.0) if low >= 0 and not log else low - free), high + free
    return Axis(low, high, log, (), tuple(_ticks(layout, low, high, log)), title, backwards)


def _ticks(layout: Any, low: float, high: float, log: bool) -> list[tuple[float, str]]:
    """Those of the layout where it names some, thinned; else round numbers."""
    if layout.tickvals is not None:
        named = [
            (float(v), str(t))
            for v, t in zip(layout.tickvals, layout.ticktext, strict=True)
            if low <= (math.log10(v) if log else v) <= high
        ]
        if len(named) > 9:  # then the powers of ten alone
            named = [(v, t) for v, t in named if math.log10(v) % 1 == 0]
        return named[:: max(1, math.ceil(len(named) / 9))]
    if log:
        found = [tick for tick in log_ticks(10.0**low, 10.0**high) if low <= math.log10(tick) <= high]
        return [(tick, f"{tick:,.12g}") for tick in found[:: max(1, math.ceil(len(found) / 9))]]
    if layout.dtick is not None and (high - low) / float(layout.dtick) <= 20:
        step = float(layout.dtick)
    else:
        step = next(
            s
            for s in (m * 10.0 ** (math.floor(math.log10((high - low) or 1)) - 1) for m in (1, 2, 5, 10, 20, 50))
            if (high - low) / s <= FEW_TICKS
        )
    first = math.ceil(low / step - 1e-9)
    return [(i * step, f"{round(i * step, 10):,.12g}") for i in range(first, math.floor(high / step + 1e-9) + 1)]


def numbers_of(values: Any) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], float)


# -- elements ----------------------------------------------------------------------------------------------------------


def px(value: float) -> str:
    """A length with one digit, and none that says nothing."""
    short = f"{value:.1f}".removesuffix(".0")
    return "0" if short == "-0" else short


def colour_of(colour: Any) -> str:
    return escape(str(colour or "currentColor"), quote=True)


def stroke(colour: Any, width: float, dash: Any = "") -> str:
    pattern = f' stroke-dasharray="{DASH[dash]}"' if dash in DASH else ""
    return f'stroke="{colour_of(colour)}" stroke-width="{px(width)}" stroke-linejoin="round"{pattern}'


def line(
    x1: float, y1: float, x2: float, y2: float, colour: str, width: float, dash: str = "", opacity: float = 1.0
) -> str:
    faint = f' stroke-opacity="{opacity:g}"' if opacity < 1 else ""
    return f'<path d="M{px(x1)} {px(y1)}L{px(x2)} {px(y2)}" {stroke(colour, width, dash)}{faint}/>'


def rect(x: float, y: float, width: float, height: float, colour: str, hint: str = "", opacity: float = 1.0) -> str:
    inner = f"><title>{escape(hint)}</title></rect>" if hint else "/>"
    faint = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
    return (
        f'<rect x="{px(x)}" y="{px(y)}" width="{px(max(width, 0))}" height="{px(max(height, 0))}"'
        f' fill="{colour_of(colour)}"{faint}{inner}'
    )


def text_at(x: float, y: float, words: str, anchor: str, fill: str = "currentColor") -> str:
    return (
        f'<text x="{px(x)}" y="{px(y)}" text-anchor="{anchor}" font-size="{SMALL}" fill="{fill}">{escape(words)}</text>'
    )


def marker(x: float, y: float, r: float, colour: str, symbol: str, hint: str) -> str:
    shapes = {
        "diamond": f"M{px(x)} {px(y - r)}L{px(x + r)} {px(y)}L{px(x)} {px(y + r)}L{px(x - r)} {px(y)}Z",
        "x": f"M{px(x - r)} {px(y - r)}L{px(x + r)} {px(y + r)}M{px(x - r)} {px(y + r)}L{px(x + r)} {px(y - r)}",
        "square": f"M{px(x - r)} {px(y - r)}H{px(x + r)}V{px(y + r)}H{px(x - r)}Z",
        "circle": f"M{px(x - r)} {px(y)}a{px(r)} {px(r)} 0 1 0 {px(2 * r)} 0a{px(r)} {px(r)} 0 1 0 {px(-2 * r)} 0",
    }
    kind, is_open = symbol.removesuffix("-open"), symbol.endswith("-open") or symbol == "x"
    paint = f'fill="none" {stroke(colour, 2)}' if is_open else f'fill="{colour_of(colour)}"'
    inner = f"><title>{escape(hint)}</title></path>" if hint else "/>"
    return f'<path d="{shapes.get(kind, shapes["circle"])}" {paint}{inner}'


def swatch(trace: Any, x: float, y: float) -> list[str]:
    """What stands before a name in the legend."""
    if isinstance(trace, go.Bar) or trace.stackgroup:
        return [
            rect(
                x + 6,
                y - 5,
                12,
                10,
                str(each(trace.fillcolor if not isinstance(trace, go.Bar) else trace.marker.color, 1)[0]),
            )
        ]
    parts = (
        [line(x, y, x + 22, y, str(trace.line.color), trace.line.width or 2, str(trace.line.dash or ""))]
        if "lines" in (trace.mode or "lines")
        else []
    )
    if "markers" in (trace.mode or ""):
        outline = trace.marker.line.color if trace.marker.color == "rgba(0,0,0,0)" else None
        parts.append(
            marker(
                x + 11,
                y,
                4,
                str(outline or each(trace.marker.color or trace.line.color, 1)[0]),
                str(each(trace.marker.symbol or "circle", 1)[0]) + ("-open" if outline else ""),
                "",
            )
        )
    return parts


def path_of(x: np.ndarray, y: np.ndarray) -> str:
    """Lines through the points; a gap where one is missing, nothing where one is on the pixel of the one before."""
    parts: list[str] = []
    last, pen = "", "M"
    for at_x, at_y in zip(x, y, strict=True):
        if not (np.isfinite(at_x) and np.isfinite(at_y)):
            pen = "M"
            continue
        here = f"{px(at_x)} {px(at_y)}"
        if here != last or pen == "M":
            parts.append(pen + here)
        last, pen = here, "L"
    return "".join(parts)


def corners(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A staircase: level until the next point."""
    return np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]


def each(value: Any, n: int) -> list[Any]:
    """A property of every point, whether it is given once or one by one."""
    return [value] * n if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray) else list(value)


def width_of(words: str) -> float:
    """About how wide a label is, px."""
    return 6.3 * len(words)


def cut(words: str, width: float) -> str:
    keep = int(width / 6.3)
    return words if len(words) <= keep else words[: max(keep - 1, 1)] + "…"


def on_top_of(colour: str) -> str:
    """Black or white, whichever reads better on the colour."""
    if len(colour) != 7 or not colour.startswith("#"):
        return "currentColor"
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#fff"
