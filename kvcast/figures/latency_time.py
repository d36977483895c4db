"""Percentiles of TTFT and TPOT over the run's clock, under the names of vLLM's Grafana dashboard.

>>> figures.latency_over_time(run.tables["requests"], "ttft").show()
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.style import BLUE, GREY, ORANGE, VERMILLION, Columns, styled

PANELS = {  # metric: (column in seconds, when it is known, the dashboard's panel)
    "ttft": ("ttft_s", "first_token_s", "Time To First Token Latency"),
    "tpot": ("tpot_s", "finish_s", "Time Per Output Token Latency"),
}
LINES = (("P99", 99, VERMILLION), ("P90", 90, ORANGE), ("P50", 50, BLUE))
MOST_BINS = 120
PER_BIN = 100
"""Requests of an average interval, from which a P99 is more than its slowest request."""


def latency_over_time(requests: Columns, metric: str) -> go.Figure:
    """P99, P90, P50 and mean in equal intervals of the run's clock, of the requests that got there in each.

    metric: "ttft", at the first token, or "tpot", at the last one, as a server reports them; completed requests, those
    of the warm-up too. An interval without any leaves a gap."""
    column, known, title = PANELS[metric]
    value_ms, at_s = requests[column] * 1e3, requests[known]
    seen = (requests["status"] == 0) & ~np.isnan(value_ms) & ~np.isnan(at_s)
    middle_s, found = _by_interval(at_s[seen], value_ms[seen])
    figure = go.Figure()
    for (name, colour), y in zip([*((n, c) for n, _, c in LINES), ("Mean", GREY)], found, strict=True):
        figure.add_trace(
            go.Scatter(
                x=middle_s,
                y=y,
                name=name,
                mode="lines",
                line={"color": colour, "width": 1.5, "dash": "dot" if name == "Mean" else "solid"},
                hovertemplate=f"{name}: %{{y:,.4g}} ms<extra></extra>",
            )
        )
    figure.update_yaxes(title=f"{metric.upper()} (ms)", rangemode="tozero")
    figure.update_xaxes(title="time (s)")
    figure.update_layout(hovermode="x unified", meta=_told(title, found))
    return styled(figure, title)


def _told(title: str, found: list[np.ndarray]) -> str:
    peaks = [float(np.nanmax(y)) for y in found if len(y)]
    named = zip((name for name, *_ in LINES), peaks, strict=False)
    told = ", ".join(f"{name} at most {text.milliseconds(peak)}" for name, peak in named)
    return f"{title} over time: {told or 'no request'}."


def _by_interval(at_s: np.ndarray, value_ms: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """(middles [bins], the lines' values [bins] each, ms, the mean last)."""
    bins = min(MOST_BINS, len(at_s) // PER_BIN) or min(1, len(at_s))
    if not bins:
        return np.empty(0), [np.empty(0)] * (len(LINES) + 1)
    edges = np.linspace(0.0, at_s.max(), bins + 1)
    order = np.argsort(at_s, kind="stable")
    cuts = np.searchsorted(at_s[order], edges[1:-1], side="right")
    parts = np.split(value_ms[order], cuts)
    values = [
        np.array([np.percentile(part, q) if len(part) else np.nan for part in parts]) for q in (q for _, q, _ in LINES)
    ]
    values.append(np.array([part.mean() if len(part) else np.nan for part in parts]))
    return (edges[:-1] + edges[1:]) / 2, values
