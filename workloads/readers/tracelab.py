"""TraceLab rounds: JSONL, one model call of a coding agent a row, with token counts and the times of its events.

The one idea: a row says how many tokens the provider's cache served (`prefix_tokens`), and what a cache served within a
session is the beginning of the call before it. That, and nothing else, is the shared text here.

    >>> from workloads.readers import tracelab
    >>> workload = tracelab.read("round_trace.jsonl")

What is derived, and how far it can be trusted:
- A round's first min(prefix_tokens, previous prompt + answer) tokens are the previous round's. This is a lower bound: a
  miss of the provider's cache (retention, routing) looks like different text. `append_only=True` assumes instead that a
  prompt at least as long as the one before contains it whole, and the answer too where there is room for both: an upper
  reading, which compaction of the same length would make wrong.
- The cached tokens of a session's first round are text of other sessions; which, nobody recorded, so they share
  nothing.
- A call is sent at its last input event (user_message, tool_result) before the first output event, and ends at its last
  output event (reasoning, text, tool_call). The gap to the next call is think time after a user message, else tool
  time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import SCOPES, PrefixTree, Workload
from workloads.limits import MAX_TOKENS
from workloads.readers.common import Rows, classes
from workloads.readers.head import Head

INPUT_EVENTS, OUTPUT_EVENTS = ("user_message", "tool_result"), ("reasoning", "text", "tool_call")
COUNTS = ("input_tokens_total", "prefix_tokens", "newly_append_tokens", "output_tokens", "round_index")


def looks_like(head: Head) -> str | None:
    fields = {"session_id", "round_index", "input_tokens_total", "prefix_tokens"}
    return f"its rows have {', '.join(sorted(fields))}" if fields <= head.keys else None


@dataclass(frozen=True)
class Round:
    row: int  #: in the file
    session: tuple[str, ...]
    index: int
    provider: str
    prompt: int
    cached: int  #: tokens the provider served from its cache
    output: int
    start_s: float  #: NaN when no event tells
    end_s: float
    by_user: bool  #: a user message released it, not a tool's result


def read(path: str | Path, append_only: bool = False) -> Workload:
    """Sessions as closed loops, in order of their first round in the file; providers are the classes."""
    rows = Rows(path)
    rounds: dict[tuple[str, ...], list[Round]] = {}
    seen: set[tuple[Any, ...]] = set()
    for record in rows.records():
        found = _round(rows, record)
        if found is not None and (found.session, found.index) in seen:
            rows.skip("round of a session that is in the file already")
        elif found is not None:
            seen.add((found.session, found.index))
            rows.keep()
            rounds.setdefault(found.session, []).append(found)
    ordered = [r for session in rounds.values() for r in sorted(session, key=lambda r: r.index)]
    first = np.array([i == 0 or r.session != ordered[i - 1].session for i, r in enumerate(ordered)], bool)
    shared = _shared(ordered, first, append_only)
    arrival_s, delay_s = _times(rows, ordered, first)
    _note_text(rows, ordered, first, shared, append_only)
    class_id, providers = classes([r.provider for r in ordered], rows, "providers")
    notes = rows.report(len(ordered))
    tree, leaf = _tree([r.prompt + r.output for r in ordered], shared.tolist(), first.tolist())
    begins = np.flatnonzero(first)
    turn = np.arange(len(ordered)) - np.repeat(begins, np.diff(np.append(begins, len(ordered))))
    return Workload(
        tree=tree,
        leaf=leaf,
        arrival_s=arrival_s,
        delay_s=delay_s,
        prompt_tokens=np.array([r.prompt for r in ordered], np.int64),
        output_tokens=np.array([r.output for r in ordered], np.int64),
        after=np.where(first, -1, np.arange(len(ordered)) - 1),
        session_id=np.cumsum(first) - 1,
        turn=turn.astype(np.int32),
        class_id=class_id,
        class_names=providers,
        class_slo=("",) * len(providers),
        layer_names=("session",),
        layer_scopes=(SCOPES.index("session"),),
        source=rows.source(),
        notes=notes,
    )


# ---- one row ----


def _round(rows: Rows, record: dict[str, Any]) -> Round | None:
    """The checked round; None when it is skipped, with a count."""
    total, cached, new, output, index = (_whole(rows, record, name) for name in COUNTS)
    if cached + new != total:
        rows.fail("input_tokens_total", total, f"prefix_tokens + newly_append_tokens = {cached + new}")
    if output == 0 or total == 0:
        rows.skip("zero output" if output == 0 else "zero input")
        return None
    start_s, end_s, by_user = _span(rows, record)
    session = (
        str(record.get("project") or ""),
        str(record.get("session_file") or ""),
        str(rows.need(record, "session_id")),
    )
    return Round(
        rows.row, session, index, str(record.get("provider") or "all"), total, cached, output, start_s, end_s, by_user
    )


def _whole(rows: Rows, record: dict[str, Any], name: str) -> int:
    value = rows.need(record, name)
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        rows.fail(name, value, f"a whole number from 0 to {MAX_TOKENS:,}")
    return value


def _span(rows: Rows, record: dict[str, Any]) -> tuple[float, float, bool]:
    """(sent, answered, by a user message), seconds since a fixed date; NaN where no event tells."""
    events = rows.need(record, "timing_events")
    if type(events) is not list or not all(type(e) is dict for e in events):
        rows.fail("timing_events", events, "a list of objects with event_type and timestamp")
    timed = [
        (_seconds(rows, e.get("timestamp")), e.get("event_type"))
        for e in events
        if e.get("event_type") in INPUT_EVENTS + OUTPUT_EVENTS
    ]
    outputs = [t for t, kind in timed if kind in OUTPUT_EVENTS]
    sent = max(
        ((t, kind) for t, kind in timed if kind in INPUT_EVENTS and t <= min(outputs, default=np.inf)),
        default=(np.nan, ""),
    )
    start = sent[0] if sent[0] == sent[0] else min(outputs, default=np.nan)
    return start, max(outputs, default=start), sent[1] == "user_message"


def _seconds(rows: Rows, text: Any) -> float:
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        rows.fail("timestamp", text, "a time like 2026-06-01T05:40:20.151Z")
    if time.tzinfo is None:
        time = time.replace(tzinfo=_EPOCH.tzinfo)
    return (time - _EPOCH).total_seconds()


_EPOCH = datetime.fromisoformat("2020-01-01T00:00:00+00:00")


# ---- sessions ----


def _shared(rounds: list[Round], first: np.ndarray, append_only: bool) -> np.ndarray:
    """int64 [n]: leading tokens of each round that are the previous round's prompt and answer."""
    shared = np.zeros(len(rounds), np.int64)
    for i in np.flatnonzero(~first):
        before, now = rounds[i - 1], rounds[i]
        whole = before.prompt + before.output
        shared[i] = min(now.cached, whole)
        if append_only and now.prompt >= before.prompt:
            shared[i] = max(shared[i], whole if now.prompt >= whole else before.prompt)
    return shared


