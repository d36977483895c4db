"""A figure in a sentence, for whoever cannot see it.

The one idea: a figure that has something to say says it itself (`layout.meta`); of every other one the sentence names
what is drawn against what, and where each line begins, ends and peaks.

    >>> in_words(figures.latency_cdf(run.summary, run.aggregates, "ttft"))
    'TTFT distribution: half of the requests of chat within 41 ms, 99 % within 391 ms; limit: 500 ms.'
"""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

MOST = 12
"""Lines that a sentence names; the rest are counted."""


def in_words(figure: go.Figure) -> str:
    """What the figure shows, in one sentence of plain text."""
    if isinstance(figure.layout.meta, str):
        return figure.layout.meta
    title, x, y = (_said(one) for one in (figure.layout.title, figure.layout.xaxis.title, figure.layout.yaxis.title))
    what = " against ".join(part for part in (y, x) if part)
    lines = list(dict.fromkeys(filter(None, (_line(trace) for trace in figure.data))))
    more = [f"and {len(lines) - MOST} more"] if len(lines) > MOST else []
    told = "; ".join([*lines[:MOST], *more]) or "nothing to draw"
    return f"{title or 'Plot'}{f', {what}' if what else ''}: {told}."


def _said(title: Any) -> str:
    return str(title.text or "").replace("\u200b", "").replace("<br>", " ")


def _line(trace: Any) -> str:
    """A line's name and its values, first, last and greatest; a bar's length."""
    name = str(trace.name or "").replace("\u200b", "")
    values = _numbers(trace.x if trace.type == "bar" and trace.orientation == "h" else trace.y)
    if not len(values):
        values = _numbers(trace.x)
    if not len(values) or (len(values) == 2 and len(set(_numbers(trace.x))) == 1):
        return name  # a limit, drawn across
    if len(values) == 1:
        return f"{name} {values[0]:.4g}".strip()
    peak = f", at most {values.max():.4g}" if values.max() > max(values[0], values[-1]) else ""
    return f"{name} from {values[0]:.4g} to {values[-1]:.4g}{peak}".strip()


def _numbers(column: Any) -> np.ndarray:
    """The finite numbers of a trace's column, in order; none of one of words."""
    try:
        found = np.array([] if column is None else [np.nan if v is None else v for v in column], float)
    except (TypeError, ValueError):
        return np.empty(0)
    return found[np.isfinite(found)]
