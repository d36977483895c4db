"""A plan from its scenario to its document: the fleet is searched, then everything that is told of it.

>>> plan("examples/demo.toml", ["hardware.tensor_parallel=1,2"], out="plans/demo")["answer"]
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvcast import api, text
from kvcast.planner import document, words
from kvcast.planner.advise import advice
from kvcast.planner.binds import binding, recovery_binds
from kvcast.planner.candidates import Combination, combinations
from kvcast.planner.cautions import cache_cautions, cautions, growth_cautions, period_cautions
from kvcast.planner.disturbed import failure, model_error, n_plus_1, without_cache
from kvcast.planner.fewer import fewer
from kvcast.planner.fleet import Fleet
from kvcast.planner.growth import growth
from kvcast.planner.launch import Launch
from kvcast.planner.load import Loads, curve, knee
from kvcast.planner.options import Options, check_slo, check_static
from kvcast.planner.progress import (
    ADVICE,
    BINDING,
    CANDIDATE,
    DONE,
    HEADLINE,
    LOAD,
    REACH,
    RECOVERY,
    ROUTERS,
    Progress,
    Tell,
    untold,
)
from kvcast.planner.recovery import Recovery, applies
from kvcast.planner.returning import returning
from kvcast.planner.trials import Trials
from kvcast.planner.why import why
from kvcast.planner.window import in_steady_state, period
from kvcast.store.simulations import Lab
from kvcast.studies.levers import ROUTER, SPLIT
from sim.scenario import Scenario
from workloads.errors import InputError
from workloads.files import replace_file

PLAN, RAN = "plan.json", "ran.json"
REACHED = ("capacity", "rates", "knee_per_s", "binding", "routers", "splits", "advice", "tried", "not_tried")
LATER = ("model_error", "without_cache", "growth", "n_plus_1", "failure")
"""Keys of a document that are null, beside `why`, while only its headline is known."""


def plan(
    scenario: str | Path | Scenario,
    vary: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    out: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    launch: Launch | None = None,
    tell: Tell | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Plan, as the document of docs/plan.md. vary: {"a.b": [v1, v2]} or ["a.b=v1,v2"]. out: a folder to keep all runs
    in.

    launch: what a launch command or a log said (kvcast.planner.launch); overrides win over it. tell: is given what is
    known as it becomes known (kvcast.planner.progress). Options are those of `Options`. Raises InputError for a
    scenario without a target, or one of which nothing can run."""
    from kvcast.studies.sweeps import axes_of, doc_of

    source = "scenario" if isinstance(scenario, Scenario) else str(scenario)
    if launch is not None:
        launch.fit(doc_of(scenario, [*launch.sets, *overrides]), source)
    doc = doc_of(scenario, [*(launch.sets if launch else ()), *overrides])
    asked = Options(**options)
    found = combinations(doc, axes_of(vary), source)
    base = next(one.scenario for one in found if one.scenario is not None)
    if base.pool:
        raise InputError(
            "[[pool]]: a plan looks for replicas that are alike; expected a scenario without, or [plan] pools = true"
            " with kvcast plan (plan_pools in Python), which looks for the cheapest mix of them"
        )
    check_slo(base)
    check_static(one.scenario for one in found)
    if out is None:
        with tempfile.TemporaryDirectory(prefix="kvcast-plan-") as folder:
            return _without_folders(_plan(base, found, Path(folder), asked, launch, tell or untold))
    _claim(Path(out))
    made = _plan(base, found, Path(out), asked, launch, tell or untold)
    kept = {**made, "simulations": {**made["simulations"], "run": None, "reused": None, "cpu_s": None}}
    replace_file(Path(out) / PLAN, (text.to_json(kept) + "\n").encode())
    for path in Path(out).glob("advice-*.toml"):
        path.unlink()
    for place, change in enumerate(made["advice"] or (), 1):
        replace_file(Path(out) / f"advice-{place}.toml", change["scenario"].encode())
    replace_file(Path(out) / RAN, (text.to_json(made["simulations"]) + "\n").encode())
    return made


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
    base: Scenario, found: list[Combination], folder: Path, asked: Options, launch: Launch | None, tell: Tell
) -> dict[str, Any]:
    seeds = [base.seed + i for i in range(asked.seeds)]
    progress = Progress(asked.stages())
    with Trials(Lab(folder), seeds, asked.confidence, asked.jobs, progress) as trials:
        given, found = found, in_steady_state(found, trials)
        fleet = Fleet(
            *(trials, found, asked.most, asked.every),
            lambda i, n: tell({"stage": CANDIDATE, "row": document.row_of(fleet, i, n)}),
        )
        if not fleet.runnable:
            raise fleet.refused()
        fleet.judge_fixed() if asked.fixed else fleet.search(progress.part)
        recovery = _recovery(fleet, asked, progress)
        winner = base if fleet.winner is None else found[fleet.winner].with_replicas(fleet.replicas)
        made = _headline(base, fleet, winner, recovery, given, launch)
        tell(_at(HEADLINE, made, trials))
        made["why"] = why(fleet) if asked.why else None  # simulates some of its candidates to their ends
        made["candidates"] = document.candidate_rows(fleet, recovery.fragile if recovery else ())
        made["rejected_by"] = document.rejected_by(made["candidates"])
        reach = _reach(fleet, winner, asked, progress, recovery, lambda far: tell(_at(REACH, {**made, **far}, trials)))
        made |= reach
        if fleet.winner is None and asked.advice and made["why"]:
            closest = _closest(fleet, made["why"])
            progress.begin(ROUTERS)
            made |= _fewer(fleet, closest, None)
        made |= {
            "model_error": model_error(fleet, asked),
            "without_cache": without_cache(fleet, asked),
            "growth": growth(fleet, winner, asked, progress, reach),
            "n_plus_1": n_plus_1(fleet, asked),
            "failure": failure(fleet, asked),
        }
        made["caution"] += growth_cautions(made["growth"], made["answer"]["replicas"])
        made["caution"] += cache_cautions(made["without_cache"], made["recovery"])
        done = _at(DONE, made, trials)
    tell(done)
    return dict(done["plan"])


