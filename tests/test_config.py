"""Scenario files: what loads, what it becomes, and the one line a wrong one gets."""

import os
import tomllib
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcast import resolve, simulate
from kvcast.config import apply_overrides, load_scenario, scenario_from_doc
from kvcast.scenario.toml import dumps
from sim.scenario import CacheConfig, ClusterConfig, EngineConfig, EngineParams, Scenario, SloClass, SloConfig
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
    scenario = load_scenario(
        mix,
        [
            "cache.policy=lfu",
            "engine.kv_blocks=900",
            "cache.enabled=false",
            "seed=7",
            "slo.attainment=",
            "workload.class.chat.layers.user.tokens.high=80",
            "workload.class.0.priority=3",
        ],
    )
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


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=8)
NUMBERS = st.floats(1e-6, 1e6)


@settings(max_examples=60, deadline=None)
@given(
    NAMES,
    NUMBERS,
    st.integers(0, 2**63),
    st.booleans(),
    st.dictionaries(NAMES, NUMBERS, max_size=3),
    st.lists(NUMBERS, max_size=3),
)
def test_dumps_round_trips_any_text_and_number(name, number, seed, flag, classes, values):
    scenario = Scenario(
        workload=WorkloadConfig(
            rate=number, class_=(MixClass(name=name, isolation=flag, output=Dist("empirical", values=tuple(values))),)
        ),
        seed=seed,
        name=name,
        cache=CacheConfig(enabled=flag),
        engine=EngineConfig(step_overhead_ms=number),
        cluster=ClusterConfig(replicas=3),
        slo=SloConfig(classes={k: SloClass(e2e_s=v) for k, v in classes.items()}),
    )
    assert scenario_from_doc(tomllib.loads(dumps(scenario))) == scenario


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("engine.blok_size=3", "[engine] has no key 'blok_size' (did you mean block_size?)"),
        ("enginee.block_size=3", "the file has no key 'enginee' (did you mean engine?)"),
        ("workload.clas=3", "[workload] has no key 'clas' (did you mean class?)"),
        ("workload.class_=3", "[workload] has no key 'class_' (did you mean class?)"),
        (
            "workload.class.chat.layers.user.tokns.value=3",
            "[workload.class.chat.layers.user] has no key 'tokns' (did you mean tokens?)",
        ),
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
        (
            "engine.scheduler_policy=fcf",
            "[engine] scheduler_policy = 'fcf': expected one of fcfs, priority, lpm, vtc (did you mean fcfs?)",
        ),
        ("engine.semantics=tgi", "[engine] semantics = 'tgi': expected one of vllm"),
        ("engine=3", "engine = 3: expected a table"),
        ("workload.trace=x.jsonl", "[workload] has trace and class: expected exactly one of preset, trace and class"),
        ("workload.loop=concurrency", "[workload] concurrency is missing"),
        ('name="a\\u001b[31mb"', "name = 'a\\x1b[31mb': expected text without control characters, not '\\x1b'"),
        (
            'workload.class.chat.name="a\\nb"',
            "workload.class[0].name = 'a\\nb': expected text without control characters, not '\\n'",
        ),
        (
            'slo.classes={"a\\u2028b" = {ttft_s = 1}}',
            "a key of slo.classes = 'a\\u2028b': expected text without control characters",
        ),
    ],
)
def test_what_is_wrong_is_one_line_with_file_section_key_value_and_expectation(mix, override, expected):
    with pytest.raises(InputError) as error:
        load_scenario(mix, [override])
    line = str(error.value)
    assert line.startswith(f"{mix}: {expected}")
    assert "\n" not in line


def test_a_name_that_python_gives_is_refused_too(mix):
    with pytest.raises(InputError, match=r"scenario: name = 'a\\tb': expected text without control characters"):
        resolve(replace(load_scenario(mix), name="a\tb"))


