"""Is the plan's fleet the fewest that holds its target? python benchmarks/bench_truth.py [--mix N] [--jobs N]

The one idea: brute force. 20 random mixes with sessions (rates, turns, think times, lengths and limits drawn from their
number) are planned as `kvcast plan` does, and every fleet from one replica up is then simulated for 20,000 s in steady
state, with seeds that no plan uses (one, or five to ten where one leaves it open), until one attains the target with
its whole interval. The two fewest replicas should be the same.

    agree       the plan's fleet is the fewest that the long runs show to meet
    near tie    between the two numbers the long runs themselves are "not shown"
    DISAGREE    anything else

Runs are kept in --out: after a kill the same command goes on. Exit code 1 when a mix disagrees.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvcast import api, plan, text  # noqa: E402
from kvcast.config import scenario_from_doc  # noqa: E402
from kvcast.planner.trials import Judged, Trial, Trials  # noqa: E402
from kvcast.scenario.steady import begun  # noqa: E402
from kvcast.store.simulations import Lab  # noqa: E402
from sim.measure.verdict import MEETS, NOT_SHOWN  # noqa: E402
from sim.scenario import Scenario  # noqa: E402
from workloads import mix as workload_mix  # noqa: E402
from workloads.steady import requests_per_s  # noqa: E402

MIXES, LONG_S, LONG_SEED, MOST, TARGET = 20, 20_000.0, 1_000_000, 8, 0.95
AGREE, TIE, DISAGREE = "agree", "near tie", "DISAGREE"
ALONE = {"capacity": False, "binding": False, "advice": False, "growth": None, "n_plus_1": False}
"""Of a plan only the fleet."""


def mix(number: int) -> dict[str, Any]:
    """A random mix of one or two classes with sessions, on L40S: slow enough that a few requests a second need
    several."""
    draw = np.random.default_rng(number)
    classes = [_class(draw, f"class-{i}") for i in range(draw.integers(1, 3))]
    limits = {
        c["name"]: {
            "ttft_s": round(float(draw.uniform(1.5, 4.0)), 1),
            "tpot_s": round(float(draw.uniform(0.06, 0.12)), 3),
        }
        for c in classes
    }
    return {
        "workload": {"class": classes},
        "model": {"name": "llama-3.1-8b"},
        "hardware": {"profile": "l40s-llama-3.1-8b-aic"},
        "cluster": {"router": str(draw.choice(["round-robin", "least-loaded", "session-affinity"]))},
        "slo": {"attainment": TARGET, "classes": limits},
    }


def _class(draw: np.random.Generator, name: str) -> dict[str, Any]:
    def lengths(low: float, high: float) -> dict[str, Any]:
        median = round(float(np.exp(draw.uniform(np.log(low), np.log(high)))))
        return {"kind": "lognormal", "median": median, "p90": 3 * median, "high": 8 * median}

    turns = int(draw.integers(2, 9))
    return {
        "name": name,
        "slo_class": name,
        "rate": round(float(draw.uniform(0.5, 2.0)) / turns, 3),
        "turns": {"kind": "geometric", "mean": turns, "high": 4 * turns},
        "think": {"kind": "exponential", "mean": round(float(draw.uniform(3, 30)), 1)},
        "turn_input": lengths(50, 1000),
        "output": lengths(60, 300),
        "layers": [
            {"name": "system", "scope": "global", "tokens": {"value": int(draw.integers(100, 3000))}},
            {"name": "first", "scope": "dynamic", "tokens": lengths(200, 1500)},
        ],
    }


@dataclass(frozen=True)
class Row:
    """One mix: fewest replicas by plan and by long runs, None when none of MOST meets; the long runs by replicas."""

    number: int
    requests_per_s: float
    planned: int | None
    fewest: int | None
    long: dict[int, Judged]

    @property
    def outcome(self) -> str:
        if self.planned == self.fewest:
            return AGREE
        apart = [
            n
            for n in self.long
            if min(self.planned or MOST, self.fewest or MOST) <= n < max(self.planned or MOST, self.fewest or MOST)
        ]
        return TIE if apart and all(self.long[n].verdict == NOT_SHOWN for n in apart) else DISAGREE


def long_runs(lab: Lab, scenario: Scenario, jobs: int) -> dict[int, Judged]:
    """Fleets from one replica up to the first that is shown to meet, by one long run, or by five to ten where one
    leaves it open.

    Hopeless runs stop early.
    """
    found = {}
    with Trials(lab, [LONG_SEED + i for i in range(5)], 0.95, jobs) as trials:
        for n in range(1, MOST + 1):
            fleet = replace(scenario, cluster=replace(scenario.cluster, replicas=n))
            ramp_s = api.windowed(fleet).run.warmup_s or 0.0
            trial = Trial(begun(fleet, ramp_s, LONG_S))
            found[n] = trials.judge([trial])[0]
            if found[n].verdict == NOT_SHOWN:
                found[n] = trials.settle(trial)
            if found[n].verdict == MEETS:
                break
    return found


def measure(number: int, out: Path, jobs: int) -> Row:
    text.progress(f"mix {number}")
    scenario = scenario_from_doc(mix(number), f"mix {number}")
    answer = plan(scenario, out=out / f"plan-{number}", most=MOST, jobs=jobs, **ALONE)["answer"]
    long = long_runs(Lab(out / f"long-{number}"), scenario, jobs)
    fewest = next((n for n, one in long.items() if one.verdict == MEETS), None)
    return Row(
        number,
        requests_per_s(workload_mix.resolve(scenario.workload)),
        answer["replicas"] if answer["feasible"] else None,
        fewest,
        long,
    )


def table(rows: list[Row]) -> str:
    def attained(row: Row, n: int | None) -> str:
        one = row.long.get(n or 0)
        if one is None:
            return ""
        worst = min(
            (c.attainment for c in one.judged.classes if c.attainment is not None),
            key=lambda found: found.mean,
            default=None,
        )
        return (
            f"below {text.percent(one.at_most)}"
            if worst is None
            else f"{100 * worst.mean:.2f} % ({100 * worst.low:.2f} - {100 * worst.high:.2f}), {one.verdict}"
        )

    cells = [
        [
            str(row.number),
            f"{row.requests_per_s:.2f}/s",
            str(row.planned or "none"),
            str(row.fewest or "none"),
            attained(row, row.fewest),
            attained(row, (row.fewest or MOST) - 1),
            row.outcome,
        ]
        for row in rows
    ]
    return text.table(["mix", "requests", "plan", "20,000 s", "worst class there", "with one less", ""], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", type=int, action="append", help="number of a mix (repeatable); default: 0 to 19")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "truth", help="folder to keep the runs in")
    args = parser.parse_args()
    rows = [measure(number, args.out, args.jobs) for number in args.mix or range(MIXES)]
    print(table(rows))
    sys.exit(any(row.outcome == DISAGREE for row in rows))


if __name__ == "__main__":
    main()
