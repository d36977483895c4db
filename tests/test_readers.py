"""Every reader: what it reads, what it counts, and the one clear line it gives for what cannot be."""

from __future__ import annotations

import io
import json
import tarfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_prefix_tree import shared_by_text, shared_by_tree
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.readers import FORMATS, read, sniff
from workloads.readers.session_tree import SessionTrees, StandardPrefix
from workloads.reuse import distinct_blocks, infinite_cache
from workloads.transform import in_turns_for_users, kept


@cache
def whole(path: Path, **options) -> Workload:
    """A trace of the reference data, read once for all tests."""
    workload = read(path, **options)
    workload.check()
    return workload


def hit_rate(workload: Workload, block_size: int) -> float:
    return infinite_cache(workload, block_size).hit_tokens.sum() / workload.prompt_tokens.sum()


def write(path: Path, *rows: dict | str) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def complaint(path: Path, **options) -> str:
    """The one line that reading this file ends in."""
    with pytest.raises(InputError) as problem:
        read(path, **options)
    line = str(problem.value)
    assert "\n" not in line
    assert str(path) in line
    return line.replace(str(path), "FILE")


# ---- recorded traces ----


@pytest.mark.parametrize(
    ("name", "requests", "blocks", "distinct", "at_512", "at_16"),
    [("conversation", 12031, 288_500, 182_790, 0.3734, 0.3736), ("synthetic", 3993, 121_877, 43_924, 0.6504, None)],
)
def test_mooncake_golden_numbers(data_dir: Path, name, requests, blocks, distinct, at_512, at_16) -> None:
    workload = whole(data_dir / f"traces/mooncake/{name}_trace.jsonl")
    assert len(workload) == requests
    assert distinct_blocks(workload, 512) == (blocks, distinct)
    assert round(hit_rate(workload, 512), 4) == at_512
    if at_16 is not None:
        assert round(hit_rate(workload, 16), 4) == at_16
    assert f"rows read {requests} = requests {requests} + skipped 0" in workload.notes


def test_mooncake_conversation_says_that_timestamps_tie(data_dir: Path) -> None:
    notes = "\n".join(whole(data_dir / "traces/mooncake/conversation_trace.jsonl").notes)
    assert "10851 of 12031 requests tie with an earlier one, up to 28 at once" in notes


@pytest.mark.parametrize(("name", "requests"), [("code", 8819), ("conv", 19366)])
def test_azure_counts_and_has_no_prefix_identity(data_dir: Path, name: str, requests: int) -> None:
    workload = whole(data_dir / f"traces/azure/AzureLLMInferenceTrace_{name}.csv")
    assert len(workload) == requests
    assert not workload.prefix_identity
    assert infinite_cache(workload, 1).hit_tokens.sum() == 0
    assert any("the hit rate is 0 because" in note for note in workload.notes)


def test_burstgpt_skips_failed_calls_with_a_count(data_dir: Path) -> None:
    workload = whole(data_dir / "traces/burstgpt/BurstGPT_1_first400.csv")
    assert len(workload) == 383
    assert (
        "rows read 400 = requests 383 + skipped 17 (0 request and 0 response tokens, a failed call: 17)"
        in workload.notes
    )


def test_token_ids_reproduce_the_counters_of_a_real_vllm(data_dir: Path) -> None:
    """One replica, 16-token blocks, nothing evicted; the same with even and odd requests on two replicas."""
    workload = whole(data_dir / "measured/vllm_prefix_counters/sharegpt_pulse_req50_n6_delay15_pc.jsonl")
    assert (workload.prompt_tokens.sum(), infinite_cache(workload, 16).hit_tokens.sum()) == (82_645, 21_264)
    for parity, queried, hits in ((0, 39_877, 4_240), (1, 42_768, 5_840)):
        replica = kept(workload, np.arange(300) % 2 == parity, "one of two replicas")
        assert (replica.prompt_tokens.sum(), infinite_cache(replica, 16).hit_tokens.sum()) == (queried, hits)


def test_weka_counts_reconcile_and_links_hold(data_dir: Path) -> None:
    workload = whole(data_dir / "traces/claude_code_weka/traces_710.tar.xz")
    assert "rows read 49334 = requests 49307 + skipped 27 (zero output: 27)" in workload.notes
    assert len(np.unique(workload.session_id)) == 710
    assert np.bincount(workload.class_id).tolist() == [48_631, 676]
    assert hit_rate(workload, 64) == pytest.approx(0.9654, abs=5e-5)
    after, arrival_s = workload.column("after"), workload.arrival_s
    assert (after < 0).sum() == 710
    assert np.all(arrival_s[after < 0] == 0)
    assert np.all(workload.session_id[after[after >= 0]] == workload.session_id[after >= 0])


