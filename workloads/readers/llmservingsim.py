"""LLMServingSim's requests: `input_toks`, `output_toks`, `arrival_time_ns`, as JSON lines or, in its first version, a
TSV.

The one idea: a line is a request, or a session of `sub_requests`, each of which comes `tool_duration_ns` after the
one before has ended: a closed loop. Token ids (`input_tok_ids`), where every request has them, say what prompts
share.

From its documentation of both forms; the workload of its own validation runs is read as `token-ids`.

    >>> from workloads.readers import llmservingsim
    >>> workload = llmservingsim.read("swe-bench-sessions.jsonl")
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.prefix_tree import from_token_ids
from workloads.readers.common import NO_IDENTITY, Rows, note_ties, nothing_shared
from workloads.readers.head import Head

COUNTS = ("input_toks", "output_toks")


def looks_like(head: Head) -> str | None:
    if "sub_requests" in head.keys:
        return "its rows have sub_requests"
    if "input_tok_ids" in head.keys:
        return None  # token_ids reads those
    return f"its rows have {', '.join(COUNTS)}" if set(COUNTS) <= head.keys else None


def read(path: str | Path, timestamp_unit: str = "") -> Workload:
    """Requests in file order, those of a session one after another."""
    rows = Rows(path, timestamp_unit)
    requests = list(_requests(rows))
    prompt = rows.integers(COUNTS[0], [request[COUNTS[0]] for request in requests], low=1)
    output = rows.integers(COUNTS[1], [request[COUNTS[1]] for request in requests], low=1)
    after, delay_s, arrival_s, session_id, turn = _chains(rows, requests)
    tree, leaf = _tree(rows, requests, prompt)
    chained = bool((after >= 0).any())
    if chained:
        rows.note(
            "a sub-request comes tool_duration_ns after the one before it has ended; a session counts as so many rows"
        )
    has_ids = all("input_tok_ids" in request for request in requests)
    notes = rows.report(len(requests))
    return Workload(
        tree=tree,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        leaf=leaf,
        session_id=session_id if chained else None,
        turn=turn if chained else None,
        after=after if chained else None,
        delay_s=delay_s if chained else None,
        prefix_identity=has_ids,
        source=rows.source(),
        notes=notes,
    )


def _requests(rows: Rows) -> Iterator[dict[str, Any]]:
    """Every request, with its `session` and its place `turn` in it; a session is read as so many rows."""
    for session, record in enumerate(rows.records()):
        chain = record.get("sub_requests", [record])
        if type(chain) is not list or not chain:
            rows.fail("sub_requests", chain, "a list of at least one request")
        rows.read += len(chain) - 1
        turn = 0
        for request in chain:
            if type(request) is not dict:
                rows.fail("sub_requests", request, "an object")
            for name in COUNTS:
                rows.need(request, name)
            if rows.is_zero(request["output_toks"]):
                rows.skip("zero output")
                continue
            rows.keep()
            yield request | {"session": session, "turn": turn, "arrival_time_ns": record.get("arrival_time_ns")}
            turn += 1


def _chains(
    rows: Rows, requests: list[dict[str, Any]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(after int64, delay_s, arrival_s float64, session_id int64, turn int32), [n] each; a session's later requests
    follow the one before."""
    n = len(requests)
    turn = np.array([request["turn"] for request in requests], np.int32)
    heads = np.flatnonzero(turn == 0)
    times = [requests[i]["arrival_time_ns"] for i in heads.tolist()]
    arrival_s = np.full(n, np.nan)
    if any(time is not None for time in times):
        file_rows = [rows.number[i] for i in heads.tolist()]
        arrival_s[heads] = rows.clock("arrival_time_ns", times, 10**9, file_rows)
        note_ties(arrival_s[heads], rows)
    else:
        arrival_s[heads] = rows.no_times(len(heads))
    waits = [requests[i - 1].get("tool_duration_ns", 0) if turn[i] else 0 for i in range(n)]
    delay_s = rows.durations("tool_duration_ns", waits, 1e9)
    after = np.where(turn > 0, np.arange(n) - 1, -1)
    return after, delay_s, arrival_s, np.array([request["session"] for request in requests], np.int64), turn


def _tree(rows: Rows, requests: list[dict[str, Any]], prompt: np.ndarray) -> Any:
    """(tree, leaf) from token ids where every request has them."""
    with_ids = sum("input_tok_ids" in request for request in requests)
    if not with_ids or with_ids < len(requests):
        rows.note(
            NO_IDENTITY if not with_ids else f"{with_ids} of {len(requests)} requests have token ids: none is used"
        )
        return nothing_shared(len(requests))
    texts = []
    for request, tokens, row in zip(requests, prompt, rows.number, strict=True):
        ids = request["input_tok_ids"]
        if (
            type(ids) is not list
            or len(ids) != tokens
            or not set(map(type, ids)) <= {int}
            or not 0 <= min(ids) <= max(ids) < 2**63
        ):
            rows.fail("input_tok_ids", ids, f"a list of {tokens} token ids, as many as input_toks", row)
        texts.append(np.array(ids, np.int64))
    return from_token_ids(texts)
