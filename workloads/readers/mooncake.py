"""Mooncake JSONL: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (chained hashes of 512-token blocks).

The one idea: the ids name blocks of one size, each the whole prefix up to it, and cover the input's ragged end in all
rows or in none.

    >>> from workloads.readers import mooncake
    >>> workload = mooncake.read("conversation_trace.jsonl")

Many tools write these names. Read besides, from their sources (Dynamo's lib/data-gen, AIPerf's Mooncake loader; no
real file was at hand): the aliases `input_tokens`, `output_tokens`, `created_time`, `delay_ms`; `session_id` and
`delay` (ms): a row with a delay, or without a time, follows the completion of its session's row before it;
`context_mode`; and the requests that wait for others, `wait_for` + `delay` + `tool_wait_ms`, or `dependencies` behind a
header row with the block size (Dynamo's agentic rows, both versions). What else a row holds is named in a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import PrefixTree, Workload
from workloads.errors import InputError
from workloads.limits import MAX_TOKENS
from workloads.prefix_tree import from_block_ids
from workloads.readers import turns as turns_of
from workloads.readers.agentic import DELAY, MS, Dependencies, first
from workloads.readers.collected import Collected
from workloads.readers.common import NO_IDENTITY, Rows, note_ties
from workloads.readers.coverage import covered
from workloads.readers.hash_ids import HashIds, fail_on_ids
from workloads.readers.head import Head
from workloads.readers.plain_lines import PlainLines
from workloads.readers.waits import joined

INPUT = ("input_length", "input_tokens")
OUTPUT = ("output_length", "output_tokens")
TIME = ("timestamp", "created_time", "not_before_ms")
TEXT = ("text_input", "messages", "payload")
READ = {
    *(*INPUT, *OUTPUT, *TIME, *DELAY, "hash_ids", "session_id", "play_id", "request_id", "context_mode"),
    *("wait_for", "tool_wait_ms", "dependencies"),
}
PLAIN = {"timestamp", "input_length", "output_length", "hash_ids"}
STRUCTURE = {"branches", "prefix_reset", "tool_events", "request_kind", "type", "output_token_ids"}
"""Fields that repeat, or describe, what others decide."""
HEADER = "dynamo.agentic_mooncake"
BLOCK_TOKENS = 512
NOMINAL_TOKEN_S = 0.02
"""About what an answer's token takes: tells which of several requests ends last, nothing else."""


def looks_like(head: Head) -> str | None:
    if "parent_chat_id" in head.keys:
        return None  # Bailian uses these names for other units: seconds and 16-token blocks
    if {"schema", "hash_id_scope", "block_size"} <= head.keys and "requests" not in head.keys:
        return "its first row is a header with schema, block_size, hash_id_scope"
    if head.columns and "hash_ids" not in head.keys:
        return None  # a table of somebody's own, whose times are not said to be milliseconds
    names = [next((name for name in known if name in head.keys), "") for known in (INPUT, OUTPUT)]
    found = sorted(head.keys & {"hash_ids", "timestamp", "created_time", "session_id", "wait_for"})
    if names[0] != INPUT[0] and not head.keys & {"hash_ids", "created_time", "wait_for"}:
        return None  # names that many tables have, for times of any unit
    return f"its rows have {', '.join([*names, *found])}" if all(names) and found else None


def read(
    path: str | Path, block_tokens: int | None = None, turns: str | None = None, timestamp_unit: str = ""
) -> Workload:
    """Requests of a Mooncake trace. block_tokens: what an id stands for (512 when neither this nor a header says so).
    turns: "whole" or "delta", whether a session's rows hold the whole prompt or what is new. timestamp_unit: of all
    times but those that name theirs.
    InputError for ids that no one block size explains, and for sessions that can be read either way."""
    rows = Rows(path, timestamp_unit)
    read = _Read(rows)
    for record in rows.records(taken=read.take):
        read.add(record)
    return read.workload(block_tokens, turns)


