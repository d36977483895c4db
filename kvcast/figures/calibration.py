"""What step times rest on: prediction against measurement, the range that was measured and where a run lies in it, GPU
memory.

>>> figures.predicted_against_measured(step_fit.left_out(profile)).show()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.style import BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION, Columns, Document, log_ticks, styled

if TYPE_CHECKING:
    from kvcast.trust.step_fit import Step

KINDS = {"prefill": (ORANGE, "diamond"), "decode": (BLUE, "circle")}
BASES = {"measured": GREEN, "interpolated": SKY, "extrapolated": VERMILLION}
BATCHES = (1, 8, 32, 128)


def predicted_against_measured(steps: Sequence[Step]) -> go.Figure:
    """Whole steps at points that were left out: predicted over measured milliseconds, on the diagonal where they
    agree."""
    figure = go.Figure()
    measured = [step.measured_s * 1e3 for step in steps] or [1.0]
    ends = [min(measured), max(measured)]
    figure.add_trace(
        go.Scatter(
            x=ends,
            y=ends,
            name="equal",
            mode="lines",
            line={"color": GREY, "dash": "dot", "width": 1.5},
            hoverinfo="skip",
        )
    )
    for kind, (colour, symbol) in KINDS.items():
        mine = [step for step in steps if step.kind == kind]
        if mine:
            figure.add_trace(
                go.Scatter(
                    x=[s.measured_s * 1e3 for s in mine],
                    y=[s.predicted_s * 1e3 for s in mine],
                    name=kind,
                    mode="markers",
                    text=[s.words for s in mine],
                    customdata=[100 * s.error for s in mine],
                    marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.8},
                    hovertemplate=(
                        "%{text}<br>measured %{x:.4g} ms, predicted %{y:.4g} ms (%{customdata:+.1f} %)<extra></extra>"
                    ),
                )
            )
    ticks = log_ticks(*ends)
    look = {"type": "log", "tickvals": ticks, "ticktext": [f"{t:,.12g}" for t in ticks]}
    figure.update_xaxes(title="measured step (ms, log scale)", **look)
    figure.update_yaxes(title="predicted step (ms, log scale)", **look)
    return styled(figure, "Predicted against measured steps")


def residuals(steps: Sequence[Step]) -> go.Figure:
    """Relative error of the same predictions by the step's time."""
    figure = go.Figure()
    measured = [step.measured_s * 1e3 for step in steps] or [1.0]
    figure.add_hrect(y0=-5, y1=5, fillcolor=GREEN, opacity=0.12, line_width=0, layer="below")
    for kind, (colour, symbol) in KINDS.items():
        mine = [step for step in steps if step.kind == kind]
        if mine:
            figure.add_trace(
                go.Scatter(
                    x=[s.measured_s * 1e3 for s in mine],
                    y=[100 * s.error for s in mine],
                    name=kind,
                    mode="markers",
                    text=[s.words for s in mine],
                    marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.8},
                    hovertemplate="%{text}: %{y:+.1f} %<extra></extra>",
                )
            )
    ticks = log_ticks(min(measured), max(measured))
    widest = max([5.0, *(abs(100 * step.error) for step in steps)]) * 1.15
    figure.update_xaxes(
        title="measured step (ms, log scale)", type="log", tickvals=ticks, ticktext=[f"{t:,.12g}" for t in ticks]
    )
    figure.update_yaxes(title="predicted - measured (%)", range=[-widest, widest], zeroline=True)
    return styled(figure, "Error of the prediction, ±5 % shaded")


