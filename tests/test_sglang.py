"""SGLang's scheduler and radix cache: recorded cases, rules in tiny worlds, situations users reported, random cases,
faults.

KVCAST_DATA=... python -m pytest tests/test_sglang.py
"""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kvcast import api
from kvcast.validation import engine_cases
from sim.measure import gaps, metrics
from sim.measure.cost import busy_gpu_s
from sim.recording import STATUS, Recording
from sim.scenario import CacheConfig, EngineConfig, EngineParams, Scenario
from sim.simulate import run as simulate
from tests import fuzz, fuzz_sglang, reference_sglang
from tests.worlds import LinearSteps, random_workload
from workloads.config import WorkloadConfig
from workloads.errors import InputError
from workloads.readers.engine_case import read_case, to_workload

CONFIG = {
    "page_size": 1,
    "capacity_tokens": 20_000,
    "max_context": 200_000,
    "chunked_prefill_size": 2048,
    "max_running": 64,
    "eviction_policy": "lru",
    "schedule_policy": "fcfs",
}


def request(arrival_step: int, *segments: tuple, out: int = 1, **more) -> dict:
    """A request; a segment is (name, tokens), or ("o", request, tokens) for its output."""
    pieces = [list(s) if s[0] == "o" else ["s", *s] for s in segments]
    return {"arrival_step": arrival_step, "segments": pieces, "max_tokens": out, **more}


def case_of(*requests: dict, **config) -> dict:
    """A case, ids by position."""
    return {
        "schema": "kvoracle/1",
        "case": "small",
        "engine": "sglang",
        "config": CONFIG | config,
        "requests": [r | {"id": i} for i, r in enumerate(requests)],
    }


def play(*requests: dict, **config) -> tuple[Recording, list[tuple]]:
    """Simulate with steps of one second; (recording, rows: start, P or D, scheduled, retracted, evicted, ...)."""
    workload, params = to_workload(case_of(*requests, **config))
    log: list[tuple] = []
    recording = simulate(workload, EngineParams(**params), engine_cases.UnitStep(), step_log=log)
    assert [STATUS[s] for s in recording.status] == ["completed"] * len(requests)
    return recording, [row[1:] for row in log]


def hits(*requests: dict, **config) -> list[int]:
    return play(*requests, **config)[0].hit_tokens.tolist()


# ---- recorded cases -------------------------------------------------------------------------------------------------


def recorded(data_dir: Path) -> list[dict]:
    files = [path for folder in engine_cases.FOLDERS for path in sorted((data_dir / folder).glob("*.json*"))]
    return [case for case in map(read_case, files) if case["engine"] == "sglang"]


def test_the_reference_reproduces_every_recorded_case(data_dir):
    """Steps, requests and the final tree with its logical clock; the simulator's own replay is in test_engine_cases."""
    for case in recorded(data_dir):
        assert reference_sglang.differences(case) == [], case["case"]


def test_every_recorded_request_with_fast_forward(data_dir):
    for case in recorded(data_dir):
        workload, params = to_workload(case)
        rec = simulate(workload, EngineParams(**params), engine_cases.UnitStep())
        got = [engine_cases.request_row(rec, row) for row in range(len(workload))]
        want = [
            (r["first_admission_cached_tokens"], r["retractions"], r["finish_step"])
            for r in case["expected"]["requests"]
        ]
        assert [(g["first_admission_cached_tokens"], g["preemptions"], g["finish_step"]) for g in got] == want, case[
            "case"
        ]


