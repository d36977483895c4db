"""Write a workload as Mooncake JSONL, the format most tools read.

The one idea: blocks of a tree node are numbered when its first request comes by, so an id names the whole prefix;
blocks nobody shares get numbers of their own. The file appears whole or not at all.

    >>> lost = to_mooncake(workload, "sessions.jsonl", block_tokens=512)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.errors import InputError
from workloads.files import replacing

STATED_WHOLE = "message_array_with_responses"  #: `context_mode` of rows whose input is the whole prompt


def to_mooncake(workload: Workload, path: str | Path, block_tokens: int = 512) -> tuple[str, ...]:
    """Write `path` (first under a temporary name); returns what was written and one line for each thing that was lost.

    Ids cover ceil(prompt / block_tokens) blocks. A request that is released by another one is written with `session_id`
    and `delay` (ms) and follows its session's row before it (`context_mode` says that its input is the whole prompt);
    others have a `timestamp` (whole ms). Raises InputError when a request is released by another session: rows cannot
    say that.
    """
    path = Path(path)
    follows, before = workload.column("after") >= 0, row_before(workload)
    bad = np.flatnonzero(follows & (before < 0))
    if len(bad):
        raise InputError(
            f"{path}: request {bad[0]} is released by another session (users merge sessions), expected sessions that"
            " begin at a time"
        )
    write_rows(path, _rows(workload, block_tokens, follows))
    moved = int((follows & (workload.column("after") != before)).sum())
    return (
        f"wrote {len(workload)} requests to {path.name}, ids of {block_tokens} tokens",
        *_lost(workload, block_tokens, int(follows.sum()), moved),
    )


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """JSON lines, first under a temporary name: `path` appears whole or not at all."""
    if path.exists() and not path.is_file():  # replacing a device or a pipe would remove it
        raise InputError(
            f"{path}: is {'a folder' if path.is_dir() else 'not a regular file'}, expected a file to write"
        )
    try:
        with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}, expected a file that can be written") from None


def row_before(workload: Workload) -> np.ndarray:
    """int64 [n]: the row before in the same session, -1 for its first."""
    before, session = np.full(len(workload), -1, np.int64), workload.column("session_id")
    order = np.argsort(session, kind="stable")
    same = np.diff(session[order]) == 0
    before[order[1:][same]] = order[:-1][same]
    return before


def _rows(workload: Workload, block_tokens: int, follows: np.ndarray) -> Iterator[dict[str, Any]]:
    ids, session, delay_s = _BlockIds(workload, block_tokens), workload.column("session_id"), workload.column("delay_s")
    for r in range(len(workload)):
        row: dict[str, Any] = {"session_id": str(session[r]), "context_mode": STATED_WHOLE} if follows.any() else {}
        if follows[r]:
            row["delay"] = milliseconds(delay_s[r])
        elif not np.isnan(workload.arrival_s[r]):
            row["timestamp"] = round(float(workload.arrival_s[r]) * 1e3)
        row |= {
            "input_length": int(workload.prompt_tokens[r]),
            "output_length": int(workload.output_tokens[r]),
            "hash_ids": ids.of(r),
        }
        yield row


def milliseconds(seconds: float) -> int | float:
    """Whole when it is whole to a microsecond; else with its fraction."""
    ms = round(float(seconds) * 1e3, 6)
    return int(ms) if ms == int(ms) else ms


class _BlockIds:
    """Numbers of the blocks of one request after the other."""

    def __init__(self, workload: Workload, block_tokens: int) -> None:
        self.workload, self.block_tokens, self.used = workload, block_tokens, 0
        self._of_node: dict[int, list[int]] = {}  # node -> ids of the full blocks whose last token lies in it
        self._partial: dict[tuple[int, int], int] = {}  # (node that holds the last token, prompt length) -> id

    def of(self, r: int) -> list[int]:
        tree, prompt, node = self.workload.tree, int(self.workload.prompt_tokens[r]), int(self.workload.leaf[r])
        path = []
        while tree.parent[node] >= 0:
            path.append(node)
            node = int(tree.parent[node])
        ids: list[int] = []
        for node in reversed(path):
            ids += self._node(node)[: prompt // self.block_tokens - len(ids)]
            if prompt <= tree.end[node]:  # the prompt ends inside the tree
                if prompt % self.block_tokens:
                    if (node, prompt) not in self._partial:
                        self._partial[node, prompt] = self._next(1)[0]
                    ids.append(self._partial[node, prompt])
                return ids
        return ids + self._next(-(-prompt // self.block_tokens) - len(ids))

    def _node(self, node: int) -> list[int]:
        if node not in self._of_node:
            tree = self.workload.tree
            self._of_node[node] = self._next(
                int(tree.end[node] // self.block_tokens - tree.end[tree.parent[node]] // self.block_tokens)
            )
        return self._of_node[node]

    def _next(self, count: int) -> list[int]:
        first, self.used = self.used, self.used + count
        return list(range(first, self.used))


def _lost(workload: Workload, block_tokens: int, follows: int, moved: int) -> tuple[str, ...]:
    """What the file does not say, or says only to some tools."""
    lost = []
    if follows:
        lost.append(f"{follows} think times are written as session_id and delay, additions that only some tools read")
    elif workload.session_id is not None:
        lost.append("lost: sessions")
    if moved:
        lost.append(
            f"lost: {moved} requests (sub-agents and what waits for them) follow the row before them in their session,"
            " not the request that released them"
        )
    for name, what in (
        ("tenant_id", "tenants"),
        ("class_id", "classes"),
        ("priority", "priorities"),
        ("lora", "adapters"),
        ("max_tokens", "max_tokens"),
    ):
        column = getattr(workload, name)
        if column is not None and np.any(column != column[0]):
            lost.append(f"lost: {what}")
    ms = workload.arrival_s[np.isfinite(workload.arrival_s)] * 1e3
    if broken := int((np.abs(ms - ms.round()) > 1e-6).sum()):
        lost.append(f"lost: fractions of a millisecond of {broken} arrivals, since the format's timestamps are whole")
    if workload.concurrency is not None:
        lost.append("lost: the fixed concurrency")
    if len(workload.layer_names) > 1:
        lost.append("lost: layers and their scopes")
    if not workload.prefix_identity:
        lost.append(
            "the source has no prefix identity: every block got an id of its own, which reads as 'nothing is shared'"
        )
    return (
        *lost,
        f"lost: shared text below a block of {block_tokens} tokens, and generated tokens that a later turn repeats",
    )
