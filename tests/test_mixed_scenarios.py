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

from kvcast import api, text
from kvcast.cli import main as kvcast
from kvcast.config import apply_overrides, load_scenario, scenario_from_doc
from kvcast.figures import cache
from kvcast.planner.mixed import as_text, plan_pools
from kvcast.present import summary_text, verdict
from kvcast.present.cache_text import tier_lines
from kvcast.scenario.toml import dumps
from kvcast.studies import compare
from kvcast.trust import model_error
from kvcast.trust.step_error import step_error
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
        (["disaggregation.prefill_replicas=1"], "scenario: [[pool]] with [disaggregation]: not simulated together"),
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


def test_a_trace_asks_for_no_model(tmp_path) -> None:
    (tmp_path / "t.jsonl").write_text('{"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [1]}\n')
    given = scenario("pool.old.model.name=qwen3-8b", workload={"trace": str(tmp_path / "t.jsonl")}, run={})
    with pytest.raises(InputError, match=r"trace with \[\[pool\]\] tables of 2 models: expected pools of one"):
        api.simulate(given)


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


def test_what_nobody_used_is_paid_by_all() -> None:
    """Both classes have the fast pool to themselves and the old ones idle: bills still add up to the cost, on every
    side of them."""
    report = api.simulate(scenario("workload.class.a.pool=fast", "workload.class.b.pool=fast"))
    usd, (fast, old) = report.summary["cost"]["usd"], report.summary["pools"]
    assert usd == pytest.approx(fast["usd"] + old["usd"]) != fast["usd"]
    assert sum(row["usd_per_request"] * row["arrived"] for row in report.classes.values()) == pytest.approx(usd)
    assert fast["usd_per_request"] * fast["requests"] == pytest.approx(usd)
    assert (old["requests"], old["usd_per_request"]) == (0, None)
    unpriced = api.simulate(
        scenario("cost.prices={h200 = 4.0}", "workload.class.a.pool=fast", "workload.class.b.pool=fast")
    )
    assert unpriced.summary["pools"][0]["usd_per_request"] is None  # nobody knows what they pay for the others


@pytest.mark.parametrize(("model", "bytes_a_token"), [("llama-3.1-8b", 131_072), ("qwen3-8b", 147_456)])
def test_a_tier_of_unlike_replicas_counts_the_bytes_of_each(model: str, bytes_a_token: int) -> None:
    """Only one of two models is asked for: what leaves its memory is written, in blocks of its own size."""
    small = {"engine": {"kv_blocks": 60, "max_model_len": 900}}
    pools = [{"name": "x", **small}, {"name": "y", "model": {"name": "qwen3-8b"}, "hardware": {"gpu": "h100"}, **small}]
    asks = [f"workload.class.{name}.model={model}" for name in "ab"]
    tier = {"name": "dram", "capacity_gib": 1, "bandwidth_gb_per_s": 40}
    result = api.run(api.prepare(scenario(*asks, pool=pools, cache={"tiers": [tier]})))
    gpu, dram = result.report.summary["tiers"]
    assert dram["written_bytes"] == result.report.summary["evicted_blocks"] * 16 * bytes_a_token > 0
    assert (gpu["capacity_blocks"], dram["capacity_blocks"]) == (60, None)
    assert f"; {dram['stored_blocks']:,} blocks at the end" in tier_lines(result.report.summary)[1]


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


def test_a_mix_that_follows_the_clock_is_planned_for_its_worst_hour() -> None:
    """The third of four hours has almost all of the load."""
    demand = {"factors": [0.1, 0.1, 3.7, 0.1], "period_s": 14400}
    classes = [{**one, "rate": one["rate"] / 100} for one in DOC["workload"]["class"]]
    pools = [{**pool, "engine": {"kv_blocks": 200, "max_model_len": 2000}} for pool in DOC["pool"]]
    workload, slo = {"class": classes, "demand": demand}, {"attainment": 0.9, "e2e_s": 5.0}
    given = scenario(workload=workload, slo=slo, pool=pools, run={})
    made = plan_pools(given, seeds=1)
    assert made["worst_hour_from_s"] == pytest.approx(7200, abs=1)
    assert "for its worst hour, from 7,200 s on" in as_text(made)
    asked = plan_pools(scenario(workload={**workload, "duration_s": 900}, slo=slo, pool=pools), seeds=1)  # as given
    assert asked["worst_hour_from_s"] is None
    assert f"caution: {asked['watched']}" in as_text(asked)
    assert asked["watched"]


