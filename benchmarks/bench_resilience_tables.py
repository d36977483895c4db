"""What a burst does to the demo's mix on one H200, and the two loads of every fleet: docs/resilience.md's tables.

Every row is three seeds of examples/demo.toml with one replica (unless it says two), in steady state, disturbed in
minutes 20 to 30 and watched for two hours and twenty minutes; and, for each fleet, the highest of a grid of loads from
which it is back within half an hour of a burst of twice the load for ten minutes, and the loads at which it collapses
by itself within two hours.

  python benchmarks/bench_resilience_tables.py --out /tmp/tables               # both: 12 CPU minutes
  python benchmarks/bench_resilience_tables.py --out /tmp/tables --only loads  # the second

Runs are kept in --out: after a kill the same command goes on. The columns "found" are the figures of the design's first
tables, made by another program with synchronous scheduling and without host time in a step."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.kept import Kept
from kvcast import api, load_scenario
from kvcast.planner.load import with_load
from kvcast.planner.recovery import LATE_S, recovered_s
from kvcast.planner.resilience import Disturbed
from kvcast.planner.trials import Trials
from kvcast.store.simulations import Lab
from sim.measure.metrics import limits_of
from sim.measure.shocks import phase, told
from sim.measure.sketch import sketch
from sim.measure.verdict import named_limits
from sim.scenario import BURST, Scenario, Shock, SloClass

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 2)
SLOT_S, SHOCK_S, WATCHED_S = 600.0, 1200.0, 8400.0
TARGET = 0.95  #: of the demo
Slots = Sequence[Sequence[float | None]]
"""(attainment, hit rate) of every ten minutes."""
MORE_KV = 1.75
TIER = 'cache.tiers=[{name = "dram", capacity_gib = 128, bandwidth_gb_per_s = 50}]'


@dataclass(frozen=True)
class Fleet:
    name: str
    sets: tuple[str, ...] = ()
    kv: float = 1.0  #: times its KV blocks
    load: float = 1.0  #: that 1.0 is of

    def scenario(self) -> Scenario:
        scenario = api.windowed(load_scenario(ROOT / "examples" / "demo.toml", ("cluster.replicas=1", *self.sets)))
        if self.kv != 1.0:
            blocks = int(api.resolve(scenario).params.kv_blocks * self.kv)
            scenario = replace(scenario, engine=replace(scenario.engine, kv_blocks=blocks))
        return scenario if self.load == 1.0 else with_load(scenario, self.load)


ONE = Fleet("one H200")
FIRST = Fleet(
    "one H200, synchronous, no host time",
    ("engine.async_scheduling=false", "engine.host_step_ms=0", "engine.host_sequence_us=0", "engine.launch_layer_us=0"),
)
"""As the figures to compare with were made."""
AFFINE = ("cluster.replicas=2", "cluster.router=session-affinity")
ROBIN = ("cluster.replicas=2", "cluster.router=round-robin")

AFTER: tuple[tuple[Fleet, float, float, str], ...] = (
    (ONE, 1.0, 2.0, "two of three never back (0 / 45), one after 10 min"),
    (FIRST, 1.0, 2.0, "as above"),
    (ONE, 1.0, 1.5, "95-99 in it, 100 / 89 after"),
    (ONE, 1.0, 2.5, "one never back, one after 50 min"),
    (ONE, 0.8, 2.5, "back after 10 to 30 min"),
    (ONE, 1.35, 0.0, "holds 90 min at 97-99"),
    (ONE, 1.35, 2.5, "never back"),
    (ONE, 1.5, 0.0, "97-100 for 10, 40, 70 min, then 0 / 45"),
    (Fleet("KV blocks x 1.75", kv=MORE_KV), 1.0, 2.5, "back after 15 min"),
    (Fleet("two, session-affinity", AFFINE), 1.0, 2.5, "99 throughout"),
    (Fleet("two, round-robin", ROBIN), 1.0, 2.5, "84, 98, 100"),
    (Fleet("LFU", ("cache.policy=lfu",)), 1.2, 2.5, "down before the burst"),
    (Fleet("SLRU", ("cache.policy=slru",)), 1.2, 2.5, "down before the burst"),
    (Fleet("GDSF", ("cache.policy=gdsf",)), 1.0, 2.5, "never back"),
    (Fleet("max_num_seqs 64", ("engine.max_num_seqs=64",)), 1.0, 2.5, "never back"),
    (Fleet("max_num_seqs 16", ("engine.max_num_seqs=16",)), 1.0, 2.5, "never back"),
    (Fleet("SGLang", ("engine.semantics=sglang",)), 1.0, 2.5, "never back"),
)
"""(fleet, times the load, size of the burst, found)."""

LOADS: tuple[tuple[Fleet, str, tuple[float, ...], str], ...] = (
    (ONE, "0.95 (0.95, 1.05, 0.95)", (1.4, 1.5), "1.4 holds 3 of 3; 1.5 collapses 3 of 3 (after 10, 40, 80 min)"),
    (FIRST, "0.95", (1.4, 1.5), "as above"),
    (Fleet("KV blocks x 2", kv=2.0), "1.3", (1.8, 2.0), "1.8 holds; 2.0 is plain overload"),
    (Fleet("host tier 128 GiB, 50 GB/s", (TIER,)), "1.3", (1.8, 2.0), "as above"),
    (Fleet("max_num_seqs 64", ("engine.max_num_seqs=64",)), "0.9", (), ""),
    (Fleet("max_num_seqs 32", ("engine.max_num_seqs=32",)), "0.7", (), ""),
    (Fleet("two at twice the load, session-affinity", AFFINE, load=2.0), "0.9", (1.5,), "1.5 holds 3 of 3"),
    (Fleet("two at twice the load, round-robin", ROBIN, load=2.0), "0.8", (), ""),
)
"""(fleet, found: recovers up to, loads to be left alone at, found)."""
GRID = [round(0.5 + 0.05 * i, 2) for i in range(31)]


# -- what follows ------------------------------------------------------------------------------------------------------


def seen(scenario: Scenario) -> tuple[dict[str, np.ndarray], list[tuple[str, SloClass]]]:
    """Columns of the requests that came in a run (what sim.measure.shocks reads), and the classes with their limits."""
    prepared = api.prepare(scenario)
    rec = api.record(prepared)
    columns, _ = sketch(rec, prepared.workload, prepared.scenario, None)
    columns |= {
        "prompt_tokens": prepared.workload.prompt_tokens,
        "hit_tokens": rec.hit_tokens,
        "admit_s": rec.admit_s,
        "finish_s": rec.finish_s,
    }
    came = ~np.isnan(rec.arrival_s)
    classes = named_limits(prepared.workload, limits_of(prepared.workload, scenario.slo))
    return {name: column[came] for name, column in columns.items()}, classes


def lasting(scenario: Scenario, watched_s: float, seed: int, shocks: tuple[Shock, ...]) -> Scenario:
    """The scenario watched for so long after its warm-up, disturbed."""
    ends_s = (scenario.run.warmup_s or 0.0) + watched_s
    return replace(
        scenario,
        seed=seed,
        shock=shocks,
        workload=replace(scenario.workload, duration_s=ends_s, requests=None),
        run=replace(scenario.run, duration_s=ends_s, horizon_s=ends_s + LATE_S),
    )


def watched(fleet: Fleet, load: float, size: float, seed: int) -> dict[str, Any]:
    """(attainment, hit rate) of every ten minutes, and seconds until it was back after the burst."""
    shocks = (Shock(BURST, SHOCK_S, SLOT_S, size),) if size else ()
    scenario = lasting(with_load(fleet.scenario(), load), WATCHED_S, seed, shocks)
    columns, classes = seen(scenario)
    begins_s, ends_s = scenario.run.warmup_s or 0.0, scenario.run.duration_s or 0.0
    parts = [phase(columns, at, at + SLOT_S) for at in np.arange(begins_s, ends_s - 1, SLOT_S)]
    back = told(scenario, columns, classes, ends_s)
    return {
        "slots": [(one["attainment"], one["hit_rate"]) for one in parts],
        "back_s": back[0]["recovered_s"] if back else None,
    }


def after(kept: Kept) -> None:
    """A row a fleet, its cells by seed."""
    print("\n| fleet, load, burst | before | in the burst | back after, min | last ten minutes | found |")
    print("|---|---|---|---|---|---|")
    for fleet, load, size, found in AFTER:
        runs = [kept(f"after {fleet.name} {load} {size} {s}", watched, fleet, load, size, s) for s in SEEDS]
        back = [_back(run["back_s"]) if size else _missed(run["slots"]) for run in runs]
        before, inside, last = (", ".join(_pair(run["slots"][i]) for run in runs) for i in (1, 2, -1))
        who = f"{fleet.name}, {load:g}, {f'x {size:g}' if size else 'none'}"
        cells = (who, before, inside if size else "-", ", ".join(back), last, found)
        print(f"| {' | '.join(cells)} |", flush=True)


def _back(back_s: float | None) -> str:
    return "never" if back_s is None else f"{back_s / 60:.0f}"


def _missed(slots: Slots) -> str:
    """When an undisturbed fleet is down: from the first ten minutes in which half or more miss to the next that
    attain."""
    shares = [1.0 if share is None else share for share, _ in slots]
    first = next((i for i, share in enumerate(shares) if share <= 0.5), None)
    if first is None:
        return "holds"
    again = next((i for i in range(first, len(shares)) if shares[i] >= TARGET), None)
    return f"half missed from minute {10 * first} {'on' if again is None else f'to {10 * again}'}"


def _pair(part: Sequence[float | None]) -> str:
    return " / ".join("-" if share is None else f"{100 * share:.0f}" for share in part)


# -- two loads ---------------------------------------------------------------------------------------------------------


def highest(trials: Trials, scenario: Scenario, seed: int) -> float | None:
    """The highest load of GRID from which it comes back, found by halving: it comes back from all below."""
    low, high = -1, len(GRID)
    while high - low > 1:
        middle = (low + high) // 2
        back = recovered_s(trials, with_load(scenario, GRID[middle]), seed) is not None
        low, high = (middle, high) if back else (low, middle)
    return GRID[low] if low >= 0 else None


def loads(trials: Trials) -> None:
    print("\n| fleet | recovers up to (seeds) | found | undisturbed for 2 h | found |\n|---|---|---|---|---|")
    for fleet, found, levels, alone in LOADS:
        scenario = fleet.scenario()
        up_to = [highest(trials, scenario, seed) for seed in SEEDS]
        least = min((-1.0 if one is None else one for one in up_to), default=-1.0)
        told_of = []
        for level in levels:
            row = Disturbed(trials, scenario).collapse(level, 2.0)
            times = ", ".join(f"{s / 60:.0f}" for s in row["after_s"] if s is not None)
            told_of.append(
                f"{level:g}: {row['collapsed']} of {row['runs']} collapse" + (f" (after {times} min)" if times else "")
            )
        each = ", ".join("-" if one is None else f"{one:g}" for one in up_to)
        print(
            f"| {fleet.name} | {least:g} ({each}) | {found} | {'; '.join(told_of) or '-'} | {alone or '-'} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps the runs")
    parser.add_argument("--only", choices=("after", "loads"))
    asked = parser.parse_args()
    began = time.process_time()
    if asked.only != "loads":
        after(Kept(asked.out / "after.jsonl"))
    if asked.only != "after":
        with Trials(Lab(asked.out), SEEDS, 0.95) as trials:
            loads(trials)
    print(f"\n{time.process_time() - began:.0f} CPU-s now")


if __name__ == "__main__":
    main()
