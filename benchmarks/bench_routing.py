"""The published 16-GPU routing study, simulated: python benchmarks/bench_routing.py [--router NAME ...]

Qwen3-32B on 8 x 2 H100; 150 groups of 5 prompts, 6,000 shared and 1,200 own tokens, visited in turn, answers of
937 tokens (of 1,000 asked); Poisson arrivals in stages of 3 to 60 requests/s, each after the drain of the one
before, and a warm-up of 50 s at 15/s. A stage's throughput is its requests over the time from its first arrival to its
last answer, as inference-perf has it. Published (llm-d guides, 2026) of the stage at 60/s: round-robin 5.7 requests/s
and a mean TTFT of 34.9 s, prefix-aware by its own index 14.4 and 0.12 s, by KV events 14.9 and 0.19 s; repeats differ
by 12 %, saturated by 2.5 times.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from workloads.columns import PrefixTree, Workload  # noqa: E402

GROUPS, PROMPTS, SHARED, OWN, ANSWER = 150, 5, 6000, 1200, 937
STAGES = [
    (15, 50),
    *[(3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21), (40, 38), (43, 36)],
    *[(46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25)],
]
"""(requests/s, seconds); the first one warms up."""
PAUSE_S = 1000.0
"""A stage begins 30 s after the last answer of the one before: long enough for any to drain, and idle time changes
nothing."""
ROUTERS = ("round-robin", "random", "least-loaded", "power-of-two", "llm-d-approx", "llm-d-precise", "dynamo-kv")
ROUTERS += ("sglang-cache-aware", "production-stack-prefix")


def study(seed: int, stages: list[tuple[int, int]] = STAGES) -> tuple[Workload, np.ndarray]:
    """The requests and the stage of each."""
    rng = np.random.default_rng(seed)
    groups = np.arange(1, GROUPS + 1)
    own = np.arange(GROUPS * PROMPTS)
    parent = np.concatenate([[-1], np.zeros(GROUPS), groups[own % GROUPS]]).astype(np.int32)
    end = np.concatenate([[0], np.full(GROUPS, SHARED), np.full(len(own), SHARED + OWN)])
    tree = PrefixTree(parent, end, np.zeros(len(parent), np.int16))
    times, stage, begins_s = [], [], 0.0
    for place, (rate, seconds) in enumerate(stages):
        arrivals = begins_s + np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds)))
        times.append(arrivals)
        stage.append(np.full(len(arrivals), place))
        begins_s += seconds + PAUSE_S
    arrival_s = np.concatenate(times)
    n = len(arrival_s)
    leaf = (GROUPS + 1 + np.arange(n) % len(own)).astype(np.int32)
    return Workload(tree, arrival_s, np.full(n, SHARED + OWN), np.full(n, ANSWER), leaf), np.concatenate(stage)


def last_stage(work: Workload, stage: np.ndarray, router: str) -> dict[str, float]:
    """What the study reports of its last stage, and Jain's index of all requests over the replicas."""
    from kvcast import api, scenario_from_doc

    doc = {
        "workload": {"preset": "chat", "requests": 10},  # takes the place of the study's requests
        "model": {"name": "qwen3-32b"},
        "hardware": {"gpu": "h100", "tensor_parallel": 2},
        "cluster": {"replicas": 8, "router": router},
        "run": {"warmup_s": 0},
    }
    rec = api.record(replace(api.prepare(scenario_from_doc(doc, "study")), workload=work))
    last = stage == stage.max()
    ttft_s = (rec.first_token_s - rec.arrival_s)[last]
    served = np.bincount(rec.replica, minlength=8).astype(float)
    return {
        "requests_per_s": float(last.sum() / (rec.finish_s[last].max() - rec.arrival_s[last].min())),
        "ttft_mean_s": float(ttft_s.mean()),
        "ttft_p99_s": float(np.percentile(ttft_s, 99)),
        "hits": float(rec.hit_tokens[last].sum() / work.prompt_tokens[last].sum()),
        "jain": float(served.sum() ** 2 / (8 * (served**2).sum())),
        "kv_tokens": float(rec.kv_blocks * rec.block_size),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--router", nargs="*", default=ROUTERS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    work, stage = study(args.seed)
    print(f"{len(work):,} requests, {len(STAGES) - 1} stages; of the last one (60 requests/s offered)")
    for router in args.router:
        begun_s = time.process_time()
        row = last_stage(work, stage, router)
        print(
            f"{router:24s} {row['requests_per_s']:5.1f} requests/s   TTFT mean {row['ttft_mean_s']:6.2f} s  p99"
            f" {row['ttft_p99_s']:6.2f} s   hits {row['hits']:5.1%}   Jain {row['jain']:.2f}   KV tokens a replica"
            f" {row['kv_tokens']:,.0f}   {time.process_time() - begun_s:.1f} CPU-s",
            flush=True,
        )


if __name__ == "__main__":
    main()
