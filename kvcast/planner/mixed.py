"""The cheapest mix of a scenario's [[pool]] tables that meets its target.

The one idea: mixes are tried from the cheapest on, one run each on the same requests, and the first that attains is
settled over independent runs; where those do not show that it meets, the next one is tried. Nothing is left out
between: of replicas that are not alike more may attain less, since a router that does not know their speed sends
requests to the slow ones too.

    >>> plan_pools(load_scenario("examples/mixed_fleet.toml"))["answer"]["replicas"]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from kvcast import api, text
from kvcast.planner.options import check_slo
from kvcast.pools import Jobs
from kvcast.scenario.mixed import asked
from kvcast.scenario.steady import clock_note, worst_hour
from kvcast.studies import compare
from kvcast.studies.replications import Result, Variant
from sim.measure.verdict import MEETS
from sim.scenario import Scenario
from workloads import mix as mixes
from workloads.errors import InputError
from workloads.steady import period_s

MOST_MIXES = 200
NOT_ASKED = "not asked of mixed pools: how far they reach, what binds, advice, growth, recovery, one replica down"
Mix = tuple[int, ...]
"""Replicas of each pool."""


def plan_pools(scenario: Scenario, seeds: int = 5, jobs: Jobs = 1) -> dict[str, Any]:
    """Every mix that was tried, the cheapest first, and the one that meets over `seeds` runs, as one document.

    A pool's `replicas` are the most of it; a mix that follows the clock is asked in its worst hour, unless it is given
    another. Raises InputError without a target, a price, or with too many mixes."""
    check_slo(scenario)
    search = _Search(scenario)
    answer = None
    for mix in search.mixes():
        if not search.attains(mix):
            continue
        found = search.settle(mix, seeds, jobs)
        if found is not None and found["word"] == MEETS:
            answer = {**search.row(mix), "verdict": found}
            break
    ranked = sorted(search.tried, key=lambda mix: (search.usd(mix), mix))
    return {
        "name": scenario.name,
        "target": scenario.slo.attainment,
        "seeds": seeds,
        "worst_hour_from_s": search.from_s,
        "watched": search.watched,
        "simulations": len(search.tried) + len(search.settled) * seeds,
        "tried": [search.row(mix) for mix in ranked],
        "answer": {"feasible": answer is not None, **(answer or {"replicas": None, "usd_per_hour": None})},
    }


class _Search:
    """One run of each mix that is asked for, all on the same requests."""

    def __init__(self, scenario: Scenario) -> None:
        resolved = api.resolve(scenario)
        self._pools = resolved.scenario.pool
        gpus, unpriced = resolved.scenario.gpus_of_pools, [p.name for p in self._pools if p.gpu_hour_usd is None]
        if unpriced:
            raise InputError(
                f"[pool.{unpriced[0]}] gpu_hour_usd is missing: expected a price, mixes of pools are ranked by cost"
            )
        self._each_usd = [n * (p.gpu_hour_usd or 0.0) for n, p in zip(gpus, self._pools, strict=True)]
        mixes = math.prod(pool.replicas + 1 for pool in self._pools) - 1
        if mixes > MOST_MIXES:
            raise InputError(
                f"[plan] pools = true: {mixes:,} mixes of the [[pool]] tables, expected at most {MOST_MIXES}; fewer"
                " pools, or fewer replicas of them"
            )
        whole = api.windowed(scenario)
        hour = worst_hour(scenario, whole.run.warmup_s or 0.0)
        self._scenario = whole if hour is None else api.windowed(hour)
        self.watched = "" if hour is not None else clock_note(resolved.scenario)
        self.from_s = None if hour is None else _from_s(self._scenario)
        self._workload = api.load_workload(self._scenario.workload, scenario.seed)
        self.tried: dict[Mix, Result] = {}
        self.settled: dict[Mix, str] = {}  # what several runs say of it

    def usd(self, mix: Mix) -> float:
        """Of an hour."""
        return sum(n * each for n, each in zip(mix, self._each_usd, strict=True))

    def mixes(self) -> list[Mix]:
        """All that leave no class without a pool, the cheapest first."""
        every = product(*(range(pool.replicas + 1) for pool in self._pools))
        return sorted((mix for mix in every if any(mix) and self._serves(mix)), key=self.usd)

    def attains(self, mix: Mix) -> bool:
        """Simulate it once (mutates): whether it attains."""
        text.progress(f"simulating {self.words(mix)}")
        scenario = self._of(mix)
        result = api.run(api.prepare(scenario, self._workload))
        self.tried[mix] = Result(self._variant(mix, scenario), result.report.summary)
        return _attains(self.tried[mix])

    def _serves(self, mix: Mix) -> bool:
        """Whether every class has a pool to go to."""
        kept = [pool.name for pool, n in zip(self._pools, mix, strict=True) if n]
        names = [pool.name for pool in self._pools]
        rows = asked(self._scenario, self._workload.class_names)
        return all(any(ok and name in kept for ok, name in zip(row, names, strict=True)) for row in rows)

    def _of(self, mix: Mix) -> Scenario:
        pools = tuple(replace(p, replicas=n) for p, n in zip(self._scenario.pool, mix, strict=True) if n)
        return replace(self._scenario, pool=pools, cluster=replace(self._scenario.cluster, replicas=1))

    def settle(self, mix: Mix, seeds: int, jobs: Jobs) -> dict[str, Any] | None:
        """The verdict over independent runs (mutates)."""
        scenario = self._of(mix)
        variants = [self._variant(mix, replace(scenario, seed=scenario.seed + i)) for i in range(seeds)]
        text.progress(f"settling {self.words(mix)} over {seeds} runs")
        found = compare.judged(compare.simulate_all(variants, jobs))
        self.settled[mix] = text.UNKNOWN if found is None else found["word"]
        return found

    def _variant(self, mix: Mix, scenario: Scenario) -> Variant:
        return Variant((self.words(mix),), ("pools",), scenario)

    def words(self, mix: Mix) -> str:
        return " + ".join(f"{n} {pool.name}" for n, pool in zip(mix, self._pools, strict=True) if n)

    def row(self, mix: Mix) -> dict[str, Any]:
        """Of the document: what it is, costs and attained in its one run."""
        s = self.tried[mix].summary
        return {
            "replicas": dict(zip((pool.name for pool in self._pools), mix, strict=True)),
            "words": self.words(mix),
            "usd_per_hour": self.usd(mix),
            "attainment": s["attainment"],
            "stable": s["stable"],
            "attains": _attains(self.tried[mix]),
            "settled": self.settled.get(mix),
            "mean_ttft_ms": s["mean_ttft_ms"],
            "mean_tpot_ms": s["mean_tpot_ms"],
        }


def _from_s(hour: Scenario) -> float:
    """When a window begins on the clock that its mix follows."""
    config = mixes.resolve(hour.workload)
    return (config.start_s + (hour.run.warmup_s or 0.0)) % period_s(config)


def _attains(one: Result) -> bool:
    """Whether every class's share of one run reaches its target, sure or not."""
    judged = one.summary["verdict"]
    rows: Sequence[Any] = judged["classes"] if judged else ()
    return (
        bool(rows)
        and one.summary["stable"] is not False
        and all(row["attainment"] is not None and row["attainment"]["mean"] >= row["target"] for row in rows)
    )


