"""Why nothing meets a target: what requests take alone, limits within reach, other GPUs."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest

from calibrate.latency import load_step_time
from kvcast import api, plan
from kvcast.config import scenario_from_doc
from kvcast.planner.words import as_text
from sim import alone as by_itself
from sim.alone import alone
from sim.measure.metrics import per_request
from sim.scenario import EngineParams
from sim.simulate import run
from tests.worlds import LinearSteps, plain
from workloads.columns import PrefixTree

ALONE = {"capacity": False, "binding": False, "advice": False, "growth": None, "n_plus_1": False}
"""Only the fewest replicas, and why there are none."""
reasons = importlib.import_module("kvcast.planner.why")
VLLM = EngineParams(kv_blocks=20_000, max_num_batched_tokens=2048, step_overhead_s=0.002, frontend_s=0.005)
SGLANG = EngineParams(
    kv_blocks=320_000,
    block_size=1,
    semantics="sglang",
    chunked_prefill_size=2000,
    step_overhead_s=0.001,
    frontend_s=0.005,
)


@pytest.mark.parametrize(
    "params",
    [VLLM, SGLANG, replace(SGLANG, chunked_prefill_size=0), replace(VLLM, async_scheduling=False)],
    ids=["vllm", "sglang", "sglang, whole prompts", "synchronous"],
)
@pytest.mark.parametrize(
    "step_time", [LinearSteps(), load_step_time("h200-llama-3.1-8b-aic")], ids=["linear", "tables"]
)
def test_alone_is_what_a_simulation_of_requests_far_apart_says(params, step_time):
    """Six prompts, then the same six again, whose first 1,000 to 9,000 tokens the cache then holds."""
    shared, n = [1000, 3000, 9000], 6
    prompt, output = [1001, 1500, 3001, 7095, 9001, 20_000], [1, 2, 40, 300, 1, 17]
    tree = PrefixTree(np.array([-1, 0, 0, 0], np.int32), np.array([0, *shared]), np.zeros(4, np.int16))
    workload = replace(
        plain(np.arange(2 * n) * 100.0, prompt * 2, output * 2),
        tree=tree,
        leaf=np.array([1, 1, 2, 2, 3, 3] * 2, np.int32),
    )
    cached = np.repeat(shared, 2) // params.block_size * params.block_size
    simulated = per_request(run(workload, params, step_time), workload)
    cold, warm = (
        alone(workload, params, step_time, np.zeros(2 * n, np.int64)),
        alone(workload, params, step_time, np.tile(cached, 2)),
    )
    for limit in ("ttft_s", "tpot_s", "e2e_s"):
        np.testing.assert_allclose(simulated[limit][[0, 2, 4]], cold[limit][[0, 2, 4]], rtol=1e-9)
        np.testing.assert_allclose(simulated[limit][n:], warm[limit][n:], rtol=1e-9)
    assert np.isnan(cold["tpot_s"][[0, 4]]).all()


def test_a_request_that_no_replica_can_serve_takes_for_ever():
    workload = plain([0, 0, 0], [100, 5000, 900], [1, 1, 200])
    times = alone(workload, replace(VLLM, max_model_len=4000, kv_blocks=60), LinearSteps(), np.zeros(3, np.int64))
    assert np.isfinite(times["ttft_s"]).tolist() == [True, False, False]
    assert np.isinf(
        alone(workload, replace(VLLM, max_model_len=10), LinearSteps(), np.zeros(3, np.int64))["e2e_s"]
    ).all()


def test_of_very_many_lengths_the_times_are_as_good_as_exact(monkeypatch):
    rng = np.random.default_rng(0)
    workload = plain(np.zeros(4000), rng.integers(100, 60_000, 4000), np.ones(4000))
    cached = rng.integers(0, workload.prompt_tokens) // 16 * 16
    exact = alone(workload, VLLM, LinearSteps(), cached)["ttft_s"]
    monkeypatch.setattr(by_itself, "MOST_LENGTHS", 2000)
    rounded = alone(workload, VLLM, LinearSteps(), cached)["ttft_s"]
    assert np.abs(rounded - exact).max() < 0.03 * exact.max()
    assert rounded.mean() == pytest.approx(exact.mean(), rel=0.01)


# -- in a plan ---------------------------------------------------------------------------------------------------------


def chat(name: str, rate: float, prompt: int = 500, **slo: float) -> dict:
    return {
        "name": name,
        "rate": rate,
        "output": {"value": 50},
        "slo_class": name,
        "layers": [{"name": "m", "scope": "dynamic", "tokens": {"value": prompt}}],
    }


def scenario(*classes: dict, slo: dict, **sections):
    return scenario_from_doc(
        {
            "workload": {"requests": 600, "class": list(classes)},
            "model": {"name": "llama-3.1-8b"},
            "hardware": {"profile": "h200-llama-3.1-8b-aic"},
            "slo": {"attainment": 0.95, **slo},
            "run": {"warmup_s": 0.0},
            **sections,
        }
    )


def test_a_class_that_can_never_meet_its_limit_is_named_with_the_limit_that_it_could(tmp_path):
    """The case sacrificed_class: 4 % of the requests have a limit of 1 ms, and one prompt alone takes 11."""
    asked = scenario(
        chat("chat", 5.0),
        chat("premium", 0.2),
        slo={"classes": {"chat": {"ttft_s": 0.5}, "premium": {"ttft_s": 0.001}}},
    )
    made = plan(asked, out=tmp_path, most=4, **ALONE)
    found = made["why"]
    assert not made["answer"]["feasible"]
    row = next(one for one in found["alone"] if one["class"] == "premium")
    assert (row["limit"], row["over_cold"], row["over_cached"], row["refused"]) == ("ttft_s", 1.0, 1.0, 0.0)
    step_s = api.resolve(asked).step_time().step([(500, 0)], 0, 0, 0, 1)[0]
    assert row["example"] == {"prompt_tokens": 500, "output_tokens": 50, "alone_s": pytest.approx(step_s)}
    assert row["least_cold_s"] == pytest.approx(step_s)
    assert next(one for one in found["alone"] if one["class"] == "chat")["over_cold"] == 0.0
    (near,) = found["nearest"]
    assert (near["class"], near["limit"], near["limit_s"], near["attainment"]) == ("premium", "ttft_s", 0.001, 0.0)
    assert near["needs_s"] >= step_s
    assert near["keeps_up"] is not False
    assert near["factor"] == pytest.approx(near["needs_s"] / 0.001)
    assert 0 < len(found["layouts"]) <= reasons.MOST_LAYOUTS
    assert {row["verdict"] for row in found["layouts"]} == {"misses"}
    assert "at best 0.0 %" in made["verdict"]
    assert "of premium" in made["verdict"]
    words = " ".join(as_text(made).split())
    assert "premium, TTFT <= 1.00 ms: alone on an idle replica 100.0 % of its requests are over it" in words
    assert "layouts of about 1 GPU attains the target in one run" in words

    def attained(limit_s: float) -> float:
        changed = replace(
            asked,
            slo=replace(
                asked.slo,
                classes={**asked.slo.classes, "premium": replace(asked.slo.classes["premium"], ttft_s=limit_s)},
            ),
        )
        fleet = replace(changed, cluster=replace(changed.cluster, replicas=near["replicas"]))
        again = plan(fleet, fixed=True, seeds=1, **ALONE)
        return next(one for one in again["candidates"][0]["classes"] if one["name"] == "premium")["attainment"]["mean"]

    assert attained(near["needs_s"]) >= 0.95 > attained(near["needs_s"] * (1 - 1e-6))


def test_a_plan_that_meets_asks_no_why():
    made = plan(scenario(chat("chat", 5.0), slo={"ttft_s": 0.5}), most=2, **ALONE)
    assert made["answer"]["feasible"]
    assert made["why"] is None
    assert "why nothing" not in as_text(made)


def test_a_fleet_that_only_waits_is_told_apart_and_other_gpus_are_tried():
    """One L40S is too slow for the load; every request alone is well within its limit."""
    asked = scenario(
        chat("chat", 4.0, prompt=6000),
        slo={"e2e_s": 6.0},
        hardware={"profile": "l40s-llama-3.1-8b-aic"},
        cost={"gpu_hour_usd": 1.0},
    )
    made = plan(asked, most=1, **ALONE)
    found = made["why"]
    assert found["alone"][0]["over_cold"] == 0
    assert "they miss because they wait for each other" in " ".join(as_text(made).split())
    assert [(row["keeps_up"], row["needs_s"], row["factor"]) for row in found["nearest"]] == [(False, None, None)], (
        "what they waited is how long the run was"
    )
    assert "the fleet does not keep up, so no limit is long enough" in " ".join(as_text(made).split())
    by_layout = {(row["gpu"], row["tensor_parallel"]): row for row in found["layouts"]}
    assert len(by_layout) == len(found["layouts"]), "each once"
    assert ("L40S", 1) not in by_layout, "the plan's own"
    assert by_layout["B200", 1]["attains"]
    assert by_layout["B200", 1]["replicas"] == 1
    first = next(row for row in found["layouts"] if row["attains"] and row["gpus"] == 1)
    assert f"1 replica of 1 x {first['gpu']} attains the target in one run" in " ".join(as_text(made).split())


def test_a_layout_that_cannot_start_keeps_its_reason():
    asked = scenario_from_doc(
        {
            "workload": {"requests": 40, "class": [chat("rag", 0.01, prompt=28_000)]},
            "model": {"name": "llama-3.1-70b"},
            "hardware": {"profile": "roofline:h200", "tensor_parallel": 2},
            "slo": {"attainment": 0.95, "ttft_s": 3.0},
            "run": {"warmup_s": 0.0},
        }
    )
    made = plan(asked, most=3, **ALONE)
    row = made["why"]["alone"][0]
    assert row["over_cold"] == row["over_cached"] == 1.0
    assert 3.9 < row["example"]["alone_s"] < 4.4, "the case infeasible_by_physics: a cold 28k prefill alone"
    assert made["why"]["nearest"][0]["needs_s"] >= row["example"]["alone_s"]
    layouts = {(one["gpu"], one["tensor_parallel"]): one for one in made["why"]["layouts"]}
    alone_gpu = layouts["H200-SXM", 1]
    assert "does not fit" in alone_gpu["reason"]
    assert alone_gpu["verdict"] is alone_gpu["attains"] is alone_gpu["attainment"]["mean"] is None
    assert layouts["H200-SXM", 4]["profile"] == "h200-llama-3.1-70b-tp4-aic", "measured before assumed"
    assert layouts["H200-SXM", 4]["attains"]
    assert "plan with --set hardware.profile=h200-llama-3.1-70b-tp4-aic --set hardware.tensor_parallel=4" in " ".join(
        as_text(made).split()
    )
    assert "1 to 3 replicas attain the same, so more of them bring nothing" in " ".join(made["verdict"].split())


def test_at_most_eight_layouts_are_simulated(monkeypatch):
    monkeypatch.setattr(reasons, "MOST_LAYOUTS", 2)
    made = plan(scenario(chat("chat", 2.0), slo={"ttft_s": 0.001}), most=1, **ALONE)
    rows = made["why"]["layouts"]
    assert sum(row["verdict"] is not None for row in rows) == 2
    assert {row["reason"] for row in rows[2:]} == {"not simulated: 2 others were"}
