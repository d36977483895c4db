"""What a fleet can carry and what it costs: goodput and latency against rate, candidates, what binds.

The one idea: all are drawn from the document of `kvcast plan` (`plan.json`); docs/plan.md has its keys.

    >>> figures.goodput_by_rate(json.load(open("plans/demo/plan.json"))).show()
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Document,
    literal,
    log_ticks,
    span,
    styled,
)

OFFERED, CAPACITY, KNEE = PURPLE, GREEN, ORANGE
VERDICTS = {  # of a candidate -> its colour and marker: told apart by shape too
    "meets": (GREEN, "circle"),
    "not shown": (PURPLE, "square-open"),
    "misses": (ORANGE, "diamond-open"),
}
LIMITED = {"ttft_s": ("TTFT", BLUE), "tpot_s": ("TPOT", ORANGE)}


def goodput_by_rate(plan: Document) -> go.Figure:
    """Good requests per second against the offered load, with its interval, the knee, the SLO capacity and the load of
    the question."""
    rows, unit = plan["rates"], _unit(plan)
    load, rate, goodput = _column(rows, "load"), _column(rows, "rate_per_s"), _column(rows, "goodput_per_s")
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
    low, high = _column(rows, "attainment_low"), _column(rows, "attainment_high")
    figure.add_trace(
        go.Scatter(
            x=np.concatenate([load, load[::-1]]),
            y=np.concatenate([rate * high, (rate * low)[::-1]]),
            name="95 % interval",
            mode="none",
            fill="toself",
            fillcolor="rgba(0,114,178,0.18)",
            showlegend=False,
            hoverinfo="skip",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=load,
            y=goodput,
            customdata=100 * _column(rows, "attainment"),
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
    load, steady = _column(rows, "load"), [row["stable"] is not False for row in rows]
    figure = go.Figure()
    for key, name, colour in (("ttft", "TTFT", BLUE), ("tpot", "TPOT", ORANGE)):
        for stat, dash in (("p99", "solid"), ("p50", "dot")):
            figure.add_trace(
                go.Scatter(
                    x=load,
                    y=np.where(steady, _column(rows, f"{key}_ms_{stat}"), np.nan),
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


# -- candidates --------------------------------------------------------------------------------------------------------


def candidates(plan: Document) -> go.Figure:
    """Cost of every candidate that has a latency against its TTFT p99, with the Pareto front of those that meet
    the target: nothing there is both cheaper and faster.

    Cost is USD an hour, GPUs where no price is set. The latency of an unstable one only says how long its run was.
    """
    priced = any(c["usd_per_hour"] is not None for c in plan["candidates"])
    cost_of, unit = ("usd_per_hour", "USD an hour") if priced else ("gpus", "GPUs")
    shown = [
        c
        for c in plan["candidates"]
        if c["ttft_ms_p99"] is not None and c["stable"] is not False and c[cost_of] is not None
    ]
    figure = go.Figure()
    front = _front([(c["ttft_ms_p99"], c[cost_of]) for c in shown if c["verdict"] == "meets"])
    if len(front) > 1:
        x, y = zip(*front, strict=True)
        figure.add_trace(
            go.Scatter(
                x=x,
                y=y,
                name="Pareto front",
                mode="lines",
                line={"color": GREY, "width": 1.5, "shape": "hv"},
                hoverinfo="skip",
            )
        )
    for verdict, (colour, symbol) in VERDICTS.items():
        mine = [c for c in shown if c["verdict"] == verdict]
        if mine:
            figure.add_trace(
                go.Scatter(
                    x=[c["ttft_ms_p99"] for c in mine],
                    y=[c[cost_of] for c in mine],
                    name=verdict,
                    mode="markers",
                    marker={"color": colour, "symbol": symbol, "size": 9, "opacity": 0.85},
                    text=[_told(c) for c in mine],
                    hovertemplate="%{text}<br>TTFT p99 %{x:.4g} ms, %{y:,.4g} " + unit + "<extra></extra>",
                )
            )
    best = _answer(plan, shown)
    if best is not None:
        figure.add_trace(
            go.Scatter(
                x=[best["ttft_ms_p99"]],
                y=[best[cost_of]],
                name="the plan",
                mode="markers",
                hoverinfo="skip",
                marker={
                    "color": "rgba(0,0,0,0)",
                    "size": 18,
                    "symbol": "circle",
                    "line": {"color": BLUE, "width": 2.5},
                },
            )
        )
    low, high = span(figure)
    ticks = log_ticks(low, high)
    figure.update_xaxes(
        title="TTFT p99 (ms, log scale)",
        type="log",
        range=[np.log10(low / 1.3), np.log10(high * 1.3)],
        tickvals=ticks,
        ticktext=[f"{t:,.12g}" for t in ticks],
    )
    figure.update_yaxes(title=f"cost ({unit})", rangemode="tozero")
    return styled(figure, "Candidates: cost against latency")


def _told(candidate: Document) -> str:
    return (
        f"{text.count(candidate['replicas'])} replicas,"
        f" {literal(candidate['label'])}<br>{text.percent(candidate['attainment']['mean'])} within limits"
    )


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both, by rising x."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not front or y < front[-1][1]:
            front.append((x, y))
    return front


def _answer(plan: Document, among: Sequence[Document]) -> Document | None:
    """The candidate that the plan chose."""
    answer = plan["answer"]
    if not answer["feasible"]:
        return None
    return next((c for c in among if (c["label"], c["replicas"]) == (answer["label"], answer["replicas"])), None)


def growth(plan: Document) -> go.Figure:
    """Fewest GPUs against load, as it is and with the first advice, beside a fleet that would grow as its load does."""
    rows, now = plan["growth"], plan["answer"]["gpus"]
    factors = [1.0, *(row["factor"] for row in rows)]
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=factors,
            y=[now * factor for factor in factors],
            name="in step with the load",
            mode="lines",
            line={"color": GREY, "dash": "dot", "width": 1.5},
            hoverinfo="skip",
        )
    )
    advised = [row["advised"] for row in rows if row["advised"]]
    sides = [("as it is", BLUE, "solid", [now, *_column(rows, "gpus")])]
    sides += (
        [
            (
                "with the first advice",
                ORANGE,
                "dash",
                [plan["advice"][0]["after"]["gpus"] or now, *_column(advised, "gpus")],
            )
        ]
        if advised
        else []
    )
    for name, colour, dash, gpus in sides:
        figure.add_trace(
            go.Scatter(
                x=factors,
                y=gpus,
                name=name,
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2.5},
                marker={"size": 8},
                hovertemplate=f"{name}: %{{y:,}} GPUs at %{{x:g}} times the load<extra></extra>",
            )
        )
    figure.update_xaxes(title="load (× what the plan is for)", rangemode="tozero")
    figure.update_yaxes(title="GPUs", rangemode="tozero")
    return styled(figure, "Fewest GPUs against load")


def binding(plan: Document) -> go.Figure:
    """What 20 % more of each resource adds to attainment, in percentage points with its interval, the most first."""
    found = plan["binding"]
    rows = sorted((row for row in found["changes"] if row["gain"] is not None), key=lambda row: row["gain"])
    gain, low, high = (100 * _column(rows, key) for key in ("gain", "gain_low", "gain_high"))
    figure = go.Figure(
        go.Bar(
            y=[f"{row['resource']} (estimate)" if row.get("estimate") else row["resource"] for row in rows],
            x=gain,
            orientation="h",
            showlegend=False,
            customdata=100 * _column(rows, "attainment"),
            error_x={
                "type": "data",
                "symmetric": False,
                "array": high - gain,
                "arrayminus": gain - low,
                "thickness": 1.5,
                "width": 4,
                "color": GREY,
            },
            marker={"color": [ORANGE if row["resource"] == found["resource"] else SKY for row in rows]},
            hovertemplate="20 % more %{y}: %{x:+.2f} points, %{customdata:.1f} % within limits<extra></extra>",
        )
    )
    figure.update_layout(bargap=0.4)
    figure.update_xaxes(
        title="gain in attainment, 95 % interval (percentage points, %)", zeroline=True, zerolinecolor=GREY
    )
    return styled(
        figure,
        (
            f"What 20 % more would add at {found['load']:.3g} {found['unit']}"
            if found.get("load") is not None
            else "What 20 % more would add"
        ),
    )


def _column(rows: Sequence[Document], key: str) -> np.ndarray:
    """A key of the rows as numbers, NaN where it is not known."""
    return np.array([np.nan if row[key] is None else row[key] for row in rows], float)
