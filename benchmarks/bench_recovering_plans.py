"""Does a fleet that `kvcast plan` chose come back from bursts that it was not asked about?

Five mixes are planned (the cheapest fleet of one-GPU replicas that holds its load and is back within half an hour of
twice the load for ten minutes, on the plan's own seeds). Then ten other seeds of a day are simulated: in every two
hours a burst at a random time, of 1.2 to 2 times the load for 5 to 10 minutes. A fleet passes when it is back within
half an hour of each, and attains its target in all that is left. The GPUs and models are slow ones, so that a day is
some ten thousand requests.

  python benchmarks/bench_recovering_plans.py --out /tmp/plans                      # 6 CPU minutes
  python benchmarks/bench_recovering_plans.py --out /tmp/plans --seeds 3 --mix rag
  python benchmarks/bench_recovering_plans.py --out /tmp/plans --cost   # what asking for it costs: 10 CPU minutes

--cost makes each plan twice, whole, with and without --no-recover, each in a process of its own, and compares their CPU
times; also the demo's own, and the demo at a load that needs its larger fleet without recovery, too.

Plans and days are kept in --out: after a kill the same command goes on. Exit code 1 when a fleet does not pass."""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bench_resilience_tables import ROOT, lasting, seen
from benchmarks.kept import Kept
from kvcast import load_scenario, plan
from kvcast.config import scenario_from_doc
from sim.measure.shocks import recovered_s, span_s
from sim.measure.verdict import groups
from sim.scenario import BURST, Scenario, Shock
from workloads import mix, steady

EVERY_S = 7200.0
WITHIN_S, JUDGED_S = 1800.0, 600.0  # as [plan] has it
SIZES, LASTS_S = (1.2, 2.0), (300.0, 600.0)
FIRST_SEED = 1000
"""Of the days: a plan uses 0 to 9."""
ONLY: dict[str, Any] = dict.fromkeys(("capacity", "binding", "advice", "n_plus_1", "model_error", "undisturbed"), False)
"""What a plan tells beside its fleet is not asked for."""


COLUMNS = (
    "mix",
    "requests/s",
    "replicas (that hold it)",
    "plan: back after, min",
    "requests",
    "back within 30 min",
    "slowest, min",
    "worst attainment outside",
    "misses",
    "passes",
)


COST_COLUMNS = (
    "mix",
    "replicas (that hold it)",
    "recovers up to, requests/s",
    "SLO capacity, with and without",
    "simulations",
    "CPU-s",
    "times",
)
DEMO = "examples/demo.toml"
DEMOS = {DEMO: 1.0, f"{DEMO} x 1.35": 1.35}
"""Times its load. The second is more than one replica holds."""


class Mix(NamedTuple):
    rate_scale: float
    ttft_s: float
    tpot_s: float
    device: str
    model: str
    router: str = "round-robin"

    @property
    def told(self) -> str:
        limits = f"TTFT {self.ttft_s:g} s, TPOT {self.tpot_s * 1e3:g} ms"
        return f"x {self.rate_scale:g}, {self.model} on {self.device} ({limits})"


SMALL, LARGE = "llama-3.1-8b", "qwen3-32b"
MIXES = {
    "demo": Mix(0.2, 2, 0.05, "h200", LARGE),
    "coding-agent": Mix(0.35, 5, 0.05, "h200", SMALL, "session-affinity"),
    "long-context-chat": Mix(0.07, 20, 0.2, "l40s", SMALL),
    "rag": Mix(0.2, 30, 0.2, "l40s", SMALL),
    "tool-agent-api": Mix(0.08, 4, 0.1, "h200", LARGE),
}


def scenario_of(name: str) -> Scenario:
    one = MIXES[name]
    sets = (
        f"workload.preset={name}",
        f"workload.rate_scale={one.rate_scale:g}",
        f"model.name={one.model}",
        f"hardware.profile={one.device}-{one.model}-aic",
        f"cluster.router={one.router}",
        "slo.classes={}",
        f"slo.ttft_s={one.ttft_s:g}",
        f"slo.tpot_s={one.tpot_s:g}",
    )
    return load_scenario(ROOT / "examples" / "demo.toml", sets)