def test_weka_sessions_of_sixteen_users_follow_one_another(data_dir: Path) -> None:
    workload = in_turns_for_users(whole(data_dir / "traces/claude_code_weka/traces_710.tar.xz"), 16)
    workload.check()
    assert len(workload) == 49_307
    assert (workload.column("after") < 0).sum() == 16
    assert np.count_nonzero(np.diff(workload.session_id, prepend=-1)) == 710, "sessions stay whole and in one piece"


# ---- Mooncake ----

ROW = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}


def test_a_shared_partial_block_ends_at_the_prompts_end(tmp_path: Path) -> None:
    workload = read(write(tmp_path / "t.jsonl", ROW, ROW, {**ROW, "hash_ids": [1, 3]}))
    assert workload.tree.end[workload.leaf].tolist() == [700, 700, 512]


def test_hash_ids_keep_all_64_bits(tmp_path: Path) -> None:
    """Neighbours that a float or a signed integer would merge."""
    rows = [{**ROW, "hash_ids": [2**64 - 1, top]} for top in (2**63 + 1, 2**63 + 2, 2**63 + 1)]
    workload = read(write(tmp_path / "t.jsonl", *rows))
    assert workload.tree.end[workload.leaf].tolist() == [700, 512, 700]
    named = read(write(tmp_path / "n.jsonl", *[{**ROW, "hash_ids": [hex(i) for i in row["hash_ids"]]} for row in rows]))
    assert named.tree.end[named.leaf].tolist() == [700, 512, 700]


def test_sessions_with_delays_follow_completions(tmp_path: Path) -> None:
    rows = [
        {**ROW, "session_id": "a"},
        {**ROW, "session_id": "b", "timestamp": 2000},
        {"session_id": "a", "delay": 1500, "input_length": 1100, "output_length": 1, "hash_ids": [1, 9, 8]},
    ]
    workload = read(write(tmp_path / "t.jsonl", *rows))
    workload.check()
    assert workload.after.tolist() == [-1, -1, 0]
    assert workload.delay_s.tolist() == [0, 0, 1.5]
    assert workload.turn.tolist() == [0, 0, 1]
    assert workload.arrival_s[:2].tolist() == [0, 2]
    assert np.isnan(workload.arrival_s[2])


def test_rows_without_hash_ids_share_nothing_and_say_so(tmp_path: Path) -> None:
    bare = {k: v for k, v in ROW.items() if k != "hash_ids"}
    workload = read(write(tmp_path / "t.jsonl", bare, bare))
    assert not workload.prefix_identity
    assert any("hit rate is 0 because" in note for note in workload.notes)