def _times(rows: Rows, rounds: list[Round], first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(arrival_s: recorded for first rounds, NaN for the others; delay_s after the previous answer)."""
    count: Counter[str] = Counter()
    arrival_s, delay_s = np.full(len(rounds), np.nan), np.zeros(len(rounds))
    for i, now in enumerate(rounds):
        if first[i]:
            if now.start_s != now.start_s:
                rows.fail("timing_events", [], "an event that says when the session's first round began", now.row)
            arrival_s[i] = now.start_s
            continue
        gap = now.start_s - rounds[i - 1].end_s
        kind = "unknown" if gap != gap else "think" if now.by_user else "tool"
        count[kind] += 1
        count["overlap"] += gap < 0
        delay_s[i] = max(gap, 0.0) if gap == gap else 0.0
    if first.any():
        arrival_s -= np.nanmin(arrival_s)
    rows.note("time unit: timestamp is a time of day (its text); times count from the first round of the file")
    rows.note(
        f"sessions: {int(first.sum())}, closed loop from their recorded starts (users or concurrency spread them);"
        f" gaps: {count['think']} think, {count['tool']} tool, {count['unknown']} without events and {count['overlap']}"
        " before the previous answer's last event, both taken as 0 s"
    )
    return arrival_s, delay_s


def _note_text(rows: Rows, rounds: list[Round], first: np.ndarray, shared: np.ndarray, append_only: bool) -> None:
    cached = np.array([r.cached for r in rounds], np.int64)
    how = (
        "a prompt at least as long as the one before is taken to contain it (append_only)"
        if append_only
        else "a lower bound: a miss of the provider's cache looks like different text"
    )
    rows.note(
        "shared text: derived from prefix_tokens as the beginning of the previous round's prompt and answer,"
        f" {int(shared.sum())} tokens; {how}"
    )
    beyond = int(np.maximum(cached - shared, 0)[~first].sum())
    rows.note(
        f"{int(cached[first].sum())} tokens that the provider's cache served to first rounds, and {beyond} to later"
        " ones beyond the previous round, are text of unknown origin and share nothing"
    )


def _tree(totals: list[int], shared: list[int], first: list[bool]) -> tuple[PrefixTree, np.ndarray]:
    """(tree, leaf int32 [n]) of rounds that each share `shared` leading tokens with the round before.

    A round's own text begins where it leaves the round before; it is cut into nodes wherever a later round leaves it.
    `path` holds the owners (round, where its text on the path begins) of the current path, shallow to deep.
    """
    cuts: list[set[int]] = [set() for _ in totals]
    above: list[
        tuple[int, int]
    ] = []  # (owner, depth) of the node below which a round's own text hangs; owner -1: the root
    path: list[tuple[int, int]] = []
    for r, depth in enumerate(shared):
        while path and (first[r] or path[-1][1] >= depth):
            path.pop()
        if path:
            cuts[path[-1][0]].add(depth)
        above.append((path[-1][0], depth) if path else (-1, 0))
        if totals[r] > depth:
            path.append((r, depth))
    parent, end, node = [-1], [0], {(-1, 0): 0}
    leaf = np.zeros(len(totals), np.int32)
    for r, hangs in enumerate(above):
        at = node[hangs]
        for cut in sorted(cuts[r]):
            parent.append(at)
            end.append(cut)
            at = node[r, cut] = len(parent) - 1
        leaf[r] = at
    return PrefixTree(np.array(parent, np.int32), np.array(end, np.int64), np.zeros(len(parent), np.int16)), leaf
