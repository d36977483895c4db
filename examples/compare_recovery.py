"""Which eviction policy widens the region from which a fleet comes back after a shock?

For every workload, policy and seed the highest load (in steps of 4.4 %) is looked for from which the fleet, after the
standard burst (twice the load for ten minutes), attains its target again within half an hour; a trace has no sessions
more to come, so its fleet loses its caches instead, at five places of the trace. A seed's arrivals at a load are the
same for every policy, so each policy is compared with LRU seed by seed, with a 95 % interval.

    python examples/compare_recovery.py --out /tmp/recovery                  # the demo's mix: a CPU minute or two
    KVCAST_DATA=/path/to/data python examples/compare_recovery.py --full --out /tmp/recovery    # a quarter of an hour

Runs are kept in --out, so that a killed comparison goes on; recovery.json has every number, recovery.md the table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kvcast import InputError, Scenario, api, load_scenario, text
from kvcast.planner.load import factor_of, with_load
from kvcast.planner.recovery import with_burst
from kvcast.planner.trials import Trials
from kvcast.store.simulations import Lab
from kvcast.studies.intervals import Difference, replications
from sim.scenario import CACHE_LOST, Shock

HERE = Path(__file__).resolve().parent
POLICIES = ("lru", "lfu", "slru", "s3fifo", "gdsf")
SEEDS = 5
FARTHEST = 64
"""Steps of load from the scenario's own (16 times, or a 16th) beyond which nothing is looked for."""


class Setting(NamedTuple):
    file: str
    overrides: tuple[str, ...]
    start: int = 0  #: step of load that is looked at first


def _preset(name: str, ttft_s: float) -> tuple[str, ...]:
    return (
        "cluster.replicas=1",
        f"workload.preset={name}",
        "slo.classes={}",
        f"slo.ttft_s={ttft_s:g}",
        "slo.tpot_s=0.05",
    )


BUNDLED = {"chat and coding agents": Setting("demo.toml", ("cluster.replicas=1",))}
FULL = BUNDLED | {
    "coding agents": Setting("demo.toml", _preset("coding-agent", 5), -24),
    "long-context chat": Setting("demo.toml", _preset("long-context-chat", 10), -30),
    "rag": Setting("demo.toml", _preset("rag", 10), 6),
    "tool and agent API": Setting("demo.toml", _preset("tool-agent-api", 2), -12),
    "Mooncake, caches lost": Setting("mooncake.toml", ("slo.ttft_s=10", "engine.kv_blocks=160000"), -36),
}
WORKLOADS = dict(FULL)


def disturbed(base: Scenario, step: int, seed: int) -> Scenario:
    """The workload at a step of load, with its shock. A trace's is of another place for every seed."""
    at_it = with_load(base, factor_of(step)) if step else base
    if base.workload.trace is None:
        return with_burst(at_it)
    lasts_s = 3540.0 / at_it.workload.rate_scale
    return replace(at_it, shock=(Shock(CACHE_LOST, lasts_s * (0.1 + 0.15 * seed), 60.0),))


def edge(recovers: Callable[[int], bool], start: int) -> int | None:
    """The highest step from which it comes back, by strides around `start` that double, then by halving. It is taken
    to come back from all below. None where it does from none down to -FARTHEST."""
    low, high, stride = start, start + 1, 1
    if recovers(low):
        while recovers(high):
            low, high, stride = high, min(high + 2 * stride, FARTHEST), 2 * stride
            if low == FARTHEST:
                return low
    else:
        low, high = start - 1, start
        while not recovers(low):
            low, high, stride = max(low - 2 * stride, -FARTHEST), low, 2 * stride
            if high == -FARTHEST:
                return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if recovers(middle) else (low, middle)
    return low


def measured(name: str, policies: Sequence[str], seeds: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Rows of one workload, a policy each: the steps by seed, and their difference from the first policy's."""
    setting = WORKLOADS[name]
    base = api.windowed(load_scenario(HERE / setting.file, setting.overrides))
    found: dict[str, list[int | None]] = {}
    with Trials(Lab(folder), list(seeds), 0.95) as trials:
        for policy in policies:
            scenario = replace(base, cache=replace(base.cache, policy=policy))
            found[policy] = []
            for place, seed in enumerate(seeds):

                def recovers(step: int, scenario: Scenario = scenario, seed: int = seed) -> bool:
                    drawn = 0 if scenario.workload.trace is not None else seed
                    back_s = trials.back_s(disturbed(scenario, step, seed), drawn)
                    return back_s is not None and back_s <= scenario.plan.recover_within_s

                near = found[policies[0]][place] if policy != policies[0] else found[policy][-1] if place else None
                found[policy].append(edge(recovers, setting.start if near is None else near))
            text.progress(f"{name}, {policy}: {found[policy]}, {trials.cpu_s:.0f} CPU-s")
    first = found[policies[0]]
    return [
        {
            "workload": name,
            "policy": policy,
            "steps": steps,
            "load": None if None in steps else factor_of(sum(map(float, steps)) / len(steps)),  # type: ignore[arg-type]
            **_told(replications([_minus(a, b) for a, b in zip(steps, first, strict=True)])),
        }
        for policy, steps in found.items()
    ]


def _minus(a: int | None, b: int | None) -> float | None:
    return None if a is None or b is None else float(a - b)


def _told(found: Difference) -> dict[str, Any]:
    return {"difference": found.mean, "half": found.half, "shown": found.shown}


# -- told --------------------------------------------------------------------------------------------------------------


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A policy a line: times the scenario's load, and times the first policy's with the 95 % interval; bold where the
    interval leaves 1 out."""
    names, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("workload", "policy"))
    lines = ["| policy | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for policy in policies:
        of = [next(row for row in rows if (row["workload"], row["policy"]) == (name, policy)) for name in names]
        lines.append(f"| `{policy}` | " + " | ".join(_cell(row, policies[0]) for row in of) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any], first: str) -> str:
    if row["load"] is None:
        return "from no load looked at, on some seed"
    cell = f"{row['load']:.3f}"
    if row["policy"] == first or row["difference"] is None or row["half"] is None:
        return cell
    low, middle, high = (factor_of(row["difference"] + sign * row["half"]) for sign in (-1, 0, 1))
    against = f"x {middle:.2f} ({low:.2f} to {high:.2f})"
    return f"{cell}, {f'**{against}**' if row['shown'] else against}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps the runs, recovery.json and .md")
    parser.add_argument("--full", action="store_true", help="the workloads of docs/results/recovery.md")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="only this one; may be repeated")
    parser.add_argument("--policy", action="append", help="this one, against the first given; may be repeated")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for name in asked.workload or (FULL if asked.full else BUNDLED):
        rows += measured(name, asked.policy or POLICIES, range(asked.seeds), asked.out)
        (asked.out / "recovery.json").write_text(text.to_json(rows) + "\n", encoding="utf-8")
        (asked.out / "recovery.md").write_text(as_markdown(rows) + "\n", encoding="utf-8")
    print(as_markdown(rows))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"compare_recovery: {error}") from None
