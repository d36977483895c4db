"""Session logs of coding agents: every call once, each prompt a continuation of what it followed, no text kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.columns import Workload
from workloads.errors import InputError
from workloads.readers import read, sniff
from workloads.reuse import infinite_cache

SECRET = "xyzzy plugh"


def at(seconds: float) -> str:
    return f"2026-06-01T10:{int(seconds) // 60:02}:{seconds % 60:06.3f}Z"


def user(uuid: str, parent: Any, second: float, session: str = "S", **more: Any) -> dict[str, Any]:
    return {
        "type": "user",
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": session,
        "isSidechain": False,
        "timestamp": at(second),
        "message": {"role": "user", "content": SECRET},
        **more,
    }


def answer(
    uuid: str, parent: Any, second: float, call: str, counts: tuple[Any, ...], session: str = "S", **more: Any
) -> dict[str, Any]:
    """A line of an answer; counts: fresh, written to the cache, served by it, output."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    message = {
        "id": f"msg_{call}",
        "role": "assistant",
        "model": "claude-x",
        "content": [{"type": "text", "text": SECRET}],
        "usage": dict(zip(names, counts, strict=True)),
    }
    line = user(uuid, parent, second, session)
    return {**line, "type": "assistant", "requestId": f"req_{call}", "message": message, **more}


TALK = [
    {"type": "summary", "summary": SECRET, "leafUuid": "zz"},
    user("u1", None, 0),
    answer("a1", "u1", 3, "1", (3, 1000, 0, 2)),
    answer("a1b", "a1", 5, "1", (3, 1000, 0, 50)),  # the same answer, further on
    user("u2", "a1b", 15),
    answer("a2", "u2", 18, "2", (5, 95, 1003, 80)),
    {"type": "file-history-snapshot", "messageId": "u2", "snapshot": {}},
]


