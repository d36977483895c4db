"""BurstGPT CSV: `Timestamp` (s), `Request tokens`, `Response tokens`, read by name: version 3 inserts session columns.

The one idea: a row of 0 request and 0 response tokens is a failed call and is skipped with a count. There is no prefix
identity; `Session ID` groups requests but says nothing about their text; models (`Model`) become classes.

    >>> from workloads.readers import burstgpt
    >>> workload = burstgpt.read("BurstGPT_1.csv")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workloads.columns import Workload
from workloads.readers import lengths
from workloads.readers.common import Rows

NAMES = lengths.Columns(
    "Request tokens", "Response tokens", "Timestamp", group="Model", groups="models", session="Session ID"
)

looks_like = NAMES.found_in


def read(path: str | Path, timestamp_unit: str = "") -> Workload:
    """Requests of a BurstGPT trace in file order."""
    return lengths.read(path, NAMES, skip=_failed, timestamp_unit=timestamp_unit)


def _failed(rows: Rows, record: dict[str, Any]) -> str:
    nothing = rows.is_zero(record[NAMES.prompt]) and rows.is_zero(record[NAMES.output])
    return "0 request and 0 response tokens, a failed call" if nothing else ""
