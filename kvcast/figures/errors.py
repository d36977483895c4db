"""How far simulated figures are from measured ones: what share of the rows is within which error.

>>> figures.errors.within({"dense, TTFT": errors}).show()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from kvcast.figures.style import BLUE, DASHES, ORANGE, styled

MOST = 1.0
"""Largest error shown: the rest of the rows lies beyond."""
STEPS = 101


def within(errors: Mapping[str, Sequence[float]]) -> go.Figure:
    """errors: name -> signed relative errors. Two names of a kind of row (TTFT, TPOT) follow each other: one dash."""
    figure = go.Figure()
    limit = np.linspace(0.0, MOST, STEPS)
    for i, (name, signed) in enumerate(errors.items()):
        size = np.sort(np.abs(np.asarray(signed, dtype=float)))
        share = np.searchsorted(size, limit, side="right") / max(len(size), 1)
        line = {"color": (ORANGE, BLUE)[i % 2], "dash": DASHES[i // 2 % len(DASHES)], "width": 2}
        figure.add_trace(
            go.Scatter(x=100 * limit, y=100 * share, name=f"{name} ({len(size):,})", mode="lines", line=line)
        )
    figure.update_xaxes(title="error at most, %", range=[0, 100 * MOST])
    figure.update_yaxes(title="share of rows, %", range=[0, 100])
    return styled(figure, "Simulated against measured means")
