"""The fleet a workload needs: fewest GPUs that meet the SLOs, how far they reach, what binds them, what to change.

The one idea: nothing is computed from averages; every fleet, load and change that the plan speaks of was simulated on
the same requests and is a folder under DIR/runs, so the same command after a kill goes on, and a number can be looked
into.

    >>> from kvcast import plan
    >>> plan("examples/demo.toml", ["hardware.tensor_parallel=1,2"], out="plans/demo")["answer"]
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvcast import api, text
from kvcast.planner import document, words
from kvcast.planner.candidates import Combination, combinations, fleet_of
from kvcast.planner.cautions import cache_cautions, cautions, growth_cautions, period_cautions
from kvcast.planner.fleet import Fleet
from kvcast.planner.launch import Launch
from kvcast.planner.load import Loads, curve, knee, shortened, with_load
from kvcast.planner.progress import ADVICE, BINDING, FLEET, GROWTH, LOAD, Progress
from kvcast.planner.trials import Trial, Trials
from kvcast.planner.whatif import advice, binding
from kvcast.planner.why import why
from kvcast.scenario.steady import clock_note, whole_period, worst_hour
from kvcast.store.simulations import Lab, replace_file, steps_times
from kvcast.studies.search import Found, fewest
from kvcast.studies.search import together as together_search
from kvcast.studies.windows import together
from kvcast.studies.work import guess_replicas
from kvcast.trust.step_error import step_error
from sim.scenario import Scenario
from workloads import mix
from workloads.errors import InputError
from workloads.steady import period_s, requests_per_s

PLAN, RAN = "plan.json", "ran.json"
MOST = 64
AFFINITY = "session-affinity"
GROWTH_FACTORS = (2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""Loads of the growth curve below the one that is asked for."""


@dataclass(frozen=True)
class Options:
    """How to plan. fixed: the scenario's own fleet, no search. every: fewest replicas also of what can only be
    dearer."""

    seeds: int = 5
    confidence: float = 0.95
    most: int = MOST
    jobs: int = 1
    fixed: bool = False
    every: bool = False
    growth: float | None = 3.0
    capacity: bool = True
    binding: bool = True
    advice: bool = True
    n_plus_1: bool = True
    model_error: bool = True
    undisturbed: bool = True

    def stages(self) -> list[str]:
        """What is simulated, in this order."""
        reach = self.capacity or self.binding or self.advice
        return [
            FLEET,
            *([LOAD] if reach else []),
            *([BINDING] if self.binding else []),
            *([ADVICE] if self.advice else []),
            *([GROWTH] if self.growth else []),
        ]


