"""What a fleet that changes over time has held, in words and rows: of one run, and of variants side by side.

>>> HEADER, rows_of(summaries)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvcast import text
from sim.scenario import NEVER_SCALES

Document = Mapping[str, Any]
HEADER = ("replicas", "fewest", "most", "starts", "GPU-hours", "cost", "vs first", "attainment", "begun again")
TOLD = "fleets over time: replicas held (mean), GPU-hours of the window and their cost, requests begun again"


def of(s: Document) -> str:
    """ ", 3.41 of them held (2 to 6, llm-d)", where a fleet changes. s: a run's summary."""
    row = _changed(s)
    if row is None:
        return ""
    rule = "" if row["rule"] == NEVER_SCALES else f", {row['rule']}"
    return f", {row['held']:.3g} held ({row['fewest']} to {row['most']}{rule})"


def beside_static(s: Document) -> str:
    """ ", 43 % of all replicas' 0.667", where a fleet changes."""
    row = _changed(s)
    if row is None or not row["gpu_hours_all"]:
        return ""
    return f", {text.percent(row['gpu_hours'] / row['gpu_hours_all'])} of all replicas' {row['gpu_hours_all']:.4g}"


def _changed(s: Document) -> Document | None:
    """What it has held, unless that was all replicas throughout."""
    row = s.get("fleet")
    return None if row is None or row["fewest"] == s["replicas"] else row


def rows_of(groups: Sequence[Sequence[Document]]) -> list[list[str]]:
    """A row a variant, under HEADER: means over its seeds' summaries. Empty where no fleet changes."""
    if not any("fleet" in one for group in groups for one in group):
        return []
    first = _mean([one["gpu_hours"] for one in groups[0]]) or 0.0
    rows = []
    for group in groups:
        fleets = [one.get("fleet") or _static(one) for one in group]
        hours = _mean([one["gpu_hours"] for one in group]) or 0.0
        rows.append(
            [
                f"{_mean([one['held'] for one in fleets]):.3g}",
                str(min(one["fewest"] for one in fleets)),
                str(max(one["most"] for one in fleets)),
                f"{_mean([one['starts'] for one in fleets]):.3g}",
                text.hours(hours),
                text.usd(_mean([one["cost"]["usd"] for one in group])),
                text.percent(hours / first) if first else text.UNKNOWN,
                text.percent(_mean([one["attainment"] for one in group])),
                text.count(_mean([one.get("retries", 0) for one in group])),
            ]
        )
    return rows


def _static(s: Document) -> Document:
    n = s["replicas"]
    return {"held": n, "fewest": n, "most": n, "starts": 0}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
