"""Dynamo's request traces and agent summaries: rows of our own in the shapes that its loaders take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workloads.config import WorkloadConfig
from workloads.errors import InputError
from workloads.estimate import reusable_tokens
from workloads.load import load
from workloads.readers import read
from workloads.reuse import infinite_cache


def write(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as error:
        read(path, format="dynamo")
    assert "\n" not in str(error.value)
    return str(error.value).replace(str(path), "FILE")


def end(name: str, session: str | None, start: int, took: int, prompt: int, hashes: list, **more) -> dict:
    """One request_end; more: parent, or fields of the request."""
    parent = more.pop("parent", None)
    replay = {"trace_block_size": 64, "input_length": prompt, "input_sequence_hashes": hashes}
    request = {"request_id": name, "request_received_ms": start, "total_time_ms": float(took), "output_tokens": 5}
    event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": start + took}
    event |= {"request": {**request, "replay": replay, **more}}
    if session is not None:
        event["agent_context"] = {"session_id": session} | ({"parent_session_id": parent} if parent else {})
    return event


ROOT = end("p1", "root", 1000, 100, 128, [11, 12])
CHILD = end("c1", "child", 1200, 100, 64, [2**64 - 1], parent="root")
JOIN = end("p2", "root", 1500, 100, 200, [11, 12, 13, 14])


def test_sessions_and_their_parents_follow_completions(tmp_path: Path) -> None:
    tool = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "event_time_unix_ms": 1400, "tool": {}}
    workload = read(write(tmp_path / "t.jsonl", JOIN, ROOT, tool, CHILD))
    workload.check()
    assert workload.prompt_tokens.tolist() == [128, 64, 200], "by recorded start"
    assert workload.after.tolist() == [-1, 0, 1], "the parent goes on when its child has ended"
    assert workload.delay_s.tolist() == pytest.approx([0, 0.1, 0.2])
    assert reusable_tokens(workload).tolist() == [0, 0, 128]
    assert workload.hash_block_tokens == 64
    assert "rows read 4 = requests 3 + skipped 1 (tool events: 1)" in workload.notes


def test_wrapped_and_bare_events_read_the_same(tmp_path: Path) -> None:
    bare = read(write(tmp_path / "b.jsonl", ROOT, CHILD, JOIN))
    wrapped = read(write(tmp_path / "w.jsonl", *({"timestamp": 7, "event": e} for e in (ROOT, CHILD, JOIN))))
    assert wrapped.after.tolist() == bare.after.tolist()
    assert wrapped.notes[1:] == bare.notes[1:]


def test_requests_without_a_context_come_at_their_times(tmp_path: Path) -> None:
    rows = [end(f"r{i}", None, 1_700_000_000_000 + 500 * i, 900, 64, [7]) for i in range(3)]
    workload = read(write(tmp_path / "t.jsonl", *rows))
    assert workload.after is None
    assert workload.arrival_s.tolist() == [0, 0.5, 1.0]


def test_a_request_that_overlaps_the_one_before_comes_at_its_time(tmp_path: Path) -> None:
    workload = read(write(tmp_path / "t.jsonl", ROOT, end("p2", "root", 1050, 100, 64, [11])))
    assert workload.after is None
    assert workload.arrival_s.tolist() == [0, 0.05]


def test_an_answers_hashes_let_the_next_turn_hit_it(tmp_path: Path) -> None:
    def turn(name: str, start: int, prompt: int, hashes: list, whole: list) -> dict:
        row = end(name, "s", start, 10, prompt, hashes, output_tokens=64)
        row["request"]["replay"]["completion_sequence_hashes"] = whole
        return row

    rows = [turn("a", 0, 64, [1], [1, 2]), turn("b", 100, 192, [1, 2, 3], [1, 2, 3, 4])]
    assert infinite_cache(read(write(tmp_path / "t.jsonl", *rows)), 64).hit_tokens.tolist() == [0, 64]
    rows[1]["request"]["replay"]["input_length"] = 193
    assert "completion_sequence_hashes = '4 hashes', expected 5 hashes of 64 tokens for 257" in refusal(
        write(tmp_path / "o.jsonl", *rows)
    )


def test_what_was_served_from_a_cache_is_said_not_invented(tmp_path: Path) -> None:
    row = end("a", "s", 0, 10, 1000, [], cached_tokens=500, input_tokens=1000)
    del row["request"]["replay"]
    workload = read(write(tmp_path / "t.jsonl", row))
    assert not workload.prefix_identity
    assert any("served 50.0% of the prompt tokens from its cache" in note for note in workload.notes)
    assert any("captured without replay hashes" in note for note in workload.notes)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"event_type": "request_begin"}, "event_type = 'request_begin', expected request_end, or one of"),
        ({"request": None}, "request = None, expected an object"),
        ({"agent_context": "s"}, "agent_context = 's', expected an object"),
        ({"agent_context": {"session_id": 5}}, "session_id = 5, expected text"),
        ({"output_tokens": None}, "output_tokens = None, expected a whole number from 0"),
        ({"request_id": None}, "request_id = None, expected text"),
        ({"request_received_ms": "1"}, "request_received_ms = '1', expected whole milliseconds"),
        ({"total_time_ms": -1}, "total_time_ms = -1, expected milliseconds"),
        ({"replay": {"trace_block_size": 0}}, "trace_block_size = 0, expected a whole number from 1"),
        ({"replay": {"trace_block_size": 32}}, "trace_block_size = 32, expected 64 as in the requests before"),
        ({"replay": {"input_sequence_hashes": [1]}}, "input_sequence_hashes = '1 hashes', expected 2 hashes of 64"),
        ({"replay": {"input_sequence_hashes": [1, -2]}}, "expected a list of block ids"),
        ({"request_id": "p1"}, "request_id = 'p1', expected another than that of row 1"),
    ],
)
def test_what_makes_no_sense_is_one_line(tmp_path: Path, change: dict, line: str) -> None:
    bad = end("p2", "root", 2000, 100, 128, [11, 12])
    name, value = next(iter(change.items()))
    if name == "replay":
        bad["request"]["replay"] |= value
    elif name in bad["request"]:
        bad["request"][name] = value
    else:
        bad[name] = value
    found = refusal(write(tmp_path / "t.jsonl", ROOT, bad))
    assert found.startswith("FILE, row 2: ")
    assert line in found


SUMMARY = {
    "num_turns": 2,
    "input_prompt_length": 4096,
    "assistant_response_length": [128, 96],
    "tool_call_output_length": [512, 256],
    "tool_call_latency": [1.4, 0.8],
    "final_assistant_response_length": 64,
}


def test_an_agent_summary_is_a_session_of_growing_prompts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", SUMMARY, {**SUMMARY, "num_turns": 0, **{name: [] for name in ARRAYS}})
    workload = load(WorkloadConfig(trace=str(path), loop="concurrency", concurrency=1))
    assert workload.prompt_tokens.tolist() == [4096, 4736, 5088, 4096]
    assert workload.output_tokens.tolist() == [128, 96, 64, 64]
    assert workload.after.tolist() == [-1, 0, 1, -1]
    assert workload.delay_s.tolist() == [0, 1.4, 0.8, 0]
    assert reusable_tokens(workload).tolist() == [0, 4224, 4832, 0]
    with pytest.raises(InputError, match="concurrency"):
        load(WorkloadConfig(trace=str(path)))


ARRAYS = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"num_turns": 3}, "assistant_response_length = [128, 96], expected a list of num_turns = 3 numbers"),
        ({"tool_call_latency": [1, -1]}, "tool_call_latency = -1, expected seconds"),
        ({"tool_call_output_length": [1, 1.5]}, "tool_call_output_length = 1.5, expected whole numbers"),
        ({"input_prompt_length": "x"}, "input_prompt_length = 'x', expected a whole number from 1"),
    ],
)
def test_a_wrong_agent_summary_is_one_line(tmp_path: Path, change: dict, line: str) -> None:
    with pytest.raises(InputError) as error:
        read(write(tmp_path / "t.jsonl", {**SUMMARY, **change}))
    assert f"row 1: {line}" in str(error.value)