def coverage(document: Document) -> go.Figure:
    """Simulated time by what its step times rest on."""
    figure = go.Figure()
    for basis, colour in BASES.items():
        share = 100 * document["coverage"][basis]
        figure.add_trace(
            go.Bar(
                y=["simulated time"],
                x=[share],
                name=basis,
                orientation="h",
                marker={"color": colour, "line": {"width": 0}},
                text=[f"{share:.1f} %" if share >= 8 else ""],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                hovertemplate=f"{basis}: %{{x:.2f}} %<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="simulated time (%)", range=[0, 100])
    figure.update_yaxes(showticklabels=False)
    return styled(figure, "What the run's step times rest on").update_layout(
        height=190, legend={"traceorder": "normal"}
    )


def covered(points: Mapping[str, Any], document: Document, timeline: Columns, longest: int) -> go.Figure:
    """Batches and contexts of the profile's decode table, and where the run was: mean context against sequences running
    on a replica.

    points: of a profile of tables. longest: the longest context of the run's requests, tokens.
    """
    decode = points["decode_attention"]
    reach = decode.get("measured_context") or [decode["context"][-1]] * len(decode["batch"])
    grid = [
        (b, c, c <= (to or 0))
        for i, (b, to) in enumerate(zip(decode["batch"], reach, strict=True))
        for j, c in enumerate(decode["context"])
        if decode["us"][i][j] is not None
    ]
    figure = go.Figure()
    for name, symbol, mine in (
        ("measured", "circle", [g for g in grid if g[2]]),
        ("from a form", "circle-open", [g for g in grid if not g[2]]),
    ):
        if mine:
            figure.add_trace(
                go.Scatter(
                    x=[g[0] for g in mine],
                    y=[g[1] for g in mine],
                    name=name,
                    mode="markers",
                    marker={"color": GREY, "symbol": symbol, "size": 5},
                    hovertemplate=f"{name}: %{{x:,}} sequences of %{{y:,}} tokens<extra></extra>",
                )
            )
    running = np.asarray(timeline["running"], float)
    busy = running > 0
    batch = np.maximum(running[busy] / document["replicas"], 1.0)
    context = np.asarray(timeline["blocks_in_use"], float)[busy] * document["block_size"] / running[busy]
    figure.add_trace(
        go.Scatter(
            x=batch,
            y=np.maximum(context, 1),
            name="this run, over time",
            mode="markers",
            marker={"color": BLUE, "size": 6, "opacity": 0.5},
            hovertemplate="%{x:.3g} sequences a replica, %{y:,.0f} tokens each on average<extra></extra>",
        )
    )
    across = [min(decode["batch"]), max(decode["batch"])]
    told = f"longest request: {longest:,} tokens"
    figure.add_trace(
        go.Scatter(
            x=across,
            y=[longest] * 2,
            name=told,
            mode="lines",
            line={"color": ORANGE, "dash": "dash", "width": 1.5},
            hovertemplate=f"{told}<extra></extra>",
        )
    )
    for update, name, values in (
        (figure.update_xaxes, "sequences in a batch", decode["batch"]),
        (figure.update_yaxes, "context (tokens)", decode["context"]),
    ):
        ticks = [tick for tick in log_ticks(min(values), max(values)) if np.log10(tick) % 1 == 0]
        update(title=f"{name}, log scale", type="log", tickvals=ticks, ticktext=[f"{t:,.12g}" for t in ticks])
    return styled(figure, "What was measured, and where this run lies")


def decode_curves(step_time: Any, points: Mapping[str, Any]) -> go.Figure:
    """Time of a decode step by context, for a few batch sizes: the curve a simulation reads, with the table's points on
    it."""
    decode = points["decode_attention"]
    figure = go.Figure()
    for batch, colour in zip(
        [b for b in BATCHES if b in decode["batch"]], (SKY, BLUE, ORANGE, VERMILLION), strict=False
    ):
        row = decode["us"][decode["batch"].index(batch)]
        contexts = [c for c, us in zip(decode["context"], row, strict=True) if us is not None]
        ms = [step_time.step([], batch, batch * c, c, batch)[0] * 1e3 for c in contexts]
        figure.add_trace(
            go.Scatter(
                x=contexts,
                y=ms,
                name=f"batch {batch}",
                mode="lines+markers",
                line={"color": colour, "width": 2},
                marker={"size": 5},
                hovertemplate=f"{batch} sequences of %{{x:,}} tokens: %{{y:.3g}} ms a token<extra></extra>",
            )
        )
    return _log_log(figure, "context (tokens", "decode step (ms", "Decode: a step by context")


def prefill_curve(step_time: Any, points: Mapping[str, Any]) -> go.Figure:
    """Time of a prefill step by prompt length: nothing cached, and behind a cached prefix."""
    prefill = points["prefill_attention"]
    figure = go.Figure()
    for cached, colour, dash in ((0, ORANGE, "solid"), (8192, BLUE, "dash"), (65536, VERMILLION, "dot")):
        if cached <= max(prefill["cached"]):
            ms = [step_time.step([(new, cached)], 0, 0, 0, 1)[0] * 1e3 for new in prefill["new"]]
            label = "nothing cached" if not cached else f"{cached:,} tokens cached"
            figure.add_trace(
                go.Scatter(
                    x=list(prefill["new"]),
                    y=ms,
                    name=label,
                    mode="lines+markers",
                    line={"color": colour, "dash": dash, "width": 2},
                    marker={"size": 5},
                    hovertemplate=f"%{{x:,}} new tokens, {label}: %{{y:.4g}} ms<extra></extra>",
                )
            )
    return _log_log(figure, "new tokens", "prefill step (ms", "Prefill: a step by new tokens")


def _log_log(figure: go.Figure, x_name: str, y_name: str, title: str) -> go.Figure:
    for update, name, axis in ((figure.update_xaxes, x_name, "x"), (figure.update_yaxes, y_name, "y")):
        values = np.concatenate([np.asarray(trace[axis], float) for trace in figure.data] or [np.ones(1)])
        ticks = log_ticks(float(values.min()), float(values.max()))
        update(
            title=f"{name}, log scale{')' if '(' in name else ''}",
            type="log",
            tickvals=ticks,
            ticktext=[f"{t:,.12g}" for t in ticks],
        )
    return styled(figure, title)


def gpu_memory(parts: Mapping[str, float]) -> go.Figure:
    """GiB of one GPU by use, in the order given."""
    figure = go.Figure()
    for (label, gib), colour in zip(
        parts.items(), (GREY, ORANGE, BLUE, SKY, "rgba(140,140,140,0.25)", "rgba(140,140,140,0.5)"), strict=False
    ):
        figure.add_trace(
            go.Bar(
                y=["GPU memory"],
                x=[gib],
                name=f"{label} {gib:.1f} GiB",
                orientation="h",
                marker={"color": colour, "line": {"width": 0}},
                hovertemplate=f"{label}: %{{x:.2f}} GiB<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="GiB of one GPU")
    figure.update_yaxes(showticklabels=False)
    return styled(figure, f"Memory of a GPU: {text.count(sum(parts.values()))} GiB").update_layout(
        height=200, legend={"traceorder": "normal"}
    )
