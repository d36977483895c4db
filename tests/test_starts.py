"""A fleet must start: vLLM refuses when one request of max_model_len does not fit in its KV blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calibrate.memory import least_width, longest_request
from calibrate.models import resolve_model
from calibrate.sources.roofline import roofline_profile
from kvcast import api, plan
from kvcast.config import scenario_from_doc
from kvcast.pages.edit import preview
from kvcast.store.runs import load_run, save_run
from kvcast.studies import value
from kvcast.studies.explain import explain
from sim.engines import engine_of
from workloads.errors import InputError

WHOLE = 131_072
ALONE = {"capacity": False, "binding": False, "advice": False, "growth": None, "n_plus_1": False}


def scenario(**sections):
    """200 prompts of 1,000 tokens for Llama-3.1-8B on an RTX 4090, whose memory has room for 2,854 blocks of 16 tokens
    beside the weights."""
    doc = {
        "workload": {
            "requests": 200,
            "class": [
                {
                    "name": "a",
                    "rate": 0.5,
                    "layers": [{"name": "q", "tokens": {"value": 1000}}],
                    "output": {"value": 100},
                }
            ],
        },
        "model": {"name": "llama-3.1-8b"},
        "hardware": {"profile": "roofline:rtx-4090"},
        "slo": {"ttft_s": 2.0, "attainment": 0.95},
        "run": {"warmup_s": 0.0},
    }
    for name, values in sections.items():
        doc[name] = {**doc.get(name, {}), **values}
    return scenario_from_doc(doc)


def refusal(**sections) -> str:
    with pytest.raises(InputError) as error:
        api.resolve(scenario(**sections))
    assert "\n" not in str(error.value)
    return str(error.value)


# -- not given: lowered ------------------------------------------------------------------------------------------------


def test_a_context_that_does_not_fit_is_lowered_to_what_does():
    resolved = api.resolve(scenario())
    assert resolved.scenario.engine.kv_blocks == 2854
    assert resolved.scenario.engine.max_model_len == 45_664
    assert resolved.origins["max_model_len"] == "what fits in the KV memory; the model's context is 131,072"
    assert resolved.lowered
    assert engine_of(resolved.params).holds(resolved.params, 45_664)
    again = api.resolve(resolved.scenario)
    assert again.scenario == resolved.scenario, "what is resolved stays as it is"


def test_a_context_that_fits_stays_the_models_own():
    for sections in ({"hardware": {"profile": "h200-llama-3.1-8b-aic"}}, {"engine": {"kv_blocks": WHOLE // 16}}):
        resolved = api.resolve(scenario(**sections))
        assert resolved.scenario.engine.max_model_len == WHOLE
        assert resolved.origins["max_model_len"] == "the model's context"
        assert not resolved.lowered
    one_short = api.resolve(scenario(engine={"kv_blocks": WHOLE // 16 - 1}))
    assert one_short.scenario.engine.max_model_len == WHOLE - 16


def test_requests_longer_than_what_fits_are_too_long_and_the_rest_is_served_as_before():
    sizes = {"kind": "empirical", "values": [900, 1_500, 3_000]}
    mix = {
        "requests": 60,
        "class": [{"name": "a", "rate": 0.5, "layers": [{"name": "q", "tokens": sizes}], "output": {"value": 100}}],
    }
    prepared = api.prepare(scenario(workload=mix, engine={"kv_blocks": 100}))
    report = api.run(prepared).report
    longer = int((prepared.workload.prompt_tokens + 100 > 1600).sum())
    assert 0 < longer < 60
    assert report.summary["rejected"] == {"too_long": longer, "kv_too_small": 0, "queue_full": 0, "shed": 0}
    engine = replace(prepared.scenario.engine, max_model_len=WHOLE)
    before = api.run(
        replace(prepared, resolved=replace(prepared.resolved, scenario=replace(prepared.scenario, engine=engine)))
    ).report
    assert before.summary["rejected"] == {"too_long": 0, "kv_too_small": longer, "queue_full": 0, "shed": 0}
    named = ("rejected", "engine", "kv_arithmetic")
    assert {k: v for k, v in report.summary.items() if k not in named} == {
        k: v for k, v in before.summary.items() if k not in named
    }


def test_a_saved_run_runs_again_as_it_is(tmp_path):
    result = api.run(api.prepare(scenario(workload={"requests": 20})))
    save_run(tmp_path / "run", result)
    assert api.resolve(load_run(tmp_path / "run").scenario).scenario.engine == result.scenario.engine


def test_a_mix_that_is_too_long_for_the_memory_is_told_apart_from_one_that_is_too_long_for_the_model():
    given = scenario(engine={"kv_blocks": 60})
    [line] = preview.too_long(given.workload, given)
    assert (
        "a: 100.0 % of the requests of this mix do not fit the KV memory of 960 tokens, less than llama-3.1-8b's"
        " context of 131,072" in line
    )
    assert "choose more KV memory for a replica" in line


# -- given: refused ----------------------------------------------------------------------------------------------------


def test_a_length_that_was_given_is_refused_with_the_largest_that_fits_and_the_width_that_holds_it():
    words = refusal(engine={"max_model_len": WHOLE})
    assert words.startswith("[engine] max_model_len = 131072: vLLM refuses to start")
    assert (
        "2,854 KV blocks of 16 tokens; expected at most 45,664, or hardware.tensor_parallel = 2 with hardware.profile ="
        " 'roofline:rtx-4090'" in words
    )
    assert (
        api.resolve(
            scenario(engine={"max_model_len": WHOLE}, hardware={"tensor_parallel": 2})
        ).scenario.engine.max_model_len
        == WHOLE
    )
    assert "max_model_len = 45665" in refusal(engine={"max_model_len": 45_665})
    assert api.resolve(scenario(engine={"max_model_len": 45_664})).origins["max_model_len"] == "given"


def test_the_width_comes_with_a_profile_of_that_width():
    little = {"max_model_len": 60_000, "gpu_memory_utilization": 0.85}
    words = refusal(
        model={"name": "qwen3-32b"},
        hardware={"profile": "h200-qwen3-32b-aic"},
        engine={**little, "gpu_memory_utilization": 0.5},
    )
    assert "hardware.tensor_parallel = 2 with hardware.profile = 'h200-qwen3-32b-tp2-aic'" in words
    wider = {"profile": "h200-qwen3-32b-tp2-aic", "tensor_parallel": 2}
    assert (
        api.resolve(
            scenario(model={"name": "qwen3-32b"}, hardware=wider, engine={**little, "gpu_memory_utilization": 0.5})
        ).scenario.engine.max_model_len
        == 60_000
    )
    h100 = refusal(
        hardware={"profile": "h100-llama-3.1-8b-aic"}, engine={"max_model_len": WHOLE, "gpu_memory_utilization": 0.3}
    )
    assert "hardware.tensor_parallel = 2 with hardware.profile = 'atlas:h100'" in h100, (
        "no bundled profile of that width, so its measured operators"
    )


def test_no_width_holds_it():
    assert "or a GPU with more memory (no tensor_parallel up to 8 holds it)" in refusal(
        engine={"max_model_len": 10_000_000}
    )


def test_blocks_that_were_given_follow_the_same_rule():
    assert "fit in 500 KV blocks of 16 tokens; expected at most 8,000, or engine.kv_blocks = 8192" in refusal(
        engine={"kv_blocks": 500, "max_model_len": WHOLE}
    )
    assert (
        api.resolve(scenario(engine={"kv_blocks": 8192, "max_model_len": WHOLE})).scenario.engine.max_model_len == WHOLE
    )


def test_sglang_starts_and_turns_away_what_does_not_fit():
    sglang = {"semantics": "sglang", "block_size": 1}
    for given in ({}, {"max_model_len": WHOLE}):
        assert api.resolve(scenario(engine={**sglang, **given})).scenario.engine.max_model_len == WHOLE
    report = api.simulate(scenario(engine={**sglang, "kv_blocks": 1000}, workload={"requests": 5}))
    assert report.summary["rejected"] == {"too_long": 0, "kv_too_small": 5, "queue_full": 0, "shed": 0}


# -- a model that does not fit at all ----------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_is_told_where_it_would():
    big = {"model": {"name": "llama-3.1-70b"}}
    assert refusal(**big, hardware={"profile": "roofline:h100"}).endswith(
        "it fits at tensor_parallel 2, with KV memory for 36,240 tokens"
    )
    assert (
        api.resolve(
            scenario(**big, hardware={"profile": "roofline:h100", "tensor_parallel": 2})
        ).scenario.engine.max_model_len
        == 36_240
    )
    long = refusal(**big, hardware={"profile": "roofline:h100"}, engine={"max_model_len": 100_000})
    assert "it fits at tensor_parallel 4, with" in long, "one request of the length asked for"
    assert refusal(**big).endswith("it fits at tensor_parallel 8, with KV memory for 97,504 tokens")
    assert refusal(**big, engine={"gpu_memory_utilization": 0.5}).endswith(
        "it does not fit at any tensor_parallel up to 8 either"
    )


def test_the_longest_request_of_a_model_with_sliding_layers():
    """vLLM's own rule: a full layer keeps every token, a sliding one its window, a step and a block."""
    whole = resolve_model("llama-3.1-8b")
    assert longest_request(whole, 100, 16, 2048) == 1600
    half = replace(whole, window=1024, sliding_layers=16)
    kept = -(-(1023 + 2048) // 16) + 1
    for blocks in (kept // 2, kept + 8, 4 * kept):
        most = longest_request(half, blocks, 16, 2048)

        def needs(tokens):
            pages = -(-tokens // 16)
            return 16 * pages + 16 * (min(-(-min(1023 + 2048, tokens) // 16), pages) + 1)

        assert needs(most) <= 32 * blocks < needs(most + 16)
    assert longest_request(replace(whole, window=1024, sliding_layers=32), kept, 16, 2048) == whole.max_context
    profile = roofline_profile("rtx-4090")
    assert least_width(profile, whole, "bf16", "bf16", 1, 0.92, 16, 2048, WHOLE) == (2, 208_384)
    assert least_width(profile, whole, "bf16", "bf16", 8, 0.92, 16, 2048, WHOLE) is None


# -- who changes the memory --------------------------------------------------------------------------------------------


def test_a_plan_launches_what_starts_and_says_so():
    made = plan(scenario(), **ALONE)
    argv = made["answer"]["launch"]["vllm"]
    assert argv[argv.index("--max-model-len") + 1] == "45664"
    assert any(
        "--max-model-len 45664 is what fits in the KV memory" in note for note in made["answer"]["launch"]["notes"]
    )
    assert not any("not served" in line for line in made["caution"])


def test_a_plan_names_the_requests_that_do_not_fit_however_few():
    mix = {
        "requests": 400,
        "class": [
            {
                "name": "a",
                "rate": 0.5,
                "layers": [
                    {"name": "q", "tokens": {"kind": "empirical", "values": [1000, 50_000], "weights": [0.995, 0.005]}}
                ],
                "output": {"value": 100},
            }
        ],
    }
    made = plan(scenario(workload=mix), **ALONE)
    [line] = [line for line in made["caution"] if "not served" in line]
    assert "too long for what fits in the KV memory (45,664 tokens; the model's context is 131,072)" in line


def test_in_a_plan_a_fleet_that_would_not_start_is_a_row_that_does_not_fit():
    made = plan(scenario(engine={"max_model_len": 100_000}), ["hardware.tensor_parallel=1,2"], most=2, **ALONE)
    rows = {row["label"]: row for row in made["candidates"]}
    assert rows["hardware.tensor_parallel=1"]["verdict"] == "does not fit"
    assert "vLLM refuses to start" in rows["hardware.tensor_parallel=1"]["reason"]
    assert made["answer"]["gpus"] == 2
    with pytest.raises(InputError, match="vLLM refuses to start"):
        plan(scenario(engine={"max_model_len": 100_000}), **ALONE)


def test_more_memory_lets_longer_requests_in_when_it_is_tried_out():
    """`explain` changes a resolved scenario: a max_model_len that was lowered follows the memory, one that was given
    stays."""
    sizes = {"kind": "empirical", "values": [600, 4000], "weights": [0.9, 0.1]}
    layers = [
        {"name": "doc", "scope": "project", "items": 40, "tokens": sizes},
        {"name": "q", "tokens": {"value": 100}},
    ]
    mix = {"requests": 300, "class": [{"name": "a", "rate": 2.0, "layers": layers, "output": {"value": 20}}]}

    def doubled(**engine):
        found = explain(scenario(workload=mix, engine={"kv_blocks": 200, **engine}), causes=1)
        rows = [row for one in found["causes"] for row in one["changes"]]
        assert not any("refuses to start" in row["verdict"] for row in rows)
        [row] = [row for row in rows if row["change"].startswith("KV memory 200 -> 400")]
        return row

    lowered, given = doubled()["after"], doubled(max_model_len=3200)["after"]
    assert lowered["mean_ttft_ms"] > 1.2 * given["mean_ttft_ms"], (
        "prompts of 4,100 tokens are served where the length follows the memory"
    )


def test_the_value_of_memory_leaves_out_sizes_that_would_not_start():
    small = scenario(engine={"kv_blocks": 1600, "max_model_len": 6000}, workload={"requests": 30})
    assert [point.kv_blocks for point in value.curve(small, most=2).points] == [400, 800, 1600]
    with pytest.raises(InputError, match="expected at most 3,200"):
        value.curve(small, [200, 1600], most=2)


def test_a_context_of_its_own_for_every_size():
    sizes = {
        blocks: api.resolve(scenario(engine={"kv_blocks": blocks})).scenario.engine.max_model_len
        for blocks in (100, 1000, 100_000)
    }
    assert sizes == {100: 1600, 1000: 16_000, 100_000: WHOLE}
