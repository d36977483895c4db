"""What a run costs and who pays: GPU-seconds per request, and what the prefix cache was worth.

The one idea: a step's time is shared equally by the tokens it computed, so a request pays for each of its tokens the
price of the step the token was in. Decode shares are exact (a cumsum over the steps between its first and last token);
a prefill in one chunk is exact; a longer one pays the mean price of the prefill tokens of the steps it spans, and
prefill shares are scaled per replica so that all shares sum to the busy time. Idle time is shared in proportion, and so
is what a replica computed for requests that its failure sent elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.measure.columns import blocks, dense
from sim.measure.judged import dollars, pair
from sim.recording import Recording, Steps, by_replica
from workloads import portable


def busy_gpu_s(rec: Recording, new_prompt_tokens: np.ndarray, gpus_per_replica: float) -> np.ndarray:
    """GPU-seconds of busy step time per request, float64 [n]; sums to the step time of all replicas x gpus_per_replica
    (at most, where replicas failed).

    new_prompt_tokens: prompt tokens each request had to compute (recomputed ones included), int64 [n].
    """
    share = np.zeros(len(rec.replica))
    listed = by_replica(rec.replica[rec.gaps_request], len(rec.steps))
    for steps, of, gaps in zip(rec.steps, by_replica(rec.replica, len(rec.steps)), listed, strict=True):
        rows = of[~np.isnan(rec.admit_s[of])]
        if len(rows) and len(steps):
            share[rows] = _replica_share(rec, steps, rows, gaps, new_prompt_tokens[rows])
    return share * gpus_per_replica


def _replica_share(
    rec: Recording, steps: Steps, rows: np.ndarray, gaps: np.ndarray, new_tokens: np.ndarray
) -> np.ndarray:
    """gaps: those listed of its requests."""
    n, duration_s = len(steps), steps.duration_s
    per_token = duration_s / np.maximum(steps.n_decode + steps.prefill_tokens, 1)
    # decode: one token in every step after the first-token step, except in the listed gaps and where prefills make
    # decodes wait
    decoding = np.where(steps.n_decode > 0, per_token, 0.0) if rec.prefill_pauses else per_token
    if rec.verified is not None:  # it has that many rows in each of them
        decoding = decoding * rec.verified.rows
    spent = _running(decoding, np.float64)
    first = np.where(rec.first_step[rows] < 0, n - 1, rec.first_step[rows])
    last = np.where(rec.last_step[rows] < 0, n - 1, rec.last_step[rows])
    decode = spent[last + 1] - spent[first + 1]
    silent = spent[rec.gaps_to_step[gaps]] - spent[rec.gaps_from_step[gaps] + 1]
    np.subtract.at(decode, np.searchsorted(rows, rec.gaps_request[gaps]), silent)
    del decoding, spent  # a long run has many steps
    # prefill: mean price of the prefill tokens between admission and first token
    per_token *= steps.prefill_tokens
    price, count = _running(per_token, np.float64), _running(steps.prefill_tokens, np.int64)
    admit = np.searchsorted(steps.end_s, rec.admit_s[rows], side="right")  # the first step that ends after its start
    admit = np.minimum(admit, first)
    tokens = count[first + 1] - count[admit]
    prefill = new_tokens * (price[first + 1] - price[admit]) / np.maximum(tokens, 1)
    owed = max(portable.total(duration_s) - portable.total(decode), 0.0)
    paid = portable.total(prefill)
    if (
        rec.retries is not None or rec.clients is not None
    ):  # what failures lost and clients gave up is nobody's: shared as idle time is
        owed = min(owed, paid)
    return decode + prefill * (owed / paid) if paid > 0 else decode


def _running(values: np.ndarray, dtype: type) -> np.ndarray:
    """[n + 1]: the sum of the values before each, and of all."""
    out: np.ndarray = np.empty(len(values) + 1, dtype)
    out[0] = 0
    np.cumsum(values, out=out[1:])
    return out


def cost_summary(
    gpu_s: np.ndarray,
    inside: np.ndarray,
    session: np.ndarray,
    held_gpu_s: float,
    input_tokens: int,
    output_tokens: int,
    usd_per_hour: float | None,
) -> tuple[dict[str, Any], np.ndarray, dict[str, np.ndarray]]:
    """Cost of the window, per-request GPU-hours with idle time included, and the same per session.

    gpu_s: busy GPU-seconds per request [n]; becomes the hours. inside: the window's arrivals [n], which pay for the
    whole window. held_gpu_s: GPUs x window. input_tokens, output_tokens: processed in the window; the whole cost is
    given over each and over both: three views of one bill, not parts of it. Without a price the dollar figures are
    None, never a guess.
    """
    hours = gpu_s
    hours[~inside] = 0.0
    total = portable.total(hours)
    hours *= held_gpu_s / total if total > 0 else 0.0
    hours /= 3600
    sessions = _by_session(session, inside, hours)
    gpu_hours = held_gpu_s / 3600

    n, tokens = (
        int(inside.sum()),
        {"input": input_tokens, "output": output_tokens, "total": input_tokens + output_tokens},
    )
    hours_per_million = {name: gpu_hours / count * 1e6 if count else None for name, count in tokens.items()}
    used: dict[str, Any] = {
        **{f"gpu_hours_per_million_{name}_tokens": spent for name, spent in hours_per_million.items()},
        "sessions": len(sessions["session_id"]),
    }
    cost = {**dollars(used, gpu_hours, n, usd_per_hour), **used}
    return cost, hours, sessions


def _by_session(session: np.ndarray, inside: np.ndarray, hours: np.ndarray) -> dict[str, np.ndarray]:
    """session_id (ascending), requests and gpu_hours of the sessions of requests inside; each argument is [n]."""
    place = dense(session)
    slots = int(place.max(initial=-1)) + 1
    requests, gpu_hours, first = np.zeros(slots, np.int64), np.zeros(slots), np.zeros(slots, session.dtype)
    for part in blocks(len(place)):
        mine = inside[part]
        at = place[part][mine]
        np.add.at(requests, at, 1)
        np.add.at(gpu_hours, at, hours[part][mine])
        first[at] = session[part][mine]
    seen = requests > 0
    return {"session_id": first[seen], "requests": requests[seen], "gpu_hours": gpu_hours[seen]}


def cache_worth(on: Mapping[str, Any], off: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the prefix cache saved: shares of the cache-off run, as JSON-able numbers; None where not known.

    on, off: `Report.summary` with `Report.latency` under "latency" (see `worth_of` in sim.measure.report). Tokens and
    FLOPs come from the run itself; time and cost need the twin with the cache off. They are different numbers: 47 %
    fewer prefill tokens is not 47 % less time."""
    worth: dict[str, Any] = {
        "prefill_tokens_saved": on["prefix_hit_tokens"],
        "prefill_tokens_saved_share": on["prefix_hit_rate"],
        "prefill_flops_saved": on["prefill_flops_saved"],
        "prefill_flops_saved_share": _share(on["prefill_flops_saved"], on["prefill_flops"]),
        "twin": off is not None,
    }
    if off is None:
        return worth
    for name in ("ttft", "e2el"):
        for stat in ("mean", "p50", "p99"):
            before, after = off["latency"][name][stat], on["latency"][name][stat]
            worth[f"{stat}_{name}_ms"] = pair(before, after)
    for key in ("gpu_busy_s", "gpu_hours"):
        worth[key] = pair(off[key], on[key])
    worth["cost_usd"] = pair(off["cost"]["usd"], on["cost"]["usd"])
    worth["attainment"] = {"off": off["attainment"], "on": on["attainment"]}
    worth["stable"] = {"off": off["stable"], "on": on["stable"]}
    return worth


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
