"""The one table of changes: each made by the --set values it prints, or a line that says why there is none."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from calibrate.profile import bundled_profile, bundled_profiles, fitting
from kvcast import api
from kvcast.config import override, scenario_from_doc
from kvcast.scenario.toml import dumps
from kvcast.studies.change import COSTS, FREE
from kvcast.studies.levers import ADVICE, LEVERS, OVERLOAD, ROUTER, SPLIT, changes, without_changes
from sim.measure.causes import CAUSES
from sim.scenario import CacheConfig, ClusterConfig, EngineConfig, HardwareConfig, TierConfig
from tests.test_explain import DOCUMENT, SYSTEM, scenario

HOST = TierConfig("host", capacity_blocks=150, bandwidth_gb_per_s=20.0)
EVERYTHING = scenario(
    replace(DOCUMENT, shuffle=5),
    SYSTEM,
    engine=EngineConfig(block_size=32, kv_blocks=1000),
    cluster=ClusterConfig(replicas=4),
    cache=CacheConfig(policy="s3fifo", policy_params={"small_share": 0.2}),
    tenants=3,
    isolation=True,
)
PURPOSES = sorted({purpose for lever in LEVERS for purpose in lever.purposes})


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("cache", [EVERYTHING.cache, CacheConfig(tiers=(HOST,)), CacheConfig(enabled=False)])
def test_what_is_printed_makes_the_change(purpose: str, cache: CacheConfig) -> None:
    given = replace(EVERYTHING, cache=cache)
    doc = tomllib.loads(dumps(given))
    for change in changes(purpose, given):
        made = scenario_from_doc(override(doc, change.sets))
        assert made == scenario_from_doc(tomllib.loads(dumps(change.scenario))) != given, change.words
        assert (change.costs == FREE) == (change.asks_for == ""), change.words


def test_every_lever_changes_something_or_says_why_not_in_a_line() -> None:
    alone = replace(scenario(engine=EngineConfig(block_size=1)), cache=CacheConfig(enabled=False))
    for given in (EVERYTHING, alone):
        for purpose in PURPOSES:
            silent = without_changes(purpose, given)
            mine = [lever.name for lever in LEVERS if purpose in lever.purposes]
            assert set(silent) <= set(mine)
            assert (len(silent) < len(mine)) == bool(changes(purpose, given))
            assert all(reason and "\n" not in reason for reason in silent.values())
    assert without_changes(ADVICE, alone)["router"] == "one replica: nothing to route"
    assert without_changes(ADVICE, EVERYTHING) == {
        "prefix cache": "it is on",
        "GPUs a replica": "no profile of this GPU and model at another width that divides 4 GPUs",
    }


def test_the_table_names_each_lever_once_and_knows_its_purposes_and_costs() -> None:
    assert len({lever.name for lever in LEVERS}) == len(LEVERS)
    assert {lever.costs for lever in LEVERS} == set(COSTS)
    assert {*PURPOSES} - {ADVICE, OVERLOAD, ROUTER, SPLIT} <= {*CAUSES, "evicted_policy", "evicted_memory"}


def test_the_longest_cached_prefix_goes_first_where_the_engine_has_that_order() -> None:
    def tried(**engine: str) -> tuple[list, str | None]:
        given = replace(scenario(engine=EngineConfig(**engine)), cache=CacheConfig())
        name = "longest cached prefix first"
        return [one for one in changes(OVERLOAD, given) if "lpm" in one.sets[0]], without_changes(OVERLOAD, given).get(
            name
        )

    ((vllm,), none) = tried()
    assert none is None
    assert vllm.scenario.engine.scheduler_policy == "lpm"
    assert vllm.costs == "engine", "vLLM has no flag for it"
    ((sglang,), _) = tried(semantics="sglang")
    assert sglang.scenario.engine.schedule_policy == "lpm"
    assert sglang.costs == FREE
    assert tried(scheduler_policy="priority") == ([], "scheduler_policy = 'priority' already")
    assert tried(semantics="trtllm") == ([], "an order by cached prefix is of semantics = vllm or sglang")


def test_advice_and_fixes_say_the_same_of_the_same_lever() -> None:
    advised = {change.words: change for change in changes(ADVICE, EVERYTHING)}
    for cause in ("other_replica", "evicted_policy"):
        fixes = changes(cause, EVERYTHING)
        assert fixes
        assert all(advised[change.words] == change for change in fixes)
    assert not any("random" in words for words in advised)


def test_two_changes_together_ask_for_both_and_cost_what_the_dearer_does() -> None:
    by_words = {change.words: change for change in changes(ADVICE, EVERYTHING)}
    fp8, policy = by_words["KV cache in fp8"], by_words["eviction policy s3fifo -> lru"]
    both = policy.and_then(fp8)
    assert both.words == "eviction policy s3fifo -> lru, and KV cache in fp8"
    assert both.asks_for == "a check of the answers' quality"
    assert both.costs == "quality"
    assert both.sets == ("cache.policy=lru", "cache.policy_params={}", "model.kv_dtype=fp8")


def test_a_width_is_advised_where_a_profile_of_the_gpu_fits() -> None:
    given = replace(EVERYTHING, hardware=HardwareConfig(profile="h200-qwen3-32b-tp2-aic", tensor_parallel=2))
    given = replace(given, model=replace(given.model, name="qwen3-32b"))
    device = str(bundled_profile("h200-qwen3-32b-tp2-aic").device["name"])
    widths = {one.tensor_parallel for one in fitting(device, "qwen3-32b", given.model.dtype)} - {2}
    found = [change.scenario for change in changes(ADVICE, given) if change.sets[0].startswith("hardware.tensor")]
    assert {one.hardware.tensor_parallel for one in found} == {width for width in widths if 8 % width == 0} != set()
    assert all(one.hardware.tensor_parallel * one.cluster.replicas == 8 for one in found)
    assert all(api.resolve(one).profile.device["name"] == device for one in found)


def test_fitting_is_the_one_search_of_the_bundled_profiles() -> None:
    every = fitting()
    assert [one.id for one in every] == bundled_profiles()
    for one in every:
        same = fitting(one.device["name"], one.model, one.dtype, one.tensor_parallel, one.kv_dtype)
        assert one in same
        assert all(other.fits(str(one.model), one.dtype, one.tensor_parallel) for other in same)
        assert {other.device["name"] for other in same} == {one.device["name"]}
    assert fitting("no such GPU") == fitting(model="no such model") == fitting(tp=1024) == []
    assert fitting(dtype="fp16") == fitting(dtype="bf16") != []