def test_a_wrong_tree_is_shown(tmp_path):
    case = case_of(request(0, (1, 30), out=3), request(5, (1, 20), (2, 9), out=3))
    engine = reference_sglang.Engine(case).run()
    rows = [[int(row[0]), *row[1:]] for row in (s.row() for s in engine.steps)]
    case["expected"] = {
        "steps": rows,
        "requests": engine.expected_requests(),
        "summary": {"final_tree": engine.final_tree()},
    }
    path = tmp_path / "small.json"
    path.write_text(json.dumps(case))
    assert engine_cases.run(None, cases=tmp_path).lines == ["1 cases, 2 requests, 0 mismatches"]
    case["expected"]["summary"]["final_tree"][2][3] += 1  # a hit
    path.write_text(json.dumps(case))
    outcome = engine_cases.run(None, cases=tmp_path)
    assert not outcome.passed
    assert outcome.lines[0].startswith("small: tree node 2 (parent, tokens, hits,")


@pytest.mark.parametrize(("key", "value"), [("schedule_policy", "hrrn"), ("eviction_policy", "tlru")])
def test_what_has_no_rules_is_skipped_by_name(tmp_path, key, value):
    case = case_of(request(0, (1, 30))) | {"expected": {"steps": [], "requests": []}}
    case["config"] = case["config"] | {key: value}
    (tmp_path / "x.json").write_text(json.dumps(case))
    assert f"1 sglang {key} {value}" in engine_cases.run(None, cases=tmp_path).lines[0]


# ---- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "new"), [(1, (7000, 3000, 150)), (16, (7000, 3000, 158))])
def test_textbook_example(page, new):
    system, python, javascript = (1, 2000), (2, 5000), (3, 3000)
    rec, _ = play(
        request(0, system, python, out=4),
        request(20, system, javascript, out=4),
        request(40, system, python, (4, 150), out=4),
        page_size=page,
    )
    assert tuple(np.array([7000, 5000, 7150]) - rec.hit_tokens) == new


def test_textbook_example_all_at_once_under_lpm():
    """C is admitted while A is in the middle of its chunks: 6,144 of A's 7,000 tokens are there, 1,006 are new."""
    system, python = (1, 2000), (2, 5000)
    rec, _ = play(
        request(0, system, python, out=4),
        request(0, system, (3, 3000), out=4),
        request(0, system, python, (4, 150), out=4),
        schedule_policy="lpm",
    )
    assert 7150 - rec.hit_tokens[2] == 1006


def test_equal_prompts_of_one_batch_do_not_hit_each_other():
    """Insertion comes after the step (vLLM hashes blocks before it); the duplicates are freed then."""
    rec, rows = play(*[request(0, (1, 170), out=3) for _ in range(4)], capacity_tokens=4000)
    assert rec.hit_tokens.tolist() == [0] * 4
    assert rows[0][5] == 4000 - 170  # available after the prefill: one copy is left


def test_decodes_wait_for_prefills():
    rec, rows = play(request(0, (1, 10), out=4), request(2, (2, 10), out=2), request(2, (3, 10), out=1))
    assert [row[1] for row in rows] == ["P", "D", "P", "D", "D"]
    assert rec.steps[0].n_decode.tolist() == [0, 1, 0, 2, 1]
    values, counts = gaps.pooled(rec, np.ones(3, bool))
    assert sorted(np.repeat(values, counts.astype(int)).tolist()) == [
        1.0,
        1.0,
        1.0,
        2.0,
    ]  # of request 0: 1, 2, 1; of request 1: 1


def test_one_chunked_request_at_a_time():
    _, rows = play(request(0, (1, 300)), request(0, (2, 300)), chunked_prefill_size=200)
    assert [row[2] for row in rows] == [[(0, 200)], [(0, 100), (1, 100)], [(1, 200)]]


def test_retraction_takes_the_fewest_outputs_and_drops_its_kv():
    """100 tokens, three requests that are promised little: the last admitted goes, to the end of the queue, and is not
    inserted."""
    rec, rows = play(*[request(i, (i + 1, 20), out=30) for i in range(3)], capacity_tokens=100, conservativeness=0.0)
    retracted = [row for row in rows if row[3]]
    assert retracted[0][3] == [2]
    assert rec.preemptions.tolist() == [0, 0, len(retracted)]
    assert rec.readmission_hit_tokens[2] <= 20  # its prompt, inserted by its first prefill; none of its output
    assert rec.preempted_s[2] > 0


