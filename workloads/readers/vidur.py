"""Vidur CSV: `num_prefill_tokens`, `num_decode_tokens` and, in some files, `arrived_at` (s).

The one idea: a file without times is a table of lengths, and its requests then arrive as a Poisson process at `rate`,
which the reading report says. There is no prefix identity.

    >>> from workloads.readers import vidur
    >>> workload = vidur.read("splitwise_conv.csv")
    >>> workload = vidur.read("arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", rate=2.0, seed=0)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.dists import stream
from workloads.readers import lengths
from workloads.readers.common import Rows
from workloads.readers.head import Head

NAMES = lengths.Columns("num_prefill_tokens", "num_decode_tokens", "arrived_at")
LENGTHS = (NAMES.prompt, NAMES.output)


def looks_like(head: Head) -> str | None:
    if not set(LENGTHS) <= head.keys:
        return None
    return f"its header has {', '.join((*LENGTHS, *([NAMES.time] if NAMES.time in head.keys else [])))}"


def read(path: str | Path, rate: float | None = None, seed: int = 0, timestamp_unit: str = "") -> Workload:
    """Requests in file order. rate: requests per second of a file without times (default 1, so that rate_scale is the
    rate)."""

    def clock(rows: Rows, times: list[Any], n: int) -> np.ndarray:
        if not times:
            return _poisson(rows, n, rate, seed)
        if rate is not None:
            rows.fail(
                "[workload] rate", rate, f"none: the file has times ({NAMES.time}); rate_scale makes it faster", 1
            )
        return lengths.seconds(rows, times, NAMES.time)

    return lengths.read(path, NAMES, clock=clock, needed=LENGTHS, timestamp_unit=timestamp_unit)


def _poisson(rows: Rows, n: int, rate: float | None, seed: int) -> np.ndarray:
    assumed = "1 a second (assumed: set [workload] rate, or rate_scale)" if rate is None else f"{rate:g} a second"
    rows.note(f"the file holds lengths and no times: requests arrive as a Poisson process, {assumed}, seed {seed}")
    return np.cumsum(stream(seed, "vidur", "arrivals").standard_exponential(n)) / (1.0 if rate is None else rate)
