"""Requests per CPU second and peak memory of long closed-loop sessions: python benchmarks/bench_coding_agent.py
[--requests N]

Coding-agent sessions that grow to 200,000 tokens (turns beyond it are cut), 100,000 turns asked for, a fixed number of
users at work, Qwen3-Coder on a roofline of H200s. The rate is completed requests over CPU seconds inside
`sim.simulate.run`; imports, loading and reports are not in it. Each case is a process of its own, so its peak memory is
its own too. CPU seconds of a machine with other work on its cores are up to half again as many: compare rows of one
run."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = [(16, 2, "lru"), (64, 1, "lru"), (64, 2, "lru"), (64, 8, "lru"), (64, 2, "lfu")]
"""Users, replicas, policy."""


def one(requests: int, users: int, replicas: int, policy: str) -> dict[str, float]:
    """Simulate a case in this process."""
    sys.path.insert(0, str(ROOT))
    from kvcast import api
    from kvcast.config import scenario_from_doc

    scenario = scenario_from_doc(
        {
            "workload": {"preset": "coding-agent", "requests": requests, "loop": "concurrency", "concurrency": users},
            "model": {"name": "qwen3-coder-30b-a3b"},
            "hardware": {"profile": "roofline:h200"},
            "engine": {"max_model_len": 200_000},
            "cluster": {"replicas": replicas},
            "cache": {"policy": policy},
        },
        "benchmark",
    )
    prepared = api.prepare(scenario)
    before = time.process_time()
    recording = api.record(prepared)
    cpu_s = time.process_time() - before
    completed = int((recording.finish_s >= 0).sum())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
    return {"completed": completed, "cpu_s": cpu_s, "requests_per_cpu_s": completed / cpu_s, "peak_mib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        users, replicas, policy = args.case.split(",")
        print(json.dumps(one(args.requests, int(users), int(replicas), policy)))
        return
    rows = []
    for users, replicas, policy in CASES:
        command = [sys.executable, __file__, "--requests", str(args.requests), "--case", f"{users},{replicas},{policy}"]
        out = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        ).stdout
        rows.append({"users": users, "replicas": replicas, "policy": policy} | json.loads(out))
        if not args.json:
            print(
                "{users:3d} users {replicas:2d} replicas {policy:4s} {completed:7,d} completed {cpu_s:6.1f} CPU-s"
                " {requests_per_cpu_s:7,.0f} req/CPU-s {peak_mib:5,.0f} MiB".format(**rows[-1]),
                flush=True,
            )
    if args.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
