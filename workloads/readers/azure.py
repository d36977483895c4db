"""Azure LLM inference CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` (wall clock, CRLF; newer files add columns).

The one idea: it has arrivals and lengths, and no prefix identity at all, so every request is its own text.

    >>> from workloads.readers import azure
    >>> workload = azure.read("AzureLLMInferenceTrace_code.csv")
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np

from workloads.columns import Workload
from workloads.readers import lengths
from workloads.readers.common import Rows, from_first, note_ties

NAMES = lengths.Columns("ContextTokens", "GeneratedTokens", "TIMESTAMP")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)?$", re.ASCII)
TICKS = 10**7  #: a second of the file's clock, whose last digit is 100 ns

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


def _count_images(images: Counter[bool], _rows: Rows, record: dict[str, str]) -> str:
    """Count whether a row has images, where the file says so; no row is skipped for it."""
    if IMAGES in record:
        images[record[IMAGES].strip() not in ("", "0")] += 1
    return ""


def _clock(rows: Rows, texts: list[str], _n: int) -> np.ndarray:
    ticks = [_ticks(text, row, rows) for text, row in zip(texts, rows.number, strict=True)]
    earliest = min(ticks, default=0)
    elapsed = np.array([tick - earliest for tick in ticks], np.int64)
    arrival_s = from_first(elapsed, rows, NAMES.time, TICKS, shown=texts)
    rows.note("times count from the earliest request; the file holds wall clock times")
    note_ties(arrival_s, rows)
    return arrival_s


def _ticks(text: str, row: int, rows: Rows) -> int:
    """100 ns since a fixed date: all seven digits of the fraction (datetime's %f takes six)."""
    match = _TIME.match(text)
    try:
        whole = datetime.fromisoformat(match[1] + (match[3] or "+00:00").replace("Z", "+00:00")) if match else None
    except ValueError:
        whole = None
    if match is None or whole is None:
        rows.fail(NAMES.time, text, "a time like 2023-11-16 18:17:03.9799600", row)
    since = whole - datetime.fromisoformat("2020-01-01T00:00:00+00:00")
    return (since.days * 86400 + since.seconds) * TICKS + int(((match[2] or "")[1:] + "0" * 7)[:7])
