"""BurstGPT CSV: `Timestamp` (s), `Request tokens`, `Response tokens`, read by name: version 3 inserts session columns.

The one idea: a row of 0 request and 0 response tokens is a failed call and is skipped with a count. There is no prefix
identity; `Session ID` groups requests but says nothing about their text.

    >>> from workloads.readers import burstgpt
    >>> workload = burstgpt.read("BurstGPT_1.csv")
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workloads.columns import Workload
from workloads.readers.common import NO_IDENTITY, Rows, classes, note_ties, nothing_shared
from workloads.readers.head import Head

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def looks_like(head: Head) -> str | None:
    return f"its header has {', '.join(COLUMNS)}" if set(COLUMNS) <= set(head.columns) else None


def read(path: str | Path) -> Workload:
    """Requests of a BurstGPT trace in file order; models (`Model`) become classes."""
    rows = Rows(path)
    times: list[str] = []
    inputs: list[str] = []
    outputs: list[str] = []
    models: list[str] = []
    sessions: list[str] = []
    for record in rows.csv_records(COLUMNS):
        request, response = record["Request tokens"].strip(), record["Response tokens"].strip()
        if rows.is_zero(response):
            rows.skip("0 request and 0 response tokens, a failed call" if rows.is_zero(request) else "zero output")
            continue
        rows.keep()
        times.append(record["Timestamp"])
        inputs.append(request)
        outputs.append(response)
        models.append(record.get("Model", "").strip() or "all")
        sessions.append(record.get("Session ID", "").strip())
    prompt = rows.integers("Request tokens", inputs, low=1)
    output = rows.integers("Response tokens", outputs, low=1)
    arrival_s = rows.clock("Timestamp", times, per_second=1)
    note_ties(arrival_s, rows)
    rows.note(NO_IDENTITY)
    if any(sessions):
        rows.note("Session ID groups requests here; when they arrive stays as recorded")
    class_id, class_names = classes(models, rows, "models")
    notes = rows.report(len(prompt))
    tree, leaf = nothing_shared(len(prompt))
    return Workload(
        tree=tree,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        leaf=leaf,
        class_id=class_id,
        class_names=class_names,
        class_slo=("",) * len(class_names),
        session_id=_numbered(sessions) if any(sessions) else None,
        prefix_identity=False,
        source=rows.source(),
        notes=notes,
    )


def _numbered(sessions: list[str]) -> np.ndarray:
    """Session numbers by first appearance; a request without a session is one of its own."""
    numbers: dict[str | int, int] = {}
    return np.array([numbers.setdefault(name or i, len(numbers)) for i, name in enumerate(sessions)], np.int64)