def test_zero_outputs_are_skipped_with_a_count_and_times_count_from_the_earliest(tmp_path: Path) -> None:
    workload = read(
        write(tmp_path / "t.jsonl", {**ROW, "timestamp": 5000}, {**ROW, "output_length": 0}, {**ROW, "timestamp": 4000})
    )
    assert workload.arrival_s.tolist() == [1, 0]
    assert "rows read 3 = requests 2 + skipped 1 (zero output: 1)" in workload.notes
    assert any("1 rows are earlier than the row before" in note for note in workload.notes)


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (
            '{"timestamp": 0, "input_len',
            (
                'FILE, row 2: not a whole JSON object (column 28): \'{"timestamp": 0, "input_len\\n\', expected one'
                " object a line"
            ),
        ),
        ("[1]", "FILE, row 2: [1], expected a JSON object"),
        ("\x00\x01\x02", "FILE, row 2: binary data, expected one JSON object a line"),
        (
            {"timestamp": 0, "output_length": 5, "hash_ids": []},
            "FILE, row 2: no field 'input_length' among timestamp, output_length, hash_ids",
        ),
        ({**ROW, "input_length": -5}, "FILE, row 2: input_length = -5, expected a whole number of at least 1"),
        ({**ROW, "input_length": 0}, "FILE, row 2: input_length = 0, expected a whole number of at least 1"),
        (
            {**ROW, "input_length": float("nan")},
            "FILE, row 2: input_length = nan, expected a whole number of at least 1",
        ),
        ({**ROW, "input_length": 1e300}, "FILE, row 2: input_length = 1e+300, expected at most 1000000000"),
        ({**ROW, "input_length": True}, "FILE, row 2: input_length = True, expected a whole number of at least 1"),
        (
            {**ROW, "output_length": "many"},
            "FILE, row 2: output_length = 'many', expected a whole number of at least 1",
        ),
        ({**ROW, "timestamp": None}, "FILE, row 2: timestamp = None, expected a finite number of at least 0"),
        (
            {**ROW, "timestamp": "1700000000000000000"},
            "FILE, row 2: timestamp = '1700000000000000000', expected at most 1e+09 s (32 years) after the"
            " earliest time in the file",
        ),
        ({**ROW, "input_length": "7e2x"}, "FILE, row 2: input_length = '7e2x', expected a whole number of at least 1"),
        ({**ROW, "timestamp": -1}, "FILE, row 2: timestamp = -1, expected a finite number of at least 0"),
        (
            {**ROW, "hash_ids": [1]},
            "FILE, row 2: hash_ids = '1 ids', expected 2 ids of 512 tokens to cover input_length = 700; no one block"
            " size explains all rows (format = 'table' without prefix_ids reads lengths and times alone: nothing is"
            " shared then)",
        ),
        (
            {**ROW, "hash_ids": [1, 2, 3]},
            "FILE, row 2: hash_ids = '3 ids', expected 2 ids of 512 tokens to cover input_length = 700; no one block"
            " size explains all rows (format = 'table' without prefix_ids reads lengths and times alone: nothing is"
            " shared then)",
        ),
        (
            {**ROW, "hash_ids": [1, 2.5]},
            "FILE, row 2: hash_ids = [1, 2.5], expected a list of block ids: whole numbers from 0 to 2^64 - 1, or text",
        ),
        (
            {**ROW, "hash_ids": [1, -2]},
            "FILE, row 2: hash_ids = [1, -2], expected a list of block ids: whole numbers from 0 to 2^64 - 1, or text",
        ),
        (
            {**ROW, "hash_ids": [1, 2**64]},
            (
                "FILE, row 2: hash_ids = [1, 18446744073709551616], expected a list of block ids: whole numbers from 0"
                " to 2^64 - 1, or text"
            ),
        ),
        (
            {**ROW, "hash_ids": "1,2"},
            "FILE, row 2: hash_ids = '1,2', expected a list of block ids: whole numbers from 0 to 2^64 - 1, or text",
        ),
    ],
)
def test_mooncake_names_the_row_and_the_field(tmp_path: Path, bad, line: str) -> None:
    assert complaint(write(tmp_path / "t.jsonl", ROW, bad, ROW), format="mooncake") == line


# ---- tables ----


def test_azure_keeps_seven_digits_and_takes_crlf(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9999999,10,1\r\n2023-11-17"
        b" 00:00:00.0000001,20,2\r\n"
    )
    workload = read(path)
    assert workload.arrival_s == pytest.approx([0, 2e-7], abs=2e-8)
    assert workload.prompt_tokens.tolist() == [10, 20]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:17:03.97,1,1\n",
            "FILE, row 2: TIMESTAMP = '2023-13-16 18:17:03.97', expected a time like 2023-11-16 18:17:03.9799600",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,nan,1\n",
            "FILE, row 2: ContextTokens = 'nan', expected a whole number of at least 1",
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1\n", "FILE, row 2: 2 fields, expected 3"),
        (
            "TIMESTAMP,Context,GeneratedTokens\n",
            (
                "FILE, row 1: no column 'ContextTokens' among 'TIMESTAMP', 'Context', 'GeneratedTokens', expected"
                " TIMESTAMP, ContextTokens, GeneratedTokens"
            ),
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "FILE: the file holds no rows, expected at least one request"),
        ("", "FILE: the file is empty, expected a trace"),
    ],
)
def test_azure_names_the_row_and_the_field(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    assert complaint(path, format="azure") == line


def test_burstgpt_is_read_by_name_in_both_versions(tmp_path: Path) -> None:
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log"
        " Type\n5,ChatGPT,472,18,490,x\n45,GPT-4,0,0,0,x\n46,GPT-4,7,0,7,x\n47,GPT-4,9,1,10,x\n"
    )
    new.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log"
        " Type\n5,s1,1.5,ChatGPT,472,18,490,x\n6,,1,GPT-4,9,1,10,x\n7,s1,1,GPT-4,9,1,10,x\n"
    )
    a, b = read(old), read(new)
    assert a.prompt_tokens.tolist() == [472, 9]
    assert a.class_names == ("ChatGPT", "GPT-4")
    assert a.class_id.tolist() == [0, 1]
    assert (
        "rows read 4 = requests 2 + skipped 2 (0 request and 0 response tokens, a failed call: 1, zero output: 1)"
        in a.notes
    )
    assert b.prompt_tokens.tolist() == [472, 9, 9]
    assert b.session_id.tolist() == [0, 1, 0]


