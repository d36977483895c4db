"""A fleet in two pools, measured: what each pool did, and what lay between them.

The one idea: a handed request was served twice, so the recording is looked at twice, as the prefill replicas saw it and
as those that decode did (`views`); whatever is counted by replica is counted in each view and added up.

    time to first token = waits + prefill + transfer + the decode replica's first step     (`parts_s`, summed exactly)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sim.measure import metrics
from sim.measure.balance import balance
from sim.measure.cost import busy_gpu_s
from sim.measure.metrics import Window
from sim.recording import Handed, Recording
from sim.scenario import Scenario
from workloads import portable

PREFILL, DECODE = "prefill", "decode"
PARTS = ("queue", "prefill", "decode_queue", "transfer", "first_step")
"""Of a handed request's time to first token: waiting for a prefill replica, its prefill, waiting for memory and a place
on the decode replica, its blocks on their way, and the step that gives the token."""


def views(rec: Recording) -> tuple[Recording, Recording]:
    """The recording as the prefill replicas saw it, and as those that decode did."""
    handed = _handed(rec)
    went, none = handed.prefill_replica >= 0, np.empty(0, np.int64)
    first = replace(
        rec,
        replica=handed.prefill_replica,
        admit_s=np.where(went, rec.admit_s, np.nan),
        first_step=handed.prefill_step,
        last_step=handed.prefill_step,
        gaps_request=none,
        gaps_from_step=none,
        gaps_to_step=none,
    )
    return first, replace(rec, replica=handed.decode_replica, admit_s=np.where(went, handed.placed_s, rec.admit_s))


def pool_gpus(scenario: Scenario) -> tuple[int, int]:
    """GPUs of a prefill replica, and of one that decodes."""
    hardware = scenario.hardware
    width = scenario.disaggregation.prefill_tensor_parallel or hardware.tensor_parallel
    return hardware.gpus // hardware.tensor_parallel * width, hardware.gpus


def gpu_seconds(rec: Recording, computed: np.ndarray, scenario: Scenario) -> np.ndarray:
    """sim.measure.cost.busy_gpu_s over both pools, float64 [n]; computed: int64 [n], tokens of the prompt."""
    went = _handed(rec).prefill_replica >= 0
    again = np.where(went, 1 + rec.recomputed_tokens, computed)  # the last prompt token is computed twice
    (first, second), (prefill_gpus, decode_gpus) = views(rec), pool_gpus(scenario)
    return busy_gpu_s(first, np.where(went, computed, 0), prefill_gpus) + busy_gpu_s(second, again, decode_gpus)


def busy_gpus_s(rec: Recording, window: Window, scenario: Scenario) -> float:
    """GPU-seconds of the steps of both pools in the window."""
    n = _handed(rec).prefill_replicas
    pools = zip((rec.steps[:n], rec.steps[n:]), pool_gpus(scenario), strict=True)
    return sum(metrics.step_shares(steps, window)["busy_s"] * gpus for steps, gpus in pools)


def parts_s(rec: Recording) -> dict[str, np.ndarray]:
    """PARTS of every request, float64 [n] each, which add up to its time to first token; NaN where it was not handed
    over or has none."""
    handed = _handed(rec)
    return {
        "queue": np.where(handed.prefill_replica >= 0, rec.admit_s, np.nan) - rec.arrival_s,
        "prefill": handed.prefilled_s - rec.admit_s,
        "decode_queue": handed.read_s - handed.prefilled_s + (handed.placed_s - handed.ready_s),
        "transfer": handed.ready_s - handed.read_s,
        "first_step": rec.first_token_s - handed.placed_s,
    }


def summary(
    rec: Recording, scenario: Scenario, window: Window, counted: np.ndarray, computed: np.ndarray, outputs: np.ndarray
) -> dict[str, Any]:
    """summary["disaggregation"]. counted: int64 [m], the window's admitted requests; computed: int64 [n], tokens that
    each had computed; outputs: int64 [n], output tokens."""
    handed = _handed(rec)
    went = counted[handed.prefill_replica[counted] >= 0]
    done = went[~np.isnan(rec.first_token_s[went])]
    n, gpus = handed.prefill_replicas, pool_gpus(scenario)
    pools = [
        _pool(name, rec, view, slice(*places), gpus[i], window, counted, work)
        for i, (name, view, places, work) in enumerate(
            zip((PREFILL, DECODE), views(rec), ((0, n), (n, len(rec.steps))), (computed, outputs), strict=True)
        )
    ]
    read = handed.read_blocks[went]
    return {
        "handed_over": len(went),
        "computed_where_decoded": len(counted) - len(went),
        "ttft_parts_ms": {name: metrics.describe(part[done] * 1e3) for name, part in parts_s(rec).items()},
        "read_bytes": int(read.sum()) * handed.block_bytes,
        "read_tokens": int(read.sum()) * rec.block_size,
        "decode_hit_tokens": int(handed.decode_hit_tokens[went].sum()),
        "pools": pools,
    }


def _pool(
    name: str,
    rec: Recording,
    view: Recording,
    places: slice,
    gpus: int,
    window: Window,
    counted: np.ndarray,
    work: np.ndarray,
) -> dict[str, Any]:
    """One pool's row. work: int64 [n], tokens of the requests that its replicas are compared by."""
    steps, samples = rec.steps[places], rec.samples[places]
    blocks, nic_busy_s = rec.kv_blocks_of[places], _handed(rec).nic_busy_s[places]
    in_use = sum(metrics.time_mean(one, "blocks_in_use", window) for one in samples)
    peaks = [one.blocks_in_use.max() / size for one, size in zip(samples, blocks, strict=True) if len(one.t_s)]
    here = counted[(view.replica[counted] >= places.start) & (view.replica[counted] < places.stop)]
    even = balance(replace(view, replica=view.replica - places.start, steps=steps), here, work)
    shares = metrics.step_shares(steps, window)
    seconds = window.seconds * len(steps)
    return {
        "pool": name,
        "replicas": len(steps),
        "gpus_per_replica": gpus,
        "requests": len(here),
        "busy_share": shares["busy_s"] / seconds if seconds > 0 else None,
        "tokens_per_step_mean": shares["tokens_per_step"],
        "kv_blocks": int(blocks[0]),
        "kv_usage_mean": in_use / int(blocks.sum()),
        "kv_usage_peak": float(max(peaks, default=0.0)),
        "nic_busy_share": portable.total(nic_busy_s) / (rec.end_s * len(steps)) if rec.end_s > 0 else None,
        "jain": even["jain"],
        "starved": even["starved"],
    }


def _handed(rec: Recording) -> Handed:
    assert rec.handed is not None
    return rec.handed
