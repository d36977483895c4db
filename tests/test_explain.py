"""kvcast explain: every cause on a mix that has it, each proposed change checked against a simulation of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvcast import Scenario, WorkloadConfig, api, simulate
from kvcast.cli import main
from kvcast.present.explain_text import MEANING, describe
from kvcast.studies.explain import _verdict, explain
from kvcast.studies.levers import changes
from sim.measure.causes import CAUSES
from sim.scenario import CacheConfig, ClusterConfig, EngineConfig, RunConfig, SloConfig, TierConfig
from tests.test_cli import SMALL
from workloads.config import Dist, Layer, MixClass
from workloads.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


def scenario(
    *layers: Layer,
    engine: EngineConfig | None = None,
    cluster: ClusterConfig | None = None,
    cache: CacheConfig | None = None,
    **of_class,
) -> Scenario:
    message = Layer("message", "dynamic", Dist("uniform", low=20, high=60))
    mix_class = MixClass("c", share=1.0, layers=(*layers, message), output=Dist(value=8), **of_class)
    return Scenario(
        workload=WorkloadConfig(class_=(mix_class,), rate=10.0, requests=120),
        run=RunConfig(warmup_s=0.0),
        slo=SloConfig(ttft_s=0.5),
        engine=engine or EngineConfig(kv_blocks=2000),
        cluster=cluster or ClusterConfig(),
        cache=cache or CacheConfig(),
    )


SYSTEM = Layer("system", "global", Dist(value=512))
DOCUMENT = Layer("document", "project", Dist(value=512), items=12, zipf=0.8)


def largest(given: Scenario, **options) -> dict:
    """The first cause followed up, after checking that the document adds up and that its figures are those of real
    runs."""
    found = explain(given, **options)
    counted = [count for count in found["miss_tokens"].values() if count is not None]
    assert found["prefix_hit_tokens"] + sum(counted) == found["prompt_tokens"]
    first = found["causes"][0]
    assert [c["tokens"] for c in found["causes"]] == sorted((c["tokens"] for c in found["causes"]), reverse=True)
    resolved = api.resolve(given).scenario
    proposed = {change.words: change for change in changes(first["cause"], resolved, resolved, **options)}
    assert {change["change"] for change in first["changes"]} == set(proposed)
    best = first["changes"][0]
    assert (
        simulate(proposed[best["change"]].scenario).summary["prefix_hit_tokens"] == best["after"]["prefix_hit_tokens"]
    )
    assert best["recovered_tokens"] == best["after"]["prefix_hit_tokens"] - found["prefix_hit_tokens"]
    assert best["verdict"] in describe(found).replace("\n    ", " ")
    return first


def test_a_clock_in_front_is_recovered_by_the_order_of_the_prompt() -> None:
    clock = Layer("clock", "dynamic", Dist(value=16))
    first = largest(scenario(clock, SYSTEM))
    assert first["cause"] == "changed_earlier"
    assert [change["change"] for change in first["changes"]] == [
        "prompt layers in the order global, project, session, dynamic"
    ]
    change = first["changes"][0]
    assert change["helps"]
    assert change["recovered_tokens"] == 119 * 512  # the first prompt brings the system text, the others read it
    assert (change["asks_for"], change["costs"]) == ("a check of the answers' quality", "quality")


def test_churn_is_recovered_by_prompts_that_do_not_change() -> None:
    first = largest(scenario(replace(SYSTEM, shuffle=20), replace(DOCUMENT, items=1)))
    assert first["cause"] == "changed_earlier"
    helped = [change for change in first["changes"] if change["helps"]]
    assert helped[0]["change"].startswith("no layer that shuffles")


def test_the_cache_turned_on() -> None:
    first = largest(scenario(SYSTEM, cache=CacheConfig(enabled=False)))
    assert (first["cause"], first["tokens"]) == ("cache_off", 119 * 512)
    change = first["changes"][0]
    assert change["recovered_tokens"] == first["tokens"]
    assert change["verdict"] == f"helps: recovers {119 * 512:,} tokens (100% of the cause)"


def test_one_salt_for_all_tenants() -> None:
    first = largest(scenario(SYSTEM, tenants=10, isolation=True))
    assert first["cause"] == "other_tenant"
    assert first["changes"][0]["recovered_tokens"] == 9 * 512
    assert "tenants can tell" in first["changes"][0]["asks_for"]


def test_evicted_tokens_are_split_by_the_optimum_and_more_memory_brings_them_back() -> None:
    given = scenario(DOCUMENT, engine=EngineConfig(kv_blocks=200), turns=Dist(value=2), think=Dist(value=3))
    found = explain(given, policies=("lfu",))
    report = simulate(given).summary
    split = found["miss_tokens"]
    assert split["evicted_policy"] + split["evicted_memory"] == report["miss_tokens"]["evicted"] > 0
    assert min(split["evicted_policy"], split["evicted_memory"]) > 0
    assert "evicted" not in split
    memory = next(cause for cause in found["causes"] if cause["cause"] == "evicted_memory")
    assert memory["changes"][0]["helps"]
    assert memory["changes"][0]["asks_for"]
    policy = next(cause for cause in found["causes"] if cause["cause"] == "evicted_policy")
    assert [change["change"] for change in policy["changes"]] == ["eviction policy lru -> lfu"]


def test_a_change_that_does_not_help_is_said_not_to() -> None:
    """The opposite of a good policy, and a verdict over every combination of figures."""
    mru = explain(scenario(DOCUMENT, engine=EngineConfig(kv_blocks=200)), policies=("mru",))
    (change,) = next(cause for cause in mru["causes"] if cause["cause"] == "evicted_policy")["changes"]
    assert change["recovered_tokens"] < 0
    assert not change["helps"]
    assert change["verdict"].startswith(f"does not help: loses {-change['recovered_tokens']:,} tokens")


@pytest.mark.parametrize(
    ("recovered", "after", "helps", "verdict"),
    [
        (500, {"mean_ttft_ms": 90.0}, True, "helps: recovers 500 tokens (50% of the cause)"),
        (1500, {"mean_ttft_ms": 90.0}, True, "helps: recovers 1,500 tokens (more than the cause alone)"),
        (
            9,
            {"mean_ttft_ms": 90.0},
            False,
            "does not help: recovers 9 tokens, less than 1% of the cause, though mean TTFT falls",
        ),
        (-9, {}, False, "does not help: loses 9 tokens"),
        (
            500,
            {"mean_ttft_ms": 100.0},
            False,
            "does not help: recovers 500 tokens (50% of the cause), but mean TTFT does not fall",
        ),
        (
            500,
            {"mean_ttft_ms": 90.0, "attainment": 0.8},
            False,
            "does not help: recovers 500 tokens (50% of the cause), but attainment falls",
        ),
        (
            500,
            {"mean_ttft_ms": None, "stable": False},
            False,
            "does not help: recovers 500 tokens (50% of the cause), but the fleet becomes unstable",
        ),
    ],
)
def test_the_verdict_needs_tokens_and_time(recovered: int, after: dict, helps: bool, verdict: str) -> None:
    before = {"mean_ttft_ms": 100.0, "attainment": 0.9, "stable": True}
    assert _verdict(recovered, 1000, before, {**before, **after}) == (helps, verdict)


def test_recovered_tokens_are_of_the_requests_that_both_runs_have_in_their_window() -> None:
    """In steady state a closed loop's next turns come sooner where answers do: the window's requests differ, and their
    totals say less."""
    given = scenario(SYSTEM, DOCUMENT, engine=EngineConfig(kv_blocks=200), turns=Dist(value=4), think=Dist(value=3))
    given = replace(given, run=RunConfig())
    found = explain(given, policies=("mru",))
    change = next(
        change
        for cause in found["causes"]
        for change in cause["changes"]
        if change["change"] == "eviction policy lru -> mru"
    )
    resolved = api.resolve(given).scenario
    before, after = simulate(resolved), simulate(replace(resolved, cache=CacheConfig(policy="mru")))
    both = before.requests["in_window"] & after.requests["in_window"]
    assert (
        change["recovered_tokens"]
        == after.requests["hit_tokens"][both].sum() - before.requests["hit_tokens"][both].sum()
    )
    assert "note" not in change


def test_from_an_overloaded_fleet_only_the_tokens_are_known() -> None:
    before = {"mean_ttft_ms": None, "attainment": 0.1, "stable": False}
    assert _verdict(500, 1000, before, before)[1].endswith("still unstable, so what it does for TTFT is unknown")
    assert _verdict(500, 1000, before, {**before, "stable": True})[1].endswith("no longer unstable")


def test_the_breakdown_by_class_tenant_and_scope_adds_up() -> None:
    given = scenario(SYSTEM, DOCUMENT, engine=EngineConfig(kv_blocks=200), tenants=8, isolation=True)
    given = replace(
        given,
        workload=replace(
            given.workload,
            class_=(*given.workload.class_, replace(given.workload.class_[0], name="d", layers=(DOCUMENT,))),
        ),
    )
    found = explain(given, policies=("fifo",), causes=1)
    fates = {"hit": found["prefix_hit_tokens"], **found["miss_tokens"]}
    for key, names in (
        ("class", {"c", "d"}),
        ("scope", {"global", "project", "dynamic"}),
        ("tenant", set(api.prepare(given).workload.tenant_names)),
    ):
        rows = found["by"][key]
        assert set(rows) == names
        assert {fate: sum(row[fate] for row in rows.values()) for fate in fates} == {
            fate: count or 0 for fate, count in fates.items()
        }
    assert found["by"]["scope"]["project"]["evicted_memory"] > 0
    assert found["by"]["scope"]["dynamic"]["hit"] == 0
    told = describe(found)
    for words in ("(of the hits)", "\ntenant ", "\nclass ", "\nscope ", "more with fewer tokens)"):
        assert words in told


def test_sglang_is_explained_by_what_its_engine_can_do() -> None:
    given = scenario(
        DOCUMENT, engine=EngineConfig(kv_blocks=250, semantics="sglang"), turns=Dist(value=2), think=Dist(value=3)
    )
    found = explain(given, causes=1)
    (cause,) = found["causes"]
    assert cause["cause"] == "evicted"
    assert found["evicted_split"] is None
    tried = [change["change"] for change in cause["changes"]]
    assert {f"eviction policy lru -> {new}" for new in ("lfu", "slru", "fifo")} < set(tried)
    assert all(change["after"] for change in cause["changes"])
    assert any(change["helps"] for change in cause["changes"])
    with pytest.raises(InputError, match=r"clairvoyant.* expected another with engine.semantics = 'sglang'"):
        explain(given, policies=("clairvoyant",))


def test_with_cache_tiers_evicted_is_one_cause_and_larger_tiers_are_tried() -> None:
    host = TierConfig("host", capacity_blocks=150, bandwidth_gb_per_s=20.0)
    found = explain(
        scenario(DOCUMENT, engine=EngineConfig(kv_blocks=200), cache=CacheConfig(tiers=(host,))),
        policies=("lfu",),
        causes=1,
    )
    (cause,) = found["causes"]
    assert cause["cause"] == "evicted"
    tried = {change["change"]: change for change in cause["changes"]}
    assert tried["cache tier host twice as large"]["recovered_tokens"] > 0
    assert len(tried) == 4
    assert "evicted" in describe(found)


def test_every_router_worth_trying_is_tried_and_reported_as_it_ran() -> None:
    given = scenario(replace(DOCUMENT, items=40, zipf=0.0), cluster=ClusterConfig(replicas=4))
    found = explain(given)
    routed = next(cause for cause in found["causes"] if cause["cause"] == "other_replica")
    assert len(routed["changes"]) == len(given.plan.routers)  # its own is none of them
    for change in routed["changes"]:
        name = change["change"].rsplit(" ", 1)[1]
        after = simulate(replace(given, cluster=replace(given.cluster, router=name))).summary
        assert change["recovered_tokens"] == after["prefix_hit_tokens"] - found["prefix_hit_tokens"]
        assert change["after"]["mean_ttft_ms"] == after["mean_ttft_ms"]


def test_smaller_blocks_keep_the_memory() -> None:
    given = scenario(replace(SYSTEM, tokens=Dist(value=500)), engine=EngineConfig(block_size=128, kv_blocks=500))
    found = explain(given)
    assert found["shared_partial_block_tokens"] >= 119 * (500 - 384) - 120  # of the last block of the system text
    assert "(of partial_block)" in describe(found)
    first = largest(given)
    assert first["cause"] == "partial_block"
    assert first["changes"][0]["change"] == "block size 128 -> 32, the same memory in 2,000 blocks"
    assert first["changes"][0]["recovered_tokens"] == 119 * (480 - 384)


def test_every_cause_has_a_meaning_and_nothing_recoverable_is_said_so() -> None:
    assert set(CAUSES) <= set(MEANING)
    found = explain(
        scenario(engine=EngineConfig(block_size=1, kv_blocks=50_000))
    )  # unique messages, and no block to round to
    assert found["causes"] == []
    assert "no missed token has a cause" in describe(found)
    assert "cold" in found["not_recoverable"]


# ---- the command ----


def test_a_run_folder_is_explained_and_reproduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    assert (
        main(["run", str(path), "--set", "engine.kv_blocks=100", "--out", str(tmp_path / "run"), "--no-baseline"]) == 0
    )
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "run"), "--policy", "lfu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["reproduces_run"] is True
    assert document["causes"]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert document["prefix_hit_tokens"] == summary["prefix_hit_tokens"]
    (tmp_path / "run/summary.json").write_text(json.dumps({**summary, "prefix_hit_tokens": 1}))
    info = json.loads((tmp_path / "run/run.json").read_text())
    del info["files"]  # a run of before sizes were kept: else it is refused as edited
    (tmp_path / "run/run.json").write_text(json.dumps(info))
    assert main(["explain", str(tmp_path / "run"), "--policy", "lfu"]) == 0
    out = capsys.readouterr().out
    assert "caution: the run folder's own figures differ (prefix_hit_tokens 1 then" in out
    assert "as it is" in out


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    prices = str(ROOT / "examples" / "prices.toml")
    for command, part in (
        (["explain", str(path), "--policy", "lfuu"], "did you mean lfu?"),
        (["explain", str(path)], "profile 'roofline:nothing'"),
        (["optimum", str(path)], "profile 'roofline:nothing'"),
        (["price", str(path), "--prices", prices], "profile 'roofline:nothing'"),
        (["optimum", str(path), "--set", "engine.semantics=sglang"], "[engine] semantics = 'sglang': expected vllm"),
        (["optimum", str(path), "--set", "cache.enabled=false"], "[cache] enabled = false"),
    ):
        assert main([*command, "--set", "hardware.profile=roofline:nothing"]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert err.startswith(f"kvcast: {path}: ")
        assert part in err
    assert main(["explain", str(tmp_path)]) == 2
    assert "no run.json in it" in capsys.readouterr().err