def test_token_ids_check_their_own_count(tmp_path: Path) -> None:
    row = {"input_toks": 3, "input_tok_ids": [5, 6, 7], "output_toks": 2, "arrival_time_ns": 1_500_000_000}
    workload = read(
        write(tmp_path / "t.jsonl", row, {**row, "input_tok_ids": [5, 6, 9], "arrival_time_ns": 2_000_000_000})
    )
    assert workload.arrival_s.tolist() == [0, 0.5]
    assert workload.tree.end[workload.leaf].tolist() == [2, 2]
    assert (
        complaint(write(tmp_path / "a.jsonl", {**row, "input_toks": 4}))
        == "FILE, row 1: input_toks = 4, expected 3, the number of input_tok_ids"
    )
    assert (
        complaint(write(tmp_path / "b.jsonl", {**row, "input_tok_ids": []}))
        == "FILE, row 1: input_tok_ids = [], expected a list of at least one token id"
    )


# ---- Weka ----


def turn(t: float, prompt: int, output: int, ids: list[int], think: float = 0.0, api: float = 1.0) -> dict:
    return {
        "t": t,
        "type": "n",
        "model": "m",
        "in": prompt,
        "out": output,
        "hash_ids": ids,
        "think_time": think,
        "api_time": api,
    }


def session(*requests: dict, tools: int = 8, system: int = 4) -> dict:
    return {
        "id": "x",
        "models": ["m"],
        "block_size": 4,
        "hash_id_scope": "local",
        "tool_tokens": tools,
        "system_tokens": system,
        "requests": list(requests),
    }


def test_weka_turns_follow_their_completions_and_contain_earlier_answers(tmp_path: Path) -> None:
    first = turn(0, 17, 6, [1, 2, 3, 4])  # 17 + 6 = 23 tokens: five full blocks, the fifth known from the next turn
    second = turn(11, 30, 3, [1, 2, 3, 4, 5, 6, 7], think=10)
    third = turn(21, 12, 3, [1, 2, 9], think=9)
    workload = read(write(tmp_path / "s.json", session(first, turn(5, 17, 0, [1, 2, 3, 4]), second, third)))
    workload.check()
    assert workload.after.tolist() == [-1, 0, 1]
    assert workload.delay_s.tolist() == [0, 10, 9]
    assert workload.tree.end[workload.leaf].tolist() == [20, 20, 8]
    assert [workload.layer_names[workload.tree.layer[node]] for node in workload.leaf] == [
        "session",
        "session",
        "tools",
    ]
    without = read(tmp_path / "s.json", answers=False)
    assert without.tree.end[without.leaf].tolist() == [16, 16, 8]
    original = read(tmp_path / "s.json", think="original")
    assert original.arrival_s.tolist() == [0, 11, 21]
    assert original.column("after").tolist() == [-1, -1, -1]
    assert read(tmp_path / "s.json", think="scaled", think_scale=0.5).delay_s.tolist() == [0, 5, 4.5]


