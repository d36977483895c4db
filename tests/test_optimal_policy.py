"""cache.policy = "optimal" in a timed run: proven after the run, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvcast import api, config, load_scenario
from kvcast.cli import main
from kvcast.studies import compare
from sim.kvcache.clairvoyant import ClairvoyantCache
from sim.kvcache.ranked import RankedCache
from sim.optimum.schedule import schedule_optimum
from workloads.errors import InputError


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """300 requests in 150 s for one of 40 documents of 1,024 tokens, and room for twelve."""
    rng = np.random.default_rng(4)
    rows = [
        {
            "timestamp": 500 * i,
            "input_length": 1500,
            "output_length": 20,
            "hash_ids": [(d := int(rng.integers(40))) * 2, d * 2 + 1, 1000 + i],
        }
        for i in range(300)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "s.toml"
    path.write_text(
        '[workload]\ntrace = "trace.jsonl"\nformat = "mooncake"\n[engine]\nkv_blocks = 800\n[cache]\npolicy ='
        ' "optimal"\n'
    )
    return path


def test_it_hits_the_most_of_its_schedule(scenario: Path) -> None:
    prepared = api.prepare(load_scenario(scenario))
    rec = api.record(prepared)
    assert rec.hit_tokens.sum() == schedule_optimum(prepared.workload, rec).bound_tokens
    summary = api.measure(prepared, rec).report.summary
    lru = api.run(api.prepare(load_scenario(scenario, ["cache.policy=lru"]))).report.summary
    assert summary["prefix_hit_tokens"] > 1.2 * lru["prefix_hit_tokens"] > 0
    again = api.run(api.prepare(load_scenario(scenario, ["cache.policy=clairvoyant"]))).report.summary
    assert (summary["prefix_hit_tokens"], summary["mean_ttft_ms"]) == (
        again["prefix_hit_tokens"],
        again["mean_ttft_ms"],
    )
    off = api.run(api.without_cache(prepared)).report.summary
    assert off["prefix_hit_tokens"] == 0


def test_beside_other_policies(scenario: Path, capsys) -> None:
    results = compare.simulate_all(compare.variants(config.load_doc(scenario), ["cache.policy=optimal,lru,random"]))
    best, *others = [r.summary["prefix_hit_rate"] for r in results]
    assert best > max(others)
    assert main(["run", str(scenario)]) == 0
    assert "hit rate" in capsys.readouterr().out


def test_a_run_that_is_not_it_is_not_called_so(scenario: Path, monkeypatch) -> None:
    monkeypatch.setattr(ClairvoyantCache, "_offer", RankedCache._offer)  # it forgets what it knows
    prepared = api.prepare(load_scenario(scenario))
    with pytest.raises(
        InputError, match=r"gave \d\d\.\d % of the optimum for this schedule .* may not be called optimal"
    ):
        api.run(prepared)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("cluster.replicas=2", "expected cluster.replicas = 1"),
        ("engine.semantics=sglang", "expected engine.semantics = 'vllm'"),
        ("engine.scheduler_policy=priority", "expected engine.scheduler_policy = 'fcfs'"),
        ("engine.long_prefill_token_threshold=256", "expected engine.long_prefill_token_threshold = 0"),
        ('cache.tiers=[{name = "dram", capacity_blocks = 99, bandwidth_gb_per_s = 9}]', "expected no cache.tiers"),
        ("cache.policy_params.k=2", "expected no cache.policy_params"),
    ],
)
def test_where_the_order_is_not_known_it_is_refused(scenario: Path, key: str, expected: str) -> None:
    with pytest.raises(InputError, match="clairvoyant") as error:
        load_scenario(scenario, [key])
    assert expected in str(error.value)


def test_sessions_that_wait_for_answers_are_refused(scenario: Path) -> None:
    prepared = api.prepare(load_scenario(scenario, ["cache.policy=lru"]))
    after = np.full(len(prepared.workload), -1)
    after[1] = 0
    closed = replace(
        prepared.workload, after=after, delay_s=np.zeros(len(after)), session_id=np.zeros(len(after), np.int64)
    )
    with pytest.raises(InputError, match="requests here wait for answers"):
        api.prepare(load_scenario(scenario), closed)
