"""Azure LLM inference CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` (wall clock, CRLF; newer files add columns).

The one idea: it has arrivals and lengths, and no prefix identity at all, so every request is its own text.

    >>> from workloads.readers import azure
    >>> workload = azure.read("AzureLLMInferenceTrace_code.csv")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.readers import lengths
from workloads.readers.common import Rows, note_ties

NAMES = lengths.Columns("ContextTokens", "GeneratedTokens", "TIMESTAMP")

looks_like = NAMES.found_in


def read(path: str | Path) -> Workload:
    """Requests of an Azure trace, in file order; times count from the earliest."""
    return lengths.read(path, NAMES, clock=_clock)


def _clock(rows: Rows, times: list[Any], _n: int) -> np.ndarray:
    arrival_s = rows.wall_clock(NAMES.time, times)
    note_ties(arrival_s, rows)
    return arrival_s
