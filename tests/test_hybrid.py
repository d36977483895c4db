"""Layers that keep a window, a chunk or a state: what vLLM's KV groups hold, forget and hit, in tiny worlds by hand and
in random ones against a reference block by block.

    KVCAST_DATA=... python -m pytest tests/test_hybrid.py        # recorded cases: tests/test_engine_cases.py
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibrate.kv_groups import KvGroup, KvLayers, groups_of, longest_request, plan_groups, token_count
from calibrate.memory import GIB, GpuMemory, capacity
from calibrate.models import resolve_model
from calibrate.sources.roofline import roofline_profile
from kvcast import api
from kvcast.config import scenario_from_doc
from kvcast.planner.launch_log import read_log
from kvcast.studies.levers import ADVICE, changes, without_changes
from kvcast.validation.engine_cases import UnitStep
from sim.kvcache.groups import lookup
from sim.kvcache.groups.rules import DENSE, GroupRules
from sim.measure.causes import miss_causes
from sim.recording import Recording
from sim.scenario import EngineParams
from sim.simulate import run as simulate
from tests import fuzz, fuzz_hybrid, reference_vllm
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.readers.engine_case import read_case, to_workload

B = 4
FULL = {"type": "full", "block_size": B}
WINDOW = {"type": "sliding_window", "block_size": B, "sliding_window": 9}  # two blocks
CHUNKED = {"type": "chunked_local", "block_size": B, "attention_chunk_size": 16}
STATE = {"type": "mamba", "block_size": B}
CONFIG = {
    "block_size": B,
    "num_blocks": 200,
    "max_model_len": 10_000,
    "max_num_batched_tokens": 1000,
    "max_num_seqs": 8,
}


def play(*segments: list[list], groups: list[dict], out: int = 1, **config: Any) -> tuple[Workload, Recording, Any]:
    """Requests one after the other, each alone; (workload, recording, scheduler)."""
    requests = [
        {"id": i, "arrival_step": 100 * i, "segments": prompt, "max_tokens": out} for i, prompt in enumerate(segments)
    ]
    workload, params = to_workload({"config": CONFIG | {"kv_cache_groups": groups} | config, "requests": requests})
    ended: list[Any] = []
    rec = simulate(workload, EngineParams(**params), UnitStep(), on_end=ended.extend)
    assert all(rec.status == 0)
    return workload, rec, ended[0].scheduler


def own(name: int, tokens: int = 12) -> list:
    return ["s", 1000 + name, tokens]


SHARED = ["s", 1, 41]


# ---- what is hit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "interval", "hits"),
    [
        # a second prompt with the same start finds no window before where they part; its own pin helps the third
        ([WINDOW, FULL], 0, [0, 0, 40, 40]),
        ([WINDOW, FULL], None, [0, 40, 40, 40]),
        ([WINDOW, FULL], 20, [0, 40, 40, 40]),
        ([WINDOW, FULL], 24, [0, 24, 40, 40]),
        # one kind alone sees nowhere that others had more
        ([WINDOW], 0, [0, 0, 0, 0]),
        ([WINDOW], None, [0, 40, 40, 40]),
        ([STATE, FULL], 0, [0, 0, 40, 40]),
        ([STATE, FULL], 20, [0, 0, 40, 40]),
        ([CHUNKED], 0, [48, 48, 48, 48]),  # all before the last chunk is never looked at
        ([CHUNKED, FULL], 0, [0, 40, 40, 40]),
        ([FULL, FULL], 0, [0, 40, 40, 40]),
    ],
)
def test_prompts_that_share_a_start_one_after_the_other(groups, interval, hits):
    prompts = [[SHARED, own(i)] for i in range(4)]
    _, rec, _ = play(*prompts, groups=groups, prefix_cache_retention_interval=interval)
    assert rec.hit_tokens.tolist() == hits


@pytest.mark.parametrize("groups", [[WINDOW], [WINDOW, FULL], [STATE, FULL], [CHUNKED, FULL], [FULL, FULL]])
def test_the_same_prompt_again_hits_by_default_too(groups):
    _, rec, _ = play([SHARED], [SHARED], groups=groups)
    assert rec.hit_tokens.tolist() == [0, 40]


def test_a_conversation_goes_on_where_its_prompt_ended_not_where_its_answer_did():
    """Of a window only what lies before the prompt's end is kept; a state likewise; full layers keep the answer too."""
    turn = [SHARED, ["o", 0, 30], own(9)]
    for groups, hit in (([WINDOW, FULL], 40), ([STATE, FULL], 40), ([FULL, FULL], 68)):
        _, rec, _ = play([SHARED], turn, groups=groups, out=30)
        assert rec.hit_tokens.tolist() == [0, hit]
    _, rec, _ = play([SHARED], turn, groups=[WINDOW, FULL], out=30, prefix_cache_retention_interval=None)
    assert rec.hit_tokens.tolist() == [0, 68]


