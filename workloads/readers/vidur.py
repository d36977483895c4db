"""Vidur CSV: `num_prefill_tokens`, `num_decode_tokens` and, in some files, `arrived_at` (s).

The one idea: a file without times is a table of lengths, and its requests then arrive as a Poisson process at `rate`,
which the reading report says. There is no prefix identity.

    >>> from workloads.readers import vidur
    >>> workload = vidur.read("splitwise_conv.csv")
    >>> workload = vidur.read("arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", rate=2.0, seed=0)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workloads.columns import Workload
from workloads.dists import stream
from workloads.readers.common import NO_IDENTITY, Rows, note_ties, nothing_shared
from workloads.readers.head import Head

LENGTHS = ("num_prefill_tokens", "num_decode_tokens")
TIME = "arrived_at"


def looks_like(head: Head) -> str | None:
    if not set(LENGTHS) <= set(head.columns):
        return None
    return f"its header has {', '.join((*LENGTHS, *([TIME] if TIME in head.columns else [])))}"


def read(path: str | Path, rate: float | None = None, seed: int = 0) -> Workload:
    """Requests in file order. rate: requests per second of a file without times (default 1, so that rate_scale is the
    rate)."""
    rows = Rows(path)
    inputs: list[str] = []
    outputs: list[str] = []
    times: list[str] = []
    for record in rows.csv_records(LENGTHS):
        if rows.is_zero(record[LENGTHS[1]]):
            rows.skip("zero output")
            continue
        rows.keep()
        inputs.append(record[LENGTHS[0]])
        outputs.append(record[LENGTHS[1]])
        if TIME in record:
            times.append(record[TIME])
    prompt, output = rows.integers(LENGTHS[0], inputs, low=1), rows.integers(LENGTHS[1], outputs, low=1)
    if times:
        if rate is not None:
            rows.fail("[workload] rate", rate, f"none: the file has times ({TIME}); rate_scale makes it faster", 1)
        arrival_s = rows.clock(TIME, times, per_second=1)
        note_ties(arrival_s, rows)
    else:
        arrival_s = np.cumsum(stream(seed, "vidur", "arrivals").standard_exponential(len(prompt))) / (
            1.0 if rate is None else rate
        )
        assumed = "1 a second (assumed: set [workload] rate, or rate_scale)" if rate is None else f"{rate:g} a second"
        rows.note(f"the file holds lengths and no times: requests arrive as a Poisson process, {assumed}, seed {seed}")
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
