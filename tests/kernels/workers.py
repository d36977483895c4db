"""Runs test cases in worker processes, so that the test process never imports torch or triton.

results = run("tests.kernels.interpret", ids, {"TRITON_INTERPRET": "1"})
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(module: str, ids: list[str], env: dict[str, str]) -> dict[str, dict]:
    """{case id: result} from `python -m module` in a worker per core; a case whose worker failed has {"failure":
    why}."""
    workers = max(1, min(os.cpu_count() or 1, len(ids)))
    shares = [ids[n::workers] for n in range(workers)]
    started = []
    for share in shares:
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed below)
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **env},
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(share))
        process.stdin.close()
        started.append((share, process, errors))
    results: dict[str, dict] = {}
    for share, process, errors in started:
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            results[answer.pop("id")] = answer
        code = process.wait()
        errors.seek(0)
        tail = errors.read()[-3000:]
        errors.close()
        for case_id in share:
            results.setdefault(case_id, {"failure": f"worker {module} ended with {code} before this case\n{tail}"})
    return results


def serve(execute: Callable[[str], dict]) -> None:
    """The worker's side: case ids on stdin, one JSON line per case on stdout."""
    for case_id in json.load(sys.stdin):
        try:
            answer = execute(case_id)
        except Exception:  # reported by the test of this case; the worker goes on with the next
            answer = {"failure": traceback.format_exc()[-4000:]}
        print(json.dumps({"id": case_id, **answer}), flush=True)
