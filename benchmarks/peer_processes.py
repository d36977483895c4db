"""Other simulators, each in the Python of a venv that has it, and what its process used.

>>> from benchmarks.peer_processes import AISimulate
>>> AISimulate("peers/bin/python").run(case, trace, 512)  # a Case of kvcast.validation.aisimulate
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peer_cache, peer_work
from kvcast.validation.aisimulate import KV_TOKEN_BYTES, TRACE_BLOCK, Case, means_ms
from sim.fleet.router import find as find_router

ROOT = Path(__file__).resolve().parent.parent


class AISimulate:
    name = "AISimulate"
    missing = "AISimulate: not run, expected --aisimulate PYTHON of a venv with ai-dynamo-runtime 1.6.1 (see --help)"

    def __init__(self, python: str) -> None:
        self.python = python

    def job(self, case: Case, trace: Path, block_tokens: int, each: bool) -> dict[str, Any]:
        """What peer_aisimulate.py is asked for."""
        options: dict[str, Any] = {"router_mode": "kv_router" if case.router == "dynamo-kv" else "round_robin"}
        engine = engine_of(case)
        if case.prefill_replicas:
            options |= {
                "num_prefill_workers": case.prefill_replicas,
                "num_decode_workers": case.replicas - case.prefill_replicas,
            }
            engines = {f"{role}_engine_args": engine | {"worker_type": role} for role in ("prefill", "decode")}
        else:
            options["num_workers"] = case.replicas
            engines = {"extra_engine_args": engine}
        return {"trace": str(trace), "block_tokens": block_tokens, "each": each, "options": options, "engines": engines}

    def run(self, case: Case, trace: Path, block_tokens: int, each: bool = True) -> dict[str, Any]:
        """Its answer, with CPU seconds, wall seconds and peak MiB of its process."""
        with tempfile.TemporaryDirectory() as folder:
            job, out = Path(folder, "job.json"), Path(folder, "out.json")
            job.write_text(json.dumps(self.job(case, trace, block_tokens, each)), encoding="utf-8")
            used = process([self.python, str(ROOT / "benchmarks" / "peer_aisimulate.py"), str(job), str(out)])
            return json.loads(out.read_text(encoding="utf-8")) | used

    def figures(self, case: Case, trace: Path) -> dict[str, Any]:
        """As `trace_figures` of kvcast's run; of a router that draws among ties, which it does anew each time, the
        means of three runs."""
        runs = [self._figures(case, trace) for _ in range(3 if find_router(case.router).draws else 1)]
        return {key: type(runs[0][key])(sum(run[key] for run in runs) / len(runs)) for key in runs[0]}

    def _figures(self, case: Case, trace: Path) -> dict[str, Any]:
        rows = self.run(case, trace, TRACE_BLOCK)["requests"]
        times = {
            "arrival": np.array([row["arrival_time_ms"] for row in rows]),
            "first": np.array([row["first_token_ms"] for row in rows]),
            "last": np.array([row["last_token_ms"] for row in rows]),
            "tokens": np.array([row["output_length"] for row in rows]),
        }
        return {
            **means_ms(**times),
            "hit_tokens": sum(row["hit_tokens"] for row in rows),
            "preemptions": sum(row["readmissions"] for row in rows),
        }


class Vidur:
    name = "Vidur"
    missing = "Vidur: not run, expected --vidur PYTHON of a venv with vidur 0.0.26 (see --help)"

    def __init__(self, python: str) -> None:
        self.python = python

    def run(self) -> dict[str, Any]:
        """Its answer on `peer_work`, with CPU seconds, wall seconds and peak MiB of its process."""
        with tempfile.TemporaryDirectory() as folder:
            job, out = Path(folder, "job.json"), Path(folder, "out.json")
            job.write_text(json.dumps(peer_work.job()), encoding="utf-8")
            used = process([self.python, str(ROOT / "benchmarks" / "peer_vidur.py"), str(job), str(out)])
            return json.loads(out.read_text(encoding="utf-8")) | used


class KvCacheSimulator:
    name = "kvcache-simulator"
    missing = (
        "kvcache-simulator: not run, expected --kvcache PYTHON of a venv with kvcache-simulator 0.1.3 (see --help)"
    )

    def __init__(self, python: str) -> None:
        self.python = python

    def run(self, trace: Path) -> dict[str, Any]:
        """Its answer on the trace, with CPU seconds, wall seconds and peak MiB of its process."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out.json")
            used = process(peer_cache.of_peer(self.python, trace, out))
            return json.loads(out.read_text(encoding="utf-8")) | used


def engine_of(case: Case) -> dict[str, Any]:
    """A case's engine as the peer's configuration."""
    return {
        "backend": case.engine,
        "num_gpu_blocks": case.kv_blocks,
        "block_size": case.block_size,
        "max_num_seqs": case.max_num_seqs,
        "max_num_batched_tokens": case.max_num_batched_tokens,
        "enable_prefix_caching": case.caching,
        "timing_model": {"type": "polynomial"},
        "kv_transfer_bytes_per_token": KV_TOKEN_BYTES,
        "kv_transfer_bandwidth": case.gb_per_s,
        "sglang": {"schedule_policy": "fifo", "chunked_prefill_size": case.max_num_batched_tokens},
    }


WATCH = """
import json, os, sys, time
began = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
_, status, used = os.wait4(pid, 0)
wall_s = time.perf_counter() - began
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss]))
"""
"""In a small process of its own: a child's peak begins with its parent's."""


def process(command: list[str]) -> dict[str, float]:
    """Run it: user + system CPU seconds, wall seconds and peak resident MiB. SystemExit when it fails."""
    with tempfile.TemporaryFile("w+") as said:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        watch = [sys.executable, "-S", "-E", "-c", WATCH, *command]
        told = subprocess.run(watch, env=environment, stdout=subprocess.PIPE, stderr=said, text=True, check=True)
        code, cpu_s, wall_s, peak = json.loads(told.stdout)
        if code:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{said.read()[-2000:]}")
    return {"cpu_s": cpu_s, "wall_s": wall_s, "peak_mib": peak / (1024 if sys.platform != "darwin" else 1024**2)}
