"""Every example runs and says what it promises."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from examples import autoscaler, compare_eviction, compare_recovery, failure, my_router, textbook, two_requests
from kvcast import api, load_scenario
from kvcast.planner.trials import Trials
from kvcast.store.simulations import Lab

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_the_modest_tenant_is_served_whatever_the_greedy_one_sends():
    cut = ["workload.duration_s=40", "run.duration_s=40"]
    for policy, least, most in (("fcfs", 0.0, 0.2), ("vtc", 0.6, 1.0)):
        scenario = load_scenario(EXAMPLES / "tenants.toml", [*cut, f"engine.scheduler_policy={policy}"])
        made = api.run(api.prepare(scenario))
        assert least <= made.report.classes["modest"]["attainment"] <= most
        assert made.report.classes["greedy"]["attainment"] < 0.3


def test_textbook_prints_the_table(capsys):
    textbook.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["1", "7,000", "3,000", "150"], ["16", "7,000", "3,000", "158"], ["128", "7,000", "3,080", "238"]]


def test_a_long_prompt_lives_in_prefill_and_a_long_answer_in_decode(capsys):
    two_requests.main()
    assert capsys.readouterr().out.count("prefill") == 2
    question, answer = two_requests.lives().values()
    assert question["prefill"] > question["decode"]
    assert answer["decode"] > 100 * answer["prefill"]


def test_a_router_of_ones_own_keeps_sessions_where_they_are(capsys):
    my_router.main()
    rows = dict(line.split(": hit rate ") for line in capsys.readouterr().out.splitlines())
    hit = {router: float(told.partition("%")[0]) for router, told in rows.items()}
    assert list(hit) == ["round-robin", "least-loaded", "session-affinity", "examples.my_router:BySession"]
    assert hit["examples.my_router:BySession"] > hit["round-robin"] + 15


def test_a_failure_is_noticed_and_nobody_is_lost(capsys):
    failure.main()
    lines = capsys.readouterr().out.splitlines()
    whole, failed = (re.findall(r"[\d.]+", line) for line in (lines[0], lines[5]))
    assert (whole[0], failed[0]) == (whole[1], failed[1])  # completed, of those that arrived
    assert (int(whole[2]), int(whole[4]), int(failed[4])) == (0, 16, 14)  # 90 s of one of two are not billed
    assert int(failed[2]) > 0
    waited = [[int(re.search(r"within +(\d+)", line)[1]) for line in part] for part in (lines[1:5], lines[6:])]
    assert waited[1][1] > 3 * waited[0][1]
    assert waited[1][0] < 1.5 * waited[0][0]


def test_an_autoscaler_saves_money_and_holds_the_target(capsys):
    autoscaler.main()
    few, many, scaled = (
        [float(x) for x in re.findall(r"[\d.]+", line)] for line in capsys.readouterr().out.splitlines()
    )
    assert 1 < scaled[0] < many[0] == 6
    assert few[2] < scaled[2] < 0.7 * many[2]  # dollars
    assert few[-1] < 50 < 95 < scaled[-1] <= many[-1]  # attainment


def test_a_process_is_short():
    for name in ("autoscaler", "failure", "my_router"):
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 40


def test_every_scenario_file_is_tried_here():
    scenarios = {p.name for p in EXAMPLES.glob("*.toml")} - {
        "prices.toml"
    }  # what an API charges: tests/test_price_command.py
    assert scenarios == {
        *("claude_code.toml", "day.toml", "demo.toml", "mooncake.toml", "tenant_isolation.toml"),
        "plan_routers.toml",  # tests/test_fewer.py
        *("mixed_fleet.toml", "shared_store.toml"),  # tests/test_mixed_scenarios.py, test_shared_tiers.py
        "tenants.toml",
    }


def test_demo_meets_its_target():
    s = api.run(api.prepare(load_scenario(EXAMPLES / "demo.toml"))).report.summary
    assert s["verdict"]["word"] == "meets"
    assert s["offered_per_s"] == pytest.approx(5.49, abs=0.005)
    assert s["coverage"]["extrapolated"] < 0.2


def test_a_morning_needs_more_replicas_from_hour_to_hour():
    """From half past seven to half past eight, with the pages' start-up time: 146 s, and 65.5 GB at 0.5 GB/s."""
    prepared = api.prepare(load_scenario(EXAMPLES / "day.toml", ["workload.start_s=27000", "workload.duration_s=3600"]))
    found = prepared.scenario
    assert found.autoscale.start_s == pytest.approx(277, abs=0.5)
    assert found.workload.start_s + (found.run.warmup_s or 0.0) == pytest.approx(7.5 * 3600)
    s = api.run(prepared).report.summary
    assert s["fleet"]["fewest"] == 1 < s["fleet"]["most"] < 4
    assert s["fleet"]["starts"] >= 1
    assert s["gpu_hours"] < 0.6 * s["fleet"]["gpu_hours_all"]
    assert s["attainment"] > 0.9


