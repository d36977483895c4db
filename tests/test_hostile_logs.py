"""Damaged results and logs: whatever stands where a value should, reading ends in requests or in one clear line."""

from __future__ import annotations

import copy
import csv
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import test_bench_results as results
from tests import test_call_logs as logs
from workloads.errors import InputError
from workloads.readers import read
from workloads.readers.measured import measured

JUNK = [
    *(None, True, -1, 0, 1.5, 1e308, 10**30, 10**400, float("nan"), float("inf")),
    *("", "x", "1e400", "\u2028", "2026-06-23T06:05:00Z"),
    *([], {}, [None], [[]], {"a": 1}),
]
MUTATIONS = 25
INFO = {
    "request_metrics": {"text": {"input_tokens": 100}},
    "response_metrics": {
        "output_tokens": 3,
        "output_token_times": [1000.75, 1001.0],
        "server_usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 6}},
    },
}
USAGE = {"prompt_tokens": 22, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 11}}
CHAIN = [{"input_toks": 2, "output_toks": 3, "tool_duration_ns": 15, "input_tok_ids": [8, 9]}] * 2
FILES: dict[str, Any] = {
    "vllm": [results.RUN | results.DETAILS],
    "sglang": [results.SGLANG | results.OLDER],
    "guidellm": [{"metadata": {"guidellm_version": "1"}, "config": {}, "benchmarks": [results.NEW, results.OLD]}],
    "aiperf": [results.record(1_756_800_000_000_000_000), results.record(1_756_800_000_500_000_000)],
    "inference-perf": [
        [results.lifecycle(1000.5, INFO), results.lifecycle(1, {"input_tokens": 4, "output_tokens": 3})]
    ],
    "litellm": logs.SPENT,
    "pages": [{"data": logs.SPENT}],
    "langfuse": logs.OBSERVED,
    "otlp": [logs.otlp(logs.SPANS)],
    "spans": [logs.console(told) for told in logs.SPANS],
    "batch": [{"custom_id": "a", "response": {"status_code": 200, "body": {"model": "m", "usage": USAGE}}}],
    "blis": [logs.traced(i, i, session_id="s", round_index=i, prefix_group="g", prefix_length=64) for i in (0, 1)],
    "llmservingsim": [{"session_id": "s", "arrival_time_ns": 10**9, "sub_requests": CHAIN}],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in nested lists and objects, as a path of names and indices."""
    inside = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    for key, inner in inside:
        yield (*path, key)
        yield from places(inner, (*path, key))


def damaged(rows: list[Any], rng: random.Random) -> list[Any]:
    """The rows with one value another one, or gone."""
    rows = copy.deepcopy(rows)
    path = rng.choice([path for path in places(rows) if len(path) > 1])
    inner = rows
    for key in path[:-1]:
        inner = inner[key]
    if type(inner) is dict and rng.random() < 0.2:
        del inner[path[-1]]
    else:
        inner[path[-1]] = copy.deepcopy(rng.choice(JUNK))
    return rows


def told(name: str, rows: list[Any]) -> str:
    """The file: objects one a line, but a CSV of BLIS."""
    if name != "blis":
        return "\n".join(map(json.dumps, rows))
    table = io.StringIO()
    writer = csv.DictWriter(table, list(FILES["blis"][0]))
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue()


@pytest.mark.parametrize("name", FILES)
def test_any_value_may_stand_anywhere(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    rows = json.loads(json.dumps(FILES[name]))
    for _ in range(MUTATIONS):
        path = tmp_path / "file"
        path.write_text(told(name, damaged(rows, rng)))
        for what in (read, measured):
            try:
                found = what(path)
            except InputError as problem:
                line = str(problem)
                assert "\n" not in line
                assert "\u2028" not in line
                assert "secret" not in line
                continue
            assert "secret" not in repr(found)
            if what is read and not np.isnan(found.arrival_s).all():
                found.check()
