"""What a planner chooses from: model, precision, GPU and layout, each by itself, and what a GPU costs."""

from __future__ import annotations

import pytest

from kvcast import plan, resolve
from kvcast.commands import price_list
from kvcast.config import apply_overrides, scenario_from_doc
from kvcast.planner.candidates import combinations
from kvcast.planner.words import as_text
from kvcast.scenario.gpu_prices import gpu_of, priced
from kvcast.studies import compare
from tests.plan_cases import ALONE
from workloads.errors import InputError

LAYER = {"name": "prompt", "scope": "dynamic", "tokens": {"value": 300}}
MIX = {"requests": 60, "class": [{"name": "chat", "rate": 2.0, "layers": [LAYER], "output": {"value": 20}}]}


def doc(**sections) -> dict:
    return {
        "workload": MIX,
        "model": {"name": "llama-3.1-70b"},
        "hardware": {"gpu": "h200", "tensor_parallel": 2},
        "slo": {"attainment": 0.9, "ttft_s": 2.0},
        "run": {"warmup_s": 0.0},
        **sections,
    }


# -- prices ------------------------------------------------------------------------------------------------------------


def test_a_price_is_of_its_own_gpu_only():
    found = combinations(doc(cost={"gpu_hour_usd": 4.0}), ["hardware.gpu=h200,b200"])
    assert [one.usd_per_gpu_hour for one in found] == [4.0, None]
    listed = {"gpu_hour_usd": 4.0, "prices": {"b200": 6.0}}
    assert [one.usd_per_gpu_hour for one in combinations(doc(cost=listed), ["hardware.gpu=h200,b200"])] == [4.0, 6.0]
    assert [one.usd_per_gpu_hour for one in combinations(doc(cost=listed), ["cost.gpu_hour_usd=1,2"])] == [1.0, 2.0]
    variants = compare.variants(doc(cost={"gpu_hour_usd": 4.0}), ["hardware.gpu=h200,h100"])
    assert [one.scenario.cost.gpu_hour_usd for one in variants] == [4.0, None]


@pytest.mark.parametrize(
    ("hardware", "gpu"),
    [
        ({"gpu": "H200_SXM"}, "h200"),
        ({"profile": "atlas:gb200:sglang"}, "gb200"),
        ({"profile": "roofline:mi300x"}, "mi300x"),
        ({"profile": "a100-llama-3.1-8b-aic"}, "a100"),
        ({"profile": "my-card.json"}, None),
    ],
)
def test_the_gpu_of_a_scenario(hardware, gpu):
    assert gpu_of(scenario_from_doc(doc(hardware=hardware))) == gpu


def test_the_list_wins_over_a_single_price_and_is_what_a_run_is_billed_at():
    scenario = scenario_from_doc(doc(cost={"gpu_hour_usd": 1.0, "prices": {"h200": 3.5}}))
    assert priced(scenario).cost.gpu_hour_usd == resolve(scenario).scenario.cost.gpu_hour_usd == 3.5


@pytest.mark.parametrize(
    ("prices", "says"),
    [
        ({"h20": 3.0}, "expected the price of a GPU by name, one of a10"),
        ({"h200": -1.0}, r"h200 = -1.0: expected 0 or more"),
        ({"h200": "3"}, 'h200 = "3": expected'),
    ],
)
def test_a_price_that_is_none_is_refused(prices, says):
    with pytest.raises(InputError, match=says):
        scenario_from_doc(doc(cost={"prices": prices}))


def test_a_price_file(tmp_path):
    from argparse import ArgumentTypeError

    file = tmp_path / "gpus.toml"
    file.write_text("h200 = 3.5\nb200 = 6\n")
    changed = apply_overrides(doc(), [price_list(str(file))])
    assert scenario_from_doc(changed).cost.prices == {"h200": 3.5, "b200": 6.0}
    for content, says in (
        ("", "no price"),
        ('h200 = "3"', "'3'; expected"),
        ("gpu = 3", "gpu = 3: expected the price"),
    ):
        file.write_text(content)
        with pytest.raises(ArgumentTypeError, match=says):
            price_list(str(file))


