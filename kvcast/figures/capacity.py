"""What a fleet can carry and what it costs: goodput and latency against rate, candidates, what binds.

The one idea: all are drawn from the document of `kvcast plan` (`plan.json`); docs/plan.md has its keys.

    >>> figures.goodput_by_rate(json.load(open("plans/demo/plan.json"))).show()
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.plan_candidates import LIMITED
from kvcast.figures.plan_growth import values_of
from kvcast.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILLION,
    Document,
    interval_band,
    literal,
    log_ticks,
    span,
    styled,
)

OFFERED, CAPACITY, KNEE = PURPLE, GREEN, ORANGE


def goodput_by_rate(plan: Document) -> go.Figure:
    """Good requests per second against the offered load, with its interval, the knee, the SLO capacity and the load of
    the question."""
    rows, unit = plan["rates"], _unit(plan)
    load, rate, goodput = values_of(rows, "load"), values_of(rows, "rate_per_s"), values_of(rows, "goodput_per_s")
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=[0, *load],
            y=[0, *rate],
            name="all requests good",
            mode="lines",
            line={"color": GREY, "dash": "dot", "width": 1.5},
            hoverinfo="skip",
        )
    )
    low, high = values_of(rows, "attainment_low"), values_of(rows, "attainment_high")
    figure.add_trace(interval_band(load, rate * low, rate * high))
    figure.add_trace(
        go.Scatter(
            x=load,
            y=goodput,
            customdata=100 * values_of(rows, "attainment"),
            name="goodput",
            mode="lines+markers",
            line={"color": BLUE, "width": 2.5},
            marker=_stable_markers(rows),
            hovertemplate=(
                f"%{{x:.4g}} {unit} offered: %{{y:.3g}} good requests/s (%{{customdata:.1f}} %)<extra></extra>"
            ),
        )
    )
    _marks(figure, plan, 0.0, float(np.nanmax(rate, initial=0.0)))
    figure.update_xaxes(title=f"offered load ({unit})", rangemode="tozero")
    figure.update_yaxes(title="goodput (requests/s)", rangemode="tozero")
    return styled(figure, "Goodput against load")


def latency_by_rate(plan: Document) -> go.Figure:
    """TTFT and TPOT against the offered load, p50 and p99, with their limits; a load at which the fleet is unstable has
    no latency."""
    rows, unit = plan["rates"], _unit(plan)
    load, steady = values_of(rows, "load"), [row["stable"] is not False for row in rows]
    figure = go.Figure()
    for key, name, colour in (("ttft", "TTFT", BLUE), ("tpot", "TPOT", ORANGE)):
        for stat, dash in (("p99", "solid"), ("p50", "dot")):
            figure.add_trace(
                go.Scatter(
                    x=load,
                    y=np.where(steady, values_of(rows, f"{key}_ms_{stat}"), np.nan),
                    name=f"{name} {stat}",
                    mode="lines+markers",
                    line={"color": colour, "dash": dash, "width": 2.5 if stat == "p99" else 1.5},
                    marker={"size": 5},
                    connectgaps=False,
                    hovertemplate=f"%{{x:.4g}} {unit}: {name} {stat} %{{y:.4g}} ms<extra></extra>",
                )
            )
    for column, limit_s, whose in _limits(plan):
        name, colour = LIMITED[column]
        label = f"{name} limit{whose}: {text.seconds(limit_s)}"
        figure.add_trace(
            go.Scatter(
                x=[0, float(np.nanmax(load, initial=0.0))],
                y=[limit_s * 1e3] * 2,
                name=label,
                mode="lines+text",
                line={"color": colour, "dash": "dash", "width": 1},
                showlegend=False,
                text=[label, ""],
                textposition="top right",
                textfont={"size": 11},
                hovertemplate=f"{label}<extra></extra>",
            )
        )
    low, high = span(figure, "y")
    _marks(figure, plan, low, high, legend=False)
    ticks = log_ticks(low, high)
    figure.update_xaxes(title=f"offered load ({unit})", rangemode="tozero")
    figure.update_yaxes(
        title="latency (ms, log scale)", type="log", tickvals=ticks, ticktext=[f"{t:,.12g}" for t in ticks]
    )
    return styled(figure, "Latency against load")


def _unit(plan: Document) -> str:
    return (plan["capacity"] or {}).get("unit", "requests/s")


def _marks(figure: go.Figure, plan: Document, low: float, high: float, legend: bool = True) -> None:
    """Vertical lines: the load of the question, the knee, the SLO capacity with its interval; named in the legend of
    one of two neighbours.

    The knee is a rate: it has no place where the load is told in users.
    """
    found, unit = plan["capacity"] or {}, _unit(plan)
    if found.get("low") is not None and found.get("high") is not None:
        figure.add_vrect(
            x0=found["low"], x1=found["high"], fillcolor=CAPACITY, opacity=0.15, line_width=0, layer="below"
        )
    knee = plan["knee_per_s"] if unit == "requests/s" else None
    for x, label, colour, dash in (
        (found.get("offered_rate_per_s"), "your load", OFFERED, "solid"),
        (knee, "knee", KNEE, "dashdot"),
        (found.get("slo_capacity_per_s"), "SLO capacity", CAPACITY, "dash"),
    ):
        if x is not None:
            told = f"{label} {x:.3g}" if x < 1000 else f"{label} {x:,.0f}"
            figure.add_trace(
                go.Scatter(
                    x=[x, x],
                    y=[low, high],
                    name=told,
                    mode="lines",
                    line={"color": colour, "dash": dash, "width": 1.5},
                    showlegend=legend,
                    hovertemplate=f"{told} {unit}<extra></extra>",
                )
            )


def _stable_markers(rows: Sequence[Document]) -> dict[str, list | int]:
    steady = [row["stable"] is not False for row in rows]
    return {
        "size": 8,
        "color": [BLUE if s else VERMILLION for s in steady],
        "symbol": ["circle" if s else "x" for s in steady],
    }


def _limits(plan: Document) -> list[tuple[str, float, str]]:
    """Each distinct limit: (column, seconds, whose)."""
    slo = plan["slo"]
    found: dict[tuple[str, float], list[str]] = {}
    for name, limits in [*slo["classes"].items(), ("", slo["limits"])]:
        for column in LIMITED:
            if limits[column] is not None:
                found.setdefault((column, limits[column]), []).append(name)
    return [
        (column, limit, f" {', '.join(literal(n) for n in names if n)}" if any(names) else "")
        for (column, limit), names in found.items()
    ]
