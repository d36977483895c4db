"""Describe, reuse, convert and the shaping of loaded workloads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.columns import Workload
from workloads.config import WorkloadConfig
from workloads.convert import to_mooncake
from workloads.describe import as_text, describe
from workloads.errors import InputError
from workloads.load import load, trace_path
from workloads.prefix_tree import from_pieces, from_token_ids
from workloads.readers import read
from workloads.reuse import distinct_blocks, infinite_cache
from workloads.transform import (
    in_turns_for_users,
    jittered,
    kept,
    open_loop,
    sample_sessions,
    scaled,
    tick_s,
    time_slice,
)


def workload_of(paths: list[list[int]], outputs: list[int], spaces: list[int] | None = None, **columns) -> Workload:
    """Requests whose path is prompt + output tokens."""
    tree, leaf = from_token_ids(paths, spaces)
    output = np.array(outputs, np.int64)
    total = np.array([len(p) for p in paths], np.int64)
    columns.setdefault("arrival_s", np.arange(len(paths), dtype=float))
    return Workload(tree=tree, leaf=leaf, prompt_tokens=total - output, output_tokens=output, **columns)


requests = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=2, max_size=9), st.integers(1, 8), st.integers(0, 1)),
    min_size=1,
    max_size=7,
).map(lambda rows: [(path, min(output, len(path) - 1), space) for path, output, space in rows])


@settings(max_examples=500, deadline=None)
@given(requests, st.integers(1, 4))
def test_infinite_cache_equals_a_set_of_token_prefixes(rows, block: int) -> None:
    workload = workload_of(
        [path for path, _, _ in rows], [output for _, output, _ in rows], [space for *_, space in rows]
    )
    workload.check()
    reuse = infinite_cache(workload, block)
    cached: set = set()
    distinct: set = set()
    blocks = 0
    for r, (path, output, space) in enumerate(rows):
        prompt, hit = len(path) - output, 0
        while hit + block <= prompt - 1 and (space, *path[: hit + block]) in cached:
            hit += block
        assert reuse.hit_tokens[r] == hit, r
        assert reuse.hit_by_scope[r].sum() == hit
        cached |= {(space, *path[:end]) for end in range(block, len(path), block)}  # the last token is never computed
        ends = [*range(block, prompt, block), prompt]
        blocks += len(ends)
        distinct |= {(space, *path[:end]) for end in ends}
    assert distinct_blocks(workload, block) == (blocks, len(distinct))


def test_hits_are_split_by_the_scope_of_their_layer() -> None:
    """Global text of 6 tokens, then a session of 4 + 4; the last request's hit of 12 lies 6 in the one and 6 in the
    other."""
    paths = [[("g", 0, 6), ("a", 0, 8)], [("g", 0, 6), ("b", 0, 8)], [("g", 0, 6), ("a", 0, 8)]]
    tree, leaf = from_pieces(paths, layers=[[0, 1]] * 3)
    workload = Workload(
        tree=tree,
        leaf=leaf,
        arrival_s=np.zeros(3),
        prompt_tokens=np.full(3, 13),
        output_tokens=np.ones(3, np.int64),
        layer_names=("tools", "history"),
        layer_scopes=(1, 3),
    )
    assert infinite_cache(workload, 4).hit_by_scope.tolist() == [[0] * 5, [0, 4, 0, 0, 0], [0, 6, 0, 6, 0]]
    assert describe(workload, 4)["reuse"]["reuse_ceiling_by_scope"] == {"global": 10 / 39, "session": 6 / 39}


def test_the_textbook_case_reuses_what_it_shares() -> None:
    """B shares A's first 2,000 tokens and C repeats A's 7,000 and adds 150; answers of four tokens."""
    texts = {
        "A": [("s1", 2000), ("s2", 5000)],
        "B": [("s1", 2000), ("s3", 3000)],
        "C": [("s1", 2000), ("s2", 5000), ("s4", 150)],
    }
    paths = [[*[(name, 0, n) for name, n in text], (("answer", r), 0, 4)] for r, text in texts.items()]
    tree, leaf = from_pieces(paths)
    workload = Workload(
        tree=tree,
        leaf=leaf,
        arrival_s=np.arange(3.0),
        prompt_tokens=np.array([7000, 5000, 7150]),
        output_tokens=np.full(3, 4),
    )
    new = {
        block: (workload.prompt_tokens - infinite_cache(workload, block).hit_tokens).tolist() for block in (1, 16, 128)
    }
    assert new == {1: [7000, 3000, 150], 16: [7000, 3000, 158], 128: [7000, 3080, 238]}


# ---- describe ----


def test_describe_counts_and_prints_its_counting_rule() -> None:
    workload = workload_of([[1, 2, 3, 4, 9], [1, 2, 3, 4, 5, 8]], [1, 1], arrival_s=np.array([0.0, 10.0]))
    document = describe(workload, 2)
    assert document["prompt_tokens"] == {"total": 9, "mean": 4.5, "p50": 4, "p90": 5, "p99": 5, "max": 5}
    assert document["arrivals"]["rate_per_s"] == 0.1
    assert document["reuse"]["reuse_ceiling"] == 4 / 9
    assert document["reuse"]["reuse_gap_s"] == {"p50": 10.0, "p90": 10.0, "weighted_by": "reused tokens"}
    assert "hit tokens <= input - 1" in as_text(document)
    json.dumps(document)


def test_describe_says_why_a_hit_rate_is_zero() -> None:
    workload = replace(workload_of([[1, 2, 3], [1, 2, 3]], [1, 1]), prefix_identity=False)
    document = describe(workload, 1)
    assert document["reuse"]["reuse_ceiling"] == 0
    assert "no prefix identity" in as_text(document)


def test_describe_asks_a_given_function_for_the_hit_rate_against_capacity() -> None:
    asked = []

    def curve(workload, block_size, capacities):
        asked.append((len(workload), block_size, list(capacities)))
        return {"lru": [0.1, 0.2]}

    workload = workload_of([[1, 2]], [1])
    assert "hit_rate_by_capacity" not in describe(workload, 1)
    document = describe(workload, 1, capacities=[10, 20], hit_rate_curve=curve)
    assert asked == [(1, 1, [10, 20])]
    assert "requests taken by arrival" in as_text(document)
    assert "lru: 10 blocks 0.1000, 20 blocks 0.2000" in as_text(document)


def test_describe_hands_over_sessions_interleaved_as_they_run() -> None:
    """Two sessions stored one after the other, two turns each, the second starting a second later."""
    seen = []
    workload = workload_of(
        [[1, 2], [1, 2, 3], [7, 8], [7, 8, 9]],
        [1] * 4,
        arrival_s=np.array([0, np.nan, 1.0, np.nan]),
        after=np.array([-1, 0, -1, 2]),
        delay_s=np.array([0, 10.0, 0, 5.0]),
        session_id=np.array([0, 0, 1, 1]),
    )

    def curve(ordered, block_size, capacities):
        ordered.check()
        seen.append(ordered.session_id.tolist())
        return {"lru": [0.0]}

    document = describe(workload, 1, [1], curve)
    assert seen == [[0, 1, 1, 0]]
    assert "by nominal start" in document["reuse"]["counting_rule"]


def test_describe_counts_what_a_closed_loop_leaves_open() -> None:
    workload = workload_of(
        [[1, 2], [1, 2, 3], [7, 8]],
        [1, 1, 1],
        arrival_s=np.array([0, np.nan, 5.0]),
        after=np.array([-1, 0, -1]),
        delay_s=np.array([0, 4.0, 0]),
        session_id=np.array([0, 0, 1]),
    )
    document = describe(workload, 1)
    assert document["arrivals"]["released_by_completion"] == 1
    assert document["sessions"] == {
        "sessions": 2,
        "turns": {"total": 3, "mean": 1.5, "p50": 1, "p90": 2, "p99": 2, "max": 2},
        "delay_s": {"mean": 4.0, "p50": 4.0, "p90": 4.0, "p99": 4.0, "max": 4.0},
    }
    assert document["reuse"]["reuse_gap_s"] is None
    assert "known only after a simulation" in as_text(document)


def test_describe_of_the_recorded_conversation(data_dir: Path) -> None:
    document = describe(read(data_dir / "traces/mooncake/conversation_trace.jsonl"))
    assert (document["prompt_tokens"]["p50"], document["prompt_tokens"]["p90"]) == (6909, 27367)
    assert document["reuse"]["distinct_blocks"] == 182_790
    assert document["reuse"]["reuse_gap_s"]["p50"] == pytest.approx(114, abs=1)


# ---- convert ----


@settings(max_examples=200, deadline=None)
@given(rows=requests, block=st.integers(1, 4))
def test_what_is_converted_reads_back_with_the_same_shared_blocks(tmp_path_factory, rows, block: int) -> None:
    """Full blocks of prompts are shared as before; outputs are not part of the format."""
    workload = workload_of(
        [path for path, _, _ in rows], [output for _, output, _ in rows], [space for *_, space in rows]
    )
    path = tmp_path_factory.getbasetemp() / "converted.jsonl"
    to_mooncake(workload, path, block)
    back = read(path, format="mooncake", block_tokens=block)
    back.check()
    assert back.prompt_tokens.tolist() == workload.prompt_tokens.tolist()
    assert back.output_tokens.tolist() == workload.output_tokens.tolist()
    assert back.arrival_s.tolist() == workload.arrival_s.tolist()
    assert distinct_blocks(back, block) == distinct_blocks(workload, block)
    cached: set = set()
    for r, (tokens, output, space) in enumerate(rows):
        prompt, hit = len(tokens) - output, 0
        while hit + block <= prompt - 1 and (space, *tokens[: hit + block]) in cached:
            hit += block
        assert infinite_cache(back, block).hit_tokens[r] == hit
        cached |= {(space, *tokens[:end]) for end in range(block, prompt + 1, block)}


def test_convert_keeps_think_times_and_says_what_is_lost(tmp_path: Path) -> None:
    workload = workload_of(
        [[1, 2], [1, 2, 3], [7, 8]],
        [1, 1, 1],
        arrival_s=np.array([0.5, np.nan, 5.25]),
        after=np.array([-1, 0, -1]),
        delay_s=np.array([0, 4.0, 0]),
        session_id=np.array([4, 4, 9]),
        tenant_id=np.array([0, 0, 1], np.int32),
        tenant_names=("a", "b"),
    )
    lost = to_mooncake(workload, tmp_path / "t.jsonl", 2)
    assert any("1 think times are written as session_id and delay" in line for line in lost)
    assert "lost: tenants" in lost
    back = read(tmp_path / "t.jsonl", block_tokens=2)
    assert back.after.tolist() == [-1, 0, -1]
    assert back.delay_s.tolist() == [0, 4, 0]
    assert list(tmp_path.iterdir()) == [tmp_path / "t.jsonl"], "no temporary file is left"


def test_convert_leaves_nothing_half_written(tmp_path: Path) -> None:
    workload = workload_of([[1, 2]], [1])
    with pytest.raises(InputError, match="expected a file that can be written"):
        to_mooncake(workload, tmp_path / "no folder" / "t.jsonl")
    broken = replace(workload, arrival_s=np.array([np.inf]))
    with pytest.raises(OverflowError):
        to_mooncake(broken, tmp_path / "t.jsonl")
    assert list(tmp_path.iterdir()) == []


# ---- shaping ----


def chained() -> Workload:
    """Two sessions: 0 -> 1 -> 3 and 2 -> 4."""
    return workload_of(
        [[1, 2], [1, 2, 3], [7, 8], [1, 2, 3, 4], [7, 8, 9]],
        [1] * 5,
        arrival_s=np.array([1.0, np.nan, 3.0, np.nan, np.nan]),
        after=np.array([-1, 0, -1, 1, 2]),
        delay_s=np.array([0.0, 10, 0, 20, 30]),
        session_id=np.array([0, 0, 1, 0, 1]),
        turn=np.array([0, 1, 0, 2, 1]),
    )


def test_a_request_whose_releaser_is_gone_follows_the_one_before_or_takes_its_place() -> None:
    middle = kept(chained(), np.array([True, False, True, True, True]), "without 1")
    assert middle.after.tolist() == [-1, -1, 0, 1]
    assert middle.delay_s.tolist() == [0, 0, 20, 30], "each still waits its own delay"
    head = kept(chained(), np.array([False, True, True, True, True]), "without 0")
    head.check()
    assert head.after.tolist() == [-1, -1, 0, 1]
    assert head.arrival_s[:2].tolist() == [1, 3]


def test_slices_and_samples_keep_sessions_whole() -> None:
    late = time_slice(chained(), 2, None)
    late.check()
    assert late.session_id.tolist() == [1, 1]
    assert late.arrival_s[0] == 1
    assert time_slice(chained(), 1, 3).session_id.tolist() == [0, 0, 0], "from 1 s on, and 3 s is no part of it"
    for seed in range(5):
        part = sample_sessions(chained(), 0.5, seed)
        part.check()
        assert len(part) == {(0,): 3, (1,): 2, (0, 1): 5}[tuple(np.unique(part.session_id).tolist())]
    with pytest.raises(InputError, match="no request is left"):
        time_slice(chained(), 100, None)


def test_one_user_runs_the_sessions_one_after_another() -> None:
    merged = in_turns_for_users(chained(), 1)
    merged.check()
    assert merged.session_id.tolist() == [0, 0, 0, 1, 1]
    assert merged.after.tolist() == [-1, 0, 1, 2, 3]
    assert merged.delay_s.tolist() == [0, 10, 20, 0, 30]
    assert in_turns_for_users(chained(), 2).after.tolist() == [-1, 0, 1, -1, 3]
    with pytest.raises(InputError, match="expected a trace of sessions"):
        in_turns_for_users(workload_of([[1, 2]], [1]), 2)


def test_who_thinks_longer_is_free_later() -> None:
    """Three sessions of two turns for two users: the first thinks for 100 s, so the third follows the second."""
    dealt = in_turns_for_users(
        workload_of(
            [[1, 2], [1, 2, 3], [4, 5], [4, 5, 6], [7, 8], [7, 8, 9]],
            [1] * 6,
            arrival_s=np.array([0.0, np.nan, 0.0, np.nan, 0.0, np.nan]),
            after=np.array([-1, 0, -1, 2, -1, 4]),
            delay_s=np.array([0.0, 100, 0, 1, 0, 1]),
            session_id=np.array([0, 0, 1, 1, 2, 2]),
        ),
        2,
    )
    assert dealt.after.tolist() == [-1, 0, -1, 2, 3, 4]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=20),
    st.sampled_from([0.5, 3.0, 30.0]),
    st.integers(0, 9),
)
def test_jitter_stays_in_its_quantum_and_keeps_order(rows, quantum: float, seed: int) -> None:
    arrival_s = np.array([3.0 * t for t, _ in rows])
    workload = workload_of(
        [[1, 2]] * len(rows), [1] * len(rows), arrival_s=arrival_s, session_id=np.array([s for _, s in rows])
    )
    moved = jittered(workload, quantum, seed)
    assert np.all(np.sort(moved.arrival_s) <= np.sort(arrival_s) + quantum)
    assert np.all(moved.arrival_s >= arrival_s.min())
    if quantum <= 3:
        assert np.all((moved.arrival_s >= arrival_s) & (moved.arrival_s <= arrival_s + quantum))
    for a in range(len(rows)):
        for b in range(a):
            if arrival_s[a] == arrival_s[b] and quantum <= 3:
                assert moved.arrival_s[b] <= moved.arrival_s[a], "ties keep file order"
            if rows[a][1] == rows[b][1] and arrival_s[b] < arrival_s[a]:
                assert moved.arrival_s[b] <= moved.arrival_s[a], "a session keeps its order"


def test_scale_touches_recorded_times_only_and_open_needs_all_of_them() -> None:
    faster = scaled(chained(), 2)
    assert faster.arrival_s[[0, 2]].tolist() == [0.5, 1.5]
    assert faster.delay_s.tolist() == chained().delay_s.tolist()
    with pytest.raises(InputError, match="all 2 are at 0 s; use users or concurrency"):
        scaled(replace(chained(), arrival_s=np.array([0, np.nan, 0, np.nan, np.nan])), 2)
    with pytest.raises(InputError, match="request 1 has only a delay"):
        open_loop(chained())


def recorded(arrival_s) -> Workload:
    arrival_s = np.asarray(arrival_s, float)
    return workload_of([[1, 2]] * len(arrival_s), [1] * len(arrival_s), arrival_s=arrival_s)


def test_the_tick_of_a_recording() -> None:
    """Any rate of arrivals, in whole and in wobbling ticks; batches, and times nobody rounded, have none."""
    rng = np.random.default_rng(0)
    for per_tick in (0.15, 0.5, 1, 10):
        ticks = np.floor(np.cumsum(rng.exponential(1 / per_tick, 2000)))
        assert tick_s(recorded(ticks)) == 1
        assert tick_s(recorded(3 * ticks + 0.001 * (ticks % 2))) == pytest.approx(3, abs=0.0011)
    assert tick_s(recorded(np.arange(200) // 10 * 1.0)) == 0, "19 gaps say nothing"
    assert tick_s(recorded(np.floor(np.arange(0, 40_000, 19.7)))) == 0, "hardly a tie"
    assert tick_s(recorded(np.cumsum(rng.exponential(1, 2000)))) == 0, "not a tie"
    assert tick_s(recorded(np.repeat(np.cumsum(rng.exponential(20, 100)), 20))) == 0, "batches at any time"
    assert tick_s(recorded(np.repeat(600.0 * np.arange(100), 20))) == 0, "a batch every ten minutes"
    assert tick_s(recorded([])) == 0


@pytest.mark.parametrize(
    ("trace", "tick"),
    [
        ("mooncake/conversation_trace.jsonl", 3.0),
        ("mooncake/synthetic_trace.jsonl", 0),
        ("azure/AzureLLMInferenceTrace_code.csv", 0),
        ("burstgpt/BurstGPT_1_first400.csv", 0),  # whole seconds, but hardly two requests in one
    ],
)
def test_the_ticks_of_public_recordings(data_dir: Path, trace: str, tick: float) -> None:
    assert tick_s(load(WorkloadConfig(trace=str(data_dir / "traces" / trace)))) == tick


# ---- load ----

ROW = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}


def test_load_finds_traces_by_variable_and_relative_to_the_scenario(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({**ROW, "timestamp": 1000 * i}) + "\n" for i in range(4)))
    assert len(load(WorkloadConfig(trace="t.jsonl"), base_dir=tmp_path)) == 4
    monkeypatch.setenv("SOME_DATA", str(tmp_path))
    assert trace_path("${SOME_DATA}/t.jsonl", "/elsewhere") == tmp_path / "t.jsonl"
    shaped = load(WorkloadConfig(trace="${SOME_DATA}/t.jsonl", requests=3, start_s=1, rate_scale=2))
    assert shaped.arrival_s.tolist() == [0, 0.5, 1]
    limited = load(WorkloadConfig(trace="${SOME_DATA}/t.jsonl", loop="concurrency", concurrency=2))
    assert limited.concurrency == 2
    monkeypatch.delenv("SOME_DATA")
    with pytest.raises(InputError, match="the environment variable SOME_DATA is not set"):
        load(WorkloadConfig(trace="${SOME_DATA}/t.jsonl"))


@pytest.mark.parametrize("rate_scale", [0.1, 0.5, 4.0])
def test_a_scaled_trace_is_spread_over_the_ticks_it_was_recorded_in(tmp_path: Path, rate_scale: float) -> None:
    """Ten requests every 3 s: as recorded they replay in bursts, scaled they come anywhere in the scaled tick, in file
    order."""
    tick = np.arange(600) // 10
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({**ROW, "timestamp": 3000 * int(t)}) + "\n" for t in tick))
    config = WorkloadConfig(trace="t.jsonl")
    assert load(config, base_dir=tmp_path).arrival_s.tolist() == (3.0 * tick).tolist()
    spread = load(replace(config, rate_scale=rate_scale), seed=1, base_dir=tmp_path)
    into = spread.arrival_s * rate_scale - 3 * tick  # seconds of recorded time into its tick
    assert np.all((into >= -1e-9) & (into < 3))
    assert np.all(np.diff(spread.arrival_s) >= 0)
    assert into.mean() == pytest.approx(1.5, abs=0.15)  # of 600 uniform draws: four standard errors
    assert into.std() == pytest.approx(3 / 12**0.5, abs=0.1)
    assert any("recorded in ticks of 3 s" in note for note in spread.notes)
    again, other = (load(replace(config, rate_scale=rate_scale), seed=seed, base_dir=tmp_path) for seed in (1, 2))
    assert np.array_equal(again.arrival_s, spread.arrival_s)
    assert not np.array_equal(other.arrival_s, spread.arrival_s)
    few = load(replace(config, rate_scale=rate_scale, requests=30), seed=1, base_dir=tmp_path)
    assert len(np.unique(few.arrival_s)) == 30, "the tick is that of the whole recording"
    said = load(replace(config, rate_scale=rate_scale, jitter_s=1e-3), base_dir=tmp_path)
    assert np.all(said.arrival_s * rate_scale - 3 * tick < 1e-3 + 1e-9), "an explicit jitter_s wins"
    assert not any("recorded in ticks" in note for note in said.notes)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"rate_scale": 0}, "rate_scale = 0, expected above 0, from 1e-09 to 1e+09"),
        ({"rate_scale": float("nan")}, "rate_scale = nan, expected a finite number"),
        ({"sample": 1.5}, "sample = 1.5, expected above 0 and at most 1"),
        ({"start_s": 5, "end_s": 5}, "end_s = 5, expected a time after start_s = 5"),
        ({"loop": "closed"}, "loop = 'closed', expected one of auto, open, sessions, concurrency"),
        ({"loop": "concurrency"}, "concurrency = None, expected a number of sessions"),
        ({"concurrency": 3}, "concurrency = 3, expected loop = concurrency"),
        ({"users": 4, "think": "original"}, "users = 4, expected loop = sessions"),
        ({"rate": 2.0}, "rate = 2.0, expected rate_scale for a trace"),
        (
            {"share_tools": True},
            "share_tools = True, expected a weka trace or the logs of an agent with it, not the format mooncake",
        ),
        ({"loop": "sessions"}, "loop = 'sessions', expected a trace whose requests follow one another"),
        ({"preset": "chat"}, "trace is set together with preset or class"),
    ],
)
def test_load_refuses_what_a_trace_cannot_do(tmp_path: Path, wrong: dict, line: str) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps(ROW) + "\n")
    with pytest.raises(InputError) as problem:
        load(WorkloadConfig(trace="t.jsonl", **wrong), base_dir=tmp_path)
    assert line in str(problem.value)
