"""Traces of block ids as many tools write them: block sizes, ragged ends, deltas, requests that wait for others."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kvcast.cli import main
from kvcast.config import scenario_from_doc
from workloads.config import WorkloadConfig
from workloads.convert import to_mooncake
from workloads.errors import InputError
from workloads.estimate import reusable_tokens
from workloads.load import load
from workloads.readers import read
from workloads.readers.coverage import CEIL, FLOOR, fitting
from workloads.reuse import infinite_cache


def write(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refusal(path: Path, **options) -> str:
    with pytest.raises(InputError) as error:
        read(path, **options)
    line = str(error.value)
    assert "\n" not in line
    return line.replace(str(path), "FILE")


def row(tokens: int, ids: list, output: int = 50, **more) -> dict:
    return {"timestamp": 0, "input_length": tokens, "output_length": output, "hash_ids": ids, **more}


# ---- block sizes and ragged ends ----

SMALL = (row(1000, [0, 1, 2, 3, 4, 5, 6, 7]), row(1200, [0, 1, 2, 3, 4, 5, 6, 100, 101, 102], timestamp=500))


def test_the_block_size_that_would_fit_is_named_and_then_read(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *SMALL)
    line = refusal(path)
    assert line.startswith("FILE, row 1: hash_ids = '8 ids', expected 2 ids of 512 tokens to cover input_length = 1000")
    assert line.endswith("; blocks of 128 would cover all rows: set block_tokens = 128")
    workload = load(WorkloadConfig(trace=str(path), block_tokens=128))
    assert workload.hash_block_tokens == 128
    assert reusable_tokens(workload).tolist() == [0, 896]
    with pytest.raises(InputError, match="blocks of 128 would cover all rows"):
        load(WorkloadConfig(trace=str(path), block_tokens=64))


@pytest.mark.parametrize("block", [16, 32, 48, 64, 128, 256, 784, 1024])
@pytest.mark.parametrize("rule", [CEIL, FLOOR])
def test_a_fitting_size_explains_every_row(block: int, rule: str) -> None:
    """With enough rows the size is the one that made them; with few it still gives every row its count."""
    prompt = np.random.default_rng(block).integers(block, 40 * block, 400)
    blocks = -(-prompt // block) if rule == CEIL else prompt // block
    assert fitting(prompt, blocks) == (block, rule)
    size, how = fitting(prompt[:3], blocks[:3]) or (0, "")
    assert np.array_equal(blocks[:3], -(-prompt[:3] // size) if how == CEIL else prompt[:3] // size)


def test_counts_of_no_one_size_have_no_fitting_one() -> None:
    assert fitting(np.array([1000, 1000]), np.array([8, 20])) is None
    assert fitting(np.array([100]), np.array([9])) is None, "12 tokens a block is no block size"


def test_ids_without_the_ragged_end_are_read_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", row(1100, [1, 2]), row(1500, [1, 2]), row(100, []), row(1024, [1, 3]))
    workload = read(path)
    assert any("input // 512 ids in every row" in note for note in workload.notes)
    assert reusable_tokens(workload).tolist() == [0, 1024, 0, 512]
    mixed = write(tmp_path / "m.jsonl", row(1100, [1, 2]), row(1500, [1, 2, 3]), row(513, [1, 2]))
    assert "no one block size explains all rows (format = 'table' without prefix_ids reads lengths" in refusal(mixed)
    lengths = read(mixed, format="table", timestamp_unit="s")
    assert (lengths.prompt_tokens.tolist(), lengths.prefix_identity) == ([1100, 1500, 513], False)
    assert any(note.startswith("hash_ids: not read") for note in lengths.notes)
    floor = write(
        tmp_path / "f.jsonl", row(1000, list(range(15))), row(1087, list(range(16))), row(1100, list(range(17)))
    )
    assert refusal(floor).endswith("; blocks of 64 would fit all rows but their ragged ends: set block_tokens = 64")


def test_block_tokens_is_for_traces_of_ids_only(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,10,5\n")
    for key, value in (("block_tokens", 64), ("turns", "delta")):
        with pytest.raises(InputError, match=rf"\[workload\] {key} = .*expected none: only"):
            load(WorkloadConfig(trace=str(path), **{key: value}))
    with pytest.raises(InputError, match="turns = 'deltas': expected whole or delta"):
        scenario_from_doc({"workload": {"trace": "t.jsonl", "turns": "deltas"}, "hardware": {"profile": "fake"}})


def test_images_that_are_not_used_are_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\r\n2024-10-15 00:00:00.1,2,900,20\r\n"
        "2024-10-15 00:00:01.1,0,300,40\r\n2024-10-15 00:00:02.1,,300,40\r\n"
    )
    assert any("NumImages is not used: 1 of 3 rows have images" in note for note in read(path).notes)


# ---- rows as other tools write them ----


def test_aliases_of_the_fields_and_null_ids(tmp_path: Path) -> None:
    rows = [
        {"created_time": 500, "input_tokens": 600, "output_tokens": 5, "hash_ids": [1, 2]},
        {"created_time": 1500, "input_tokens": 600, "output_tokens": 5, "hash_ids": None, "priority": 3, "extra": {}},
    ]
    workload = read(write(tmp_path / "t.jsonl", *rows))
    assert workload.arrival_s.tolist() == [0, 1]
    assert "fields that are not used: priority, extra" in workload.notes
    assert "hash_ids: 1 rows have none and share nothing" in workload.notes


def test_a_row_of_text_says_that_it_counts_no_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"timestamp": 0, "text_input": "a secret", "output_length": 5})
    line = refusal(path, format="mooncake")
    assert line == "FILE, row 1: text_input = '(text)', expected input_length, tokens: this format counts no text"


# ---- whole prompts or what is new ----

DELTAS = (
    {"session_id": "s", "timestamp": 0, "input_length": 4190, "output_length": 592},
    {"session_id": "s", "delay": 1000, "input_length": 592, "output_length": 16},
)


def test_a_session_that_shrinks_is_a_question_with_both_readings(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *DELTAS)
    line = refusal(path)
    assert line.startswith("FILE, row 2: input_length = 592 in a session whose row before has 4190:")
    assert "longest has 4,190" in line
    assert "longest has 5,374" in line
    assert "turns = 'whole' or turns = 'delta'" in line
    whole = load(WorkloadConfig(trace=str(path), turns="whole"))
    assert whole.prompt_tokens.tolist() == [4190, 592]
    assert not whole.prefix_identity
    delta = load(WorkloadConfig(trace=str(path), turns="delta"))
    assert delta.prompt_tokens.tolist() == [4190, 5374]
    assert infinite_cache(delta, 16).hit_tokens.tolist() == [0, 4768], "0.4985 of 9,564"
    assert delta.after.tolist() == [-1, 0]
    assert delta.delay_s.tolist() == [0, 1]


def test_inputs_of_one_length_are_a_question_and_growing_ones_a_note(tmp_path: Path) -> None:
    """The next prompt of a conversation holds the one before: it is longer, unless it is what is new."""
    again = ({**DELTAS[0], "input_length": 592}, DELTAS[1])
    assert "input_length = 592 in a session whose row before has 592" in refusal(write(tmp_path / "s.jsonl", *again))
    grown = (DELTAS[0], {**DELTAS[1], "input_length": 5000})
    workload = read(write(tmp_path / "g.jsonl", *grown))
    assert workload.prompt_tokens.tolist() == [4190, 5000]
    assert any("turns = 'delta' reads them as new" in note for note in workload.notes)


@pytest.mark.parametrize(
    ("mode", "second"),
    [
        ("message_array_with_responses", 592),
        ("deltas_without_responses", 4190 + 592 + 592),
        ("deltas_with_responses", 4190 + 592),
    ],
)
def test_rows_that_say_what_they_hold_are_not_asked(tmp_path: Path, mode: str, second: int) -> None:
    workload = read(write(tmp_path / "t.jsonl", *({**one, "context_mode": mode} for one in DELTAS)))
    assert workload.prompt_tokens.tolist() == [4190, second]


def test_ids_that_repeat_the_row_before_say_whole_prompts(tmp_path: Path) -> None:
    """A prompt that was compacted is shorter than the one before, and still the whole prompt."""
    rows = [
        row(1100, [1, 2, 3], session_id="s"),
        row(2000, [1, 2, 4, 5], session_id="s", timestamp=1),
        row(600, [1, 9], session_id="s", timestamp=2),
    ]
    workload = read(write(tmp_path / "t.jsonl", *rows))
    assert workload.prompt_tokens.tolist() == [1100, 2000, 600]
    assert any("2 of 2 later rows of a session begin with ids of the row before" in note for note in workload.notes)


def test_deltas_share_their_first_turns_ids_and_their_own_history(tmp_path: Path) -> None:
    """Two sessions begin with the same 600 tokens; their answers differ, and so does all that follows."""
    rows = [
        row(600, [1, 2], 40, session_id="a"),
        row(600, [1, 2], 40, session_id="b", timestamp=10),
        row(100, [7], 10, session_id="a", delay=5),
        row(100, [7], 10, session_id="b", delay=5),
    ]
    path = write(tmp_path / "t.jsonl", *rows)
    workload = read(path, turns="delta")
    workload.check()
    assert workload.prompt_tokens.tolist() == [600, 600, 740, 740]
    assert workload.after.tolist() == [-1, -1, 0, 1]
    assert reusable_tokens(workload).tolist() == [0, 599, 640, 640]


def test_a_converted_session_reads_back_as_whole_prompts(tmp_path: Path) -> None:
    first = read(write(tmp_path / "t.jsonl", *DELTAS), turns="whole")
    to_mooncake(first, tmp_path / "back.jsonl")
    assert read(tmp_path / "back.jsonl").prompt_tokens.tolist() == [4190, 592]


# ---- requests that wait for others ----


def agent(name: str, start: int, ids: list, waits: tuple = (), delay: float = 0, tool: float | None = None, **more):
    row = {"request_id": name, "session_id": name.split("-")[0], "timestamp": start, "hash_ids": ids}
    row |= {"input_length": 512 * len(ids), "output_length": 10, "wait_for": list(waits), "prefix_reset": not waits}
    return row | ({"delay": delay} if waits else {}) | ({} if tool is None else {"tool_wait_ms": tool}) | more


AGENT = (
    agent("root-1", 0, [1], branches=["child-1"]),
    agent("child-1", 200, [9], ("root-1",), 100),
    agent("root-2", 500, [1, 2], ("root-1", "child-1"), 150, 50),
    agent("other-1", 1000, [5]),
)


def test_agents_follow_completions_and_tool_times(tmp_path: Path) -> None:
    """root-2 waits for root-1 and for the child that root-1 spawned: the child ends last, whatever the server does."""
    workload = read(write(tmp_path / "t.jsonl", *AGENT))
    workload.check()
    assert workload.after.tolist() == [-1, 0, 1, -1]
    assert workload.delay_s.tolist() == pytest.approx([0, 0.1, 0.2, 0])
    assert workload.arrival_s[[0, 3]].tolist() == [0, 1]
    assert not any("side by side" in note for note in workload.notes)
    assert "wait_for: 2 requests are released by the completion of another" in workload.notes


def test_an_agent_and_those_it_spawns_are_one_session(tmp_path: Path) -> None:
    """So that whoever takes whole sessions, samples them or deals them to users, takes all of them."""
    rows = []
    for p in range(6):
        for row in AGENT[:3]:
            waits = [f"{name}/{p}" for name in row["wait_for"]]
            ids = [100 * p + i for i in row["hash_ids"]]
            own = {"request_id": f"{row['request_id']}/{p}", "session_id": f"{row['session_id']}/{p}"}
            rows.append({**row, **own, "wait_for": waits, "hash_ids": ids, "timestamp": row["timestamp"] + 1000 * p})
    path = str(write(tmp_path / "t.jsonl", *rows))
    whole = load(WorkloadConfig(trace=path))
    assert whole.session_id.tolist() == [p for p in range(6) for _ in range(3)]
    assert whole.turn.tolist() == [0, 1, 2] * 6
    half = load(WorkloadConfig(trace=path, sample=0.5))
    half.check()
    assert len(half) % 3 == 0
    users = load(WorkloadConfig(trace=path, users=2))
    users.check()
    assert (users.after < 0).sum() == 2


def test_rows_before_what_they_wait_for_come_behind_it(tmp_path: Path) -> None:
    workload = read(write(tmp_path / "t.jsonl", AGENT[2], AGENT[1], AGENT[0]))
    workload.check()
    assert workload.prompt_tokens.tolist() == [512, 512, 1024]
    assert workload.after.tolist() == [-1, 0, 1]


def test_of_requests_side_by_side_the_one_that_ends_last_is_followed_and_counted(tmp_path: Path) -> None:
    rows = (agent("a-1", 0, [1]), agent("b-1", 300, [2]), agent("c-1", 100, [3]))
    workload = read(write(tmp_path / "t.jsonl", *rows, agent("a-2", 900, [1, 4], ("a-1", "b-1", "c-1"), 20)))
    assert workload.after.tolist() == [-1, -1, -1, 1]
    assert any("1 requests wait for several that run side by side" in note for note in workload.notes)


def test_who_waits_for_an_empty_request_waits_for_what_it_waited_for(tmp_path: Path) -> None:
    empty = {**agent("a-2", 50, [1, 2], ("a-1",), 30), "output_length": 0}
    workload = read(write(tmp_path / "t.jsonl", agent("a-1", 0, [1]), empty, agent("a-3", 90, [1, 3], ("a-2",), 70)))
    assert workload.after.tolist() == [-1, 0]
    assert workload.delay_s.tolist() == pytest.approx([0, 0.1])


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            (agent("a", 0, [1]), agent("b", 1, [2], ("nobody",))),
            "FILE, row 2: wait_for = 'nobody', expected the request_id of another request of the file",
        ),
        (
            (agent("a", 0, [1], ("b",)), agent("b", 1, [2], ("a",))),
            "FILE, row 1: wait_for = ['b'], expected requests that do not wait for each other in a circle",
        ),
        (
            (agent("a", 0, [1]), agent("a", 1, [2]), agent("b", 2, [3], ("a",))),
            "FILE, row 2: request_id = 'a', expected another than that of row 1",
        ),
        ((agent("a", 0, [1], ("a",)),), "FILE, row 1: wait_for = 'a', expected other requests than itself"),
        ((agent("a", 0, [1], request_id=None, wait_for=["b"]),), "FILE, row 1: request_id = None, expected a name"),
        ((agent("a", 0, [1], wait_for="b"),), "FILE, row 1: wait_for = 'b', expected a list of request ids"),
        (
            (agent("a", 0, [1], ("b",), tool=-5),),
            "FILE, row 1: tool_wait_ms = -5, expected a finite number of at least 0",
        ),
        ((agent("a", 0, [1], ("b",), delay="x"),), "FILE, row 1: delay = 'x', expected a finite number of at least 0"),
    ],
)
def test_waits_that_make_no_sense_are_one_line(tmp_path: Path, rows: tuple, line: str) -> None:
    assert refusal(write(tmp_path / "t.jsonl", *rows)).startswith(line)


HEAD = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64, "hash_id_scope": "local", "source": {}}


def node(name: str, play: str, ids: list, not_before: float, *waits: tuple) -> dict:
    dependencies = [
        {"request_id": other, "trigger": trigger, "delay_ms": delay, "relation": "sequence"}
        for other, trigger, delay in waits
    ]
    row = {"request_id": name, "play_id": play, "session_id": "s", "model": "m", "hash_ids": ids}
    return row | {
        "input_length": 64 * len(ids),
        "output_length": 4,
        "not_before_ms": not_before,
        "dependencies": dependencies,
    }


def test_a_header_says_the_block_size_and_ids_are_local_to_a_play(tmp_path: Path) -> None:
    rows = [
        node("p0", "p", [1, 2], 0),
        node("p1", "p", [1, 2, 3], 20, ("p0", "completion", 15)),
        node("p2", "p", [1, 2, 4], 20, ("p1", "dispatch", 5)),
        node("q0", "q", [1, 2], 100),
        node("q1", "q", [1, 2], 140, ("q0", "dispatch", 40)),
    ]
    workload = read(write(tmp_path / "t.jsonl", HEAD, *rows))
    workload.check()
    assert workload.hash_block_tokens == 64
    assert workload.after.tolist() == [-1, 0, 0, -1, -1]
    assert workload.delay_s.tolist() == pytest.approx([0, 0.015, 0.02, 0, 0])
    assert workload.arrival_s[[0, 3, 4]].tolist() == pytest.approx([0, 0.1, 0.14])
    assert reusable_tokens(workload).tolist() == [0, 128, 128, 0, 127], "play q shares nothing with play p"
    assert workload.session_id.tolist() == [0, 0, 0, 1, 1], "a session's name counts within its play"
    assert "rows read 6 = requests 5 + skipped 1 (header: 1)" in workload.notes
    with pytest.raises(InputError, match="block_tokens = 128, expected 64, as the file's header says"):
        read(tmp_path / "t.jsonl", block_tokens=128)
    assert "version = 3, expected 2" in refusal(write(tmp_path / "v.jsonl", {**HEAD, "version": 3}, rows[0]))


# ---- sessions of ids that mean the same everywhere ----


def weka(ids: list, scope: str | None = "global", tokens: int | None = None, **more) -> dict:
    request = {"t": 0.0, "type": "n", "model": "m", "in": 64 * len(ids) if tokens is None else tokens, "out": 10}
    request |= {"hash_ids": ids, "api_time": 1.0}
    head = {"id": "s", "models": ["m"], "block_size": 64, "tool_tokens": 0, "system_tokens": 0, **more}
    return head | ({} if scope is None else {"hash_id_scope": scope}) | {"requests": [request]}


def sessions(folder: Path, *documents: dict) -> Path:
    folder.mkdir()
    for i, document in enumerate(documents):
        (folder / f"s{i}.json").write_text(json.dumps(document))
    return folder


COMMON = list(range(1, 21))


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_global_ids_are_one_text_in_all_sessions(tmp_path: Path, text: bool) -> None:
    documents = [weka([f"b{i}" if text else i for i in (*COMMON, 100 + s)]) for s in range(3)]
    folder = sessions(tmp_path / "w", *documents)
    workload = read(folder)
    workload.check()
    hit = infinite_cache(workload, 64).hit_tokens
    assert hit.tolist() == [0, 1280, 1280], "0.6349 of 4,032"
    assert any("hash ids are global in all sessions" in note for note in workload.notes)
    lines = tmp_path / "w.jsonl"
    lines.write_text("".join(json.dumps(document) + "\n" for document in documents))
    assert infinite_cache(read(lines), 64).hit_tokens.tolist() == hit.tolist(), "one session a line"
    packed = tmp_path / "w.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    assert infinite_cache(read(packed), 64).hit_tokens.tolist() == hit.tolist()
    array = tmp_path / "w.json"
    array.write_text(json.dumps(documents, indent=1))
    assert infinite_cache(read(array), 64).hit_tokens.tolist() == hit.tolist()
    alone = tmp_path / "s.json.gz"
    alone.write_bytes(gzip.compress(json.dumps(documents[0], indent=1).encode()))
    assert len(read(alone)) == 1


def test_local_and_global_sessions_in_one_folder(tmp_path: Path) -> None:
    scopes = ("global", "local", None, "global", "local", "global")
    workload = read(sessions(tmp_path / "w", *(weka(COMMON, scope) for scope in scopes)))
    workload.check()
    assert infinite_cache(workload, 64).hit_tokens.tolist() == [0, 0, 0, 1216, 0, 1216], "all but the last block"
    assert any("global in 3 of 6 sessions" in note for note in workload.notes)


def test_a_scope_that_is_neither_is_refused(tmp_path: Path) -> None:
    folder = sessions(tmp_path / "w", weka(COMMON, "shared"))
    assert refusal(folder) == "FILE, s0.json: hash_id_scope = 'shared', expected local or global"


def test_ragged_ends_have_an_id_in_all_requests_or_in_none(tmp_path: Path) -> None:
    """An id of half a block would be text that no engine shares; it is left out."""
    ceil = [weka(COMMON, tokens=19 * 64 + 10), weka(COMMON, tokens=19 * 64 + 10)]
    workload = read(sessions(tmp_path / "c", *ceil))
    assert infinite_cache(workload, 64).hit_tokens.tolist() == [0, 19 * 64]
    assert any("an id that is left out" in note for note in workload.notes)
    mixed = sessions(tmp_path / "m", ceil[0], weka(COMMON, tokens=20 * 64 + 10))
    assert refusal(mixed).endswith(
        "hash_ids = '20 ids', expected 21 ids of 64 tokens for in = 1290, as in the requests before"
    )


def test_a_weka_request_without_ids_shares_nothing(tmp_path: Path) -> None:
    bare = weka([], tokens=2000)
    follower = {**weka(COMMON)["requests"][0], "t": 5.0, "in": 3000, "hash_ids": list(range(46))}
    bare["requests"].append(follower)
    workload = read(sessions(tmp_path / "w", bare, bare))
    workload.check()
    assert infinite_cache(workload, 64).hit_tokens.tolist() == [0, 0, 0, 2944]
    assert "hash_ids: 2 requests have none and share nothing" in workload.notes


def test_commands_take_what_a_trace_does_not_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = str(write(tmp_path / "b.jsonl", *SMALL))
    assert main(["workload", "describe", blocks, "--block-tokens", "128"]) == 0
    assert "reuse ceiling (infinite cache): 0.4073" in capsys.readouterr().out
    deltas = str(write(tmp_path / "d.jsonl", *DELTAS))
    assert main(["workload", "describe", deltas]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["workload", "describe", deltas, "--turns", "delta"]) == 0
    assert "reuse ceiling (infinite cache): 0.4985" in capsys.readouterr().out
    assert main(["workload", "describe", "chat", "--turns", "delta"]) == 2
