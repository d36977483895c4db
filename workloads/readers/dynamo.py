"""Dynamo request traces (`dynamo.request.trace.v1`): JSON lines of events, each alone or wrapped in `event`.

The one idea: a request_end says when a request came and how long it took, and the chained hashes of its blocks;
sessions and their parents say who waited for whom, as Dynamo's own replay infers it from the times.

    >>> from workloads.readers import dynamo
    >>> workload = dynamo.read("dynamo-trace.000000.jsonl.gz")

Written from Dynamo's loader (lib/data-gen, request_trace); no real file was at hand. A session's request follows the
one before it; a child session's first request follows the last request of its parent that was complete by then, and the
parent's first request after the child's end follows the child. The time between is recorded, tools and thinking alike.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workloads.columns import Workload
from workloads.errors import InputError
from workloads.limits import MAX_TOKENS
from workloads.prefix_tree import from_block_ids
from workloads.readers.common import NO_IDENTITY, Rows, from_first, note_ties
from workloads.readers.hash_ids import EXPECTED, IdCodes
from workloads.readers.head import Head
from workloads.readers.values import number
from workloads.readers.waits import Wait, Waits, joined

SCHEMA = "dynamo.request.trace.v1"
NO_REQUESTS = ("tool_start", "tool_end", "tool_error", "request_payload")
MS = 1000
LATEST_MS = 10**15  #: since 1970, 30,000 years on


def looks_like(head: Head) -> str | None:
    named = SCHEMA.encode() in head.bytes and {"event", "event_type"} & head.keys
    return f"its rows are events of {SCHEMA}" if named else None


class Request(NamedTuple):
    """One request_end; times in whole milliseconds of the file's clock."""

    row: int
    name: str
    session: str | None
    parent: str | None
    start_ms: int
    end_ms: int
    prompt: int
    output: int
    ids: np.ndarray  #: of full blocks, those of the answer too where the row has them