def test_unknown_policy_and_router_are_answered_with_the_right_name(mix):
    for override, close in (
        ("cache.policy=lruu", "lru"),
        ("cache.policy=optimum", "optimal"),
        ("cluster.router=roundrobin", "round-robin"),
    ):
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
    for override, message in (
        ("cache.policy", "expected section.key=value"),
        ("workload.class.cat.x=1", "no entry 'cat' .did you mean chat"),
    ):
        with pytest.raises(InputError, match=message):
            load_scenario(mix, [override])


def test_paths_are_taken_from_the_scenario_files_folder_and_never_from_the_current_one(tmp_path, monkeypatch):
    folder, here = tmp_path / "scenarios", tmp_path / "here"
    for place in (folder, here):
        place.mkdir()
        (place / "t.jsonl").write_text("{}")
    (here / "only_here").mkdir()
    path = folder / "s.toml"
    monkeypatch.chdir(here)
    for written, taken in (
        ("t.jsonl", folder / "t.jsonl"),
        ("../t.jsonl", tmp_path / "t.jsonl"),
        ("noslash", folder / "noslash"),
        ("only_here", folder / "only_here"),
    ):
        path.write_text(f'[workload]\ntrace = "{written}"\n[model]\nconfig = "{written}"\n')
        scenario = load_scenario(path)
        assert (scenario.workload.trace, scenario.model.config) == (str(taken), str(taken))
        override = load_scenario(path, [f"workload.trace={written}"])
        assert override.workload.trace == os.path.abspath(written)
    path.write_text('[workload]\ntrace = "${KVCAST_DATA}/t.jsonl"\n')
    assert load_scenario(path).workload.trace == "${KVCAST_DATA}/t.jsonl"


def test_a_profile_is_a_bundled_name_first_and_a_path_beside_the_scenario_else(tmp_path, monkeypatch):
    folder, here = tmp_path / "scenarios", tmp_path / "here"
    for place, name in ((folder, "mine"), (here, "h200-llama-3.1-8b-aic"), (here, "other"), (here, "llama-3.1-8b")):
        (place / name).mkdir(parents=True)
    path = folder / "s.toml"
    monkeypatch.chdir(here)
    for written, taken in (
        ("h200-llama-3.1-8b-aic", "h200-llama-3.1-8b-aic"),
        ("roofline:H100", "roofline:H100"),
        ("mine", str(folder / "mine")),
        ("other", str(folder / "other")),
        ("x/p.json", str(folder / "x/p.json")),
        ("h200-llama", "h200-llama"),
    ):
        path.write_text(f'[workload]\npreset = "demo"\n[hardware]\nprofile = "{written}"\n')
        assert load_scenario(path).hardware.profile == taken
    path.write_text('[workload]\npreset = "demo"\n')
    assert resolve(load_scenario(path)).model.name == "llama-3.1-8b"  # not the folder of that name here
    path.write_text('[workload]\npreset = "demo"\n[hardware]\nprofile = "other"\n')
    with pytest.raises(InputError, match=rf"{folder}/other: no such file"):
        resolve(load_scenario(path))