def test_lfu_counts_and_differs_from_lru():
    """A hot prompt, hit twice, then a scan: least recently used loses it, least frequently used does not."""
    hot = (1, 40)
    requests = (
        [request(10 * i, hot, (2 + i, 5)) for i in range(3)]
        + [request(100 + 10 * i, (10 + i, 60)) for i in range(3)]
        + [request(200, hot, (9, 5))]
    )
    assert hits(*requests, capacity_tokens=150, eviction_policy="lru")[-1] == 0
    assert hits(*requests, capacity_tokens=150, eviction_policy="lfu")[-1] == 40


def test_a_salt_is_its_own_tree():
    assert hits(
        request(0, (1, 160), cache_salt="a"),
        request(9, (1, 160), cache_salt="b"),
        request(18, (1, 160), cache_salt="a"),
    ) == [0, 0, 159]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"lora": "x"}, {"cache_salt": "x"}),
        ({"lora": {"name": "x", "path": "/old"}}, {"lora": {"name": "x", "path": "/new"}}),
    ],
)
def test_a_lora_is_neither_a_salt_nor_a_name(first, second):
    assert hits(request(0, (1, 160), **first), request(9, (1, 160), **second)) == [0, 0]


def test_a_request_that_can_never_fit_is_refused():
    workload, params = to_workload(case_of(request(0, (1, 90), out=9), request(0, (1, 90), out=8), capacity_tokens=100))
    rec = simulate(workload, EngineParams(**params), engine_cases.UnitStep())
    assert [STATUS[s] for s in rec.status] == ["rejected_kv_too_small", "completed"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"policy": "slrru"}, "policy = 'slrru'.*did you mean slru"),
        ({"schedule_policy": "random"}, "schedule_policy = 'random'"),
        ({"chunked_prefill_size": 8}, "chunked_prefill_size = 8"),
        ({"schedule_policy": "lpm", "priority_scheduling": True}, "priority_scheduling"),
    ],
)
def test_what_the_engine_does_not_have_is_refused(wrong, says):
    workload = random_workload(1, 4)
    with pytest.raises(InputError, match=says):
        simulate(workload, EngineParams(kv_blocks=100, semantics="sglang", **wrong), LinearSteps())


# ---- situations users reported --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "hit"), [(256, 128), (257, 256)])
def test_sglang_27206_a_repeat_keeps_a_token_to_compute(length, hit):
    assert hits(request(0, (1, length)), request(9, (1, length)), page_size=128) == [0, hit]


def test_sglang_pr_16521_the_last_token_has_no_kv():
    assert hits(request(0, (1, 100), out=50), request(99, (1, 100), ("o", 0, 50), (2, 10))) == [0, 149]


def test_sglang_pr_24075_simultaneous_hits_promote_a_one_off_prefix():
    """Fifty requests at once share a prefix nobody asks for again: SLRU then keeps it, and what is asked for again
    goes."""
    burst = [request(50, (1, 40), (100 + i, 2)) for i in range(50)]
    later = [
        request(0, (2, 40), (3, 1)),
        *burst,
        *[request(100 + 10 * i, (10 + i, 100)) for i in range(2)],
        request(200, (1, 40), (9, 1)),
        request(210, (2, 40), (8, 1)),
    ]
    assert hits(*later, capacity_tokens=290, eviction_policy="slru")[-2:] == [40, 0]


@pytest.mark.parametrize(("before", "policy", "hit"), [(31, "lru", 50), (30, "lru", 0), (31, "fifo", 0)])
def test_vllm_48485_a_waiting_prefix_is_touched(before, policy, hit):
    """The 33rd pass touches what the waiting would hit, last to first, so that it survives the one ahead of it (lru
    only)."""
    tiny = [request(10 + 5 * i, (10 + i, 5)) for i in range(before)]
    last = [request(500, (2, 100)), request(500, (1, 50), (3, 5))]
    assert (
        hits(request(0, (1, 50)), *tiny, *last, capacity_tokens=265, max_running=1, eviction_policy=policy)[-1] == hit
    )


