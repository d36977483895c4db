"""Curves in one command: every policy over capacity, block sizes at the same memory, and what cache memory saves."""

import json

import numpy as np
import pytest

from kvcast import load_scenario, simulate
from kvcast.cli import main
from kvcast.studies import value
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
            assert (
                row["hit_blocks"] == replay(workload, row["policy"], row["capacity_blocks"], "full-blocks").hit_blocks
            )


def test_every_policy_of_the_engine_too(trace, capsys):
    rows = rows_of(
        capsys, str(trace), "--policy", "all", "--rule", "leaf-first", "--capacity-blocks", "60", "--block-size", "64"
    )
    assert {"lru", "s3fifo", "arc", "ttl", "random", "workload"} <= {row["policy"] for row in rows}


def test_block_sizes_in_one_command_have_the_same_memory(trace, capsys):
    rows = rows_of(
        capsys, str(trace), "--policy", "lru,lfu", "--capacity-blocks", "400,unlimited", "--block-size", "64,128,512"
    )
    assert [(row["block_size"], row["capacity_blocks"]) for row in rows if row["policy"] == "lru"] == [
        (64, 400),
        (64, None),
        (128, 200),
        (128, None),
        (512, 50),
        (512, None),
    ]
    unlimited = {row["block_size"]: row["hit_ratio_tokens"] for row in rows if row["capacity_blocks"] is None}
    assert unlimited[64] >= unlimited[128] >= unlimited[512]  # a coarser block ends the shared part earlier


# -- value of cache memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guess", [1, 3, 8, 20])
@pytest.mark.parametrize("answer", [1, 2, 7, 16, 20, None])
def test_fewest_finds_the_smallest_that_meets(guess, answer):
    tried = []

    def meets(n):
        tried.append(n)
        return answer is not None and n >= answer

    assert value.fewest(meets, guess, 20) == answer
    assert len(tried) == len(set(tried)) <= 9  # every one is a simulation


SHARED = """
[workload]
rate = 40.0
duration_s = 30.0
[[workload.class]]
name = "chat"
share = 1.0
layers = [{name = "project", scope = "project", items = 6, tokens = {value = 8000}}, {name = "user", tokens = {value = 100}}]
output = {value = 8}
[run]
warmup_s = 0
[slo]
ttft_s = 1.0
attainment = 0.95
[cost]
gpu_hour_usd = 2.0
"""  # noqa: E501


def test_the_value_of_cache_memory_is_in_gpus_at_equal_attainment(tmp_path, capsys):
    path = tmp_path / "s.toml"
    path.write_text(SHARED)
    assert main(["value", str(path), "--kv-blocks", "1600,8000", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    off, small, large = document["points"]
    assert (off["cache"], off["kv_blocks"]) == (False, 8000)
    assert all(point["attainment"] >= 0.95 for point in (off, small, large))
    assert off["gpus"] > large["gpus"]
    assert small["gpus"] >= large["gpus"]
    assert large["gpus_saved"] == off["gpus"] - large["gpus"]
    assert large["usd_per_hour_saved"] == 2.0 * large["gpus_saved"]
    assert large["kv_gib_per_gpu"] == 8000 * 16 * 131072 / 2**30  # Llama-3.1-8B: 128 KiB a token
    fewer = simulate(
        load_scenario(path, [f"cluster.replicas={off['replicas'] - 1}", "engine.kv_blocks=8000", "cache.enabled=false"])
    )
    assert fewer.summary["verdict"]["word"] != "meets"  # one less does not do
    assert f"it saves {large['gpus_saved']} GPUs" in document["verdict"]


def test_value_needs_a_target(tmp_path, capsys):
    path = tmp_path / "s.toml"
    path.write_text(SHARED.replace("attainment = 0.95", ""))
    assert main(["value", str(path)]) == 2
    assert "attainment is missing" in capsys.readouterr().err
