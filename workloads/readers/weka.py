"""Weka coding-agent sessions: one JSON file a session, a folder of them, or a .tar.xz that is streamed.

The one idea: a session is a chain of requests, each released by the completion before it plus a think time; a sub-agent
is a side chain that a request spawned. Its ids are local to the session and cover floor(input / block) blocks.

    >>> from workloads.readers import weka
    >>> workload = weka.read("traces_710.tar.xz", think="think-only", share_tools=True)

What the file does not say is decided here:
- A later turn that repeats all ids of the turn before and has room for its answer contains that answer (of the 47,948
  turn pairs of traces_710 93 % repeat all ids and 83 % also have the room), so the answer can be a hit.
- A parent waits for a sub-agent when it sends nothing before the sub-agent's recorded end.
"""
from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from workloads.columns import SCOPES, Workload
from workloads.errors import InputError
from workloads.readers.common import Rows
from workloads.readers.hash_ids import EXPECTED, as_column
from workloads.readers.head import Head
from workloads.readers.session_tree import SessionTrees, StandardPrefix

THINK = ("think-only", "original", "scaled")
MAIN, SUBAGENT = 0, 1
CLOCK_S = 1.0  #: most `t` are whole seconds


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
    after: Request | None = None
    path: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  #: ids of prompt and, where known, answer


def looks_like(head: Head) -> str | None:
    if head.is_folder:
        return "it is a folder of JSON files" if any(head.path.glob("*.json")) else None
    if head.path.name.endswith((".tar.xz", ".tar")):
        return "it is a tar archive of session files"
    if {"hash_id_scope", "requests"} & head.keys and "block_size" in head.keys:
        return "it is a JSON document with block_size and requests"
    return None


def read(path: str | Path, think: str = "think-only", think_scale: float = 1.0, share_tools: bool = False, answers: bool = True) -> Workload:
    """All sessions. `think`: think-only (recorded think times after each completion), scaled (times think_scale) or original
    (recorded times, open loop). `share_tools`: sessions of one model whose tool (and system) token counts are equal share
    that text. `answers`: later turns contain earlier answers where the ids allow it.
    """
    if think not in THINK:
        raise InputError(f"{path}: think = {think!r}, expected one of {', '.join(THINK)}")
    rows = Rows(path)
    reader = _Reader(rows, think, think_scale if think == "scaled" else 1.0, share_tools, answers)
    for name, text in _documents(rows):
        reader.add(name, text)
    return reader.workload()


