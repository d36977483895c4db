"""What vLLM's own scheduler did, step by step, and situations its users reported, each with the right outcome.

KVCAST_DATA=... python -m pytest tests/test_engine_cases.py
"""

import json
import lzma
import random
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvcast.cli import main
from kvcast.validation import engine_cases
from sim.measure.causes import miss_causes
from sim.recording import Recording
from sim.scenario import EngineParams
from sim.simulate import run as simulate
from tests import planted_cases, reference_hybrid, reference_vllm
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.readers.engine_case import read_case, to_workload

CONFIG = {
    "block_size": 16,
    "num_blocks": 100,
    "max_model_len": 200_000,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 64,
}


def request(arrival_step: int, *segments: tuple, out: int = 1, **more) -> dict:
    """A request; a segment is (name, tokens)."""
    return {"arrival_step": arrival_step, "segments": [["s", *s] for s in segments], "max_tokens": out, **more}


def play(*requests: dict, **config) -> tuple[Workload, Recording, list[tuple]]:
    """Simulate requests, ids by position, with steps of one second; (workload, recording, step rows)."""
    case = {"config": CONFIG | config, "requests": [r | {"id": i} for i, r in enumerate(requests)]}
    workload, params = to_workload(case)
    log: list[tuple] = []
    recording = simulate(workload, EngineParams(**params), engine_cases.UnitStep(), step_log=log)
    assert all(recording.status == 0)
    return workload, recording, log


# ---- recorded cases -------------------------------------------------------------------------------------------------


def recorded(data_dir: Path) -> list[dict]:
    files = [path for folder in engine_cases.FOLDERS for path in sorted((data_dir / folder).glob("*.json*"))]
    cases = [read_case(path) for path in files]
    return [case for case in cases if case["engine"] == "vllm" and not engine_cases.not_simulated(case)]


def reference_of(case: dict) -> ModuleType:
    """The per-block reference that has its rules."""
    grouped = "kv_cache_groups" in case["config"] or "sliding_window" in case["config"]
    return reference_hybrid if grouped else reference_vllm


def test_every_recorded_case_is_reproduced(data_dir):
    outcome = engine_cases.run(data_dir)
    assert outcome.passed, "\n".join(outcome.lines)
    assert outcome.lines[-3:] == [
        "sglang: 151 cases, 7637 requests, 0 mismatches",
        "vllm: 123 cases, 6020 requests, 0 mismatches",
        "274 cases, 13657 requests, 0 mismatches",
    ]


def test_a_change_of_any_expected_value_is_noticed(data_dir):
    """One place of every kind in the small cases; `python -m tests.planted_cases` for all of them."""
    noticed, implied = set(), set()
    for case in planted_cases.cases(data_dir, most_bytes=6_000):
        for kind, fate, _ in planted_cases.plant(case, 1, random.Random(case["case"])):
            assert fate != planted_cases.MISSED, (case["case"], kind)
            (noticed if fate == planted_cases.NOTICED else implied).add((case["engine"], kind))
    assert len(noticed) > 80
    assert {kind.removesuffix(".[last]") for _, kind in implied - noticed} <= planted_cases.IMPLIED_KINDS.keys()


def test_asynchronous_scheduling_of_a_case_recorded_without(data_dir):
    """vLLM itself took 667 steps with 56 preemptions where it had taken 658 with 52 (ENGINE_SEMANTICS 2a, rule 12)."""
    case = read_case(data_dir / "engine_cases" / "v14_preempt_fcfs.json")
    case["config"]["async_scheduling"] = True
    workload, params = to_workload(case)
    log: list[tuple] = []
    rec = simulate(workload, EngineParams(**params), engine_cases.UnitStep(), step_log=log)
    assert (len(log), rec.preemptions.sum()) == (667, 56)
    engine = reference_vllm.Engine(case).run()
    assert [row[2:] for row in log] == [(list(map(tuple, s.row()[1])), *s.row()[2:]) for s in engine.steps]


