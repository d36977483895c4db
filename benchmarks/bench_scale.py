"""CPU time and peak memory by requests, replicas and router: python benchmarks/bench_scale.py [--only large] [--json]
   CPU time a turn of one session of 1,000 and of 10,000 turns:  python benchmarks/bench_scale.py --only turns
   either under another eviction policy: --policy s3fifo

The mix is three layered classes (chat, RAG, agents; mean prompt about 19,000 tokens, 320 tokens of answer) in closed
sessions, the same load for every replica. Each case is simulated in a process of its own, so that its peak is its own.
Within one run of this file the columns can be compared with each other; the machine's speed cancels.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
SIZES = {
    "small": [(10_000, 1), (10_000, 8), (10_000, 100)],
    "medium": [(100_000, 8), (100_000, 1_000)],
    "large": [(1_000_000, 8), (1_000_000, 1_000)],
    "whole": [(10_000_000, 1_000)],
}
SESSIONS_PER_S = 0.9
"""Of one replica."""


def lognormal(median: float, p90: float, high: float | None = None) -> dict[str, Any]:
    return {"kind": "lognormal", "median": median, "p90": p90} | ({} if high is None else {"high": high})


def layer(name: str, scope: str, tokens: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"name": name, "scope": scope, "tokens": tokens, **keys}


MIX = [
    {
        "name": "chat",
        "share": 0.6,
        "turns": {"kind": "geometric", "mean": 4, "high": 20},
        "think": {"kind": "exponential", "mean": 30},
        "output": lognormal(200, 600, 2000),
        "layers": [
            layer("tools", "global", {"value": 800}),
            layer("system", "project", lognormal(1500, 4000), items=40, zipf=0.8),
            layer("message", "dynamic", lognormal(300, 1200)),
        ],
    },
    {
        "name": "rag",
        "share": 0.3,
        "turns": {"kind": "geometric", "mean": 2, "high": 8},
        "think": {"kind": "exponential", "mean": 40},
        "output": lognormal(180, 500, 2000),
        "layers": [
            layer("system", "global", {"value": 600}),
            layer("document", "project", lognormal(4000, 12000, 30000), items=5000, zipf=0.9),
            layer("question", "dynamic", lognormal(80, 200)),
        ],
    },
    {
        "name": "agent",
        "share": 0.1,
        "turns": {"kind": "geometric", "mean": 15, "high": 60},
        "think": {"kind": "exponential", "mean": 30},
        "tool_gap": {"kind": "exponential", "mean": 4},
        "tool_share": 0.9,
        "turn_input": lognormal(700, 3000, 10000),
        "output": lognormal(250, 900, 4000),
        "layers": [
            layer("tools", "global", {"value": 12000}),
            layer("repo", "project", lognormal(8000, 20000, 40000), items=200, zipf=0.7),
            layer("task", "dynamic", lognormal(500, 2000)),
        ],
    },
]


def scenario(requests: int, replicas: int, router: str, policy: str = "lru") -> dict[str, Any]:
    return {
        "workload": {"rate": SESSIONS_PER_S * replicas, "requests": requests, "class": MIX},
        "model": {"name": "llama-3.1-8b"},
        "hardware": {"profile": "h200-llama-3.1-8b-aic"},
        "cluster": {"replicas": replicas, "router": router},
        "cache": {"policy": policy},
        "run": {"warmup_s": 0},
        "slo": {"ttft_s": 2.0, "tpot_s": 0.05, "attainment": 0.95},
    }


def turns(count: int, policy: str = "lru") -> float:
    """CPU microseconds a turn of one session: 30 tokens more and an answer of 20, behind all that was said before."""
    import numpy as np

    from calibrate.latency import load_step_time
    from sim.scenario import EngineParams
    from sim.simulate import run
    from workloads.columns import PrefixTree, Workload

    turn = np.arange(count)
    end = np.append(0, np.column_stack([50 * turn + 30, 50 * turn + 50]))
    tree = PrefixTree(np.arange(-1, 2 * count, dtype=np.int32), end, np.zeros(2 * count + 1, np.int16))
    workload = Workload(
        tree,
        np.where(turn > 0, np.nan, 0.0),
        50 * turn + 30,
        np.full(count, 20),
        (2 * turn + 2).astype(np.int32),
        session_id=np.zeros(count, np.int64),
        after=turn - 1,
        delay_s=np.full(count, 0.5),
    )
    step_time = load_step_time("h200-llama-3.1-8b-aic", "llama-3.1-8b", "bf16", 1)
    begun_s = time.process_time()
    params = EngineParams(kv_blocks=100 * count, max_model_len=100 * count, policy=policy)
    rec = run(workload, params, step_time)
    assert (rec.status == 0).all()
    return (time.process_time() - begun_s) / count * 1e6


def one(requests: int, replicas: int, router: str, policy: str = "lru") -> dict[str, Any]:
    """A case in this process: CPU seconds and peak MiB after each part."""
    from kvcast import api, scenario_from_doc

    row: dict[str, Any] = {"requests": requests, "replicas": replicas, "router": router}
    begun_s = time.process_time()

    def part(name: str) -> None:
        nonlocal begun_s
        row[f"{name}_cpu_s"] = round(time.process_time() - begun_s, 2)
        row[f"{name}_peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        begun_s = time.process_time()

    prepared = api.prepare(scenario_from_doc(scenario(requests, replicas, router, policy), "scale"))
    part("load")
    row["requests"] = len(prepared.workload)
    recording = api.record(prepared)
    part("simulate")
    summary = api.measure(prepared, recording).report.summary
    part("measure")
    row["us_a_request"] = round(row["simulate_cpu_s"] / row["requests"] * 1e6, 1)
    row["steps"] = sum(len(steps.end_s) for steps in recording.steps)
    row["samples"] = sum(len(samples.t_s) for samples in recording.samples)
    return row | {
        key: summary[key] for key in ("completed", "prefix_hit_rate", "attainment", "mean_ttft_ms", "p99_itl_ms")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[*SIZES, "turns", "one"], action="append", help="default: small and medium")
    parser.add_argument("--router", default="session-affinity")
    parser.add_argument("--policy", default="lru")
    parser.add_argument("--requests", type=int, help="with --only one")
    parser.add_argument("--replicas", type=int, help="with --only one")
    parser.add_argument("--json", action="store_true", help="one JSON line a case")
    args = parser.parse_args()
    if args.only == ["one"]:
        print(json.dumps(one(args.requests, args.replicas, args.router, args.policy)))
        return
    if args.only == ["turns"]:
        for count in (1_000, 10_000):
            print(f"{count:>11,} turns of one session {turns(count, args.policy):>6.1f} us a turn", flush=True)
        return
    for requests, replicas in (case for size in args.only or ("small", "medium") for case in SIZES[size]):
        command = [sys.executable, __file__, "--only", "one", "--requests", str(requests), "--replicas", str(replicas)]
        made = subprocess.run(
            [*command, "--router", args.router, "--policy", args.policy],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        if args.json:
            print(made.stdout, end="", flush=True)
            continue
        row = json.loads(made.stdout)
        print(
            f"{row['requests']:>11,} requests {replicas:>5,} replicas {row['us_a_request']:>6} us a request"
            f"   CPU-s load{row['load_cpu_s']:>6} simulate {row['simulate_cpu_s']:>7} measure {row['measure_cpu_s']:>6}"
            f"   peak MiB {row['load_peak_mib']:>5} {row['simulate_peak_mib']:>5} {row['measure_peak_mib']:>5}",
            flush=True,
        )


if __name__ == "__main__":
    main()