def test_a_window_holds_no_more_than_it_looks_back():
    """41 tokens in chunks of 8 take 11 blocks of a full group, but at most 5 of a window of 9: two, one that it begins
    in, and the step's two."""
    _, _, s = play([["s", 1, 400]], groups=[WINDOW], num_blocks=6, max_num_batched_tokens=8)
    assert s.cache.taken == 100
    assert s.cache.free == 6
    with pytest.raises(AssertionError):
        play([["s", 1, 400]], groups=[FULL, WINDOW], num_blocks=60, max_num_batched_tokens=8)


# ---- rules of one group ----------------------------------------------------------------------------------------------


def test_blocks_of_a_window_that_are_hashed():
    def kept(interval: int, aligned: int = B, window: int = 9) -> list[tuple[int, int]]:
        rules = GroupRules(0, KvGroup("window", B, window), aligned, interval)
        return rules.kept(0, 12, (41, 0))

    assert kept(0) == [(8, 10)], "the two before token 40"
    assert kept(DENSE) == [(0, 12)]
    assert kept(DENSE, aligned=16) == [(2, 4), (6, 8), (10, 12)]
    assert kept(16) == [(2, 4), (6, 8), (8, 10), (10, 12)]
    assert kept(0, window=17) == [(6, 10)]


def test_a_look_up_goes_as_far_as_every_group_agrees():
    full, window = (
        GroupRules(i, KvGroup(kind, B, w), B, 0) for i, (kind, w) in enumerate([("full", 0), ("window", 9)])
    )
    content = {0: [(0, 10)], 1: [(3, 5), (6, 7)]}  # nodes of the two groups
    paths = [[(0, 20)], [(1, 20)]]
    find = lookup.find
    assert find([[full], [window]], paths, content.__getitem__, 79) == (20, 40)
    content[1] = [(3, 5), (6, 8)]
    assert find([[full], [window]], paths, content.__getitem__, 79) == (32, 40)
    assert find([[full], [window]], paths, content.__getitem__, 31) == (20, 28)
    content[1] = [(0, 1)]
    assert find([[full], [window]], paths, content.__getitem__, 79) == (4, 40), "a start shorter than the window"


def test_two_windows_look_again_until_they_agree():
    """The second cuts what the first had, and there the first has too little."""
    short, long = (GroupRules(i, KvGroup("window", B, w), B, 0) for i, w in enumerate((5, 13)))
    content = {0: [(0, 1), (9, 10)], 1: [(0, 8)]}
    paths = [[(0, 20)], [(1, 20)]]
    assert lookup.find([[short], [long]], paths, content.__getitem__, 79) == (4, 40)
    content[0] = [(0, 1), (7, 10)]
    assert lookup.find([[short], [long]], paths, content.__getitem__, 79) == (32, 40)


