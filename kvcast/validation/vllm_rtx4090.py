"""vllm-rtx4090: a real vLLM 0.19 run of 300 requests on an RTX 4090 against the kernel tables of the same card.

The run is heavily loaded (2,588 KV blocks; requests wait about a minute), so it tests admission and preemption as much
as step times. Mean TTFT, TPOT and E2E must be within 5 % of the recorded run; medians and tails are printed.

    $ kvcast validate vllm-rtx4090
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.validation import Outcome, required
from sim.scenario import EngineParams
from workloads.config import WorkloadConfig

LIMIT = 0.05
"""Largest relative error of a mean."""
STATS: dict[str, Callable[[np.ndarray], Any]] = {
    "mean": np.mean,
    "median": np.median,
    "p99": lambda values: np.percentile(values, 99),
}


def run(data_dir: Path, **_: Any) -> Outcome:
    return score(data_dir, "vllm-rtx4090", "rtx4090_llama-3.1-8b")


def score(data_dir: Path, name: str, folder: str) -> Outcome:
    """The recorded run of a card (a folder of measured/) against its simulation with the card's own kernel tables."""
    from calibrate.latency import load_step_time
    from kvcast.api import load_workload
    from sim.measure.metrics import per_request
    from sim.simulate import run as simulate

    card = required(data_dir / "measured" / folder)
    workload = load_workload(
        WorkloadConfig(trace=str(required(data_dir / "measured" / "sharegpt-llama-3.1-8b-300-sps10.jsonl")))
    )
    params = engine_of(json.loads(required(card / "vllm_run" / "meta.json").read_text()))
    recording = simulate(workload, params, load_step_time(str(required(card / "kernels"))))
    simulated = per_request(recording, workload)
    truth = recorded(required(card / "vllm_run" / "requests.jsonl"))
    lines, figures = [], {}
    for label, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s")):
        for stat, function in STATS.items():
            real, ours = (float(function(values[~np.isnan(values)])) for values in (truth[key], simulated[key]))
            error = ours / real - 1
            figures[f"{stat}_{key}"] = {"recorded": real, "simulated": ours, "relative_error": error}
            lines.append(
                f"{label} {stat:6s} recorded {real:9.4f} s, simulated {ours:9.4f} s, error {100 * error:+.2f} %"
            )
    lines.append(
        f"{int(recording.preemptions.sum())} preemptions; {int((recording.status == 0).sum())} of {len(workload)}"
        " requests completed"
    )
    passed = all(abs(figures[f"mean_{key}"]["relative_error"]) <= LIMIT for key in ("ttft_s", "tpot_s", "e2e_s"))
    return Outcome(name, passed, lines, figures)


def engine_of(meta: dict[str, Any]) -> EngineParams:
    """The engine's settings as the recorded run resolved them; where it did not say, vLLM 0.19's own defaults."""
    if "kv_cache" not in meta:
        return _by_default(meta["engine_kwargs"])
    asked, cache = meta["engine_kwargs"], meta["kv_cache"]
    scheduler = meta["resolved_config"]["scheduler_config"]
    return EngineParams(
        kv_blocks=cache["num_gpu_blocks"],
        block_size=cache["block_size"],
        caching=cache["enable_prefix_caching"],
        max_model_len=asked["max_model_len"],
        max_num_seqs=asked["max_num_seqs"],
        max_num_batched_tokens=asked["max_num_batched_tokens"],
        scheduler_policy=scheduler["policy"],
        long_prefill_token_threshold=scheduler["long_prefill_token_threshold"],
        reserve_full_isl=scheduler["scheduler_reserve_full_isl"],
        async_scheduling=scheduler["async_scheduling"],
        calls_ahead=False,  # the recorded clock of a request starts at the call that finds it
    )


def _by_default(asked: dict[str, Any]) -> EngineParams:
    """Blocks of 16 tokens in 0.9 of an RTX PRO 6000's memory, asynchronous scheduling, prefixes cached."""
    from calibrate.memory import kv_capacity
    from calibrate.models import resolve_model
    from calibrate.resolve import profile_of_gpu, resolve_profile

    model, budget, seqs = resolve_model("llama-3.1-8b"), asked["max_num_batched_tokens"], asked["max_num_seqs"]
    profile = resolve_profile(profile_of_gpu("rtx-pro-6000", model, "bf16"), model)
    held = kv_capacity(profile, model, "bf16", "bf16", 1, 0.9, budget, 16, max_num_seqs=seqs)
    return EngineParams(
        kv_blocks=held.blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        async_scheduling=True,
        calls_ahead=False,
    )


def recorded(path: Path) -> dict[str, np.ndarray]:
    """TTFT, TPOT and E2E in seconds from the engine's own clock, which starts when a request is queued."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    queued, first, last = (
        np.array([row[key] for row in rows]) for key in ("queued_ts", "first_token_ts", "last_token_ts")
    )
    gaps = np.array([row["output_toks"] - 1 for row in rows])
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(gaps > 0, (last - first) / gaps, np.nan)
    return {"ttft_s": first - queued, "tpot_s": tpot, "e2e_s": last - queued}
