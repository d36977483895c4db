"""Line charts side by side as one SVG file, from numbers alone: what a docs page can show without a plotting library.

>>> save(Path("figure.svg"), [[Panel("hit rate", "KV blocks", "%", [Line("lru", [1000, 2000], [10.0, 14.0], "#0072B2")])]])
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

WIDTH, HEIGHT = 300, 250  # of a panel, with its labels
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 34, 40
LEGEND = 170


@dataclass(frozen=True)
class Line:
    name: str
    x: Sequence[float]  #: above 0: the axis is logarithmic
    y: Sequence[float | None]  #: None: no point there
    colour: str
    dash: str = ""  #: as SVG's stroke-dasharray
    filled: Sequence[bool] = ()  #: whether each point is a full disc; empty: no points


@dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log: bool = False  #: the y axis too


def save(path: Path, rows: Sequence[Sequence[Panel]], notes: Sequence[str] = ()) -> None:
    """Panels in rows; the legend is that of the first panel, `notes` stand below it."""
    columns = max(len(row) for row in rows)
    width, height = columns * WIDTH + LEGEND, len(rows) * HEIGHT
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
            ' font-size="11" fill="#333">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            parts += _panel(panel, j * WIDTH, i * HEIGHT)
    parts += _legend(rows[0][0].lines, notes, columns * WIDTH + 8)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _panel(panel: Panel, left: float, top: float) -> list[str]:
    xs = sorted({x for line in panel.lines for x in line.x})
    ys = [y for line in panel.lines for y in line.y if y is not None]
    ticks = _log_ticks(min(ys), max(ys)) if panel.log else _ticks(max(ys, default=1.0) or 1.0)
    x0, x1, y0, y1 = left + LEFT, left + WIDTH - RIGHT, top + HEIGHT - BOTTOM, top + TOP
    span = math.log(xs[-1] / xs[0]) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        share = math.log(y / ticks[0]) / math.log(ticks[-1] / ticks[0]) if panel.log else y / ticks[-1]
        return x0 + (x1 - x0) * (math.log(x / xs[0]) / span), y0 + (y1 - y0) * share

    parts = [
        f'<text x="{x0}" y="{top + 14}" font-weight="bold">{escape(panel.title)}</text>',
        f'<text x="{x0}" y="{top + 27}">{escape(panel.y_label)}</text>',
    ]
    for y in ticks:
        height = at(xs[0], y)[1]
        parts.append(
            f'<path d="M{x0} {height:.1f}H{x1}" stroke="#ddd"/><text x="{x0 - 5}" y="{height + 4:.1f}"'
            f' text-anchor="end">{y:g}</text>'
        )
    for x in xs:
        place = at(x, ticks[-1])[0]
        parts.append(f'<text x="{place:.1f}" y="{y0 + 14}" text-anchor="middle">{x / 1000:g}k</text>')
    parts.append(f'<text x="{(x0 + x1) / 2}" y="{y0 + 30}" text-anchor="middle">{escape(panel.x_label)}</text>')
    for line in panel.lines:
        points = [(*at(x, y), x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
        route = " ".join(f"{px:.1f},{py:.1f}" for px, py, _, _ in points)
        parts.append(
            f'<g stroke="{line.colour}" fill="none"><title>{escape(line.name)}</title><polyline points="{route}"'
            f' stroke-width="1.4" stroke-dasharray="{line.dash}"/>'
        )
        for (px, py, x, y), full in zip(points, line.filled, strict=False):
            told = f"{line.name}, {x:,g}: {y:.4g}"
            parts.append(
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.4"'
                f' fill="{line.colour if full else "white"}"><title>{escape(told)}</title></circle>'
            )
        parts.append("</g>")
    return parts


def _ticks(highest: float) -> list[float]:
    """0 and up to five round steps that reach beyond the highest value."""
    step = 10.0 ** math.floor(math.log10(highest / 4))
    step *= next(m for m in (1, 2, 5, 10) if m * step * 5 >= highest)
    return [step * i for i in range(math.ceil(highest / step) + 1)]


def _log_ticks(lowest: float, highest: float) -> list[float]:
    """1, 2, 5, 10, ... from below the lowest value to above the highest."""
    steps = [m * 10.0**e for e in range(-6, 10) for m in (1, 2, 5)]
    return [s for s, after in pairwise(steps) if after > lowest and s < highest] + [
        next(s for s in steps if s >= highest)
    ]


def _legend(lines: Sequence[Line], notes: Sequence[str], left: float) -> list[str]:
    parts, y = [], 30.0
    for line in lines:
        parts.append(
            f'<path d="M{left} {y}h22" stroke="{line.colour}" stroke-width="1.8" stroke-dasharray="{line.dash}"/><text'
            f' x="{left + 28}" y="{y + 4}">{escape(line.name)}</text>'
        )
        y += 15
    for note in notes:
        parts.append(f'<text x="{left}" y="{y + 10}" fill="#666" font-size="10">{escape(note)}</text>')
        y += 13
    return parts
