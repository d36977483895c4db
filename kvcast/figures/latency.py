"""Latency distributions by class, with the limits they are judged by."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.style import GREY, Document, class_line, literal, log_ticks, short, span, styled

LATENCY = {"ttft": ("ttft_s", "TTFT"), "tpot": ("tpot_s", "TPOT")}


def latency_cdf(document: Document, aggregates: Document, metric: str) -> go.Figure:
    """Share of completed requests of the window within a latency, one line a class, with the limits as vertical lines.

    metric: "ttft" or "tpot". The lines' points are the quantiles of `kvcast.store.aggregates`, as many for any number
    of requests."""
    column, name = LATENCY[metric]
    figure = go.Figure()
    for i, name_of_class in enumerate(document["classes"]):
        curve, label = aggregates["latency_ms"][metric].get(name_of_class), literal(name_of_class)
        if curve:
            x, y = np.asarray(curve["ms"], float), np.asarray(curve["percent"], float)
            figure.add_trace(
                go.Scatter(
                    x=x,
                    y=y,
                    name=short(label),
                    meta=label,
                    mode="lines",
                    line=class_line(i),
                    hovertemplate=f"{label}: %{{y:.1f}} % within %{{x:.4g}} ms<extra></extra>",
                )
            )
    for limit_s, who, colour in _limits(document, column):
        label = f"limit{who}: {text.seconds(limit_s)}"
        figure.add_trace(
            go.Scatter(
                x=[limit_s * 1e3] * 2,
                y=[0, 100],
                name=short(label),
                meta=label,
                mode="lines",
                line={"dash": "dash", "color": colour, "width": 1.5},
                hovertemplate=f"{label}<extra></extra>",
            )
        )
    figure.update_layout(meta=_told(figure, name))
    low, high = span(figure)
    ticks = log_ticks(low, high)
    room = [np.log10(low / 1.1), np.log10(high * 1.15)]  # so that a limit beyond every request is not the plot's edge
    figure.update_xaxes(
        title=f"{name} (ms, log scale)", type="log", range=room, tickvals=ticks, ticktext=[f"{t:,.12g}" for t in ticks]
    )
    figure.update_yaxes(title="completed requests (%)", range=[0, 101])
    return styled(figure, f"{name} distribution")


def _told(figure: go.Figure, name: str) -> str:
    """The distribution in a sentence: where half of each class lies, and 99 %."""
    parts = []
    for trace in figure.data:
        if trace.mode == "lines" and trace.line.dash == "dash" and len(trace.x) == 2 and trace.x[0] == trace.x[1]:
            parts.append(trace.meta)
            continue
        half, most = (trace.x[min(int(np.searchsorted(trace.y, p)), len(trace.x) - 1)] for p in (50, 99))
        parts.append(
            f"half of the requests of {trace.meta} within {text.milliseconds(float(half))}, 99 % within"
            f" {text.milliseconds(float(most))}"
        )
    return f"{name} distribution: {'; '.join(parts) or 'no completed request'}."


def _limits(document: Document, column: str) -> Iterable[tuple[float, str, str]]:
    """Each distinct limit on the column, in seconds, with whose it is and the colour of the class when it is one's."""
    whose: dict[float, list[str]] = {}
    for name, row in document["slo_classes"].items():
        if row["limits"][column] is not None:
            whose.setdefault(row["limits"][column], []).append(name)
    slo_of = [row["slo_class"] for row in document["classes"].values()]
    called: dict[str, list[str]] = {}  # by the names of the classes, which the curves have
    for name, slo in zip(document["classes"], slo_of, strict=True):
        called.setdefault(slo, []).append(literal(name))
    for limit, names in whose.items():
        classes = [i for i, slo in enumerate(slo_of) if slo in names]
        colour = class_line(classes[0])["color"] if len(classes) == 1 and len(slo_of) > 1 else GREY
        yield (
            limit,
            ""
            if len(document["slo_classes"]) == 1
            else f" {', '.join(', '.join(called.get(n, [literal(n)])) if n else 'others' for n in names)}",
            colour,
        )