def _headline(
    base: Scenario,
    fleet: Fleet,
    winner: Scenario,
    recovery: Recovery | None,
    given: list[Combination],
    launch: Launch | None,
) -> dict[str, Any]:
    """The document with its answer, and null for all that is looked at later."""
    from kvcast.scenario.toml import dumps

    rows = document.candidate_rows(fleet, recovery.fragile if recovery else ())
    over, burst = period(fleet, given), recovery.as_document(None, None) if recovery else None
    answer = document.over_the_period(document.answer_of(fleet, winner), over)
    return {
        "name": base.name,
        "verdict": None,
        "device": device_of(winner),
        "scenario": dumps(winner),
        "slo": document.slo_of(base.slo),
        "confidence": fleet.trials.confidence,
        "method": _method(fleet),
        "seeds": list(fleet.trials.seeds),
        "answer": document.after_a_burst(answer, burst),
        "why": None,
        "candidates": rows,
        "rejected_by": document.rejected_by(rows),
        **dict.fromkeys(REACHED),
        "recovery": burst,
        "period": over,
        **dict.fromkeys(LATER),
        "launched": launch.as_document() if launch else None,
        "caution": [*cautions(fleet, winner), *(launch.cautions() if launch else ()), *period_cautions(over)],
        "notes": [*fleet.notes, *_host(winner)],
        "simulations": None,
    }


def _at(stage: str, made: dict[str, Any], trials: Trials) -> dict[str, Any]:
    return {"stage": stage, "plan": _told(made, trials)}


def _told(made: dict[str, Any], trials: Trials) -> dict[str, Any]:
    """With what it took by now, and in words."""
    simulations = {
        "distinct": trials.distinct,
        "stopped_early": trials.stopped_early,
        "run": trials.simulated,
        "reused": trials.reused,
        "cpu_s": trials.cpu_s,
    }
    made = {**made, "caution": list(made["caution"]), "simulations": simulations}
    return {**made, "verdict": words.verdict(made)}


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


