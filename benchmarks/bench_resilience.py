"""A fleet whose collapse has a theory: one server, sessions in an LRU cache, and the loads and bursts it survives.

K = 8 turns a session, exponential think time Z = 20 s, one request at a time, 20 ms where the session's text is cached
and 160 ms where it is not, room for C = 254 sessions. With wait W and throughput X the characteristic time T of the
LRU (Che) solves C = X (T/K + (1 - 1/K) E min(T, Z + W)); the hit share is h = 1 - exp(-(T - W)/Z), and W follows from h
(Pollaczek-Khinchine). The upper branch ends where W no longer has a solution.

  python benchmarks/bench_resilience.py             # steady branch, folds, bursts that are survived: minutes
  python benchmarks/bench_resilience.py --quick     # the steady branch only
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from kvcast import api
from kvcast.config import scenario_from_doc
from sim.recording import COMPLETED
from sim.scenario import BURST, Scenario, Shock

TURNS, THINK_S, HIT_S, MISS_S, SESSIONS = 8, 20.0, 0.020, 0.160, 254


def toy(load: float, lasts_s: float, seed: int = 0, warmup_s: float = 400.0) -> Scenario:
    """load: requests a second."""
    session = {"name": "text", "scope": "session", "tokens": {"value": 1000}}
    return scenario_from_doc(
        {
            "seed": seed,
            "workload": {
                "duration_s": warmup_s + lasts_s,
                "class": [
                    {
                        "name": "toy",
                        "rate": load / TURNS,
                        "turns": {"value": TURNS},
                        "think": {"kind": "exponential", "mean": THINK_S},
                        "turn_input": {"value": 1},
                        "output": {"value": 1},
                        "layers": [session],
                    }
                ],
            },
            "run": {"warmup_s": warmup_s, "duration_s": warmup_s + lasts_s},
            "model": {"name": "tiny"},
            "hardware": {"profile": "roofline:h200"},
            "engine": {
                "step_overhead_ms": 19.0,
                "max_num_seqs": 1,
                "max_num_batched_tokens": 128,
                "kv_blocks": 16002,
                "max_model_len": 4096,
                **ENGINE,
            },
        }
    )


ENGINE = {"async_scheduling": False, "host_step_ms": 0.0, "host_sequence_us": 0.0, "launch_layer_us": 0.0}
"""The theory's server does one thing after the other, and nothing beside it."""


def hit_share(load: float, wait_s: float) -> float:
    """Che's approximation: the share of later turns whose session is still cached."""

    def sessions(t: float) -> float:
        reused = t if t <= wait_s else wait_s + THINK_S * (1 - math.exp(-(t - wait_s) / THINK_S))
        return load * (t / TURNS + (1 - 1 / TURNS) * reused)

    low, high = 0.0, SESSIONS * TURNS / load
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sessions(middle) < SESSIONS else (low, middle)
    return 1 - math.exp(-(low - wait_s) / THINK_S) if low > wait_s else 0.0


def theory(load: float) -> tuple[float, float] | None:
    """(wait in seconds, hit share of all requests) of the upper branch; None where there is none."""
    wait_s = 0.0
    for _ in range(10_000):
        hit = (1 - 1 / TURNS) * hit_share(load, wait_s)
        busy = load * (hit * HIT_S + (1 - hit) * MISS_S)
        if busy >= 1:
            return None
        squares = hit * HIT_S**2 + (1 - hit) * MISS_S**2
        new_s = load * squares / (2 * (1 - busy))
        if abs(new_s - wait_s) < 1e-12:
            return wait_s, hit
        wait_s = new_s
    return None


def measured(scenario: Scenario) -> tuple[float, float]:
    """(mean wait in seconds, share of the window's requests that hit)."""
    prepared = api.prepare(scenario)
    rec = api.record(prepared)
    inside = (rec.status == COMPLETED) & (rec.arrival_s >= (scenario.run.warmup_s or 0.0))
    wait_s = (rec.admit_s - rec.arrival_s)[inside]
    return float(wait_s.mean()), float((rec.hit_tokens[inside] > 500).mean())


def last_wait_s(scenario: Scenario) -> float:
    """Mean wait of the last ten minutes."""
    rec = api.record(api.prepare(replace(scenario, run=replace(scenario.run, horizon_s=scenario.run.duration_s))))
    late = rec.arrival_s > (scenario.run.duration_s or 0.0) - 600
    waits = np.where(np.isnan(rec.admit_s), rec.end_s, rec.admit_s) - rec.arrival_s
    return float(waits[late].mean())


def longest_burst_s(load: float, size: float, seed: int) -> float:
    """The longest burst, in steps of 8 s, after which the wait is short again within 20 minutes."""
    lasts_s = 8.0
    while True:
        calm = toy(load, 120 + lasts_s + 1800, seed)
        if last_wait_s(replace(calm, shock=(Shock(BURST, 60.0, lasts_s, size),))) > 1.0:
            return lasts_s - 8.0
        lasts_s += 8.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    began = time.process_time()
    print("load/s  wait (theory), s   hit share (theory)")
    for load in (8.0, 10.0, 12.0, 13.0):
        wait_s, hit = measured(toy(load, 1800.0 if quick else 7200.0))
        expected = theory(load)
        assert expected is not None
        print(f"{load:6g}  {wait_s:.3f} ({expected[0]:.3f})      {hit:.3f} ({expected[1]:.3f})")
    fold = next(load for load in np.arange(8.0, 16.0, 0.01) if theory(float(load)) is None)
    print(f"the upper branch ends at {fold:.2f}/s (theory); a cold server holds {1 / MISS_S:.2f}/s")
    if quick:
        return
    for load in (13.0, 13.5, 14.0):
        gone = [last_wait_s(toy(load, 7200.0, seed)) > 30.0 for seed in range(3)]
        print(f"{load:g}/s for two hours: {sum(gone)} of 3 collapse")
    for load, size in ((8.0, 3.0), (12.0, 2.0)):
        found = [longest_burst_s(load, size, seed) for seed in range(3)]
        print(f"{load:g}/s: the longest burst of {size:g} times the load that is survived: {sorted(found)} s")
    print(f"{time.process_time() - began:.0f} CPU-s")


if __name__ == "__main__":
    main()
