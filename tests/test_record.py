"""What an installed vLLM did with the first requests of kvcast's own scenarios (tests/recorded, written by
tools/record_engine_cases.py with vLLM 0.33.0), and the half of that tool that needs no engine."""

from __future__ import annotations

import argparse
import copy
import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcast import api, load_scenario
from kvcast.validation import engine_cases
from tools import record_engine_cases as tool
from workloads.columns import Workload
from workloads.readers.engine_case import read_case, to_workload

RECORDED = Path(__file__).parent / "recorded"
ROOT = Path(__file__).parents[1]


def asked(*overrides: str, first: int = 40) -> argparse.Namespace:
    path = ROOT / "examples" / "demo.toml"
    return argparse.Namespace(scenario=path, overrides=list(overrides), first=first, step_ms=20.0, name=None)


def test_recorded_scenarios_are_replayed_step_by_step() -> None:
    """Coding agents with chunks and a watermark, priorities without a reserve, asynchronous, tool calls, and prompts
    that wait beside decodes."""
    found = engine_cases.run(None, RECORDED)
    assert (found.passed, found.figures["cases"], found.figures["requests"]) == (True, 5, 270)
    assert found.figures["steps"] > 10_000


@pytest.mark.parametrize("at", ["steps", "free queue", "hits"])
def test_a_planted_difference_is_found(at: str) -> None:
    case = copy.deepcopy(read_case(RECORDED / "tool-agent-api.json.xz"))
    expected = case["expected"]
    if at == "steps":
        expected["steps"][100][5] += 1
    elif at == "hits":
        expected["requests"][20]["all_admission_cached_tokens"][0] -= 16
    else:
        queue = expected["summary"]["final_free_queue"]
        queue[-1], queue[-2] = queue[-2], queue[-1]
    assert len(engine_cases.differences(case)) == 1


def shared(work: Workload, a: int, b: int) -> int:
    """Tokens that two prompts begin with alike."""

    def path(row: int) -> list[int]:
        nodes, node = [], int(work.leaf[row])
        while node >= 0:
            nodes.append(node)
            node = int(work.tree.parent[node])
        return nodes[::-1]

    both = [x for x, y in zip(path(a), path(b), strict=False) if x == y]
    return min(int(work.tree.end[both[-1]]), int(work.prompt_tokens[a]), int(work.prompt_tokens[b])) if both else 0


def test_requests_of_a_scenario_share_as_its_prompts_do() -> None:
    """Texts, histories with earlier outputs, and what is each prompt's own: every pair of prompts."""
    args = asked("engine.max_model_len=8000", "engine.kv_blocks=700")
    case = tool.requests_of(args)
    work, _ = to_workload({**case, "expected": {}})
    prepared = api.prepare(load_scenario(args.scenario, args.overrides))
    given, n = prepared.workload, 40
    rows = tool.chosen(given, prepared.resolved.params, n)
    assert work.prompt_tokens.tolist() == given.prompt_tokens[rows].tolist()
    for a in range(n):
        for b in range(a):
            assert shared(work, a, b) == shared(given, rows[a], rows[b])
    assert any(segment[0] == "o" for request in case["requests"] for segment in request["segments"])
    assert case["config"]["num_blocks"] == 700


def test_only_what_the_engine_has_is_asked_of_it() -> None:
    with pytest.raises(SystemExit, match="expected a scenario of vLLM's own scheduler"):
        tool.requests_of(asked("cache.policy=lfu"))


def test_two_recordings_are_compared_in_words() -> None:
    with lzma.open(RECORDED / "tool-agent-api.json.xz") as file:
        want: dict[str, Any] = json.load(file)["expected"]
    got = copy.deepcopy(want)
    assert tool.differences(got, want) == []
    got["steps"][3][1] = []
    got["requests"][2]["finish_step"] += 1
    got["summary"]["preemptions"] += 1
    first, second, third = tool.differences(got, want)
    assert first.startswith("step 3: expected [3, [[")
    assert second.startswith("request 2: finish_step expected")
    assert third.startswith("preemptions expected 1, got 2")


def test_without_the_engine_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "record_engine_cases.py", "record", "nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "vllm is not installed for this Python: run with one that has it\n")
