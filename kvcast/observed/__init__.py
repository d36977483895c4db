"""A running server's metrics page as a scenario: how it is loaded, not how fast it is.

The one idea: counters of two pages, a known time apart, are a rate, two histograms of lengths and a hit rate; what a
page cannot say is assumed by one rule and named.

    >>> pages = watch("http://localhost:8000", seconds=60)
    >>> print(as_scenario(seen(pages, 60.0)))
"""

from kvcast.observed.assumed import as_scenario
from kvcast.observed.counted import Seen, seen
from kvcast.observed.page import Page, is_series, parsed, saved, series
from kvcast.observed.server import watch
from kvcast.observed.watched import Watched, logged, scraped

__all__ = [
    "Page",
    "Seen",
    "Watched",
    "as_scenario",
    "is_series",
    "logged",
    "parsed",
    "saved",
    "scraped",
    "seen",
    "series",
    "watch",
]