def test_claude_code_runs_whole_sessions_closed_loop(data_dir, monkeypatch):
    monkeypatch.setenv("KVCAST_DATA", str(data_dir))
    prepared = api.prepare(load_scenario(EXAMPLES / "claude_code.toml", ["workload.sample=0.02"]))
    workload = prepared.workload
    assert np.count_nonzero(workload.column("after") < 0) <= 16  # everybody else waits for an answer
    s = api.run(prepared).report.summary
    assert s["arrived"] == s["completed"] + s["rejected"]["too_long"] + s["session_truncated"] > 100
    assert s["arrived"] + s["not_arrived"] == len(workload)
    assert s["prefix_hit_rate"] > 0.5


def test_mooncake_overloads_one_replica_and_not_eight(data_dir, monkeypatch):
    monkeypatch.setenv("KVCAST_DATA", str(data_dir))
    one = api.prepare(load_scenario(EXAMPLES / "mooncake.toml"))
    eight = api.prepare(load_scenario(EXAMPLES / "mooncake.toml", ["cluster.replicas=8"]), one.workload)
    s1, s8 = (api.run(prepared).report.summary for prepared in (one, eight))
    assert s1["arrived"] == s8["arrived"] == 12_031
    assert s1["completed"] == s8["completed"] == 12_031
    assert s1["stable"] is False
    assert (
        s1["latency_of"] == "overloaded trace"
    )  # its requests waited so long, those of a longer trace would wait longer
    assert s1["p99_ttft_ms"] > s1["mean_ttft_ms"] > 1e6
    assert s8["latency_of"] == "steady state"
    assert s8["stable"] is True


@pytest.mark.parametrize(("block_size", "hit_rate"), [(512, "0.3734"), (16, "0.3736")])
def test_mooncake_with_endless_memory_hits_what_the_trace_shares(data_dir, monkeypatch, block_size, hit_rate):
    monkeypatch.setenv("KVCAST_DATA", str(data_dir))
    endless = [f"engine.block_size={block_size}", f"engine.kv_blocks={10**9 // block_size}"]
    s = api.run(api.prepare(load_scenario(EXAMPLES / "mooncake.toml", endless))).report.summary
    assert f"{s['prefix_hit_rate']:.4f}" == hit_rate


def test_mooncake_policies_differ_when_memory_is_short(data_dir, monkeypatch):
    """LRU and LFU at 10,000 and 30,000 blocks of 512: more memory hits more, and the policies are not the same."""
    monkeypatch.setenv("KVCAST_DATA", str(data_dir))
    workload, rates = None, {}
    for policy in ("lru", "lfu"):
        for blocks in (10_000, 30_000):
            overrides = [
                f"cache.policy={policy}",
                f"engine.kv_blocks={blocks}",
                "engine.block_size=512",
                "cluster.replicas=8",
                "run.duration_s=1800",
            ]
            prepared = api.prepare(load_scenario(EXAMPLES / "mooncake.toml", overrides), workload)
            workload = prepared.workload
            s = api.run(prepared).report.summary
            rates[policy, blocks] = s["prefix_hit_rate"]
            assert s["prefix_hit_rate"] <= s["reuse_ceiling_replica"]
    assert rates["lru", 10_000] <= rates["lru", 30_000]
    assert rates["lfu", 10_000] <= rates["lfu", 30_000]
    assert rates["lru", 10_000] != rates["lfu", 10_000]


