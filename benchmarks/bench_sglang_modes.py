"""What SGLang's overlap schedule and mixed chunk change: python benchmarks/bench_sglang_modes.py [--json]

The first minutes of three public traces on one replica of an H200 (Llama-3.1-8B, page 1), each with the plain loop,
with the overlap schedule (the default), with mixed chunk beside the plain loop, and with both. KVCAST_DATA names the
reference data folder. Ten CPU-seconds. No engine was measured for this: step times are the profile's in every mode,
so the table shows what the schedule alone changes, not the host time that overlap hides.
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
MODES = {"plain loop": (False, False), "overlap (default)": (True, False), "mixed": (False, True), "both": (True, True)}
"""Name -> overlap_schedule, mixed_chunk."""
COLUMNS = ("steps", "hit_percent", "ttft_mean_s", "ttft_p99_s", "tpot_mean_ms", "itl_max_s", "retractions")


def scenario(file: str, kind: str, duration_s: float, rate_scale: float, overlap: bool, mixed: bool) -> dict[str, Any]:
    return {
        "workload": {
            "trace": str(Path(os.environ["KVCAST_DATA"], "traces", file)),
            "format": kind,
            "rate_scale": rate_scale,
        },
        "engine": {"semantics": "sglang", "block_size": 1, "overlap_schedule": overlap, "mixed_chunk": mixed},
        "run": {"warmup_s": 0.0, "duration_s": duration_s},
    }


def measure(document: dict[str, Any]) -> dict[str, float]:
    """One run of the loop."""
    from kvcast import api
    from kvcast.config import scenario_from_doc
    from sim.measure import metrics

    prepared = api.prepare(scenario_from_doc(document, "benchmark"))
    rec = api.record(prepared)
    done = np.flatnonzero(rec.status == 0)
    prompt, output = (getattr(prepared.workload, f"{name}_tokens")[done] for name in ("prompt", "output"))
    ttft_s = rec.first_token_s[done] - rec.arrival_s[done]
    several = output > 1
    tpot_s = ((rec.finish_s - rec.first_token_s)[done][several]) / (output[several] - 1)
    gaps, counts = metrics.gap_values(rec), metrics.gap_counts(rec, rec.status == 0)
    return {
        "requests": len(done),
        "steps": len(rec.steps[0].end_s),
        "hit_percent": 100 * float(rec.hit_tokens[done].sum() / prompt.sum()),
        "ttft_mean_s": float(ttft_s.mean()),
        "ttft_p99_s": float(np.percentile(ttft_s, 99)),
        "tpot_mean_ms": 1e3 * float(tpot_s.mean()),
        "itl_max_s": float(gaps[counts > 0].max()),
        "retractions": int(rec.preemptions.sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    if not os.environ.get("KVCAST_DATA"):
        raise SystemExit("KVCAST_DATA is not set: expected the reference data folder, whose traces these are")
    sys.path.insert(0, str(ROOT))
    rows = []
    for trace, given in TRACES.items():
        for mode, switches in MODES.items():
            rows.append({"trace": trace, "mode": mode} | measure(scenario(*given, *switches)))
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
