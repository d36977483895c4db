"""splitwise-sim CSV: `request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size`,
times in s.

The one idea: applications become classes; there is no prefix identity. A row of several requests at once (batch_size
above 1) is refused, because the format does not say whether their lengths are each or together.

    >>> from workloads.readers import splitwise
    >>> workload = splitwise.read("rr_conv_70.csv")
"""

from __future__ import annotations

from pathlib import Path

from workloads.columns import Workload
from workloads.readers.common import NO_IDENTITY, Rows, classes, note_ties, nothing_shared
from workloads.readers.head import Head
from workloads.readers.values import number

COLUMNS = ("arrival_timestamp", "prompt_size", "token_size")
GENERATIVE = 2
"""request_type of a request to a language model; the simulator's others are no generation."""


def looks_like(head: Head) -> str | None:
    return f"its header has {', '.join(COLUMNS)}" if set(COLUMNS) <= set(head.columns) else None


def read(path: str | Path) -> Workload:
    """Requests of a splitwise-sim trace in file order."""
    rows = Rows(path)
    times: list[str] = []
    inputs: list[str] = []
    outputs: list[str] = []
    applications: list[str] = []
    for record in rows.csv_records(COLUMNS):
        if number(record.get("request_type", "2"), True) != GENERATIVE:
            rows.skip(f"request_type other than {GENERATIVE}, not a generation")
            continue
        if rows.is_zero(record["token_size"]):
            rows.skip("zero output")
            continue
        if number(record.get("batch_size", "1"), True) != 1:
            rows.fail("batch_size", record["batch_size"], "1: one request a row")
        rows.keep()
        times.append(record["arrival_timestamp"])
        inputs.append(record["prompt_size"])
        outputs.append(record["token_size"])
        applications.append(f"application {record.get('application_id', '').strip() or '0'}")
    prompt, output = rows.integers("prompt_size", inputs, low=1), rows.integers("token_size", outputs, low=1)
    arrival_s = rows.clock("arrival_timestamp", times, per_second=1)
    note_ties(arrival_s, rows)
    class_id, class_names = classes(applications, rows, "applications")
    rows.note(NO_IDENTITY)
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
        prefix_identity=False,
        source=rows.source(),
        notes=notes,
    )