def test_a_resolved_scenario_has_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve(Scenario(WorkloadConfig(trace="t.jsonl"))).scenario.workload.trace == str(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("engine.block_size=100000000000000000000", "expected 1 or more and at most 1,000,000"),
        ("engine.kv_blocks=10000000000000000000", "expected 1 or more and at most 1,000,000,000,000"),
        ("engine.max_model_len=1000000001", "at most 1,000,000,000"),
        ("engine.max_num_seqs=1000000000000", "at most 1,000,000,000"),
        ("engine.step_overhead_ms=1e300", "expected 0 or more and at most 1e+06"),
        ("cluster.replicas=100001", "expected 1 or more and at most 100,000"),
        ("hardware.tensor_parallel=100000000000000000000", "at most 8"),
        ("seed=18446744073709551616", "at most 18,446,744,073,709,551,615"),
        ("run.horizon_s=1e10", "expected above 0 and at most 1e+09"),
        ("run.warmup_s=1e300", "at most 1e+09"),
        ("workload.rate=1e-300", "expected above 0, from 1e-09 to 1e+09"),
        ("workload.rate_scale=inf", "expected a finite number"),
        ("workload.requests=10000000000", "at most 1,000,000,000"),
        ("slo.classes.fast.ttft_s=inf", "[slo.classes.fast] ttft_s = inf: expected a finite number"),
        (
            "slo.classes.fast.ttft_s=1e10",
            "[slo.classes.fast] ttft_s = 10000000000.0: expected above 0 and at most 1e+09",
        ),
        ("cost.gpu_hour_usd=1e308", "at most 1e+06"),
        ('model.name=""', "expected a name or a path, not an empty text"),
        ('model.config=""', "expected a name or a path, not an empty text"),
        ('hardware.profile=""', "expected a name or a path, not an empty text"),
        ("workload.class=5", "[workload] class = 5: expected an array"),
        ("engine.block_size=" + "9" * 5000, "[engine] block_size"),
        ("name=\udcff", "not text a scenario can hold"),
    ],
)
def test_what_is_out_of_range_is_one_line_that_states_the_range(mix, override, expected):
    with pytest.raises(InputError) as error:
        load_scenario(mix, [override])
    line = str(error.value)
    assert line.startswith(f"{mix}: ")
    assert expected in line
    assert "\n" not in line


def test_every_number_of_a_scenario_has_a_range():
    from kvcast.scenario.reference import tables

    mixes = ("workload.class",)  # judged by workloads.check
    numbers = [
        (section, f)
        for section, _, cls in tables()
        for f in fields(cls)
        if not section.startswith(mixes) and {"int", "float"} & set(str(f.type).split(" | "))
    ]
    assert len(numbers) > 40
    assert [(section, f.name) for section, f in numbers if f.metadata["limit"] is None] == []


def test_the_engine_of_a_script_has_these_names_and_defaults():
    assert asdict(EngineParams(kv_blocks=25_000)) == {
        "semantics": "vllm",
        "kv_blocks": 25_000,
        "kv_groups": (),
        "prefix_cache_retention_interval": 0,
        "disable_hybrid_kv_cache_manager": False,
        "block_size": 16,
        "ranks": 1,
        "max_model_len": 131072,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "long_prefill_token_threshold": 0,
        "long_prefill_token_threshold_adaptive": False,
        "max_num_active_seqs": None,
        "prefill_schedule_interval": 1,
        "max_num_queued_reqs": None,
        "max_num_queued_tokens": None,
        "scheduler_policy": "fcfs",
        "watermark": 0.0,
        "reserve_full_isl": True,
        "max_loras": 0,
        "async_scheduling": True,
        "calls_ahead": True,
        "preemption_victim": "fcfs",
        "caching": True,
        "policy": "lru",
        "policy_params": {},
        "tiers": (),
        "speculative": None,
        "adapters": None,
        "tenant_weights": {},
        "step_overhead_s": 0.0,
        "frontend_s": 0.0,
        "frontend_us_per_prompt_token": 0.0,
        "frontend_us_per_output_token": 0.0,
        "frontend_requests_per_s": None,
        "frontend_workers": 1,
        "schedule_policy": "fcfs",
        "chunked_prefill_size": 8192,
        "max_prefill_tokens": 16384,
        "schedule_conservativeness": 1.0,
        "priority_scheduling": False,
        "overlap_schedule": True,
        "mixed_chunk": False,
        "scheduler_recv_interval": 1,
        "retraction_policy": "length",
        "capacity_policy": "guaranteed-no-evict",
        "overlap_scheduler": True,
        "chunked_context": False,
        "batch_wait_timeout_iters": 0,
        "batch_wait_max_tokens_ratio": 0.0,
        "init_new_token_ratio": 0.7,
        "min_new_token_ratio_factor": 0.14,
        "new_token_ratio_decay_steps": 600,
        "retract_decode_steps": 20,
        "clip_max_new_tokens": 4096,
    }
    with pytest.raises(TypeError, match="kv_blocks"):
        EngineParams()