# ---- random cases ---------------------------------------------------------------------------------------------------


def test_simulator_equals_the_reference():
    done, cases, failing = fuzz.fuzz(40_000, seed=0, engine_name="sglang")
    assert failing is None, failing and fuzz.first_difference(failing)
    assert done >= 40_000
    assert cases > 50


@pytest.mark.parametrize("policy", fuzz_sglang.POLICIES)
def test_every_eviction_policy_equals_the_reference(policy):
    _, _, failing = fuzz.fuzz(8_000, seed=1, policies=(policy,), engine_name="sglang")
    assert failing is None, failing and fuzz.first_difference(failing)


def test_random_cases_reach_the_corners():
    """A random test proves nothing about what it never does."""
    seen = set()
    for index in range(300):
        case = fuzz_sglang.random_case(5, index)
        engine = fuzz.run_reference(case)
        segments = [(r, s) for r in case["requests"] for s in r["segments"]]
        finish = {r.id: r.finish_s for r in engine.requests}
        admit = {r.id: r.admit_s for r in engine.requests}
        seen |= {
            name
            for name, happened in {
                "hit": any(r.cached and r.cached[0] for r in engine.requests),
                "evicted": engine.tree.evicted,
                "retracted": any(s.retracted for s in engine.steps),
                "several retracted in a step": any(len(s.retracted) > 1 for s in engine.steps),
                "retracted twice": any(r.retractions > 1 for r in engine.requests),
                "hit after a retraction": any(sum(r.cached[1:]) for r in engine.requests),
                "retracted by priority": (
                    engine.retraction_policy == "priority" and any(s.retracted for s in engine.steps)
                ),
                "refused": any(r.rejected for r in engine.requests),
                "chunked": any(r.chunks > 1 for r in engine.requests),
                "output asked for before it exists": any(
                    s[0] == "o" and admit[r["id"]] < finish.get(s[1], 0) for r, s in segments
                ),
                "timed": case["timed"],
                "caching off": not engine.caching,
                "no chunks": engine.chunked_prefill_size == 0,
                "lpm": engine.order == "lpm",
                "lof": engine.order == "lof",
                "dfs-weight": engine.order == "dfs-weight",
                "by priority": engine.priority_scheduling,
                "second refresh": engine.passes > 32,
                "long output": any(r.output > engine.clip for r in engine.requests),
                "salt": any("cache_salt" in r for r in case["requests"]),
                "lora": any("lora" in r for r in case["requests"]),
                "page of one token": engine.page == 1,
                "prompt of whole pages": any(r.prompt % engine.page == 0 for r in engine.requests),
                "plain loop": not engine.overlap and not engine.mixed,
                "overlap": engine.overlap,
                "overlap, with a clock": engine.calls_ahead,
                "an output lost to a retraction": engine.lost,
                "nobody retracted while somebody ends": engine.waited,
                "mixed step": any(s.n_decode and s.prefill_tokens for s in engine.steps),
                "overlap and mixed step": engine.overlap and any(s.n_decode and s.prefill_tokens for s in engine.steps),
            }.items()
            if happened
        }
    assert len(seen) == 30, seen


def test_a_request_decodes_once_for_each_output_but_the_first():
    """No row is computed for nothing, whatever is in flight; only a retraction costs more."""
    modes = set()
    for index in range(60):
        case = fuzz_sglang.random_case(9, index)
        if fuzz.run_reference(case).out_of_memory:
            continue
        rec, log = fuzz.run_simulator(case, fast_forward=False)
        computed = np.zeros(len(rec.status), np.int64)
        for row in log:
            for request_id, tokens in row[3]:
                computed[request_id] += tokens
        plain = (rec.preemptions == 0) & (rec.status == 0)
        workload, params = to_workload(case)
        want = workload.prompt_tokens - rec.hit_tokens + workload.output_tokens - 1
        assert computed[plain].tolist() == want[plain].tolist(), case["case"]
        modes.add((params["overlap_schedule"], params["mixed_chunk"]))
    assert len(modes) == 4