def planned(name: str, folder: Path) -> dict[str, Any]:
    """The answer's scenario as TOML, its replicas, those that only hold the load, and the seconds to come back."""
    made = plan(scenario_of(name), out=folder, growth=None, **ONLY)
    recovery = made["recovery"] or {}
    return {
        "scenario": made["scenario"],
        "replicas": made["answer"]["replicas"],
        "feasible": made["answer"]["feasible"],
        "holds": recovery.get("holds_replicas"),
        "back_s": recovery.get("recovered_s"),
        "offered": steady.requests_per_s(mix.resolve(scenario_from_doc(tomllib.loads(made["scenario"])).workload)),
        "cpu_s": made["simulations"]["cpu_s"],
    }


def cost(name: str) -> dict[str, Any]:
    """A whole plan, with all that it tells beside its fleet, asked to recover and not."""
    found = {}
    for recover in (True, False):
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            found["asked" if recover else "not asked"] = alone.submit(whole_plan, name, recover).result()
    return found


def whole_plan(name: str, recover: bool) -> dict[str, Any]:
    """What it answers, and the CPU seconds of its process from its start."""
    if name in DEMOS:
        asked = load_scenario(ROOT / DEMO, (f"workload.rate_scale={DEMOS[name]:g}",))
    else:
        asked = scenario_of(name)
    made = plan(asked, recover=recover)
    recovery, capacity = made["recovery"] or {}, made["capacity"] or {}
    return {
        "cpu_s": time.process_time(),
        "replicas": made["answer"]["replicas"],
        "holds": recovery.get("holds_replicas"),
        "recoverable_per_s": recovery.get("recoverable_per_s"),
        "slo_capacity_per_s": capacity.get("slo_capacity_per_s"),
        "simulations": made["simulations"]["distinct"],
    }


def compared(names: Sequence[str], kept: Kept) -> bool:
    """A row a plan and one for all. Whether asking all of them to recover takes at most twice the CPU time."""
    print(f"| {' | '.join(COST_COLUMNS)} |\n{'|---' * len(COST_COLUMNS)}|")
    sums = [0.0, 0.0]
    for name in names:
        sides = list(kept(f"cost {name}", cost, name).values())
        asked, other = sides
        sums = [total + side["cpu_s"] for total, side in zip(sums, sides, strict=True)]
        cells = (
            name if name in DEMOS else f"{name} {MIXES[name].told}",
            f"{asked['replicas']} ({asked['holds']})",
            f"{asked['recoverable_per_s']:.3g}" if asked["recoverable_per_s"] else "-",
            ", ".join(f"{side['slo_capacity_per_s']:.3g}" if side["slo_capacity_per_s"] else "-" for side in sides),
            f"{asked['simulations']}, {other['simulations']}",
            f"{asked['cpu_s']:.1f}, {other['cpu_s']:.1f}",
            f"{asked['cpu_s'] / other['cpu_s']:.2f}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\nall: {sums[0]:.0f} CPU-s with, {sums[1]:.0f} without: {sums[0] / sums[1]:.2f} times")
    return sums[0] <= 2 * sums[1]


def bursts(seed: int, watched_s: float) -> tuple[Shock, ...]:
    """One in every two hours, far enough from the next to see whether the fleet is back."""
    rng = np.random.default_rng([seed, 13])
    found = []
    for from_s in np.arange(0.0, watched_s - 1, EVERY_S):
        lasts_s = float(rng.uniform(*LASTS_S))
        at_s = from_s + float(rng.uniform(0.0, EVERY_S - lasts_s - WITHIN_S - JUDGED_S))
        found.append(Shock(BURST, at_s, lasts_s, float(rng.uniform(*SIZES))))
    return tuple(found)


