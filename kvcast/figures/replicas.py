"""How the load is spread over the fleet.

>>> figures.replica_load(run.summary, run.tables["requests"]).show()
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from kvcast.figures.style import BLUE, DECODE, GREEN, HIT, PREFILL, Columns, Document, styled


def replica_load(document: Document, requests: Columns) -> go.Figure:
    """Tokens each replica worked on per second of the window: prompt tokens computed and output tokens; over them,
    pale, the prompt tokens that it found in its cache and did not work on.

    A request counts for the replica that admitted it. The title says how uneven the fleet is.
    """
    replicas = document["replicas"]
    span_s = document["window"]["end_s"] - document["window"]["start_s"] or np.nan
    admitted = requests["in_window"].astype(bool) & (requests["replica"] >= 0) & ~np.isnan(requests["admit_s"])
    where = requests["replica"][admitted]
    computed = (requests["prompt_tokens"][admitted] - requests["hit_tokens"][admitted]).astype(float)
    parts = (
        ("prompt, computed", computed, PREFILL, 1.0),
        ("output", requests["output_tokens"][admitted].astype(float), DECODE, 1.0),
        ("prompt, from cache: no load", requests["hit_tokens"][admitted].astype(float), HIT, 0.3),
    )
    counts = np.bincount(where, minlength=replicas)
    figure = go.Figure()
    for label, tokens, colour, opacity in parts:
        figure.add_trace(
            go.Bar(
                x=np.arange(replicas),
                y=np.bincount(where, tokens, minlength=replicas) / span_s,
                name=label,
                customdata=counts,
                marker={"color": colour, "opacity": opacity, "line": {"width": 0}},
                hovertemplate=(
                    f"replica %{{x}}: {label} %{{y:,.0f}} tokens/s (%{{customdata:,}} requests)<extra></extra>"
                ),
            )
        )
    work = np.bincount(where, computed + requests["output_tokens"][admitted], minlength=replicas)
    uneven = f": the busiest does {work.max() / work.mean():.2f} times the mean" if replicas > 1 and work.sum() else ""
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(title="replica", dtick=max(1, replicas // 16))
    figure.update_yaxes(title="tokens per second (tokens/s)", tickformat=",")
    return styled(figure, f"Load per replica{uneven}").update_layout(legend={"traceorder": "normal"})


def replicas_over_time(timeline: Columns) -> go.Figure:
    """Replicas that hold their GPUs, and the requests in the fleet, whose greatest number is drawn at the height of the
    greatest number of replicas.

    timeline: of a run whose fleet changes, with `replicas_held`.
    """
    held, here = timeline["replicas_held"], timeline["running"] + timeline["waiting"]
    peak = int(np.max(here, initial=0))
    scale = float(np.max(held, initial=1)) / max(peak, 1)
    figure = go.Figure()
    for label, values, shown, colour, unit in (
        ("replicas", held, held, GREEN, "replicas"),
        (f"requests in the fleet, at most {peak:,}", here * scale, here, BLUE, "requests"),
    ):
        figure.add_trace(
            go.Scatter(
                x=timeline["t_s"],
                y=values,
                customdata=shown,
                name=label,
                mode="lines",
                line={"color": colour, "width": 2 if colour == GREEN else 1.2, "shape": "hv"},
                hovertemplate=f"%{{customdata:,}} {unit}<extra></extra>",
            )
        )
    figure.update_yaxes(title="replicas", rangemode="tozero")
    figure.update_xaxes(title="time (s)")
    figure.update_layout(hovermode="x unified")
    return styled(figure, "Replicas and load")
