"""Mooncake JSONL: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (chained hashes of 512-token blocks).

The one idea: the ids cover ceil(input / block) blocks, the last one partial, and each names the whole prefix up to it.

    >>> from workloads.readers import mooncake
    >>> workload = mooncake.read("conversation_trace.jsonl")

The additions `session_id` and `delay` (ms), with `timestamp` and `hash_ids` optional, follow the documentation of
aiperf; no real file with them was at hand. A row with a delay is released by the completion of the session's row before
it; `input_length` and `hash_ids` are taken as the whole prompt, history included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.prefix_tree import from_block_ids
from workloads.readers.common import NO_IDENTITY, Rows, note_ties
from workloads.readers.hash_ids import HashIds, fail_on_ids
from workloads.readers.head import Head


def looks_like(head: Head) -> str | None:
    if "parent_chat_id" in head.keys:
        return None  # Bailian uses these names for other units: seconds and 16-token blocks
    if head.columns and "hash_ids" not in head.keys:
        return None  # a table of somebody's own, whose times are not said to be milliseconds
    found = sorted(head.keys & {"hash_ids", "timestamp", "session_id"})
    return (
        f"its rows have input_length, output_length, {', '.join(found)}"
        if {"input_length", "output_length"} <= head.keys and found
        else None
    )


def read(path: str | Path, block_tokens: int = 512, timestamp_unit: str = "") -> Workload:
    """Requests of a Mooncake trace; raises InputError for ids that do not cover the input exactly."""
    rows = Rows(path, timestamp_unit)
    times, inputs, outputs, sessions, delays = [], [], [], [], []
    ids = HashIds()
    for record in rows.records():
        output = rows.need(record, "output_length")
        if rows.is_zero(output):
            rows.skip("zero output")
            continue
        rows.keep()
        inputs.append(rows.need(record, "input_length"))
        outputs.append(output)
        times.append(record.get("timestamp"))
        sessions.append(record.get("session_id"))
        delays.append(record.get("delay"))
        if not ids.add(record.get("hash_ids", [])):
            fail_on_ids(rows, ids, record)
    prompt = rows.integers("input_length", inputs, low=1)
    output = rows.integers("output_length", outputs, low=1)
    session, turn, after = _sessions(rows, sessions, delays)
    arrival_s, delay_s = _times(rows, times, delays, after)
    columns = ids.columns()
    if columns is None:
        fail_on_ids(rows, ids, {})
    flat, offsets = columns
    blocks = np.diff(offsets)
    _check_coverage(rows, prompt, blocks, block_tokens)
    tree, leaf = from_block_ids(flat, offsets, block_tokens, prompt)
    if not blocks.any():
        rows.note(NO_IDENTITY.replace("this format", "this file (without hash_ids)"))
    elif not blocks.all():
        rows.note(f"hash_ids: {int((blocks == 0).sum())} rows have none and share nothing")
    return Workload(
        tree=tree,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        leaf=leaf,
        session_id=session,
        turn=turn,
        after=after if np.any(after >= 0) else None,
        delay_s=delay_s if np.any(after >= 0) else None,
        prefix_identity=bool(blocks.any()),
        hash_block_tokens=block_tokens,
        source=rows.source(),
        notes=rows.report(len(prompt)),
    )


def _sessions(
    rows: Rows, names: list[Any], delays: list[Any]
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray]:
    """(session numbers or None, turns or None, after int64 [n]): a row with a delay follows its session's row before
    it."""
    after = np.full(len(names), -1, np.int64)
    if all(name is None for name in names):
        return None, None, after
    number: dict[tuple[type, Any], int] = {}
    last: dict[int, tuple[int, int]] = {}
    session, turn = np.zeros(len(names), np.int64), np.zeros(len(names), np.int32)
    for i, name in enumerate(names):
        if name is not None and type(name) is not str and type(name) is not int:
            rows.fail("session_id", name, "text or a whole number", rows.number[i])
        s = session[i] = number.setdefault((type(name), i if name is None else name), len(number))
        before, turns = last.get(s, (-1, -1))
        if delays[i] is not None:
            after[i] = before
        turn[i] = turns + 1
        last[s] = (i, turns + 1)
    return session, turn, after


def _times(rows: Rows, times: list[Any], delays: list[Any], after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(arrival_s, NaN where another request's completion decides; delay_s)."""
    released = after >= 0
    recorded = np.flatnonzero(~released)
    arrival_s = np.full(len(times), np.nan)
    if all(times[i] is None for i in recorded):
        arrival_s = rows.no_times(len(times))
    else:
        arrival_s[recorded] = rows.clock(
            "timestamp", [times[i] for i in recorded], 1000, [rows.number[i] for i in recorded]
        )
        note_ties(arrival_s[recorded], rows)
    if not released.any():
        return arrival_s, np.zeros(len(times))
    delay_s = rows.durations("delay", [d if r else 0 for d, r in zip(delays, released, strict=True)], per_second=1000)
    rows.note(
        f"sessions: {int(released.sum())} rows have a delay and follow the completion of their session's row before"
        " them; input_length is taken as the whole prompt"
    )
    return arrival_s, delay_s


def _check_coverage(rows: Rows, prompt: np.ndarray, blocks: np.ndarray, block_tokens: int) -> None:
    """Every row has ceil(input / block) ids: fewer leave part of the prompt without identity, more name text that is
    not there."""
    expected = -(-prompt // block_tokens)
    bad = np.flatnonzero((blocks != expected) & (blocks > 0))
    if len(bad):
        r = bad[0]
        rows.fail(
            "hash_ids",
            f"{blocks[r]} ids",
            f"{expected[r]} ids of {block_tokens} tokens to cover input_length = {prompt[r]}",
            rows.number[r],
        )