def in_words(made: Mapping[str, Any]) -> str:
    """The answer in a sentence."""
    answer = made["answer"]
    if not answer["feasible"]:
        return "no mix of these pools is shown to meet the target; expected more replicas in [[pool]], or other pools"
    return (
        f"{answer['words']}: {text.usd(answer['usd_per_hour'])} an hour, the cheapest mix that meets the target"
        f" over {made['seeds']} runs ({text.percent(made['target'])} of every class within its limits)"
    )


def table_of(made: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(header, a row for every mix that was tried)."""
    rows = [
        [
            row["words"],
            text.usd(row["usd_per_hour"]),
            "yes" if row["attains"] else "no",
            row["settled"] or "",
            text.percent(row["attainment"]),
            text.milliseconds(row["mean_ttft_ms"]),
            text.milliseconds(row["mean_tpot_ms"]),
        ]
        for row in made["tried"]
    ]
    over = f"over {made['seeds']}"
    return ["mix", "an hour", "attains, one run", over, "attainment", "TTFT mean", "TPOT mean"], rows


def beside(made: Mapping[str, Any]) -> list[str]:
    """What the answer is of where the mix follows the clock, and what makes it doubtful."""
    begins_s, watched = made["worst_hour_from_s"], made["watched"]
    told = (
        [] if begins_s is None else [f"the mix follows the clock: for its worst hour, from {text.seconds(begins_s)} on"]
    )
    return [*told, *([f"caution: {watched}"] if watched else [])]


def as_text(made: dict[str, Any]) -> str:
    """For people: the answer, and every mix that was tried."""
    header, rows = table_of(made)
    said = "\n".join([in_words(made), *beside(made)])
    return f"{said}\n\n{text.table(header, rows)}\n\n{made['simulations']} simulations; {NOT_ASKED}"
