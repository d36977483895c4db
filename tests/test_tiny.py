"""Everything, once, in under five seconds: the textbook numbers, a mix, a trace, a cache replay, the command line.

$ pytest tests/test_tiny.py
"""

import json
import time

import pytest

from examples.textbook import new_tokens
from kvcast import Scenario, WorkloadConfig, api, simulate
from kvcast.cli import main
from sim.scenario import CacheConfig, ClusterConfig, EngineConfig, SloConfig
from workloads.config import Dist, Layer, MixClass


@pytest.fixture(scope="module", autouse=True)
def five_seconds():
    started = time.process_time()
    yield
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("block_size", "expected"), [(1, [7000, 3000, 150]), (16, [7000, 3000, 158]), (128, [7000, 3080, 238])]
)
def test_the_textbook_prompts_compute_exactly_these_tokens(block_size, expected):
    assert new_tokens(block_size) == expected


def mix(dynamic_first: bool = False) -> Scenario:
    layers = [Layer("system", "global", Dist(value=320)), Layer("user", "dynamic", Dist("uniform", low=10, high=100))]
    chat = MixClass(
        "chat", share=1.0, layers=tuple(layers[::-1] if dynamic_first else layers), output=Dist("geometric", mean=20)
    )
    return Scenario(
        workload=WorkloadConfig(class_=(chat,), rate=10.0, duration_s=20.0),
        slo=SloConfig(ttft_s=0.5, tpot_s=0.05, attainment=0.99),
        engine=EngineConfig(kv_blocks=1000),
        cluster=ClusterConfig(replicas=2),
    )


def test_a_mix_runs_and_every_request_and_token_is_accounted_for():
    s = simulate(mix()).summary
    assert s["completed"] == s["arrived"] > 100
    assert s["prefix_hit_tokens"] + sum(s["miss_tokens"].values()) == s["prompt_tokens"]
    assert s["hit_tokens"]["by_scope"] == {"global": s["prefix_hit_tokens"]}  # 320 tokens are 20 whole blocks
    assert s["attainment"] == 1.0
    assert s["stable"] is not False
    assert sum(s["coverage"].values()) == pytest.approx(1)


def test_a_dynamic_layer_in_front_leaves_nothing_to_hit():
    s = simulate(mix(dynamic_first=True)).summary
    assert s["prefix_hit_tokens"] == 0


def test_a_cache_off_hits_nothing_and_computes_more():
    prepared = api.prepare(mix())
    on, off = api.run(prepared).report, api.run(api.without_cache(prepared)).report
    assert off.summary["prefix_hit_tokens"] == 0 < on.summary["prefix_hit_tokens"]
    assert off.summary["gpu_busy_s"] > on.summary["gpu_busy_s"]
    assert off.summary["prompt_tokens"] == on.summary["prompt_tokens"]
    assert not CacheConfig(enabled=False).enabled


def test_a_trace_is_replayed_with_and_without_time(tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 1000 * i, "input_length": 1100, "output_length": 20, "hash_ids": [0, i % 2 + 1, i + 10]}
        for i in range(6)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["cache", str(trace), "--rule", "full-blocks"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["hit_blocks"], row["total_blocks"]) == (9, 12)  # of two full blocks: none, one, then both four times
    (tmp_path / "s.toml").write_text('[workload]\ntrace = "trace.jsonl"\n[engine]\nblock_size = 512\nkv_blocks = 100\n')
    assert main(["run", str(tmp_path / "s.toml"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["prefix_hit_tokens"] == 9 * 512
    assert document["prompt_tokens"] == 6 * 1100
