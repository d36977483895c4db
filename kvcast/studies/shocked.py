"""What shocks did, in rows: of one run, and of variants side by side.

>>> HEADER, rows_of(summary["shocks"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvcast import text
from sim.measure.regime import METASTABLE
from sim.measure.shocks import JUDGED_S

Document = Mapping[str, Any]
HEADER = ("shock", "", "requests", "attainment", "hit rate", "waiting")
COMPARED = ("shock", "before", "during", "after", "hit rate", "waiting", "back", "slowest", "missed")
"""Attainment before, during and after; hit rate and number waiting after; seeds that are back."""
PHASES = ("before", "during", "after")


def name_of(row: Document) -> str:
    """burst x 2 at 600 s."""
    size = row["size"]
    much = "" if size is None else f" x {size:g}" if size < 1000 else f" {size:,.0f}"
    return f"{row['kind']}{much} at {text.seconds(row['at_s'])}"


def rows_of(shocks: Sequence[Document]) -> list[list[str]]:
    """Three rows a shock, under HEADER. shocks: of a summary."""
    return [
        [
            name_of(row) if name == PHASES[0] else "",
            name,
            text.count(row[name]["requests"]),
            text.percent(row[name]["attainment"]),
            text.percent(row[name]["hit_rate"]),
            _mean_text(row[name]["waiting"]),
        ]
        for row in shocks
        for name in PHASES
    ]


def back(row: Document) -> str:
    name = f"{row['kind']} at {text.seconds(row['at_s'])}"
    if row["recovered_s"] is not None:
        return f"{name}: back at the target {when(row)} it; {row['missed']:,} requests missed"
    if not row["seen_s"]:
        return f"{name}: whether it is back cannot be seen: the window ends less than {text.seconds(JUDGED_S)} after it"
    return f"{name}: not back at the target within the run ({text.seconds(row['seen_s'])} after it)"


def when(row: Document) -> str:
    """How long after its shock a fleet was back: "300 s after"."""
    return f"{text.seconds(row['recovered_s'])} after" if row["recovered_s"] else "at once after"


def compared(summaries: Sequence[Document]) -> list[list[str]]:
    """A row a shock of one variant, under COMPARED: means over its seeds' runs."""
    rows = []
    for place, first in enumerate(summaries[0].get("shocks", ())):
        same = [summary["shocks"][place] for summary in summaries]
        times = [row["recovered_s"] for row in same]
        known = [time for time in times if time is not None]
        seen = sum(row["recovered_s"] is not None or row["seen_s"] > 0 for row in same)
        rows.append(
            [
                name_of(first),
                *(text.percent(_mean([row[name]["attainment"] for row in same])) for name in PHASES),
                text.percent(_mean([row["after"]["hit_rate"] for row in same])),
                _mean_text(_mean([row["after"]["waiting"] for row in same])),
                f"{len(known)} of {seen}" if seen else "not seen",
                text.seconds(max(known)) if known else text.UNKNOWN,
                text.count(_mean([row["missed"] for row in same])),
            ]
        )
    return rows


def stable_word(summary: Document) -> str:
    """Of a run: what its shocks show where it had any, else whether its backlog grew."""
    if summary.get("regime") is not None and summary.get("shocks"):
        return {METASTABLE: "METASTABLE"}.get(summary["regime"], "NO" if summary["regime"] == "unstable" else "yes")
    return {None: "?", True: "yes", False: "NO"}[summary.get("stable")]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _mean_text(value: float | None) -> str:
    return text.UNKNOWN if value is None else f"{value:,.1f}"