@pytest.mark.parametrize(
    "asked",
    [["--every"], ["--max-replicas", "2"], ["--confidence", "0.8"], ["--growth", "2"], ["--set", "plan.splits=true"]],
)
def test_what_a_plan_of_mixes_does_not_read_is_refused(tmp_path, capsys, asked: list[str]) -> None:
    path = tmp_path / "s.toml"
    path.write_text(dumps(scenario("plan.pools=true", slo=SLO)))
    assert kvcast(["plan", str(path), *asked]) == 2
    assert " with [plan] pools = true: expected one of them" in capsys.readouterr().err


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


# -- said of a fleet of several kinds ----------------------------------------------------------------------------------

APART = {
    "pool": [],
    "hardware": {"gpu": "h200"},
    "cluster": {"replicas": 3},
    "disaggregation": {"prefill_replicas": 1, "prefill_tensor_parallel": 2, "prefill_profile": "atlas:h100"},
    "cost": {"gpu_hour_usd": 4.0},
}


@pytest.mark.parametrize(
    ("given", "fleet", "kinds"),
    [
        ({}, "1 × H200-SXM + 2 × A100-SXM4-80GB", (("fast", 1), ("old", 2))),
        (APART, "1 replica of 2 × H100-SXM-80GB + 2 × H200-SXM", (("decode", 2), ("prefill", 1))),
    ],
)
def test_a_fleet_is_told_by_its_kinds(given: dict[str, Any], fleet: str, kinds: tuple[tuple[str, int], ...]) -> None:
    """GPUs, KV memory, step times and their error, whether kinds are [[pool]] tables or prefill and decode."""
    prepared = api.prepare(scenario(**given))
    result = api.run(prepared)
    made, resolved = api.as_document(result), prepared.resolved
    assert verdict.fleet_of(made) == fleet
    assert resolved.names == tuple(name for name, _ in kinds)
    each = dict(zip(resolved.names, resolved.each, strict=True))
    blocks = sum(each[name].params.kv_blocks * n for name, n in kinds)
    timeline = result.report.timeline
    seen = timeline["blocks_in_use"] + timeline["blocks_cached_idle"] + timeline["blocks_free"]
    assert set(seen.tolist()) == {blocks}
    assert f"KV cache: {text.count(blocks)} blocks" in cache.kv_occupancy(made, timeline).layout.title.text
    for kind in resolved.each:
        assert kind.profile.content_hash in made["profile_provenance"]["content_hash"]
        assert f"step times: {kind.profile.id}" in summary_text.heading(result)
    shares = [step_error(kind.profile).share for kind in resolved.each]
    assert model_error.scaled(prepared).share == max(shares)
    assert len(set(shares)) == 2


def test_one_price_for_two_gpus_is_said() -> None:
    note = "cost: an hour of H100-SXM-80GB, which prefills, at the price of H200-SXM"
    assert note in api.simulate(scenario(**APART)).notes
    assert note not in api.simulate(scenario("disaggregation.prefill_profile=", **APART)).notes


def test_a_price_of_nothing_is_a_price() -> None:
    """GPUs that one owns: the resolved scenario loads as itself."""
    import tomllib

    given = api.resolve(scenario("cost.prices.h200=0.0")).scenario
    assert [pool.gpu_hour_usd for pool in given.pool] == [0.0, 1.5]
    assert dumps(api.resolve(scenario_from_doc(tomllib.loads(dumps(given)))).scenario) == dumps(given)