def another(f) -> object:
    """A value of the key that is not its default."""
    values = {
        **{"bool": [not f.default], "float": [0.5], "str": f.metadata["choices"]},
        "dict[str, float]": [{"document-qa": 2.0}],
    }.get(f.type, [4096])
    return next(value for value in values if value != f.default)


@pytest.mark.parametrize("f", [f for f in fields(EngineConfig) if f.metadata["engines"]], ids=lambda f: f.name)
def test_a_key_of_one_engine_is_refused_by_the_other_and_reaches_its_own(f):
    has_it = f.metadata["engines"]
    mine, other = has_it[-1], next(name for name in ("vllm", "sglang") if name not in has_it)
    value = another(f)
    order = {"scheduler_policy": "vtc"} if f.name == "tenant_weights" else {}
    doc = {"workload": {"preset": "demo"}, "engine": {"semantics": other, f.name: value}}
    words = " or ".join(map(repr, has_it))
    with pytest.raises(InputError, match=rf"\[engine\] {f.name} = .*: only semantics = {words} has it"):
        scenario_from_doc(doc)
    engine = scenario_from_doc({**doc, "engine": {"semantics": mine, f.name: value, **order}})
    assert getattr(resolve(engine).params, f.name) == value


def test_a_date_is_a_name_and_no_value(mix):
    assert load_scenario(mix, ["name=2026-01-31"]).name == "2026-01-31"


def test_the_first_of_several_mistakes_is_named_and_the_others_are_counted(mix):
    with pytest.raises(InputError, match=r"\[engine\] block_size = true: expected an integer \(and 2 more\)"):
        load_scenario(mix, ["engine.block_size=true", "cache.enabled=1", "slo.ttft_s=soon"])


def test_a_number_beyond_all_floats_is_out_of_range(mix):
    with pytest.raises(InputError, match=r"\[slo\] ttft_s = inf: expected a finite number"):
        load_scenario(mix, [f"slo.ttft_s=1{'0' * 400}"])


def test_a_byte_order_mark_is_no_part_of_a_file(mix):
    expected = load_scenario(mix)
    mix.write_bytes(b"\xef\xbb\xbf" + mix.read_bytes())
    assert load_scenario(mix) == expected


def test_deep_nesting_is_one_line(mix, tmp_path):
    deep = tmp_path / "deep.toml"
    for text in ("a = " + "[" * 5000 + "]" * 5000, "[" + ".".join("a" * 5000) + "]\nb = 1"):
        deep.write_text(text)
        with pytest.raises(InputError, match="nested too deeply"):
            load_scenario(deep)
    for override in ("slo.classes=" + "[" * 5000 + "]" * 5000, ".".join("a" * 5000) + "=1"):
        with pytest.raises(InputError, match="nested too deeply"):
            load_scenario(mix, [override])


def test_a_scenario_built_in_python_is_checked_too():
    scenario = Scenario(WorkloadConfig(preset="demo"), engine=EngineConfig(block_size=0))
    with pytest.raises(InputError, match=r"\[engine\] block_size = 0: expected 1 or more"):
        simulate(scenario)


def test_docs_list_every_key_with_its_help():
    from kvcast.scenario.reference import as_markdown

    text = (Path(__file__).parent.parent / "docs" / "scenario.md").read_text()
    assert text == as_markdown(), "run: python -m kvcast.scenario.reference > docs/scenario.md"
    for key in ("gpu_memory_utilization", "attainment", "timestamp_s", "rate_scale", "slo_class"):
        assert f"| `{key}` |" in text
