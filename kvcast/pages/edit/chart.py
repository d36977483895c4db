"""A figure on a page, and its sentence for readers of the screen.

>>> draw(st, figure)
"""

from __future__ import annotations

from html import escape
from typing import Any

from kvcast.figures.alternative import in_words


def draw(place: Any, figure: Any, key: str | None = None, **options: Any) -> Any:
    """The figure under a heading of the page's own: without its title, with its words for whoever cannot see it.
    options: those of st.plotly_chart."""
    place.html(f'<p class="unseen" data-plot>{escape(in_words(figure))}</p>')
    figure.update_layout(title=None, margin={"t": 30})
    return place.plotly_chart(
        figure, width="stretch", config={"displaylogo": False, "displayModeBar": False}, key=key, **options
    )
