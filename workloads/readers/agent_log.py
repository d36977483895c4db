"""What the session logs of coding agents have in common: calls with token counts, each following another.

The one idea: a log says which call followed which, and how many tokens each read and wrote. A call whose prompt has
room for the prompt and the answer before it begins with them; a shorter one shares what the provider's cache served.
The words themselves are not looked at.

    >>> from workloads.readers import claude_code, codex       # the files; this module is what both do

- The counts are the provider's, so they include what no log holds: the tools, the system prompt, the client's
  reminders. Positions in a prompt are counts: a call's path ends at its input_tokens, its answer's at + output_tokens,
  and what follows the answer hangs there.
- A client may also change what it said (Claude Code does, after the first answer of a session). Then the provider's
  cache serves less than the prompt before left in it, and within the time that it keeps everything that is told from a
  text that it forgot: such a prompt shares what was served.
- A prompt shorter than what it follows was rewritten (compaction, old tool results or reasoning left out); where, the
  log does not say. What the provider's cache served of it is text that was there before: a lower bound.
- What the cache served to a session's first call is text of other sessions. `share_tools` takes it for one text of all
  sessions of the same model and kind (main or sub-agent), of which one that was served nothing has as much as the one
  that was served least; else sessions share nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.branches import ROOT, Branches
from workloads.columns import SCOPES, Workload
from workloads.errors import InputError
from workloads.limits import MAX_SECONDS, MAX_TOKENS, WITHIN
from workloads.readers.head import Head
from workloads.readers.private import PrivateRows
from workloads.readers.units import wall_clock_ns

LOOKED_AT = 10  #: files of a folder, to know what it is


@dataclass(eq=False)
class Call:
    """One answer of a model."""

    session: Hashable
    row: int  #: in its file
    prompt: int
    cached: int | None  #: tokens that the provider's cache served; None when the log does not say
    output: int
    owner: Call | None  #: whose prompt and answer it begins with; None: a new prompt
    side: bool  #: of a sub-agent
    model: str
    sent_ns: int | None  #: when its last input was there, since 1970; None when no line tells
    end_ns: int | None
    left: int | None = None  #: tokens that the provider's cache held after it; None when the log does not say


RETENTION_NS = 300 * 10**9  #: for which a provider that says what it writes to its cache keeps it at least


class LogRows(PrivateRows):
    """The lines of one log, or of all logs in a folder and below."""

    def files(self) -> Iterator[dict[str, Any]]:
        """Every line of every file; `path` is the file that is being read."""
        top = self.path
        logs = sorted(f for f in top.rglob("*.jsonl") if f.is_file()) if top.is_dir() else [top]
        logs = [log for log in logs if log.stat().st_size] if top.is_dir() else logs
        for self.path in logs:
            yield from self.records()
        self.path = top
        if not self.read:
            raise InputError(f"{top}: no session logs (*.jsonl), expected at least one")

    def time_ns(self, record: dict[str, Any]) -> int | None:
        """The line's `timestamp`, nanoseconds since 1970; None without one."""
        value = record.get("timestamp")
        if value is None:
            return None
        time = wall_clock_ns(value)
        if time is None:
            self.fail("timestamp", value, "a time like 2026-06-23T06:05:00.147Z")
        return time

    def count(self, usage: dict[str, Any], field: str) -> int:
        """A token count, 0 where it is missing or null."""
        value = usage.get(field)
        if value is None:
            return 0
        if type(value) is not int or not 0 <= value <= MAX_TOKENS:
            self.fail(field, value, f"a whole number from 0 to {MAX_TOKENS}")
        return value


def holds_logs(folder: Path, is_log: Callable[[Head], bool]) -> bool:
    """Whether one of the first files in a folder or below is a log."""
    files = (f for f in sorted(folder.rglob("*.jsonl")) if f.is_file() and f.stat().st_size)
    return any(is_log(Head(f)) for f in itertools.islice(files, LOOKED_AT))


def workload_of(rows: LogRows, sessions: list[list[Call]], share_tools: bool, answers: str) -> Workload:
    """Sessions as closed loops, in order of their first call in the files. `answers`: how answers were counted."""
    sessions = [kept for session in sessions if (kept := _with_tokens(rows, session))]
    calls = [call for session in sessions for call in session]
    n, turn = len(calls), np.array([i for session in sessions for i in range(len(session))], np.int32)
    rows.read = n + sum(rows.skipped.values())
    side = sum(session[0].side for session in sessions)
    rows.note(
        f"sessions: {len(sessions)}, {side} of them of sub-agents; closed loop (users or concurrency spread them)"
    )
    rows.note(f"tokens: the provider's counts, {answers}; no text is read for them, and none is kept")
    arrival_s, delay_s = _times(rows, calls, turn == 0)
    texts = _Texts([session[0] for session in sessions] if share_tools else [])
    read = [texts.of(call, session[0]) for session in sessions for call in session]
    texts.note(rows, calls, turn == 0)
    notes = rows.report(n)
    tree, leaf = texts.branches.tree(read)
    return Workload(
        tree=tree,
        leaf=leaf,
        arrival_s=arrival_s,
        delay_s=delay_s,
        prompt_tokens=np.array([c.prompt for c in calls], np.int64),
        output_tokens=np.array([c.output for c in calls], np.int64),
        after=np.where(turn == 0, -1, np.arange(n) - 1),
        session_id=np.cumsum(turn == 0) - 1,
        turn=turn,
        class_id=np.array([c.side for c in calls], np.int16),
        class_names=("main", "sub-agent"),
        class_slo=("", ""),
        layer_names=("session",),
        layer_scopes=(SCOPES.index("session"),),
        source=rows.source(),
        notes=notes,
    )