def log(path: Path, *lines: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def hits(workload: Workload) -> list[int]:
    return infinite_cache(workload, 1).hit_tokens.tolist()


def test_claude_counts_an_answer_once_and_a_prompt_continues_the_one_before(tmp_path: Path) -> None:
    path = log(tmp_path / "s.jsonl", *TALK)
    assert sniff(path)[0] == "claude-code"
    workload = read(path)
    workload.check()
    assert workload.prompt_tokens.tolist() == [1003, 1103]
    assert workload.output_tokens.tolist() == [50, 80]
    assert hits(workload) == [0, 1052]  # prompt and answer but for the answer's last token
    assert workload.after.tolist() == [-1, 0]
    assert workload.delay_s.tolist() == [0, 10]
    assert np.array_equal(workload.arrival_s, [0, np.nan], equal_nan=True)
    notes = "\n".join(workload.notes)
    assert "rows read 7 = requests 2 + skipped 5 (another line of an answer: 1, no answer of a model: 4)" in notes
    assert "1053 of 2106 prompt tokens; the provider's cache served 1003" in notes
    assert SECRET not in notes + workload.source


def test_claude_compaction_begins_a_new_prompt_on_what_the_cache_served(tmp_path: Path) -> None:
    boundary = {**user("c", None, 60), "type": "system", "subtype": "compact_boundary", "logicalParentUuid": "a2"}
    workload = read(
        log(tmp_path / "s.jsonl", *TALK, boundary, user("u3", "c", 60), answer("a3", "u3", 65, "3", (5, 300, 900, 7)))
    )
    assert hits(workload) == [0, 1052, 900]
    notes = "\n".join(workload.notes)
    assert "compactions: 1" in notes
    assert "0 prompts are shorter than what they follow, 0 were served less" in notes
    assert "and 1 begin anew within their session" in notes


def test_claude_what_a_client_changed_is_told_from_what_a_cache_forgot(tmp_path: Path) -> None:
    def after(gap_s: float) -> list[int]:
        later = [user("u3", "a2", 18 + gap_s), answer("a3", "u3", 400, "3", (5, 1000, 600, 9))]  # 1,098 were left there
        return hits(read(log(tmp_path / "s.jsonl", *TALK, *later)))

    assert after(299) == [0, 1052, 600]
    assert after(301) == [0, 1052, 1182]


def test_claude_a_prompt_shorter_than_what_it_follows_shares_what_the_cache_served(tmp_path: Path) -> None:
    shorter = answer("a3", "u3", 65, "3", (100, 0, 1050, 9))
    then = answer("a4", "a3", 70, "4", (1, 150, 1050, 9))
    workload = read(log(tmp_path / "s.jsonl", *TALK, user("u3", "a2", 60), shorter, then))
    assert hits(workload)[2:] == [1050, 1150 + 9 - 1]
    assert "rewritten: 1 prompts are shorter than what they follow, 0 were served less" in "\n".join(workload.notes)


def test_claude_a_rewound_prompt_branches_where_it_left(tmp_path: Path) -> None:
    other = [user("v2", "a1b", 100), answer("b2", "v2", 103, "b", (400, 100, 1003, 5))]
    workload = read(log(tmp_path / "s.jsonl", *TALK, *other))
    assert hits(workload)[2] == 1053  # all of the first prompt and answer, nothing of what was said after it before
    assert workload.delay_s.tolist() == [0, 10, 82]


def test_claude_sub_agents_are_sessions_of_their_own(tmp_path: Path) -> None:
    inside = [
        user("s1", None, 20, isSidechain=True),
        answer("s2", "s1", 25, "s", (5, 2000, 700, 8), isSidechain=True),
        user("t1", "a2", 30, isSidechain=True),  # names the line that called it
        answer("t2", "t1", 33, "t", (5, 2000, 700, 8), isSidechain=True),
    ]
    log(tmp_path / "p" / "S.jsonl", *TALK, *inside)
    log(
        tmp_path / "p" / "S" / "subagents" / "agent-x.jsonl",
        user("x1", None, 40, isSidechain=True, agentId="x"),
        answer("x2", "x1", 44, "x", (5, 2000, 700, 8), isSidechain=True, agentId="x"),
    )
    (tmp_path / "p" / "sessions-index.json").write_text("{}")
    log(tmp_path / "p" / "A.jsonl", {"display": SECRET, "timestamp": 1780000000})
    path = tmp_path / "p"
    assert sniff(path) == ("claude-code", "it is a folder of Claude Code logs")
    workload = read(path)
    assert sorted(np.bincount(workload.session_id).tolist()) == [1, 1, 1, 2]
    names = [workload.class_names[c] for c in workload.class_id]
    assert sorted(names) == ["main"] * 2 + ["sub-agent"] * 3
    assert hits(workload).count(0) == 4  # each first call
    assert "the cache served 2100 of their tokens, text of other sessions" in "\n".join(workload.notes)
    shared = read(path, share_tools=True)
    assert sorted(hits(shared)) == [0, 0, 700, 700, 1052]
    assert "taken for one text of each model and kind of agent" in "\n".join(shared.notes)
    cold = answer(
        "y2", "y1", 44, "y", (5, 2700, 0, 8), "Y", isSidechain=True
    )  # the first of all: it was served nothing
    log(path / "Y.jsonl", user("y1", None, 40, "Y", isSidechain=True), cold)
    assert sorted(hits(read(path, share_tools=True))) == [0, 0, 700, 700, 700, 1052]


def test_claude_a_resumed_session_brings_copies_and_goes_on(tmp_path: Path) -> None:
    copies = [{**line, "sessionId": "T"} if "sessionId" in line else line for line in TALK]
    log(tmp_path / "a.jsonl", *TALK)
    log(tmp_path / "b.jsonl", *copies, user("u9", "a2", 600, "T"), answer("a9", "u9", 603, "9", (7, 60, 1183, 4), "T"))
    workload = read(tmp_path)
    assert workload.prompt_tokens.tolist() == [1003, 1103, 1250]
    assert hits(workload) == [0, 1052, 1182]
    assert workload.session_id.tolist() == [0, 0, 1]
    assert "another line of an answer: 4" in workload.notes[1]


def test_claude_answers_without_tokens_and_parents_that_are_not_there(tmp_path: Path) -> None:
    synthetic = answer("e", "u1", 1, "e", (0, 0, 0, 0))
    synthetic["message"]["model"] = "<synthetic>"
    bare = answer("f", "u1", 1, "f", (1, 1, 1, 1))
    del bare["message"]["usage"]
    lines = [
        user("u1", None, 0),
        synthetic,
        {**answer("g", "u1", 1, "g", (5, 5, 5, 5)), "isApiErrorMessage": True},
        bare,
        {**answer("h", "u1", 1, "h", (5, 5, 5, 5)), "message": None},
        answer("z", "u1", 2, "z", (9, 0, 0, 0)),
        answer("a", "z", 3, "a", (100, 0, 0, 7)),
        answer("b", "nobody", 4, "b", (100, 0, 50, 7)),
        answer("c", "c", 5, "c", (120, 0, 60, 7)),  # its own parent
        answer("d", 7, 6, "d", (130, None, 70, 7)),
    ]
    workload = read(log(tmp_path / "s.jsonl", *lines))
    workload.check()
    assert workload.prompt_tokens.tolist() == [100, 150, 180, 200]
    assert hits(workload) == [0, 50, 60, 70]
    notes = "\n".join(workload.notes)
    for reason in ("an error that the client wrote itself: 2", "an answer without usage: 2", "zero output: 1"):
        assert reason in notes, notes
    assert "parents: 3 lines follow a line that is not before them in the files" in notes


# ---- Codex ----


def event(second: float, kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": at(second), "type": kind, "payload": payload}


def counts(prompt: int, cached: int, output: int) -> dict[str, int]:
    return {
        "input_tokens": prompt,
        "cached_input_tokens": cached,
        "output_tokens": output,
        "total_tokens": prompt + output,
    }


def tokens(second: float, total: tuple[int, int, int], last: tuple[int, int, int] | None) -> dict[str, Any]:
    info = {"total_token_usage": counts(*total)} | ({"last_token_usage": counts(*last)} if last else {})
    return event(second, "event_msg", type="token_count", info=info, rate_limits={"primary": None})


ROLLOUT = [
    event(0, "session_meta", id="A", cwd="/home", cli_version="1"),
    event(1, "event_msg", type="token_count", info=None),
    event(2, "response_item", type="message", role="user", content=[{"type": "input_text", "text": SECRET}]),
    event(4, "response_item", type="function_call", name="shell", arguments="{}"),
    event(6, "response_item", type="function_call_output", output=SECRET),
    tokens(6.5, (5000, 0, 100), (5000, 0, 100)),
    tokens(7, (5000, 0, 100), (5000, 0, 100)),  # written again
    event(9, "response_item", type="message", role="assistant", content=[{"type": "output_text", "text": SECRET}]),
    tokens(9, (10_300, 4992, 150), (5300, 4992, 50)),
]


def test_codex_counts_a_call_once_and_a_prompt_continues_the_one_before(tmp_path: Path) -> None:
    path = log(tmp_path / "rollout-1.jsonl", *ROLLOUT)
    assert sniff(path) == ("codex", "its lines are those of a Codex session")
    workload = read(path)
    workload.check()
    assert workload.prompt_tokens.tolist() == [5000, 5300]
    assert workload.output_tokens.tolist() == [100, 50]
    assert hits(workload) == [0, 5099]
    assert workload.delay_s.tolist() == [0, 2]  # the tool's result came 2 s after its call was written
    notes = "\n".join(workload.notes)
    assert "a token_count that repeats the running total: 1" in notes
    assert SECRET not in notes + workload.source
    totals = [tokens(6, (5000, 0, 100), None), tokens(9, (10_300, 4992, 150), None)]
    assert read(log(tmp_path / "t.jsonl", ROLLOUT[0], *totals)).prompt_tokens.tolist() == [5000, 5300]


def test_codex_compaction_and_a_prompt_that_shrinks(tmp_path: Path) -> None:
    later = [
        tokens(20, (14_300, 6992, 170), (4000, 2000, 20)),  # shorter than the 5,350 before it
        event(30, "compacted", message=SECRET, replacement_history=[]),
        tokens(31, (14_300, 6992, 170), (0, 0, 0)),
        tokens(40, (16_300, 8016, 180), (2000, 1024, 10)),
    ]
    workload = read(log(tmp_path / "r.jsonl", *ROLLOUT, *later))
    assert workload.prompt_tokens.tolist() == [5000, 5300, 4000, 2000]
    assert hits(workload) == [0, 5099, 2000, 1024]
    notes = "\n".join(workload.notes)
    assert "compactions: 1" in notes
    assert "rewritten: 1 prompts are shorter than what they follow, 0 were served less" in notes
    assert "and 1 begin anew" in notes


def test_codex_a_part_that_was_served_says_where_a_prompt_changed(tmp_path: Path) -> None:
    def then(cached: int, second: float = 20) -> int:
        asked = event(second, "response_item", type="message", role="user", content=[])
        last = tokens(second + 2, (15_900, 4992 + cached, 160), (5600, cached, 10))
        return hits(read(log(tmp_path / "r.jsonl", *ROLLOUT, asked, last)))[2]

    assert then(5248) == 5349  # all steps of 128 of the 5,300 before it
    assert then(5120) == 5120
    assert then(0) == then(5120, second=400) == 5349


def test_codex_a_fork_replays_its_parent_and_goes_on(tmp_path: Path) -> None:
    fork = [
        event(600, "session_meta", id="B", forked_from_id="A", source={"subagent": {"thread_spawn": {}}}),
        ROLLOUT[0],
        {**ROLLOUT[5], "timestamp": at(600.1)},
        {**ROLLOUT[8], "timestamp": at(600.1)},
        event(610, "response_item", type="message", role="user", content=[]),
        event(612, "response_item", type="message", role="assistant", content=[]),
        tokens(612, (16_000, 10_112, 170), (5700, 5120, 20)),
    ]
    log(tmp_path / "2026" / "06" / "rollout-1.jsonl", *ROLLOUT)
    log(tmp_path / "2026" / "06" / "rollout-2.jsonl", *fork)
    workload = read(tmp_path / "2026")
    assert workload.prompt_tokens.tolist() == [5000, 5300, 5700]
    assert workload.session_id.tolist() == [0, 0, 1]
    assert hits(workload) == [0, 5099, 5349]
    assert [workload.class_names[c] for c in workload.class_id] == ["main", "main", "sub-agent"]
    alone = read(log(tmp_path / "alone" / "b.jsonl", *fork))
    assert alone.prompt_tokens.tolist() == [5700]
    assert "a call that a fork replays: 2" in "\n".join(alone.notes)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({**TALK[1], "timestamp": SECRET}, "timestamp = 'a text', expected a time like"),
        (answer("a9", "a2", 70, "9", (-1, 1, 1, 1)), "input_tokens = -1, expected a whole number from 0 to"),
        (answer("a9", "a2", 70, "9", (1.5, 1, 1, 1)), "input_tokens = 1.5, expected a whole number"),
        (answer("a9", "a2", 70, "9", (1, 1, 1, 10**12)), "output_tokens = 1000000000000, expected a whole number"),
        (SECRET, "(its text is not shown), expected a JSON object"),
    ],
)  # fmt: skip
def test_what_is_no_line_of_a_log_is_one_line_without_its_text(tmp_path: Path, line: Any, complaint: str) -> None:
    with pytest.raises(InputError) as raised:
        read(log(tmp_path / "s.jsonl", *TALK, line))
    assert complaint in str(raised.value)
    assert "s.jsonl, row 8" in str(raised.value)
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_gap_of_a_century_is_refused(tmp_path: Path) -> None:
    late = {**user("u3", "a2", 60), "timestamp": "2126-06-01T10:00:00Z"}
    with pytest.raises(InputError, match=r"s.jsonl, row 9: timestamp = 'a text', expected at most 1e\+09 s"):
        read(log(tmp_path / "s.jsonl", *TALK, late, answer("a3", "u3", 70, "3", (1, 1, 1103, 1))))


def test_logs_without_times_and_folders_without_logs(tmp_path: Path) -> None:
    stream = [
        {"type": "user", "session_id": "S", "parent_tool_use_id": None, "message": {"role": "user", "content": "a"}},
        {k: v for k, v in answer("", None, 0, "1", (10, 0, 0, 5)).items() if k in ("type", "message")}
        | {"session_id": "S"},
        {k: v for k, v in answer("", None, 0, "2", (30, 0, 0, 5)).items() if k in ("type", "message")}
        | {"session_id": "S"},
    ]
    workload = read(log(tmp_path / "s.jsonl", *stream))
    assert hits(workload) == [0, 14]
    assert np.isnan(workload.arrival_s).all()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "x.jsonl").touch()
    with pytest.raises(InputError, match="none of which is a session of a trace"):
        read(tmp_path / "empty")
    with pytest.raises(InputError, match=r"no session logs \(\*.jsonl\), expected at least one"):
        read(tmp_path / "empty", format="codex")