def test_the_reference_reproduces_every_recorded_case_too(data_dir):
    for case in recorded(data_dir):
        assert reference_of(case).differences(case) == [], case["case"]


def test_sglang_pr_18843_the_engine_itself_with_lfu_is_not_lru(data_dir):
    """The same requests under LRU and LFU: twice the hits. With a counter that never moves the two cases would be
    one."""
    lru, lfu = (
        read_case(data_dir / "engine_cases" / f"{name}.json") for name in ("s10_scan_lru_ps1", "s11_scan_lfu_ps1")
    )
    assert lru["requests"] == lfu["requests"]
    hits = []
    for case in (lru, lfu):
        workload, params = to_workload(case)
        hits.append(int(simulate(workload, EngineParams(**params), engine_cases.UnitStep()).hit_tokens.sum()))
    assert hits[1] > 1.5 * hits[0] > 0


def test_every_recorded_request_with_fast_forward(data_dir):
    for case in recorded(data_dir):
        workload, params = to_workload(case)
        rec = simulate(workload, EngineParams(**params), engine_cases.UnitStep())
        got = [engine_cases.request_row(rec, row) for row in range(len(workload))]
        want = [
            {name: r[name] for name in ("first_admission_cached_tokens", "preemptions", "finish_step")}
            for r in case["expected"]["requests"]
        ]
        assert [{name: g[name] for name in want[0]} for g in got] == want, case["case"]


def expected_of(case: dict) -> dict:
    engine = reference_vllm.Engine(case).run()
    return {
        "steps": [[int(start), *rest] for start, *rest in (s.row() for s in engine.steps)],
        "requests": engine.expected_requests(),
    }


@pytest.fixture
def case() -> dict:
    """A small case with what the engine does in it, as the reference says."""
    requests = [
        request(0, (1, 32), (2, 9), out=20, id=0),
        request(1, (1, 32), (3, 40), out=30, id=1),
        request(1, (1, 32), out=30, id=2),
    ]
    case = {
        "schema": "kvoracle/1",
        "case": "small",
        "engine": "vllm",
        "config": CONFIG | {"num_blocks": 8},
        "requests": requests,
    }
    return case | {"expected": expected_of(case)}


def test_a_wrong_step_is_shown_with_both_sides(tmp_path, case):
    (tmp_path / "small.json").write_text(json.dumps(case))
    assert engine_cases.run(None, cases=tmp_path).lines == ["1 cases, 3 requests, 0 mismatches"]
    case["expected"]["steps"][5][5] += 1
    case["expected"]["requests"][1]["finish_step"] += 2
    (tmp_path / "small.json").write_text(json.dumps(case))
    outcome = engine_cases.run(None, cases=tmp_path)
    assert not outcome.passed
    assert [line.split(":")[1].split(" expected")[0] for line in outcome.lines[:2]] == [" step 5", " request 1"]
    assert "free blocks differs" in outcome.lines[0]
    assert "finish_step" in outcome.lines[1]
    assert outcome.lines[-1] == "1 cases, 3 requests, 1 mismatches"


def test_compressed_cases_and_skips_counted_by_reason(tmp_path, case):
    (tmp_path / "a.json.xz").write_bytes(lzma.compress(json.dumps(case).encode()))
    (tmp_path / "b.json").write_text(json.dumps(case | {"engine": "trtllm"}))
    (tmp_path / "c.json").write_text(json.dumps(case | {"config": case["config"] | {"prefix_match_unit": 8}}))
    (tmp_path / "d.json").write_text(json.dumps(case | {"config": case["config"] | {"spread": 3}}))
    lines = engine_cases.run(None, cases=tmp_path).lines
    assert "spread" in lines[0]
    assert lines[1].startswith("skipped 2: 1 prefix_match_unit")
    assert "1 trtllm" in lines[1]
    assert lines[2] == "2 cases, 6 requests, 0 mismatches"


