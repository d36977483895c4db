"""kvcast replay: what is written for benchmarks to send, and reads back as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcast.cli import main
from workloads import replay
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.prefix_tree import from_token_ids
from workloads.prompt_ids import LOWEST_ID, Prompts, Words, repeated_answers
from workloads.readers import read
from workloads.reuse import infinite_cache

TARGET = replay.Target("m")


def workload_of(paths: list[list[int]], outputs: list[int], spaces: list[int] | None = None, **columns) -> Workload:
    """Requests whose path is prompt + output tokens."""
    tree, leaf = from_token_ids(paths, spaces)
    output, total = np.array(outputs, np.int64), np.array([len(p) for p in paths], np.int64)
    columns.setdefault("arrival_s", np.arange(len(paths), dtype=float))
    return Workload(tree=tree, leaf=leaf, prompt_tokens=total - output, output_tokens=output, **columns)


rows = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=2, max_size=12), st.integers(1, 8), st.integers(0, 1)),
    min_size=1,
    max_size=8,
).map(lambda found: [(path, min(output, len(path) - 1), space) for path, output, space in found])


def built(found, **columns) -> Workload:
    return workload_of([p for p, *_ in found], [o for _, o, _ in found], [s for *_, s in found], **columns)


def common(a: list, b: list) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=300, deadline=None)
@given(rows, st.integers(16, 40))
def test_made_up_prompts_part_where_the_real_ones_do(found, symbols: int) -> None:
    prompts = Prompts(built(found), symbols)
    made = [prompts.of(r).tolist() for r in range(len(found))]
    real = [[space, *path[: len(path) - output]] for path, output, space in found]  # the space is in front of all text
    assert [len(p) for p in made] == [len(p) - 1 for p in real]
    assert prompts.crowded == 0
    for i, a in enumerate(real):
        for j, b in enumerate(real[:i]):
            assert common(made[i], made[j]) == max(common(a, b) - 1, 0)
    assert max(map(max, made)) < symbols


def test_what_follows_one_text_beyond_the_symbols_is_counted_and_parts_a_token_later() -> None:
    workload = workload_of([[7, i, 5, 5, 5] for i in range(9)], [1] * 9)
    prompts = Prompts(workload, 3)
    made = [prompts.of(r).tolist() for r in range(9)]
    assert prompts.crowded == 6
    assert sorted(m[1:3] for m in made) == sorted([a, b] for a in range(3) for b in range(3)), "told apart by two"


@settings(max_examples=100, deadline=None)
@given(rows)
def test_repeated_answers_are_prompt_tokens_that_only_answers_had(found) -> None:
    asked: set = set()
    said: set = set()
    expected = 0
    for path, output, space in found:
        prompt = len(path) - output
        begins = [(space, *path[:end]) for end in range(1, len(path) + 1)]
        expected += sum(begin in said and begin not in asked for begin in begins[:prompt])
        asked |= set(begins[:prompt])
        said |= set(begins)
    assert repeated_answers(built(found)) == expected


# ---- round trips ----


@settings(max_examples=100, deadline=None)
@given(rows, st.integers(1, 3), st.randoms(use_true_random=False))
def test_what_aiperf_sends_reads_back_exactly(tmp_path_factory, found, block: int, random) -> None:
    n = len(found)
    session = np.array([random.randrange(3) for _ in range(n)])
    workload = built(found, session_id=session)
    before = replay.row_before(workload)
    follows = (before >= 0) & np.array([random.random() < 0.5 for _ in range(n)])
    arrival_s = np.where(follows, np.nan, np.arange(n) * 0.0123457)
    delay_s = np.where(follows, [random.randrange(9000) / 1000 for _ in range(n)], 0.0)
    workload = replace(workload, arrival_s=arrival_s, after=np.where(follows, before, -1), delay_s=delay_s)
    path = tmp_path_factory.getbasetemp() / "sent.jsonl"
    replay.write(workload, "aiperf", path, TARGET, 16)
    back = read(path)
    back.check()
    assert back.prompt_tokens.tolist() == workload.prompt_tokens.tolist()
    assert back.output_tokens.tolist() == workload.output_tokens.tolist()
    assert back.column("after").tolist() == workload.after.tolist()
    assert back.column("delay_s").tolist() == pytest.approx(delay_s.tolist(), abs=0)
    assert np.allclose(back.arrival_s, arrival_s - np.nanmin(arrival_s), rtol=0, atol=1e-9, equal_nan=True)
    prompts_only = workload_of(
        [[*path[: len(path) - output], 1000 + i] for i, (path, output, _) in enumerate(found)],
        [1] * n,
        [s for *_, s in found],
    )
    short = replace(back, output_tokens=np.ones(n, np.int64))  # answers are in no file
    assert infinite_cache(short, block).hit_tokens.tolist() == infinite_cache(prompts_only, block).hit_tokens.tolist()


def test_trace_rows_for_vllm_read_back_by_blocks(tmp_path: Path) -> None:
    shared = list(range(32))
    paths = [[*shared, *range(100 * i, 100 * i + 9 + i)] for i in range(1, 5)]
    workload = workload_of(paths, [3, 4, 5, 6], arrival_s=np.array([0, 0.25, 1.5, 4.125]))
    sent = replay.write(workload, "vllm", tmp_path / "t.jsonl", TARGET, 16)
    back = read(tmp_path / "t.jsonl", block_tokens=16)
    for column in ("prompt_tokens", "output_tokens", "arrival_s"):
        assert getattr(back, column).tolist() == getattr(workload, column).tolist()
    assert infinite_cache(back, 16).hit_tokens.tolist() == infinite_cache(workload, 16).hit_tokens.tolist()
    for flag in ("--self-timed", "--timed-trace-sec-multiplier 0.001", "--timed-trace-chunk-hash-size 16"):
        assert flag in sent.command
    assert replay.write(workload, "guidellm", tmp_path / "g.jsonl", TARGET, 16).command.endswith("kind=replay")
    assert (tmp_path / "g.jsonl").read_bytes() == (tmp_path / "t.jsonl").read_bytes()


@pytest.mark.parametrize("tool", ["vllm", "sglang", "guidellm"])
def test_texts_are_as_many_tokens_as_said_and_share_what_is_shared(tmp_path: Path, tool: str) -> None:
    shared = list(range(20))
    paths = [[*shared, *range(100 * i, 100 * i + 9 + i)] for i in range(1, 5)]
    workload = workload_of(paths, [3, 4, 5, 6], concurrency=2)
    sent = replay.write(workload, tool, tmp_path / "t.jsonl", TARGET, 16)
    if tool == "guidellm":  # its column is no name that our readers know: as vLLM's
        text = (tmp_path / "t.jsonl").read_text().replace("output_tokens_count", "output_tokens")
        (tmp_path / "t.jsonl").write_text(text)
    back = read(tmp_path / "t.jsonl", message_tokens=1)  # of the question, and of the answer that begins
    assert (back.prompt_tokens - 2).tolist() == workload.prompt_tokens.tolist()
    assert back.output_tokens.tolist() == workload.output_tokens.tolist()
    assert infinite_cache(back, 1).hit_tokens.tolist() == [0, 21, 21, 21]
    assert "2" in sent.command.split()[-1] or "streams=2" in sent.command or "--max-concurrency 2" in sent.command


def test_a_tokenizer_makes_texts_exact_or_says_that_it_cannot(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="conversations need tokenizers")
    vocabulary = {word: i for i, word in enumerate(["?", "the", "cat", "ca", "t", "rather", "Large", "x"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words = Words(made)
    assert " rather" in words.words
    assert " Large" not in words.words
    text = words.text(np.arange(5) % len(words.words))
    assert len(made.encode(text).ids) == 5

    class Merging:
        """Joins the words of a longer text."""

        def encode(self, text: str, add_special_tokens: bool) -> object:
            return SimpleNamespace(ids=[0] * min(len(text.split()), 4))

        def decode(self, ids: list[int]) -> str:
            return "cat"

        def get_vocab_size(self) -> int:
            return 1

    with pytest.raises(InputError, match="a prompt of 6 words is 4 tokens to it"):
        Words(Merging()).text(np.zeros(6, np.int64))


# ---- what is refused and said ----


def test_what_a_tool_cannot_send_is_refused_or_said(tmp_path: Path) -> None:
    waits = workload_of(
        [[1, 2, 3], [1, 2, 3, 4], [9, 9]],
        [1, 1, 1],
        arrival_s=np.array([0, np.nan, 1]),
        after=np.array([-1, 0, -1]),
        session_id=np.array([0, 0, 1]),
        delay_s=np.array([0, 2.5, 0]),
    )
    for tool in ("vllm", "sglang", "guidellm"):
        assert not replay.takes(tool, waits)
        with pytest.raises(InputError, match=f"as {tool} cannot send them"):
            replay.write(waits, tool, tmp_path / "t.jsonl", TARGET, 16)
    sent = replay.write(waits, "aiperf", tmp_path / "t.jsonl", TARGET, 16)
    assert "--fixed-schedule" in sent.command
    assert any(line.startswith("1 prompt tokens") and "repeat earlier answers" in line for line in sent.cannot)
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[1])["delay"] == 2500
    with pytest.raises(InputError, match=r"expected a name that ends in \.jsonl"):
        replay.write(waits, "aiperf", tmp_path / "t.json", TARGET, 16)
    elsewhere = replace(waits, session_id=np.array([0, 1, 2]))
    assert not replay.takes("aiperf", elsewhere), "released by another session"
    crowd = workload_of([[i, 1, 1] for i in range(300)], [1] * 300)
    assert any(
        "begin with a token" in line for line in replay.write(crowd, "sglang", tmp_path / "c.jsonl", TARGET, 16).cannot
    )


def test_payloads_that_are_no_token_ids_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"payload": {"prompt": [5, 6], "max_tokens": 2}, "timestamp": 0}\n{"payload": {"prompt": "secret"}}\n'
    )
    with pytest.raises(
        InputError, match=r"row 2: payload\.prompt = '\(text\)', expected a list of at least one"
    ) as said:
        read(path)
    assert "secret" not in str(said.value)


SCENARIO = """
[hardware]
gpu = "h100"
[model]
name = "llama-3.1-8b"
[run]
warmup_s = 0.0
[workload]
requests = 6
[[workload.class]]
name = "chat"
rate = 2.0
turns = { value = 2 }
think = { value = 1.5 }
output = { value = 5 }
[[workload.class.layers]]
name = "system"
scope = "global"
tokens = { value = 40 }
[[workload.class.layers]]
name = "message"
tokens = { value = 10 }
"""


def test_the_command_writes_simulated_times_where_the_tool_cannot_wait(tmp_path: Path, capsys) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(SCENARIO)
    assert main(["replay", str(scenario), "--for", "vllm", "--out", str(tmp_path / "v.jsonl"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    back = read(tmp_path / "v.jsonl", block_tokens=16)
    assert len(back) == 6
    assert np.all(np.diff(back.arrival_s) >= 0)
    assert np.isfinite(back.arrival_s).all()
    assert any("the simulation released them" in line for line in document["notes"])
    assert (
        main(["replay", str(scenario), "--for", "aiperf", "--out", str(tmp_path / "a.jsonl"), "--model", "org/m"]) == 0
    )
    assert "aiperf profile --model org/m" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    later = [row for row in rows if "delay" in row]
    assert len(later) == 3
    assert {row["delay"] for row in later} == {1500}
    assert all(min(row["payload"]["prompt"]) >= LOWEST_ID for row in rows)
    assert len({tuple(row["payload"]["prompt"][:40]) for row in rows}) == 1, "one system prompt"
