"""Azure LLM inference CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` (wall clock, CRLF; newer files add columns).

The one idea: it has arrivals and lengths, and no prefix identity at all, so every request is its own text.

    >>> from workloads.readers import azure
    >>> workload = azure.read("AzureLLMInferenceTrace_code.csv")
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.readers import lengths
from workloads.readers.common import Rows, note_ties
from workloads.readers.values import number

NAMES = lengths.Columns("ContextTokens", "GeneratedTokens", "TIMESTAMP")

IMAGES = "NumImages"
looks_like = NAMES.found_in


def read(path: str | Path) -> Workload:
    """Requests of an Azure trace, in file order; times count from the earliest."""
    images: Counter[bool] = Counter()
    workload = lengths.read(path, NAMES, skip=partial(_count_images, images), clock=_clock)
    if not images:
        return workload
    return workload.with_notes(
        f"{IMAGES} is not used: {images[True]} of {images.total()} rows have images, whose encoding costs nothing here;"
        " whether ContextTokens counts their tokens is not documented"
    )


def _count_images(images: Counter[bool], _rows: Rows, record: dict[str, Any]) -> str:
    """Count whether a row has images, where the file says so; no row is skipped for it."""
    if IMAGES in record:
        images[number(record[IMAGES]) > 0] += 1
    return ""


def _clock(rows: Rows, times: list[Any], _n: int) -> np.ndarray:
    arrival_s = rows.wall_clock(NAMES.time, times)
    note_ties(arrival_s, rows)
    return arrival_s