@dataclass
class _Read:
    rows: Rows
    codes: IdCodes = field(default_factory=IdCodes)
    requests: list[Request] = field(default_factory=list)
    block_tokens: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, record: dict[str, Any]) -> None:
        event = record["event"] if isinstance(record.get("event"), dict) else record
        kind = event.get("event_type")
        if kind in NO_REQUESTS:
            self.rows.skip("tool events" if kind.startswith("tool") else "payloads")
            return
        if kind != "request_end":
            self.rows.fail("event_type", kind, f"request_end, or one of {', '.join(NO_REQUESTS)}")
        request = self._object(event, "request")
        output = self._count(request, "output_tokens", 0)
        if not output:
            self.rows.skip("zero output")
            return
        replay = self._object(request, "replay") if request.get("replay") is not None else None
        counted = request if replay is None else replay
        prompt = self._count(counted, "input_tokens" if replay is None else "input_length", 1)
        context = self._object(event, "agent_context") if event.get("agent_context") is not None else {}
        start_ms, end_ms = self._times(event, request)
        self.rows.keep()
        self.counts["cached"] += self._count(request, "cached_tokens", 0) if request.get("cached_tokens") else 0
        self.requests.append(
            Request(
                self.rows.row,
                str(self._name(request, "request_id")),
                self._name(context, "session_id") if context else None,
                self._name(context, "parent_session_id") if context.get("parent_session_id") is not None else None,
                start_ms,
                end_ms,
                prompt,
                output,
                np.zeros(0, np.int64) if replay is None else self._ids(replay, prompt, output),
            )
        )

    # ---- fields ----

    def _object(self, holder: dict[str, Any], name: str) -> dict[str, Any]:
        value = holder.get(name)
        if not isinstance(value, dict):
            self.rows.fail(name, value, "an object")
        return value

    def _count(self, holder: dict[str, Any], name: str, low: int) -> int:
        value = holder.get(name)
        if type(value) is not int or not low <= value <= MAX_TOKENS:
            self.rows.fail(name, value, f"a whole number from {low} to {MAX_TOKENS}")
        return value

    def _name(self, holder: dict[str, Any], name: str) -> str:
        value = holder.get(name)
        if type(value) is not str or not value:
            self.rows.fail(name, value, "text")
        return value

    def _times(self, event: dict[str, Any], request: dict[str, Any]) -> tuple[int, int]:
        """When it came and when it was complete: from two of its arrival, its duration, and the event's time."""
        received, took = request.get("request_received_ms"), request.get("total_time_ms")
        at = event.get("event_time_unix_ms")
        for holder, name in ((request, "request_received_ms"), (event, "event_time_unix_ms")):
            value = holder.get(name)
            if value is not None and (type(value) is not int or not 0 <= value < LATEST_MS):
                self.rows.fail(name, value, "whole milliseconds")
        if took is not None and not 0 <= number(took) < 1e12:
            self.rows.fail("total_time_ms", took, "milliseconds, a number of at least 0")
        if received is not None:
            end = received + round(number(took)) if took is not None else received if at is None else at
            return received, max(received, end)
        if at is None or took is None:
            self.rows.fail("request_received_ms", received, "a time, or event_time_unix_ms and total_time_ms")
        return max(0, at - round(number(took))), at

    def _ids(self, replay: dict[str, Any], prompt: int, output: int) -> np.ndarray:
        """Ids of the full blocks of prompt and, where it is recorded, answer: no engine caches part of a block."""
        block = self._count(replay, "trace_block_size", 1)
        self.block_tokens = self.block_tokens or block
        if block != self.block_tokens:
            self.rows.fail("trace_block_size", block, f"{self.block_tokens} as in the requests before")
        whole = replay.get("completion_sequence_hashes") is not None
        name = "completion_sequence_hashes" if whole else "input_sequence_hashes"
        listed, tokens = replay.get(name), prompt + output if whole else prompt
        if type(listed) is not list or len(listed) != -(-tokens // block):
            shown = f"{len(listed)} hashes" if type(listed) is list else listed
            self.rows.fail(name, shown, f"{-(-tokens // block)} hashes of {block} tokens for {tokens}")
        ids = self.codes.column(listed)
        if ids is None:
            self.rows.fail(name, self.codes.problem(listed), EXPECTED)
        self.counts["answers"] += whole
        return ids[: tokens // block]


def read(path: str | Path) -> Workload:
    """Requests by their recorded start. InputError for rows that Dynamo's own replay would refuse too."""
    rows = Rows(path)
    found = _Read(rows)
    for record in rows.records():
        found.add(record)
    order = sorted(range(len(found.requests)), key=lambda i: (found.requests[i].start_ms, found.requests[i].end_ms, i))
    requests = [found.requests[i] for i in order]
    rows.number = [rows.number[i] for i in order]
    _distinct(rows, requests)
    start_ms = np.array([r.start_ms for r in requests], np.int64)
    start_s = from_first(start_ms, rows, "request_received_ms", MS, shown=start_ms.tolist())
    rows.note("time unit: request_received_ms in ms (its name)")
    took_s = np.array([r.end_ms - r.start_ms for r in requests], np.float64) / MS
    sessions = [r.session or f"request {r.name}" for r in requests]
    waits = _waits(requests, sessions)
    _, after, delay_s, _ = waits.resolved(rows, start_s, took_s)  # everybody waits for what stands before
    return _workload(rows, found, requests, sessions, np.where(after >= 0, np.nan, start_s), after, delay_s)


def _distinct(rows: Rows, requests: list[Request]) -> None:
    seen: dict[str, int] = {}
    for request in requests:
        if request.name in seen:
            rows.fail("request_id", request.name, f"another than that of row {seen[request.name]}", request.row)
        seen[request.name] = request.row


def _waits(requests: list[Request], sessions: list[str]) -> Waits:
    """Who waits for whom: by session, and between a session and its parent."""
    of_session: dict[str, list[int]] = {}
    for i, name in enumerate(sessions):
        of_session.setdefault(name, []).append(i)
    waits: list[list[int]] = [[] for _ in requests]
    for at in of_session.values():
        for before, i in pairwise(at):
            if requests[before].end_ms <= requests[i].start_ms:
                waits[i].append(before)
    for name, at in of_session.items():
        parents = of_session.get(next((requests[i].parent for i in at if requests[i].parent), None) or "", [])
        if not parents or sessions[parents[0]] == name:
            continue
        last = max(at, key=lambda i: requests[i].end_ms)
        ended = [p for p in parents if p < at[0] and requests[p].end_ms <= requests[at[0]].start_ms]
        if ended:
            waits[at[0]].append(max(ended, key=lambda p: requests[p].end_ms))
        joins = next((p for p in parents if p > last and requests[p].start_ms >= requests[last].end_ms), None)
        if joins is not None:
            waits[joins].append(last)
    graph = Waits("agent_context")
    for request, needs in zip(requests, waits, strict=True):
        ends = max((requests[n].end_ms for n in needs), default=0)
        gap_s = (request.start_ms - ends) / MS
        graph.add(request.name, [Wait(requests[n].name, gap_s) for n in needs])
    return graph


def _workload(
    rows: Rows,
    found: _Read,
    requests: list[Request],
    sessions: list[str],
    arrival_s: np.ndarray,
    after: np.ndarray,
    delay_s: np.ndarray,
) -> Workload:
    if not requests:
        rows.report(0)
        raise InputError(f"{rows.path}: no request_end, expected at least one")
    prompt, output = (np.array([getattr(r, name) for r in requests], np.int64) for name in ("prompt", "output"))
    block = found.block_tokens or 1
    offsets = np.concatenate(([0], np.cumsum([len(r.ids) for r in requests], dtype=np.int64)))
    tree, leaf = from_block_ids(np.concatenate([r.ids for r in requests]), offsets, block, prompt, output)
    number_of: dict[str, int] = {}
    session = np.array([number_of.setdefault(name, len(number_of)) for name in sessions], np.int64)
    session, turn = joined(session, after)
    note_ties(arrival_s[after < 0], rows)
    _notes(rows, found, requests, after, int(prompt.sum()))
    follows = bool(np.any(after >= 0))
    return Workload(
        tree=tree,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        leaf=leaf,
        session_id=session,
        turn=turn,
        after=after if follows else None,
        delay_s=delay_s if follows else None,
        prefix_identity=bool(found.block_tokens),
        hash_block_tokens=found.block_tokens or None,
        source=rows.source(),
        notes=rows.report(len(requests)),
    )


def _notes(rows: Rows, found: _Read, requests: list[Request], after: np.ndarray, tokens: int) -> None:
    without = sum(not len(r.ids) for r in requests)
    if not found.block_tokens:
        rows.note(NO_IDENTITY.replace("this format", "this file (captured without replay hashes)"))
    else:
        rows.note(
            f"hashes: of {found.block_tokens} tokens, full blocks count; {without} requests have none;"
            f" {found.counts['answers']} have those of their answer too"
        )
    rows.note(
        f"sessions: {int((after >= 0).sum())} requests follow a completion, of their session or between it and its"
        " parent, after the recorded time between; requests that overlapped the one before come at their time"
    )
    if found.counts["cached"]:
        share = found.counts["cached"] / tokens
        rows.note(f"cached_tokens: the recorded server served {share:.1%} of the prompt tokens from its cache")
