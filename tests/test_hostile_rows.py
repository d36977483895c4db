"""Rows of block ids with any one value, at any depth, replaced by what it should never be: read, or one line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_dynamo import CHILD, JOIN, ROOT, SUMMARY
from tests.test_hash_traces import AGENT, DELTAS, HEAD, SMALL, node, weka
from workloads.errors import InputError
from workloads.readers import read

WRONG = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        math.nan,
        math.inf,
        10**10,
        10**400,
        1e308,
        "",
        "x",
        "128",
        "\x1b[31m",
        [],
        [1, 2],
    ),
    *([None], [[1]], {}, {"a": 1}, ["a"]),
)
NODES = (node("p0", "p", [1, 2], 0), node("p1", "p", [1, 2, 3], 20, ("p0", "completion", 15)))
FILES: dict[str, tuple[str, tuple[dict, ...], dict[str, Any]]] = {
    "agents": ("mooncake", AGENT[:3], {}),
    "agents, version 2": ("mooncake", (HEAD, *NODES), {}),
    "deltas": ("mooncake", DELTAS, {"turns": "delta"}),
    "sessions": ("mooncake", DELTAS, {}),
    "small blocks": ("mooncake", SMALL, {"block_tokens": 128}),
    "dynamo": ("dynamo", (ROOT, CHILD, JOIN), {}),
    "agent summary": ("agent-summary", (SUMMARY,), {}),
    "weka": ("weka", (weka([1, 2, 3]),), {}),
}


def spoiled(value: Any) -> Iterator[Any]:
    """The value with one thing in it replaced; of a list the first item only."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in items:
        for other in (*WRONG, *spoiled(inner)):
            yield {**value, key: other} if isinstance(value, dict) else [other, *value[1:]]


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_value_is_read_or_one_line(tmp_path: Path, name: str) -> None:
    format, rows, options = FILES[name]
    path = tmp_path / ("t.json" if format == "weka" else "t.jsonl")
    for i, row in enumerate(rows):
        for bad in spoiled(row):
            path.write_text("".join(json.dumps(one) + "\n" for one in (*rows[:i], bad, *rows[i + 1 :])))
            try:
                workload = read(path, format=format, **options)
            except InputError as error:
                line = str(error)
                assert line.isprintable(), f"{line!r:.300}"
                assert len(line) < 500
            else:
                assert len(workload) > 0
                assert workload.prompt_tokens.min() >= 1
