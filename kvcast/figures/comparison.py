"""Variants side by side: each one's difference to the first, with its interval.

>>> figures.differences(json.loads(compare_json), "p99_ttft_ms").show()
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from kvcast import text
from kvcast.figures.style import BLUE, GREY, ORANGE, Document, literal, styled

UNITS = {  # value of kvcast.studies.differences.VALUES -> factor, unit
    "attainment": (100.0, "percentage points, %"),
    "prefix_hit_rate": (100.0, "percentage points, %"),
    "mean_ttft_ms": (1.0, "ms"),
    "p99_ttft_ms": (1.0, "ms"),
    "mean_tpot_ms": (1.0, "ms"),
    "mean_e2el_ms": (1.0, "ms"),
    "gpu_s_per_request": (1.0, "GPU-s"),
    "usd_per_request": (1.0, "USD"),
}


def differences(document: Document, key: str) -> go.Figure:
    """Every variant minus the first one in the value `key`: the mean, and a bar over its 95 % interval.

    document: that of `kvcast compare --json`. An interval that holds zero is grey: no difference shown. A variant
    without an interval is an open marker; one without a difference (unstable) is left out."""
    from kvcast.studies.differences import VALUES

    heading, _, good = VALUES[key]
    factor, unit = UNITS[key]
    rows = [(literal(name_of(v["variant"])), v["vs_first"].get(key)) for v in document["variants"]][1:]
    known = [(label, row) for label, row in rows if row and row["difference"] is not None]
    figure = go.Figure()
    for name, colour, symbol, mine in (
        (
            "better",
            BLUE,
            "circle",
            [r for r in known if r[1]["shown"] and (r[1]["difference"] > 0) == (good == "higher")],
        ),
        (
            "worse",
            ORANGE,
            "diamond",
            [r for r in known if r[1]["shown"] and (r[1]["difference"] > 0) != (good == "higher")],
        ),
        ("no difference shown", GREY, "circle", [r for r in known if r[1]["shown"] is False]),
        ("no interval", GREY, "circle-open", [r for r in known if r[1]["shown"] is None]),
    ):
        if mine:
            half = [factor * (row["interval_95"] or 0.0) for _, row in mine]
            figure.add_trace(
                go.Scatter(
                    x=[factor * row["difference"] for _, row in mine],
                    y=[label for label, _ in mine],
                    name=name,
                    mode="markers",
                    customdata=half,
                    error_x={"type": "data", "array": half, "thickness": 2, "width": 5},
                    marker={"color": colour, "symbol": symbol, "size": 10},
                    hovertemplate=(
                        f"%{{y}}: %{{x:+.4g}} ± %{{customdata:.3g}} {unit.split(',')[0]}, {name}<extra></extra>"
                    ),
                )
            )
    figure.add_vline(x=0, line={"color": GREY, "width": 1.5})
    figure.update_xaxes(
        title=f"{heading}, difference to {literal(name_of(document['variants'][0]['variant']))} ({unit})"
    )
    figure.update_yaxes(categoryorder="array", categoryarray=[label for label, _ in rows][::-1], automargin=True)
    return styled(figure, f"{heading}: difference, 95 % interval").update_layout(height=max(220, 130 + 34 * len(known)))


def name_of(variant: dict[str, Any]) -> str:
    """ "policy lfu, replicas 4" of the varied keys and values; a run or a variant of its own has just its name."""
    return (
        ", ".join(
            str(value) if key in ("run", "variant") else f"{key.rsplit('.', 1)[-1].replace('_', ' ')} {value}"
            for key, value in variant.items()
        )
        or text.UNKNOWN
    )
