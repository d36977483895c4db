"""Figures of a run: pure functions from its document and tables to plotly figures.

The one idea: a figure is drawn from what a run folder holds (`summary.json`'s document and the columns of its tables), so
a page, a report and a script draw the same thing; every trace is an aggregate of at most about a thousand points.

    >>> from kvcast import figures, load_run
    >>> run = load_run("runs/demo/2-replicas-lru")
    >>> figures.latency_cdf(run.summary, run.tables["requests"], "ttft").show()

A report that was never saved: `figures.queue(report.timeline)`, `figures.latency_cdf(api.as_document(result), report.requests, "ttft")`.
Colours are Okabe and Ito's (told apart by colour-blind readers), fixed per meaning; text and background are left to the
theme, so that the same figure reads on dark and on light.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvcast import text

BLUE, ORANGE, GREEN, VERMILLION, SKY, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#8c8c8c"
CLASS_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY)
DASHES = ("solid", "dash", "dot", "dashdot")
LATENCY = {"ttft": ("ttft_s", "TTFT"), "tpot": ("tpot_s", "TPOT")}
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
PHASES = {"queued": GREY, "loading": SKY, "prefill": ORANGE, "decode": BLUE, "preempted": VERMILLION}
CURVE_POINTS = 400
BINS = 40

Columns = Mapping[str, np.ndarray]
Document = Mapping[str, Any]


def latency_cdf(document: Document, requests: Columns, metric: str) -> go.Figure:
    """Share of completed requests of the window within a latency, one line a class, with the limits as vertical lines.

    metric: "ttft" or "tpot". The lines' points are quantiles: at most CURVE_POINTS however many requests there are.
    """
    column, name = LATENCY[metric]
    figure = go.Figure()
    counted = requests["in_window"].astype(bool) & (requests["status"] == 0) & ~np.isnan(requests[column])
    for i, label in enumerate(document["classes"]):
        values = np.sort(requests[column][counted & (requests["class_id"] == i)] * 1e3)
        if len(values):
            x, y = _cdf(values)
            figure.add_trace(go.Scatter(x=x, y=y, name=label, mode="lines", line=_class_line(i), hovertemplate=f"{label}: %{{y:.1f}} % within %{{x:.4g}} ms<extra></extra>"))
    for limit_s, who, colour in _limits(document, column):
        label = f"limit{who}: {text.seconds(limit_s)}"
        figure.add_trace(go.Scatter(x=[limit_s * 1e3] * 2, y=[0, 100], name=label, mode="lines", line={"dash": "dash", "color": colour, "width": 1.5}, hovertemplate=f"{label}<extra></extra>"))
    low, high = _span(figure)
    ticks = _log_ticks(low, high)
    room = [np.log10(low / 1.1), np.log10(high * 1.15)]  # so that a limit beyond every request is not the plot's edge
    figure.update_xaxes(title=f"{name} (ms, log scale)", type="log", range=room, tickvals=ticks, ticktext=[f"{t:,.12g}" for t in ticks])
    figure.update_yaxes(title="completed requests (%)", range=[0, 101])
    return _styled(figure, f"{name} distribution")


def _cdf(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted values [n] -> (value, per cent of the values at or below it); dense where the tail is."""
    n = len(values)
    if n <= CURVE_POINTS:
        rank = np.arange(1, n + 1)
    else:
        body = np.linspace(1, n, CURVE_POINTS * 3 // 4)
        tail = n - np.geomspace(n * 0.1, 1, CURVE_POINTS // 4) + 1
        rank = np.unique(np.concatenate([body, tail]).round().astype(np.int64))
    return values[rank - 1], 100.0 * rank / n


def _span(figure: go.Figure) -> tuple[float, float]:
    """Least and greatest positive x of the figure's lines; 1, 1 without any."""
    x = np.concatenate([np.asarray(trace.x, float) for trace in figure.data] or [np.ones(1)])
    x = x[x > 0] if (x > 0).any() else np.ones(1)
    return float(x.min()), float(x.max())


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten around low to high; powers alone where that would be many."""
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    steps = (1, 2, 5) if last - first <= 4 else (1,)
    return [step * 10.0**power for power in range(first, last + 1) for step in steps]


def _limits(document: Document, column: str) -> Iterable[tuple[float, str, str]]:
    """Each distinct limit on the column, in seconds, with whose it is and the colour of the class when it is one's."""
    whose: dict[float, list[str]] = {}
    for name, row in document["slo_classes"].items():
        if row["limits"][column] is not None:
            whose.setdefault(row["limits"][column], []).append(name)
    slo_of = [row["slo_class"] for row in document["classes"].values()]
    for limit, names in whose.items():
        classes = [i for i, slo in enumerate(slo_of) if slo in names]
        colour = _class_line(classes[0])["color"] if len(classes) == 1 and len(slo_of) > 1 else GREY
        yield limit, "" if len(document["slo_classes"]) == 1 else f" {', '.join(n or 'others' for n in names)}", colour


def _class_line(i: int) -> dict[str, Any]:
    return {"color": CLASS_COLOURS[i % len(CLASS_COLOURS)], "dash": DASHES[i // len(CLASS_COLOURS) % len(DASHES)], "width": 2.5}


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
    return _styled(figure, f"KV cache: {text.count(total)} blocks of {document['block_size']} tokens")


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
    return _styled(figure, f"Prefix hit rate, block size {document['block_size']}")


def _weighted(rate: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Token-weighted mean of `rate` in each of BINS equal pieces; NaN without tokens."""
    hits = np.array([piece.sum() for piece in np.array_split(np.nan_to_num(rate) * weight, BINS) if len(piece)])
    tokens = np.array([piece.sum() for piece in np.array_split(weight, BINS) if len(piece)])
    return np.divide(hits, tokens, out=np.full(len(hits), np.nan), where=tokens > 0)


def queue(timeline: Columns) -> go.Figure:
    """Requests running and waiting over time, all replicas."""
    figure = go.Figure()
    for column, label, colour in (("running", "running", BLUE), ("waiting", "waiting", VERMILLION)):
        figure.add_trace(go.Scatter(x=timeline["t_s"], y=timeline[column], name=label, mode="lines", line={"color": colour, "width": 1.5, "shape": "hv"},
                                    hovertemplate=f"{label}: %{{y:,}}<extra></extra>"))
    figure.update_yaxes(title="requests", rangemode="tozero")
    figure.update_xaxes(title="time (s)")
    figure.update_layout(hovermode="x unified")
    return _styled(figure, "Requests running and waiting")


def miss_causes(document: Document) -> go.Figure:
    """Where every prompt token went, a bar a class: hit, or the first cause that explains the miss. Sums to 100 %."""
    rows = {"all": document} | (document["classes"] if len(document["classes"]) > 1 else {})
    names = list(rows)[::-1]
    figure = go.Figure()
    for key, label, colour in [("hit", "hit", BLUE), *((cause, *look) for cause, look in CAUSES.items())]:
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
    return _styled(figure, "Where the prompt tokens went").update_layout(legend={"traceorder": "normal"})


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
    return _styled(figure, "A request's life")


def lives_of(document: Document, requests: Columns, count: int = 8) -> list[tuple[str, list[tuple]]]:
    """The completed requests of the window with the highest TTFT: whole phases, from the requests table.

    Prefill is first schedule to first token, chunks not told apart; a preemption's time is drawn at the end of the decode.
    """
    done = np.flatnonzero(requests["in_window"].astype(bool) & (requests["status"] == 0))
    slowest = done[np.argsort(-requests["ttft_s"][done], kind="stable")[:count]]
    names = list(document["classes"])
    rows = []
    for r in slowest:
        row = {key: column[r] for key, column in requests.items()}
        computed, preempted = int(row["prompt_tokens"] - row["hit_tokens"]), float(row["preempted_s"])
        back = row["finish_s"] - preempted
        start_s = min(row["admit_s"] + row.get("load_s", 0.0), row["first_token_s"])
        life = [("queued", row["arrival_s"], row["admit_s"], 0), ("prefill", start_s, row["first_token_s"], computed)]
        life[1:1] = [("loading", row["admit_s"], start_s, 0)] if start_s > row["admit_s"] else []
        life += [("decode", row["first_token_s"], back, int(row["output_tokens"]))]
        life += [("preempted", back, row["finish_s"], int(row["recomputed_tokens"]))] if preempted else []
        rows.append((f"#{r} {names[row['class_id']]}", life))
    return rows


def _styled(figure: go.Figure, title: str) -> go.Figure:
    """Title and legend above the plot; text colour and background are the theme's."""
    return figure.update_layout(
        title={"text": title, "font": {"size": 15}, "x": 0, "xanchor": "left", "yref": "container", "y": 0.98, "yanchor": "top"}, height=330,
        margin={"l": 10, "r": 10, "t": 66, "b": 10}, legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0, "title": None},
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
    )  # fmt: skip
