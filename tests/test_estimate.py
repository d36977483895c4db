"""The estimate of a run against the run itself."""
from dataclasses import replace

import numpy as np
import pytest

from kvcast import api, config
from kvcast.estimate import REQUESTS, arriving, estimate, stretches
from workloads.limits import earliest_s
from workloads.toml import list_presets

FLEETS = {"coding-agent": 4, "long-context-chat": 4}
"""Replicas that keep up with a preset; the others take 2."""


def scenario(preset, *overrides):
    fleet = f"cluster.replicas={FLEETS.get(preset, 2)}"
    limits = ("slo.classes=", "slo.ttft_s=1", "slo.tpot_s=0.03")
    return config.load_scenario("examples/demo.toml", [f"workload.preset={preset}", fleet, *limits, *overrides])


@pytest.mark.parametrize("preset", list_presets())
def test_goodput_is_within_15_percent_of_the_whole_runs(preset):
    asked = scenario(preset)
    found, whole = estimate(asked), api.simulate(asked).summary
    assert found["sampled"] <= REQUESTS or found["requests"] == found["sampled"]
    assert not found["overloaded"]
    assert found["goodput_per_s"] == pytest.approx(whole["request_goodput"], rel=0.15)
    assert found["requests"] == whole["arrived"]


def test_a_short_run_is_simulated_whole():
    asked = scenario("chat", "workload.requests=300")
    found, whole = estimate(asked), api.simulate(asked).summary
    assert (found["sampled"], found["measured"]) == (300, 300)
    assert found["goodput_per_s"] == pytest.approx(whole["request_goodput"])
    assert found["p99_ttft_ms"] == pytest.approx(whole["p99_ttft_ms"])
    assert found["prefix_hit_rate"] == whole["prefix_hit_rate"]
    for key in (f"usd_per_million_{tokens}_tokens" for tokens in ("input", "output", "total")):
        assert found[key] == pytest.approx(whole["cost"][key], rel=0.01), key


def test_a_fleet_that_cannot_keep_up_has_no_goodput():
    found = estimate(scenario("chat", "workload.rate_scale=30", "cluster.replicas=1"))
    assert found["overloaded"]
    assert found["goodput_per_s"] is None
    assert found["attainment"] is None
    assert found["p99_ttft_ms"] is None


def test_a_fleet_at_its_limit_is_said_to_be_overloaded():
    assert estimate(scenario("long-context-chat", "cluster.replicas=2"))["overloaded"]


def test_a_fixed_concurrency_is_its_beginning():
    found = estimate(scenario("batch-summarisation", "workload.concurrency=64", "workload.loop=concurrency"))
    assert found["sampled"] == REQUESTS
    assert found["goodput_per_s"] > 1


def test_stretches_keep_the_runs_rate_and_the_turns_that_follow_one_another():
    prepared = api.prepare(scenario("coding-agent"))
    workload = arriving(prepared.workload, prepared.resolved.params)
    assert len(workload) < len(prepared.workload), "sessions that outgrow the context end there"
    at_s = earliest_s(workload)
    for part, warm_s in stretches(workload, REQUESTS):
        assert len(part) == REQUESTS // 2
        there = earliest_s(part)
        assert there.min() == pytest.approx(0)
        assert 0 < warm_s < there.max()
        middle = np.sort(at_s)[len(at_s) // 5 : -len(at_s) // 5]
        assert len(part) / np.ptp(there) == pytest.approx(len(middle) / np.ptp(middle), rel=0.4)
        follows = part.after >= 0
        assert (part.session_id[follows] == part.session_id[part.after[follows]]).all()
        assert (part.turn[follows] == part.turn[part.after[follows]] + 1).all(), "no turn is left out"


def test_what_no_replica_can_serve_ends_its_session():
    prepared = api.prepare(scenario("coding-agent"))
    small = replace(prepared.resolved.params, kv_blocks=2000)
    left = arriving(prepared.workload, small)
    held = left.prompt_tokens + left.output_tokens <= 2000 * 16
    assert held[left.after[left.after >= 0]].all(), "nothing follows a request that cannot be served"
