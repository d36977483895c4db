"""How every figure looks: Okabe and Ito's colours, fixed per meaning, and a layout that leaves text and background to
the theme.

The one idea: the same thing has the same colour on every page (told apart by colour-blind readers), and nothing here
knows dark from light, so one figure reads on both.

    return styled(figure, "TTFT distribution")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

BLUE, ORANGE, GREEN, VERMILLION, SKY, PURPLE, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#8c8c8c",
)
HIT, PREFILL, DECODE, QUEUED, LOADING, PREEMPTED = BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION
FRONT_END = GREY
"""Tokens and time of a request: from cache, computed, output; waiting, loading from a tier, thrown out."""
CLASS_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY)
DASHES = ("solid", "dash", "dot", "dashdot")

Columns = Mapping[str, np.ndarray]
Document = Mapping[str, Any]


def interval_band(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> go.Scatter:
    """The area between two curves, float64 [n] each."""
    return go.Scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        name="95 % interval",
        mode="none",
        fill="toself",
        fillcolor="rgba(0,114,178,0.18)",
        showlegend=False,
        hoverinfo="skip",
    )


def styled(figure: go.Figure, title: str) -> go.Figure:
    """Title and legend above the plot, room for the axes' words in any template; text colour and background are the
    theme's."""
    figure.update_xaxes(automargin=True).update_yaxes(automargin=True)
    return figure.update_layout(
        title={
            "text": title,
            "font": {"size": 15},
            "x": 0,
            "xanchor": "left",
            "yref": "container",
            "y": 0.98,
            "yanchor": "top",
        },
        height=330 + 19 * max(0, _legend_rows(figure) - 2),
        margin={"l": 10, "r": 10, "t": 66, "b": 10},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0, "title": None},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )


def _legend_rows(figure: go.Figure) -> int:
    """Rows of the legend where the figure is half a page wide, about: the plot must not shrink under them."""
    names = [str(trace.name or "") for trace in figure.data if trace.showlegend is not False]
    return -(-sum(45 + 7 * len(name) for name in names) // 520)


def unjudged(figure: go.Figure, until: float) -> go.Figure:
    """The figure of something over time with its warm-up in grey, which ends at `until`, in the axis's unit."""
    if until > 0:
        figure.add_vrect(
            x0=0,
            x1=until,
            fillcolor=GREY,
            opacity=0.3,
            line_width=0,
            layer="below",
            annotation={"text": "warm-up, not judged", "font": {"size": 11}},
            annotation_position="top left",
        )
    return figure


def marked(figure: go.Figure, document: Document) -> go.Figure:
    """The figure of something over the run's clock with its warm-up in grey, its shocks in orange and when the fleet
    was back from each. document: a run's summary."""
    begins_s = document["window"]["start_s"]
    unjudged(figure, begins_s)
    for row in document.get("shocks", ()):
        start_s = begins_s + row["at_s"]
        stop_s = start_s + row["lasts_s"]
        told = {"text": row["kind"], "font": {"size": 11}}
        if row["lasts_s"]:
            figure.add_vrect(x0=start_s, x1=stop_s, fillcolor=VERMILLION, opacity=0.18, line_width=0, layer="below")
        figure.add_vline(  # under the words of the warm-up, which are wider than it on a narrow page
            x=start_s,
            line={"color": VERMILLION, "width": 1.5},
            annotation={**told, "yshift": -14},
            annotation_position="top right",
        )
        if row["recovered_s"] is not None:
            figure.add_vline(
                x=stop_s + row["recovered_s"],
                line={"color": GREEN, "width": 1.5, "dash": "dash"},
                annotation={"text": "back", "font": {"size": 11}},
                annotation_position="bottom right",  # a shock that is soon over has its own name above
            )
    return figure


def literal(name: str) -> str:
    """A name as plotly shows it letter for letter: no tag, entity or template in it is acted on, for a character
    without width breaks them."""
    return re.sub(r"([<&%])(?=\S)", "\\1\u200b", name)


LEGEND_CHARACTERS = 34


def short(name: str) -> str:
    """A class's name as a legend has room for it: a long one loses its middle. Hovers and sentences say the whole."""
    half = LEGEND_CHARACTERS // 2
    return name if len(name) <= LEGEND_CHARACTERS else f"{name[:half]}…{name[1 - half :]}"


def class_line(i: int) -> dict[str, Any]:
    return {
        "color": CLASS_COLOURS[i % len(CLASS_COLOURS)],
        "dash": DASHES[i // len(CLASS_COLOURS) % len(DASHES)],
        "width": 2.5,
    }


def span(figure: go.Figure, axis: str = "x") -> tuple[float, float]:
    """Least and greatest positive number of the figure's lines on an axis; 1, 1 without any."""
    numbers = np.concatenate(
        [np.array([np.nan if v is None else v for v in trace[axis]], float) for trace in figure.data] or [np.ones(1)]
    )
    numbers = numbers[numbers > 0] if (numbers > 0).any() else np.ones(1)
    return float(numbers.min()), float(numbers.max())


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten around low to high; powers alone where that would be many, even steps where it
    would be few."""
    if high < 3 * low:
        wanted = (1.2 * high - 0.8 * low) / 6
        power = 10.0 ** np.floor(np.log10(wanted))
        step = power * next(nice for nice in (1, 2, 5, 10) if nice * power >= wanted)
        return [float(step * i) for i in range(int(np.ceil(0.8 * low / step)), int(1.2 * high / step) + 1)]
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    steps = (1, 2, 5) if last - first <= 4 else (1,)
    return [step * 10.0**power for power in range(first, last + 1) for step in steps]
