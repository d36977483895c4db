"""The two branches of a fleet under a load that rises and falls.

>>> branches(resilience(scenario, folder))
"""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvcast.figures.style import BLUE, ORANGE, Document, styled

ROWS = (("attainment", "attainment"), ("hit_rate", "hit rate"), ("waiting", "waiting"))


def branches(made: Document) -> go.Figure:
    """Attainment, hit rate and number waiting against load, on the way up and on the way down."""
    figure = make_subplots(rows=len(ROWS), cols=1, shared_xaxes=True, vertical_spacing=0.06)
    for place, (key, title) in enumerate(ROWS, 1):
        for way, colour, dash in (("up", BLUE, "solid"), ("down", ORANGE, "dash")):
            rows = [row for row in made["sweep"] if row["way"] == way]
            if way == "down":  # the way down begins where the way up ends
                rows = [next(row for row in reversed(made["sweep"]) if row["way"] == "up"), *rows]
            figure.add_trace(
                go.Scatter(
                    x=[row["level"] for row in rows],
                    y=[row[key] for row in rows],
                    name=f"load {'rising' if way == 'up' else 'falling'}",
                    legendgroup=way,
                    showlegend=place == 1,
                    mode="lines+markers",
                    line={"color": colour, "dash": dash, "width": 2.5},
                    hovertemplate=f"{title} %{{y:.3g}} at %{{x:g}} times the load<extra></extra>",
                ),
                row=place,
                col=1,
            )
        figure.update_yaxes(title=title, rangemode="tozero", row=place, col=1)
    figure.update_xaxes(title="load (× the scenario's)", row=len(ROWS), col=1)
    return styled(figure, "A load that rises and falls")