def _documents(rows: Rows) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every session file; the hash is over contents in reading order."""
    path = rows.path
    if path.is_dir():
        for file in sorted(path.glob("*.json")):
            yield file.name, rows.hashed(file.read_bytes())
    elif path.name.endswith((".tar.xz", ".tar")):
        try:
            with tarfile.open(path, "r|*") as archive:
                for member in archive:
                    file_object = archive.extractfile(member) if member.isfile() and member.name.endswith(".json") else None
                    if file_object is not None:
                        yield member.name, rows.hashed(file_object.read())
        except (tarfile.TarError, EOFError, OSError) as problem:
            raise InputError(f"{path}: not a whole tar archive ({problem}), expected session files") from None
    else:
        yield path.name, rows.hashed(path.read_bytes())


class _Reader:
    """Accumulates sessions into columns."""

    def __init__(self, rows: Rows, think: str, think_scale: float, share_tools: bool, answers: bool) -> None:
        self.rows, self.think, self.think_scale, self.share_tools, self.answers = rows, think, think_scale, share_tools, answers
        self.columns: dict[str, list[Any]] = {name: [] for name in ("arrival_s", "prompt", "output", "class_id", "session", "turn", "after", "delay_s")}
        self.sessions = 0
        self.block_tokens = 0
        self.count: Counter[str] = Counter()
        self.trees: SessionTrees | None = None

    def add(self, name: str, text: bytes) -> None:
        """One session file."""
        self.where = f"{self.rows.path}" if name == self.rows.path.name else f"{self.rows.path}, {name}"
        document = self._document(text)
        self.numbers: dict[str, int] = {}
        requests, prefixes = self._requests(document)
        requests.sort(key=lambda r: r.t)  # stable: a request stays behind the one that released it
        if not requests:
            return
        if self.answers:
            self._extend_by_answers(requests)
        assert self.trees is not None
        self.trees.add(
            [r.path for r in requests], np.array([r.prompt + r.output for r in requests], np.int64), [r.prefix for r in requests], prefixes
        )
        self._append(requests)

    def _document(self, text: bytes) -> dict[str, Any]:
        try:
            document = json.loads(text)
        except ValueError as problem:
            raise InputError(f"{self.where}: not a whole JSON document ({problem}), expected a session") from None
        if type(document) is not dict or type(document.get("requests")) is not list:
            raise InputError(f"{self.where}: no list 'requests', expected a session")
        block = document.get("block_size")
        if type(block) is not int or block < 1:
            raise InputError(f"{self.where}: block_size = {block!r}, expected a whole number of at least 1")
        if self.trees is None:
            self.block_tokens, self.trees = block, SessionTrees(block, self.share_tools)
        if block != self.block_tokens:
            raise InputError(f"{self.where}: block_size = {block}, expected {self.block_tokens} as in the sessions before")
        return document

    # ---- one session: rows -> linked requests ----

    def _requests(self, document: dict[str, Any]) -> tuple[list[Request], list[StandardPrefix]]:
        prefixes = [self._prefix(document)]
        main: list[Request] = []
        result: list[Request] = []
        waits_for: list[Request] = []
        for i, entry in enumerate(document["requests"], 1):
            self.row = str(i)
            if type(entry) is not dict:
                raise InputError(f"{self.where}, request {i}: {entry!r:.60}, expected a JSON object")
            if entry.get("type") == "subagent":
                last = self._subagent(entry, i, main, prefixes, result)
                waits_for += [last] if last is not None else []
                continue
            request = self._request(entry, 0.0, MAIN, 0, main[-1] if main else None)
            if request is None:
                continue
            ended = [s for s in waits_for if s.end <= request.t + CLOCK_S]
            if ended and len(ended) == len(waits_for):
                request.after = max(ended, key=lambda s: s.end)
                request.gap = max(0.0, request.t - request.after.end)
                self.count["joins"] += 1
            waits_for = []
            main.append(request)
            result.append(request)
        for prefix, kind in [(0, MAIN), *[(i, SUBAGENT) for i in range(1, len(prefixes))]]:
            prefixes[prefix].settle([r.ids for r in result if r.prefix == prefix and r.kind == kind])
        return result, prefixes

    def _subagent(self, entry: dict[str, Any], row: int, main: list[Request], prefixes: list[StandardPrefix], result: list[Request]) -> Request | None:
        """Append the sub-agent's requests, chained after the parent request before it; returns the last one."""
        self.count["sub-agents"] += 1
        prefixes.append(self._prefix(entry))
        start, last = self._number(entry, "t"), main[-1] if main else None
        for i, nested in enumerate(entry.get("requests", []), 1):
            self.row = f"{row}.{i}"
            request = self._request(nested, start, SUBAGENT, len(prefixes) - 1, last)
            if request is not None:
                if last is not None and last.kind == MAIN:
                    request.gap = max(0.0, request.t - last.end)
                result.append(request)
                last = request
        duration = entry.get("duration_ms")
        if last is None or last.kind == MAIN:
            return None
        if duration is not None:
            last.end = max(last.end, start + duration / 1000)
        return last

    def _prefix(self, entry: dict[str, Any]) -> StandardPrefix:
        models = entry.get("models") or [""]
        return StandardPrefix(str(models[0]), int(entry.get("tool_tokens") or 0), int(entry.get("system_tokens") or 0), self.block_tokens)

    def _request(self, entry: dict[str, Any], start: float, kind: int, prefix: int, before: Request | None) -> Request | None:
        """The checked request, or None for one that generated nothing (skipped, counted)."""
        self.rows.read += 1
        output = self._integer(entry, "out", 0)
        if output == 0:
            self.rows.skip("zero output")
            return None
        prompt = self._integer(entry, "in", 1)
        ids = self._ids(entry, prompt)
        t = start + self._number(entry, "t")
        think = entry.get("think_time")
        if before is not None and before.kind == kind and think is not None and before.end == before.t:
            before.end = max(before.t, t - float(think))  # no api_time was recorded: the think time tells
        gap = float(think) if think is not None else max(0.0, t - (before.end if before is not None else t))
        if think is None and before is not None:
            self.count["think times taken from t and api_time"] += 1
        return Request(t, t + float(entry.get("api_time") or 0.0), prompt, output, ids, gap, kind, prefix, before, ids)

    def _ids(self, entry: dict[str, Any], prompt: int) -> np.ndarray:
        listed = entry.get("hash_ids")
        ids = as_column(listed, self.numbers) if type(listed) is list else None
        if ids is None:
            self._fail("hash_ids", listed, EXPECTED)
        covered = prompt // self.block_tokens
        if len(ids) != covered:
            self._fail("hash_ids", f"{len(ids)} ids", f"{covered} ids of {self.block_tokens} tokens for in = {prompt}")
        return ids

    def _number(self, entry: dict[str, Any], field_name: str) -> float:
        value = entry.get(field_name)
        if type(value) not in (int, float) or not 0 <= value < 1e15:
            self._fail(field_name, value, "a finite number of at least 0")
        return float(value)

    def _integer(self, entry: Any, field_name: str, low: int) -> int:
        value = entry.get(field_name) if type(entry) is dict else None
        if type(value) is not int or value < low:
            self._fail(field_name, value, f"a whole number of at least {low}")
        return value

    def _fail(self, field_name: str, value: Any, expected: str) -> NoReturn:
        raise InputError(f"{self.where}, request {self.row}: {field_name} = {value!r:.60}, expected {expected}")

    def _extend_by_answers(self, requests: list[Request]) -> None:
        """Let a request's path go on into the next turn's ids where that turn repeats it all and has room for the answer."""
        following = {id(r.after): r for r in requests if r.after is not None and r.after.kind == r.kind and r.after.prefix == r.prefix}
        for request in requests:
            later = following.get(id(request))
            if later is None:
                continue
            self.count["turn pairs"] += 1
            n, total = len(request.ids), request.prompt + request.output
            if later.prompt >= total and np.array_equal(later.ids[:n], request.ids):
                request.path = later.ids[: total // self.block_tokens]
                self.count["answers"] += 1

    # ---- columns ----

    def _append(self, requests: list[Request]) -> None:
        first, number = len(self.columns["prompt"]), {id(r): i for i, r in enumerate(requests)}
        released = self.think != "original"
        for i, r in enumerate(requests):
            waits = released and r.after is not None
            for name, value in (
                ("arrival_s", np.nan if waits else r.t), ("prompt", r.prompt), ("output", r.output), ("class_id", r.kind),
                ("session", self.sessions), ("turn", i), ("after", first + number[id(r.after)] if waits else -1),
                ("delay_s", r.gap * self.think_scale if waits else 0.0),
            ):  # fmt: skip
                self.columns[name].append(value)
        self.sessions += 1

    def workload(self) -> Workload:
        if self.trees is None:
            raise InputError(f"{self.rows.path}: no session files, expected *.json")
        c, n = self.columns, len(self.columns["prompt"])
        self._notes()
        notes = self.rows.report(n)
        tree, leaf = self.trees.merged()
        scope = SCOPES.index("global" if self.share_tools else "session")
        return Workload(
            tree=tree, leaf=leaf, arrival_s=np.array(c["arrival_s"], np.float64),
            prompt_tokens=np.array(c["prompt"], np.int64), output_tokens=np.array(c["output"], np.int64),
            class_id=np.array(c["class_id"], np.int16), class_names=("main", "sub-agent"), class_slo=("", ""),
            session_id=np.array(c["session"], np.int64), turn=np.array(c["turn"], np.int32),
            after=np.array(c["after"], np.int64), delay_s=np.array(c["delay_s"], np.float64),
            tail_layer=np.full(n, 2, np.int16), layer_names=("tools", "system", "session"), layer_scopes=(scope, scope, SCOPES.index("session")),
            hash_block_tokens=self.block_tokens, source=self.rows.source(), notes=notes,
        )  # fmt: skip

    def _notes(self) -> None:
        note, count = self.rows.note, self.count
        note(f"sessions: {self.sessions}, of which every one starts at time 0 (users or concurrency spread them); sub-agents: {count['sub-agents']}, their parent waits for {count['joins']}")
        shared = "sessions of one model with equal tool and system token counts share that text" if self.share_tools else "sessions share nothing (share_tools lets them share tools and system)"
        note(f"hash ids are local to a session: {shared}; the last in % {self.block_tokens} tokens of an input have no id and are private")
        if self.answers:
            note(f"answers: {count['answers']} of {count['turn pairs']} next turns repeat all ids of the turn before and have room for its answer; assumed to contain it")
        how = {"think-only": "recorded think time after each completion", "original": "recorded times, open loop (the source server's speed is in them)",
               "scaled": f"think time x {self.think_scale:g} after each completion"}[self.think]  # fmt: skip
        note(f"think = {self.think}: {how}; {count['think times taken from t and api_time']} gaps without think_time come from t and api_time")
