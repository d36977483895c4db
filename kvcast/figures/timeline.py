"""What happened when: requests running and waiting, and the life of single requests.
"""
from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from kvcast.figures.style import BLUE, DECODE, LOADING, PREEMPTED, PREFILL, QUEUED, Columns, Document, styled

PHASES = {"queued": QUEUED, "loading": LOADING, "prefill": PREFILL, "decode": DECODE, "preempted": PREEMPTED}


def queue(timeline: Columns) -> go.Figure:
    """Requests running and waiting over time, all replicas."""
    figure = go.Figure()
    for column, label, colour in (("running", "running", BLUE), ("waiting", "waiting", QUEUED)):
        figure.add_trace(go.Scatter(x=timeline["t_s"], y=timeline[column], name=label, mode="lines", line={"color": colour, "width": 1.5, "shape": "hv"},
                                    hovertemplate=f"{label}: %{{y:,}}<extra></extra>"))
    figure.update_yaxes(title="requests", rangemode="tozero")
    figure.update_xaxes(title="time (s)")
    figure.update_layout(hovermode="x unified")
    return styled(figure, "Requests running and waiting")


def request_life(rows: Sequence[tuple[str, Sequence[tuple]]]) -> go.Figure:
    """One bar a request, from its arrival: queued, loading from cache tiers, prefill chunks, decode, preempted.

    rows: (label, [(phase, start_s, end_s, tokens), ...]) in order of time, as `Report.life` holds them; `lives_of` makes
    coarser ones from the requests table.
    """
    figure = go.Figure()
    for phase, colour in PHASES.items():
        bars = [(label, p) for label, life in rows for p in life if p[0] == phase]
        if not bars:
            continue
        starts = {label: life[0][1] for label, life in rows if life}
        figure.add_trace(go.Bar(
            y=[label for label, _ in bars], base=[p[1] - starts[label] for label, p in bars], x=[p[2] - p[1] for _, p in bars], name=phase, orientation="h",
            marker={"color": colour, "line": {"width": 0.5, "color": "rgba(255,255,255,0.6)"}}, customdata=[p[3] for _, p in bars],
            hovertemplate=f"%{{y}}, {phase}: %{{x:.3f}} s from %{{base:.3f}} s, %{{customdata:,}} tokens<extra></extra>",
        ))  # fmt: skip
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_xaxes(title="time since arrival (s)", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return styled(figure, "A request's life")


def lives_of(document: Document, aggregates: Document, count: int = 8) -> list[tuple[str, list[tuple]]]:
    """The completed requests of the window with the highest TTFT (`kvcast.aggregates`): whole phases.

    Prefill is first schedule to first token, chunks not told apart; a preemption's time is drawn at the end of the decode.
    """
    names = list(document["classes"])
    rows = []
    for row in aggregates["slowest"][:count]:
        computed, preempted = int(row["prompt_tokens"] - row["hit_tokens"]), float(row["preempted_s"])
        back = row["finish_s"] - preempted
        start_s = min(row["admit_s"] + row.get("load_s", 0.0), row["first_token_s"])
        life = [("queued", row["arrival_s"], row["admit_s"], 0), ("prefill", start_s, row["first_token_s"], computed)]
        life[1:1] = [("loading", row["admit_s"], start_s, 0)] if start_s > row["admit_s"] else []
        life += [("decode", row["first_token_s"], back, int(row["output_tokens"]))]
        life += [("preempted", back, row["finish_s"], int(row["recomputed_tokens"]))] if preempted else []
        rows.append((f"#{row['request']} {names[row['class_id']]}", life))
    return rows