def _host(scenario: Scenario) -> list[str]:
    """What is counted for the engine's own time in every step."""
    try:
        return [api.resolve(scenario).host_line]
    except InputError:
        return []


def device_of(scenario: Scenario) -> str | None:
    """The GPU as its profile names it."""
    try:
        return str(api.resolve(scenario).profile.device["name"])
    except InputError:
        return None


def _recovery(fleet: Fleet, asked: Options, progress: Progress) -> Recovery | None:
    """The answer settled, and whether it comes back after a burst; where it does not, one that does is chosen."""
    if fleet.winner is None or not applies(fleet.combinations[fleet.winner].with_replicas(1), asked):
        if not asked.fixed:
            fleet.settle()
        return None
    progress.begin(RECOVERY)
    recovery = Recovery(fleet)
    recovery.judge_fixed() if asked.fixed else recovery.enlarge()
    return recovery


def _reach(
    fleet: Fleet, winner: Scenario, asked: Options, progress: Progress, recovery: Recovery | None, far: Tell
) -> dict[str, Any]:
    """How far the chosen fleet reaches, what binds it there and what would help. far: is told the first of these."""
    reach: dict[str, Any] = dict.fromkeys(REACHED)
    reach["recovery"] = recovery.as_document(None, None) if recovery else None
    if fleet.winner is None or not (asked.capacity or asked.binding or asked.advice):
        return reach
    progress.begin(LOAD)
    loads = Loads(fleet.trials, winner)
    capacity = loads.capacity()
    if recovery and asked.capacity:
        reach["recovery"] = recovery.as_document(recovery.capacity(loads, capacity), capacity)
    if asked.capacity:
        rows = curve(capacity)
        reach |= {"capacity": document.capacity_of(capacity), "rates": rows, "knee_per_s": knee(rows)}
        far(reach)
    larger = recovery is not None and recovery.held is not None and recovery.held < fleet.replicas
    if asked.binding:
        progress.begin(BINDING)
        reach["binding"] = recovery_binds(capacity, reach["recovery"]) if larger else binding(loads, capacity)
    if asked.advice:
        answer = fleet.answer
        progress.begin(ROUTERS)
        # a given fleet that meets may be larger than it need be without any change: no router saves against it
        given = asked.fixed and answer is not None and answer.meets
        reach |= _fewer(fleet, winner, recovery, routers=not given)
        progress.begin(ADVICE)
        attains = answer is not None and answer.attains
        # a given fleet may be larger than it need be, and then the change is not what makes it smaller
        settled = None if asked.fixed else reach["routers"]
        reach |= (
            returning(fleet.trials, winner, recovery, capacity, reach["routers"] and reach["routers"]["best"])
            if larger and recovery is not None
            else advice(
                *(loads, capacity, fleet.replicas, attains, settled),
                recovery.back if recovery is not None and recovery.recovers else None,
            )
        )
    return reach


def _closest(fleet: Fleet, why: dict[str, Any]) -> Scenario:
    """The fleet that came closest to the target, of a search that found none."""
    return next(one for one in fleet.combinations if one.label == why["label"]).with_replicas(why["replicas"])


def _fewer(fleet: Fleet, one: Scenario, recovery: Recovery | None, routers: bool = True) -> dict[str, Any]:
    """Other routers and splits than those of a fleet; splits only where they are asked for."""
    return {
        "routers": fewer(fleet, one, ROUTER, recovery) if routers and one.plan.routers else None,
        "splits": fewer(fleet, one, SPLIT, recovery) if one.plan.splits else None,
    }


def _without_folders(made: dict[str, Any]) -> dict[str, Any]:
    """The runs are gone with the temporary folder."""
    return {
        **made,
        "answer": {**made["answer"], "run": None},
        "candidates": [{**row, "run": None} for row in made["candidates"]],
    }
