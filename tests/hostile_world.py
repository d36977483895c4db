"""What the cases of tests.hostile attack: a small folder of valid files, one of each sort, and the commands that made
them.

>>> make_world(Path("world"))
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvcast.cli import main as kvcast
from kvcast.store import simulations, workload_folder

SCENARIO = """
name = "small"
[workload]
rate = 20.0
duration_s = 3
[[workload.class]]
name = "a"
share = 1.0
slo_class = "a"
output = {value=5}
[[workload.class.layers]]
name = "m"
scope = "dynamic"
tokens = {value=100}
[model]
name = "llama-3.1-8b"
[hardware]
gpu = "h200"
[engine]
kv_blocks = 2000
[run]
warmup_s = 0
duration_s = 3
[slo]
ttft_s = 1.0
attainment = 0.9
[slo.classes.a]
tpot_s = 1.0
[[shock]]
at_s = 1.0
kind = "replica-down"
duration_s = 0.5
[[cache.tiers]]
name = "dram"
capacity_blocks = 500
bandwidth_gb_per_s = 40.0
"""
STEADY = SCENARIO[: SCENARIO.index("[[shock]]")].replace("warmup_s = 0\n", "").replace("rate = 20.0", "rate = 2.0")
"""What `kvcast resilience` asks: a mix in its steady state, without a shock."""
TRACE = "".join(
    f'{{"timestamp": {100 * i}, "input_length": 1024, "output_length": 3, "hash_ids": [{i % 2}, {i}]}}\n'
    for i in range(20)
)
MEASURED = {
    "request_rate": 5.0,
    "max_concurrency": None,
    "completed": 80,
    "total_input_tokens": 16000,
    "duration": 20.0,
    "input_lens": [200] * 80,
    "output_lens": [8] * 80,
    "start_times": [1000.0 + i / 4 for i in range(80)],
    "ttfts": [0.05 + i / 1000 for i in range(80)],
    "latencies": [0.2 + i / 1000 for i in range(80)],
    "errors": [""] * 80,
}
"""What a benchmark measured, request by request."""
METRICS = """
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B"} 5.0
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B"} 0.0
vllm:request_success_total{engine="0",finished_reason="stop"} 400
vllm:prefix_cache_queries_total{engine="0"} 320000
vllm:prefix_cache_hits_total{engine="0"} 128000
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="27000"} 1.0
vllm:request_prompt_tokens_bucket{engine="0",le="500.0"} 100
vllm:request_prompt_tokens_bucket{engine="0",le="1000.0"} 300
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf"} 400
vllm:request_prompt_tokens_count{engine="0"} 400
vllm:request_prompt_tokens_sum{engine="0"} 320000
vllm:request_generation_tokens_bucket{engine="0",le="100.0"} 200
vllm:request_generation_tokens_bucket{engine="0",le="+Inf"} 400
vllm:request_generation_tokens_count{engine="0"} 400
vllm:request_generation_tokens_sum{engine="0"} 40000
"""
"""A server's page after 400 requests."""
API_PRICES = """
[[api]]
name = "x"
input = 3.0
output = 15.0
"""


@dataclass(frozen=True)
class Case:
    kind: str
    argv: list[str]
    prepare: Callable[[Path], object] | None = None  #: what is done to the world first
    how: str = ""
    codes: frozenset[int] = frozenset({0, 1, 2})
    file_bytes: int = 0  #: limit of a file's size, as of a full disk; what argv ends with is then named
    keeps: bool = False  #: what is whole by then stays, and the same command goes on

    def line(self) -> str:
        said = " ".join(shlex.quote(word) for word in self.argv).encode("unicode_escape").decode()
        return (
            f"{self.kind}: kvcast {said if len(said) < 200 else said[:200] + '...'}{self.how and f'  # {self.how!r}'}"
        )


def make_world(folder: Path) -> Path:
    """Valid files of each sort: a scenario, a trace, prices, a run, a sweep, a plan."""
    folder.mkdir(parents=True)
    (folder / "S.toml").write_text(SCENARIO)
    (folder / "R.toml").write_text(STEADY)
    (folder / "T.jsonl").write_text(TRACE)
    (folder / "P.toml").write_text("h200 = 3.5\n")
    (folder / "launch.sh").write_text("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 1\n")
    (folder / "vllm.log").write_text("INFO GPU KV cache size: 100,000 tokens\n")
    (folder / "R.json").write_text(json.dumps(MEASURED))
    (folder / "page.txt").write_text(METRICS)
    (folder / "rows.csv").write_text("input,output,time\n100,5,0.1\n")
    here = Path.cwd()
    os.chdir(folder)
    try:
        for argv in MADE:
            with contextlib.redirect_stdout(io.StringIO()):
                assert kvcast(argv) == 0, argv
    finally:
        os.chdir(here)
    simulations._whole.clear()  # what another process would not know
    workload_folder._whole.clear()
    return folder


PLAIN = ["--set", "cache.tiers=", "--set", "shock="]
QUICK = ["--max-replicas", "2", "--seeds", "2"]
MADE = [
    ["run", "S.toml", "--steps", "--access-log", "--out", "run"],
    ["run", "S.toml", *PLAIN, "--save-cache", "warm.npz", "--no-baseline"],
    ["sweep", "S.toml", "--vary", "cache.policy=lru,lfu", "--out", "sweep"],
    ["calibrate", "--device", "fake", "--out", "measured"],
    ["export", "run", "--grafana", "M.om", "--every", "1s", "--start", "2026-11-30T09:00:00Z"],
]
