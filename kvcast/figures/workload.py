"""A workload before it is simulated: what a class's prompts are made of, and when requests come.

>>> prompt_layers({"as ordered": layers.parts(c)}, reusable={"as ordered": 20_300})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.style import CLASS_COLOURS, GREEN, GREY, HIT, ORANGE, SKY, literal, short, styled, unjudged

SCOPES = {"global": HIT, "project": SKY, "session": GREEN, "dynamic": ORANGE}
SHARED_BY = {
    "global": "same for everyone",
    "project": "shared in a project",
    "session": "shared in a session",
    "dynamic": "new in every request",
}
BINS = 120


class Part(Protocol):
    """A stretch of a prompt."""

    @property
    def name(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def tokens(self) -> float: ...
    @property
    def reusable(self) -> bool: ...


def prompt_layers(bars: Mapping[str, Sequence[Part]], reusable: Mapping[str, float] | None = None) -> go.Figure:
    """One bar a prompt, its layers in the order the model reads them; hatched: cannot be reused, though it may be the
    same text.

    reusable: tokens of each prompt that an unlimited cache reuses on average, a mark on its bar.
    """
    figure = go.Figure()
    total = max((sum(part.tokens for part in parts) for parts in bars.values()), default=0.0)
    seen: set[str] = set()
    for label, parts in bars.items():
        at = 0.0
        for part in parts:
            lost = not part.reusable and part.scope != "dynamic"
            figure.add_trace(
                go.Bar(
                    y=[label],
                    x=[part.tokens],
                    base=[at],
                    orientation="h",
                    name=SHARED_BY[part.scope],
                    legendgroup=part.scope,
                    showlegend=part.scope not in seen,
                    marker={
                        "color": SCOPES[part.scope],
                        "line": {"width": 1, "color": "rgba(255,255,255,0.8)"},
                        "opacity": 0.55 if lost else 1,
                        "pattern": {
                            "shape": "/" if lost else "",
                            "solidity": 0.15,
                            "fillmode": "overlay",
                            "fgcolor": "white",
                        },
                    },
                    text=f"{literal(part.name)}<br>{text.count(part.tokens)}" if part.tokens > total / 14 else "",
                    textposition="inside",
                    insidetextanchor="middle",
                    textangle=0,
                    hovertemplate=(
                        f"{literal(part.name)}, {part.scope}: {text.count(part.tokens)}"
                        f" tokens{', behind a changed text: not reused' if lost else ''}<extra></extra>"
                    ),
                )
            )
            seen.add(part.scope)
            at += part.tokens
    for label, tokens in (reusable or {}).items():
        figure.add_trace(
            go.Scatter(
                x=[tokens],
                y=[label],
                mode="markers",
                name="reused by an unlimited cache",
                legendgroup="reused",
                showlegend="reused" not in seen,
                marker={"symbol": "line-ns-open", "size": 46, "line": {"width": 4, "color": GREY}, "color": GREY},
                hovertemplate=f"an unlimited cache reuses {text.count(tokens)} tokens<extra></extra>",
            )
        )
        seen.add("reused")
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_xaxes(title="tokens of the average prompt", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return styled(figure, "What a prompt is made of").update_layout(height=150 + 75 * len(bars))


def arrivals(
    times_s: Mapping[str, np.ndarray], what: str = "sessions", warmup_s: float = 0.0, end_s: float | None = None
) -> go.Figure:
    """Arrivals per second over time, in BINS intervals, stacked by class, what is not judged in grey. times_s: class ->
    arrival times, seconds.

    end_s: where the run ends; what would come later never comes.
    """
    figure = go.Figure()
    last_s = max((float(t.max()) for t in times_s.values() if len(t)), default=1.0) or 1.0
    last_s = last_s if end_s is None else min(end_s, last_s)
    edges = np.linspace(0.0, last_s, BINS + 1)
    unit, name = (3600.0, "h") if last_s > 2 * 86400 else (60.0, "min") if last_s > 1200 else (1.0, "s")
    for i, (name_of_class, t) in enumerate(times_s.items()):
        label, rate = literal(name_of_class), np.histogram(t, edges)[0] / (edges[1] - edges[0])
        colour = CLASS_COLOURS[i % len(CLASS_COLOURS)]
        figure.add_trace(
            go.Scatter(
                x=edges[:-1] / unit,
                y=rate,
                name=short(label),
                mode="lines",
                stackgroup="all",
                line={"shape": "hv", "width": 0.5, "color": colour},
                fillcolor=colour,
                hovertemplate=f"{label}: %{{y:.3g}} {what}/s<extra></extra>",
            )
        )
    unjudged(figure, warmup_s / unit)
    figure.update_yaxes(title=f"{what}/s", rangemode="tozero")
    figure.update_xaxes(title=f"time ({name})", range=[0, last_s / unit])
    figure.update_layout(hovermode="x unified", showlegend=len(times_s) > 1)
    return styled(figure, f"When {what} come").update_layout(height=260)


def demand(curve: Sequence[float], period_s: float, window: tuple[float, float] | None = None) -> go.Figure:
    """How the load follows the clock over one period, times the mix's own rate, in slots of equal length. window: what
    is judged, seconds of the curve's clock."""
    hours = np.linspace(0.0, period_s / 3600.0, len(curve) + 1)
    figure = go.Figure(
        go.Scatter(
            x=hours,
            y=[*curve, curve[-1]],
            name="load",
            mode="lines",
            fill="tozeroy",
            line={"shape": "hv", "width": 1.5, "color": SKY},
            hovertemplate="hour %{x:.3g}: %{y:.3g} times<extra></extra>",
        )
    )
    for begins, ends in _within(window, period_s) if window else ():
        figure.add_vrect(x0=begins, x1=ends, fillcolor=ORANGE, opacity=0.25, line_width=0, layer="below")
    if window:
        figure.add_trace(
            go.Scatter(x=[None], y=[None], name="judged", mode="markers", marker={"color": ORANGE, "symbol": "square"})
        )
    figure.update_yaxes(title="times its own rate", rangemode="tozero")
    figure.update_xaxes(title="time (h)", range=[0, hours[-1]])
    return styled(figure, "Load over the day").update_layout(height=260)


def _within(window: tuple[float, float], period_s: float) -> list[tuple[float, float]]:
    """The window in hours of one period: in two parts where it goes on into the next one."""
    begins_s, lasts_s = window[0] % period_s, min(window[1] - window[0], period_s)
    ends_s, hour = begins_s + lasts_s, 3600.0
    first = (begins_s / hour, min(ends_s, period_s) / hour)
    return [first] if ends_s <= period_s else [first, (0.0, (ends_s - period_s) / hour)]