def test_nothing_comparable_is_no_pass(tmp_path, case):
    (tmp_path / "b.json").write_text(json.dumps(case | {"engine": "trtllm"}))
    assert not engine_cases.run(None, cases=tmp_path).passed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not readable as JSON"),
        ("[1]", "schema = None"),
        ('{"schema": "kvoracle/1", "case": "x"}', "'engine' is missing"),
    ],
)
def test_bad_case_files_are_named(tmp_path, text, says):
    (tmp_path / "x.json").write_text(text)
    outcome = engine_cases.run(None, cases=tmp_path)
    assert not outcome.passed
    assert "x.json: " in outcome.lines[0]
    assert says in outcome.lines[0]


def test_a_bad_file_does_not_end_the_folder(tmp_path, case, capsys):
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text(json.dumps(case))
    (tmp_path / "c.json").write_text(json.dumps(case | {"case": "third", "expected": {}}))
    (tmp_path / "d.json").write_text(json.dumps(case))
    outcome = engine_cases.run(None, cases=tmp_path)
    assert not outcome.passed
    assert "a.json: not readable as JSON" in outcome.lines[0]
    assert "c.json: third: expected steps" in outcome.lines[1]
    assert outcome.lines[2:] == ["2 of 4 files could not be replayed", "2 cases, 6 requests, 0 mismatches"]
    assert main(["validate", "engine-cases", "--cases", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "engine-cases: FAILED" in said.out
    assert said.err == "kvcast: engine-cases: files that could not be replayed: 2, named above\n"


def test_a_case_with_a_missing_field_is_named(tmp_path, case):
    for broken, says in (
        (
            case | {"config": {k: v for k, v in case["config"].items() if k != "block_size"}},
            "small: config block_size = None",
        ),
        (
            case | {"requests": [{"id": 0, "segments": [["s", 1, 4]], "max_tokens": 1}]},
            "request 0: field 'arrival_step' is missing",
        ),
    ):
        (tmp_path / "x.json").write_text(json.dumps(broken))
        assert says in engine_cases.run(None, cases=tmp_path).lines[0]


def test_what_is_cached_at_the_end_is_compared_in_order(tmp_path, case):
    """A wrong order of the free queue shows in no step when nothing is evicted after it."""
    queue = reference_vllm.Engine(case).run().final_free_queue()
    cached = [at for at in queue if at is not None]
    assert len(cached) > 2
    for summary, says in (
        ({"final_free_queue": queue, "final_cached_blocks": len(cached)}, None),
        ({"final_free_queue": queue[::-1]}, "free queue at the end: place 0 is not"),
        ({"final_cached_blocks": len(cached) + 1}, f"expected {len(cached) + 1}, got {len(cached)}"),
    ):
        (tmp_path / "x.json").write_text(json.dumps(case | {"expected": case["expected"] | {"summary": summary}}))
        lines = engine_cases.run(None, cases=tmp_path).lines
        assert len(lines) == (1 if says is None else 2)
        assert says is None or says in lines[0]


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        (("config",), [], "config is no object"),
        (("config", "block_size"), 0, "config block_size = 0, expected a whole number of 1 or more"),
        (("config", "max_num_seqs"), True, "config max_num_seqs = True"),
        (("config", "watermark"), float("nan"), "config watermark = nan, expected 0 or more and below 1"),
        (("config", "async_scheduling"), "yes", "config async_scheduling = 'yes', expected true or false"),
        (("requests",), {}, "requests is empty or no list"),
        (("requests", 1), "x", "request 1: 'x', expected an object"),
        (("requests", 1, "id"), 0, "request 1: id = 0 is there twice"),
        (("requests", 1, "arrival_step"), -1, "request 1: arrival_step = -1"),
        (("requests", 1, "max_tokens"), 0, "request 1: max_tokens = 0"),
        (("requests", 1, "priority"), 2**40, "request 1: priority"),
        (("requests", 1, "cache_salt"), ["a"], "request 1: cache_salt"),
        (("requests", 1, "segments"), [], "request 1: segments is empty"),
        (("requests", 1, "segments"), [["s", 1]], r"request 1: segment \['s', 1\]"),
        (("requests", 1, "segments"), [["s", 1, -5]], "request 1: segment"),
        (("requests", 1, "segments"), [["o", 9, 5]], "request 1: segment"),
        (("requests", 1, "segments"), [["z", 1, 5]], "request 1: segment"),
        (("expected",), [], "expected steps is no list of rows with 8 columns"),
        (("expected", "steps", 2), [1, 2], "expected steps is no list of rows with 8 columns"),
        (("expected", "requests"), None, "expected requests is no list"),
        (
            ("expected", "requests", 1),
            {"id": 1},
            "expected requests, row 1: field 'first_admission_cached_tokens' is missing",
        ),
        (("expected", "requests", 1, "id"), 7, "expected requests has other ids than requests"),
    ],
)
def test_a_case_with_a_wrong_value_is_one_line(tmp_path, case, where, value, says):
    case = inside = json.loads(json.dumps(case))
    for key in where[:-1]:
        inside = inside[key]
    inside[where[-1]] = value
    (tmp_path / "x.json").write_text(json.dumps(case))
    assert re.search(f"small: {says}", engine_cases.run(None, cases=tmp_path).lines[0])


