"""The compiled core against pure Python, to the bit: python -m tests.fast [--scenarios 50] (after `make fast`).

Random scenarios of every engine, policy and router, and the engine cases of the reference data, are simulated twice,
in a process of each kind; all that a run leaves behind must be equal. `make test-fast` does this, and then runs the
whole suite on the compiled core.
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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import kvcast
from kvcast.compiled import COMPILED
from kvcast.validation import engine_cases
from sim.recording import StepShapes
from workloads.readers.engine_case import read_case

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


def digest_of_case(path: Path) -> str:
    """Of a replayed engine case and its every step; of why it is not simulated, where it is not."""
    case = read_case(path)
    if reason := engine_cases.not_simulated(case):
        return f"refused: {reason}"
    did = engine_cases.replay(case)
    found = hashlib.sha256()
    _add(found, did.recording)
    _add(found, did.log)
    return f"{found.hexdigest()[:16]} of {len(did.log)} steps"


def worlds(scenarios: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """What is simulated in both: its name, and a call that does it and says what came out."""
    for seed in range(scenarios):
        yield f"scenario {seed}", partial(digest, seed)
    data = os.environ.get("KVCAST_DATA")
    for folder in engine_cases.FOLDERS if data else ():
        for path in sorted(Path(str(data), folder).glob("*.json*")):
            yield f"engine case {path.name}", partial(digest_of_case, path)


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
        for name, simulated in worlds(asked.scenarios):
            before = time.process_time()
            said = simulated()
            print(f"{name}\t{said}\t{time.process_time() - before:.2f}", flush=True)
        return 0
    if kvcast.core != COMPILED:
        print(f"tests.fast: {kvcast.core}; expected a compiled core: make fast", file=sys.stderr)
        return 2
    pure, fast = (_of_kind(asked.scenarios, pure) for pure in ("1", "0"))
    differ = [at for at, (one, other) in enumerate(zip(pure, fast, strict=True)) if one[:2] != other[:2]]
    for at in differ:
        print(f"{pure[at][0]}: pure {pure[at][1]}, compiled {fast[at][1]}")
    ran = [name for name, said, _ in pure if not said.startswith("refused")]
    cases = sum(name.startswith("engine case") for name in ran)
    print(f"{len(ran) - cases} random scenarios and {cases} engine cases simulated in both: {len(differ)} differ; "
          f"{sum(s for *_, s in pure):.1f} CPU-s in pure Python, {sum(s for *_, s in fast):.1f} compiled")  # fmt: skip
    if not cases:
        print("WARNING: no engine case was simulated: set KVCAST_DATA to the reference data folder")
    return 1 if differ or not ran else 0


def _of_kind(scenarios: int, pure: str) -> list[tuple[str, str, float]]:
    command = [sys.executable, "-m", "tests.fast", "--one-kind", "--scenarios", str(scenarios)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"KVCAST_PURE": pure}, stdout=subprocess.PIPE, text=True, check=True
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [(name, said, float(cpu_s)) for name, said, cpu_s in rows]


if __name__ == "__main__":
    raise SystemExit(main())
