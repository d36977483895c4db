"""Scenario files: what loads, what it becomes, and the one line a wrong one gets."""
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcast import simulate
from kvcast.config import apply_overrides, load_scenario, scenario_from_doc
from kvcast.toml import dumps
from sim.scenario import CacheConfig, ClusterConfig, EngineConfig, Scenario, SloClass, SloConfig
from workloads.config import Dist, Layer, MixClass, WorkloadConfig
from workloads.errors import InputError

MIX = """
name = "mix"
[workload]
rate = 2
duration_s = 60
[[workload.class]]
name = "chat"
share = 1.0
output = { kind = "lognormal", median = 200, sigma = 0.5 }
[[workload.class.layers]]
name = "system"
scope = "global"
tokens = { value = 500 }
[[workload.class.layers]]
name = "user"
tokens = { kind = "uniform", low = 5, high = 50 }
[engine]
block_size = 32
[slo]
attainment = 0.9
[slo.classes.fast]
ttft_s = 0.5
[slo.classes."a b"]
tpot_s = 0.05
"""


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    path = tmp_path / "mix.toml"
    path.write_text(MIX)
    return path


def test_a_file_becomes_the_frozen_tree(mix):
    scenario = load_scenario(mix)
    assert scenario.engine.block_size == 32
    assert scenario.workload.class_[0].layers[0] == Layer("system", "global", Dist(value=500))
    assert scenario.slo.classes == {"fast": SloClass(ttft_s=0.5), "a b": SloClass(tpot_s=0.05)}
    assert isinstance(scenario.workload.rate, float)  # an integer where a number is asked for is fine


def test_overrides_take_toml_literals_bare_words_and_names(mix):
    scenario = load_scenario(mix, [
        "cache.policy=lfu", "engine.kv_blocks=900", "cache.enabled=false", "seed=7", "slo.attainment=",
        "workload.class.chat.layers.user.tokens.high=80", "workload.class.0.priority=3",
    ])  # fmt: skip
    assert scenario.cache == CacheConfig(enabled=False, policy="lfu")
    assert (scenario.engine.kv_blocks, scenario.seed, scenario.slo.attainment) == (900, 7, None)
    assert scenario.workload.class_[0].layers[1].tokens.high == 80
    assert scenario.workload.class_[0].priority == 3


def test_overrides_leave_the_tables_alone():
    doc = {"workload": {"preset": "chat"}}
    apply_overrides(doc, ["workload.preset=rag", "cache.policy=lfu"])
    assert doc == {"workload": {"preset": "chat"}}


def test_dumps_loads_as_the_same_scenario(mix):
    scenario = load_scenario(mix)
    text = dumps(scenario)
    assert scenario_from_doc(tomllib.loads(text)) == scenario
    assert dumps(scenario_from_doc(tomllib.loads(text))) == text


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
NUMBERS = st.floats(1e-6, 1e12)


@settings(max_examples=60, deadline=None)
@given(NAMES, NUMBERS, st.integers(0, 2**63), st.booleans(), st.dictionaries(NAMES, NUMBERS, max_size=3), st.lists(NUMBERS, max_size=3))
def test_dumps_round_trips_any_text_and_number(name, number, seed, flag, classes, values):
    scenario = Scenario(
        workload=WorkloadConfig(
            rate=number, class_=(MixClass(name=name, isolation=flag, output=Dist("empirical", values=tuple(values))),)
        ),
        seed=seed, name=name, cache=CacheConfig(enabled=flag), engine=EngineConfig(step_overhead_ms=number),
        cluster=ClusterConfig(replicas=3), slo=SloConfig(classes={k: SloClass(e2e_s=v) for k, v in classes.items()}),
    )  # fmt: skip
    assert scenario_from_doc(tomllib.loads(dumps(scenario))) == scenario


