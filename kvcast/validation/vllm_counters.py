"""vllm-counters: the prefix-cache counters of a real vLLM (0.13, block 16, no eviction), to the token.

300 requests with token ids, served by one instance and, split even and odd, by two.

    $ kvcast validate vllm-counters
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvcast.validation import Outcome, required
from sim.scenario import EngineParams
from workloads.config import WorkloadConfig

RECORDED = {1: [(82_645, 21_264)], 2: [(39_877, 4_240), (42_768, 5_840)]}
"""Replicas -> (queried, hit) tokens of each, as vLLM's Prometheus counters read at the end."""
ENGINE = EngineParams(kv_blocks=1_000_000, block_size=16, max_num_seqs=256, max_num_batched_tokens=8192)
"""vLLM's defaults; the recorded card held 221,504 KV tokens and evicted nothing, as this one does."""


def run(data_dir: Path, **_: Any) -> Outcome:
    from calibrate.latency import load_step_time
    from kvcast.api import load_workload
    from sim.simulate import run as simulate

    trace = required(data_dir / "measured" / "vllm_prefix_counters" / "sharegpt_pulse_req50_n6_delay15_pc.jsonl")
    kernels = required(data_dir / "measured" / "rtx4090_llama-3.1-8b" / "kernels")
    workload = load_workload(WorkloadConfig(trace=str(trace)))
    lines, figures = [], {}
    for replicas, recorded in RECORDED.items():
        recording = simulate(workload, ENGINE, load_step_time(str(kernels)), replicas=replicas, router="round-robin")
        for replica, truth in enumerate(recorded):
            mine = recording.replica == replica
            found = (int(workload.prompt_tokens[mine].sum()), int(np.sum(recording.hit_tokens[mine])))
            lines.append(
                f"{replicas} replica{'s' if replicas > 1 else ''}, number {replica}: queried {found[0]:,}, hit"
                f" {found[1]:,} (recorded {truth[0]:,} and {truth[1]:,}){'' if found == truth else '  DIFFERS'}"
            )
            figures[f"{replicas}-{replica}"] = {
                "queried": found[0],
                "hit": found[1],
                "recorded": truth,
                "equal": found == truth,
            }
    return Outcome("vllm-counters", all(f["equal"] for f in figures.values()), lines, figures)
