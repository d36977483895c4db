"""How far an answer reaches: users against the share of requests within their limits, and against what they wait.

>>> within_limits_by_users(ask(use="chat", users=300))
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from kvcast.figures.capacity import latency_by_rate
from kvcast.figures.style import BLUE, GREEN, GREY, PURPLE, Document, interval_band, styled


def within_limits_by_users(card: Document) -> go.Figure:
    """Share of requests within the limits at every load that the card's fleet was simulated at, in users, with its
    interval, the target, the load of the question and the highest one that the fleet is an answer for."""
    rows = sorted(card["loads"], key=lambda row: row["users"])
    users, share, low, high = (
        np.array([np.nan if row[key] is None else row[key] for row in rows], float)
        for key in ("users", "attainment", "attainment_low", "attainment_high")
    )
    figure = go.Figure()
    figure.add_trace(interval_band(users, 100 * low, 100 * high))
    figure.add_trace(
        go.Scatter(
            x=users,
            y=100 * share,
            name="within the limits",
            mode="lines+markers",
            line={"color": BLUE, "width": 2.5},
            marker={"size": 8, "symbol": ["x" if row["stable"] is False else "circle" for row in rows]},
            hovertemplate="%{x:,.0f} users: %{y:.1f} %<extra></extra>",
        )
    )
    target = 100 * card["question"]["share"]
    figure.add_trace(_line([0.0, float(np.nanmax(users, initial=0.0))], [target] * 2, f"{target:g} % asked for", GREY))
    bottom = float(min(np.nanmin(100 * low, initial=100.0), target - 5))
    load = card["load"]["users"]
    figure.add_trace(_line([load, load], [bottom, 100.0], f"your load, {load:,.0f} users", PURPLE, "solid"))
    if card["gives_way"] is not None and not card["gives_way"]["at_least"]:
        most = card["gives_way"]["next_gpu_users"]
        figure.add_trace(_line([most, most], [bottom, 100.0], f"next GPU above {most:,} users", GREEN))
    figure.update_xaxes(title="users at once", rangemode="tozero")
    figure.update_yaxes(title="requests within the limits (%)", range=[bottom, 101])
    return styled(figure, "How many users this fleet serves")


def latency_by_users(card: Document) -> go.Figure:
    """TTFT and TPOT, p50 and p99, at every load that the card's fleet was simulated at, in users, with their limits."""
    plan, capacity = card["plan"], card["plan"]["capacity"]
    factor = card["load"]["users"] / capacity["offered_rate_per_s"]
    told = {name: capacity[name] and capacity[name] * factor for name in ("offered_rate_per_s", "slo_capacity_per_s")}
    rows = sorted(({**row, "load": row["load"] * factor} for row in plan["rates"]), key=lambda row: row["load"])
    figure = latency_by_rate({**plan, "rates": rows, "capacity": {**told, "unit": "users"}})
    figure.update_xaxes(title="users at once")
    figure.for_each_trace(lambda trace: trace.update(showlegend=not trace.text))  # a limit has its name on its line
    return styled(figure, "What users wait for")


def _line(x: list[float], y: list[float], name: str, colour: str, dash: str = "dash") -> go.Scatter:
    return go.Scatter(
        x=x,
        y=y,
        name=name,
        mode="lines",
        line={"color": colour, "dash": dash, "width": 1.5},
        hovertemplate=f"{name}<extra></extra>",
    )
