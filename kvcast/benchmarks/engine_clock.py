"""Requests as an engine itself timed them: vLLM's queued, first-token and last-token timestamps, a JSON line each.

The one idea: LLMServingSim's runs of a real vLLM (and whoever writes down vLLM's request metrics) have the engine's own
clock, which starts when a request is queued: no client and no front end is in these times.

    >>> truth = engine_clock(Path("vllm_run/requests.jsonl"))
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from workloads.errors import InputError
from workloads.readers.measured import Measured

COLUMNS = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")
NOTE = "measured by the engine's own clock: from queued on, without a front end"


def engine_clock(path: Path) -> Measured | None:
    """What the file measured; None where its first line has not all of COLUMNS. Seconds, tokens.

    InputError for a later line that has not."""
    rows: list[list[float]] = []
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            values = _values(line)
            if values is None:
                if not rows:
                    return None
                raise InputError(
                    f"{path}, line {number}: expected numbers in {', '.join(COLUMNS)}, as in the lines before"
                )
            rows.append(values)
    if not rows:
        return None
    prompt, output, queued, first, last = np.array(rows).T
    if not ((queued <= first) & (first <= last) & (output >= 1)).all():
        raise InputError(f"{path}: expected queued_ts <= first_token_ts <= last_token_ts and output_toks of 1 or more")
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot_s = np.where(output > 1, (last - first) / (output - 1), np.nan)
    return Measured(
        format="vLLM's request timestamps",
        start_s=queued - queued.min(),
        prompt_tokens=prompt.astype(np.int64),
        output_tokens=output.astype(np.int64),
        ttft_s=first - queued,
        tpot_s=tpot_s,
        e2e_s=last - queued,
        itl_s=np.empty(0),
        summary={},
        failed=0,
        notes=(NOTE,),
    )


def _values(line: str) -> list[float] | None:
    try:
        record = json.loads(line)
        values = [float(record[name]) for name in COLUMNS]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return values if np.isfinite(values).all() else None
