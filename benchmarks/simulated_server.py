"""A server whose parameters are known: a simulation with other values of some keys, steps that are uneven, and a client
that writes down what `vllm bench serve --save-detailed` does.

    >>> result = measure(scenario, {"hardware.dense_factor": 1.1}, load(100, rate=2.0, seed=0), seed=0)
    >>> Path("R.json").write_text(json.dumps(result))
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kvcast import api
from kvcast.fitted.luck import Uneven
from kvcast.fitted.parameters import with_values
from sim.measure.metrics import per_request
from sim.scenario import Scenario
from workloads.columns import Workload
from workloads.readers.common import nothing_shared

STEP_NOISE, CLIENT_NOISE_S = 0.03, 0.5e-3


def load(n: int, seed: int, rate: float | None = None, places: int | None = None, prompt: float = 800.0) -> Workload:
    """n requests of lognormal lengths: a Poisson process of `rate`, or `places` of them in flight."""
    rng = np.random.default_rng(seed)
    tree, leaf = nothing_shared(n)
    lengths = [np.clip(rng.lognormal(np.log(mean), 0.7, n), 8, 8000).astype(np.int64) for mean in (prompt, 120.0)]
    at_s = np.zeros(n) if rate is None else np.cumsum(rng.exponential(1 / rate, n))
    return Workload(tree, at_s, *lengths, leaf, concurrency=places, prefix_identity=False, source="simulated server")


def measure(given: Scenario, truth: dict[str, Any], workload: Workload, seed: int) -> dict[str, Any]:
    """The benchmark's result of a server that is `given` but for the values of `truth`."""
    resolved = api.resolve(given)
    resolved = replace(resolved, scenario=with_values(resolved.scenario, truth))
    rng = np.random.default_rng([seed, 1])
    steps = Uneven(resolved.engine_step_time(), rng, STEP_NOISE)
    recording = api.record(api.Prepared(resolved, workload, steps))
    times = per_request(recording, workload)
    n, late_s = len(workload), CLIENT_NOISE_S * rng.standard_normal(len(workload))
    return {
        "completed": n,
        "request_rate": "inf" if workload.concurrency else n / float(workload.arrival_s[-1]),
        "max_concurrency": workload.concurrency,
        "total_input_tokens": int(workload.prompt_tokens.sum()),
        "request_throughput": n / recording.end_s,
        "duration": recording.end_s,
        "input_lens": workload.prompt_tokens.tolist(),
        "output_lens": workload.output_tokens.tolist(),
        "start_times": (1000.0 + recording.arrival_s).tolist(),
        "ttfts": np.maximum(times["ttft_s"] + late_s, 1e-4).tolist(),
        "latencies": np.maximum(times["e2e_s"] + late_s, 1e-4).tolist(),
        "errors": [""] * n,
    }