def test_a_sub_agent_starts_before_its_result_and_the_parent_waits_for_the_last_one(tmp_path: Path) -> None:
    """`t` of a sub-agent entry is the time of its result: one runs from 2 to 12, the other from 3 to 20."""

    def agent(t: float, seconds: float | None, *requests: dict) -> dict:
        return {
            "t": t,
            "type": "subagent",
            "models": ["h"],
            "tool_tokens": 4,
            "system_tokens": 0,
            "status": "completed",
            "duration_ms": None if seconds is None else seconds * 1000,
            "requests": list(requests),
        }

    rows = session(
        turn(0, 12, 2, [1, 2, 3]),
        agent(12, 10, turn(0, 8, 1, [50, 51]), turn(4, 12, 1, [50, 51, 52], think=3)),
        agent(20, 17, turn(0, 8, 1, [60, 61]), turn(15, 12, 1, [60, 61, 62], think=14)),
        turn(25, 16, 2, [1, 2, 3, 4], think=24),
        agent(30, None, turn(0, 8, 1, [70, 71])),
        turn(31, 16, 2, [1, 2, 3, 5], think=5),
    )
    workload = read(write(tmp_path / "s.json", rows))
    workload.check()
    by_time = dict(zip(workload.prompt_tokens.tolist(), workload.after.tolist(), strict=True))
    assert by_time[16] == 5, "launched asynchronously: nobody waits for it, the last turn follows the one before"
    assert workload.class_id.tolist() == [0, 1, 1, 1, 1, 0, 1, 0]
    assert workload.after.tolist() == [-1, 0, 0, 1, 2, 4, 5, 5]
    assert workload.delay_s.tolist() == [0, 1, 2, 3, 14, 6, 4, 5]


def test_weka_archives_folders_and_files_read_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    documents = [
        session(turn(0, 12, 2, [1, 2, 3]), turn(5, 16, 2, [1, 2, 3, 4], think=1)),
        session(turn(0, 12, 2, [1, 2, 3])),
    ]
    with tarfile.open(tmp_path / "s.tar.xz", "w:xz") as archive:
        for i, document in enumerate(documents):
            text = json.dumps(document).encode()
            (folder / f"{i}.json").write_bytes(text)
            entry = tarfile.TarInfo(f"{i}.json")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    a, b = read(folder), read(tmp_path / "s.tar.xz")
    assert a.notes[1:] == b.notes[1:]
    assert a.session_id.tolist() == b.session_id.tolist() == [0, 0, 1]
    assert a.source.split("sha256")[1] == b.source.split("sha256")[1]
    assert shared_by_tree(a.tree, a.leaf, 0, 2) == 0
    shared = read(folder, share_tools=True)
    assert shared_by_tree(shared.tree, shared.leaf, 0, 2) == 12


@pytest.mark.parametrize(
    ("document", "line"),
    [
        (
            session(turn(0, 17, 2, [1, 2, 3])),
            "FILE, request 1: hash_ids = '3 ids', expected 4 or 5 ids of 4 tokens for in = 17",
        ),
        (
            session(turn(0, 12, 2, [1, 2, 3]), turn(0, 12, -1, [1, 2, 3])),
            "FILE, request 2: out = -1, expected a whole number of at least 0",
        ),
        (
            session(turn(float("nan"), 12, 2, [1, 2, 3])),
            "FILE, request 1: t = nan, expected a finite number of at least 0",
        ),
        (
            session(turn(0, 12, 2, [1, 2.5, 3])),
            (
                "FILE, request 1: hash_ids = [1, 2.5, 3], expected a list of block ids: whole numbers from 0 to 2^64 -"
                " 1, or text"
            ),
        ),
        (
            session({**turn(0, 12, 2, []), "hash_ids": [[1], 2]}),
            (
                "FILE, request 1: hash_ids = [[1], 2], expected a list of block ids: whole numbers from 0 to 2^64 - 1,"
                " or text"
            ),
        ),
        (
            session({**turn(0, 12, 2, []), "hash_ids": 0}),
            "FILE, request 1: hash_ids = 0, expected a list of block ids: whole numbers from 0 to 2^64 - 1, or text",
        ),
        ({**session(), "block_size": 0}, "FILE: block_size = 0, expected a whole number of at least 1"),
        (
            session(turn(0, 12, 0, [1, 2, 3])),
            "FILE: all 1 rows were skipped (zero output: 1), expected at least one request",
        ),
    ],
)
def test_weka_names_the_request_and_the_field(tmp_path: Path, document: dict, line: str) -> None:
    assert complaint(write(tmp_path / "s.json", document), format="weka") == line


def test_truncated_weka_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(session(turn(0, 12, 2, [1, 2, 3])))[:-20])
    assert complaint(path, format="weka").startswith("FILE: not a whole JSON document (")
    archive = tmp_path / "s.tar.xz"
    archive.write_bytes(b"not an archive")
    assert complaint(archive).startswith("FILE: not a whole tar archive (")


def standard(row: list[int], main: list[int], sub: list[int]) -> tuple[str, int]:
    """(agent, blocks) of the standard text that a row begins with."""
    for agent, text in (("main", main), ("sub", sub)):
        same = shared_by_text(row, text)
        if same:
            return agent, same
    return "", 0


