"""Curves in one command: every policy over capacity, block sizes at the same memory, and what cache memory saves."""
import json

import numpy as np
import pytest

from kvcast.cli import main
from sim.kvcache.replay import replay
from workloads.readers import read


@pytest.fixture
def trace(tmp_path):
    rng = np.random.default_rng(2)
    rows = []
    for i in range(150):
        ids = [int(rng.zipf(1.5)) % 30, 100 + int(rng.integers(20)), 1000 + i]
        rows.append({"timestamp": i * 1000, "input_length": 1500, "output_length": 5, "hash_ids": ids})
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(capsys, *command):
    assert main(["cache", *command, "--format", "mooncake", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_policy_over_capacity_in_one_command(trace, capsys):
    rows = rows_of(capsys, str(trace), "--policy", "all", "--capacity-blocks", "auto")
    policies = {row["policy"] for row in rows}
    assert policies == {"lru", "fifo", "lfu", "optimal"}
    best = {row["capacity_blocks"]: row["hit_ratio_blocks"] for row in rows if row["policy"] == "optimal"}
    assert len(best) > 5
    assert all(row["hit_ratio_blocks"] <= best[row["capacity_blocks"]] for row in rows)
    workload = read(trace, "mooncake")
    for row in rows:
        if row["policy"] != "optimal":
            assert row["hit_blocks"] == replay(workload, row["policy"], row["capacity_blocks"], "full-blocks").hit_blocks


def test_every_policy_of_the_engine_too(trace, capsys):
    rows = rows_of(capsys, str(trace), "--policy", "all", "--rule", "leaf-first", "--capacity-blocks", "60", "--block-size", "64")
    assert {"lru", "s3fifo", "arc", "ttl", "random", "workload"} <= {row["policy"] for row in rows}


def test_block_sizes_in_one_command_have_the_same_memory(trace, capsys):
    rows = rows_of(capsys, str(trace), "--policy", "lru,lfu", "--capacity-blocks", "400,unlimited", "--block-size", "64,128,512")
    assert [(row["block_size"], row["capacity_blocks"]) for row in rows if row["policy"] == "lru"] == [
        (64, 400), (64, None), (128, 200), (128, None), (512, 50), (512, None)]
    unlimited = {row["block_size"]: row["hit_ratio_tokens"] for row in rows if row["capacity_blocks"] is None}
    assert unlimited[64] >= unlimited[128] >= unlimited[512]  # a coarser block ends the shared part earlier
