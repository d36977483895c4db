"""What requests take with nothing else on their replica: their own steps one after another, without a simulation.

The one idea: alone, a request is its prefill chunks and then decode steps of a batch of one, so its times are sums of
step times; no fleet, however large, serves it faster with as much of its prompt in the cache.

    >>> alone(workload, params, step_time, cached)["ttft_s"]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from calibrate.latency import StepTime
from sim.engines import engine_of
from sim.front_end import alone_s as alone_in_front_end_s
from sim.scenario import EngineParams
from sim.vllm.acceptance import expected_tokens
from workloads.columns import Workload

MOST_LENGTHS = 8192
"""Distinct (cached, prompt) lengths that are timed; of more, lengths are rounded as little as makes them so few."""


def alone(workload: Workload, params: EngineParams, step_time: StepTime, cached: np.ndarray) -> dict[str, np.ndarray]:
    """ttft_s, tpot_s and e2e_s of every request by itself on an idle replica, float64 [n].

    cached: prompt tokens that the prefix cache holds, int [n], below the prompt. TPOT is NaN for a single output token.
    All are infinite for a request that no replica can serve. No time to load from cache tiers is counted."""
    prompt, output = workload.prompt_tokens, workload.output_tokens
    engine, tokens = engine_of(params), prompt + output
    served = (tokens <= params.max_model_len) & np.asarray(engine.holds(params, tokens))
    served &= prompt <= engine.longest_prompt(params)
    times = {name: np.full(len(workload), np.inf) for name in ("ttft_s", "tpot_s", "e2e_s")}
    if not served.any():
        return times
    prompt, output, cached = prompt[served], output[served], cached[served]
    before_s, after_s = alone_in_front_end_s(params, prompt)
    ttft_s = before_s + _prefill_s(prompt, cached, params, step_time) + after_s
    decode_s = _decode_s(prompt, output, step_time, params)
    with np.errstate(invalid="ignore"):
        found = {
            "ttft_s": ttft_s,
            "tpot_s": np.where(output > 1, decode_s / np.maximum(output - 1, 1), np.nan),
            "e2e_s": ttft_s + decode_s,
        }
    for name, values in found.items():
        times[name][served] = values
    return times


def prefill_alone(step_time: StepTime, chunk: int, overhead_s: float) -> Callable[[int, int], float]:
    """Seconds of prefilling tokens [cached, known) of a prompt with nothing else on the replica, in chunks of `chunk`
    tokens."""

    def seconds(cached: int, known: int) -> float:
        total = 0.0
        for at in range(cached, known, chunk):
            new = min(chunk, known - at)
            total += step_time.step([(new, at)], 0, 0, 0, int(at + new == known))[0] + overhead_s
        return total

    return seconds


def _prefill_s(prompt: np.ndarray, cached: np.ndarray, params: EngineParams, step_time: StepTime) -> np.ndarray:
    seconds = prefill_alone(step_time, engine_of(params).lone_chunk(params, int(prompt.max())), params.step_overhead_s)
    lengths, place = _distinct(np.stack([cached, prompt]))
    return np.array([seconds(*one) for one in lengths.tolist()])[place]


def _distinct(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct columns of pairs [2, n] as rows [m, 2], and which of them each column is [n]."""
    grain = 1
    while True:
        cached, prompt = (pairs // grain).astype(np.int64)
        keys, place = np.unique(cached << 32 | prompt, return_inverse=True)
        if len(keys) <= MOST_LENGTHS:
            cached, prompt = (part * grain + grain // 2 for part in (keys >> 32, keys & (1 << 32) - 1))
            return np.stack([np.minimum(cached, prompt - 1), prompt], axis=1), place
        grain *= 2


def _decode_s(prompt: np.ndarray, output: np.ndarray, step_time: StepTime, params: EngineParams) -> np.ndarray:
    """Seconds from the first output token to the last: steps at contexts prompt + 1 to prompt + output - 1. Of a
    verified draft every token it gives has an equal part."""
    rows, given = 1, 1.0
    if params.speculative is not None:
        rows, given = 1 + params.speculative.tokens, expected_tokens(params.speculative.acceptance)
    each = step_time.decode_stretch(rows, 1, 1, int((prompt + output).max()))[0] + params.step_overhead_s
    each = each / given if given > 1 else each
    up_to = np.concatenate([[0.0], np.cumsum(each)])
    return up_to[prompt + output - 1] - up_to[prompt]