# ---- groups and memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "groups"),
    [
        ([("full", 12), ("window", 12)], [12, 12]),
        ([("full", 5), ("window", 25)], [5] * 6),
        ([("full", 7), ("window", 22)], [7, 6, 6, 5, 5]),
        ([("full", 12), ("window", 13)], [12, 13]),
    ],
)
def test_layers_are_packed_into_groups_of_the_smallest_bucket(layers, groups):
    packed = plan_groups([KvLayers(kind, n, 64, 128 if kind == "window" else 0) for kind, n in layers], 16)
    assert [group.layers for group in packed.groups] == groups
    assert packed.block_bytes == 16 * 64 * max(groups)


def test_pages_are_made_equal_by_longer_blocks():
    packed = plan_groups([KvLayers("full", 12, 64), KvLayers("window", 12, 128, 256)], 16)
    assert [group.block_size for group in packed.groups] == [32, 16]
    assert packed.block_bytes == 16 * 128 * 12


def test_the_states_of_a_start_up_log():
    """33.04 requests of 32,768 tokens hold in 290,864 printed tokens (Qwen3.5-27B's start-up log): 42 pages of
    attention and one for each of three groups of states, of which nothing is cached."""
    model = resolve_model("qwen3.5-27b")
    packed = groups_of(model.layer_groups, 2, 1, 784, cached=False)
    assert packed is not None
    assert [(g.kind, g.layers) for g in packed.groups] == [("constant", 16)] * 3 + [("full", 16)]
    assert packed.block_bytes == 16 * 784 * 4096
    assert token_count(packed.groups, 1487) == 290_864
    assert round(1487 / (-(-32_768 // 784) + 3), 2) == 33.04


def test_memory_of_a_model_with_windows():
    """gpt-oss: half the layers a block, so twice the blocks of the same memory; a request needs its full layers' blocks
    and a window's."""
    profile = roofline_profile("h100", "mxfp4")
    one = GpuMemory(profile, resolve_model("gpt-oss-20b"), "mxfp4", "bf16", 1, 0.92, 16, 8192)
    groups = replace(one, hybrid=True)
    assert groups.blocks() // 2 == one.blocks()
    assert groups.tokens(groups.blocks()) == one.blocks() * 16
    assert "2 KV groups (1 window 128 + 1 full)" in "".join(capacity(groups).lines)
    assert not any("counted as full" in line for line in capacity(groups).lines)
    pool = groups.pool
    assert pool is not None
    most = longest_request(pool.groups, 2000, 8192, 10**6)
    assert most == (2000 - (-(-(127 + 8192) // 16) + 1)) * 16
    assert longest_request(pool.groups, 3, 8192, 10**6) == 16
    assert GIB // pool.block_bytes == 2730
    with pytest.raises(InputError, match=r"at most 2,688, or engine.kv_blocks = 513$"):
        api.resolve(scenario("gpt-oss-20b", kv_blocks=338, max_model_len=4096))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gpt-oss-20b", ["window", "full"]),
        ("gemma-2-9b", ["window", "full"]),
        ("gemma-3-12b", ["window"] * 5 + ["full"]),
        ("phi-3-mini", ["window"]),
        ("llama-4-scout", ["chunked"] * 3 + ["full"]),
        ("qwen3.5-27b", ["state"] * 3 + ["full"]),
        ("nemotron-3-nano-30b-a3b", ["state"] * 4 + ["full"]),
        ("llama-3.1-8b", []),
        ("deepseek-v3", []),
    ],
)
def test_groups_of_published_models(name, kinds):
    resolved = api.resolve(scenario(name))
    params = resolved.params
    assert [group.kind for group in params.kv_groups] == kinds
    assert params.block_size == (784 if name == "qwen3.5-27b" else params.block_size)
    if kinds:
        assert "vLLM prints" in "".join(resolved.kv_lines)
    assert any("VLLM_ALLOW_CHUNKED" in line for line in resolved.kv_lines) == ("chunked" in kinds)
    if "state" in kinds:
        with pytest.raises(InputError, match="disable_hybrid_kv_cache_manager = true: expected false"):
            api.resolve(scenario(name, disable_hybrid_kv_cache_manager=True))
    else:
        assert api.resolve(scenario(name, disable_hybrid_kv_cache_manager=True)).params.kv_groups == ()
    assert api.resolve(scenario(name, semantics="sglang")).params.kv_groups == ()


def scenario(model: str, **engine: Any) -> Any:
    large = model.startswith(("llama-4", "deepseek"))
    return scenario_from_doc(
        {
            "workload": {"preset": "chat", "requests": 40},
            "model": {"name": model, "dtype": "fp8" if large else "bf16"},
            "hardware": {"profile": "roofline:h200", "tensor_parallel": 8 if large else 1},
            "engine": engine,
        }
    )


def test_the_tokens_of_a_log_are_blocks_of_every_group(tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(
        "INFO 01-01 00:00:00 [utils.py:253] non-default args: {'model': 'openai/gpt-oss-20b'}\n"
        "INFO 01-01 00:00:00 [kv_cache_utils.py:1087] GPU KV cache size: 1,123,792 tokens\n"
        "INFO 01-01 00:00:00 [kv_cache_utils.py:1091] Maximum concurrency for 32,768 tokens per request: 60.2x\n"
    )
    launch = read_log(log)
    document = {
        "workload": {"preset": "chat", "requests": 10},
        "model": {"name": "gpt-oss-20b", "dtype": "mxfp4"},
        "hardware": {"gpu": "h100"},
        "engine": {"kv_blocks": 123_289},
    }
    launch.fit(document, "log")
    assert launch.sets[-1] == "engine.kv_blocks=140474"
    assert "(+0.0 %)" in launch.notes[-1]


def test_a_plan_advises_nothing_that_groups_have_no_rule_for():
    given = scenario("gpt-oss-20b")
    assert {"eviction policy", "a host tier"} <= without_changes(ADVICE, given).keys()
    assert [change.sets for change in changes("window", given)] == [("engine.prefix_cache_retention_interval=-1",)]
    assert changes("window", scenario("gpt-oss-20b", prefix_cache_retention_interval=DENSE)) == []


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3.5-27b"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_of_a_model_with_groups_stepped_is_a_run_fast_forwarded(name, asynchronous):
    given = replace(scenario(name, kv_blocks=1200, max_model_len=8192, async_scheduling=asynchronous), seed=3)
    prepared = api.prepare(given)
    stepped, forwarded = (
        simulate(prepared.workload, prepared.resolved.params, prepared.step_time, fast_forward=fast, replicas=2)
        for fast in (False, True)
    )
    assert next(fuzz.unequal(stepped, forwarded), "") == ""


@pytest.mark.parametrize(
    ("section", "keys", "says"),
    [
        ("cache", {"policy": "lfu"}, r"\[cache\] policy = 'lfu': expected 'lru'"),
        ("cache", {"tiers": [{"name": "d", "bandwidth_gb_per_s": 9.0, "capacity_gib": 9.0}]}, r"\[cache\] tiers"),
        ("engine", {"prefix_cache_retention_interval": -2}, "expected -1, or 0 or more"),
    ],
)
def test_what_is_not_known_of_groups_is_refused_by_name(section, keys, says):
    document = {
        "workload": {"preset": "chat", "requests": 10},
        "model": {"name": "gpt-oss-20b"},
        "hardware": {"profile": "roofline:h200"},
    }
    with pytest.raises(InputError, match=says):
        api.run(api.prepare(scenario_from_doc(document | {section: keys})))


# ---- where the tokens went -------------------------------------------------------------------------------------------


def causes_of(workload: Workload, rec: Recording) -> dict[str, list[int]]:
    every = np.arange(len(workload))
    found = miss_causes(rec, workload, every, every, len(workload))
    total = rec.hit_tokens + sum(found.tokens.values())
    assert total.tolist() == workload.prompt_tokens.tolist()
    return {cause: tokens.tolist() for cause, tokens in found.tokens.items() if tokens.any()}


def test_what_a_window_had_not_kept_is_its_own_cause():
    prompts = [[SHARED, own(i)] for i in range(3)]
    workload, rec, _ = play(*prompts, groups=[WINDOW, FULL])
    assert causes_of(workload, rec) == {"window": [0, 40, 0], "cold": [52, 11, 11], "partial_block": [1, 2, 2]}
    workload, rec, _ = play(*prompts, groups=[WINDOW, FULL], prefix_cache_retention_interval=None)
    assert "window" not in causes_of(workload, rec)


def test_what_went_for_want_of_memory_is_evicted_with_windows_too():
    other = [["s", 2, 200]]
    for groups, blocks in (([WINDOW, FULL], 110), ([FULL, FULL], 110)):
        workload, rec, _ = play([SHARED], other, [SHARED], groups=groups, num_blocks=blocks)
        assert causes_of(workload, rec)["evicted"] == [0, 0, 40]


def test_hits_and_steps_of_the_recorded_workloads(data_dir):
    """Three workloads of vLLM's own recordings, with windows: the dense figures are its own, the default's those of the
    rules that replay its cases (docs/hybrid.md)."""
    expected = {
        "v30_500_shared": [(66.63, 905), (24.77, 908), (24.12, 914), (0.0, 906), (65.78, 905)],
        "v32_600_chat": [(49.67, 1538), (46.15, 1875), (46.48, 1874), (14.99, 1403), (54.36, 1402)],
    }
    for file, want in expected.items():
        workload, plain = to_workload(read_case(data_dir / "engine_cases_v2" / f"{file}.json"))
        full, window = KvGroup("full", plain["block_size"]), KvGroup("window", plain["block_size"], 256)
        got = []
        for groups, interval in (
            ((), 0),
            ((full, window), 0),
            ((full, window), DENSE),
            ((window,), 0),
            ((window,), DENSE),
        ):
            given = replace(EngineParams(**plain), kv_groups=groups, prefix_cache_retention_interval=interval)
            log: list[tuple] = []
            rec = simulate(workload, given, UnitStep(), step_log=log)
            got.append((round(100 * float(rec.hit_tokens.sum() / workload.prompt_tokens.sum()), 2), len(log)))
        assert got == want, file


# ---- at random -------------------------------------------------------------------------------------------------------


def test_random_cases_with_groups_against_the_reference():
    _, cases, failing = fuzz.fuzz(60_000, 5, engine_name="hybrid")
    assert failing is None, fuzz.first_difference(failing)
    assert cases > 100


def test_random_cases_have_what_they_are_for():
    """Hits cut short by a window, preemptions, states refused in the step that made them, chunks cut."""
    seen = dict.fromkeys(("window", "preempted", "junction", "hit"), 0)
    for index in range(60):
        try:
            engine = fuzz.run_reference(fuzz_hybrid.random_case(0, index))
        except reference_vllm.StuckError:
            continue
        served = [r for r in engine.requests if not r.rejected]
        seen["window"] += any(engine.lost_to_windows.values())
        seen["preempted"] += any(r.preemptions for r in served)
        seen["junction"] += any(engine.junction.values())
        seen["hit"] += any(r.cached[0] for r in served)
    assert min(seen.values()) >= 5, seen


def test_several_replicas_stepped_and_fast_forwarded():
    compared = 0
    for index in range(40):
        case = fuzz_hybrid.random_case(11, index)
        case["config"]["num_blocks"] *= 3
        try:
            assert fuzz.fleet_difference(case, 11) == "", case
            compared += 1
        except RuntimeError:  # a pool too small for what it is given
            continue
    assert compared > 30


def test_a_table_is_let_go_of_in_any_order():
    """Spans that touch, nest and repeat: what is in them all."""
    rng = random.Random(3)
    for _ in range(300):
        lists = [
            [(lo, lo + rng.randint(1, 3)) for lo in sorted(rng.sample(range(0, 40, 4), rng.randint(0, 6)))]
            for _ in range(3)
        ]
        want = set.intersection(*({x for lo, hi in spans for x in range(lo, hi)} for spans in lists))
        assert {x for lo, hi in lookup.common(lists) for x in range(lo, hi)} == want
