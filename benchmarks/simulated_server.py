"""A server whose parameters are known: a simulation with other values of some keys, steps that are uneven, and a client
that writes down what `vllm bench serve --save-detailed` does.

    >>> result = measure(scenario, {"hardware.dense_factor": 1.1}, load(100, rate=2.0, seed=0), seed=0)
    >>> Path("R.json").write_text(json.dumps(result))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.signal import lfilter

from kvcast import api
from kvcast.fitted.luck import Uneven
from kvcast.fitted.parameters import with_values
from sim.measure.metrics import per_request
from sim.recording import Recording
from sim.scenario import Scenario
from workloads.columns import Workload
from workloads.readers.common import nothing_shared

STEP_NOISE, CLIENT_NOISE_S = 0.03, 0.5e-3
MEMORY = 0.95
"""Correlation of a rough step's noise with the step before: a spell of slow steps lasts about 20 of them."""
STALL_S, STALLS = 0.05, 1e-3  #: a pause of the host, and its probability at a step


@dataclass
class Rough(Uneven):
    """Steps unlike those that the fit tries: the noise is lognormal and lasts, and now and then a step stalls."""

    last: float = 0.0  #: of the noise, in standard deviations

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        seconds, covered = super().step(chunks, n_decode, sum_context, max_context, n_sampled)
        return seconds + float(self._stalls_s(1)[0]), covered

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        seconds, covered = super().decode_stretch(n_decode, sum_context, max_context, k)
        return seconds + self._stalls_s(k), covered

    def _stalls_s(self, k: int) -> np.ndarray:
        return STALL_S * (self.rng.random(k) < STALLS)

    def _factor(self) -> float:
        return float(self._factors(1)[0])

    def _factors(self, k: int) -> np.ndarray:
        fresh = np.sqrt(1 - MEMORY**2) * self.rng.standard_normal(k)
        noise, _ = lfilter([1.0], [1.0, -MEMORY], fresh, zi=[MEMORY * self.last])
        self.last = float(noise[-1])
        return np.exp(self.share * noise - self.share**2 / 2)


def load(n: int, seed: int, rate: float | None = None, places: int | None = None, prompt: float = 800.0) -> Workload:
    """n requests of lognormal lengths: a Poisson process of `rate`, or `places` of them in flight."""
    rng = np.random.default_rng(seed)
    tree, leaf = nothing_shared(n)
    lengths = [np.clip(rng.lognormal(np.log(mean), 0.7, n), 8, 8000).astype(np.int64) for mean in (prompt, 120.0)]
    at_s = np.zeros(n) if rate is None else np.cumsum(rng.exponential(1 / rate, n))
    return Workload(tree, at_s, *lengths, leaf, concurrency=places, prefix_identity=False, source="simulated server")


def served(
    given: Scenario, truth: dict[str, Any], workload: Workload, seed: int, noise: type[Uneven] = Uneven
) -> Recording:
    """What a server that is `given` but for the values of `truth` does with the requests."""
    resolved = api.resolve(given)
    resolved = replace(resolved, scenario=with_values(resolved.scenario, truth))
    steps = noise(resolved.engine_step_time(), np.random.default_rng([seed, 1]), STEP_NOISE)
    return api.record(api.Prepared(resolved, workload, steps))


def measure(
    given: Scenario, truth: dict[str, Any], workload: Workload, seed: int, noise: type[Uneven] = Uneven
) -> dict[str, Any]:
    """The benchmark's result of it."""
    return result(served(given, truth, workload, seed, noise), workload, seed)


def result(recording: Recording, workload: Workload, seed: int) -> dict[str, Any]:
    """What a client writes down, late or early by CLIENT_NOISE_S."""
    times = per_request(recording, workload)
    n = len(workload)
    late_s = CLIENT_NOISE_S * np.random.default_rng([seed, 2]).standard_normal(n)
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
