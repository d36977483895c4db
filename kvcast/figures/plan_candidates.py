"""The candidates of a plan: what each costs and attains, and which of them nothing beats.

>>> candidates(plan("examples/demo.toml"))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, Document, literal, log_ticks, span, styled

VERDICTS = {  # of a candidate -> its colour and marker: told apart by shape too
    "meets": (GREEN, "circle"),
    "not shown": (PURPLE, "square-open"),
    "misses": (ORANGE, "diamond-open"),
}
LIMITED = {"ttft_s": ("TTFT", BLUE), "tpot_s": ("TPOT", ORANGE)}


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
