"""Conversations and agent logs with damaged rows: read, or refused in one line; never a crash, and no text shown."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.test_agent_logs import ROLLOUT, SECRET, TALK, answer, event, tokens, user
from workloads.errors import InputError
from workloads.readers import read

JUNK = (
    *(None, [], {}, "", SECRET, -1, 0, 1.5, 10**30, 1e308, float("inf"), True),
    *([SECRET], {"a": SECRET}, [[1]], [None], "2026-06-01T10:00:00Z"),
)
ASKED = {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "d"}}]}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
}
FOUND = {"role": "tool", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "r"}]}]}
DONE = {"role": "assistant", "content": "ok", "reasoning_content": "so", "timestamp": "2026-06-01T10:00:02Z"}
USAGE = {"prompt_tokens": 4, "completion_tokens": 3}
NODE = {
    "parent": None,
    "message": {"author": {"role": "user"}, "content": {"parts": ["x"]}, "create_time": 1780000000.5},
}
SAID = [
    {
        "tools": [{"name": "f"}],
        "timestamp": "2026-06-01T10:00:00Z",
        "messages": [ASKED, CALLED, FOUND, DONE, ASKED, DONE],
    },
    {"custom_id": "x", "body": {"model": "m", "max_tokens": 5, "messages": [ASKED]}},
    {"messages": [ASKED], "response": {"status_code": 200, "body": {"choices": [{"message": DONE}], "usage": USAGE}}},
    {"mapping": {"u": NODE, "a": {"parent": "u", "message": DONE}}, "current_node": "a"},
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
]
COMPACTED = {**user("c", None, 60), "type": "system", "subtype": "compact_boundary", "logicalParentUuid": "a2"}
LINES: dict[str, list[dict[str, Any]]] = {
    "messages": SAID,
    "claude-code": [
        *(*TALK, COMPACTED, user("u3", "c", 61), answer("a3", "u3", 65, "3", (5, 300, 900, 7))),
        *(user("s1", None, 20, isSidechain=True), answer("s2", "s1", 25, "s", (5, 2000, 700, 8), isSidechain=True)),
    ],
    "codex": [*ROLLOUT, event(30, "compacted"), tokens(40, (16_300, 8016, 180), (2000, 1024, 10))],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inner in value.items() if type(value) is dict else enumerate(value) if type(value) is list else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


def damaged(lines: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    lines = copy.deepcopy(lines)
    for _ in range(rng.choice([1, 1, 2, 4])):
        row = rng.choice(lines)
        *path, last = rng.choice([*places(row), ("type",)])
        holder: Any = row
        for key in path:
            holder = holder[key]
        if rng.random() < 0.25 and type(holder) is dict:
            holder.pop(last, None)
        else:
            holder[last] = copy.deepcopy(rng.choice(JUNK))
    return lines


def test_damaged_rows_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    ended: Counter[str] = Counter()
    for seed in range(200):
        rng = random.Random(seed)
        format, lines = rng.choice(sorted(LINES.items()))
        path = tmp_path / "t.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in damaged(lines, rng)))
        try:
            workload = read(path, format=rng.choice([format, format, None]))
        except InputError as problem:
            shown = str(problem)
            assert "\n" not in shown
            assert "t.jsonl" in shown
            ended["refused"] += 1
        else:
            workload.arrival_s[np.isnan(workload.arrival_s) & (workload.after < 0)] = 0
            workload.check()
            shown = "\n".join((workload.source, *workload.notes))
            ended["read"] += 1
        assert SECRET not in shown, (seed, shown)
    assert min(ended["read"], ended["refused"]) > 30
