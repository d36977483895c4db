"""[[pool]] tables: what each pool is, what it costs and who pays, and every command that answers for no other fleet.

python -m pytest tests/test_mixed_scenarios.py
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvcast import api, figures
from kvcast.cli import main as kvcast
from kvcast.config import apply_overrides, load_scenario, scenario_from_doc
from kvcast.planner.mixed import plan_pools
from kvcast.present import summary_text, verdict
from kvcast.scenario.toml import dumps
from kvcast.studies import compare
from sim.scenario import Scenario
from workloads.errors import InputError

CLASS = {"layers": [{"name": "system", "scope": "global", "tokens": {"value": 600}}], "output": {"value": 40}}
DOC: dict[str, Any] = {
    "workload": {"class": [{"name": "a", "rate": 4.0, **CLASS}, {"name": "b", "rate": 2.0, **CLASS}], "requests": 120},
    "run": {"warmup_s": 2.0},
    "cluster": {"router": "least-loaded"},
    "cost": {"prices": {"h200": 4.0, "a100": 1.5}},
    "pool": [
        {"name": "fast", "replicas": 1, "hardware": {"gpu": "h200"}},
        {"name": "old", "replicas": 2, "hardware": {"gpu": "a100"}, "engine": {"max_num_seqs": 64}},
    ],
}


def doc(*sets: str, **sections: Any) -> dict[str, Any]:
    return apply_overrides({**deepcopy(DOC), **sections}, sets)


def scenario(*sets: str, **sections: Any) -> Scenario:
    return scenario_from_doc(doc(*sets, **sections))


# -- what a pool is ----------------------------------------------------------------------------------------------------


def test_each_pool_is_what_it_would_be_alone() -> None:
    resolved = api.resolve(scenario())
    for pool, kind in zip(DOC["pool"], resolved.kinds, strict=True):
        own = {"hardware": pool["hardware"], "engine": pool.get("engine", {})}
        alone = api.resolve(scenario(pool=[], cluster={"replicas": pool["replicas"]}, **own))
        assert kind.profile.id == alone.profile.id
        assert kind.params.kv_blocks == alone.params.kv_blocks
        assert kind.kv_lines == alone.kv_lines
    assert [kind.params.max_num_seqs for kind in resolved.kinds] == [1024, 64]
    given = resolved.scenario
    assert (given.cluster.replicas, given.gpus, given.gpus_of_pools) == (3, 3, [1, 1])
    assert [pool.gpu_hour_usd for pool in given.pool] == [4.0, 1.5]
    assert given.cost.gpu_hour_usd == pytest.approx(7 / 3)


def test_a_resolved_scenario_loads_as_itself() -> None:
    import tomllib

    given = scenario("pool.old.hardware.tensor_parallel=2", model={"kv_dtype": "fp8"})
    once = api.resolve(given).scenario
    again = api.resolve(scenario_from_doc(tomllib.loads(dumps(once)))).scenario
    assert dumps(again) == dumps(once)
    assert once.gpus_of_pools == [1, 2]


def test_what_is_of_one_gpu_is_not_taken_to_another() -> None:
    """The rest of the file is of an H200: its kv_blocks and factors hold for a pool with other engine keys, not for
    one with another GPU."""
    pools = [{"name": "same", "engine": {"max_num_seqs": 8}}, {"name": "other", "hardware": {"gpu": "a100"}}]
    rest = {"hardware": {"dense_factor": 1.2}, "engine": {"kv_blocks": 777}, "cost": {"gpu_hour_usd": 4.0}}
    same, other = api.resolve(scenario(pool=pools, **rest)).kinds
    assert (same.params.kv_blocks, same.factors.dense) == (777, 1.2)
    assert other.params.kv_blocks > 777
    assert other.factors.dense == 1.0
    assert [kind.scenario.cost.gpu_hour_usd for kind in (same, other)] == [4.0, None]  # nobody's price is another's


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["cluster.replicas=5"], "[cluster] replicas = 5 with [[pool]] tables: expected none"),
        (["pool.old.name=fast"], "name = 'fast': expected a name of its own"),
        (["pool.old.replicas=0"], "[pool.old] replicas = 0: expected"),
        (["pool.old.replicas=99999", "pool.fast.replicas=9"], "100,008 replicas together: expected at most 100,000"),
        (["pool.old.engine.semantics=sglang"], "[pool.old] engine.semantics = 'sglang': expected 'vllm'"),
        (["pool.old.hardware.profile=h100-llama-3.1-8b-aic"], "[pool.old] has hardware.gpu and hardware.profile"),
        (["pool.old.hardware.gpuu=a"], "[pool.old]: [hardware] has no key 'gpuu'"),
        (["pool.old.engine.max_num_seqs=many"], '[engine] max_num_seqs = "many": expected an integer'),
        (["pool.old.engine.max_num_seqs=-1"], "[pool.old] [engine] max_num_seqs = -1"),
        (["pool.old.hardware.gpu=nosuch"], "[pool.old]"),
        (
            ["disaggregation.prefill_replicas=1", "cluster.replicas=3"],
            "[[pool]] with [disaggregation]: not simulated together",
        ),
        (["autoscale.rule=hpa", "autoscale.target=2"], "[[pool]] with [autoscale]"),
        (["cache.policy=clairvoyant"], "[[pool]] with [cache] policy"),
        (
            ["workload.class.a.pool=ols"],
            "[workload.class.a] pool = 'ols': expected one of fast, old (did you mean old?)",
        ),
        (["workload.class.a.model=gpt"], "[workload.class.a] model = 'gpt': expected one of llama-3.1-8b"),
    ],
)
def test_what_makes_no_sense_is_one_line(sets: list[str], said: str) -> None:
    with pytest.raises(InputError) as wrong:
        api.resolve(scenario(*sets))
    assert said in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_a_class_must_say_which_model_it_asks_for() -> None:
    """Of two, one class asks for a model and the other for none; without pools asking is a mistake."""
    two = ["pool.old.model.name=qwen3-8b", "workload.class.a.model=llama-3.1-8b"]
    with pytest.raises(InputError, match="class 'b' may go to pools of 2 models: expected the model"):
        api.simulate(scenario(*two))
    with pytest.raises(InputError, match=r"\[workload.class.a\] pool = 'x': expected \[\[pool\]\] tables with it"):
        scenario("workload.class.a.pool=x", pool=[])


# -- what comes out ----------------------------------------------------------------------------------------------------


def test_pools_that_are_alike_are_the_plain_fleet() -> None:
    """The same numbers, whatever the fleet is called; more only: a row for each pool."""
    pools = [{"name": "x"}, {"name": "y", "replicas": 2}]
    plain = api.as_document(api.run(api.prepare(scenario(pool=[], cluster={"replicas": 3, "router": "least-loaded"}))))
    mixed = api.as_document(api.run(api.prepare(scenario(pool=pools))))
    told = {key: mixed.pop(key) for key in ("pools", "jain_of_busy")}
    assert json.dumps(mixed) == json.dumps(plain)
    assert [row["replicas"] for row in told["pools"]] == [1, 2]


def test_rows_of_pools_add_up_to_the_fleet() -> None:
    report = api.simulate(scenario())
    s, rows = report.summary, report.summary["pools"]
    assert sum(row["requests"] for row in rows) == s["arrived"]
    assert sum(row["prefix_hit_tokens"] for row in rows) == s["prefix_hit_tokens"]
    assert sum(row["running_mean"] for row in rows) == pytest.approx(s["running_mean"])
    assert sum(row["gpu_hours"] for row in rows) == pytest.approx(s["gpu_hours"])
    assert sum(row["usd"] for row in rows) == pytest.approx(s["cost"]["usd"])
    assert rows[0]["usd"] / rows[0]["gpu_hours"] == pytest.approx(4.0)
    assert sum(row["usd_per_request"] * row["requests"] for row in rows) == pytest.approx(s["cost"]["usd"])
    classes = report.classes.values()
    assert sum(row["usd_per_request"] * row["arrived"] for row in classes) == pytest.approx(s["cost"]["usd"])
    assert s["mfu"] is None  # of two GPUs there is no one peak
    assert "balance" not in s  # who is slower should have less
    mine = report.requests["replica"] == 0
    inside = report.requests["in_window"].astype(bool)
    ttft_ms = 1e3 * report.requests["ttft_s"][mine & inside]
    assert rows[0]["latency_ms"]["ttft"]["mean"] == pytest.approx(float(np.nanmean(ttft_ms)))


def test_who_has_a_pool_to_itself_pays_for_it() -> None:
    """Idle time too: class b alone is on the old one."""
    report = api.simulate(scenario("workload.class.a.pool=fast", "workload.class.b.pool=old"))
    rows = {row["pool"]: row for row in report.summary["pools"]}
    for name, pool in (("a", "fast"), ("b", "old")):
        row = report.classes[name]
        assert row["gpu_hours"] == pytest.approx(rows[pool]["gpu_hours"])
        assert row["usd_per_request"] * row["arrived"] == pytest.approx(rows[pool]["usd"])


def test_a_price_that_is_not_known_makes_no_cost() -> None:
    s = api.simulate(scenario("cost.prices={h200 = 4.0}")).summary
    assert s["cost"]["usd"] is None
    assert [row["usd"] is None for row in s["pools"]] == [False, True]


def test_models_apart() -> None:
    """Two models, each with the class that asks for it."""
    sets = ["pool.old.model.name=qwen3-8b", "pool.old.hardware.gpu=h100"]
    asks = ["workload.class.a.model=llama-3.1-8b", "workload.class.b.model=qwen3-8b"]
    result = api.run(api.prepare(scenario(*sets, *asks)))
    requests = result.report.requests
    assert ((requests["replica"] == 0) == (requests["class_id"] == 0)).all()
    s = result.report.summary
    assert s["prefill_flops"] is None  # of two models no one number
    assert [row["model"] for row in s["pools"]] == ["llama-3.1-8b", "qwen3-8b"]
    said = summary_text.describe(result)
    assert "llama-3.1-8b + qwen3-8b on H200" in said
    assert "engine of pool old: " in said


def test_compare_varies_a_key_of_a_pool() -> None:
    made = compare.simulate_all(compare.variants(doc(), ["pool.old.replicas=1,3"]))
    assert [one.summary["gpu_hours"] > 0 for one in made] == [True, True]
    assert [len(one.summary["pools"]) for one in made] == [2, 2]
    assert [one.summary["replicas"] for one in made] == [2, 4]


# -- a plan of mixes ---------------------------------------------------------------------------------------------------

SLO = {"attainment": 0.9, "ttft_s": 0.06, "tpot_s": 0.0065}


def test_the_cheapest_mix_is_that_of_all_of_them(capsys) -> None:
    """Beside every mix simulated: none that attains is cheaper. Then over runs, and on the command line."""
    given = scenario("pool.fast.replicas=2", "workload.class.a.rate=8", slo=SLO)
    made = plan_pools(given, seeds=1)
    every = {}
    fixed = api.windowed(given)
    for n, m in ((n, m) for n in range(3) for m in range(3) if n + m):
        pools = [{**pool, "replicas": k} for pool, k in zip(DOC["pool"], (n, m), strict=True) if k]
        one = scenario("workload.class.a.rate=8", slo=SLO, pool=pools)
        one = replace(one, workload=fixed.workload, run=fixed.run)
        judged = api.simulate(one).summary["verdict"]["classes"]
        every[n, m] = (4.0 * n + 1.5 * m, all(row["attainment"]["mean"] >= 0.9 for row in judged))
    cheapest = min(usd for usd, attains in every.values() if attains)
    told = {tuple(row["replicas"].values()): row["attains"] for row in made["tried"]}
    assert {attains for _, attains in every.values()} == {True, False}
    assert all(every[mix][1] == attains for mix, attains in told.items())
    assert min(row["usd_per_hour"] for row in made["tried"] if row["attains"]) == cheapest
    assert [row["usd_per_hour"] for row in made["tried"]] == sorted(row["usd_per_hour"] for row in made["tried"])
    settled = [row for row in made["tried"] if row["settled"]]
    assert settled[0]["usd_per_hour"] == cheapest
    if made["answer"]["feasible"]:
        assert settled[-1]["settled"] == "meets"
        assert made["answer"]["replicas"] == settled[-1]["replicas"]


def test_mixes_that_leave_a_class_without_a_pool_are_not_tried() -> None:
    made = plan_pools(scenario("workload.class.b.pool=old", slo=SLO), seeds=1)
    assert all(row["replicas"]["old"] for row in made["tried"])


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["cost.prices={h200 = 4.0}"], "[pool.old] gpu_hour_usd is missing"),
        (["pool.old.replicas=90", "pool.fast.replicas=80"], "[plan] pools = true: 7,370 mixes of the [[pool]] tables"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why(sets: list[str], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        plan_pools(scenario(*sets, slo=SLO))


def test_plan_on_the_command_line(tmp_path, capsys) -> None:
    path = tmp_path / "s.toml"
    path.write_text(dumps(scenario("plan.pools=true", slo={"attainment": 0.5, "ttft_s": 5.0})))
    assert kvcast(["plan", str(path), "--seeds", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 old: $1.50 an hour, the cheapest mix that meets the target")
    assert kvcast(["plan", str(path), "--vary", "cache.policy=lru,lfu"]) == 2
    assert "--vary with [plan] pools = true" in capsys.readouterr().err


# -- who does not answer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["plan", "explain", "estimate", "value", "resilience", "optimum"])
def test_commands_that_answer_for_replicas_that_are_alike_say_so(command: str, tmp_path, capsys) -> None:
    given = scenario(slo={"attainment": 0.9, "ttft_s": 1.0})
    (tmp_path / "s.toml").write_text(dumps(given))
    assert kvcast([command, str(tmp_path / "s.toml")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len([line for line in said if line.startswith("kvcast")]) == 1
    assert "[[pool]]" in said[-1]


def test_the_example_runs() -> None:
    given = load_scenario("examples/mixed_fleet.toml", ["workload.requests=60", "run.warmup_s=1"])
    s = api.simulate(given).summary
    assert s["completed"] == s["arrived"]
    assert len(s["pools"]) == 2


def test_figures_and_words_are_of_all_pools() -> None:
    result = api.run(api.prepare(scenario()))
    document = api.as_document(result)
    drawn = figures.kv_occupancy(document, result.report.timeline)
    blocks = sum(row["kv_blocks"] * row["replicas"] for row in document["pools"])
    assert f"{blocks:,} blocks" in drawn.layout.title.text
    np.testing.assert_allclose(sum(np.asarray(part.y) for part in drawn.data), 100.0)
    assert verdict.fleet_of(document) == "1 × fast + 2 × old (H200-SXM + A100-SXM4-80GB)"
