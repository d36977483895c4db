"""The candidates of a plan: what each costs and attains, and which of them nothing beats.

>>> candidates(plan("examples/demo.toml"))
>>> shares_by_cost(plan("examples/demo.toml"))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, Document, literal, log_ticks, span, styled
from sim.measure.money import HOURS_A_MONTH

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
        figure.add_trace(_ring(best["ttft_ms_p99"], best[cost_of], "the plan"))
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


ENDED = "ended early: at most this"


def shares_by_cost(plan: Document) -> go.Figure:
    """Share of requests within the limits on every fleet that was tried, against its cost: USD a month, GPUs where no
    price is set. Of one whose run was ended early the share's upper end is known."""
    priced = all(c["usd_per_hour"] is not None for c in plan["candidates"])
    figure = go.Figure()
    kinds = {**VERDICTS, ENDED: (GREY, "triangle-down-open")}
    shown = [c for c in plan["candidates"] if c["attainment"]["high"] is not None]

    def kind(c: Document) -> str:
        return ENDED if c["attainment"]["mean"] is None else c["verdict"]

    def cost(c: Document) -> float:
        return c["usd_per_hour"] * HOURS_A_MONTH if priced else c["gpus"]

    def share(c: Document) -> float:
        found = c["attainment"]
        return 100 * (found["high"] if found["mean"] is None else found["mean"])

    target = 100 * (plan["slo"]["attainment"] or 0.0)
    ends = [min(map(cost, shown), default=1.0), max(map(cost, shown), default=1.0)]
    figure.add_trace(
        go.Scatter(
            x=[ends[0] / 1.3, ends[1] * 1.3],
            y=[target] * 2,
            name=f"{target:g} % asked for",
            mode="lines",
            line={"color": GREY, "dash": "dash", "width": 1.5},
            hoverinfo="skip",
        )
    )
    for name, (colour, symbol) in kinds.items():
        mine = [c for c in shown if kind(c) == name]
        if not mine:
            continue
        known = {} if name == ENDED else {"error_y": _interval(mine)}
        figure.add_trace(
            go.Scatter(
                x=[cost(c) for c in mine],
                y=[share(c) for c in mine],
                name=name,
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 10},
                text=[_fleet(c) for c in mine],
                hovertemplate="%{text}<br>%{y:.1f} % within limits<extra>" + name + "</extra>",
                **known,
            )
        )
    best = _answer(plan, shown)
    if best is not None:
        figure.add_trace(_ring(cost(best), share(best), "the answer"))
    ticks = log_ticks(ends[0] / 1.3, ends[1] * 1.3)
    figure.update_xaxes(
        title="cost (USD a month, log scale)" if priced else "GPUs (log scale)",
        type="log",
        range=[np.log10(ends[0] / 1.3), np.log10(ends[1] * 1.3)],
        tickvals=ticks,
        ticktext=[f"{t:,.12g}" for t in ticks],
    )
    figure.update_yaxes(title="requests within the limits (%)")
    return styled(figure, "Fleets that were tried: cost against service")


def _interval(rows: Sequence[Document]) -> dict[str, object]:
    """Error bars in percent."""
    found = [c["attainment"] for c in rows]
    return {
        "array": [100 * (one["high"] - one["mean"]) for one in found],
        "arrayminus": [100 * (one["mean"] - one["low"]) for one in found],
        "thickness": 1.5,
        "width": 4,
    }


def _fleet(candidate: Document) -> str:
    each = candidate["gpus"] // candidate["replicas"]
    return f"{candidate['gpus']} GPUs, {candidate['replicas']} x {each}"


def _ring(x: float, y: float, name: str) -> go.Scatter:
    return go.Scatter(
        x=[x],
        y=[y],
        name=name,
        mode="markers",
        hoverinfo="skip",
        marker={"color": "rgba(0,0,0,0)", "size": 18, "symbol": "circle", "line": {"color": BLUE, "width": 2.5}},
    )


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
