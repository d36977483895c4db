"""BLIS TraceV2 (inference-sim): a CSV of requests in microseconds, with a YAML header in a file beside it.

The one idea: what requests share is in the file. Those of one `prefix_group` begin with the same `prefix_length`
tokens, and `input_tokens` follow them (`server_input_tokens`, where the server counted, is the whole prompt of a
request without a group). With `session_context_growth: accumulate` in the header, `input_tokens` of a round are what
is new after the round before and its answer. SLO classes are classes; a status other than ok is a failure.

From the writer's and the replayer's sources (sim/workload of inference-sim, trace versions 2 and 3).

    >>> from workloads.readers import blis
    >>> workload = blis.read("trace.csv")           # trace.yaml, or header.yaml beside data.csv, is its header
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.errors import InputError
from workloads.limits import MAX_TOKENS
from workloads.prefix_tree import from_pieces
from workloads.readers.calls import FAILED, Call, CallLog, NoRequestsError, Record, Timing, Walk, between, first
from workloads.readers.common import NO_IDENTITY, Rows
from workloads.readers.head import Head
from workloads.readers.values import number

NEEDED = {"request_id", "input_tokens", "output_tokens", "arrival_time_us", "round_index"}
GROWTHS = ("", "independent", "accumulate")


def _recognised(head: Head) -> str | None:
    if head.bytes.startswith(b"trace_version:"):
        return "it begins with trace_version"
    return f"its header has {', '.join(sorted(NEEDED))}" if set(head.columns) >= NEEDED else None


def _records(rows: Rows) -> Iterator[Record]:
    with rows.path.open("rb") as file:
        if file.read(14) == b"trace_version:":
            raise NoRequestsError(
                f"{rows.path}: the header of a BLIS trace, which is no trace; its requests are in the CSV beside it"
            )
    return rows.records()


def _call(record: Record) -> Call | str:
    if str(record.get("status") or "ok").lower() != "ok":
        return FAILED
    return Call(
        _prompt(record),
        record.get("output_tokens"),
        record.get("arrival_time_us"),
        group=record.get("slo_class"),
        session=record.get("session_id"),
        more=(record.get("prefix_group"), first(record, "prefix_length") or 0, number(record["round_index"])),
    )


def _prompt(record: Record) -> Any:
    """Tokens of one request's own round: those of its group's prefix, and those that follow."""
    if not record.get("prefix_group"):
        counted = record.get("server_input_tokens")
        return counted if number(counted) > 0 else record.get("input_tokens")
    tokens, prefix = number(record.get("input_tokens")), number(record.get("prefix_length"))
    return tokens + prefix if tokens >= 0 and 0 <= prefix <= MAX_TOKENS else record.get("input_tokens")


def _timing(record: Record) -> Timing:
    """From the sending to the first and the last chunk; a generated trace has zeros."""
    sent = record.get("send_time_us")
    seen = number(record.get("first_chunk_time_us")) > 0
    return Timing(
        between(sent, record.get("first_chunk_time_us"), 1e6) if seen else None,
        between(sent, record.get("last_chunk_time_us"), 1e6) if seen else None,
    )


LOG = CallLog(
    names=Call("input_tokens", "output_tokens", "arrival_time_us", session="session_id"),
    recognised=_recognised,
    records=_records,
    call=_call,
    unit="us",
    timing=_timing,
    groups="SLO classes",
)
looks_like = LOG.looks_like


def read(path: str | Path, timestamp_unit: str = "") -> Workload:
    """Requests of a TraceV2, in file order, over the tree of its prefix groups and growing sessions."""
    workload, walk = LOG.read_walk(path, timestamp_unit)
    header, growth = _header(Path(path))
    grows = growth == "accumulate"
    many_rounds = any(round_index > 0 for _, _, round_index in walk.column("more"))
    notes = [line for line in workload.notes if line != NO_IDENTITY]
    if many_rounds:
        notes.append(
            f"session_context_growth = {growth!r} ({header}): a round's input is"
            + (" what is new, after the round before and its answer" if grows else " its whole prompt")
        )
    paths, prompt = _paths(walk, workload, grows and many_rounds)
    if not any(paths):
        return replace(workload, notes=(*notes, NO_IDENTITY))
    tree, leaf = from_pieces(paths)
    return replace(workload, tree=tree, leaf=leaf, prompt_tokens=prompt, prefix_identity=True, notes=tuple(notes))


def _paths(walk: Walk, workload: Workload, grows: bool) -> tuple[list[list[tuple[Hashable, int, int]]], np.ndarray]:
    """(pieces of named texts that each request begins with, prompt tokens int64 [n] with the rounds before)."""
    paths: list[list[tuple[Hashable, int, int]]] = []
    prompt = workload.prompt_tokens.copy()
    said: dict[str, int] = {}  # tokens of a session so far, beyond its prefix
    groups = [group for group, _, _ in walk.column("more")]
    lengths = walk.rows.integers("prefix_length", [length for _, length, _ in walk.column("more")], low=0)
    for i, (group, length, session) in enumerate(zip(groups, lengths, walk.column("session"), strict=True)):
        prefix = int(length) if group else 0
        path: list[tuple[Hashable, int, int]] = [(("group", str(group)), 0, prefix)] if prefix else []
        if grows and session:
            own = said.get(session, 0) + int(prompt[i]) - prefix
            said[session] = own + int(workload.output_tokens[i])
            path.append((("session", session), 0, said[session]))
            prompt[i] = prefix + own
        paths.append(path)
    return paths, prompt


def _header(path: Path) -> tuple[str, str]:
    """(where the header is, its session_context_growth)."""
    names = [path.with_suffix(".yaml"), path.with_suffix(".yml"), path.with_name("header.yaml")]
    for name in names:
        if name.is_file():
            text = name.read_text(encoding="utf-8", errors="replace")[: 1 << 20]
            found = re.search(r"^session_context_growth:[ \t]*[\"']?([\w-]*)", text, re.MULTILINE)
            growth = found[1] if found else ""
            if growth not in GROWTHS:
                raise InputError(f"{name}: session_context_growth = {growth!r}, expected accumulate or none")
            return name.name, growth
    return f"no header: neither {names[0].name} nor {names[2].name} is there", ""
