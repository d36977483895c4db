"""engine: what calibrate.gpu.engine recorded on real hardware against the simulator, on the same arrivals and step
shapes.

Iterations: every recorded step time against the profile's. Closed loop: the same requests simulated with the same
engine settings, TTFT and TPOT side by side. Limits: at least 20 iterations of chosen shapes, within 6 % on average and
3 % in bias, medians within 10 % (on a CPU, which others share: 25 %, and 25 % for iterations).

    $ kvcast validate engine --record recording --profile profile.json
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.validation import Outcome, required
from workloads.errors import InputError


@dataclass(frozen=True)
class Limits:
    iterations: float
    bias: float
    median: float


FEWEST_MIXES = 20
"""Iterations of chosen shapes below which nothing is vouched for."""
GPU, CPU = Limits(0.06, 0.03, 0.10), Limits(0.25, 0.25, 0.25)


def run(data_dir: Path | None, record: Path | None = None, profile: Path | None = None, **_: Any) -> Outcome:
    from calibrate.latency import step_time
    from calibrate.models import resolve_model

    if record is None:
        raise InputError("validate engine: expected --record FOLDER, a recording of python -m calibrate.gpu.engine")
    meta = json.loads(required(record / "meta.json").read_text(encoding="utf-8"))
    device = _profile(record, profile)
    model = resolve_model(meta["model"])
    steps = step_time(device, model, meta["dtype"])
    limits = CPU if meta["device"] == "cpu" else GPU
    lines = [
        f"{meta['model']} {meta['dtype']} on {device.device['name']}, clock {meta.get('clock', 'wall')}; profile"
        f" {device.id} {device.content_hash[:19]}"
    ]
    figures: dict[str, Any] = {}
    passed = True
    mixes = record / "iterations.jsonl"
    passed &= _iterations(steps, _rows(mixes) if mixes.exists() else [], limits, lines, figures)
    if (record / "requests.jsonl").exists():
        _loop_steps(steps, _rows(record / "steps.jsonl"), lines, figures)
        passed &= _closed_loop(steps, meta, record, limits, lines, figures)
    if not figures["iterations"]["count"] and "loop_steps" not in figures:
        raise InputError(f"{record}: neither iterations.jsonl nor requests.jsonl, expected a recording there")
    return Outcome("engine", bool(passed), lines, figures)


def _profile(record: Path, given: Path | None) -> Any:
    from calibrate.profile import load_profile

    return load_profile(given if given is not None else required(record / "profile.json"))


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _simulated_s(steps: Any, row: dict[str, Any]) -> tuple[float, int]:
    return steps.step(
        [tuple(c) for c in row["chunks"]], row["n_decode"], row["sum_context"], row["max_context"], row["sampled"]
    )


def _iterations(
    steps: Any, rows: list[dict[str, Any]], limits: Limits, lines: list[str], figures: dict[str, Any]
) -> bool:
    """Steps of chosen shapes, medians of their runs; too few of them fail, whatever their errors."""
    few = (
        ""
        if len(rows) >= FEWEST_MIXES
        else f"; expected at least {FEWEST_MIXES} (python -m calibrate.gpu.mixes --out FOLDER): FAILED"
    )
    lines.append(f"iterations: {len(rows)} mixes compared{few}")
    if not rows:
        figures["iterations"] = {"count": 0}
        return False
    errors = {"decode": [], "prefill": [], "mixed": []}  # type: dict[str, list[float]]
    for row in rows:
        kind = "decode" if not row["chunks"] else "mixed" if row["n_decode"] else "prefill"
        errors[kind].append(_simulated_s(steps, row)[0] / float(np.median(row["seconds"])) - 1)
    every = np.array([e for kind in errors.values() for e in kind])
    mape, bias = float(np.abs(every).mean()), float(every.mean())
    figures["iterations"] = {"count": len(rows), "mape": mape, "bias": bias, "worst": float(np.abs(every).max())}
    lines.append(
        f"  off the grid: mean error {100 * mape:.1f} %, bias {100 * bias:+.1f} %, worst"
        f" {100 * np.abs(every).max():.1f} % (limits {100 * limits.iterations:.0f} and {100 * limits.bias:.0f} %)"
    )
    for kind, values in errors.items():
        if values:
            lines.append(
                f"  {kind}: {len(values)} shapes, mean error {100 * np.mean(np.abs(values)):.1f} %, bias"
                f" {100 * np.mean(values):+.1f} %"
            )
    return not few and mape <= limits.iterations and abs(bias) <= limits.bias


def _loop_steps(steps: Any, rows: list[dict[str, Any]], lines: list[str], figures: dict[str, Any]) -> None:
    """The closed loop's own steps, one by one."""
    errors = np.array([_simulated_s(steps, row)[0] / (row["end_s"] - row["start_s"]) - 1 for row in rows])
    busy = sum(row["end_s"] - row["start_s"] for row in rows)
    total = sum(_simulated_s(steps, row)[0] for row in rows) / busy - 1
    figures["loop_steps"] = {"count": len(rows), "mape": float(np.abs(errors).mean()), "busy_time": float(total)}
    lines.append(
        f"steps of the closed loop: {len(rows)}, mean error {100 * np.abs(errors).mean():.1f} %, busy time"
        f" {100 * total:+.1f} %"
    )


