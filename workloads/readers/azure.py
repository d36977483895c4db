"""Azure LLM inference CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` (wall clock, CRLF; newer files add columns).

The one idea: it has arrivals and lengths, and no prefix identity at all, so every request is its own text.

    >>> from workloads.readers import azure
    >>> workload = azure.read("AzureLLMInferenceTrace_code.csv")
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import numpy as np

from workloads.columns import Workload
from workloads.readers.common import NO_IDENTITY, Rows, from_first, note_ties, nothing_shared
from workloads.readers.head import Head

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)?$", re.ASCII)
TICKS = 10**7  #: a second of the file's clock, whose last digit is 100 ns


def looks_like(head: Head) -> str | None:
    return f"its header has {', '.join(COLUMNS)}" if set(COLUMNS) <= set(head.columns) else None


def read(path: str | Path) -> Workload:
    """Requests of an Azure trace, in file order; times count from the earliest."""
    rows = Rows(path)
    times: list[str] = []
    ticks: list[int] = []
    inputs: list[str] = []
    outputs: list[str] = []
    for record in rows.csv_records(COLUMNS):
        if rows.is_zero(record["GeneratedTokens"]):
            rows.skip("zero output")
            continue
        rows.keep()
        times.append(record["TIMESTAMP"])
        ticks.append(_ticks(record["TIMESTAMP"], rows))
        inputs.append(record["ContextTokens"])
        outputs.append(record["GeneratedTokens"])
    prompt = rows.integers("ContextTokens", inputs, low=1)
    output = rows.integers("GeneratedTokens", outputs, low=1)
    earliest = min(ticks, default=0)
    arrival_s = from_first(
        np.array([tick - earliest for tick in ticks], np.int64), rows, "TIMESTAMP", TICKS, shown=times
    )
    rows.note("times count from the earliest request; the file holds wall clock times")
    note_ties(arrival_s, rows)
    rows.note(NO_IDENTITY)
    notes = rows.report(len(prompt))
    tree, leaf = nothing_shared(len(prompt))
    return Workload(
        tree=tree,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        leaf=leaf,
        prefix_identity=False,
        source=rows.source(),
        notes=notes,
    )


def _ticks(text: str, rows: Rows) -> int:
    """100 ns since a fixed date: all seven digits of the fraction (datetime's %f takes six)."""
    match = _TIME.match(text.strip())
    try:
        whole = datetime.fromisoformat(match[1] + (match[3] or "+00:00").replace("Z", "+00:00")) if match else None
    except ValueError:
        whole = None
    if match is None or whole is None:
        rows.fail("TIMESTAMP", text, "a time like 2023-11-16 18:17:03.9799600")
    since = whole - datetime.fromisoformat("2020-01-01T00:00:00+00:00")
    return (since.days * 86400 + since.seconds) * TICKS + int(((match[2] or "")[1:] + "0" * 7)[:7])
