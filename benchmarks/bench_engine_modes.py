"""What engines' default schedules change: python benchmarks/bench_engine_modes.py [--engine vllm] [--json]

The first minutes of three public traces on one replica of an H200 (Llama-3.1-8B): SGLang (page 1) with the plain loop,
with the overlap schedule (the default), with mixed chunk beside the plain loop, and with both; vLLM (blocks of 16)
without and with asynchronous scheduling (the default). KVCAST_DATA names the reference data folder. Ten CPU-seconds. No
engine was measured for this: step times are the profile's in every mode, without host time, so the table shows what the
schedule alone changes, not the host time that it hides.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TRACES = {
    "Mooncake conversation at 0.3x": ("mooncake/conversation_trace.jsonl", "mooncake", 3600.0, 0.3),
    "Mooncake synthetic at 0.5x": ("mooncake/synthetic_trace.jsonl", "mooncake", 1200.0, 0.5),
    "Azure code at 2x": ("azure/AzureLLMInferenceTrace_code.csv", "azure", 600.0, 2.0),
}
"""Name -> file, format, seconds of arrivals, times its own rate."""
MODES: dict[str, dict[str, dict[str, Any]]] = {
    "sglang": {
        "plain loop": {"overlap_schedule": False},
        "overlap (default)": {},
        "mixed": {"overlap_schedule": False, "mixed_chunk": True},
        "both": {"mixed_chunk": True},
    },
    "vllm": {"synchronous": {"async_scheduling": False}, "asynchronous (default)": {}},
}
"""Engine -> name -> keys of [engine]."""
PAGE = {"sglang": 1, "vllm": 16}
NO_HOST = {"host_step_ms": 0.0, "host_sequence_us": 0.0, "launch_layer_us": 0.0}
COLUMNS = ("steps", "hit_percent", "ttft_mean_s", "ttft_p99_s", "tpot_mean_ms", "itl_max_s", "retractions")


def scenario(
    file: str, kind: str, duration_s: float, rate_scale: float, engine: str, mode: dict[str, Any]
) -> dict[str, Any]:
    return {
        "workload": {
            "trace": str(Path(os.environ["KVCAST_DATA"], "traces", file)),
            "format": kind,
            "rate_scale": rate_scale,
        },
        "engine": {"semantics": engine, "block_size": PAGE[engine], **NO_HOST, **mode},
        "run": {"warmup_s": 0.0, "duration_s": duration_s},
    }


def measure(document: dict[str, Any]) -> dict[str, float]:
    """One run of the loop."""
    from kvcast import api
    from kvcast.config import scenario_from_doc
    from sim.measure import gaps

    prepared = api.prepare(scenario_from_doc(document, "benchmark"))
    rec = api.record(prepared)
    done = np.flatnonzero(rec.status == 0)
    prompt, output = (getattr(prepared.workload, f"{name}_tokens")[done] for name in ("prompt", "output"))
    ttft_s = rec.first_token_s[done] - rec.arrival_s[done]
    several = output > 1
    tpot_s = ((rec.finish_s - rec.first_token_s)[done][several]) / (output[several] - 1)
    gaps_s, counts = gaps.pooled(rec, rec.status == 0)
    return {
        "requests": len(done),
        "steps": len(rec.steps[0].end_s),
        "hit_percent": 100 * float(rec.hit_tokens[done].sum() / prompt.sum()),
        "ttft_mean_s": float(ttft_s.mean()),
        "ttft_p99_s": float(np.percentile(ttft_s, 99)),
        "tpot_mean_ms": 1e3 * float(tpot_s.mean()),
        "itl_max_s": float(gaps_s[counts > 0].max()),
        "retractions": int(rec.preemptions.sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--engine", choices=MODES, default="sglang")
    args = parser.parse_args()
    if not os.environ.get("KVCAST_DATA"):
        raise SystemExit("KVCAST_DATA is not set: expected the reference data folder, whose traces these are")
    sys.path.insert(0, str(ROOT))
    rows = []
    for trace, given in TRACES.items():
        for mode, keys in MODES[args.engine].items():
            rows.append({"trace": trace, "mode": mode} | measure(scenario(*given, args.engine, keys)))
            if not args.json:
                _print(rows)
    if args.json:
        print(json.dumps(rows, indent=2))


def _print(rows: list[dict[str, Any]]) -> None:
    """The newest row of a Markdown table, after its head if it is the first."""
    if len(rows) == 1:
        print("| trace | requests | mode | " + " | ".join(COLUMNS) + " |")
        print("|---" * (len(COLUMNS) + 3) + "|")
    row = rows[-1]
    cells = [f"{row[name]:,.3f}" if isinstance(row[name], float) else f"{row[name]:,}" for name in COLUMNS]
    print(f"| {row['trace']} | {row['requests']:,} | {row['mode']} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
