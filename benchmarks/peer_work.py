"""kvcast and Vidur on the same requests: 4,096 prompts of about 1,140 tokens and answers of 212, and nothing cached.

The one idea: Vidur's step times are models of profiles that it fetches, which kvcast cannot have; so both get a step
time of three numbers, and what is left is who is in which batch.

>>> from benchmarks.peer_work import Linear, requests, simulate
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.step import INTERPOLATED
from kvcast.validation.aisimulate import BLOCK, Request, means_ms, read_trace, times_ms, write_trace
from sim.scenario import EngineParams

STEP_MS = (8.0, 0.02, 2e-5)
"""Of a step, of a new token, and of a token of context of a decode: no GPU's in particular."""
ENGINE: dict[str, Any] = {"kv_blocks": 40_000, "block_size": BLOCK, "max_num_seqs": 256, "max_num_batched_tokens": 2048}
REQUESTS, GAP_MS = 4096, 60


class Linear:
    """What a step takes, by its new tokens and the contexts of its decodes."""

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        """Seconds and coverage code; see `StepTime.step`."""
        return 1e-3 * self._ms(sum(new for new, _ in chunks) + n_decode, sum_context), INTERPOLATED

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds [k] and coverage codes [k]; see `StepTime.decode_stretch`."""
        contexts = np.arange(sum_context, sum_context + k * n_decode, n_decode)
        return 1e-3 * self._ms(n_decode, contexts), np.full(k, INTERPOLATED, dtype=np.int8)

    def _ms(self, tokens: int, context: Any) -> Any:
        return STEP_MS[0] + STEP_MS[1] * tokens + STEP_MS[2] * context


def requests() -> list[Request]:
    """The same ones every time; no two at the same millisecond."""
    rng = np.random.default_rng(0)
    arrival_ms = np.cumsum(rng.integers(1, 2 * GAP_MS, REQUESTS))
    prompts, answers = rng.integers(570, 1711, REQUESTS), rng.integers(106, 319, REQUESTS)
    rows = zip(arrival_ms.tolist(), prompts.tolist(), answers.tolist(), strict=True)
    return [Request("vidur", *row, 0, 0) for row in rows]


def job() -> dict[str, Any]:
    """The same for peer_vidur.py. Traces begin with their first request."""
    asked = requests()
    rows = [(1e-3 * (r.arrival_ms - asked[0].arrival_ms), r.prompt_tokens, r.output_tokens) for r in asked]
    return {"requests": rows, "step_ms": STEP_MS, **ENGINE}


def simulate() -> dict[str, Any]:
    """kvcast's run: means, and each request's first and last token in ms."""
    from sim.simulate import run

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "work.jsonl")
        write_trace(requests(), path)
        workload = read_trace(path)
    found = times_ms(run(workload, EngineParams(**ENGINE, caching=False, async_scheduling=False), Linear()), workload)
    return {**means_ms(**found), "first": found["first"].tolist(), "last": found["last"].tolist()}


def compared(ours: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """Means of both, and how many requests have the same times, to the microsecond."""
    asked = job()["requests"]
    arrival = 1e3 * np.array([at for at, _, _ in asked])
    first, last = 1e3 * np.array(said["first_s"]), 1e3 * np.array(said["last_s"])
    equal = (np.abs(first - ours["first"]) <= 1e-3) & (np.abs(last - ours["last"]) <= 1e-3)
    theirs = means_ms(arrival, first, last, np.array([answer for _, _, answer in asked]))
    return {"kvcast": {key: ours[key] for key in theirs}, "Vidur": theirs, "equal": int(equal.sum())}
