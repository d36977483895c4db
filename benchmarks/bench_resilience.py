"""A fleet whose collapse has a theory: one server, sessions in an LRU cache, and the loads and bursts it survives.

K = 8 turns a session, exponential think time Z = 20 s, one request at a time, 20 ms where the session's text is cached
and 160 ms where it is not, room for C = 254 sessions. With wait W and throughput X the characteristic time T of the
LRU (Che) solves C = X (T/K + (1 - 1/K) E min(T, Z + W)); the hit share is h = 1 - exp(-(T - W)/Z), and W follows from h
(Pollaczek-Khinchine). The upper branch ends where W no longer has a solution. On the lower one nothing hits: turn k + 1
comes as often as turn k is served, so the queue grows by g = x (1 - (m / (m + g))^K) a second with m = 1 / 160 ms and x
sessions a second, and a load below m drains it. Between them lies W*, at which the server just keeps up.

The theory is of a large system. `--scale 16` is the same server 16 times as fast with 16 times the room and the load:
waits are a 16th, W* is the same, and chance matters less.

  python benchmarks/bench_resilience.py --out /tmp/toy              # both branches and folds, 16 times: 7 CPU minutes
  python benchmarks/bench_resilience.py --out /tmp/toy --bursts     # only the bursts that are forgotten: 4 CPU minutes
  python benchmarks/bench_resilience.py --scale 1 --out /tmp/toy    # the small one, which collapses below its fold
  python benchmarks/bench_resilience.py --quick                     # two points of each branch: 30 CPU-s
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.kept import Kept
from kvcast import api
from kvcast.config import scenario_from_doc
from sim.recording import COMPLETED, Recording
from sim.scenario import BURST, Scenario, Shock

TURNS, THINK_S, HIT_S, MISS_S, SESSIONS = 8, 20.0, 0.020, 0.160, 254
COLD = 1 / MISS_S
"""Requests a second that a cold server holds."""
FLOOR_MS = 0.1225
"""Of a step of the model `tiny` on the roofline: the rest of HIT_S is overhead."""
ENGINE = {"async_scheduling": False, "host_step_ms": 0.0, "host_sequence_us": 0.0, "launch_layer_us": 0.0}
"""The theory's server does one thing after the other, and nothing beside it."""
WARM_S = 400.0


@dataclass(frozen=True)
class Toy:
    """The server, `scale` times as fast. Loads are requests a second of the server at scale 1."""

    scale: int = 1

    def scenario(
        self, load: float, lasts_s: float, seed: int = 0, room: float = 1.0, cached: bool = True, warm_s: float = WARM_S
    ) -> Scenario:
        """room: times the sessions that the cache holds."""
        session = {"name": "text", "scope": "session", "tokens": {"value": 1008}}
        one = {
            "name": "toy",
            "rate": self.scale * load / TURNS,
            "turns": {"value": TURNS},
            "think": {"kind": "exponential", "mean": THINK_S},
            "turn_input": {"value": 1},
            "output": {"value": 1},
            "layers": [session],
        }
        engine = {
            "step_overhead_ms": 1000 * HIT_S / self.scale - FLOOR_MS,
            "max_num_seqs": 1,
            "max_num_batched_tokens": 128,
            "kv_blocks": int(63 * SESSIONS * self.scale * room),
            "max_model_len": 4096,
            **ENGINE,
        }
        return scenario_from_doc(
            {
                "seed": seed,
                "workload": {"duration_s": warm_s + lasts_s, "class": [one]},
                "run": {"warmup_s": warm_s, "duration_s": warm_s + lasts_s},
                "model": {"name": "tiny"},
                "hardware": {"profile": "roofline:h200"},
                "cache": {"enabled": cached},
                "engine": engine,
            }
        )

    def theory(self, load: float) -> tuple[float, float] | None:
        """(wait in seconds, hit share of all requests) of the upper branch; None where there is none."""
        wait_s = 0.0
        for _ in range(20_000):
            hit = (1 - 1 / TURNS) * hit_share(load, wait_s)
            busy = load * (hit * HIT_S + (1 - hit) * MISS_S)
            if busy >= 1:
                return None
            new_s = load * (hit * HIT_S**2 + (1 - hit) * MISS_S**2) / (2 * (1 - busy)) / self.scale
            if abs(new_s - wait_s) < 1e-12:
                return wait_s, hit
            wait_s = new_s
        return None

    def fold(self) -> float:
        """The load at which the upper branch ends."""
        low, high = COLD, 1 / HIT_S
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (middle, high) if self.theory(middle) else (low, middle)
        return low


