"""A figure as a static SVG: lines, stacked areas, markers and bars, for a page that must open anywhere and print.

The one idea: what kvcast's figures are made of is little, so a figure of `kvcast.figures` can be drawn a second time
without plotly's 4.5 MB of JavaScript. Text and grid take the page's colour (`currentColor`), so dark and light need no
second drawing; the same figure gives the same bytes.

    >>> Path("ttft.svg").write_text(as_svg(figures.latency_cdf(run.summary, run.aggregates, "ttft"), "ttft"))
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvcast.figures import svg_parts as svg
from kvcast.figures.style import BLUE
from kvcast.figures.svg_parts import axis_of, each, line, numbers_of, px, rect, text_at, width_of

FONT = 12  #: px
WIDEST_LABEL = 210.0


def as_svg(figure: go.Figure, name: str, width: int = 520) -> str:
    """The figure without its title, which the page sets as a heading. name: unique on the page, for references
    inside."""
    canvas = _Canvas(figure, name, width)
    parts = [
        *canvas.frame(),
        f'<g clip-path="url(#{canvas.clip})">',
        *canvas.shapes(),
        *canvas.areas(),
        *canvas.bars(),
        *canvas.lines(),
        "</g>",
        *canvas.words(),
        *canvas.legend(),
    ]
    label = escape(str(figure.layout.title.text or name))
    size = f'viewBox="0 0 {width} {px(canvas.height)}" width="{width}" height="{px(canvas.height)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size} font-family="sans-serif"'
        f' font-size="{FONT}">' + "".join(parts) + "</svg>"
    )


class _Canvas:
    """Where everything lies: margins, axes, and the parts as SVG text."""

    def __init__(self, figure: go.Figure, name: str, width: int) -> None:
        self.figure, self.clip = figure, f"clip-{name}"
        self.bar_traces = [t for t in figure.data if isinstance(t, go.Bar)]
        self.line_traces = [t for t in figure.data if isinstance(t, go.Scatter)]
        layout = figure.layout
        self.across = any(t.orientation == "h" for t in self.bar_traces)
        stacked = self._stacked()
        upright = bool(self.bar_traces) and not self.across
        edges = (
            [numbers_of(t.x) + half for t in self.bar_traces for half in (-0.6, 0.6)]
            if upright and not isinstance(self.bar_traces[0].x[0], str)
            else []
        )
        dots = any("markers" in (t.mode or "") for t in self.line_traces)
        self.x = axis_of(
            layout.xaxis,
            [*(t.x for t in self.line_traces), *(edges or self._ends("x", stacked)), *self._errors()],
            bool(self.bar_traces) and self.across,
            0.05 if dots or self.across else 0.0,
        )
        self.y = axis_of(
            layout.yaxis,
            [
                *(t.y for t in self.line_traces if not t.stackgroup),
                *([stacked] if len(stacked) else []),
                *self._ends("y", stacked),
            ],
            upright,
        )
        labels = self.y.names or [label for _, label in self.y.ticks]
        self.left = min(max((width_of(label) for label in labels), default=20.0), WIDEST_LABEL) + (
            30 if self.y.title else 14
        )
        self.rows = self._legend_rows(width)
        self.top = 8.0 + 18 * len(self.rows)
        self.right, self.bottom = width - 14.0, 46.0
        wanted = max(150.0, 22.0 * len(self.y.names)) if self.y.names else 190.0
        self.height = self.top + wanted + self.bottom
        self.low = self.height - self.bottom  #: y of the x axis

    def px(self, values: Any) -> np.ndarray:
        return self.left + self.x.share(values) * (self.right - self.left)

    def py(self, values: Any) -> np.ndarray:
        return self.low - self.y.share(values) * (self.low - self.top)

    def _stacked(self) -> np.ndarray:
        """Heights of stacked areas, for the axis' end."""
        groups = [numbers_of(t.y) for t in self.line_traces if t.stackgroup]
        return np.nansum(groups, axis=0) if groups else np.zeros(0)

    def _ends(self, axis: str, stacked: np.ndarray) -> list[Any]:
        """Values of bars along an axis: categories, or the ends of what is stacked on them."""
        along = "x" if self.across else "y"
        if axis != along:
            return [t[axis] for t in self.bar_traces]
        ends = [numbers_of(t[along]) + (numbers_of(t.base) if t.base is not None else 0) for t in self.bar_traces]
        if self.figure.layout.barmode == "stack":
            total: dict[Any, float] = {}
            for t in self.bar_traces:
                for name, value in zip(
                    t["y" if self.across else "x"], np.nan_to_num(numbers_of(t[along])), strict=True
                ):
                    total[name] = total.get(name, 0.0) + value
            ends.append(np.array(list(total.values())))
        return ends

    def _errors(self) -> list[np.ndarray]:
        found = []
        for t in self.line_traces:
            if t.error_x.array is not None:
                at, half = numbers_of(t.x), numbers_of(t.error_x.array)
                found += [at - half, at + half]
        return found

    # -- frame ---------------------------------------------------------------------------------------------------------

    def frame(self) -> list[str]:
        parts = [
            f'<clipPath id="{self.clip}"><rect x="{px(self.left)}" y="{px(self.top)}"'
            f' width="{px(self.right - self.left)}" height="{px(self.low - self.top)}"/></clipPath>'
        ]
        middle = (self.top + self.low) / 2
        for at, label in zip(self.px([v for v, _ in self.x.ticks]), (t for _, t in self.x.ticks), strict=True):
            parts += [
                line(at, self.top, at, self.low, "currentColor", 1, opacity=0.15),
                text_at(at, self.low + 15, label, "middle"),
            ]
        for at, label in zip(self.py([v for v, _ in self.y.ticks]), (t for _, t in self.y.ticks), strict=True):
            parts += [
                line(self.left, at, self.right, at, "currentColor", 1, opacity=0.15),
                text_at(self.left - 6, at + 4, label, "end"),
            ]
        for at, label in zip(self.py(self.y.names), self.y.names, strict=True):
            parts.append(text_at(self.left - 6, at + 4, svg.cut(label, WIDEST_LABEL), "end"))
        for at, label in zip(self.px(self.x.names), self.x.names, strict=True):
            parts.append(
                text_at(at, self.low + 15, svg.cut(label, (self.right - self.left) / len(self.x.names)), "middle")
            )
        parts.append(line(self.left, self.low, self.right, self.low, "currentColor", 1, opacity=0.5))
        parts.append(text_at((self.left + self.right) / 2, self.height - 10, self.x.title, "middle"))
        if self.y.title:
            parts.append(
                f'<g transform="translate(12 {px(middle)}) rotate(-90)">{text_at(0, 0, self.y.title, "middle")}</g>'
            )
        return parts

    def legend(self) -> list[str]:
        parts = []
        for row, entries in enumerate(self.rows):
            at, y = self.left, 12.0 + 18 * row
            for trace, label, wide in entries:
                parts += [*svg.swatch(trace, at, y), text_at(at + 26, y + 4, label, "start")]
                at += wide
        return parts

    def _legend_rows(self, width: int) -> list[list[tuple[Any, str, float]]]:
        rows: list[list[tuple[Any, str, float]]] = []
        room = 0.0
        shown = [
            t
            for t in self.figure.data
            if t.showlegend is not False and t.name and self.figure.layout.showlegend is not False
        ]
        for trace in shown if len(shown) > 1 else []:
            label = svg.cut(str(trace.name), 260)
            wide = width_of(label) + 42
            if not rows or room < wide:
                rows.append([])
                room = width - self.left
            rows[-1].append((trace, label, wide))
            room -= wide
        return rows

    # -- marks ---------------------------------------------------------------------------------------------------------

    def shapes(self) -> list[str]:
        """Bands and lines across the plot."""
        parts = []
        for shape in self.figure.layout.shapes:
            x0, x1 = self.px([shape.x0, shape.x1])
            if shape.type == "rect":
                parts.append(
                    rect(x0, self.top, x1 - x0, self.low - self.top, str(shape.fillcolor), opacity=shape.opacity or 1.0)
                )
            else:
                parts.append(
                    line(
                        x0,
                        self.top,
                        x1,
                        self.low,
                        str(shape.line.color),
                        shape.line.width or 1,
                        str(shape.line.dash or ""),
                    )
                )
        return parts

    def areas(self) -> list[str]:
        parts = []
        below = 0.0 * self._stacked()
        for trace in (t for t in self.line_traces if t.stackgroup):
            above = below + np.nan_to_num(numbers_of(trace.y))
            x = self.px(trace.x)
            outline = svg.path_of(np.append(x, x[::-1]), np.append(self.py(above), self.py(below)[::-1]))
            parts.append(f'<path d="{outline}Z" fill="{svg.colour_of(trace.fillcolor)}" stroke="none"/>')
            below = above
        return parts

    def lines(self) -> list[str]:
        parts = []
        for trace in (t for t in self.line_traces if not t.stackgroup):
            x, y, mode = self.px(trace.x), self.py(trace.y), trace.mode or "lines"
            if "lines" in mode:
                points = svg.corners(x, y) if trace.line.shape == "hv" else (x, y)
                parts.append(
                    f'<path d="{svg.path_of(*points)}" fill="none"'
                    f" {svg.stroke(trace.line.color, trace.line.width or 2, trace.line.dash)}/>"
                )
            if trace.error_x.array is not None:
                half = numbers_of(trace.error_x.array)
                for left, right, at in zip(
                    self.px(numbers_of(trace.x) - half), self.px(numbers_of(trace.x) + half), y, strict=True
                ):
                    parts.append(line(left, at, right, at, str(trace.marker.color or BLUE), 2))
            if "markers" in mode:
                parts += self._markers(trace, x, y)
        return parts

    def _markers(self, trace: Any, x: np.ndarray, y: np.ndarray) -> list[str]:
        n = len(x)
        colours, symbols = (
            each(trace.marker.color or trace.line.color or BLUE, n),
            each(trace.marker.symbol or "circle", n),
        )
        hints = (
            [str(hint).replace("<br>", ", ") for hint in trace.text]
            if trace.text is not None and not isinstance(trace.text, str) and "text" not in (trace.mode or "")
            else [""] * n
        )
        radius = (trace.marker.size or 6) / 2 if not isinstance(trace.marker.size, Sequence) else 4
        outline = trace.marker.line.color if trace.marker.color == "rgba(0,0,0,0)" else None
        return [
            svg.marker(at_x, at_y, radius, str(outline or colour), str(symbol) + ("-open" if outline else ""), hint)
            for at_x, at_y, colour, symbol, hint in zip(x, y, colours, symbols, hints, strict=True)
            if np.isfinite(at_x) and np.isfinite(at_y)
        ]

    def bars(self) -> list[str]:
        parts = []
        stack: dict[Any, float] = {}
        mode = self.figure.layout.barmode or "group"
        groups = len(self.bar_traces) if mode == "group" else 1
        for index, trace in enumerate(self.bar_traces):
            places, values = (trace.y, trace.x) if self.across else (trace.x, trace.y)
            bases = numbers_of(trace.base) if trace.base is not None else np.zeros(len(values))
            colours, words = each(trace.marker.color, len(values)), each(trace.text or "", len(values))
            for place, value, base, colour, word in zip(
                places, np.nan_to_num(numbers_of(values)), bases, colours, words, strict=True
            ):
                start = stack.get(place, 0.0) if mode == "stack" else base
                stack[place] = start + value
                hint = f"{place}, {trace.name}: {value:,.4g}" if trace.name else f"{place}: {value:,.4g}"
                parts += self._bar(
                    place,
                    start,
                    value,
                    index if groups > 1 else 0,
                    groups,
                    str(colour),
                    str(word),
                    trace.textposition,
                    hint,
                )
        return parts

    def _bar(
        self,
        place: Any,
        start: float,
        value: float,
        index: int,
        groups: int,
        colour: str,
        word: str,
        where: Any,
        hint: str,
    ) -> list[str]:
        axis, across = (self.y, self.py) if self.across else (self.x, self.px)
        slot = (self.low - self.top if self.across else self.right - self.left) / (
            len(axis.names) or (axis.high - axis.low)
        )
        thick = slot * (1 - (self.figure.layout.bargap if self.figure.layout.bargap is not None else 0.2)) / groups
        middle = float(across([place])[0]) + (index - (groups - 1) / 2) * thick
        first, last = (self.px if self.across else self.py)([start, start + value])
        low, high = min(first, last), max(first, last)
        if self.across:
            parts = [rect(low, middle - thick / 2, high - low, thick, colour, hint=hint)]
            if word and where == "outside":
                parts.append(text_at(high + 4, middle + 4, word, "start"))
            elif word and width_of(word) < high - low:
                parts.append(text_at((low + high) / 2, middle + 4, word, "middle", fill=svg.on_top_of(colour)))
            return parts
        return [rect(middle - thick / 2, low, thick, high - low, colour, hint=hint)]

    def words(self) -> list[str]:
        """Labels of single points."""
        parts = []
        for trace in self.line_traces:
            if "text" in (trace.mode or "") and trace.text is not None:
                for x, y, word in zip(self.px(trace.x), self.py(trace.y), each(trace.text, len(trace.x)), strict=True):
                    if word and np.isfinite(x) and np.isfinite(y):
                        parts.append(
                            text_at(x + 4, y - 4, str(word), "start", fill=svg.colour_of(trace.textfont.color))
                        )
        return parts
