"""Bailian and TraceLab: sessions whose turns repeat the text before them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_readers import complaint, write
from workloads.readers import read, sniff
from workloads.readers.tracelab import _tree
from workloads.reuse import infinite_cache


def chat(chat_id: int, parent: int, at: float, tokens: int, ids: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "chat_id": chat_id,
        "parent_chat_id": parent,
        "timestamp": at,
        "input_length": tokens,
        "output_length": 10,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
        **more,
    }


CONVERSATION = [
    chat(1, -1, 5.0, 40, [7, 8, 9]),
    chat(2, -1, 6.5, 32, [7, 5], type="search"),
    chat(3, 1, 9.0, 70, [7, 8, 10, 11], turn=2),  # repeats the two full blocks of chat 1; no id for its tail
    chat(4, 3, 9.5, 80, [7, 8, 10, 12, 13], turn=3),  # another text from token 48 on
    chat(5, 99, 10.0, 16, [3], turn=6),  # its parent is not in the file
]


def test_bailian_counts_seconds_sessions_and_shared_blocks(tmp_path: Path) -> None:
    workload = read(write(tmp_path / "b.jsonl", *CONVERSATION, chat(6, -1, 11, 16, [3], output_length=0)))
    workload.check()
    assert workload.arrival_s.tolist() == [0, 1.5, 4, 4.5, 5]
    assert workload.after is None
    assert workload.session_id.tolist() == [0, 1, 0, 0, 2]
    assert workload.turn.tolist() == [0, 0, 1, 2, 5]
    assert [workload.class_names[c] for c in workload.class_id] == ["text", "search", "text", "text", "text"]
    assert infinite_cache(workload, 16).hit_tokens.tolist() == [0, 16, 32, 48, 0]
    notes = "\n".join(workload.notes)
    assert "format: bailian because its rows have chat_id, parent_chat_id, hash_ids" in notes
    assert "rows read 6 = requests 5 + skipped 1 (zero output: 1)" in notes
    assert "written from the format's documentation" in notes
    assert "2 prompts end in a partial block; 1 of these have an id for it" in notes
    assert "sessions: 3, by parent_chat_id; 1 rows name a parent that is not in the file" in notes
    assert "history: 1 of 2 later turns begin with all full blocks of their parent's prompt" in notes


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (
            chat(9, -1, 1, 40, [1]),
            "FILE, row 2: hash_ids = '1 ids', expected 2 or 3 ids of 16 tokens to cover input_length = 40"
            "; no one block size explains all rows (format = 'table' without prefix_ids reads lengths and times alone:"
            " nothing is shared then)",
        ),
        (
            chat(9, -1, 1, 32, [1, 2, 3]),
            "FILE, row 2: hash_ids = '3 ids', expected 2 ids of 16 tokens to cover input_length = 32"
            "; no one block size explains all rows (format = 'table' without prefix_ids reads lengths and times alone:"
            " nothing is shared then)",
        ),
        (
            chat(9, -1, 1, 16, [-1]),
            "FILE, row 2: hash_ids = [-1], expected a list of block ids: whole numbers from 0 to 2^64 - 1, or text",
        ),
        (
            chat(9, 9, 1, 16, [1]),
            "FILE, row 2: parent_chat_id = 9, expected a chat that does not descend from this one",
        ),
        (chat(9, None, 1, 16, [1]), "FILE, row 2: parent_chat_id = None, expected a whole number or text"),
        (
            chat(9, -1, "soon", 16, [1]),
            "FILE, row 2: timestamp = 'soon', expected a finite number of at least 0, or a time like 2023-11-16"
            " 18:17:03.9799600",
        ),
        (chat(9, -1, 1, 16, [1], turn=-2), "FILE, row 2: turn = -2, expected a whole number of at least 0"),
        ({"chat_id": 9, "output_length": 1}, "FILE, row 2: no field 'parent_chat_id' among chat_id, output_length"),
    ],
)
def test_bailian_names_the_row_and_the_field(tmp_path: Path, bad: dict, line: str) -> None:
    assert complaint(write(tmp_path / "b.jsonl", CONVERSATION[0], bad)) == line


def test_bailian_refuses_chats_that_descend_from_each_other(tmp_path: Path) -> None:
    ring = [chat(7, 6, 1, 16, [1]), chat(5, 6, 1, 16, [1]), chat(6, 5, 1, 16, [1])]
    assert "expected a chain of chats that ends in a root" in complaint(write(tmp_path / "b.jsonl", *ring))


# ---- TraceLab ----


def turn(
    index: int, total: int, cached: int, output: int, events: list[tuple[str, float]], session: str = "s", **more: Any
) -> dict[str, Any]:
    timing = [
        {"event_type": kind, "timestamp": f"2026-06-01T00:{int(at) // 60:02d}:{at % 60:06.3f}Z"} for kind, at in events
    ]
    return {
        "session_id": session,
        "round_index": index,
        "input_tokens_total": total,
        "prefix_tokens": cached,
        "newly_append_tokens": total - cached,
        "output_tokens": output,
        "timing_events": timing,
        **more,
    }


SESSION = [
    turn(0, 1000, 600, 50, [("user_message", 10), ("text", 14), ("tool_call", 15)]),
    turn(
        1, 1200, 1040, 30, [("tool_result", 16), ("tool_result", 19), ("reasoning", 20), ("tool_call", 21)]
    ),  # reads 40 tokens of the answer
    turn(
        2, 1300, 500, 20, [("user_message", 51), ("text", 60), ("usage_report", 70)]
    ),  # the provider's cache had lapsed
    turn(3, 1400, 1350, 20, [("user_message", 61.5), ("text", 65)]),  # more cached than the round before had
]


def test_tracelab_rounds_share_the_beginning_of_the_round_before(tmp_path: Path) -> None:
    other = turn(0, 700, 0, 5, [("user_message", 2), ("text", 3)], session="t", provider="codex")
    workload = read(
        write(tmp_path / "t.jsonl", SESSION[1], other, SESSION[0], SESSION[0], *SESSION[2:], turn(4, 9, 0, 0, []))
    )
    workload.check()
    assert workload.prompt_tokens.tolist() == [1000, 1200, 1300, 1400, 700]
    assert workload.after.tolist() == [-1, 0, 1, 2, -1]
    assert np.nan_to_num(workload.arrival_s, nan=-1).tolist() == [8, -1, -1, -1, 0]
    assert workload.delay_s.tolist() == [
        0,
        4,
        30,
        1.5,
        0,
    ]  # the last tool result after 15 s; a report of usage is no answer
    assert infinite_cache(workload, 1).shared_tokens.tolist() == [
        0,
        1040,
        500,
        1319,
        0,
    ]  # 1,320 with the answer's last token, never computed
    notes = "\n".join(workload.notes)
    assert (
        "rows read 7 = requests 5 + skipped 2 (round of a session that is in the file already: 1, zero output: 1)"
        in notes
    )
    assert "gaps: 2 think, 1 tool, 0 without events" in notes
    assert "600 tokens that the provider's cache served to first rounds, and 30 to later ones" in notes


def test_tracelab_append_only_takes_a_longer_prompt_to_contain_the_one_before(tmp_path: Path) -> None:
    workload = read(write(tmp_path / "t.jsonl", *SESSION), append_only=True)
    assert infinite_cache(workload, 1).shared_tokens.tolist() == [0, 1049, 1229, 1319]


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (
            {"newly_append_tokens": 1},
            "FILE, row 2: input_tokens_total = 1200, expected prefix_tokens + newly_append_tokens = 1041",
        ),
        ({"output_tokens": None}, "FILE, row 2: output_tokens = None, expected a whole number from 0 to 1,000,000,000"),
        (
            {"timing_events": [1]},
            "FILE, row 2: timing_events = [1], expected a list of objects with event_type and timestamp",
        ),
        (
            {"timing_events": [{"event_type": "text", "timestamp": "noon"}]},
            "FILE, row 2: timestamp = 'noon', expected a time like 2026-06-01T05:40:20.151Z",
        ),
        (
            {"session_id": "new", "timing_events": []},
            "FILE, row 2: timing_events = [], expected an event that says when the session's first round began",
        ),
    ],
)
def test_tracelab_names_the_row_and_the_field(tmp_path: Path, bad: dict, line: str) -> None:
    assert complaint(write(tmp_path / "t.jsonl", SESSION[0], {**SESSION[1], **bad})) == line


def test_tracelab_example(data_dir: Path) -> None:
    path = data_dir / "traces/tracelab_example/round_trace.jsonl"
    rows = [json.loads(line) for line in path.open()]
    workload = read(path)
    workload.check()
    assert sniff(path)[0] == "tracelab"
    assert len(workload) == len(rows) == 19
    assert workload.class_names == ("claude", "codex")
    recorded = np.array([row["prefix_tokens"] for row in rows])
    later = np.array([row["round_index"] > 0 for row in rows])
    assert (
        infinite_cache(workload, 1).shared_tokens[later].tolist() == recorded[later].tolist()
    )  # what the provider's cache served
    assert workload.delay_s.round(3)[:3].tolist() == [0, 19.291, 12.688]
    assert not workload.delay_s[~later].any()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12), st.booleans()), min_size=1, max_size=12))
def test_the_tree_of_rounds_shares_exactly_what_the_texts_share(rows: list[tuple[int, int, bool]]) -> None:
    """Texts written out token by token: each begins with `shared` tokens of the one before."""
    texts: list[list[tuple[int, int]]] = []
    totals, shared, first = [], [], []
    for r, (total, share, fresh) in enumerate(rows):
        fresh = fresh or r == 0
        share = 0 if fresh else min(share, total, len(texts[-1]))
        texts.append([*(texts[-1][:share] if r else []), *((r, i) for i in range(share, total))])
        totals.append(total), shared.append(share), first.append(fresh)
    tree, leaf = _tree(totals, shared, first)
    tree.check()
    for a in range(len(rows)):
        path = [int(leaf[a])]
        while tree.parent[path[-1]] >= 0:
            path.append(int(tree.parent[path[-1]]))
        for b in range(a):
            node = int(leaf[b])
            while node not in path:
                node = int(tree.parent[node])
            common = next(
                (i for i, (x, y) in enumerate(zip(texts[a], texts[b], strict=False)) if x != y),
                min(len(texts[a]), len(texts[b])),
            )
            assert tree.end[node] == common