def test_the_cheapest_fleet_is_by_money_and_what_does_not_fit_says_where_it_would():
    vary = ["hardware.gpu=h100,b200", "hardware.tensor_parallel=1,2"]
    prices = {"h100": 1.0, "b200": 6.0}
    made = plan(scenario_from_doc(doc(cost={"prices": prices})), vary, most=4, **ALONE)
    assert made["answer"]["values"] == {"hardware.gpu": "h100", "hardware.tensor_parallel": "2"}
    assert made["answer"]["usd_per_hour"] == made["answer"]["gpus"] * 1.0
    rows = {tuple(row["values"].values()): row for row in made["candidates"]}
    assert rows["h100", "1"]["verdict"] == "does not fit"
    assert "it fits at tensor_parallel 2" in rows["h100", "1"]["reason"]
    assert "does not fit  it fits at tensor_parallel 2" in as_text(made)
    assert not [line for line in made["caution"] if "no price" in line]

    unpriced = plan(scenario_from_doc(doc(cost={"prices": {"h100": 1.0}})), vary, most=4, **ALONE)
    assert unpriced["answer"]["values"]["hardware.gpu"] == "b200", "one GPU instead of two"
    assert [line for line in unpriced["caution"] if line.startswith("no price for b200: fleets are compared by GPUs")]


def test_when_nothing_fits_the_line_says_how_many_were_tried():
    with pytest.raises(InputError, match=r"none of 2 combinations can run; the first: .*does not fit"):
        plan(scenario_from_doc(doc()), ["hardware.gpu=l40s,a100", "hardware.tensor_parallel=1"], **ALONE)


# -- one instead of the other ------------------------------------------------------------------------------------------


def test_a_gpu_that_is_set_takes_the_place_of_a_profile():
    given = doc(hardware={"profile": "h200-qwen3-32b-aic"}, model={"name": "qwen3-32b"})
    assert apply_overrides(given, ["hardware.gpu=b200"])["hardware"] == {"gpu": "b200"}
    back = apply_overrides(doc(), ["hardware.profile=atlas:h100"])
    assert back["hardware"] == {"profile": "atlas:h100", "tensor_parallel": 2}
    assert apply_overrides(given, ["hardware.gpu="])["hardware"] == given["hardware"], "nothing was set"
    both = apply_overrides(given, ["hardware.gpu=b200", "hardware.profile=atlas:h100"])
    with pytest.raises(InputError, match="expected one of them"):
        scenario_from_doc(both)
    assert apply_overrides({"model": {"config": "c.json"}}, ["model.name=qwen3-8b"])["model"] == {"name": "qwen3-8b"}


# -- what is known of a GPU --------------------------------------------------------------------------------------------


def test_the_list_of_gpus_says_what_each_holds(capsys):
    from kvcast.cli import main
    from kvcast.present import gpu_list

    found = gpu_list.document()
    by_name = {one["gpu"]: one for one in found["gpus"]}
    assert by_name["h200"]["basis"] == "measured operators"
    assert by_name["h200"]["profiles"][0] == "h200-llama-3.1-70b-tp4-aic"
    assert by_name["h200"]["rows"] > 500_000
    assert by_name["mi300x"]["operators"] == []
    assert main(["profile", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 226
    (h200,) = [line for line in lines if line.startswith("h200")]
    assert "vllm 0.24.0, sglang 0.5.14, trtllm 1.3.0rc20" in h200
    assert "gemm, attention, MLA, sparse, linear, experts, all-reduce, all-to-all" in h200
    assert "bf16, fp8, fp8_block, int4, mxfp4" in h200
    (a100,) = [line for line in lines if line.startswith("a100 ")]
    assert "MLA" not in a100


def test_a_profile_that_does_not_fit_names_the_gpu_first_and_the_data_sheet_last():
    with pytest.raises(InputError) as refused:
        resolve(scenario_from_doc(doc(hardware={"profile": "h200-llama-3.1-8b-aic"}, model={"name": "gemma-3-12b"})))
    words = str(refused.value)
    assert words.index("hardware.gpu = 'h200'") < words.index("atlas:h200") < words.index("roofline:h200")


def test_the_matrix_is_a_command(monkeypatch, capsys):
    from kvcast.cli import main
    from kvcast.present import model_matrix, models_page

    monkeypatch.setattr(models_page, "bundled", lambda: ["qwen3-8b", "deepseek-v3"])
    monkeypatch.setattr(model_matrix, "gpus", lambda: ["h100", "h200"])
    assert main(["profile", "models", "--matrix", "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| deepseek-v3 | fp8_block | no | 8: interpolated" in out
    assert "Cells: 3 interpolated, 1 does not fit." in out


@pytest.mark.parametrize(
    ("model", "repository"),
    [
        ("hf:Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"),
        ("gpt-oss-120b", "openai/gpt-oss-120b"),
        ("tiny", "tiny"),
    ],
)
def test_the_launch_line_names_a_repository(model, repository):
    from kvcast.planner.command import launch_of, repository_of

    assert repository_of(model) == repository
    if model.startswith("hf:"):
        argv = launch_of(scenario_from_doc(doc(model={"name": model})))["vllm"]
        assert argv[:3] == ["vllm", "serve", repository]
        assert "--quantization" not in argv, "an engine reads the checkpoint's own"
