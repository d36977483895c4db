"""How a plan's fleet grows with its load, and what binds it.

>>> growth(plan("examples/demo.toml"))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from kvcast.figures.style import BLUE, GREY, ORANGE, SKY, Document, styled


def growth(plan: Document) -> go.Figure:
    """Fewest GPUs against load, as it is and with the first advice, beside a fleet that would grow as its load does."""
    rows, now = plan["growth"], plan["answer"]["gpus"]
    factors = [1.0, *(row["factor"] for row in rows)]
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=factors,
            y=[now * factor for factor in factors],
            name="in step with the load",
            mode="lines",
            line={"color": GREY, "dash": "dot", "width": 1.5},
            hoverinfo="skip",
        )
    )
    advised = [row["advised"] for row in rows if row["advised"]]
    sides = [("as it is", BLUE, "solid", [now, *values_of(rows, "gpus")])]
    if advised:  # one replica has nothing to route: what helps larger fleets may be no advice for this one
        first = next((one for one in plan["advice"] or () if one["change"] == advised[0]["change"]), None)
        name = "with the first advice" if first else f"with {advised[0]['change']}"
        begins = (first["after"]["gpus"] if first else None) or now
        sides.append((name, ORANGE, "dash", [begins, *values_of(advised, "gpus")]))
    for name, colour, dash, gpus in sides:
        figure.add_trace(
            go.Scatter(
                x=factors,
                y=gpus,
                name=name,
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2.5},
                marker={"size": 8},
                hovertemplate=f"{name}: %{{y:,}} GPUs at %{{x:g}} times the load<extra></extra>",
            )
        )
    figure.update_xaxes(title="load (× what the plan is for)", rangemode="tozero")
    figure.update_yaxes(title="GPUs", rangemode="tozero")
    return styled(figure, "Fewest GPUs against load")


def binding(plan: Document) -> go.Figure:
    """What 20 % more of each resource adds to attainment, in percentage points with its interval, the most first."""
    found = plan["binding"]
    rows = sorted((row for row in found["changes"] if row["gain"] is not None), key=lambda row: row["gain"])
    gain, low, high = (100 * values_of(rows, key) for key in ("gain", "gain_low", "gain_high"))
    figure = go.Figure(
        go.Bar(
            y=[f"{row['resource']} (estimate)" if row.get("estimate") else row["resource"] for row in rows],
            x=gain,
            orientation="h",
            showlegend=False,
            customdata=100 * values_of(rows, "attainment"),
            error_x={
                "type": "data",
                "symmetric": False,
                "array": high - gain,
                "arrayminus": gain - low,
                "thickness": 1.5,
                "width": 4,
                "color": GREY,
            },
            marker={"color": [ORANGE if row["resource"] == found["resource"] else SKY for row in rows]},
            hovertemplate="20 % more %{y}: %{x:+.2f} points, %{customdata:.1f} % within limits<extra></extra>",
        )
    )
    figure.update_layout(bargap=0.4)
    figure.update_xaxes(
        title="gain in attainment, 95 % interval (percentage points, %)", zeroline=True, zerolinecolor=GREY
    )
    return styled(
        figure,
        (
            f"What 20 % more would add at {found['load']:.3g} {found['unit']}"
            if found.get("load") is not None
            else "What 20 % more would add"
        ),
    )


def values_of(rows: Sequence[Document], key: str) -> np.ndarray:
    """A key of the rows as numbers, NaN where it is not known."""
    return np.array([np.nan if row[key] is None else row[key] for row in rows], float)
