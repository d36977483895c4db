"""Latency distributions by class, with the limits they are judged by.
"""
from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.style import GREY, Columns, Document, class_line, log_ticks, span, styled

LATENCY = {"ttft": ("ttft_s", "TTFT"), "tpot": ("tpot_s", "TPOT")}
CURVE_POINTS = 400


def latency_cdf(document: Document, requests: Columns, metric: str) -> go.Figure:
    """Share of completed requests of the window within a latency, one line a class, with the limits as vertical lines.

    metric: "ttft" or "tpot". The lines' points are quantiles: at most CURVE_POINTS however many requests there are.
    """
    column, name = LATENCY[metric]
    figure = go.Figure()
    counted = requests["in_window"].astype(bool) & (requests["status"] == 0) & ~np.isnan(requests[column])
    for i, label in enumerate(document["classes"]):
        values = np.sort(requests[column][counted & (requests["class_id"] == i)] * 1e3)
        if len(values):
            x, y = _cdf(values)
            figure.add_trace(go.Scatter(x=x, y=y, name=label, mode="lines", line=class_line(i), hovertemplate=f"{label}: %{{y:.1f}} % within %{{x:.4g}} ms<extra></extra>"))
    for limit_s, who, colour in _limits(document, column):
        label = f"limit{who}: {text.seconds(limit_s)}"
        figure.add_trace(go.Scatter(x=[limit_s * 1e3] * 2, y=[0, 100], name=label, mode="lines", line={"dash": "dash", "color": colour, "width": 1.5}, hovertemplate=f"{label}<extra></extra>"))
    low, high = span(figure)
    ticks = log_ticks(low, high)
    room = [np.log10(low / 1.1), np.log10(high * 1.15)]  # so that a limit beyond every request is not the plot's edge
    figure.update_xaxes(title=f"{name} (ms, log scale)", type="log", range=room, tickvals=ticks, ticktext=[f"{t:,.12g}" for t in ticks])
    figure.update_yaxes(title="completed requests (%)", range=[0, 101])
    return styled(figure, f"{name} distribution")


def _cdf(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted values [n] -> (value, per cent of the values at or below it); dense where the tail is."""
    n = len(values)
    if n <= CURVE_POINTS:
        rank = np.arange(1, n + 1)
    else:
        body = np.linspace(1, n, CURVE_POINTS * 3 // 4)
        tail = n - np.geomspace(n * 0.1, 1, CURVE_POINTS // 4) + 1
        rank = np.unique(np.concatenate([body, tail]).round().astype(np.int64))
    return values[rank - 1], 100.0 * rank / n


def _limits(document: Document, column: str) -> Iterable[tuple[float, str, str]]:
    """Each distinct limit on the column, in seconds, with whose it is and the colour of the class when it is one's."""
    whose: dict[float, list[str]] = {}
    for name, row in document["slo_classes"].items():
        if row["limits"][column] is not None:
            whose.setdefault(row["limits"][column], []).append(name)
    slo_of = [row["slo_class"] for row in document["classes"].values()]
    for limit, names in whose.items():
        classes = [i for i, slo in enumerate(slo_of) if slo in names]
        colour = class_line(classes[0])["color"] if len(classes) == 1 and len(slo_of) > 1 else GREY
        yield limit, "" if len(document["slo_classes"]) == 1 else f" {', '.join(n or 'others' for n in names)}", colour