@pytest.mark.parametrize("seed", range(6))
def test_fast_forward_equals_stepping_for_a_fleet(seed):
    case = fuzz_sglang.random_case(77, seed)
    assert fuzz.fleet_difference(case, seed) == ""


@pytest.mark.parametrize("fault", fuzz_sglang.FAULTS)
def test_planted_faults_are_noticed(fault):
    assert fuzz.cases_until_noticed(fault) is not None


# ---- what reports read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_itl_tokens_and_cost_are_those_of_every_single_token(seed):
    """Prefills hold decodes up and retractions interrupt them: metrics against a list of all tokens' times."""
    for index in range(25):
        case = fuzz_sglang.random_case(seed, index)
        engine = fuzz.run_reference(case)
        rec, _ = fuzz.run_simulator(case, fast_forward=True)
        ends = [[engine.steps[s].end for s in r.token_steps] for r in engine.requests]
        listed = sorted(b - a for times in ends for a, b in pairwise(times))
        values, counts = gaps.pooled(rec, rec.status == 0)
        assert sorted(np.repeat(values, counts.astype(int)).tolist()) == listed
        for start_s, end_s in ((0.0, rec.end_s), (rec.end_s / 3, rec.end_s / 2)):
            emitted = sum(start_s <= t <= end_s for times in ends for t in times)
            assert metrics.tokens_emitted(rec, metrics.Window(start_s, end_s, end_s, True)) == emitted
        computed = np.array(
            [
                sum(t for step in engine.steps if step.prefill for i, t in step.scheduled.items() if i == r.id)
                for r in engine.requests
            ]
        )
        assert busy_gpu_s(rec, computed, 1).sum() == pytest.approx(rec.steps[0].duration_s.sum())


# ---- the scenario ---------------------------------------------------------------------------------------------------


def test_defaults_are_sglangs_own():
    resolved = api.resolve(
        Scenario(WorkloadConfig(preset="demo"), engine=EngineConfig(semantics="sglang", block_size=1))
    )
    engine = resolved.scenario.engine
    assert (engine.chunked_prefill_size, engine.max_num_seqs, engine.max_num_batched_tokens) == (8192, 3601, None)
    assert "SGLang" in resolved.origins["max_num_seqs"]
    assert (resolved.params.semantics, resolved.params.block_size) == ("sglang", 1)
    assert api.resolve(resolved.scenario).scenario == resolved.scenario


@pytest.mark.parametrize(
    ("engine", "policy", "says"),
    [
        ({"watermark": 0.1}, "lru", "watermark = 0.1: only semantics = 'vllm' has it"),
        (
            {"semantics": "vllm", "schedule_policy": "lpm"},
            "lru",
            "schedule_policy = 'lpm': only semantics = 'sglang' has it",
        ),
        ({"chunked_prefill_size": 8}, "lru", "chunked_prefill_size = 8: expected at least block_size = 16"),
        ({"schedule_policy": "lpm", "priority_scheduling": True}, "lru", "priority_scheduling = true"),
        ({}, "clairvoyant", "the future is known by vLLM's blocks only"),
        ({}, "s3fif", "did you mean s3fifo?"),
    ],
)
def test_keys_without_effect_are_refused(engine, policy, says):
    scenario = Scenario(
        WorkloadConfig(preset="demo"),
        engine=EngineConfig(**{"semantics": "sglang", **engine}),
        cache=CacheConfig(policy=policy),
    )
    with pytest.raises(InputError, match=says):
        api.resolve(scenario)
