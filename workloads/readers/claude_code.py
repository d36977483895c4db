"""Claude Code session logs: the JSON lines of ~/.claude/projects, one file, or a folder of them with all below it.

The one idea: a line is a piece of an answer or of what was said to the model, and names the line before it
(`parentUuid`). An answer is written as several lines that repeat its `usage`; it is counted once, at its highest.

    >>> from workloads.readers import claude_code
    >>> workload = claude_code.read("projects/-home-me-repo")

Decided here, no documentation of the format exists:
- An answer is (message.id, requestId): copies that a resumed session brings along are the same answer.
- What it follows is the nearest answer up the chain of parents; a chain that begins anew in a session (after
  `compact_boundary`) is a new prompt. Parents that are not in the files begin a new one too.
- A session is (sessionId, agentId); lines with isSidechain are sub-agents, each a session of its own.
- The time at which a call was sent is that of the line before the answer, its end that of the answer's last line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from workloads.columns import Workload
from workloads.readers.agent_log import Call, LogRows, holds_logs, workload_of
from workloads.readers.head import Head

COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
SYNTHETIC = "<synthetic>"


def looks_like(head: Head) -> str | None:
    if head.is_folder:
        return "it is a folder of Claude Code logs" if holds_logs(head.path, _is_log) else None
    return "its lines are those of a Claude Code session" if _is_log(head) else None


def _is_log(head: Head) -> bool:
    names = head.keys
    own = ({"parentUuid", "sessionId"}, {"leafUuid", "summary"}, {"snapshot", "messageId"}, {"operation", "sessionId"})
    return any(fields <= names for fields in own) or (
        {"type", "message", "session_id"} <= names and "parent_tool_use_id" in names
    )


class _Line(NamedTuple):
    """What later lines need to know of one."""

    call: Call | None  #: the nearest answer, this one or above it
    time_ns: int | None
    chain: str  #: its first line
    side: bool  #: of a sub-agent


def read(path: str | Path, share_tools: bool = False) -> Workload:
    """All sessions. `share_tools`: what the provider's cache served to first calls is one text of each model."""
    rows = LogRows(path)
    log = _Log(rows)
    for record in rows.files():
        log.line(record)
    if log.compactions:
        rows.note(f"compactions: {log.compactions}, each begins a new prompt")
    if log.lost:
        rows.note(
            f"parents: {log.lost} lines follow a line that is not before them in the files; they begin a new prompt"
        )
    return workload_of(
        rows,
        list(log.sessions.values()),
        share_tools,
        "input_tokens + cache_creation_input_tokens + cache_read_input_tokens, and output_tokens, of each answer once",
    )


class _Log:
    def __init__(self, rows: LogRows) -> None:
        self.rows = rows
        self.lines: dict[str, _Line] = {}
        self.calls: dict[tuple[str, str], Call] = {}
        self.sessions: dict[tuple[str, str], list[Call]] = {}
        self.last: dict[tuple[str, str], _Line] = {}  # of a session, for lines without a parent's name
        self.compactions = self.lost = 0

    def line(self, record: dict[str, Any]) -> None:
        kind, uuid = record.get("type"), record.get("uuid")
        time_ns = self.rows.time_ns(record) if kind in ("user", "assistant", "system") else None
        self.compactions += record.get("subtype") == "compact_boundary"
        before = self._before(record)
        side = record.get("isSidechain") is True or bool(record.get("agentId") or record.get("parent_tool_use_id"))
        if before is not None and before.side != side:  # a sub-agent's prompt is its own, whoever called it
            before = None
        chain = before.chain if before is not None else str(uuid)
        session = self._session(record, chain)
        call = before.call if before is not None else None
        if kind == "assistant":
            call = self._answer(record, session, before, time_ns)
        else:
            self.rows.skip("no answer of a model")
        line = _Line(call, time_ns if time_ns is not None or before is None else before.time_ns, chain, side)
        if kind in ("user", "assistant"):
            self.last[session] = line
        if type(uuid) is str:
            self.lines[uuid] = line

    def _before(self, record: dict[str, Any]) -> _Line | None:
        """The line that this one follows."""
        if "parentUuid" not in record:
            return self.last.get(self._session(record, ""))
        parent = record["parentUuid"]
        if parent is None:
            return None
        found = self.lines.get(parent) if type(parent) is str else None
        self.lost += found is None
        return found

    @staticmethod
    def _session(record: dict[str, Any], chain: str) -> tuple[str, str]:
        own = str(record.get("sessionId") or record.get("session_id") or "")
        agent = record.get("agentId") or record.get("parent_tool_use_id")
        if agent is None and record.get("isSidechain") is True:
            agent = chain
        return own, str(agent or "")

    def _answer(
        self, record: dict[str, Any], session: tuple[str, str], before: _Line | None, time_ns: int | None
    ) -> Call | None:
        rows, above = self.rows, before.call if before is not None else None
        message = record.get("message")
        usage = message.get("usage") if type(message) is dict else None
        if type(message) is not dict or type(usage) is not dict:
            rows.skip("an answer without usage")
            return above
        if message.get("model") == SYNTHETIC or record.get("isApiErrorMessage") is True:
            rows.skip("an error that the client wrote itself")
            return above
        fresh, written, cached, output = (rows.count(usage, name) for name in COUNTS)
        key = (str(message.get("id") or record.get("uuid")), str(record.get("requestId") or ""))
        known = self.calls.get(key)
        if known is not None:
            known.prompt = max(known.prompt, fresh + written + cached)
            known.cached = max(known.cached or 0, cached)
            known.left = max(known.left or 0, written + cached)
            known.output = max(known.output, output)
            if time_ns is not None and known.session == session:  # a copy elsewhere is later
                known.end_ns = max(known.end_ns or time_ns, time_ns)
            rows.skip("another line of an answer")
            return known
        call = self.calls[key] = Call(
            session=session,
            row=rows.row,
            prompt=fresh + written + cached,
            cached=cached,
            output=output,
            owner=above,
            side=bool(session[1]),
            model=str(message.get("model") or ""),
            sent_ns=before.time_ns if before is not None else None,
            end_ns=time_ns,
            left=written + cached,
        )
        self.sessions.setdefault(session, []).append(call)
        return call
