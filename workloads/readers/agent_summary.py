"""Agent sessions as arrays of lengths (Applied Compute's TRIE format, Dynamo's `applied_compute_agentic`): a session a
row.

The one idea: `num_turns` tool calls, each an answer, a tool's output and the seconds it took; every request's prompt is
all that came before, so a session shares its own history and nothing else is known.

    >>> from workloads.readers import agent_summary
    >>> workload = agent_summary.read("sessions.jsonl")

Written from the format's documentation; no real file was at hand. There are no arrival times: sessions run at a fixed
concurrency or at a rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.limits import MAX_SECONDS, MAX_TOKENS
from workloads.readers.common import Rows
from workloads.readers.head import Head
from workloads.readers.turns import delta_paths
from workloads.readers.values import number

ARRAYS = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
LAST = "final_assistant_response_length"
FIELDS = {"num_turns", "input_prompt_length", *ARRAYS, LAST}


def looks_like(head: Head) -> str | None:
    return f"its rows have {', '.join(sorted(FIELDS))}" if head.keys >= FIELDS else None


def read(path: str | Path) -> Workload:
    """num_turns + 1 requests a session, the last one its final answer."""
    rows = Rows(path)
    session: list[int] = []
    new: list[int] = []
    output: list[int] = []
    delay_s: list[float] = []
    sessions = 0
    for record in rows.records():
        turns = _whole(rows, record, "num_turns", 0)
        answers, tools, waits = (_array(rows, record, name, turns) for name in ARRAYS)
        lengths = [*(_item(rows, ARRAYS[0], v) for v in answers), _whole(rows, record, LAST, 1)]
        inputs = [_whole(rows, record, "input_prompt_length", 1), *(_item(rows, ARRAYS[1], v) for v in tools)]
        rows.keep()
        session += [sessions] * (turns + 1)
        output += lengths
        new += inputs
        delay_s += [0.0, *(_seconds(rows, v) for v in waits)]
        sessions += 1
    n = len(new)
    (tree, leaf), prompt = delta_paths(session, new, output)
    if len(prompt) and prompt.max() > MAX_TOKENS:
        rows.fail("input_prompt_length", int(prompt.max()), f"prompts of at most {MAX_TOKENS} tokens")
    first = np.concatenate(([True], np.diff(session) != 0)) if n else np.zeros(0, bool)
    starts = np.maximum.accumulate(np.where(first, np.arange(n), 0)) if n else np.zeros(0, np.int64)
    rows.note(f"sessions: {sessions}, of {n} requests; each request follows the one before it and its tool's seconds")
    rows.note("time unit: tool_call_latency in s (the format's documentation)")
    rows.note("sessions share nothing: the format says nothing of their text")
    arrival_s = rows.no_times(n)
    notes = rows.report(sessions)
    return Workload(
        tree=tree,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=np.array(output, np.int64),
        leaf=leaf,
        session_id=np.array(session, np.int64),
        turn=(np.arange(n) - starts).astype(np.int32),
        after=np.where(first, -1, np.arange(n) - 1),
        delay_s=np.array(delay_s, np.float64),
        source=rows.source(),
        notes=notes,
    )


def _whole(rows: Rows, record: dict[str, Any], name: str, low: int) -> int:
    value = rows.need(record, name)
    if type(value) is not int or not low <= value <= MAX_TOKENS:
        rows.fail(name, value, f"a whole number from {low} to {MAX_TOKENS}")
    return value


def _array(rows: Rows, record: dict[str, Any], name: str, turns: int) -> list[Any]:
    values = rows.need(record, name)
    if type(values) is not list or len(values) != turns:
        rows.fail(name, values, f"a list of num_turns = {turns} numbers")
    return values


def _item(rows: Rows, name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        rows.fail(name, value, f"whole numbers from 1 to {MAX_TOKENS}")
    return value


def _seconds(rows: Rows, value: Any) -> float:
    if not 0 <= number(value) <= MAX_SECONDS:
        rows.fail(ARRAYS[2], value, "seconds, numbers of at least 0")
    return float(value)
