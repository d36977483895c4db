"""What `kvcast fit-server` finds of servers that are known, and of two that were measured: the tables of
docs/fit-server.md.

    python benchmarks/bench_fit_server.py --servers 20    # about 3 CPU-minutes
    python benchmarks/bench_fit_server.py --servers 0     # the recorded runs alone; KVCAST_DATA names their folder

A known server is a simulation whose parameters were drawn, with steps that are uneven by 3 % and a client that errs by
half a millisecond, under three loads of 100 requests: 3 and 12 requests/s, and 48 in flight. Its noise is none that the
fit tries: lognormal, in spells of 20 steps, with stalls of 50 ms (--even: as the fit's own). A parameter is recovered
when its interval holds the truth, to which the mean of the stalls belongs. The recorded runs are vLLM's of 300
requests; besides every second block the second half of the time is held out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.simulated_server import STALL_S, STALLS, Rough, load, measure
from kvcast import api
from kvcast.config import scenario_from_doc
from kvcast.fitted import Fitted, ServerRun, fit_server, read_run
from kvcast.fitted.difference import candidates
from kvcast.fitted.luck import Uneven
from kvcast.fitted.parameters import PARAMETERS
from kvcast.present.fitted_text import errors
from kvcast.scenario.resolve import Resolved
from sim.scenario import Scenario

DRAWN = {
    "hardware.dense_factor": (0.85, 1.25),
    "hardware.attention_factor": (0.7, 1.4),
    "engine.host_step_ms": (0.5, 2.5),
    "engine.frontend_ms": (4.0, 25.0),
    "engine.frontend_us_per_prompt_token": (2.0, 10.0),
}
LOADS: tuple[dict[str, Any], ...] = ({"rate": 3.0}, {"rate": 12.0}, {"places": 48})
REQUESTS = 100
KNOWN = {"engine.kv_blocks": "given"}


def scenario() -> Scenario:
    return scenario_from_doc(
        {
            "workload": {"preset": "chat", "rate": 1.0, "duration_s": 60.0},
            "hardware": {"profile": "h200-llama-3.1-8b-aic"},
            "engine": {"kv_blocks": 20000, "max_model_len": 16384},
        }
    )


def drawn(number: int) -> dict[str, float]:
    """The parameters of a server."""
    rng = np.random.default_rng(number)
    return {key: float(rng.uniform(*ends)) for key, ends in DRAWN.items()}


def measured(number: int, folder: Path, noise: type[Uneven]) -> list[ServerRun]:
    """Its runs, by way of files."""
    runs = []
    for i, how in enumerate(LOADS):
        path = folder / f"{number}-{i}.json"
        sent = load(REQUESTS, seed=100 * number + i, **how)
        truth = measure(scenario(), drawn(number), sent, 10 * number + i, noise)
        path.write_text(json.dumps(truth), encoding="utf-8")
        runs.append(read_run(path))
    return runs


def known_servers(numbers: range, noise: type[Uneven]) -> list[str]:
    rows: dict[str, list[tuple[float, float, bool]]] = {p.key: [] for p in PARAMETERS}
    held_out: list[tuple[float, float]] = []
    resolved = api.resolve(scenario())
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            fitted = fit_server(resolved, measured(number, Path(folder), noise), KNOWN)
            truths = drawn(number)
            for p, x, half in zip(fitted.found.kept, fitted.found.axis, fitted.found.half, strict=True):
                truth = p.onto(truths.get(p.key, p.value(resolved.scenario)))
                truth += 1e3 * STALL_S * STALLS * (noise is Rough and p.key == "engine.host_step_ms")
                rows[p.key].append((x - truth, half, abs(x - truth) <= half))
            held_out += [
                (row["before"], row["after"]) for row in fitted.document()["held_out"] if row["stat"] == "mean"
            ]
            print(f"server {number}: {fitted.found.simulations} simulations", file=sys.stderr)
    lines = [
        "| key | kept | interval holds the truth | too high, too low | median error | median half width |",
        "|---|---|---|---|---|---|",
    ]
    for p in PARAMETERS:
        if found := rows[p.key]:
            error, half, inside = (np.array(column, float) for column in zip(*found, strict=True))
            high, low = int((error > half).sum()), int((error < -half).sum())
            unit = p.unit or "(of its logarithm)"
            lines.append(
                f"| {p.key} | {len(found)} | {int(inside.sum())} | {high}, {low}"
                f" | {np.median(np.abs(error)):.3g} {unit} | {np.median(half):.3g} |"
            )
    every = [inside for found in rows.values() for _, _, inside in found]
    lines.append(f"\n{sum(every)} of {len(every)} intervals hold the truth")
    before, after = np.abs(np.array(held_out)).T
    lines.append(
        f"\nmeans of TTFT, TPOT and E2E held out, {len(after)} of them: error {before.mean():.1%} before,"
        f" {after.mean():.1%} after, worst {after.max():.1%}"
    )
    return lines


def recorded_run(card: str, engine: dict[str, Any], data: Path) -> tuple[Resolved, ServerRun]:
    """A real run, and its server as it would be simulated unfitted."""
    folder, trace = data / f"{card}_llama-3.1-8b", data / "sharegpt-llama-3.1-8b-300-sps10.jsonl"
    document = {
        "run": {"warmup_s": 0.0},
        "workload": {"trace": str(trace)},
        "hardware": {"profile": str(folder / "kernels")},
        "engine": {"max_num_batched_tokens": 2048, **engine},
    }
    prepared = api.prepare(scenario_from_doc(document))
    return prepared.resolved, read_run(folder / "vllm_run" / "requests.jsonl", prepared.workload)


def recorded(card: str, engine: dict[str, Any], data: Path, in_time: bool) -> Fitted:
    """Fitted to it. in_time: the first half of the time is fitted, the second held out."""
    resolved, run = recorded_run(card, engine, data)
    first = [np.arange(len(run)) < len(run) // 2] if in_time else None
    return fit_server(resolved, [run], KNOWN, first)


CARDS = {
    "rtx4090": {"kv_blocks": 2588, "max_num_seqs": 256, "max_model_len": 32768},
    "rtxpro6000": {"max_num_seqs": 128},
}


CHANGED = {
    "hardware.dense_factor": 1.3,
    "hardware.attention_factor": 2.0,
    "engine.host_step_ms": 3.0,
    "engine.host_sequence_us": 80.0,
    "engine.frontend_ms": 20.0,
    "engine.frontend_us_per_prompt_token": 15.0,
    "engine.frontend_us_per_output_token": 60.0,
    "engine.frontend_requests_per_s": 20.0,
    "engine.kv_blocks": 1200,
}


def named() -> list[str]:
    """One parameter of a known server is otherwise; 150 requests, 12 a second."""
    lines = ["| otherwise | named | moved to | removes | next | removes |", "|---|---|---|---|---|---|"]
    resolved = api.resolve(scenario())
    with tempfile.TemporaryDirectory() as folder:
        for key, value in CHANGED.items():
            path = Path(folder) / "R.json"
            truth = measure(scenario(), {key: value}, load(150, seed=7, rate=12.0), seed=1)
            path.write_text(json.dumps(truth), encoding="utf-8")
            first, second = candidates(resolved, [read_run(path)])[0][:2]
            lines.append(
                f"| {key} = {value:g} | {first['key']} | {first['to']:.4g} | {first['removes']:.1%} | {second['key']}"
                f" | {second['removes']:.1%} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=20, help="known servers (default 20)")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--even", action="store_true", help="noise as the fit's own")
    parser.add_argument("--named", action="store_true", help="the table of explain --against, and nothing else")
    args = parser.parse_args()
    if args.named:
        print("\n".join(named()))
        return
    if args.servers:
        print("\n".join(known_servers(range(args.first, args.first + args.servers), Uneven if args.even else Rough)))
    data = os.environ.get("KVCAST_DATA")
    if data is None:
        print("the recorded runs are left out: KVCAST_DATA names no folder of them", file=sys.stderr)
        return
    for card, engine in CARDS.items():
        for in_time in (False, True):
            fitted = recorded(card, engine, Path(data) / "measured", in_time)
            print(f"\n{card}, held out: {'the second half of the time' if in_time else 'every second block'}")
            print(dict(fitted.found.values))
            print(errors(fitted.document()["held_out"]))


if __name__ == "__main__":
    main()
