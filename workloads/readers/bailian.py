"""Bailian JSONL: `chat_id`, `parent_chat_id` (-1: root), `timestamp` (s), `input_length`, `output_length`, `type`,
`turn`, `hash_ids`.

Written from the documentation of the public Qwen-Bailian traces; no real file was at hand. What it leaves open is
decided here and noted on every read.

The one idea: a row is a whole prompt, history included, so the ids alone say what is shared; chat ids only tell which
rows are one session. Times are recorded for every row and completions for none, so the trace is open loop.

    >>> from workloads.readers import bailian
    >>> workload = bailian.read("qwen_traceA_blksz_16.jsonl")

- Ids name blocks of 16 tokens. Whether a prompt's partial last block has one is not documented: ceil and floor of
  input / 16 are both taken, and the note says how often each was met. Any other count is refused.
- Answers have no ids: in the next turn's prompt they are new text.
- `turn` counts from whatever number the file's first turns have.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.prefix_tree import from_block_ids
from workloads.readers.common import Rows, classes, note_ties
from workloads.readers.coverage import hint
from workloads.readers.hash_ids import HashIds, fail_on_ids
from workloads.readers.head import Head

COLUMNS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")
ROOT = -1
BLOCK_TOKENS = 16


def looks_like(head: Head) -> str | None:
    return (
        "its rows have chat_id, parent_chat_id, hash_ids"
        if {"chat_id", "parent_chat_id", "hash_ids"} <= head.keys
        else None
    )


def read(path: str | Path, block_tokens: int | None = None, timestamp_unit: str = "") -> Workload:
    """Requests in file order; classes are the request types, a session is a root chat and all that descend from it."""
    rows, block_tokens = Rows(path, timestamp_unit), block_tokens or BLOCK_TOKENS
    column: dict[str, list[Any]] = {name: [] for name in (*COLUMNS[:-1], "type", "turn")}
    ids = HashIds()
    for record in rows.records():
        if rows.is_zero(rows.need(record, "output_length")):
            rows.skip("zero output")
            continue
        rows.keep()
        for name in COLUMNS[:-1]:
            column[name].append(rows.need(record, name))
        column["type"].append(str(record.get("type") or "all"))
        column["turn"].append(record.get("turn", 0))
        if not ids.add(rows.need(record, "hash_ids")):
            fail_on_ids(rows, ids, record)
    prompt = rows.integers("input_length", column["input_length"], low=1)
    output = rows.integers("output_length", column["output_length"], low=1)
    turn = rows.integers("turn", column["turn"], low=0)
    arrival_s = rows.clock("timestamp", column["timestamp"], per_second=1)
    note_ties(arrival_s, rows)
    columns = ids.columns()
    if columns is None:
        fail_on_ids(rows, ids, {})
    flat, offsets = columns
    rows.note(
        "written from the format's documentation, no real file was at hand: input_length is taken as the whole prompt,"
        " history included; answers have no ids and are new text in the next turn"
    )
    _check_coverage(rows, prompt, np.diff(offsets), block_tokens)
    session, parent = _sessions(rows, column["chat_id"], column["parent_chat_id"])
    _note_history(rows, flat, offsets, prompt // block_tokens, parent)
    tree, leaf = from_block_ids(flat, offsets, block_tokens, prompt)
    class_id, types = classes(column["type"], rows, "types")
    notes = rows.report(len(prompt))
    return Workload(
        tree=tree,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        leaf=leaf,
        class_id=class_id,
        class_names=types,
        class_slo=("",) * len(types),
        session_id=session,
        turn=(turn - turn.min()).astype(np.int32),
        hash_block_tokens=block_tokens,
        source=rows.source(),
        notes=notes,
    )


def _check_coverage(rows: Rows, prompt: np.ndarray, blocks: np.ndarray, block_tokens: int) -> None:
    """ceil or floor of input / block ids; fewer leave text without identity, more name text that is not there."""
    whole, ragged = prompt // block_tokens, prompt % block_tokens > 0
    bad = np.flatnonzero((blocks != whole) & ~(ragged & (blocks == whole + 1)))
    if len(bad):
        r = bad[0]
        expected = f"{whole[r]} or {whole[r] + 1}" if ragged[r] else f"{whole[r]}"
        rows.fail(
            "hash_ids",
            f"{blocks[r]} ids",
            f"{expected} ids of {block_tokens} tokens to cover input_length = {prompt[r]}{hint(prompt, blocks)}",
            rows.number[r],
        )
    named = int((ragged & (blocks > whole)).sum())
    rows.note(
        f"hash_ids: {int(ragged.sum())} prompts end in a partial block; {named} of these have an id for it, the others"
        " keep it private"
    )


def _sessions(rows: Rows, chats: list[Any], parents: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """(session numbers int64 [n], row of the parent int64 [n], -1 none): chats linked to their root, wherever it
    stands."""
    for field, values in (("chat_id", chats), ("parent_chat_id", parents)):
        for i, value in enumerate(values):
            if type(value) is not int and type(value) is not str:
                rows.fail(field, value, "a whole number or text", rows.number[i])
    row_of: dict[Any, int] = {}
    for i, chat in enumerate(chats):
        row_of.setdefault(chat, i)
    parent = np.array([-1 if p == ROOT else row_of.get(p, -1) for p in parents], np.int64)
    root = np.full(len(chats), -1, np.int64)
    for i in range(len(chats)):
        chain, at = [i], i
        while root[at] < 0 and parent[at] >= 0:
            at = int(parent[at])
            if at == i:
                rows.fail("parent_chat_id", parents[i], "a chat that does not descend from this one", rows.number[i])
            if len(chain) > len(chats):
                rows.fail("parent_chat_id", parents[i], "a chain of chats that ends in a root", rows.number[i])
            chain.append(at)
        root[chain] = root[at] if root[at] >= 0 else at
    session = np.unique(root, return_inverse=True)[1].astype(np.int64)
    lost = sum(p != ROOT for p in parents) - int((parent >= 0).sum())
    twice = sum(count - 1 for count in Counter(chats).values())
    rows.note(
        f"sessions: {int(session.max(initial=-1)) + 1}, by parent_chat_id; {lost} rows name a parent that is not in the"
        " file and begin a session"
        + (f"; {twice} rows repeat a chat_id, children belong to its first row" if twice else "")
    )
    return session, parent


def _note_history(rows: Rows, flat: np.ndarray, offsets: np.ndarray, full: np.ndarray, parent: np.ndarray) -> None:
    """How often a turn's prompt begins with its parent's: where it does not, the history was not simply repeated."""
    turns = np.flatnonzero(parent >= 0)
    repeats = sum(
        full[p] <= offsets[r + 1] - offsets[r]
        and np.array_equal(flat[offsets[r] : offsets[r] + full[p]], flat[offsets[p] : offsets[p] + full[p]])
        for r, p in zip(turns.tolist(), parent[turns].tolist(), strict=True)
    )
    rows.note(f"history: {repeats} of {len(turns)} later turns begin with all full blocks of their parent's prompt")
