"""splitwise-sim CSV: `request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size`,
times in s.

The one idea: applications become classes; there is no prefix identity. A row of several requests at once (batch_size
above 1) is refused, because the format does not say whether their lengths are each or together.

    >>> from workloads.readers import splitwise
    >>> workload = splitwise.read("rr_conv_70.csv")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workloads.columns import Workload
from workloads.readers import lengths
from workloads.readers.common import Rows
from workloads.readers.values import number

NAMES = lengths.Columns(
    "prompt_size",
    "token_size",
    "arrival_timestamp",
    group="application_id",
    groups="applications",
    group_name="application {}",
    no_group="0",
)
GENERATIVE = 2
"""request_type of a request to a language model; the simulator's others are no generation."""

looks_like = NAMES.found_in


def read(path: str | Path, timestamp_unit: str = "") -> Workload:
    """Requests of a splitwise-sim trace in file order."""
    return lengths.read(path, NAMES, skip=_no_generation, timestamp_unit=timestamp_unit)


def _no_generation(rows: Rows, record: dict[str, Any]) -> str:
    if number(record.get("request_type", "2")) != GENERATIVE:
        return f"request_type other than {GENERATIVE}, not a generation"
    if number(record.get("batch_size", "1")) != 1 and not rows.is_zero(record[NAMES.output]):
        rows.fail("batch_size", record["batch_size"], "1: one request a row")
    return ""