def test_null_is_the_default_and_an_unknown_policy_is_skipped(tmp_path, case):
    (tmp_path / "a.json").write_text(
        json.dumps(case | {"config": case["config"] | {"watermark": None, "max_loras": None, "policy": None}})
    )
    (tmp_path / "b.json").write_text(json.dumps(case | {"config": case["config"] | {"policy": "lifo"}}))
    lines = engine_cases.run(None, cases=tmp_path).lines
    assert lines == ["skipped 1: 1 vllm policy lifo (rules not simulated)", "1 cases, 3 requests, 0 mismatches"]


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        engine_cases.run(None, cases=tmp_path / "absent")
    with pytest.raises(InputError, match=r"no \*\.json"):
        engine_cases.run(None, cases=tmp_path)
    with pytest.raises(InputError, match="--cases"):
        engine_cases.run(None)


# ---- situations users reported --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block_size", "new"), [(1, (7000, 3000, 150)), (16, (7000, 3000, 158)), (128, (7000, 3080, 238))]
)
def test_textbook_example(block_size, new):
    system, python, javascript = (1, 2000), (2, 5000), (3, 3000)
    _, rec, _ = play(
        request(0, system, python, out=4),
        request(20, system, javascript, out=4),
        request(40, system, python, (4, 150), out=4),
        block_size=block_size,
        num_blocks=20_000,
    )
    assert tuple(np.array([7000, 5000, 7150]) - rec.hit_tokens) == new


def test_vllm_25780_recompute_hits_are_no_hits():
    """No shared prompts, small pool, preemptions: the hit rate is 0; what preempted requests find again is kept
    apart."""
    _, rec, _ = play(*[request(0, (i, 40), out=60) for i in range(1, 7)], num_blocks=20)
    assert rec.preemptions.sum() > 0
    assert rec.hit_tokens.sum() == 0
    assert rec.readmission_hit_tokens.sum() > 0


def test_vllm_43736_a_waiting_request_is_counted_once():
    """It waits many steps for blocks, is looked up in each, and counts one query and one hit: at admission."""
    _, rec, log = play(request(0, (1, 64), out=80), request(1, (1, 64), (2, 80), out=1), num_blocks=9)
    blocked = [row for row in log if row[8] == 1]
    assert len(blocked) > 10
    assert rec.hit_tokens.tolist() == [0, 64]
    assert rec.readmission_hit_tokens.sum() == 0
    assert rec.preemptions.sum() == 0


