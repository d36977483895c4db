"""The life of one request: its prompt, cached and computed, and the KV memory it holds from step to step.

>>> life_prompts(lives); life_memory(life, at=2)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.style import BLUE, DECODE, GREY, HIT, PREFILL, Document, literal, styled

NEW_LINES = {"prefill": PREFILL, "decode": DECODE}


def life_prompts(lives: Sequence[Document]) -> go.Figure:
    """A bar a request, its prompt in the order in which the model reads it: what came from the cache, what is computed.

    lives: documents of `kvcast.studies.one_life`."""
    figure = go.Figure()
    shown = set()
    for life in lives:
        label, at = f"{literal(life['class'])} ", 0
        for piece in life["pieces"]:
            for tokens, name, colour in (
                (piece["hit_tokens"], "from the cache", HIT),
                (piece["tokens"] - piece["hit_tokens"], "computed", PREFILL),
            ):
                if not tokens:
                    continue
                figure.add_trace(
                    go.Bar(
                        y=[label],
                        x=[tokens],
                        base=[at],
                        orientation="h",
                        name=name,
                        legendgroup=name,
                        showlegend=name not in shown,
                        marker={"color": colour, "line": {"width": 1, "color": "rgba(255,255,255,0.7)"}},
                        text=literal(piece["name"]) if tokens >= 0.08 * _longest(lives) else "",
                        textposition="inside",
                        insidetextanchor="middle",
                        textfont={"color": "white" if colour == HIT else "black"},
                        hovertemplate=f"{literal(piece['name'])}: %{{x:,}} tokens {name}<extra></extra>",
                    )
                )
                shown.add(name)
                at += tokens
    figure.update_layout(barmode="overlay", bargap=0.3, meta=_prompts_told(lives))
    figure.update_xaxes(title="prompt tokens", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category")
    return styled(figure, "Prompts").update_layout(height=120 + 42 * max(len(lives), 2))


def _longest(lives: Sequence[Document]) -> int:
    return max(int(life["prompt_tokens"]) for life in lives)


def _prompts_told(lives: Sequence[Document]) -> str:
    told = "; ".join(
        f"{life['class']}: {life['prompt_tokens']:,} tokens, {life['hit_tokens']:,} from the cache,"
        f" {life['new_tokens']:,} computed"
        for life in lives
    )
    return f"Prompts, cached and computed: {told}."


def life_memory(life: Document, at: int | None = None) -> go.Figure:
    """KV tokens that a request holds over time since its arrival, by what it is doing.

    at: the step that is marked."""
    figure, shown = go.Figure(), set()
    held = 0
    for step in life["steps"]:
        colour = NEW_LINES.get(step["what"])
        if colour is not None:
            what = step["what"]
            figure.add_trace(
                go.Scatter(
                    x=[1e3 * step["start_s"], 1e3 * step["end_s"]],
                    y=[held, step["kv_tokens"]],
                    name=what,
                    legendgroup=what,
                    showlegend=what not in shown,
                    mode="lines",
                    line={"color": colour, "width": 3},
                    hovertemplate=f"{what}: %{{y:,}} tokens at %{{x:,.4g}} ms<extra></extra>",
                )
            )
            shown.add(what)
        held = step["kv_tokens"]
    cached = next((step for step in life["steps"] if step["what"] == "cache" and step["kv_tokens"]), None)
    if cached is not None:
        figure.add_trace(
            go.Scatter(
                x=[1e3 * cached["start_s"]] * 2,
                y=[0, cached["kv_tokens"]],
                name="from the cache",
                mode="lines",
                line={"color": HIT, "width": 3},
                hovertemplate="from the cache: %{y:,} tokens<extra></extra>",
            )
        )
    if at is not None and life["steps"]:
        step = life["steps"][at]
        figure.add_vrect(
            x0=1e3 * step["start_s"],
            x1=1e3 * step["end_s"],
            fillcolor=GREY,
            opacity=0.25,
            line={"width": 2, "color": BLUE},
            layer="below",
        )
    ends_s = life["steps"][-1]["end_s"] if life["steps"] else 0.0
    figure.update_xaxes(title="time since arrival (ms)", range=[-20.0 * ends_s, 1020.0 * ends_s])
    figure.update_yaxes(title="KV memory (tokens)", rangemode="tozero")
    figure.update_layout(meta=_memory_told(life))
    return styled(figure, "KV memory")


def _memory_told(life: Document) -> str:
    kept = [step for step in life["steps"] if step["what"] in ("cache", *NEW_LINES, "preempted")]
    if not kept:
        return "KV memory of the request over time: it held none."
    told = ", ".join(
        f"{step['kv_tokens']:,} tokens at {text.seconds(step['end_s'])}"
        for step in (kept if len(kept) <= 8 else [kept[i] for i in np.linspace(0, len(kept) - 1, 8).astype(int)])
    )
    return f"KV memory of the request over time: {told}."