def hit_share(load: float, wait_s: float) -> float:
    """Che's approximation: the share of later turns whose session is still cached."""

    def sessions(t: float) -> float:
        reused = t if t <= wait_s else wait_s + THINK_S * (1 - math.exp(-(t - wait_s) / THINK_S))
        return load * (t / TURNS + (1 - 1 / TURNS) * reused)

    low, high = 0.0, SESSIONS * TURNS / load
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sessions(middle) < SESSIONS else (low, middle)
    return 1 - math.exp(-(low - wait_s) / THINK_S) if low > wait_s else 0.0


def between_s(load: float) -> float:
    """W*: the wait at which the server just keeps up. A longer one grows, a shorter one is forgotten."""
    low, high = 0.0, SESSIONS / COLD
    for _ in range(50):
        middle = (low + high) / 2
        hit = (1 - 1 / TURNS) * hit_share(load, middle)
        low, high = (middle, high) if load * (hit * HIT_S + (1 - hit) * MISS_S) < 1 else (low, middle)
    return low


def growth_per_s(load: float) -> float:
    """By how many requests a second the queue grows on the lower branch (of the server at scale 1)."""
    grows = load
    for _ in range(2000):
        grows = load / TURNS * (1 - (COLD / (COLD + grows)) ** TURNS)
    return grows


# -- simulated ---------------------------------------------------------------------------------------------------------


def recorded(scenario: Scenario) -> Recording:
    """The run to the end of its window: what waits then is left."""
    return api.record(api.prepare(replace(scenario, run=replace(scenario.run, horizon_s=scenario.run.duration_s))))


def upper(scenario: Scenario) -> tuple[float, float]:
    """(mean wait in seconds, share of the window's requests that hit)."""
    rec = recorded(scenario)
    inside = (rec.status == COMPLETED) & (rec.arrival_s >= (scenario.run.warmup_s or 0.0))
    wait_s = (rec.admit_s - rec.arrival_s)[inside]
    return float(wait_s.mean()), float((rec.hit_tokens[inside] > 500).mean())


def lower(toy: Toy, load: float, seed: int, lasts_s: float = 7200.0) -> tuple[float, float, float]:
    """After a burst of three times the load for four minutes, over the second half of the run: requests served a second
    and growth of the queue (both of scale 1), hit share."""
    scenario = toy.scenario(load, lasts_s, seed)
    rec = recorded(with_burst(scenario, 240.0, 3.0))
    ends_s, spans_s = scenario.run.duration_s or 0.0, lasts_s / 2
    served = (rec.admit_s >= ends_s - spans_s) & (rec.admit_s < ends_s)
    came = (rec.arrival_s >= ends_s - spans_s) & (rec.arrival_s < ends_s)
    per_s = served.sum() / spans_s / toy.scale
    grows = came.sum() / spans_s / toy.scale - per_s
    return float(per_s), float(grows), float((rec.hit_tokens[served] > 500).mean())


def with_burst(scenario: Scenario, lasts_s: float, size: float) -> Scenario:
    return replace(scenario, shock=(Shock(BURST, 0.0, lasts_s, size),))


