"""aiperf's Mooncake rows of requests as they are sent: `payload` with a prompt of token ids, `timestamp`, `delay` (ms).

The one idea: with the token ids themselves, what two prompts share is known exactly; a row with a `delay` is sent that
long after the answer to its session's row before it. kvcast replay writes such files.

Held against the source of aiperf 0.13.0 (its Mooncake loader and its fixed schedule).

    >>> from workloads.readers import aiperf_payloads
    >>> workload = aiperf_payloads.read("sent.jsonl")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.prefix_tree import from_token_ids
from workloads.readers.common import Rows, note_ties
from workloads.readers.head import Head
from workloads.readers.lengths import numbered

MS = 1000


def looks_like(head: Head) -> str | None:
    payload = head.rows[0].get("payload") if head.rows else None
    ids = payload.get("prompt") if type(payload) is dict else None
    return "its rows have payload with a prompt of token ids" if type(ids) is list and ids else None


def read(path: str | Path, timestamp_unit: str = "") -> Workload:
    """Requests in file order; answers are as long as the payload's max_tokens. InputError for a prompt of text."""
    rows = Rows(path, timestamp_unit)
    prompts: list[np.ndarray] = []
    outputs: list[Any] = []
    sessions: list[Any] = []
    times: list[Any] = []
    delays: list[Any] = []
    for record in rows.records():
        payload = rows.need(record, "payload")
        if type(payload) is not dict:
            rows.fail("payload", payload, "an object, the request as it is sent")
        ids = payload.get("prompt")
        if type(ids) is not list or not ids or not set(map(type, ids)) <= {int} or min(ids) < 0 or max(ids) >= 2**63:
            rows.fail("payload.prompt", "(text)" if type(ids) is str else ids, "a list of at least one token id")
        session = record.get("session_id")
        if session is not None and type(session) is not str:
            rows.fail("session_id", session, "text")
        rows.keep()
        prompts.append(np.array(ids, np.int64))
        outputs.append(payload.get("max_tokens", record.get("output_length")))
        sessions.append(session)
        times.append(record.get("timestamp"))
        delays.append(record.get("delay"))
    output = rows.integers("payload.max_tokens", outputs, low=1)
    session = numbered(sessions)
    after, turn = _followed(session, times, delays)
    delay_s = rows.seconds(
        "delay", [d if d is not None and a >= 0 else 0 for d, a in zip(delays, after, strict=True)], MS
    )
    arrival_s = _arrivals(rows, times, after)
    tree, leaf = from_token_ids(prompts)
    follows = bool((after >= 0).any())
    return Workload(
        tree=tree,
        arrival_s=arrival_s,
        prompt_tokens=np.array([len(p) for p in prompts], np.int64),
        output_tokens=output,
        leaf=leaf,
        session_id=session if any(s is not None for s in sessions) else None,
        turn=turn if follows else None,
        after=after if follows else None,
        delay_s=delay_s if follows else None,
        source=rows.source(),
        notes=rows.report(len(prompts)),
    )


def _followed(session: np.ndarray, times: list[Any], delays: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """(int64 [n]: the session's row before one that has a delay or no time, else -1; int32 [n]: turns)."""
    after, turn = np.full(len(session), -1, np.int64), np.zeros(len(session), np.int32)
    last: dict[int, int] = {}
    for i, s in enumerate(session.tolist()):
        before = last.get(s, -1)
        if before >= 0:
            turn[i] = turn[before] + 1
            if delays[i] is not None or times[i] is None:
                after[i] = before
        last[s] = i
    return after, turn


def _arrivals(rows: Rows, times: list[Any], after: np.ndarray) -> np.ndarray:
    """float64 [n], seconds; NaN where another request decides, and everywhere in a file without times."""
    clocked = np.flatnonzero(after < 0)
    if all(times[i] is None for i in clocked):
        return rows.no_times(len(times))
    arrival_s = np.full(len(times), np.nan)
    given, numbers = [times[i] for i in clocked.tolist()], [rows.number[int(i)] for i in clocked.tolist()]
    arrival_s[clocked] = rows.clock("timestamp", given, MS, numbers, "aiperf's documentation", sure=True)
    note_ties(arrival_s[clocked], rows)
    return arrival_s