@pytest.mark.parametrize(("override", "expected"), [
    ("engine.blok_size=3", "[engine] has no key 'blok_size' (did you mean block_size?)"),
    ("enginee.block_size=3", "the file has no key 'enginee' (did you mean engine?)"),
    ("workload.clas=3", "[workload] has no key 'clas' (did you mean class?)"),
    ("workload.class_=3", "[workload] has no key 'class_' (did you mean class?)"),
    ("workload.class.chat.layers.user.tokns.value=3", "[workload.class.chat.layers.user] has no key 'tokns' (did you mean tokens?)"),
    ("workload.class.chat.turns=3", "[workload.class.chat] turns = 3: expected a table"),
    ("slo.classes.fast.ttft=1", "[slo.classes.fast] has no key 'ttft' (did you mean ttft_s?)"),
    ("slo.classes.fast.ttft_s=0", "[slo.classes.fast] ttft_s = 0.0: expected above 0"),
    ("engine.block_size=abc", '[engine] block_size = "abc": expected an integer'),
    ("engine.block_size=16.5", "[engine] block_size = 16.5: expected an integer"),
    ("engine.block_size=0", "[engine] block_size = 0: expected 1 or more"),
    ("engine.watermark=1.0", "[engine] watermark = 1.0: expected 0 or more and below 1"),
    ("cache.enabled=1", "[cache] enabled = 1: expected a boolean"),
    ("seed=true", "seed = true: expected an integer"),
    ("seed=-1", "seed = -1: expected 0 or more"),
    ("run.horizon_s=nan", "[run] horizon_s = nan: expected a finite number"),
    ("run.horizon_s=-5", "[run] horizon_s = -5.0: expected above 0"),
    ("slo.attainment=95", "[slo] attainment = 95.0: expected above 0 and at most 1"),
    ("engine.scheduler_policy=fcf", "[engine] scheduler_policy = 'fcf': expected fcfs or priority (did you mean fcfs?)"),
    ("engine.semantics=tgi", "[engine] semantics = 'tgi': expected vllm"),
    ("engine=3", "engine = 3: expected a table"),
    ("workload.trace=x.jsonl", "[workload] has trace and class: expected exactly one of preset, trace and class"),
    ("workload.loop=concurrency", "[workload] concurrency is missing"),
])  # fmt: skip
def test_what_is_wrong_is_one_line_with_file_section_key_value_and_expectation(mix, override, expected):
    with pytest.raises(InputError) as error:
        load_scenario(mix, [override])
    line = str(error.value)
    assert line.startswith(f"{mix}: {expected}")
    assert "\n" not in line


def test_unknown_policy_and_router_are_answered_with_the_right_name(mix):
    for override, close in (("cache.policy=lruu", "lru"), ("cluster.router=roundrobin", "round-robin")):
        with pytest.raises(InputError, match=rf"did you mean {close}\?"):
            load_scenario(mix, [override])


def test_an_empty_workload_a_missing_file_and_broken_toml(tmp_path):
    path = tmp_path / "s.toml"
    with pytest.raises(InputError, match=r"s\.toml: no such file"):
        load_scenario(path)
    path.write_text("[workload\n")
    with pytest.raises(InputError, match=r"s\.toml: not valid TOML: .*line 1"):
        load_scenario(path)
    path.write_text("seed = 1\n")
    with pytest.raises(InputError, match="workload is missing"):
        load_scenario(path)
    path.write_text("[workload]\n")
    with pytest.raises(InputError, match="none of preset, trace and class"):
        load_scenario(path)


def test_bad_overrides(mix):
    for override, message in (("cache.policy", "expected section.key=value"), ("workload.class.cat.x=1", "no entry 'cat' .did you mean chat")):
        with pytest.raises(InputError, match=message):
            load_scenario(mix, [override])


def test_paths_are_taken_from_the_scenario_files_folder(tmp_path, monkeypatch):
    (tmp_path / "t.jsonl").write_text("{}")
    path = tmp_path / "s.toml"
    path.write_text('[workload]\ntrace = "t.jsonl"\n')
    monkeypatch.chdir("/")
    assert load_scenario(path).workload.trace == str((tmp_path / "t.jsonl").resolve())


def test_a_scenario_built_in_python_is_checked_too():
    scenario = Scenario(WorkloadConfig(preset="demo"), engine=EngineConfig(block_size=0))
    with pytest.raises(InputError, match=r"\[engine\] block_size = 0: expected 1 or more"):
        simulate(scenario)


def test_docs_list_every_key_with_its_help():
    from kvcast.reference import as_markdown

    text = (Path(__file__).parent.parent / "docs" / "scenario.md").read_text()
    assert text == as_markdown(), "run: python -m kvcast.reference > docs/scenario.md"
    for key in ("gpu_memory_utilization", "attainment", "timestamp_s", "rate_scale", "slo_class"):
        assert f"| `{key}` |" in text
