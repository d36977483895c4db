"""The KV cache over time, its hit rate, where the prompt tokens went, and what more memory or another policy would
hit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from kvcast import text
from kvcast.figures import style
from kvcast.figures.style import (
    BLUE,
    DASHES,
    GREEN,
    GREY,
    HIT,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Columns,
    Document,
    log_ticks,
    styled,
)
from sim.measure.mixed import kv_blocks_of_fleet

CAUSES = {  # in the order of precedence that METRICS gives them
    "partial_block": ("partial block", "#bdbdbd"),
    "in_flight": ("in flight", "#7f7f7f"),
    "other_replica": ("other replica", ORANGE),
    "window": ("not kept by a window", "#8C564B"),
    "evicted": ("evicted", VERMILLION),
    "cache_off": ("cache off", "#5c5c5c"),
    "other_tenant": ("other tenant", PURPLE),
    "changed_earlier": ("changed earlier", "#F0E442"),
    "cold": ("cold", SKY),
}
BINS = 40
LEAST_NAMED = 0.005
"""A cause below this share of the prompt tokens is drawn, and told on hover, but not in the legend."""


def kv_occupancy(document: Document, timeline: Columns) -> go.Figure:
    """KV blocks of all replicas over time, stacked to 100 %: in use, cached idle (evictable), free."""
    total = kv_blocks_of_fleet(document)
    parts = (
        ("blocks_in_use", "in use", BLUE),
        ("blocks_cached_idle", "cached, idle", SKY),
        ("blocks_free", "free", "rgba(140,140,140,0.25)"),
    )
    figure = go.Figure()
    for column, label, colour in parts:
        figure.add_trace(
            go.Scatter(
                x=timeline["t_s"],
                y=100.0 * timeline[column] / total,
                customdata=timeline[column],
                name=label,
                stackgroup="kv",
                mode="lines",
                line={"width": 0.5, "color": colour},
                fillcolor=colour,
                hovertemplate=f"{label}: %{{y:.1f}} % (%{{customdata:,}} blocks)<extra></extra>",
            )
        )
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
        figure.add_trace(
            go.Scatter(
                x=end_s,
                y=100.0 * _weighted(timeline[column], weight),
                name=label,
                mode="lines",
                line={"color": colour, "dash": dash, "width": 2.5 if dash == "solid" else 1.8},
                hovertemplate=f"{label}: %{{y:.1f}} %<extra></extra>",
            )
        )
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
    classes = document["classes"] if len(document["classes"]) > 1 else {}
    fleet = "all"
    while fleet in classes:
        fleet += " classes"
    rows = {fleet: document} | classes
    names = list(rows)[::-1]
    figure = go.Figure()
    for key, label, colour in [("hit", "hit", HIT), *((cause, *look) for cause, look in CAUSES.items())]:
        tokens = [rows[n]["prefix_hit_tokens"] if key == "hit" else rows[n]["miss_tokens"].get(key) or 0 for n in names]
        if not any(tokens):
            continue
        share = [
            100.0 * t / rows[n]["prompt_tokens"] if rows[n]["prompt_tokens"] else 0.0
            for t, n in zip(tokens, names, strict=True)
        ]
        figure.add_trace(
            go.Bar(
                y=[style.literal(n) for n in names],
                x=share,
                customdata=tokens,
                name=label,
                orientation="h",
                text=[f"{v:.0f} %" if v >= 6 else "" for v in share],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                marker={"color": colour, "line": {"width": 0}},
                showlegend=max(share) >= 100 * LEAST_NAMED,
                hovertemplate=f"%{{y}}, {label}: %{{x:.2f}} % (%{{customdata:,}} tokens)<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(title="prompt tokens (%)", range=[0, 100])
    return styled(figure, "Where the prompt tokens went").update_layout(legend={"traceorder": "normal"})


def misses_over_time(timeline: Columns) -> go.Figure:
    """Prompt tokens admitted in each of BINS intervals, stacked: hit, and the causes that take any."""
    end_s = np.array([piece[-1] for piece in np.array_split(timeline["t_s"], BINS) if len(piece)])
    figure = go.Figure()
    for column, label, colour in [
        ("hit_tokens", "hit", HIT),
        *((f"miss_{cause}_tokens", *look) for cause, look in CAUSES.items()),
    ]:
        tokens = np.array([piece.sum() for piece in np.array_split(timeline[column], BINS) if len(piece)])
        if tokens.any():
            figure.add_trace(
                go.Scatter(
                    x=end_s,
                    y=tokens,
                    name=label,
                    stackgroup="fate",
                    mode="lines",
                    line={"width": 0, "color": colour, "shape": "vh"},
                    fillcolor=colour,
                    showlegend=bool(tokens.sum() >= LEAST_NAMED * timeline["prompt_tokens"].sum()),
                    hovertemplate=f"{label}: %{{y:,}} tokens<extra></extra>",
                )
            )
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(title="time of admission (s)")
    figure.update_yaxes(title="prompt tokens", tickformat=",", rangemode="tozero")
    return styled(figure, "Hits and misses over time").update_layout(legend={"traceorder": "normal"})


def tokens_by_scope(cache: Columns, class_name: str | None = None) -> go.Figure:
    """Prompt tokens of each reuse scope, hit and missed, of one class or of all. cache: the run folder's table."""
    mine = np.ones(len(cache["tokens"]), bool) if class_name is None else cache["class"] == class_name
    scopes = [
        scope
        for scope in ("dynamic", "session", "project", "global", "unknown")
        if (mine & (cache["scope"] == scope)).any()
    ]
    total = sum(int(tokens) for tokens in cache["tokens"][mine]) or 1
    figure = go.Figure()
    for label, colour, fate in (("hit", HIT, cache["fate"] == "hit"), ("missed", VERMILLION, cache["fate"] != "hit")):
        tokens = [int(cache["tokens"][mine & fate & (cache["scope"] == scope)].sum()) for scope in scopes]
        share = [100.0 * t / total for t in tokens]
        figure.add_trace(
            go.Bar(
                y=scopes,
                x=share,
                customdata=tokens,
                name=label,
                orientation="h",
                marker={"color": colour, "line": {"width": 0}},
                text=[f"{v:.0f} %" if v >= 6 else "" for v in share],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                hovertemplate=f"%{{y}}, {label}: %{{x:.2f}} % (%{{customdata:,}} tokens)<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(title="prompt tokens (%)")
    return styled(figure, "Hits by reuse scope").update_layout(legend={"traceorder": "normal"})


# -- hit rate against memory -------------------------------------------------------------------------------------------

POLICY_COLOURS = (BLUE, ORANGE, PURPLE, VERMILLION, SKY)


def hit_by_capacity(rows: Sequence[Document], block_bytes: float, marks: Mapping[str, int] | None = None) -> go.Figure:
    """Hit rate against the cache's size, a line a policy, with the optimum and the ceiling (unlimited memory).

    rows: of `kvcast cache --json`, one rule and block size. block_bytes: KV of a block on all GPUs of a replica, for
    the axis in GiB. marks: label -> blocks, as vertical lines: the sizes the run has."""
    sized = [row for row in rows if row["capacity_blocks"] is not None]
    unlimited = [row["hit_ratio_tokens"] for row in rows if row["capacity_blocks"] is None]
    names = sorted({row["policy"] for row in rows} - {"optimal"}, key=lambda name: (name != "lru", name))  # LRU is blue
    figure = go.Figure()
    at = [row["capacity_blocks"] * block_bytes / 2**30 for row in sized] or [1.0]
    ends = [
        min([*at, *(m * block_bytes / 2**30 for m in (marks or {}).values())]),
        max([*at, *(m * block_bytes / 2**30 for m in (marks or {}).values())]),
    ]
    if unlimited:
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=[100 * max(unlimited)] * 2,
                name=f"ceiling {100 * max(unlimited):.1f} %",
                mode="lines",
                line={"color": GREY, "dash": "dot", "width": 1.5},
                hoverinfo="skip",
            )
        )
    for name in ("optimal", *names):
        mine = sorted((row for row in sized if row["policy"] == name), key=lambda row: row["capacity_blocks"])
        if not mine:
            continue
        label, look = (
            ("optimum", {"color": GREEN, "dash": "dash", "width": 2})
            if name == "optimal"
            else (
                name,
                {
                    "color": POLICY_COLOURS[names.index(name) % len(POLICY_COLOURS)],
                    "dash": DASHES[names.index(name) // len(POLICY_COLOURS) % len(DASHES)],
                    "width": 2.5,
                },
            )
        )
        figure.add_trace(
            go.Scatter(
                x=[row["capacity_blocks"] * block_bytes / 2**30 for row in mine],
                y=[100 * row["hit_ratio_tokens"] for row in mine],
                customdata=[row["capacity_blocks"] for row in mine],
                name=label,
                mode="lines+markers",
                line=look,
                marker={"size": 5},
                hovertemplate=f"{label}: %{{y:.1f}} % with %{{customdata:,}} blocks (%{{x:.3g}} GiB)<extra></extra>",
            )
        )
    for (label, blocks), dash in zip((marks or {}).items(), ("solid", "dashdot", "dot"), strict=False):
        x = blocks * block_bytes / 2**30
        told = f"{label}: {blocks:,} blocks, {x:.3g} GiB"
        figure.add_trace(
            go.Scatter(
                x=[x, x],
                y=[0, 100],
                name=told,
                mode="lines",
                line={"color": GREY, "dash": dash, "width": 1.5},
                hovertemplate=f"{told}<extra></extra>",
            )
        )
    ticks = log_ticks(*ends)
    figure.update_xaxes(
        title="cache memory (GiB of KV, log scale)", type="log", tickvals=ticks, ticktext=[f"{t:,.12g}" for t in ticks]
    )
    figure.update_yaxes(title="prompt tokens from cache (%)", range=[0, 101])
    one = rows[0] if rows else {"rule": "", "block_size": 0}
    return styled(figure, f"Hit rate against cache memory ({one['rule']}, block size {one['block_size']})")


def value_of_memory(document: Document) -> go.Figure:
    """Fewest GPUs that meet the target against KV memory, with the cache and, as one line, without. `kvcast value
    --json`."""
    rows = [row for row in document["points"] if row["cache"]]
    zero = next(row for row in document["points"] if not row["cache"])
    x = [row["kv_gib_per_gpu"] for row in rows]
    figure = go.Figure()
    if zero["gpus"] is not None:
        figure.add_trace(
            go.Scatter(
                x=[min(x), max(x)],
                y=[zero["gpus"]] * 2,
                name=f"cache off, in all of the memory: {zero['gpus']} GPUs",
                mode="lines",
                line={"color": GREY, "dash": "dash", "width": 1.5},
                hoverinfo="skip",
            )
        )
    figure.add_trace(
        go.Scatter(
            x=x,
            y=[row["gpus"] for row in rows],
            name="with the cache",
            mode="lines+markers",
            line={"color": BLUE, "width": 2.5, "shape": "vh"},
            marker={"size": 8},
            customdata=[[text.percent(row["prefix_hit_rate"]), text.milliseconds(row["mean_ttft_ms"])] for row in rows],
            hovertemplate=(
                "%{x:.3g} GiB: %{y} GPUs, hit rate %{customdata[0]}, mean TTFT %{customdata[1]}<extra></extra>"
            ),
        )
    )
    ticks = log_ticks(min(x), max(x))
    figure.update_xaxes(
        title="KV memory a GPU (GiB, log scale)", type="log", tickvals=ticks, ticktext=[f"{t:,.12g}" for t in ticks]
    )
    most = max(row["gpus"] or 0 for row in document["points"])
    figure.update_yaxes(title="GPUs for the target", rangemode="tozero", dtick=1 if most < 10 else None)
    return styled(figure, "What cache memory is worth")
