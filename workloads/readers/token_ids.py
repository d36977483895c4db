"""Token-id JSONL: `input_tok_ids`, `output_toks`, `arrival_time_ns` (and `input_toks`, checked when present).

The one idea: with the tokens themselves, what two prompts share is known exactly at every block size.

    >>> from workloads.readers import token_ids
    >>> workload = token_ids.read("sharegpt.jsonl")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.prefix_tree import from_token_ids
from workloads.readers.common import Rows, note_ties
from workloads.readers.head import Head


def looks_like(head: Head) -> str | None:
    return "its rows have input_tok_ids" if "input_tok_ids" in head.keys else None


def read(path: str | Path, timestamp_unit: str = "") -> Workload:
    """Requests with token ids, in file order."""
    rows = Rows(path, timestamp_unit)
    times: list[Any] = []
    outputs: list[Any] = []
    prompts: list[np.ndarray] = []
    for record in rows.records():
        tokens, output = rows.need(record, "input_tok_ids"), rows.need(record, "output_toks")
        if rows.is_zero(output):
            rows.skip("zero output")
            continue
        rows.keep()
        if type(tokens) is not list or not tokens or not set(map(type, tokens)) <= {int}:
            rows.fail("input_tok_ids", tokens, "a list of at least one token id")
        if min(tokens) < 0 or max(tokens) >= 2**63:
            rows.fail("input_tok_ids", next(t for t in tokens if not 0 <= t < 2**63), "token ids from 0 to 2^63 - 1")
        if record.get("input_toks", len(tokens)) != len(tokens):
            rows.fail("input_toks", record["input_toks"], f"{len(tokens)}, the number of input_tok_ids")
        times.append(rows.need(record, "arrival_time_ns"))
        outputs.append(output)
        prompts.append(np.array(tokens, np.int64))
    output = rows.integers("output_toks", outputs, low=1)
    arrival_s = rows.clock("arrival_time_ns", times, per_second=1e9)
    note_ties(arrival_s, rows)
    notes = rows.report(len(prompts))
    tree, leaf = from_token_ids(prompts)
    return Workload(
        tree=tree,
        arrival_s=arrival_s,
        prompt_tokens=np.array([len(p) for p in prompts], np.int64),
        output_tokens=output,
        leaf=leaf,
        source=rows.source(),
        notes=notes,
    )
