"""CPU seconds of a plan over 100 combinations of the bundled mix: python benchmarks/bench_plan.py [--rate-scale 3]
[--jobs N] [--whole] [--every]

    5 eviction policies x 2 routers x 2 step budgets x 5 KV sizes = 100 combinations
    --whole    also the capacity, what binds, the advice and the growth of the cheapest
    --every    the fewest replicas of all 100, also of those that cannot be cheaper than the best

One process tree, measured by the kernel: imports, loading, every simulation and every report count. BLAS runs on one
thread."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARY = (
    "cache.policy=lru,lfu,s3fifo,gdsf,arc",
    "cluster.router=round-robin,least-loaded",
    "engine.max_num_batched_tokens=4096,8192",
    "engine.kv_blocks=12000,20000,30000,40000,57429",
)
ALONE = ("--no-capacity", "--no-binding", "--no-advice", "--no-growth", "--no-n-plus-1")


def measure(scale: float, jobs: int, *flags: str) -> dict[str, float]:
    """CPU seconds (user + system, children included) of one `kvcast plan`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "kvcast",
            "plan",
            str(ROOT / "examples" / "demo.toml"),
            "--json",
            "--jobs",
            str(jobs),
            "--out",
            f"{folder}/plan",
            "--set",
            f"workload.rate_scale={scale}",
            *(part for axis in VARY for part in ("--vary", axis)),
            *flags,
        ]
        before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        after, took_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began_s
    made = json.loads(done.stdout)
    return {
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "wall_s": took_s,
        "combinations": 100,
        "simulations": made["simulations"]["distinct"],
        "stopped_early": made["simulations"]["stopped_early"],
        "pruned": made["rejected_by"].get("pruned", 0),
        "replicas": made["answer"]["replicas"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rate-scale", type=float, default=1.0, help="times the demo's load (default 1)")
    parser.add_argument("--whole", action="store_true", help="capacity, binding, advice and growth too")
    parser.add_argument("--every", action="store_true", help="no pruning: the fewest replicas of all 100")
    args = parser.parse_args()
    print(
        json.dumps(
            measure(args.rate_scale, args.jobs, *(() if args.whole else ALONE), *(("--every",) if args.every else ())),
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
