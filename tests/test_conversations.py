"""Conversations with text: what they share is counted to the token, against the tokens themselves; no word is kept."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import NO_TOKENIZERS
from workloads.branches import ROOT, Branches
from workloads.columns import Workload
from workloads.config import WorkloadConfig
from workloads.errors import InputError
from workloads.load import load
from workloads.readers import conversation, options_of, read, sniff
from workloads.reuse import infinite_cache
from workloads.text import Estimate, Messages, Tokens, common_prefix

WORDS = ("a", "b", "bb", "ba", "a b", "b a b a", "é", "a b a b a b a b", "")


class Toy:
    """A tokenizer: a token is a word, its id the characters of it."""

    class Encoded(NamedTuple):
        ids: list[int]

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoded:
        assert not add_special_tokens
        return self.Encoded([sum(map(ord, word)) for word in sequence.split()])


def chunks(text: str, size: int = 4) -> list[str]:
    """The tokens that an estimate of `size` characters each stands for."""
    return [text[i : i + size] for i in range(0, len(text), size)]


def written(path: Path, rows: Any, lines: bool = True) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) if lines else json.dumps(rows))
    return path


def chat(*said: str, **more: Any) -> dict[str, Any]:
    """A row; texts in turn of user and assistant, the first of the system where it begins with `!`."""
    roles = (["system"] if said[0].startswith("!") else []) + ["user", "assistant"] * len(said)
    return {"messages": [{"role": r, "content": s} for r, s in zip(roles, said, strict=False)], **more}


def timeless(path: Path, **options: Any) -> Workload:
    workload = read(path, **options)
    workload.arrival_s[workload.after < 0] = 0
    workload.check()
    return workload


# ---- exactness: against the tokens ----


def token_rows(rows: list[dict[str, Any]], tokens_of: Any, markers: int) -> list[tuple[list[Any], int]]:
    """(tokens of prompt and answer, length of the prompt) of every request, written out."""
    found = []
    for row in rows:
        text: list[Any] = []
        for i, message in enumerate(row["messages"]):
            body = tokens_of(message["content"])
            text += [(message["role"], k) for k in range(markers)]
            if message["role"] == "assistant" and i and body:
                found.append((text + body, len(text)))
            text = text + body
    return found


def reusable(requests: list[tuple[list[Any], int]], block: int) -> list[int]:
    """Tokens that a cache without end has of each prompt: the longest common prefix with an earlier request, whose last
    token is never computed; whole blocks, and never all of the prompt."""
    hits = []
    for i, (path, prompt) in enumerate(requests):
        most = 0
        for other, _ in requests[:i]:
            same = next(
                (k for k, (x, y) in enumerate(zip(path, other, strict=False)) if x != y), min(len(path), len(other))
            )
            most = max(most, min(same, len(other) - 1))
        hits.append(min(most, prompt - 1) // block * block)
    return hits


texts = st.lists(st.sampled_from(WORDS), min_size=0, max_size=4).map(" ".join)
said = st.tuples(st.sampled_from(["user", "assistant", "tool"]), texts).map(lambda m: {"role": m[0], "content": m[1]})
conversations = st.lists(
    st.lists(said, min_size=1, max_size=6).map(
        lambda messages: {"messages": [*messages, {"role": "assistant", "content": "a"}]}
    ),
    min_size=1,
    max_size=8,
)


def saying(*texts: str) -> list[dict[str, Any]]:
    return [{"messages": [{"role": "user", "content": t}, {"role": "assistant", "content": "a"}]} for t in texts]


@settings(max_examples=150, deadline=None)
@given(conversations, st.sampled_from([1, 4]), st.sampled_from([1, 2, 3, 16]), st.booleans())
@example(saying("", " "), 1, 1, False)  # two texts of no tokens
@example(saying("\0\0\0b", "b"), 1, 1, False)  # the first text's bytes are the second one's token ids
def test_reuse_is_the_longest_common_prefix_of_the_tokens(
    rows: list[dict[str, Any]], markers: int, block: int, estimate: bool
) -> None:
    toy = Toy()
    tokens_of = chunks if estimate else lambda text: toy.encode(text, add_special_tokens=False).ids
    requests = token_rows(rows, tokens_of, markers)
    talk = conversation.Talk(
        conversation.PrivateRows(__file__), Messages(Estimate(4) if estimate else Tokens(toy, "toy"))
    )
    for row in rows:
        talk.add(row)
    if not requests:
        return
    workload = talk.workload(markers)
    assert workload.prompt_tokens.tolist() == [prompt for _, prompt in requests]
    assert workload.output_tokens.tolist() == [len(path) - prompt for path, prompt in requests]
    assert infinite_cache(workload, block).hit_tokens.tolist() == reusable(requests, block)


def test_branches_are_cut_where_they_are_left() -> None:
    texts = Branches()
    a = texts.add(ROOT, 0, 10)
    b = texts.add(a, 4, 9)
    c = texts.add(b, 4, 8)  # at 4 the path of b is still a
    d = texts.add(b, 6, 6)  # no token of its own
    tree, leaf = texts.tree([a, b, c, d, a])
    tree.check()
    assert tree.end[leaf].tolist() == [10, 6, 4, 6, 10]
    assert (texts._on[c], tree.parent.tolist()) == (a, [-1, 0, 1, 1])
    with pytest.raises(ValueError, match="expected a depth on the path"):
        texts.add(a, 11, 12)
    with pytest.raises(ValueError, match="expected at least 5"):
        texts.add(a, 5, 4)


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_the_common_prefix_of_bytes(head: bytes, a: bytes, b: bytes) -> None:
    a, b = head + a, head + b
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b) == same


def test_a_character_that_differs_in_its_last_byte_is_no_shared_one() -> None:
    messages = Messages(Estimate(1.0))
    ends = [
        messages.add(ROOT, "user", text, 0) for text in ("aé", "aê", "a€", "a₭")
    ]  # é ê and € ₭ begin with the same bytes
    branches, text = messages.branches(message_tokens=1)
    tree, leaf = branches.tree([text[end] for end in ends])
    assert tree.end[leaf].tolist() == [2, 2, 2, 2]


# ---- the files ----

SORT = [
    {"from": "human", "value": "How do I sort?"},
    {"from": "gpt", "value": "Use sort()."},
    {"from": "human", "value": "Backwards?"},
    {"from": "gpt", "value": "reverse=True"},
]


@pytest.mark.parametrize("lines", [True, False])
def test_sharegpt_as_lines_and_as_one_array(tmp_path: Path, lines: bool) -> None:
    rows = [
        {"id": "x_0", "conversations": SORT},
        {"id": "y_0", "conversations": SORT[:3]},
        {"id": "z", "conversations": []},
    ]
    path = written(tmp_path / "sharegpt.json", rows, lines)
    assert sniff(path) == ("sharegpt", "its rows have conversations: lists of messages")
    workload = timeless(path)
    assert workload.prompt_tokens.tolist() == [4 + 4 + 4, 12 + 3 + 4 + 3 + 4, 12]
    assert workload.output_tokens.tolist() == [3, 3, 3]
    assert workload.after.tolist() == [-1, 0, -1]
    assert workload.session_id.tolist() == [0, 0, 1]
    assert infinite_cache(workload, 1).hit_tokens.tolist() == [0, 14, 11]
    notes = "\n".join(workload.notes)
    assert "rows read 4 = requests 3 + skipped 1 (no messages: 1)" in notes
    assert "conversations: 2 with 7 messages" in notes
    assert "1 end unanswered" in notes
    assert "tokens: estimated as characters / 4 (chars_per_token" in notes
    first = timeless(path, first_turn_only=True)
    assert first.prompt_tokens.tolist() == [12, 12]
    assert first.turn.tolist() == [0, 0]


def test_spellings_of_one_conversation_are_one_text(tmp_path: Path) -> None:
    said = ["How do I sort?", "Use sort()."]
    rows = [
        chat(*said),
        {"conversations": [{"from": "human", "value": said[0]}, {"from": "gpt", "value": said[1]}]},
        {"conversation": [{"role": "user", "content": said[0]}, {"role": "assistant", "content": said[1]}]},
        {"items": [{"from": "human", "value": said[0]}, {"from": "chatgpt", "value": said[1]}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": said[0]}]},
                {"role": "model", "content": said[1]},
            ]
        },
        {
            "body": {"messages": [{"role": "user", "content": said[0]}]},
            "response": {"body": {"choices": [{"message": {"content": said[1]}}]}},
        },
        {"messages": [{"role": "user", "content": said[0]}], "response": said[1]},
        {"prompt": said[0], "completion": said[1]},
        {"prompt": [{"role": "user", "content": said[0]}], "completion": [{"role": "assistant", "content": said[1]}]},
        {
            "request": {"messages": [{"role": "user", "content": said[0]}]},
            "choices": [{"message": {"role": "assistant", "content": said[1]}}],
        },
    ]
    workload = timeless(written(tmp_path / "t.jsonl", rows), format="messages")
    assert workload.prompt_tokens.tolist() == [12] * 10
    assert workload.output_tokens.tolist() == [3] * 10
    assert infinite_cache(workload, 1).hit_tokens.tolist() == [0] + [11] * 9


def test_a_file_that_is_one_conversation(tmp_path: Path) -> None:
    path = written(tmp_path / "one.json", chat("!be brief", "a", "b", "c", "d")["messages"], lines=False)
    assert sniff(path)[0] == "messages"
    workload = timeless(path)
    assert (workload.turn.tolist(), workload.prompt_tokens.tolist()) == ([0, 1], [7 + 5 + 4, 7 + 5 + 5 + 5 + 4])
    assert sniff(written(tmp_path / "two.json", SORT, lines=False))[0] == "sharegpt"
    mixed = [{**m, "session_id": s} for m in chat("a", "b")["messages"] for s in ("x", "y")]
    assert timeless(written(tmp_path / "mixed.jsonl", mixed)).session_id.tolist() == [0, 1]


def test_exports_of_chatgpt_and_claude(tmp_path: Path) -> None:
    def node(role: str, text: str, parent: str | None, at: float) -> dict[str, Any]:
        content = {"content_type": "text", "parts": [text]}
        return {"parent": parent, "message": {"author": {"role": role}, "create_time": at, "content": content}}

    nodes = {
        "root": {"parent": None, "message": None},
        "u": node("user", "How do I sort?", "root", 1_780_000_000.5),
        "left": node("assistant", "No.", "u", 1_780_000_001.0),
        "a": node("assistant", "Use sort().", "u", 1_780_000_002.0),
        "v": node("user", "Backwards?", "a", 1_780_000_009.0),
        "b": node("assistant", "reverse=True", "v", 1_780_000_010.0),
    }
    chatgpt = [{"title": SECRET, "mapping": nodes, "current_node": "b"}]
    round_and_round = [{"mapping": {**nodes, "root": {"parent": "b"}}, "current_node": "b"}]
    for rows in (chatgpt, round_and_round):
        workload = read(written(tmp_path / "conversations.json", rows, lines=False))
        assert workload.prompt_tokens.tolist() == [12, 26]
        assert workload.delay_s.tolist() == [0, 7]
    said = [{"sender": "human", "text": "How do I sort?"}, {"sender": "assistant", "text": "Use sort()."}]
    workload = timeless(written(tmp_path / "claude.json", [{"uuid": "x", "chat_messages": said}], lines=False))
    assert workload.prompt_tokens.tolist() == [12]


def test_a_batch_row_is_one_request_and_its_history_is_not(tmp_path: Path) -> None:
    def row(name: str, **more: Any) -> dict[str, Any]:
        said = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
        ]
        body = {"model": "m", "messages": [*said, {"role": "user", "content": "c"}], **more}
        return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}

    path = written(tmp_path / "batch.jsonl", [row("1", max_tokens=50), row("2", max_completion_tokens=7), row("3")])
    assert sniff(path)[0] == "messages"
    workload = timeless(path)
    assert workload.prompt_tokens.tolist() == [7 + 5 + 5 + 5 + 4] * 2
    assert workload.output_tokens.tolist() == [50, 7]
    assert workload.after.tolist() == [-1, -1]
    notes = "\n".join(workload.notes)
    assert "no answer, and no max_tokens: set answer_tokens, the output tokens of such a request: 1" in notes
    assert "their output is their max_tokens, an upper bound" in notes
    assert timeless(path, answer_tokens=9).output_tokens.tolist() == [9, 9, 9]


def test_prompts_with_the_number_of_tokens_to_answer(tmp_path: Path) -> None:
    path = written(tmp_path / "custom.jsonl", [{"prompt": "How do I sort?", "output_tokens": n} for n in (10, 20)])
    assert sniff(path) == ("messages", "its rows have prompt and output_tokens")
    workload = timeless(path)
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([12, 12], [10, 20])


def test_counts_of_the_file_are_taken_and_positions_in_the_text_fit_them(tmp_path: Path) -> None:
    def row(question: str, prompt: int, **more: Any) -> dict[str, Any]:
        said = [{"role": "system", "content": "s" * 100}, {"role": "user", "content": question}]
        usage = {"prompt_tokens": prompt, "completion_tokens": 10}
        return {"messages": said, "response": {"choices": [{"message": {"content": "a" * 20}}], "usage": usage}, **more}

    rows = [row("x" * 60, 92), row("y" * 60, 92), {**row("z", 9), "error": "overloaded"}]
    workload = timeless(written(tmp_path / "t.jsonl", rows))
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([92, 92], [10, 10])
    assert infinite_cache(workload, 1).hit_tokens.tolist() == [0, 4 + 50 + 4]  # 180 characters are 90 tokens
    notes = "\n".join(workload.notes)
    assert "the file's own counts for 2 of 2 requests (usage)" in notes
    assert "estimated as characters / 2 (which fits the file's own counts)" in notes
    assert "failed: 1" in notes
    short = timeless(written(tmp_path / "u.jsonl", [row("x" * 60, 40), row("x" * 60, 140), row("x" * 60, 96)]))
    assert short.prompt_tokens.tolist() == [40, 140, 96]  # a count below what its text fits cuts it there
    assert infinite_cache(short, 1).hit_tokens.tolist() == [0, 49, 95]


def test_tools_come_first_calls_are_text_and_images_tell_prompts_apart(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "find"}}]
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"x":1}'}}

    def row(picture: str, call_id: str) -> dict[str, Any]:
        return {
            "tools": tools,
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": picture}}],
                },
                {"role": "assistant", "content": None, "tool_calls": [{**call, "id": call_id}]},
                {"role": "tool", "tool_call_id": call_id, "content": "found"},
                {"role": "assistant", "content": "ok", "reasoning_content": "think " * 4},
                {"role": "user", "content": "more"},
                {"role": "assistant", "content": "ok"},
            ],
        }

    path = written(tmp_path / "t.jsonl", [row("data:1", "p"), row("data:1", "q"), row("data:2", "r")])
    workload = timeless(path)
    tools_tokens = 4 + -(-len(json.dumps(tools, separators=(",", ":"))) // 4)
    assert workload.prompt_tokens[0] == tools_tokens + 4 + -(-(4 + 18) // 4) + 4
    assert workload.output_tokens.tolist() == [3, 7, 1] * 3  # find{"x":1}; the reasoning is output, and no history
    assert workload.prompt_tokens[2] == workload.prompt_tokens[1] + 1 + 4 + 1 + 4
    hits = infinite_cache(workload, 1).hit_tokens
    assert hits[3:6].tolist() == (workload.prompt_tokens[3:6] - 1).tolist()  # the same but for the ids of calls
    assert tools_tokens + 4 < hits[6] < tools_tokens + 4 + 3  # up to the picture
    layers = [workload.layer_names[code] for code in workload.tree.layer]
    assert {"tools", "user", "assistant", "tool"} <= set(layers)
    notes = "\n".join(workload.notes)
    assert "images and files: 3, told apart by digest, but their own tokens are not counted" in notes
    assert "tools: 3 calls (name and arguments are text of the answer), 3 results" in notes
    assert "reasoning: 3 answers have it" in notes


def test_times_of_rows_and_of_messages(tmp_path: Path) -> None:
    def timed(start: str, think_s: int) -> dict[str, Any]:
        row = chat("a", "b", "c", "d")
        for message, second in zip(row["messages"], (0, 2, 2 + think_s, 9), strict=True):
            message["timestamp"] = f"{start}:{second:02}Z"
        return row

    workload = read(written(tmp_path / "m.jsonl", [timed("2026-06-01T10:00", 3), timed("2026-06-01T10:05", 4)]))
    assert np.array_equal(workload.arrival_s, [0, np.nan, 300, np.nan], equal_nan=True)
    assert workload.delay_s.tolist() == [0, 3, 0, 4]
    rows = [chat("a", "b", created=1_780_000_000), chat("a", "b", created=1_780_000_007)]
    assert read(written(tmp_path / "r.jsonl", rows)).arrival_s.tolist() == [0, 7]
    some = read(written(tmp_path / "s.jsonl", [*rows, chat("a", "b")]))
    assert np.isnan(some.arrival_s).all()
    assert "times: 1 of 3 conversations have none, so none is used" in "\n".join(some.notes)


# ---- what is counted, and by what ----


def test_keys_of_the_scenario_reach_the_readers(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", [chat("x" * 30, "y" * 30)])
    config = WorkloadConfig(
        trace=str(path), chars_per_token=3.0, message_tokens=2, loop="concurrency", concurrency=1, first_turn_only=True
    )
    workload = load(config)
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([14], [10])
    assert {"tokenizer", "chars_per_token", "message_tokens", "answer_tokens", "timestamp_unit"} <= set(
        options_of("messages")
    )
    with pytest.raises(InputError, match=r"\[workload\] chars_per_token = 3.0, expected"):
        load(
            WorkloadConfig(
                trace=str(
                    written(
                        tmp_path / "m.jsonl", [{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}]
                    )
                ),
                chars_per_token=3.0,
            )
        )


def test_a_tokenizer_that_is_not_there_or_none(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", [chat("a", "b")])
    with pytest.raises(InputError, match=r"no such file, expected a local tokenizer\.json"):
        read(path, tokenizer=str(tmp_path / "nothing.json"))
    pytest.importorskip("tokenizers", reason=NO_TOKENIZERS)
    with pytest.raises(InputError, match="not a tokenizer"):
        read(path, tokenizer=str(path))


def test_a_tokenizer_of_the_users(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason=NO_TOKENIZERS)
    vocabulary = {word: i for i, word in enumerate(["?", "how", "do", "I", "sort", "search", "well"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_truncation(2)
    made.enable_padding(length=16)
    made.save(str(tmp_path / "tokenizer.json"))
    rows = [chat("how do I sort", "well well"), chat("how do I search \ud800", "well")]
    workload = timeless(written(tmp_path / "t.jsonl", rows), tokenizer=str(tmp_path), message_tokens=1)
    assert workload.prompt_tokens.tolist() == [6, 7]
    assert workload.output_tokens.tolist() == [2, 1]
    assert infinite_cache(workload, 1).hit_tokens.tolist() == [0, 4]
    assert "tokens: counted by the tokenizer tokenizer.json, message by message" in "\n".join(workload.notes)


# ---- hostile ----

SECRET = "xyzzy plugh"


def says(**message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", **message}]}


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (says(content=5), "row 2: messages[0].content = 5, expected text, a list of parts, or null"),
        (says(content=[7]), "row 2: messages[0].content = 7, expected parts that are text or objects"),
        (says(content=SECRET, role=None), "row 2: messages[0].role = None, expected text like user or assistant"),
        (says(content="a", role=[SECRET]), "row 2: messages[0].role = 'a list', expected text like user"),
        (says(role="assistant", tool_calls=SECRET), "row 2: messages[0].tool_calls = 'a text', expected a list"),
        ({**says(content=SECRET), "max_tokens": -1}, "row 2: max_tokens = -1, expected a whole number from 1"),
        ('{"messages": [{"role": "user", "content": "' + SECRET, "row 2: not a whole JSON object"),
        ('"' + SECRET + '"', "row 2 (its text is not shown), expected a JSON object"),
        ("[" * 100_000, "row 2: not a whole JSON object"),
    ],
)
def test_what_is_no_conversation_is_one_line_without_its_text(tmp_path: Path, row: Any, line: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(chat("a", "b")) + "\n" + (row if isinstance(row, str) else json.dumps(row)) + "\n")
    with pytest.raises(InputError) as raised:
        read(path)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)
    assert SECRET not in str(raised.value)


def test_odd_rows_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    deep: Any = SECRET
    for _ in range(20):
        deep = [{"type": "tool_result", "content": deep}]
    rows = [
        chat("a", "b", "c"),
        chat("a", ""),
        {
            "messages": [
                {"role": "assistant", "content": "first"},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
            ]
        },
        {"messages": None},
        {"messages": []},
        {"other": 1},
        {"messages": [{"role": "martian", "content": SECRET}, {"role": "assistant", "content": "\ud800é"}]},
        {
            "messages": [
                {"role": "user", "content": deep},
                {"role": "assistant", "content": [None, {"type": "text", "text": None}, "b"]},
            ]
        },
    ]
    workload = timeless(written(tmp_path / "t.jsonl", rows))
    assert len(workload) == 4
    notes = "\n".join(workload.notes)
    for reason in (
        "an empty answer: 1",
        "an answer with nothing before it: 1",
        "no messages: 1",
        "no list of messages: 2",
        "roles: 1 messages of unknown roles",
    ):
        assert reason in notes, notes
    assert SECRET not in notes + workload.source


def test_nothing_that_was_said_is_kept(tmp_path: Path) -> None:
    words = [f"word{i:03}" for i in range(50)]
    rng = random.Random(1)
    rows = [chat(*(" ".join(rng.choices(words, k=20)) for _ in range(6))) for _ in range(20)]
    workload = timeless(written(tmp_path / "t.jsonl", rows))
    kept = repr([value for value in vars(workload).values() if not isinstance(value, np.ndarray)])
    assert "word" not in kept
    assert all(
        a.dtype.kind in "iuf"
        for a in (*vars(workload.tree).values(), *vars(workload).values())
        if isinstance(a, np.ndarray)
    )
