"""One run in Vidur, by the Python that has it (bench_peers.py starts this; it needs no kvcast).

    python benchmarks/peer_vidur.py JOB.json OUT.json

JOB has requests (arrival in s, prompt, answer), kv_blocks, block_size, max_num_seqs, max_num_batched_tokens and
step_ms: what a step takes, a new token, and a token of context of a decode. Vidur's own step times are models fitted to
profiles that it fetches; here a predictor of these three numbers takes their place, in its own registry. Its Sarathi
scheduler is the one that chunks prompts beside decodes, as vLLM does since its V1 engine. No prefix cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any


def predictor(step_ms: list[float]) -> type:
    """A predictor of three numbers, as Vidur makes them: a class."""
    from vidur._native.entities import ExecutionTime
    from vidur.execution_time_predictor import BaseExecutionTimePredictor

    class Linear(BaseExecutionTimePredictor):
        def get_execution_time(self, batch: Any, pipeline_stage: int) -> Any:
            # its own count of a decode's context has the token that the step makes as well
            context = sum(request.num_processed_tokens for request in batch.requests if request.is_prefill_complete)
            ms = step_ms[0] + step_ms[1] * sum(batch.num_q_tokens) + step_ms[2] * context
            return ExecutionTime(1, 0.0, 0.0, 0.0, ms, *[0.0] * 10)

    Linear.__abstractmethods__ = frozenset()  # the parts of a layer that its other predictors add up
    return Linear


def main(job_path: str, out_path: str) -> None:
    from vidur import config as c
    from vidur.entities import Request
    from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
    from vidur.simulator import Simulator
    from vidur.types import ExecutionTimePredictorType

    job: dict[str, Any] = json.loads(Path(job_path).read_text(encoding="utf-8"))
    kind = ExecutionTimePredictorType.RANDOM_FORREST
    ExecutionTimePredictorRegistry.unregister(kind)
    ExecutionTimePredictorRegistry.register(kind, predictor(job["step_ms"]))
    requests = [Request(arrived_at=at, num_prefill_tokens=p, num_decode_tokens=o) for at, p, o in job["requests"]]
    with tempfile.TemporaryDirectory() as folder:
        settings = c.SimulationConfig(
            log_level="error",
            cluster_config=c.ClusterConfig(
                replica_config=c.ReplicaConfig(num_pipeline_stages=1, tensor_parallel_size=1),
                cache_config=c.CacheConfig(
                    block_size=job["block_size"], num_blocks=job["kv_blocks"], watermark_blocks_fraction=0.0
                ),
                replica_scheduler_config=c.SarathiSchedulerConfig(
                    batch_size_cap=job["max_num_seqs"], chunk_size=job["max_num_batched_tokens"]
                ),
            ),
            request_generator_config=c.SyntheticRequestGeneratorConfig(num_requests=1),
            metrics_config=c.MetricsConfig(
                write_metrics=False, enable_chrome_trace=False, store_plots=False, output_dir=folder
            ),
        )
        simulator = Simulator(settings)
        simulator._event_queue = []
        simulator._request_generator.generate = lambda: requests
        simulator._init_event_queue()
        loop_s = time.process_time()
        simulator.run()
        answer = {
            "version": version("vidur"),
            "loop_cpu_s": time.process_time() - loop_s,
            "first_s": [request.prefill_completed_at for request in requests],
            "last_s": [request.completed_at for request in requests],
            "restarts": sum(request.num_restarts for request in requests),
        }
    Path(out_path).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
