"""LRU's curve in one pass against a replay at every capacity, and against published golden counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvcast.cli import main
from sim.kvcache.replay import hit_rate_curve, replay
from sim.optimum.lru_curve import lru_curve
from tests.worlds import random_workload
from workloads.readers import read


@pytest.mark.parametrize("rule", ["all-ids", "full-blocks"])
@pytest.mark.parametrize("block", [1, 3, 16])
def test_equals_the_replay_at_every_capacity(rule: str, block: int) -> None:
    for seed in range(8):
        workload = random_workload(seed, n=40)
        curve = lru_curve(workload, rule, block)
        most = int(curve.capacities[-1]) + 2
        capacities = range(1, most) if most < 60 else np.random.default_rng(seed).integers(1, most, 60).tolist()
        for capacity in capacities:
            result = replay(workload, "lru", capacity, rule, block)
            assert curve.hit_blocks_at([capacity]) == [result.hit_blocks], (seed, capacity)
            assert curve.hit_tokens_at([capacity]) == [result.hit_tokens], (seed, capacity)
        assert curve.total_blocks == result.total_blocks
        assert curve.hit_blocks[-1] == replay(workload, "lru", None, rule, block).hit_blocks


def test_rows_are_those_of_the_replay_and_the_spread_ends_where_nothing_changes() -> None:
    workload = random_workload(3, n=60)
    curve = lru_curve(workload, "full-blocks", 4)
    capacities = [*curve.spread(6), None]
    rows = curve.rows(workload, capacities)
    assert rows == hit_rate_curve(workload, capacities, "lru", "full-blocks", 4)
    assert (
        rows[-2]["hit_blocks"]
        == rows[-1]["hit_blocks"]
        > replay(workload, "lru", capacities[-2] - 1, "full-blocks", 4).hit_blocks
    )


def test_cache_command_spreads_the_capacities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 1000 * i,
            "input_length": 512 * 3,
            "output_length": 1,
            "hash_ids": [i % 5, 10 + i % 5, 20 + i % 5],
        }
        for i in range(40)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["cache", str(trace), "--policy", "lru,fifo", "--capacity-blocks", "auto", "--rule", "all-ids"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_policy = {p: [row for row in found if row["policy"] == p] for p in ("lru", "fifo")}
    assert [row["capacity_blocks"] for row in by_policy["lru"]] == [row["capacity_blocks"] for row in by_policy["fifo"]]
    assert (
        by_policy["lru"][-2]["capacity_blocks"] == 15
    )  # five chains of three, round robin: nothing below, everything there
    assert [row["hit_blocks"] for row in by_policy["lru"]][-3:] == [0, 105, 105]


@pytest.mark.parametrize(
    ("trace", "ratios"),
    [
        ("conversation", (0.0445, 0.0653, 0.2116, 0.3257, 0.3637, 0.3664)),
        ("synthetic", (0.0841, 0.1906, 0.4239, 0.6242, 0.6396, 0.6396)),
    ],
)
def test_golden(data_dir: Path, trace: str, ratios: tuple[float, ...]) -> None:
    curve = lru_curve(read(data_dir / "traces" / "mooncake" / f"{trace}_trace.jsonl", "mooncake"), "all-ids", 512)
    hits = curve.hit_blocks_at([1_000, 3_000, 10_000, 30_000, 100_000, 10**7])
    assert (hits / curve.total_blocks).round(4).tolist() == list(ratios)