def _closed_loop(
    steps: Any, meta: dict[str, Any], record: Path, limits: Limits, lines: list[str], figures: dict[str, Any]
) -> bool:
    from sim.measure.metrics import per_request
    from sim.scenario import EngineParams
    from sim.simulate import run as simulate
    from workloads.readers import read

    workload = read(required(record / "requests.jsonl"), "token-ids")
    params = EngineParams(
        kv_blocks=meta["kv_blocks"],
        block_size=meta["block_size"],
        caching=meta["caching"],
        max_num_seqs=meta["max_num_seqs"],
        max_num_batched_tokens=meta["max_num_batched_tokens"],
        async_scheduling=False,  # kvcast's own serving loop schedules between steps
    )
    recording = simulate(workload, params, steps)
    simulated = per_request(recording, workload)
    truth = recorded(record / "requests.jsonl")
    passed = True
    for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s")):
        for stat, function in (("p50", np.median), ("mean", np.mean), ("p90", lambda v: np.percentile(v, 90))):
            real, ours = (float(function(v[~np.isnan(v)])) for v in (truth[key], simulated[key]))
            error = ours / real - 1
            figures[f"{stat}_{key}"] = {"recorded": real, "simulated": ours, "relative_error": error}
            lines.append(
                f"{name} {stat:4s} recorded {1e3 * real:9.2f} ms, simulated {1e3 * ours:9.2f} ms, error"
                f" {100 * error:+.1f} %"
            )
            if stat == "p50" and key != "e2e_s":
                passed &= abs(error) <= limits.median
    hits = int(recording.hit_tokens.sum()), int(truth["hit_tokens"].sum())
    figures["hit_tokens"] = {"recorded": hits[1], "simulated": hits[0]}
    lines.append(
        f"prefix hits: recorded {hits[1]:,} tokens, simulated {hits[0]:,}; preemptions: recorded"
        f" {int(truth['preemptions'].sum())}, simulated {int(recording.preemptions.sum())}"
    )
    return passed


def recorded(path: Path) -> dict[str, np.ndarray]:
    """TTFT, TPOT and E2E in seconds, hit tokens and preemptions of the real engine's requests."""
    rows = _rows(path)
    arrival, first, last = (
        np.array(v) for v in zip(*[(r["arrival_s"], r["token_s"][0], r["token_s"][-1]) for r in rows], strict=True)
    )
    gaps = np.array([len(r["token_s"]) - 1 for r in rows])
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(gaps > 0, (last - first) / gaps, np.nan)
    whole = {key: np.array([r[key] for r in rows]) for key in ("hit_tokens", "preemptions")}
    return {"ttft_s": first - arrival, "tpot_s": tpot, "e2e_s": last - arrival, **whole}