ids = st.lists(st.integers(0, 2), max_size=5)
sizes = st.sampled_from([(0, 0), (4, 0), (4, 4), (8, 3)])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(ids, min_size=1, max_size=4), sizes, st.lists(ids, max_size=2), sizes),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_sessions_share_standard_text_only_when_asked(sessions, share: bool) -> None:
    """Reference: a row's leading blocks are standard text as long as they agree with its agent's standard prefix; a
    sub-agent that begins like the main agent has none of its own."""
    trees, texts = SessionTrees(4, share), []
    for number, (main_rows, main_size, sub_rows, sub_size) in enumerate(sessions):
        prefixes = [StandardPrefix("main", *main_size, 4), StandardPrefix("sub", *sub_size, 4)]
        for prefix, rows in zip(prefixes, (main_rows, sub_rows), strict=True):
            prefix.settle([np.array(row, np.int64) for row in rows])
        rows = main_rows + sub_rows
        trees.add(
            [np.array(row, np.int64) for row in rows], np.array([len(row) * 4 + 1 for row in rows], np.int64), prefixes
        )
        main, sub = (prefix.ids.tolist() for prefix in prefixes)
        for row in rows:
            agent, blocks = standard(row, main, [] if sub[:1] == main[:1] else sub)
            tools, system = main_size if agent == "main" else sub_size
            owner, text = None if share else number, []
            for b in range(len(row)):
                if b >= blocks:
                    name: tuple = ("own", number, tuple(row[: b + 1]))
                else:
                    name = (owner, agent, tools, b) if b < tools // 4 else (owner, agent, tools, system, b)
                text += [(name, i) for i in range(4)]
            texts.append(text)
    tree, leaf = trees.merged()
    tree.check()
    for a in range(len(texts)):
        for b in range(a):
            assert shared_by_tree(tree, leaf, a, b) == shared_by_text(texts[a], texts[b])


# ---- sniffing and formats ----


def test_sniffing_states_a_reason(tmp_path: Path) -> None:
    assert sniff(write(tmp_path / "a.jsonl", ROW)) == (
        "mooncake",
        "its rows have input_length, output_length, hash_ids, timestamp",
    )
    bailian = write(
        tmp_path / "bailian.jsonl", {**ROW, "chat_id": 1, "parent_chat_id": -1}
    )  # the same names, in seconds and 16-token blocks
    assert sniff(bailian) == ("bailian", "its rows have chat_id, parent_chat_id, hash_ids")
    assert sniff(write(tmp_path / "b.csv", "Timestamp,Model,Request tokens,Response tokens"))[0] == "burstgpt"
    assert sniff(write(tmp_path / "c.json", session()))[0] == "weka"
    assert read(tmp_path / "a.jsonl", format="mooncake").notes[0] == "format: mooncake because it was asked for"


def test_what_cannot_be_recognised_is_refused(tmp_path: Path) -> None:
    names = ", ".join(FORMATS)
    assert complaint(tmp_path / "none.jsonl") == "FILE: no such file, expected a trace"
    assert complaint(write(tmp_path / "e.jsonl")) == "FILE: the file is empty, expected a trace"
    assert (
        complaint(write(tmp_path / "a.jsonl", ROW), format="moncake")
        == f"FILE: format 'moncake' is unknown, expected {names}; did you mean 'mooncake'?"
    )
    assert (
        complaint(tmp_path / "a.jsonl", format="mooncake", think="scaled")
        == "FILE: option 'think' does not exist for format mooncake, expected block_tokens, turns, timestamp_unit"
    )


def test_ids_on_both_sides_of_2_to_the_63_stay_apart(tmp_path):
    """Random 64-bit hashes: numpy alone would turn such a list into floats, which merge neighbours."""
    path = tmp_path / "hashes.jsonl"
    rows = [[1, 2**64 - 1], [1, 2**64 - 2], [1, 2**64 - 1]]
    path.write_text(
        "".join(
            json.dumps({"timestamp": i, "input_length": 1024, "output_length": 1, "hash_ids": ids}) + "\n"
            for i, ids in enumerate(rows)
        )
    )
    tree, leaf = (w := read(path, "mooncake")).tree, w.leaf
    assert tree.end[leaf].tolist() == [1024, 512, 1024]
    assert leaf[0] == leaf[2]
