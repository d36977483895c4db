"""The KV cache over time, its hit rate, and where the prompt tokens went.
"""
from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.style import BLUE, GREEN, GREY, HIT, ORANGE, PURPLE, SKY, VERMILLION, Columns, Document, styled

CAUSES = {  # in the order of precedence that METRICS gives them
    "partial_block": ("partial block", "#bdbdbd"),
    "in_flight": ("in flight", "#7f7f7f"),
    "other_replica": ("other replica", ORANGE),
    "evicted": ("evicted", VERMILLION),
    "cache_off": ("cache off", "#5c5c5c"),
    "other_tenant": ("other tenant", PURPLE),
    "changed_earlier": ("changed earlier", "#F0E442"),
    "cold": ("cold", SKY),
}
BINS = 40


def kv_occupancy(document: Document, timeline: Columns) -> go.Figure:
    """KV blocks of all replicas over time, stacked to 100 %: in use, cached idle (evictable), free."""
    total = document["kv_blocks"] * document["replicas"]
    parts = (("blocks_in_use", "in use", BLUE), ("blocks_cached_idle", "cached, idle", SKY), ("blocks_free", "free", "rgba(140,140,140,0.25)"))
    figure = go.Figure()
    for column, label, colour in parts:
        figure.add_trace(go.Scatter(
            x=timeline["t_s"], y=100.0 * timeline[column] / total, customdata=timeline[column], name=label, stackgroup="kv", mode="lines",
            line={"width": 0.5, "color": colour}, fillcolor=colour, hovertemplate=f"{label}: %{{y:.1f}} % (%{{customdata:,}} blocks)<extra></extra>",
        ))  # fmt: skip
    figure.update_yaxes(title="KV blocks (%)", range=[0, 100])
    figure.update_xaxes(title="time (s)")
    figure.update_layout(hovermode="x unified")
    return styled(figure, f"KV cache: {text.count(total)} blocks of {document['block_size']} tokens")


def hit_rate(document: Document, timeline: Columns) -> go.Figure:
    """Prefix hit rate of the prompt tokens admitted in each of BINS intervals, with its ceilings.

    A ceiling is the hit rate with memory that never ends: of each replica, or of one cache for the whole fleet.
    The intervals are token-weighted sums of the timeline's finer ones; one without admissions is a gap.
    """
    lines = (
        ("hit_rate_ceiling_fleet", "ceiling, fleet", GREY, "dot"),
        ("hit_rate_ceiling_replica", "ceiling, replica", GREEN, "dash"),
        ("hit_rate", "hit rate", BLUE, "solid"),
    )
    weight = np.nan_to_num(timeline["prompt_tokens"]).astype(float)
    end_s = np.array([piece[-1] for piece in np.array_split(timeline["t_s"], BINS) if len(piece)])
    figure = go.Figure()
    for column, label, colour, dash in lines:
        figure.add_trace(go.Scatter(
            x=end_s, y=100.0 * _weighted(timeline[column], weight), name=label, mode="lines", line={"color": colour, "dash": dash, "width": 2.5 if dash == "solid" else 1.8},
            hovertemplate=f"{label}: %{{y:.1f}} %<extra></extra>",
        ))  # fmt: skip
    figure.update_yaxes(title="prompt tokens (%)", range=[0, 101])
    figure.update_xaxes(title="time of admission (s)")
    figure.update_layout(hovermode="x unified")
    return styled(figure, f"Prefix hit rate, block size {document['block_size']}")


def _weighted(rate: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Token-weighted mean of `rate` in each of BINS equal pieces; NaN without tokens."""
    hits = np.array([piece.sum() for piece in np.array_split(np.nan_to_num(rate) * weight, BINS) if len(piece)])
    tokens = np.array([piece.sum() for piece in np.array_split(weight, BINS) if len(piece)])
    return np.divide(hits, tokens, out=np.full(len(hits), np.nan), where=tokens > 0)


def miss_causes(document: Document) -> go.Figure:
    """Where every prompt token went, a bar a class: hit, or the first cause that explains the miss. Sums to 100 %."""
    rows = {"all": document} | (document["classes"] if len(document["classes"]) > 1 else {})
    names = list(rows)[::-1]
    figure = go.Figure()
    for key, label, colour in [("hit", "hit", HIT), *((cause, *look) for cause, look in CAUSES.items())]:
        tokens = [rows[n]["prefix_hit_tokens"] if key == "hit" else rows[n]["miss_tokens"].get(key) or 0 for n in names]
        if not any(tokens):
            continue
        share = [100.0 * t / rows[n]["prompt_tokens"] if rows[n]["prompt_tokens"] else 0.0 for t, n in zip(tokens, names, strict=True)]
        figure.add_trace(go.Bar(
            y=names, x=share, customdata=tokens, name=label, orientation="h", text=[f"{v:.0f} %" if v >= 6 else "" for v in share], textposition="inside",
            insidetextanchor="middle", textangle=0, marker={"color": colour, "line": {"width": 0}},
            hovertemplate=f"%{{y}}, {label}: %{{x:.2f}} % (%{{customdata:,}} tokens)<extra></extra>",
        ))  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(title="prompt tokens (%)", range=[0, 100])
    return styled(figure, "Where the prompt tokens went").update_layout(legend={"traceorder": "normal"})