def _with_tokens(rows: LogRows, session: list[Call]) -> list[Call]:
    """The calls that read and wrote something; what followed another one follows what that one did."""
    kept = []
    for call in session:
        while call.owner is not None and not (call.owner.prompt and call.owner.output):
            call.owner = call.owner.owner
        if call.prompt and call.output:
            kept.append(call)
        else:
            rows.skip("zero output" if call.prompt else "zero input")
    return kept


class _Texts:
    """Where each call's prompt leaves the one before it."""

    def __init__(self, alike: list[Call]) -> None:
        """alike: first calls of which those of one model and kind are taken to begin alike."""
        self.branches = Branches()
        self._least: dict[tuple[str, bool], int] = {}  # that the cache served to one of them
        for call in alike:
            if call.cached:
                key = (call.model, call.side)
                self._least[key] = min(call.cached, self._least.get(key, call.cached))
        self._number: dict[int, int] = {}  # id of a call -> its text
        self._standard: dict[tuple[str, bool], int] = {}  # the text that sessions of one model begin with
        self.count: Counter[str] = Counter()

    def of(self, call: Call, first: Call) -> int:
        """Number of the text that the call reads and writes."""
        on, shared = self._begins(call, first)
        found = self._number[id(call)] = self.branches.add(on, shared, call.prompt + call.output)
        self.count["shared"] += shared
        return found

    def _begins(self, call: Call, first: Call) -> tuple[int, int]:
        """(the text that the prompt begins with, how much of it)."""
        served, owner = call.cached or 0, call.owner
        if owner is not None:
            whole = owner.prompt + owner.output
            if call.prompt >= whole and not _changed(call, owner):
                return self._number[id(owner)], whole
            self.count["shorter" if call.prompt < whole else "changed"] += 1
            if call.cached is None:
                served = owner.prompt if call.prompt >= owner.prompt else 0
            return self._number[id(owner)], min(served, call.prompt, whole)
        if call is not first:
            self.count["new prompts"] += 1
            return self._number[id(first)], min(served, call.prompt, first.prompt)
        key = (call.model, call.side)
        depth = min(served or self._least.get(key, 0), call.prompt)
        if key not in self._least or not depth:
            return ROOT, 0
        standard = self._standard.get(key, ROOT)
        if standard == ROOT or self.branches.end[standard] < depth:  # longer than what any before it began with
            end = 0 if standard == ROOT else self.branches.end[standard]
            standard = self._standard[key] = self.branches.add(standard, end, depth)
        return standard, depth

    def note(self, rows: LogRows, calls: list[Call], firsts: np.ndarray) -> None:
        count, prompts = self.count, sum(c.prompt for c in calls)
        known = [c.cached for c in calls if c.cached is not None]
        served = f"; the provider's cache served {sum(known)}" if known else ""
        rows.note(
            f"shared text: a prompt begins with the prompt and the answer that it follows, {count['shared']} of"
            f" {prompts} prompt tokens{served}"
        )
        if count["shorter"] or count["changed"] or count["new prompts"]:
            how = "they share what the provider's cache served of them, a lower bound" if known else "a lower bound"
            rows.note(
                f"rewritten: {count['shorter']} prompts are shorter than what they follow, {count['changed']} were"
                " served less than the prompt before had left in the cache within 5 minutes, and"
                f" {count['new prompts']} begin anew within their session (compaction, rewinding, reasoning left out);"
                f" {how}"
            )
        head = sum((c.cached or 0) for c, first in zip(calls, firsts.tolist(), strict=True) if first)
        if head:
            rows.note(
                f"first calls: the cache served {head} of their tokens, text of other sessions;"
                + (
                    " taken for one text of each model and kind of agent (share_tools)"
                    if self._least
                    else " which, no log says, so sessions share nothing (share_tools takes it for one text of each"
                    " model and kind of agent)"
                )
            )


def _changed(call: Call, owner: Call) -> bool:
    """Whether the provider's cache says that a prompt does not repeat the one before."""
    if call.cached is None or owner.left is None or call.sent_ns is None or owner.end_ns is None:
        return False
    return call.cached < owner.left and call.sent_ns - owner.end_ns < RETENTION_NS


def _times(rows: LogRows, calls: list[Call], firsts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(arrival_s: recorded for first calls, NaN for the others; delay_s after the previous answer)."""
    arrival_s, delay_s = np.full(len(calls), np.nan), np.zeros(len(calls))
    count: Counter[str] = Counter()
    for i in np.flatnonzero(~firsts):
        before, call = calls[i - 1].end_ns, calls[i]
        gap_s = None if call.sent_ns is None or before is None else (call.sent_ns - before) / 1e9
        count["unknown" if gap_s is None else "known" if gap_s >= 0 else "overlap"] += 1
        delay_s[i] = _bounded(rows, call, max(gap_s or 0.0, 0.0))
    rows.note(
        f"gaps: {count['known']} from an answer to the next call's last input; {count['overlap']} begun before it and"
        f" {count['unknown']} without times are taken as 0 s"
    )
    starts = {i: calls[i].sent_ns if calls[i].sent_ns is not None else calls[i].end_ns for i in np.flatnonzero(firsts)}
    known = {i: start for i, start in starts.items() if start is not None}
    if len(known) < len(starts) or not known:
        return rows.no_times(len(calls)), delay_s
    earliest = min(known.values())
    for i, start in known.items():
        arrival_s[i] = _bounded(rows, calls[i], (start - earliest) / 1e9)
    rows.note(
        "time unit: timestamp is a time of day (its text); times count from the first call of the earliest session"
    )
    return arrival_s, delay_s


def _bounded(rows: LogRows, call: Call, seconds: float) -> float:
    if seconds > MAX_SECONDS:
        rows.fail("timestamp", f"{seconds:g} s later", WITHIN, call.row)
    return seconds