def test_vllm_pr_42656_partial_blocks_are_reused_first():
    """A tail block without a hash is taken before any full block, so none of the cached ones is lost to it."""
    _, rec, _ = play(
        request(0, (1, 40)), request(10, (2, 40)), request(20, (3, 24)), request(30, (1, 40)), num_blocks=7
    )
    # two full blocks and a tail each: 2 + 2 + 1 cached fill five of seven, and the fourth needs one of the other two
    assert rec.evicted_blocks == 0
    assert rec.hit_tokens.tolist() == [0, 0, 0, 32]


def test_llm_d_inference_sim_704_the_deepest_block_goes_first():
    """3-block cache, chain 1-2-3 freed, one block needed: 3 goes, the next request hits two; the same in every run."""
    for _ in range(3):
        _, rec, log = play(request(0, (1, 12)), request(10, (2, 3)), request(20, (1, 12)), block_size=4, num_blocks=3)
        assert [row[5] for row in log] == [0, 1, 0]  # the third reuses the second's partial block
        assert rec.hit_tokens.tolist() == [0, 0, 8]


def test_vllm_54607_shared_but_below_one_block():
    """240 shared tokens and blocks of 784: no hit is right, the cause is the block, and the 240 are told apart from
    what nobody shares."""
    workload, rec, _ = play(
        request(0, (1, 240), (2, 100)), request(10, (1, 240), (3, 100)), request(20, (4, 340)), block_size=784
    )
    assert rec.hit_tokens.tolist() == [0, 0, 0]
    assert workload.tree.end[workload.leaf].tolist() == [240, 240, 0]
    causes = miss_causes(rec, workload, np.arange(3), np.zeros(3, np.int64), 1)
    assert causes.tokens["partial_block"].tolist() == [340, 340, 340]
    assert causes.shared_partial.tolist() == [0, 240, 0]


@pytest.mark.parametrize(("salts", "prefilled"), [((None,) * 4, 160 + 3 * 16), (("a", "b", "c", "d"), 4 * 160)])
def test_vllm_16016_a_salt_per_tenant_multiplies_prefill(salts, prefilled):
    """T tenants with one prompt: no hits across tenants, T-fold prefill."""
    _, rec, _ = play(
        *[request(10 * i, (1, 160), **({"cache_salt": salt} if salt else {})) for i, salt in enumerate(salts)]
    )
    assert (160 - rec.hit_tokens).sum() == prefilled
    assert rec.steps[0].prefill_tokens.sum() == prefilled


def test_vllm_30931_the_same_adapter_name_with_other_weights_shares_nothing():
    """Reloaded under its old name from another path, an adapter's KV is other KV; unchanged it is the same."""
    old, new = {"name": "sql", "path": "/adapters/1"}, {"name": "sql", "path": "/adapters/2"}
    _, rec, _ = play(*[request(10 * i, (1, 160), lora=lora) for i, lora in enumerate((old, new, new, old))])
    assert rec.hit_tokens.tolist() == [0, 0, 144, 144]


@pytest.mark.parametrize(("victim", "preempted", "again"), [("fcfs", [0, 1], 340), ("lcf", [1, 0], 60)])
def test_vllm_pr_53723_the_victim_decides_what_is_computed_again(victim, preempted, again):
    """A short request runs, a long one is admitted after it, and memory runs out: vLLM preempts the last, lcf who loses
    least."""
    _, rec, _ = play(
        request(0, (1, 20), out=80),
        request(1, (2, 300), out=80),
        num_blocks=25,
        enable_prefix_caching=False,
        preemption_victim=victim,
    )
    assert rec.preemptions.tolist() == preempted
    assert abs(rec.recomputed_tokens.sum() - again) < 20