def peak_and_last_s(scenario: Scenario) -> tuple[float, float]:
    """(longest wait of an arrival, mean wait of the last ten minutes' arrivals); who still waits has waited till the
    end."""
    rec, ends_s = recorded(scenario), scenario.run.duration_s or 0.0
    came = ~np.isnan(rec.arrival_s)
    waits_s = (np.where(np.isnan(rec.admit_s), ends_s, rec.admit_s) - rec.arrival_s)[came]
    return float(waits_s.max()), float(waits_s[rec.arrival_s[came] > ends_s - 600].mean())


def collapses(toy: Toy, load: float, seed: int, lasts_s: float = 2400.0) -> bool:
    """Whether the last ten minutes' arrivals wait seconds, which none on the upper branch does."""
    return peak_and_last_s(toy.scenario(load, lasts_s, seed))[1] > DOWN_S


DOWN_S = 3.0


def longest_burst(toy: Toy, load: float, size: float, seed: int, most_s: float = 128.0) -> tuple[float, float]:
    """(the longest burst that is forgotten within half an hour, to a second; the longest wait it made)."""
    forgotten, grows_s = (0.0, 0.0), most_s
    while grows_s - forgotten[0] > 1.0:
        lasts_s = (forgotten[0] + grows_s) / 2
        peak_s, last_s = peak_and_last_s(with_burst(toy.scenario(load, lasts_s + 1800.0, seed), lasts_s, size))
        if last_s > DOWN_S:
            grows_s = lasts_s
        else:
            forgotten = (lasts_s, peak_s)
    return forgotten


# -- told --------------------------------------------------------------------------------------------------------------

SHARES = (0.95, 1.0, 1.05)
"""Of a fold: the loads that are held, or not."""


def branches(toy: Toy, kept: Kept, seeds: range, quick: bool) -> None:
    print("\n| load/s (x scale) | branch | what | theory | simulated |\n|---|---|---|---|---|")
    lasts_s = 600.0 if quick else 1800.0
    for load in (8.0, 13.0) if quick else (8.0, 10.0, 12.0, 13.0, 14.0):
        found = toy.theory(load)
        if found is None:
            print(f"| {load:g} | upper | none | | |")
            continue
        keys = [(f"upper {toy.scale} {load} {lasts_s} {seed}", seed) for seed in seeds]
        runs = [kept(key, upper, toy.scenario(load, lasts_s, seed)) for key, seed in keys]
        wait_s, hit = np.mean(runs, axis=0)
        print(f"| {load:g} | upper | wait, ms | {1000 * found[0]:.2f} | {_off(1000 * wait_s, 1000 * found[0])} |")
        print(f"| {load:g} | upper | hit share | {found[1]:.4f} | {_off(hit, found[1])} |", flush=True)
    small = Toy(min(toy.scale, 4))  # it takes hours, whatever the scale
    lasts_s = 3600.0 if quick else 7200.0
    for load in (12.0,) if quick else (8.0, 12.0, 14.0):
        keys = [(f"lower {small.scale} {load} {lasts_s} {seed}", seed) for seed in seeds]
        runs = [kept(key, lower, small, load, seed, lasts_s) for key, seed in keys]
        served, grows, hit = np.mean(runs, axis=0)
        print(f"| {load:g} | lower | served/s | {COLD:.3f} | {_off(served, COLD)} |")
        print(f"| {load:g} | lower | queue grows/s | {growth_per_s(load):.3f} | {_off(grows, growth_per_s(load))} |")
        print(f"| {load:g} | lower | hit share | 0 | {hit:.4f} |", flush=True)


def folds(toy: Toy, kept: Kept, seeds: range) -> None:
    bars = "|---" * (len(SHARES) + 1) + "|"
    print("\n| fold (theory) | " + " | ".join(f"x {share:g}" for share in SHARES) + f" |\n{bars}")
    fold, small = toy.fold(), Toy(min(toy.scale, 4))
    gone, stay = [], []
    for share in SHARES:
        gone.append(sum(kept(f"fold {toy.scale} {share} {s}", collapses, toy, share * fold, s) for s in seeds))
    print(f"| upper, {fold:.2f}/s | " + " | ".join(f"{n} of {len(seeds)} collapse" for n in gone) + " |", flush=True)
    for share in SHARES:
        stay.append(sum(kept(f"stays {small.scale} {share} {s}", stays_cold, small, share * COLD, s) for s in seeds))
    print(f"| lower, {COLD:.2f}/s | " + " | ".join(f"{n} of {len(seeds)} stay cold" for n in stay) + " |", flush=True)


