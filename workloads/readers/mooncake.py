"""Mooncake JSONL: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (chained hashes of 512-token blocks).

The one idea: the ids cover ceil(input / block) blocks, the last one partial, and already name the whole prefix.
The additions `session_id` and `delay` (ms), with `timestamp` and `hash_ids` optional, are read as the aiperf tool documents
them; no real file with them was at hand.

    >>> from workloads.readers import mooncake
    >>> workload = mooncake.read("conversation_trace.jsonl")
"""
from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.prefix_tree import from_block_ids
from workloads.readers.common import Rows, from_first, note_ties
from workloads.readers.head import Head

CHUNK_ROWS = 8192  #: rows whose ids are held as Python integers at a time


class _Ids:
    """Collects rows of hash ids as 64-bit columns; what does not fit 64 bits (text, big integers) is numbered."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._pending: list[list[Any]] = []
        self._chunks: list[np.ndarray] = []
        self._kinds: set[str] = set()
        self._numbers: dict[Any, int] = {}

    def add(self, ids: list[Any]) -> None:
        self.lengths.append(len(ids))
        self._pending.append(ids)
        if len(self._pending) == CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        flat = list(chain.from_iterable(self._pending))
        self._pending = []
        if set(map(type, flat)) <= {int}:
            for kind in (np.int64, np.uint64):
                try:
                    column = np.array(flat, kind)
                except OverflowError:
                    continue
                self._kinds |= {kind.__name__} if column.size and column.view(np.int64).min() < 0 else set()
                self._chunks.append(column.view(np.int64))  # uint64 to int64 keeps all 64 bits
                return
        raise OverflowError("hash ids")

    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """(ids int64 flat, offsets int64 [rows + 1])."""
        self._flush()
        return np.concatenate(self._chunks), np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))


def looks_like(head: Head) -> str | None:
    if {"input_length", "output_length"} <= head.keys and head.keys & {"hash_ids", "timestamp", "session_id"}:
        return "its rows have input_length, output_length and " + " and ".join(sorted(head.keys & {"hash_ids", "timestamp", "session_id"}))
    return None


def read(path: str | Path, block_tokens: int = 512) -> Workload:
    """Requests of a Mooncake trace; raises InputError for ids that do not cover the input exactly."""
    rows = Rows(path)
    times: list[Any] = []
    inputs: list[Any] = []
    outputs: list[Any] = []
    ids = _Ids()
    for record in rows.json_lines():
        output = rows.need(record, "output_length")
        if output == 0:
            rows.skip("zero output")
            continue
        rows.keep()
        times.append(rows.need(record, "timestamp"))
        inputs.append(rows.need(record, "input_length"))
        outputs.append(output)
        ids.add(rows.need(record, "hash_ids"))
    prompt = rows.integers("input_length", inputs, low=1)
    output = rows.integers("output_length", outputs, low=1)
    arrival_s = rows.seconds("timestamp", times, per_second=1000)
    flat, offsets = ids.columns()
    _check_coverage(rows, prompt, np.diff(offsets), block_tokens)
    tree, leaf = from_block_ids(flat, offsets, block_tokens, prompt)
    note_ties(arrival_s, rows)
    return Workload(
        tree=tree, arrival_s=from_first(arrival_s, rows), prompt_tokens=prompt, output_tokens=output, leaf=leaf,
        hash_block_tokens=block_tokens, source=rows.source(), notes=rows.report(len(prompt)),
    )


def _check_coverage(rows: Rows, prompt: np.ndarray, blocks: np.ndarray, block_tokens: int) -> None:
    """Every row has ceil(input / block) ids: fewer leave part of the prompt without identity, more name text that is not there."""
    bad = np.flatnonzero(blocks != -(-prompt // block_tokens))
    if len(bad):
        r = bad[0]
        rows.fail(
            "hash_ids", f"{blocks[r]} ids", f"{-(-prompt[r] // block_tokens)} ids of {block_tokens} tokens to cover input_length = {prompt[r]}", rows.number[r]
        )