def day(document: str, seed: int, watched_s: float) -> dict[str, Any]:
    """By burst the seconds to come back (None: not before the next), and by class the share that met its limits outside
    the bursts and the half hours after them."""
    scenario = scenario_from_doc(tomllib.loads(document))
    scenario = lasting(scenario, watched_s, seed, bursts(seed, watched_s))
    columns, classes = seen(scenario)
    begins_s, ends_s = scenario.run.warmup_s or 0.0, scenario.run.duration_s or 0.0
    targets, arrival_s = groups(classes, scenario.slo), columns["arrival_s"]
    outside = (arrival_s >= begins_s) & (arrival_s < ends_s)
    spans = [span_s(shock, begins_s) for shock in scenario.shock]
    backs = []
    for (start_s, stop_s), (next_s, _) in zip(spans, [*spans[1:], (ends_s, ends_s)], strict=True):
        backs.append(recovered_s(columns, targets, stop_s, next_s))
        outside &= (arrival_s < start_s) | (arrival_s >= stop_s + scenario.plan.recover_within_s)
    good = columns["good"].astype(bool)
    shares = {}
    for name, target, members in targets:
        mine = outside & np.isin(columns["class_id"], members)
        shares[name] = (float(good[mine].mean()), target)
    return {"requests": int((arrival_s >= begins_s).sum()), "back_s": backs, "shares": shares}


def judged(name: str, kept: Kept, folder: Path, seeds: int, watched_s: float) -> bool:
    asked = MIXES[name]
    found = kept(f"plan {name} {asked.told}", planned, name, folder / name)
    if not found["feasible"]:
        print(f"| {name} {asked.told} | no fleet |", flush=True)
        return False
    of = range(FIRST_SEED, FIRST_SEED + seeds)
    days = [kept(f"day {name} {asked.told} {watched_s} {seed}", day, found["scenario"], seed, watched_s) for seed in of]
    backs = [back_s for one in days for back_s in one["back_s"]]
    within = [back_s for back_s in backs if _in_time(back_s)]
    missed = sum(share < target for one in days for share, target in one["shares"].values())
    worst = min(share for one in days for share, _ in one["shares"].values())
    passes = len(within) == len(backs) and not missed
    cells = (
        f"{name} {asked.told}",
        f"{found['offered']:.2f}",
        f"{found['replicas']} ({found['holds']})",
        ", ".join("never" if s is None else f"{s / 60:.0f}" for s in found["back_s"] or ()),
        f"{np.mean([one['requests'] for one in days]):,.0f}",
        f"{len(within)} of {len(backs)}",
        f"{max(within) / 60:.0f}" if within else "-",
        f"{100 * worst:.1f} %",
        f"{missed}",
        "yes" if passes else "no",
    )
    print(f"| {' | '.join(cells)} |", flush=True)
    for seed, one in zip(of, days, strict=True):
        for shock, back_s in zip(bursts(seed, watched_s), one["back_s"], strict=True):
            if not _in_time(back_s):
                took = "not before the next" if back_s is None else f"after {back_s / 60:.0f} min"
                print(f"  seed {seed}: x {shock.size:.2f} for {shock.duration_s:.0f} s: back {took}", flush=True)
    return passes


def _in_time(back_s: float | None) -> bool:
    return back_s is not None and back_s <= WITHIN_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps plans and days")
    parser.add_argument("--mix", action="append", choices=[*MIXES, *DEMOS], help="only this one; may be repeated")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--hours", type=float, default=24.0, help="a day")
    parser.add_argument("--cost", action="store_true", help="what asking for recovery costs, and no days")
    asked = parser.parse_args()
    if asked.cost:
        kept = Kept(asked.out / "cost.jsonl")
        raise SystemExit(0 if compared(asked.mix or [*MIXES, *DEMOS], kept) else 1)
    if wrong := [one for one in asked.mix or () if one in DEMOS]:
        parser.error(f"--mix {wrong[0]} is one of --cost")
    began = time.process_time()
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    kept = Kept(asked.out / "plans.jsonl")
    passed = [judged(name, kept, asked.out, asked.seeds, asked.hours * 3600) for name in asked.mix or MIXES]
    print(f"\n{time.process_time() - began:.0f} CPU-s now")
    raise SystemExit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