def test_the_eviction_comparison_draws_and_judges_every_policy(tmp_path, capsys, monkeypatch):
    """On the bundled mix at one capacity, as from a clean clone; the figure comes out again from its numbers."""
    ((name, setting),) = compare_eviction.BUNDLED.items()
    monkeypatch.setitem(compare_eviction.WORKLOADS, name, setting._replace(kv_blocks=(16_000,), shown=16_000))
    compare_eviction.main(["--out", str(tmp_path)])
    rows = json.loads((tmp_path / "eviction.json").read_text())
    assert [row["policy"] for row in rows] == [*compare_eviction.OF_THE_ENGINE, "clairvoyant"]
    for row in rows:
        assert row["hit_rate"] <= row["optimum"] <= row["ceiling"] + 1e-12
        assert row["policy"] == "lru" or row["verdicts"]["prefix_hit_rate"]
    at_first = {row["policy"]: row for row in rows}
    clairvoyant = {row["verdicts"]["prefix_hit_rate"] for row in rows if row["policy"] == "clairvoyant"}
    assert "better" in clairvoyant
    assert "worse" not in clairvoyant
    assert at_first["workload"]["hit_rate"] != at_first["lru"]["hit_rate"]  # it tells the two classes apart
    figure = (tmp_path / "eviction.svg").read_text()
    drawn = ElementTree.fromstring(figure)
    assert len(drawn.findall(".//{*}polyline")) == 2 + 2 * 19
    assert "of the optimum" in capsys.readouterr().out
    told = (tmp_path / "eviction.md").read_text()
    assert "| `lru`, `priority`, `ttl`, `quota` |" in told  # one priority, one retention, one tenant: the same runs
    assert all(f"`{row['policy']}`" in told for row in rows)
    compare_eviction.main(["--redraw", str(tmp_path / "eviction.json"), "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "eviction.svg").read_text() == figure


def test_the_eviction_comparison_on_a_trace(data_dir, monkeypatch):
    """The start of a Mooncake trace, whose arrivals are known: the clairvoyant is nearest to the optimum."""
    monkeypatch.setenv("KVCAST_DATA", str(data_dir))
    name = "Mooncake conversation"
    setting = compare_eviction.FULL[name]
    monkeypatch.setitem(
        compare_eviction.WORKLOADS,
        name,
        setting._replace(overrides=(*setting.overrides, "workload.requests=1000"), kv_blocks=(20_000,)),
    )
    monkeypatch.setattr(compare_eviction, "POLICIES", ("lru", "lfu", "clairvoyant"))
    lru, lfu, clairvoyant = compare_eviction.measured(name, jobs=1)
    assert clairvoyant["share_of_optimum"] > max(lru["share_of_optimum"], lfu["share_of_optimum"])
    assert clairvoyant["verdicts"]["prefix_hit_rate"] == "better"


@pytest.mark.parametrize("top", [-60, -7, -1, 0, 1, 2, 9, 50, 63])
def test_the_highest_load_is_found_from_wherever_one_starts(top):
    for start in (-30, 0, 5):
        asked = []
        assert compare_recovery.edge(lambda step: asked.append(step) or step <= top, start) == top  # noqa: B023
        assert len(asked) == len(set(asked)) <= 14
    assert compare_recovery.edge(lambda step: False, 0) is None
    assert compare_recovery.edge(lambda step: True, 0) == compare_recovery.FARTHEST


def test_policies_are_compared_by_the_load_they_recover_from(tmp_path, monkeypatch, capsys):
    """In small; a second run reads what the first kept."""
    short = ("workload.duration_s=200", "plan.burst_s=60", "plan.recover_within_s=60", "engine.kv_blocks=9000")
    tiny = compare_recovery.Setting("demo.toml", ("cluster.replicas=1", *short), -17)
    monkeypatch.setitem(compare_recovery.WORKLOADS, "chat and coding agents", tiny)
    asked = ["--out", str(tmp_path), "--seeds", "2", "--policy", "lru", "--policy", "mru"]
    compare_recovery.main(asked)
    told = capsys.readouterr().out
    rows = {row["policy"]: row for row in json.loads((tmp_path / "recovery.json").read_text())}
    base = api.windowed(load_scenario(EXAMPLES / tiny.file, tiny.overrides))
    with Trials(Lab(tmp_path), [0, 1], 0.95) as trials:  # what was simulated for it
        for seed, highest in enumerate(rows["lru"]["steps"]):
            at, above = (compare_recovery.disturbed(base, step, seed) for step in (highest, highest + 1))
            back_s = trials.back_s(at, seed)
            assert back_s is not None
            assert back_s <= 60
            assert (trials.back_s(above, seed) or 61) > 60
        assert trials.simulated == 0
    mean = np.subtract(rows["mru"]["steps"], rows["lru"]["steps"]).mean()
    assert rows["mru"]["difference"] == mean
    assert rows["lru"]["half"] == 0
    assert f"x {2 ** (mean / 16):.2f} (" in told
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("s*.json")}
    compare_recovery.main(asked)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("s*.json")} == before
    assert capsys.readouterr().out == told
