"""The compiled core against pure Python, to the bit: python -m tests.fast [--scenarios 50] (after `make fast`).

Random scenarios of every engine, policy and router are simulated twice, in a process of each kind; all that a run
leaves behind must be equal. `make test-fast` does this, and then runs the whole suite on the compiled core.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import kvcast
from kvcast.compiled import COMPILED
from sim.recording import StepShapes

ROOT = Path(__file__).resolve().parent.parent
REQUESTS = 400


def scenario_of(seed: int) -> Any:
    """A random scenario of a few hundred requests, often short of memory."""
    from kvcast import scenario_from_doc
    from sim.fleet.router import ROUTERS
    from sim.kvcache.policies import POLICIES

    rng = random.Random(seed)
    engine = rng.choice(["vllm", "vllm", "vllm", "sglang"])
    cache: dict[str, Any] = {"policy": rng.choice(sorted(POLICIES)) if rng.random() < 0.6 else "lru"}
    if rng.random() < 0.1:
        cache = {"enabled": False}
    keys: dict[str, Any] = {
        "semantics": engine,
        "kv_blocks": rng.choice([2_500, 6_000, 30_000]) * (16 if engine == "sglang" else 1),
        "block_size": 1 if engine == "sglang" else rng.choice([16, 16, 32]),
        "max_num_seqs": rng.choice([8, 64, 256]),
        "max_model_len": 32_000,
    }
    if engine == "vllm":
        keys |= {
            "max_num_batched_tokens": rng.choice([1024, 2048, 8192]),
            "async_scheduling": rng.random() < 0.5,
            "scheduler_policy": rng.choice(["fcfs", "fcfs", "priority"]),
        }
    return scenario_from_doc(
        {
            "workload": {
                "preset": rng.choice(["demo", "chat", "coding-agent", "tool-agent-api", "rag"]),
                "requests": REQUESTS,
            },
            "model": {"name": "llama-3.1-8b"},
            "hardware": {"gpu": "h200"},
            "cluster": {"replicas": rng.randint(1, 3), "router": rng.choice(sorted(ROUTERS))},
            "engine": keys,
            "cache": cache,
            "run": {"warmup_s": 0.0},
            "seed": seed,
        }
    )


def digest(seed: int) -> str:
    """Of all that the run leaves behind; of the refusal, where there is one."""
    from kvcast import InputError, api

    try:
        recording = api.record(api.prepare(scenario_of(seed)))
    except InputError as refused:
        return f"refused: {str(refused)[:80]}"
    found = hashlib.sha256()
    _add(found, recording)
    return f"{found.hexdigest()[:16]} {int((recording.status == 0).sum())} of {len(recording.status)}"


def _add(found: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        found.update(value.dtype.str.encode() + value.tobytes())
    elif isinstance(value, list | tuple):
        for one in value:
            _add(found, one)
    elif isinstance(value, StepShapes):
        for name in ("sum_context", "n_sampled", "chunk_step", "chunk_new", "chunk_cached"):
            _add(found, getattr(value, name))
    elif dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            _add(found, getattr(value, one.name, None))
    else:
        assert value is None or isinstance(value, bool | int | float | str), type(value)
        found.update(repr(value).encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", type=int, default=50)
    parser.add_argument("--one-kind", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one_kind:
        for seed in range(asked.scenarios):
            before = time.process_time()
            said = digest(seed)
            print(f"{said}\t{time.process_time() - before:.2f}", flush=True)
        return 0
    if kvcast.core != COMPILED:
        print(f"tests.fast: {kvcast.core}; expected a compiled core: make fast", file=sys.stderr)
        return 2
    pure, fast = (_of_kind(asked.scenarios, pure) for pure in ("1", "0"))
    differ = [seed for seed, (one, other) in enumerate(zip(pure, fast, strict=True)) if one[0] != other[0]]
    for seed in differ:
        print(f"scenario {seed}: pure {pure[seed][0]}, compiled {fast[seed][0]}")
    ran = sum(not said.startswith("refused") for said, _ in pure)
    print(f"{asked.scenarios} scenarios, {ran} of them simulated: {len(differ)} differ; "
          f"{sum(s for _, s in pure):.1f} CPU-s in pure Python, {sum(s for _, s in fast):.1f} compiled")  # fmt: skip
    return 1 if differ or not ran else 0


def _of_kind(scenarios: int, pure: str) -> list[tuple[str, float]]:
    command = [sys.executable, "-m", "tests.fast", "--one-kind", "--scenarios", str(scenarios)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"KVCAST_PURE": pure}, stdout=subprocess.PIPE, text=True, check=True
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [(said, float(cpu_s)) for said, cpu_s in rows]


if __name__ == "__main__":
    raise SystemExit(main())
