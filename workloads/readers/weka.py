"""Weka coding-agent sessions: one JSON file a session, a folder of them, or a .tar.xz that is streamed.

The one idea: a session is a chain of requests, each released by the completion before it plus a think time; a sub-agent
is a side chain that a request spawned. Its ids are local to the session, or the same in all sessions, as
`hash_id_scope` says, and cover floor(input / block) blocks (a last id for the ragged end is left out: no engine caches
part of a block).

    >>> from workloads.readers import weka
    >>> workload = weka.read("traces_710.tar.xz", think="think-only", share_tools=True)

What the file does not say is decided here:
- A later turn that repeats all ids of the turn before and has room for its answer contains that answer (of the 47,948
  turn pairs of traces_710 93 % repeat all ids and 83 % also have the room), so the answer can be a hit.
- The `t` of a sub-agent entry is when its result came back: in traces_710 `t` minus the duration is within 1.2 s of the
  end
  of the parent's previous answer for 57 of 59 of them, and no parent request lies in between. So a sub-agent starts at
  `t` - duration, after that answer, and the parent's next request follows the sub-agent that ended last. Without a
  duration (launched asynchronously) it starts at `t` and nobody waits for it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import SCOPES, Workload
from workloads.errors import InputError
from workloads.limits import MAX_SECONDS, WITHIN
from workloads.readers.archive import is_archive
from workloads.readers.common import MAX_CLOCK_S, Rows
from workloads.readers.fields import Fields
from workloads.readers.hash_ids import IdCodes, IdRows
from workloads.readers.head import Head
from workloads.readers.session_files import sessions
from workloads.readers.session_tree import SessionTrees, StandardPrefix
from workloads.readers.values import NOT_JSON, short, why_not_json

THINK = ("think-only", "original", "scaled")
MAIN, SUBAGENT = 0, 1
_GLOBAL = re.compile(rb'"hash_id_scope"\s*:\s*"global"')


@dataclass
class Request:
    """One request of a session, times in seconds from the session's start."""

    t: float
    end: float  #: when its answer was complete
    prompt: int
    output: int
    ids: np.ndarray
    gap: float  #: think or tool time between `after`'s end and this
    kind: int  #: MAIN or SUBAGENT
    prefix: int  #: index of the session's StandardPrefix
    after: Request | None
    path: np.ndarray  #: ids of prompt and, where known, answer

    def follow(self, other: Request) -> None:
        """Be released by another request than the one before in the chain, as long after it as recorded."""
        self.after = other
        self.t = max(self.t, other.t)
        self.gap = max(0.0, self.t - other.end)


def looks_like(head: Head) -> str | None:
    if head.is_folder:
        return "it is a folder of JSON files" if any(head.path.glob("*.json")) else None
    if is_archive(head.path):
        return "it is a tar archive of session files"
    if {"hash_id_scope", "requests"} & head.keys and "block_size" in head.keys:
        return "it is a JSON document with block_size and requests"
    return None


def read(
    path: str | Path,
    think: str = "think-only",
    think_scale: float = 1.0,
    share_tools: bool = False,
    answers: bool = True,
) -> Workload:
    """All sessions. `think`: think-only (recorded think times after each completion), scaled (times think_scale) or
    original (recorded times, open loop). `share_tools`: sessions of one model whose tool (and system) token counts are
    equal share that text. `answers`: later turns contain earlier answers where the ids allow it."""
    if think not in THINK:
        raise InputError(f"{path}: think = {think!r}, expected one of {', '.join(THINK)}")
    rows = Rows(path)
    reader = _Reader(rows, think, think_scale if think == "scaled" else 1.0, share_tools, answers)
    for name, text in sessions(rows.path):
        reader.add(name, rows.hashed(text))
    return reader.workload()