@dataclass
class _Read:
    """The rows as columns while they are read."""

    rows: Rows
    inputs: Collected = field(default_factory=Collected)
    outputs: Collected = field(default_factory=Collected)
    times: Collected = field(default_factory=Collected)
    delays: list[Any] = field(default_factory=list)
    sessions: list[Any] = field(default_factory=list)
    plays: list[Any] = field(default_factory=list)
    ids: HashIds = field(default_factory=HashIds)
    needs: Dependencies = field(init=False)  #: who waits for whom
    modes: dict[str, str] = field(default_factory=dict)  #: what rows say of themselves -> by what
    plain_lines: PlainLines = field(default_factory=lambda: PlainLines(PLAIN, listed="hash_ids"))
    plain: set[tuple[str, ...]] = field(default_factory=set)  #: fields of rows that hold nothing but what `PLAIN` names
    seen: set[tuple[str, ...]] = field(default_factory=set)
    others: dict[str, None] = field(default_factory=dict)  #: names of fields that are not used, in order
    header: dict[str, Any] | None = None
    time_name: str = ""  #: what the file calls a request's time

    def __post_init__(self) -> None:
        self.needs = Dependencies(self.rows)

    # ---- rows ----

    def take(self, lines: bytes, before: int) -> int:
        """Whole lines behind so many others, all rows of the four fields that Mooncake's own files have: the same as
        `add` of each, in a fifth of the time. The number of rows, or 0 where there is anything else."""
        found = self.plain_lines.read(lines) if self.time_name in ("", "timestamp") else None
        if found is None:
            return 0
        columns, counts = found
        kept = columns["output_length"] > 0
        n = int(kept.sum())
        if not n or not self.ids.take(columns["hash_ids"][np.repeat(kept, counts)], counts[kept]):
            return 0
        self.time_name = "timestamp"
        self.rows.keep_all(before + 1 + np.flatnonzero(kept))
        if n < len(kept):
            self.rows.skip("zero output", len(kept) - n)
        for values, name in ((self.inputs, INPUT[0]), (self.outputs, OUTPUT[0]), (self.times, TIME[0])):
            values.extend(columns[name][kept].tolist())
        for column in (self.delays, self.sessions, self.plays, self.needs.graph.names):
            column.extend([None] * n)
        self.needs.graph.waits.extend([()] * n)
        return len(kept)

    def add(self, record: dict[str, Any]) -> None:
        rows, fields = self.rows, tuple(record)
        if fields in self.plain:
            self._add_plain(record)
            return
        if fields not in self.seen:
            self.seen.add(fields)
            self.others.update(dict.fromkeys(name for name in fields if name not in READ))
        if self.time_name == "timestamp" and set(fields) >= PLAIN and not set(fields) & (READ - PLAIN):
            self.plain.add(fields)
        if "schema" in record and record["schema"] == HEADER:
            self._head(record)
            return
        name, waits = self.needs.of(record)
        output = self._need(record, OUTPUT)
        if rows.is_zero(output):
            rows.skip("zero output")
            self.needs.graph.skip(name, waits)
            return
        self.inputs.append(self._need(record, INPUT))
        rows.keep()
        self.needs.graph.add(name, waits)
        self.outputs.append(output)
        time = first(record, TIME)
        self.times.append(time)
        if time is not None and not self.time_name:
            self.time_name = next(name for name in TIME if record.get(name) is not None)
        self.delays.append(None if waits or first(record, DELAY) is None else self.needs.seconds(record, DELAY))
        self.sessions.append(record.get("session_id"))
        self.plays.append(record.get("play_id"))
        self._mode(record.get("context_mode"))
        self._ids(record)

    def _add_plain(self, record: dict[str, Any]) -> None:
        """A row of the four fields that Mooncake's own files have: the same as `add`, in a third of the time."""
        output = record["output_length"]
        if output == 0 or self.rows.is_zero(output):
            self.rows.skip("zero output")
            return
        self.rows.keep()
        self.needs.graph.add(None, ())
        self.inputs.append(record["input_length"])
        self.outputs.append(output)
        self.times.append(record["timestamp"])
        for column in (self.delays, self.sessions, self.plays):
            column.append(None)
        self._ids(record)

    def _ids(self, record: dict[str, Any]) -> None:
        ids = record.get("hash_ids")
        if not self.ids.add([] if ids is None else ids):
            fail_on_ids(self.rows, self.ids, record)

    def _head(self, record: dict[str, Any]) -> None:
        """A first row that says what an id stands for; it is no request."""
        size, scope, rows = record.get("block_size"), record.get("hash_id_scope"), self.rows
        if self.header is not None or self.inputs:
            rows.fail("schema", record["schema"], "a request: only a file's first row is a header")
        if record.get("version") != 2:
            rows.fail("version", record.get("version"), "2")
        if type(size) is not int or not 1 <= size <= MAX_TOKENS:
            rows.fail("block_size", size, f"a whole number from 1 to {MAX_TOKENS}")
        if scope not in ("local", "global"):
            rows.fail("hash_id_scope", scope, "local or global")
        self.header = record
        self.needs.graph.field_name = "dependencies"
        rows.skip("header")

    def _need(self, record: dict[str, Any], names: tuple[str, ...]) -> Any:
        for name in names:
            if name in record:
                return record[name]
        text = next((name for name in TEXT if name in record), None)
        if text is not None and names is INPUT:
            self.rows.fail(text, "(text)", "input_length, tokens: this format counts no text")
        return self.rows.need(record, names[0])

    def _mode(self, mode: Any) -> None:
        if mode is None:
            return
        known = turns_of.CONTEXT_MODES
        if mode not in known:
            self.rows.fail("context_mode", mode, f"one of {', '.join(known)}")
        self.modes[known[mode]] = "context_mode says"

    # ---- columns ----

    def workload(self, block_tokens: int | None, turns: str | None) -> Workload:
        rows, n = self.rows, len(self.inputs)
        block = self._block_tokens(block_tokens)
        new = rows.integers("input_length", self.inputs, low=1)
        output = rows.integers("output_length", self.outputs, low=1)
        session, turn, followers = self._sessions()
        columns = self.ids.columns()
        if columns is None:
            fail_on_ids(rows, self.ids, {})
        flat, offsets = columns
        blocks = np.diff(offsets)
        covered(rows, new, blocks, block)
        grouped = np.arange(n) if session is None else session
        if not self.modes and any(self.needs.graph.waits):
            self.modes[turns_of.WHOLE] = "rows that wait for others have it"
        mode = turns_of.reading(rows, turns, self.modes, grouped, new, output, flat, offsets)
        arrival_s, after, delay_s, order = self._times(followers, output)
        (tree, leaf), prompt = self._prompts(mode, grouped, new, output, flat, offsets, block)
        whole = mode == turns_of.WHOLE
        self._notes(blocks, whole)
        after = _renumbered(after, order)
        if session is not None and turn is not None:
            session, turn = session[order], turn[order]
        if any(self.needs.graph.waits):
            session, turn = joined(grouped[order], after)
        return Workload(
            tree=tree,
            arrival_s=arrival_s[order],
            prompt_tokens=prompt[order],
            output_tokens=output[order],
            leaf=leaf[order],
            session_id=session,
            turn=turn,
            after=after if np.any(after >= 0) else None,
            delay_s=delay_s[order] if np.any(after >= 0) else None,
            prefix_identity=bool(blocks.any()) or not whole,
            hash_block_tokens=block if whole else None,
            source=rows.source(),
            notes=rows.report(n),
        )

    def _block_tokens(self, asked: int | None) -> int:
        if self.header is None:
            return asked or BLOCK_TOKENS
        stated: int = self.header["block_size"]
        if asked is not None and asked != stated:
            raise InputError(f"{self.rows.path}: block_tokens = {asked}, expected {stated}, as the file's header says")
        self.rows.note(f"hash_ids: of {stated} tokens each, {self.header['hash_id_scope']}, as the header says")
        return stated

    def _sessions(self) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray]:
        """(session numbers or None, turns or None, followers int64 [n]: the row of the session before one that has a
        delay or no time, else -1)."""
        rows, n = self.rows, len(self.sessions)
        followers = np.full(n, -1, np.int64)
        if all(name is None for name in self.sessions):
            return None, None, followers
        number: dict[Any, int] = {}
        last: dict[int, tuple[int, int]] = {}
        session, turn = np.zeros(n, np.int64), np.zeros(n, np.int32)
        early = 0
        for i, (name, play) in enumerate(zip(self.sessions, self.plays, strict=True)):
            for field_name, value in (("session_id", name), ("play_id", play)):
                if value is not None and type(value) is not str and type(value) is not int:
                    rows.fail(field_name, value, "text or a whole number", rows.number[i])
            key = (type(name), i if name is None else name, type(play), play)
            s = session[i] = number.setdefault(key, len(number))
            before, count = last.get(s, (-1, -1))
            if not self.needs.graph.waits[i] and (self.delays[i] is not None or self.times[i] is None):
                followers[i] = before
                early += before < 0 and bool(self.delays[i])
            turn[i] = count + 1
            last[s] = (i, count + 1)
        if early:
            rows.note(f"delay: {early} first rows of a session have one; they come at their time, or as one without")
        return session, turn, followers

    def _times(
        self, followers: np.ndarray, output: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(arrival_s, NaN where another request decides; after; delay_s; the order in which rows become requests)."""
        rows, n = self.rows, len(followers)
        follows = followers >= 0
        waiting = np.array([bool(w) for w in self.needs.graph.waits], bool)
        clocked = np.flatnonzero(~follows & ~(waiting & np.array([t is None for t in self.times], bool)))
        start_s = np.full(n, np.nan)
        if all(self.times[i] is None for i in clocked.tolist()):
            start_s = rows.no_times(n)
        else:
            times: Sequence[Any] = self.times
            number: Sequence[int] = rows.number
            if len(clocked) < n:
                times, number = [times[i] for i in clocked.tolist()], [number[i] for i in clocked.tolist()]
            start_s[clocked] = rows.clock(self.time_name, times, MS, number)
        after, delay_s, order = followers, np.zeros(n), np.arange(n)
        if follows.any():
            delay_s = np.array([(d or 0) if f else 0 for d, f in zip(self.delays, follows, strict=True)], np.float64)
            rows.note(
                f"sessions: {int(follows.sum())} rows have a delay, or no time, and follow the completion of their"
                " session's row before them"
            )
        if waiting.any():
            order, waits_after, waits_s, start_s = self.needs.graph.resolved(rows, start_s, output * NOMINAL_TOKEN_S)
            after = np.where(waiting, waits_after, after)
            delay_s = np.where(waiting, waits_s, delay_s)
            rows.note(
                f"{self.needs.graph.field_name}: {int((after >= 0).sum())} requests are released by the completion of"
                " another"
            )
        arrival_s = np.where(after >= 0, np.nan, start_s)
        if np.isfinite(arrival_s).any():
            note_ties(arrival_s[after < 0], rows)
        return arrival_s, after, delay_s, order

    def _prompts(
        self,
        mode: str,
        session: np.ndarray,
        new: np.ndarray,
        output: np.ndarray,
        flat: np.ndarray,
        offsets: np.ndarray,
        block: int,
    ) -> tuple[tuple[PrefixTree, np.ndarray], np.ndarray]:
        """((tree, leaf), prompt tokens int64 [n])."""
        if mode == turns_of.WHOLE:
            return from_block_ids(flat, offsets, block, new, namespace=self._namespace()), new
        ids = [flat[a:b].tolist() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
        answers = mode == turns_of.DELTA
        paths, prompt = turns_of.delta_paths(session, new, output, ids, block, answers)
        if prompt.max(initial=0) > 1e9:
            at = int(prompt.argmax())
            self.rows.fail("input_length", int(new[at]), "sessions of at most 1000000000 tokens", self.rows.number[at])
        return paths, prompt

    def _namespace(self) -> np.ndarray | None:
        """int64 [n] where ids are local to a play, else None."""
        if self.header is None or self.header["hash_id_scope"] == "global":
            return None
        number: dict[Any, int] = {}
        return np.array([number.setdefault(play, len(number)) for play in self.plays], np.int64)

    def _notes(self, blocks: np.ndarray, whole: bool) -> None:
        rows = self.rows
        if not blocks.any() and whole:
            rows.note(NO_IDENTITY.replace("this format", "this file (without hash_ids)"))
        elif not blocks.all() and whole:
            rows.note(f"hash_ids: {int((blocks == 0).sum())} rows have none and share nothing")
        if self.needs.floors:
            rows.note(
                f"not_before_ms: {self.needs.floors} requests that wait for others have one, which is not held against"
                " them"
            )
        unused = [name for name in self.others if name not in STRUCTURE]
        if unused:
            more = f" and {len(unused) - 12} more" if len(unused) > 12 else ""
            rows.note(f"fields that are not used: {', '.join(map(_shown, unused[:12]))}{more}")


def _renumbered(after: np.ndarray, order: np.ndarray) -> np.ndarray:
    """`after` of the rows in a new order."""
    place = np.empty(len(order) + 1, np.int64)
    place[order], place[-1] = np.arange(len(order)), -1
    return place[after[order]]


def _shown(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:40])
