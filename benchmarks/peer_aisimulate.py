"""One replay in NVIDIA's AISimulate, run by the Python that has it (bench_peers.py starts this; it needs no kvcast).

    python benchmarks/peer_aisimulate.py JOB.json OUT.json

JOB has trace, block_tokens, options of dynamo's replay and `each`: whether the answer holds every request. The engine
is in ai-dynamo-runtime's extension module; ai-dynamo and aisimulate's own Python are not needed.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

KEPT = ("arrival_time_ms", "first_token_ms", "last_token_ms", "input_length", "output_length")


def main(job_path: str, out_path: str) -> None:
    from dynamo import _core

    began_s = time.process_time()
    job: dict[str, Any] = json.loads(Path(job_path).read_text(encoding="utf-8"))
    engines = {role: _core._normalize_mocker_config({"engine": engine}) for role, engine in job["engines"].items()}
    report = _core.run_mocker_trace_replay(
        [job["trace"]],
        trace_block_size=job["block_tokens"],
        capture_per_request=job["each"],
        **engines,
        **job["options"],
    )
    rows = [
        {key: row[key] for key in KEPT}
        | {
            "replica": row["decode_worker_idx"],
            "readmissions": row["readmission_count"],
            "hit_tokens": row["admission_history"][0]["reused_input_tokens"],
        }
        for row in report.per_request or ()
    ]
    answer = {
        "version": version("ai-dynamo-runtime"),
        "loop_cpu_s": time.process_time() - began_s,
        "summary": report.summary,
        "requests": rows,
    }
    Path(out_path).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
