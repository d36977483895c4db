"""What happened when: requests running and waiting, and the life of single requests, over a run and in a window of
it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from kvcast.figures.style import (
    BLUE,
    DECODE,
    FRONT_END,
    LOADING,
    PREEMPTED,
    PREFILL,
    QUEUED,
    Columns,
    Document,
    literal,
    styled,
)

if TYPE_CHECKING:
    from kvcast.studies.request_lives import Life

PHASES = {
    "frontend": FRONT_END,
    "queued": QUEUED,
    "loading": LOADING,
    "prefill": PREFILL,
    "decode": DECODE,
    "preempted": PREEMPTED,
}


def queue(timeline: Columns) -> go.Figure:
    """Requests running and waiting over time, all replicas."""
    figure = go.Figure()
    for column, label, colour in (("running", "running", BLUE), ("waiting", "waiting", QUEUED)):
        figure.add_trace(
            go.Scatter(
                x=timeline["t_s"],
                y=timeline[column],
                name=label,
                mode="lines",
                line={"color": colour, "width": 1.5, "shape": "hv"},
                hovertemplate=f"{label}: %{{y:,}}<extra></extra>",
            )
        )
    figure.update_yaxes(title="requests", rangemode="tozero")
    figure.update_xaxes(title="time (s)")
    figure.update_layout(hovermode="x unified")
    return styled(figure, "Requests running and waiting")


def request_life(rows: Sequence[tuple[str, Sequence[tuple]]]) -> go.Figure:
    """One bar a request, from its arrival: queued, loading from cache tiers, prefill chunks, decode, preempted.

    rows: (label, [(phase, start_s, end_s, tokens), ...]) in order of time, as `Report.life` holds them; `lives_of`
    makes coarser ones from the requests table."""
    figure = go.Figure()
    for phase, colour in PHASES.items():
        bars = [(label, p) for label, life in rows for p in life if p[0] == phase]
        if not bars:
            continue
        starts = {label: life[0][1] for label, life in rows if life}
        figure.add_trace(
            go.Bar(
                y=[label for label, _ in bars],
                base=[p[1] - starts[label] for label, p in bars],
                x=[p[2] - p[1] for _, p in bars],
                name=phase,
                orientation="h",
                marker={"color": colour, "line": {"width": 0.5, "color": "rgba(255,255,255,0.6)"}},
                customdata=[p[3] for _, p in bars],
                hovertemplate=(
                    f"%{{y}}, {phase}: %{{x:.3f}} s from %{{base:.3f}} s, %{{customdata:,}} tokens<extra></extra>"
                ),
            )
        )
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_xaxes(title="time since arrival (s)", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return styled(figure, "A request's life")


def lives_of(document: Document, aggregates: Document, count: int = 8) -> list[tuple[str, list[tuple]]]:
    """The completed requests of the window with the highest TTFT (`kvcast.store.aggregates`): whole phases.

    Prefill is first schedule to first token, chunks not told apart; a preemption's time is drawn at the end of the
    decode."""
    names = list(document["classes"])
    rows = []
    for row in aggregates["slowest"][:count]:
        computed, preempted = int(row["prompt_tokens"] - row["hit_tokens"]), float(row["preempted_s"])
        back = row["finish_s"] - preempted
        start_s = min(row["admit_s"] + row.get("load_s", 0.0), row["first_token_s"])
        life = [("queued", row["arrival_s"], row["admit_s"], 0), ("prefill", start_s, row["first_token_s"], computed)]
        life[1:1] = [("loading", row["admit_s"], start_s, 0)] if start_s > row["admit_s"] else []
        if row.get("frontend_s"):
            queued_s = row["arrival_s"] + row["frontend_s"]
            life[:1] = [("frontend", row["arrival_s"], queued_s, 0), ("queued", queued_s, row["admit_s"], 0)]
        life += [("decode", row["first_token_s"], back, int(row["output_tokens"]))]
        life += [("preempted", back, row["finish_s"], int(row["recomputed_tokens"]))] if preempted else []
        rows.append((f"#{row['request']} {literal(names[row['class_id']])}", life))
    return rows


# -- a window ----------------------------------------------------------------------------------------------------------


def lives(shown: Sequence[Life], start_s: float, end_s: float) -> go.Figure:
    """The lives of requests on the run's clock, a row a request in order of arrival; what lies outside the window is
    cut by the axis.

    Prefill chunks stand side by side with a thin gap. shown: of `kvcast.studies.request_lives`.
    """
    figure = go.Figure()
    label = {life.request: f"#{life.request} {literal(life.class_name)}" for life in shown}
    for phase, colour in PHASES.items():
        bars = [(life, p) for life in shown for p in life.phases if p[0] == phase and p[2] > start_s and p[1] < end_s]
        if not bars:
            continue
        figure.add_trace(
            go.Bar(
                y=[label[life.request] for life, _ in bars],
                base=[p[1] for _, p in bars],
                x=[p[2] - p[1] for _, p in bars],
                name=phase,
                orientation="h",
                marker={"color": colour, "line": {"width": 0.5, "color": "rgba(255,255,255,0.7)"}},
                customdata=[
                    [p[2], p[3], life.replica, life.prompt_tokens, life.hit_tokens, life.output_tokens]
                    for life, p in bars
                ],
                hovertemplate="%{y}, replica %{customdata[2]}<br>"
                + phase
                + ": %{x:.4g} s, from %{base:.3f} to %{customdata[0]:.3f} s, %{customdata[1]:,} tokens<br>"
                "prompt %{customdata[3]:,} (%{customdata[4]:,} from cache), output %{customdata[5]:,}<extra></extra>",
            )
        )
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_xaxes(title="time of the run (s)", range=[start_s, end_s])
    figure.update_yaxes(
        autorange="reversed",
        type="category",
        categoryorder="array",
        categoryarray=[label[life.request] for life in shown],
        automargin=True,
    )
    return styled(figure, f"Lives of {len(shown)} requests").update_layout(height=110 + 22 * max(len(shown), 4))


def in_system(counts: Columns) -> go.Figure:
    """Requests waiting and running over a window, all replicas. counts: of `kvcast.studies.request_lives`."""
    figure = go.Figure()
    for label, values, colour in (
        ("running", counts["running"].sum(axis=0), BLUE),
        ("waiting", counts["waiting"], QUEUED),
    ):
        figure.add_trace(
            go.Scatter(
                x=counts["t_s"],
                y=values,
                name=label,
                mode="lines",
                line={"color": colour, "width": 2, "shape": "hv"},
                hovertemplate=f"{label}: %{{y:,}}<extra></extra>",
            )
        )
    most = max(int(counts["running"].sum(axis=0).max(initial=0)), int(counts["waiting"].max(initial=0)))
    figure.update_yaxes(title="requests", rangemode="tozero", **({"dtick": 1} if most <= 8 else {}))
    figure.update_xaxes(title="time of the run (s)")
    figure.update_layout(hovermode="x unified")
    return styled(figure, "Requests running and waiting")


def by_replica(counts: Columns) -> go.Figure:
    """Requests running on each replica over a window: darker is more."""
    running = counts["running"]
    figure = go.Figure(
        go.Heatmap(
            x=counts["t_s"],
            y=[f"replica {i}" for i in range(len(running))],
            z=running,
            zmin=0,
            colorscale=[[0, "rgba(0,114,178,0.06)"], [1, BLUE]],  # pale on light and on dark
            colorbar={"title": {"text": "running"}, "thickness": 12, "dtick": max(1, int(running.max(initial=0)) // 2)},
            hovertemplate="%{y}, %{x:.4g} s: %{z} running<extra></extra>",
        )
    )
    figure.update_xaxes(title="time of the run (s)")
    figure.update_yaxes(autorange="reversed", automargin=True)
    return styled(figure, "Running requests by replica").update_layout(height=max(190, 110 + 18 * len(running)))


def window_of(timeline: Columns, start_s: float, end_s: float) -> dict[str, np.ndarray]:
    """The run's timeline from the last point before the window to the first one after it."""
    first = max(int(np.searchsorted(timeline["t_s"], start_s)) - 1, 0)
    last = int(np.searchsorted(timeline["t_s"], end_s)) + 1
    return {name: column[first:last] for name, column in timeline.items()}