def stays_cold(toy: Toy, load: float, seed: int) -> bool:
    """Two hours after a burst that made a wait beyond C / X, at which nothing hits."""
    return peak_and_last_s(with_burst(toy.scenario(load, 7200.0, seed), 240.0, 3.0))[1] > DOWN_S


def bursts(toy: Toy, kept: Kept, seeds: range) -> None:
    print("\n| load/s | burst | longest that is forgotten, s | its longest wait, s | W*, s |\n|---|---|---|---|---|")
    for load, size in ((8.0, 3.0), (12.0, 2.0)):
        found = [kept(f"burst {toy.scale} {load} {s}", longest_burst, toy, load, size, s) for s in seeds]
        lasts, peaks = (", ".join(f"{one[i]:.1f}" for one in found) for i in (0, 1))
        print(f"| {load:g} | x {size:g} | {lasts} | {peaks} | {between_s(load):.1f} |", flush=True)


def single(kept: Kept, seeds: range) -> None:
    """Where nothing is cached, and where everything is, the wait 90 minutes after a burst (x 3 for four minutes) is the
    wait without."""
    print("\n| cache | load/s | wait, ms: theory | undisturbed | after a burst |\n|---|---|---|---|---|")
    toy = Toy(4)
    for name, load, busy_s, cached in (
        ("off", 5.0, [(1.0, MISS_S)], False),
        ("endless", 20.0, [(1 / TURNS, MISS_S), (1 - 1 / TURNS, HIT_S)], True),
    ):
        mean, squares = (sum(share * s**k for share, s in busy_s) for k in (1, 2))
        expected_s = load * squares / (2 * (1 - load * mean)) / toy.scale
        runs = [
            [kept(f"single {name} {burst_s} {s}", last_hour_s, toy, load, s, cached, burst_s) for s in seeds]
            for burst_s in (0.0, 240.0)
        ]
        calm, after = np.mean(runs, axis=1)
        print(f"| {name} | {load:g} | {1000 * expected_s:.1f} | {1000 * calm:.1f} | {1000 * after:.1f} |", flush=True)


def last_hour_s(toy: Toy, load: float, seed: int, cached: bool, burst_s: float) -> float:
    """Mean wait of the last of two hours and a half."""
    scenario = toy.scenario(load, 9000.0, seed, room=100.0, cached=cached)
    rec = recorded(with_burst(scenario, burst_s, 3.0) if burst_s else scenario)
    late = (rec.status == COMPLETED) & (rec.arrival_s > (scenario.run.duration_s or 0.0) - 3600)
    return float((rec.admit_s - rec.arrival_s)[late].mean())


def _off(found: float, expected: float) -> str:
    return f"{found:.4g} ({100 * (found / expected - 1):+.1f} %)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--bursts", action="store_true", help="only the longest bursts that are forgotten")
    parser.add_argument("--out", type=Path, help="folder that keeps what was simulated, so that a killed run goes on")
    asked = parser.parse_args()
    began = time.process_time()
    toy, seeds = Toy(asked.scale), range(1 if asked.quick else asked.seeds)
    kept = Kept(asked.out / "toy.jsonl" if asked.out else None)
    if asked.bursts:
        bursts(toy, kept, seeds)
    else:
        branches(toy, kept, seeds, asked.quick)
        if not asked.quick:
            folds(toy, kept, seeds)
            single(kept, seeds)
    print(f"\n{time.process_time() - began:.0f} CPU-s now")


if __name__ == "__main__":
    main()