def test_lcf_victims_that_preempt_themselves_hold_nobody_up():
    """Prompts taken a token at a time in eight blocks of one: several preempt themselves in one call (random case
    0/794, shrunk)."""
    texts = [
        ((2, 1), (10, 1)),
        ((1, 1), (11, 1)),
        ((3, 1), (12, 1)),
        ((13, 1),),
        ((14, 2),),
        ((2, 1), (15, 2)),
        ((3, 1), (16, 2)),
        ((1, 1), (17, 2)),
    ]
    requests = [request(0, *text, out=2 if i == 3 else 1, id=i) for i, text in enumerate(texts)]
    config = CONFIG | {
        "block_size": 1,
        "num_blocks": 8,
        "long_prefill_token_threshold": 1,
        "scheduler_reserve_full_isl": False,
        "preemption_victim": "lcf",
    }
    _, rec, log = play(*requests, **config)
    assert rec.preemptions.sum() > 1
    engine = reference_vllm.Engine({"config": config, "requests": requests}).run()
    assert [row[1:] for row in log] == [(s.start, list(map(tuple, s.row()[1])), *s.row()[2:]) for s in engine.steps]


@pytest.mark.parametrize(("cache", "hit"), [("lru", 0), ("clairvoyant", 64)])
def test_vllm_48485_a_waiting_prefix_is_lost_just_before_admission(cache, hit):
    """vLLM does not touch what the waiting would hit: the one ahead of them in the queue evicts it. Who knows the queue
    keeps it (SGLang's touch: tests/test_sglang.py)."""
    _, rec, _ = play(
        request(0, (1, 80)),
        request(10, (2, 80)),
        request(20, (3, 112)),
        request(20, (1, 64), (4, 8)),
        num_blocks=12,
        max_num_seqs=1,
        cache_policy=cache,
    )
    assert rec.hit_tokens.tolist() == [0, 0, 0, hit]


@pytest.mark.parametrize(
    ("first", "second", "hit"),
    [
        ({"lora": "x"}, {"lora": "x"}, 144),
        ({"lora": "x"}, {"cache_salt": "x"}, 0),
        ({"lora": {"name": "x", "path": "/old"}}, {"lora": {"name": "x", "path": "/new"}}, 0),
        ({"lora": "x"}, {}, 0),
    ],
)
def test_vllm_44701_a_lora_is_neither_a_salt_nor_a_name(first, second, hit):
    """A LoRA named like a salt, or the same name with other weights, shares nothing."""
    _, rec, _ = play(request(0, (1, 160), **first), request(10, (1, 160), **second))
    assert rec.hit_tokens.tolist() == [0, hit]


def fifth_long_prompt(**config) -> tuple[Recording, int]:
    """4 x 100k tokens fill 90 % of the blocks, a fifth arrives; (recording, most requests running at once)."""
    requests = [request(0, (i, 100_000), out=400) for i in range(1, 5)] + [request(60, (5, 100_000), out=2)]
    _, rec, log = play(*requests, num_blocks=27_800, **config)
    assert rec.preemptions[:4].sum() == 0
    return rec, max(row[7] for row in log)


def test_vllm_pr_37307_with_full_length_reservation_it_waits():
    rec, running = fifth_long_prompt()
    assert running == 4
    assert rec.preemptions[4] == 0
    assert rec.admit_s[4] == min(rec.finish_s[:4])


@pytest.mark.parametrize("caching", [True, False])
def test_vllm_pr_37307_without_it_is_admitted_and_preempted(caching):
    """Without a cache again and again; with one it finds its blocks, and then waits for the next chunk's to be free."""
    rec, running = fifth_long_prompt(scheduler_reserve_full_isl=False, enable_prefix_caching=caching)
    assert running == 5
    assert rec.admit_s[4] == 60
    assert rec.preemptions[4] == 1 if caching else rec.preemptions[4] > 10
    assert (
        0 < rec.recomputed_tokens[4] < 40_960 if caching else rec.recomputed_tokens[4] > 10 * 40_960
    )  # five chunks each time
    assert rec.finish_s[4] > min(rec.finish_s[:4])