def plan(
    scenario: str | Path | Scenario,
    vary: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    out: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    launch: Launch | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Plan, as the document of docs/plan.md. vary: {"a.b": [v1, v2]} or ["a.b=v1,v2"]. out: a folder to keep all runs
    in.

    launch: what a launch command or a log said (kvcast.planner.launch); overrides win over it. Options are those of
    `Options`. Raises InputError for a scenario without a target, or one of which nothing can run."""
    from kvcast.studies.sweeps import axes_of, doc_of

    source = "scenario" if isinstance(scenario, Scenario) else str(scenario)
    if launch is not None:
        launch.fit(doc_of(scenario, [*launch.sets, *overrides]), source)
    doc = doc_of(scenario, [*(launch.sets if launch else ()), *overrides])
    asked = Options(**options)
    found = combinations(doc, axes_of(vary), source)
    base = next(one.scenario for one in found if one.scenario is not None)
    check_slo(base)
    if out is None:
        with tempfile.TemporaryDirectory(prefix="kvcast-plan-") as folder:
            return _without_folders(_plan(base, found, Path(folder), asked, launch))
    _claim(Path(out))
    made = _plan(base, found, Path(out), asked, launch)
    kept = {**made, "simulations": {**made["simulations"], "run": None, "reused": None, "cpu_s": None}}
    replace_file(Path(out) / PLAN, (text.to_json(kept) + "\n").encode())
    for path in Path(out).glob("advice-*.toml"):
        path.unlink()
    for place, change in enumerate(made["advice"] or (), 1):
        replace_file(Path(out) / f"advice-{place}.toml", change["scenario"].encode())
    replace_file(Path(out) / RAN, (text.to_json(made["simulations"]) + "\n").encode())
    return made


def check_slo(scenario: Scenario) -> None:
    """There is no default SLO: a plan for limits that nobody chose is an answer to nobody's question."""
    slo = scenario.slo
    if slo.attainment is None:
        raise InputError("[slo] attainment is missing: a plan needs a target, such as --set slo.attainment=0.95")
    limits: list[Any] = [slo, *slo.classes.values()]
    if all(value is None for one in limits for value in (one.ttft_s, one.tpot_s, one.e2e_s)):
        raise InputError(
            "[slo] has an attainment target and no limit to attain: a plan needs one, such as --set slo.ttft_s=1"
        )


def _claim(folder: Path) -> None:
    if folder.exists() and (
        not folder.is_dir()
        or (any(folder.iterdir()) and not any((folder / name).exists() for name in (PLAN, "runs", "workload")))
    ):
        raise InputError(
            f"--out {folder}: holds something else than a plan; expected a new folder or an earlier plan to go on with"
        )
    folder.mkdir(parents=True, exist_ok=True)


def _plan(
    base: Scenario, found: list[Combination], folder: Path, asked: Options, launch: Launch | None
) -> dict[str, Any]:
    from kvcast.scenario.toml import dumps

    seeds = [base.seed + i for i in range(asked.seeds)]
    progress = Progress(asked.stages())
    with Trials(Lab(folder), seeds, asked.confidence, asked.jobs, progress) as trials:
        given, found = found, in_steady_state(found, trials)
        fleet = Fleet(trials, found, asked.most, asked.every)
        if not fleet.runnable:
            raise InputError(fleet.reasons[0])
        fleet.judge_fixed() if asked.fixed else fleet.search(progress.part)
        winner = base if fleet.winner is None else found[fleet.winner].with_replicas(fleet.replicas)
        reasons = why(fleet)  # simulates some of its candidates to their ends
        rows = document.candidate_rows(fleet)
        reach = _reach(fleet, winner, asked, progress)
        made: dict[str, Any] = {
            "name": base.name,
            "verdict": None,
            "device": device_of(winner),
            "scenario": dumps(winner),
            "slo": document.slo_of(base.slo),
            "confidence": asked.confidence,
            "method": _method(fleet),
            "seeds": seeds,
            "answer": document.answer_of(fleet, winner),
            "why": reasons,
            "candidates": rows,
            "rejected_by": document.rejected_by(rows),
            **reach,
            "period": _period(fleet, given),
            "model_error": _model_error(fleet, asked),
            "without_cache": _without_cache(fleet, asked),
            "growth": _growth(fleet, winner, asked, progress, reach),
            "n_plus_1": _n_plus_1(fleet, asked),
            "launched": launch.as_document() if launch else None,
            "caution": cautions(fleet, winner) + (launch.cautions() if launch else []),
            "notes": list(fleet.notes),
        }
        made["caution"] += (
            growth_cautions(made["growth"], made["answer"]["replicas"])
            + period_cautions(made["period"])
            + cache_cautions(made["without_cache"])
        )
        made["answer"] = document.over_the_period(made["answer"], made["period"])
        made["simulations"] = {
            "distinct": trials.distinct,
            "stopped_early": trials.stopped_early,
            "run": trials.simulated,
            "reused": trials.reused,
            "cpu_s": trials.cpu_s,
        }
    return {**made, "verdict": words.verdict(made)}


def in_steady_state(found: Sequence[Combination], trials: Trials) -> list[Combination]:
    """The combinations with one warm-up and window, long enough for about as many replicas as they will need; the worst
    hour of a mix that follows the clock."""
    can = [i for i, one in enumerate(found) if one.scenario is not None and _resolves(one.scenario)]
    sizes = dict.fromkeys(can, 1)
    cut: list[Scenario] = []
    for _ in range(2):  # a larger fleet's caches take longer to fill
        asked = [found[i].with_replicas(sizes[i]) for i in can]
        cut = [
            worst_hour(one, whole.run.warmup_s or 0.0) or whole
            for one, whole in zip(asked, together(asked), strict=True)
        ]
        sizes = {i: guess_replicas(one, trials.workload(one)) for i, one in zip(can, cut, strict=True)}
    windowed = dict(zip(can, cut, strict=True))
    return [
        one if i not in windowed else replace(one, scenario=_windowed_as(one.scenario, windowed[i]))
        for i, one in enumerate(found)
    ]


def _period(fleet: Fleet, given: Sequence[Combination]) -> dict[str, Any] | None:
    """The answer over the whole period of a mix that follows the clock, by one run; it was found for the worst hour."""
    if fleet.winner is None or fleet.answer is None:
        return None
    asked, hour = given[fleet.winner].with_replicas(fleet.replicas), fleet.answer.trial.scenario
    if worst_hour(asked, 0.0) is None:
        return None
    ramp_s = hour.run.warmup_s or 0.0
    one = fleet.trials.judge([Trial(whole_period(asked, ramp_s), full=True)])[0]
    config = mix.resolve(hour.workload)
    return {
        "period_s": period_s(config),
        "worst_from_s": (config.start_s + ramp_s) % period_s(config),
        "worst_offered_per_s": fleet.answer.offered_per_s,
        "offered_per_s": requests_per_s(config),
        "asked": clock_note(api.windowed(asked)) or None,
        **document.sketch_of(one),
    }


def _windowed_as(scenario: Scenario | None, cut: Scenario) -> Scenario:
    assert scenario is not None
    return replace(scenario, workload=cut.workload, run=cut.run)


def _resolves(scenario: Scenario) -> bool:
    try:
        api.resolve(scenario)
    except InputError:
        return False
    return True


def _method(fleet: Fleet) -> str:
    """How the answer was judged."""
    one = fleet.answer
    if one is None:
        return "one run of each"
    if len(one.runs) > 1:
        return (
            f"{len(one.runs)} independent runs, the wider of their spread and of 20 batches or fewer, never narrower"
            " than Wilson's interval"
        )
    if one.trial.scenario.workload.trace is not None and not fleet.trials.drawn(one.trial.scenario):
        return (
            "one run: nothing is drawn, so other seeds are the same run; its batches in order of arrival, never"
            " narrower than Wilson's interval"
        )
    return "one run, a sketch: its batches in order of arrival, never narrower than Wilson's interval"


def scenario_of(toml: str) -> Scenario:
    """A scenario that a plan's document holds."""
    import tomllib

    from kvcast.config import scenario_from_doc

    return scenario_from_doc(tomllib.loads(toml), "the plan's scenario")


def device_of(scenario: Scenario) -> str | None:
    """The GPU as its profile names it."""
    try:
        return str(api.resolve(scenario).profile.device["name"])
    except InputError:
        return None


def _reach(fleet: Fleet, winner: Scenario, asked: Options, progress: Progress) -> dict[str, Any]:
    """How far the chosen fleet reaches, what binds it there and what would help."""
    reach: dict[str, Any] = dict.fromkeys(
        ("capacity", "rates", "knee_per_s", "binding", "advice", "tried", "not_tried")
    )
    if fleet.winner is None or not (asked.capacity or asked.binding or asked.advice):
        return reach
    progress.begin(LOAD)
    loads = Loads(fleet.trials, winner)
    capacity = loads.capacity()
    if asked.capacity:
        rows = curve(capacity)
        reach |= {"capacity": document.capacity_of(capacity), "rates": rows, "knee_per_s": knee(rows)}
    if asked.binding:
        progress.begin(BINDING)
        reach["binding"] = binding(loads, capacity)
    if asked.advice:
        progress.begin(ADVICE)
        answer = fleet.answer
        reach |= advice(loads, capacity, fleet.replicas, answer is not None and answer.attains)
    return reach


def _without_cache(fleet: Fleet, asked: Options) -> dict[str, Any] | None:
    """The answer's load with the prefix cache off, by one run. A fleet that cannot hold it has a second, bad state:
    once a burst or a restart has emptied its caches, it may stay there."""
    if (
        not asked.undisturbed
        or fleet.answer is None
        or not fleet.answer.attains
        or not fleet.answer.trial.scenario.cache.enabled
    ):
        return None
    scenario = fleet.answer.trial.scenario
    one = fleet.trials.judge([Trial(replace(scenario, cache=replace(scenario.cache, enabled=False, tiers=())))])[0]
    return document.sketch_of(one)


def _model_error(fleet: Fleet, asked: Options) -> dict[str, Any] | None:
    """What the answer would be were all steps as much slower, or faster, as the profile may be off: the first run
    again."""
    if not asked.model_error or fleet.winner is None or fleet.answer is None:
        return None
    scenario = fleet.answer.trial.scenario
    error = step_error(api.resolve(scenario).profile)
    slower, faster = fleet.trials.judge(
        [Trial(scenario, steps_times(1 + sign * error.share), full=True) for sign in (1, -1)]
    )
    return {
        "share": error.share,
        "source": error.source,
        "slower": document.sketch_of(slower),
        "faster": document.sketch_of(faster),
    }


def _growth(
    fleet: Fleet, winner: Scenario, asked: Options, progress: Progress, reach: dict[str, Any]
) -> list[dict[str, Any]] | None:
    """The fewest replicas of the chosen combination at larger loads, as it is and with the best advice that keeps its
    GPUs a replica."""
    if asked.growth is None or fleet.winner is None or asked.fixed:
        return None
    progress.begin(GROWTH)
    change, advised = _advised(fleet, winner, reach)
    sides = {"": winner, **({} if advised is None else {"advised": advised})}
    factors = [factor for factor in GROWTH_FACTORS if 1 < factor < asked.growth] + [asked.growth]
    most = math.ceil(asked.most * asked.growth)
    found: dict[tuple[str, float], Found] = {}

    def judge(questions: dict[tuple[str, float], list[int]]) -> dict[tuple[str, float], list[bool]]:
        places = [(side, factor, n) for (side, factor), ns in questions.items() for n in ns]
        judged = iter(
            fleet.trials.judge(
                [Trial(fleet_of(shortened(with_load(sides[side], factor)), n)) for side, factor, n in places]
            )
        )
        return {key: [next(judged).attains for _ in ns] for key, ns in questions.items()}

    def guess(side: str, place: int) -> int:
        """From the load before, else from what the chosen fleet holds."""
        factor, before = factors[place], found.get((side, factors[place - 1]))
        return (
            math.ceil(before.fewest * factor / factors[place - 1] - 1e-9)
            if place and before and before.fewest
            else _held(fleet, reach, side, factor)
        )

    for place, factor in enumerate(factors):
        found |= together_search({(side, factor): fewest(guess(side, place), most) for side in sides}, judge)

    def size(side: str, factor: float) -> dict[str, Any]:
        n = found[side, factor].fewest
        return (
            dict.fromkeys(("replicas", "gpus", "usd_per_hour"))
            if n is None or fleet.winner is None
            else document.size_of(fleet.combinations[fleet.winner], n)
        )

    return [
        {
            "factor": factor,
            **size("", factor),
            "advised": {"change": change, **size("advised", factor)} if "advised" in sides else None,
        }
        for factor in factors
    ]


def _advised(fleet: Fleet, winner: Scenario, reach: dict[str, Any]) -> tuple[str, Scenario | None]:
    """What a larger fleet would do differently: the router where one replica had nothing to route, else the best advice
    that keeps the GPUs of a replica."""
    if (
        fleet.replicas == 1
        and winner.cluster.router != AFFINITY
        and fleet.trials.workload(winner).session_id is not None
    ):
        return f"router {AFFINITY} instead of {winner.cluster.router}", replace(
            winner, cluster=replace(winner.cluster, router=AFFINITY)
        )
    advised = scenario_of(reach["advice"][0]["scenario"]) if reach["advice"] else None
    if advised is None or advised.hardware.tensor_parallel != winner.hardware.tensor_parallel:
        return "", None
    return str(reach["advice"][0]["change"]), advised


def _held(fleet: Fleet, reach: dict[str, Any], side: str, factor: float) -> int:
    """Replicas at a larger load, were each to hold what the chosen fleet's do."""
    capacity, held = reach["capacity"], None
    if capacity is not None:
        held = (
            reach["advice"][0]["after"]["capacity"]
            if side and fleet.replicas > 1 and reach["advice"]
            else capacity["slo_capacity_per_s"]
        )
    each = 1.0 if not held or capacity is None else held / capacity["offered_rate_per_s"]
    return math.ceil(fleet.replicas * factor / max(each, 1e-9) - 1e-9)


def _n_plus_1(fleet: Fleet, asked: Options) -> dict[str, Any] | None:
    """The fleet with one replica down, in the steady state: what a failure itself costs is not simulated."""
    if not asked.n_plus_1 or fleet.winner is None or fleet.answer is None:
        return None
    n = fleet.replicas
    settled = fleet.settled.get((fleet.winner, n - 1))
    down = settled
    if n > 1 and (down is None or down.attainment is None):
        down = fleet.judge(fleet.winner, [n - 1], full=True)[0]
    enough = down is not None and (down.attains if settled is None else settled.meets)
    survives = n if enough else n + 1 if fleet.answer.meets else None
    return {
        "replicas": survives,
        "attainment_one_down": down.attainment.mean if down and down.attainment else None,
        "enough": enough,
    }


def _without_folders(made: dict[str, Any]) -> dict[str, Any]:
    """The runs are gone with the temporary folder."""
    return {
        **made,
        "answer": {**made["answer"], "run": None},
        "candidates": [{**row, "run": None} for row in made["candidates"]],
    }