class _Reader(Fields):
    """Accumulates sessions into columns."""

    def __init__(self, rows: Rows, think: str, think_scale: float, share_tools: bool, answers: bool) -> None:
        self.rows, self.think, self.think_scale, self.share_tools, self.answers = (
            rows,
            think,
            think_scale,
            share_tools,
            answers,
        )
        self.columns: dict[str, list[Any]] = {
            name: [] for name in ("arrival_s", "prompt", "output", "class_id", "session", "turn", "after", "delay_s")
        }
        self.sessions = 0
        self.block_tokens = 0
        self.is_global = False
        self.global_codes = IdCodes()  #: of text ids that mean the same in all sessions
        self.ends_named: bool | None = None  #: whether ids cover the ragged ends, once a request has shown it
        self.count: Counter[str] = Counter()
        self.trees: SessionTrees | None = None

    def add(self, name: str, text: bytes) -> None:
        """One session file."""
        self.where = f"{self.rows.path}" if name == self.rows.path.name else f"{self.rows.path}, {name}"
        document = self._document(text)
        requests, prefixes = self._requests(document)
        requests.sort(key=lambda r: r.t)  # stable: a request stays behind the one that released it
        if not requests:
            return
        if self.answers:
            self._extend_by_answers(requests)
        assert self.trees is not None
        paths, tokens = [r.path for r in requests], np.array([r.prompt + r.output for r in requests], np.int64)
        if self.is_global:
            self.trees.add_global(paths, tokens)
        else:
            self.trees.add(paths, tokens, prefixes)
        self._append(requests)

    def _document(self, text: bytes) -> dict[str, Any]:
        is_global = _GLOBAL.search(text) is not None
        self.id_rows = IdRows(self.global_codes if is_global else None)
        try:
            document = json.loads(self.id_rows.taken_out_of(text))
        except NOT_JSON as problem:
            raise InputError(
                f"{self.where}: not a whole JSON document ({why_not_json(problem)}), expected a session"
            ) from None
        if type(document) is not dict or type(document.get("requests")) is not list:
            raise InputError(f"{self.where}: no list 'requests', expected a session")
        self.row = ""
        block = self.integer(document, "block_size", 1)
        if self.trees is None:
            self.block_tokens, self.trees = block, SessionTrees(block, self.share_tools)
        if block != self.block_tokens:
            raise InputError(
                f"{self.where}: block_size = {block}, expected {self.block_tokens} as in the sessions before"
            )
        return document

    # ---- one session: rows -> linked requests ----

    def _requests(self, document: dict[str, Any]) -> tuple[list[Request], list[StandardPrefix]]:
        self.is_global = self._scope(document)
        prefixes = [self._prefix(document)]
        self.origin = self._origin(document["requests"])
        main: list[Request] = []
        result: list[Request] = []
        joins: list[Request] = []
        for i, entry in enumerate(document["requests"], 1):
            self.row = str(i)
            if type(entry) is not dict:
                raise InputError(f"{self.where}, request {i}: {short(entry)}, expected a JSON object")
            before = main[-1] if main else None
            if entry.get("type") == "subagent":
                prefixes.append(self._prefix(entry))
                chain = self._subagent(entry, i, before, len(prefixes) - 1)
                result += chain
                joins += chain[-1:] if entry.get("duration_ms") is not None else []
                continue
            request = self._request(entry, 0.0, MAIN, 0, before)
            if request is None:
                continue
            if joins:
                self.count["joins"] += 1
                request.follow(max(joins, key=lambda r: r.end))
                joins = []
            main.append(request)
            result.append(request)
        for i, prefix in enumerate(prefixes):
            prefix.settle([r.ids for r in result if r.prefix == i])
        return result, prefixes

    def _subagent(self, entry: dict[str, Any], row: int, before: Request | None, prefix: int) -> list[Request]:
        """The sub-agent's requests; the first follows the parent's request before it."""
        self.count["sub-agents"] += 1
        start = self._clock(entry) - (
            0.0 if entry.get("duration_ms") is None else self.duration_s(entry, "duration_ms", 1000)
        )
        chain: list[Request] = []
        nested_requests = entry.get("requests")
        if nested_requests is not None and type(nested_requests) is not list:
            self.fail("requests", nested_requests, "a list of requests")
        for i, nested in enumerate(nested_requests or [], 1):
            self.row = f"{row}.{i}"
            request = self._request(nested, start, SUBAGENT, prefix, chain[-1] if chain else None)
            if request is not None:
                if not chain and before is not None:
                    request.follow(before)
                chain.append(request)
        return chain

    def _prefix(self, entry: dict[str, Any]) -> StandardPrefix:
        """The agent's model and its counts of tool and system tokens, all of which may be missing."""
        models = entry.get("models")
        model = (models[0] if models else None) if type(models) is list else models
        if model is not None and type(model) is not str:
            self.fail("models", models, "a list of names")
        tools, system = (
            0 if entry.get(name) is None else self.integer(entry, name, 0) for name in ("tool_tokens", "system_tokens")
        )
        return StandardPrefix(model or "", tools, system, self.block_tokens)

    def _scope(self, document: dict[str, Any]) -> bool:
        """Whether the session's ids mean the same text in other sessions."""
        scope = document.get("hash_id_scope", "local")
        if scope not in ("local", "global"):
            self.fail("hash_id_scope", scope, "local or global")
        self.count[f"{scope} sessions"] += 1
        return bool(scope == "global")

    def _origin(self, entries: list[Any]) -> int | float:
        """What the session's times count from: 0, or its earliest request where they are those of a clock (seconds
        since 1970)."""
        times = [e.get("t") for e in entries if type(e) is dict]
        earliest = min((t for t in times if type(t) is int or type(t) is float), default=0)
        return earliest if earliest > MAX_SECONDS else 0

    def _clock(self, entry: dict[str, Any]) -> float:
        """Seconds from the session's origin to an entry's `t`."""
        value = self.finite(entry, "t")
        if value > MAX_CLOCK_S or value - self.origin > MAX_SECONDS:
            self.fail("t", value, f"{WITHIN} after the session's first request")
        return float(value - self.origin)

    def _request(self, entry: Any, start: float, kind: int, prefix: int, before: Request | None) -> Request | None:
        """The checked request of an agent that began at `start`, released by `before`; None for one that generated
        nothing (skipped, counted)."""
        self.rows.read += 1
        if type(entry) is not dict:
            raise InputError(f"{self.where}, request {self.row}: {short(entry)}, expected a JSON object")
        output = self.integer(entry, "out", 0)
        if output == 0:
            self.rows.skip("zero output")
            return None
        prompt = self.integer(entry, "in", 1)
        ids = self._ids(entry, prompt)
        t = max(
            self._clock(entry) if kind == MAIN else start + self.duration_s(entry, "t"),
            0.0 if before is None else before.t,
        )
        end = t + (0.0 if entry.get("api_time") is None else self.duration_s(entry, "api_time"))
        gap = 0.0
        if entry.get("think_time") is not None:
            gap = self.duration_s(entry, "think_time")
            if before is not None and before.end == before.t:  # its api_time is not recorded, the think time tells
                before.end = max(before.t, t - gap)
        elif before is not None:
            self.count["gaps from t and api_time"] += 1
            gap = max(0.0, t - before.end)
        return Request(t, end, prompt, output, ids, gap, kind, prefix, before, ids)

    def _ids(self, entry: dict[str, Any], prompt: int) -> np.ndarray:
        listed = entry.get("hash_ids")
        ids = self.id_rows.get([] if listed is None else listed)
        if ids is None:
            self.fail(*self.id_rows.problem(listed))
        covered, ragged = prompt // self.block_tokens, prompt % self.block_tokens > 0
        if not len(ids) and covered:
            self.count["without ids"] += 1
            return ids
        first_named = ragged and len(ids) == covered + 1 and self.ends_named is None
        if len(ids) != covered + (ragged and self.ends_named is True) and not first_named:
            self.fail("hash_ids", f"{len(ids)} ids", self._expected_ids(prompt, covered, ragged))
        if ragged and self.ends_named is None:
            self.ends_named = len(ids) > covered
        return ids[:covered]

    def _expected_ids(self, prompt: int, covered: int, ragged: bool) -> str:
        count = f"{covered + (ragged and self.ends_named is True)}"
        if ragged and self.ends_named is None:
            count = f"{covered} or {covered + 1}"
        like = "" if self.ends_named is None or not ragged else ", as in the requests before"
        return f"{count} ids of {self.block_tokens} tokens for in = {prompt}{like}"

    def _extend_by_answers(self, requests: list[Request]) -> None:
        """Let a request's path go on into the next turn's ids where that turn repeats it all and has room for the
        answer."""
        following = {
            id(r.after): r
            for r in requests
            if r.after is not None and r.after.kind == r.kind and r.after.prefix == r.prefix
        }
        for request in requests:
            later = following.get(id(request))
            if later is None:
                continue
            self.count["turn pairs"] += 1
            n, total = len(request.ids), request.prompt + request.output
            known = n or request.prompt < self.block_tokens  # one without ids is repeated by nobody
            if known and later.prompt >= total and np.array_equal(later.ids[:n], request.ids):
                request.path = later.ids[: total // self.block_tokens]
                self.count["answers"] += 1

    # ---- columns ----

    def _append(self, requests: list[Request]) -> None:
        first, number = len(self.columns["prompt"]), {id(r): i for i, r in enumerate(requests)}
        released, begin = self.think != "original", requests[0].t  # later than 0 where the first request was skipped
        waits = [released and r.after is not None for r in requests]
        new: dict[str, Iterable[Any]] = {
            "arrival_s": [np.nan if w else r.t - begin for r, w in zip(requests, waits, strict=True)],
            "prompt": [r.prompt for r in requests],
            "output": [r.output for r in requests],
            "class_id": [r.kind for r in requests],
            "session": [self.sessions] * len(requests),
            "turn": range(len(requests)),
            "after": [first + number[id(r.after)] if w else -1 for r, w in zip(requests, waits, strict=True)],
            "delay_s": [r.gap * self.think_scale if w else 0.0 for r, w in zip(requests, waits, strict=True)],
        }
        for name, values in new.items():
            self.columns[name].extend(values)
        self.sessions += 1

    def workload(self) -> Workload:
        if self.trees is None:
            raise InputError(f"{self.rows.path}: no session files, expected *.json")
        c, n = self.columns, len(self.columns["prompt"])
        self._notes()
        notes = self.rows.report(n)
        tree, leaf = self.trees.merged()
        scope = SCOPES.index("global" if self.share_tools else "session")
        own = SCOPES.index("session" if self.count["local sessions"] else "unknown")
        return Workload(
            tree=tree,
            leaf=leaf,
            arrival_s=np.array(c["arrival_s"], np.float64),
            prompt_tokens=np.array(c["prompt"], np.int64),
            output_tokens=np.array(c["output"], np.int64),
            class_id=np.array(c["class_id"], np.int16),
            class_names=("main", "sub-agent"),
            class_slo=("", ""),
            session_id=np.array(c["session"], np.int64),
            turn=np.array(c["turn"], np.int32),
            after=np.array(c["after"], np.int64),
            delay_s=np.array(c["delay_s"], np.float64),
            tail_layer=np.full(n, 2, np.int16),
            layer_names=("tools", "system", "session"),
            layer_scopes=(scope, scope, own),
            hash_block_tokens=self.block_tokens,
            source=self.rows.source(),
            notes=notes,
        )

    def _notes(self) -> None:
        note, count = self.rows.note, self.count
        note("time unit: t, api_time and think_time in s, duration_ms in ms (the format's documentation)")
        note(
            f"sessions: {self.sessions}, all starting at time 0 (users or concurrency spread them); sub-agents:"
            f" {count['sub-agents']}, their parent waits for {count['joins']}"
        )
        shared = (
            "sessions of one model with equal tool and system token counts share that text"
            if self.share_tools
            else "sessions share nothing (share_tools lets them share tools and system)"
        )
        ends = "have an id that is left out" if self.ends_named else "have no id"
        tail = f"the last in % {self.block_tokens} tokens of an input {ends} and are private"
        if count["local sessions"]:
            note(f"hash ids are local to a session: {shared}; {tail}")
        if count["global sessions"]:
            which = (
                f"{count['global sessions']} of {self.sessions} sessions" if count["local sessions"] else "all sessions"
            )
            note(f"hash ids are global in {which}: equal ids are the same text in every one of them; {tail}")
        if count["without ids"]:
            note(f"hash_ids: {count['without ids']} requests have none and share nothing")
        if self.answers:
            note(
                f"answers: {count['answers']} of {count['turn pairs']} next turns repeat all ids of the turn before and"
                " have room for its answer; assumed to contain it"
            )
        how = {
            "think-only": "recorded think time after each completion",
            "original": "recorded times, open loop (the source server's speed is in them)",
            "scaled": f"think time x {self.think_scale:g} after each completion",
        }[self.think]
        note(
            f"think = {self.think}: {how}; {count['gaps from t and api_time']} gaps without think_time come from t and"
            " api_time"
        )
