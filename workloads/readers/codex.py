"""Codex session logs: rollout-*.jsonl of ~/.codex/sessions, one file, or a folder of them with all below it.

The one idea: a `token_count` event ends a call and holds its counts (`last_token_usage`); what the model wrote since
the call before is its answer, what it was given before that its input.

    >>> from workloads.readers import codex
    >>> workload = codex.read("sessions/2026/06")

Decided here:
- Events that repeat the running total are no calls (the client writes them again and again). Where
  `last_token_usage` is missing, a call is the difference of two running totals.
- `input_tokens` includes `cached_input_tokens`, and `output_tokens` the reasoning.
- The provider's cache keeps prompts in steps of 128 tokens, for minutes and as well as it can: one that was served
  nothing of a prompt says nothing, one that was served a part of it within 5 minutes says where the prompt changed.
- A call follows the one before it in its file; after `compacted` it begins a new prompt.
- A fork (`forked_from_id`) replays its parent's events: those that the parent's file has are the parent's calls, which
  the fork goes on from; without that file, events within a second of the fork's start are its history, no calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workloads.columns import Workload
from workloads.readers.agent_log import Call, LogRows, holds_logs, workload_of
from workloads.readers.head import Head

TYPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
COUNTS = ("input_tokens", "cached_input_tokens", "output_tokens")
GIVEN = ("function_call_output", "custom_tool_call_output", "local_shell_call_output", "mcp_tool_call_output")
REPLAY_NS = 10**9
CACHED_IN, CACHED_FROM = 128, 1024  #: tokens: the provider's cache serves whole steps, of prompts from this length

Counts = tuple[int, ...]


def looks_like(head: Head) -> str | None:
    if head.is_folder:
        return "it is a folder of Codex logs" if holds_logs(head.path, _is_log) else None
    return "its lines are those of a Codex session" if _is_log(head) else None


def _is_log(head: Head) -> bool:
    return {"type", "payload"} <= head.keys and any(row.get("type") in TYPES for row in head.rows)


def read(path: str | Path, share_tools: bool = False) -> Workload:
    """All sessions. `share_tools`: what the provider's cache served to first calls is one text of each model."""
    rows = LogRows(path)
    sessions: list[_Session] = []
    named: dict[str, _Session] = {}
    file: Path | None = None
    for record in rows.files():
        if rows.path != file:
            file = rows.path
            sessions.append(_Session(rows, named))
        sessions[-1].line(record)
    compactions = sum(s.compactions for s in sessions)
    if compactions:
        rows.note(f"compactions: {compactions}, each begins a new prompt")
    return workload_of(
        rows,
        [s.calls for s in sessions],
        share_tools,
        "input_tokens (cached ones included) and output_tokens (reasoning included) of each token_count once",
    )


class _Session:
    """One file while it is read."""

    def __init__(self, rows: LogRows, named: dict[str, _Session]) -> None:
        self.rows, self.named = rows, named
        self.calls: list[Call] = []
        self.ended: dict[tuple[Counts, Counts], Call] = {}  # call by the running total that it ended with
        self.compactions = 0
        self._name = self._parent = ""
        self._start_ns: int | None = None
        self._side, self._model = False, ""
        self._total: Counts | None = None
        self._last: Call | None = None
        self._given_ns: int | None = None  # time of the last input
        self._sent_ns: int | None = None  # the last input before the open answer began
        self._wrote_ns: int | None = None  # the open answer's last item

    def line(self, record: dict[str, Any]) -> None:
        kind, payload = record.get("type"), record.get("payload")
        payload = payload if type(payload) is dict else {}
        time_ns = self.rows.time_ns(record) if kind in TYPES else None
        if kind == "event_msg" and payload.get("type") == "token_count":
            self._token_count(payload, time_ns)
            return
        self.rows.skip("no token_count")
        if kind == "session_meta" and not self._name:
            self._meta(payload, time_ns)
        elif kind == "turn_context" and type(payload.get("model")) is str:
            self._model = payload["model"]
        elif kind == "compacted":
            self.compactions += 1
            self._last = None
        elif kind == "response_item":
            self._item(payload, time_ns)

    def _meta(self, payload: dict[str, Any], time_ns: int | None) -> None:
        self._name = str(payload.get("id") or payload.get("session_id") or self.rows.path)
        self.named.setdefault(self._name, self)
        self._parent = str(payload.get("forked_from_id") or "")
        self._start_ns, self._given_ns = time_ns, time_ns
        source = payload.get("source")
        self._side = type(source) is dict and "subagent" in source

    def _item(self, payload: dict[str, Any], time_ns: int | None) -> None:
        kind, role = payload.get("type"), payload.get("role")
        if kind in GIVEN or (kind == "message" and role != "assistant"):
            self._given_ns = time_ns
            return
        if self._wrote_ns is None:
            self._sent_ns = self._given_ns
        self._wrote_ns = time_ns

    def _token_count(self, payload: dict[str, Any], time_ns: int | None) -> None:
        info = payload.get("info")
        info = info if type(info) is dict else {}
        last, total = self._counts(info, "last_token_usage"), self._counts(info, "total_token_usage")
        if last is None and total is None:
            self.rows.skip("a token_count without counts")
            return
        if total is not None and total == self._total:
            self.rows.skip("a token_count that repeats the running total")
            return
        if total is not None and not any(last or ()):
            last = _difference(total, self._total)
        self._total = total
        assert last is not None
        key = (total or last, last)
        parent = self.named.get(self._parent)
        replayed = parent.ended.get(key) if parent is not None and total is not None else None
        if replayed is not None or self._is_history(parent, time_ns):
            self._last = replayed
            self.rows.skip("a call that a fork replays")
            return
        self._call(last, key, time_ns)

    def _is_history(self, parent: _Session | None, time_ns: int | None) -> bool:
        if not self._parent or parent is not None or self.calls or time_ns is None or self._start_ns is None:
            return False
        return time_ns - self._start_ns < REPLAY_NS

    def _call(self, last: Counts, key: tuple[Counts, Counts], time_ns: int | None) -> None:
        prompt, cached, output = last
        wrote = self._wrote_ns is not None
        call = Call(
            session=self._name,
            row=self.rows.row,
            prompt=prompt,
            cached=min(cached, prompt) or None,  # nothing: missed, since no client changes all of a prompt
            output=output,
            owner=self._last,
            side=self._side,
            model=self._model,
            sent_ns=self._sent_ns if wrote else self._given_ns,
            end_ns=self._wrote_ns if wrote else time_ns,
            left=prompt // CACHED_IN * CACHED_IN if prompt >= CACHED_FROM else 0,
        )
        self._wrote_ns = self._sent_ns = None
        self._last = self.ended[key] = call
        self.calls.append(call)

    def _counts(self, info: dict[str, Any], field: str) -> Counts | None:
        usage = info.get(field)
        return tuple(self.rows.count(usage, name) for name in COUNTS) if type(usage) is dict and usage else None


def _difference(total: Counts, before: Counts | None) -> Counts:
    """A call's counts from two running totals; the first one, or one that began anew, is a call's own."""
    if before is None or any(t < b for t, b in zip(total, before, strict=True)):
        return total
    return tuple(t - b for t, b in zip(total, before, strict=True))
