"""CPU seconds and peak memory of whole processes: python benchmarks/bench_speed.py [--json]

Each case is one `kvcast run` in a process of its own, so imports, loading, simulation and reports all count. The
Mooncake cases need the trace: KVCAST_DATA names the reference data folder. BLAS runs on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SYNTHETIC = """
[workload]
rate = 20.0
requests = 20000
duration_s = 1000.0
[[workload.class]]
name = "fixed"
share = 1.0
layers = [{ name = "prompt", scope = "dynamic", tokens = { value = 1000 } }]
output = { value = 250 }
[run]
warmup_s = 0
"""
SGLANG = {"semantics": "sglang", "block_size": 1}


def measure(scenario: Path, *flags: str) -> dict[str, float]:
    """User + system CPU seconds and peak resident MiB of one `kvcast run --json` that simulates once: without
    the cache-off twin and the model error's two."""
    command = [sys.executable, "-m", "kvcast", "run", str(scenario), "--json", "--no-baseline", "--no-model-error"]
    command += flags
    started = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        pid = os.posix_spawn(
            sys.executable,
            command,
            {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1)],
        )
        _, status, usage = os.wait4(pid, 0)
        if os.waitstatus_to_exitcode(status):
            raise SystemExit(f"{' '.join(command)} failed")
        out.seek(0)
        summary = json.load(out)
    mib = usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": time.perf_counter() - started,
        "peak_mib": mib,
        "arrived": summary["arrived"],
        "completed": summary["completed"],
    }


def loop_rate(path: Path, **engine: Any) -> dict[str, float]:
    """Requests simulated per CPU second inside the loop alone (`sim.simulate.run`; no imports, loading or report).

    engine: [engine] keys beside the scenario's own."""
    sys.path.insert(0, str(ROOT))
    from kvcast import api, load_scenario

    scenario = load_scenario(path)
    prepared = api.prepare(replace(scenario, engine=replace(scenario.engine, **engine)))
    before = time.process_time()
    api.record(prepared)
    cpu_s = time.process_time() - before
    return {"cpu_s": cpu_s, "requests": len(prepared.workload), "requests_per_cpu_s": len(prepared.workload) / cpu_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        synthetic = Path(folder, "synthetic.toml")
        synthetic.write_text(SYNTHETIC)
        if os.environ.get("KVCAST_DATA"):
            mooncake = ROOT / "examples" / "mooncake.toml"
            figures["Mooncake conversation, 1 replica"] = measure(mooncake)
            figures["Mooncake conversation, 8 replicas"] = measure(mooncake, "--set", "cluster.replicas=8")
        else:
            print("KVCAST_DATA is not set: the Mooncake cases are left out", file=sys.stderr)
        figures["20,000 requests of 1,000/250 tokens"] = measure(synthetic)
        figures["the same, loop alone"] = loop_rate(synthetic)
        figures["SGLang's, loop alone"] = loop_rate(synthetic, **SGLANG)
        figures["SGLang's plain loop, loop alone"] = loop_rate(synthetic, **SGLANG, overlap_schedule=False)
    if args.json:
        print(json.dumps(figures, indent=2))
        return
    for name, row in figures.items():
        print(
            f"{name:40s} "
            + "  ".join(
                f"{key} {value:,.2f}" if isinstance(value, float) else f"{key} {value:,}" for key, value in row.items()
            )
        )


if __name__ == "__main__":
    main()
