"""From a question to its card: the first bound at once, then a plan of the scenario underneath.

The one idea: the answer is a plan's. What is asked for becomes a scenario and a few widths to choose from; the other
question, how many users some GPUs serve, is a plan of that fleet at the highest load at which it still is an answer.

    >>> ask(use="chat", users=300, price=3.5)["answer"]["gpus"]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvcast.asking import bound, card
from kvcast.asking.bound import Bound
from kvcast.asking.question import Asked, Question
from kvcast.planner import Options, plan
from kvcast.scenario.toml import dumps
from sim.scenario import Scenario
from workloads.files import replace_file

SCENARIO = "scenario.toml"
START = 0.6
"""Of the load that arithmetic gives a fleet, where the search for the users it serves begins."""
STEP = 2.0 ** (-1 / 16)
TRIES = 12
"""Loads at which a fleet of given GPUs is settled, each 4.4 % below the one before."""
CAPACITY_ONLY: dict[str, Any] = {"binding": False, "advice": False, "n_plus_1": False, "model_error": False}
Tell = Callable[[dict[str, Any]], None]


def ask(
    question: Question | None = None,
    *,
    out: str | Path | None = None,
    jobs: int = 1,
    seeds: int = Options.seeds,
    most: int = Options.most,
    recover: bool = True,
    tell: Tell | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """How many GPUs a load needs, or (gpus=) how many users some serve: one JSON-able card (docs/ask.md).

    asked: the fields of `kvcast.asking.question.Question`, in place of a question. out: a folder for the plan and its
    scenario.toml. seeds, jobs, most (replicas), recover: a plan's. tell: is given the first bound before anything is
    simulated. Raises InputError for a question that cannot be asked."""
    asking = Asked(question or Question(**asked))
    found = bound.bounds(asking)
    widths = bound.chosen(asking, found)
    if tell is not None:
        tell(card.first(asking, found, widths))
    options = {"jobs": jobs, "seeds": seeds, "most": most, "recover": recover}
    if out is None:
        with tempfile.TemporaryDirectory(prefix="kvcast-ask-") as folder:
            made = _answered(asking, found, widths, Path(folder), options)
        return {**made, "plan": _without_folders(made["plan"])}
    return _answered(asking, found, widths, Path(out), options)


def scenario_of(question: Question) -> tuple[Scenario, list[str]]:
    """The scenario underneath, at its first width and without having simulated anything, and the values to vary."""
    asking = Asked(question)
    widths = bound.chosen(asking, bound.bounds(asking))
    if question.gpus is None:
        return asking.scenario(asking.rate, widths[0].width), vary(widths)
    return asking.scenario(_start(asking, widths[0]), widths[0].width, question.gpus // widths[0].width), []


def vary(widths: Sequence[Bound]) -> list[str]:
    """The --vary of a plan."""
    found = ",".join(str(one.width) for one in widths)
    return [f"hardware.tensor_parallel={found}"] if len(widths) > 1 else []


def _answered(
    asking: Asked, found: list[Bound], widths: list[Bound], folder: Path, options: dict[str, Any]
) -> dict[str, Any]:
    if asking.question.gpus is None:
        scenario, varied = asking.scenario(asking.rate, widths[0].width), vary(widths)
        made = plan(scenario, varied, folder, growth=None, **options)
        rate = asking.rate
    else:
        rate, scenario, made = _reach(asking, widths, asking.question.gpus, folder, options)
        varied = []
    replace_file(folder / SCENARIO, dumps(scenario).encode())
    return card.card(asking, found, widths, rate, scenario, varied, made, options)


# -- how far some GPUs reach -------------------------------------------------------------------------------------------


def _reach(
    asking: Asked, widths: list[Bound], gpus: int, folder: Path, options: dict[str, Any]
) -> tuple[float, Scenario, dict[str, Any]]:
    """(sessions a second, scenario, plan) of the width that holds most, at the highest load that it meets."""
    quick = {**options, "seeds": 1, "recover": False, "undisturbed": False, **CAPACITY_ONLY}
    held = {one.width: _held(asking, one, gpus, folder, quick) for one in widths}
    best = max(widths, key=lambda one: held[one.width])
    rate = held[best.width] * STEP
    if not rate:
        scenario = asking.scenario(_start(asking, best), best.width, gpus // best.width)
        return _start(asking, best), scenario, _fixed(scenario, folder, options)
    for _ in range(TRIES):
        scenario = asking.scenario(rate, best.width, gpus // best.width)
        made = _fixed(scenario, folder, {**options, **CAPACITY_ONLY, "undisturbed": False})
        if made["answer"]["feasible"]:
            break
        recovers = made["recovery"] and made["recovery"]["recoverable_per_s"]
        rate *= min(STEP, recovers / made["capacity"]["offered_rate_per_s"] if recovers else 1.0)
    return rate, scenario, _fixed(scenario, folder, options)


def _start(asking: Asked, one: Bound) -> float:
    """Sessions of the mix a second that are worth beginning at."""
    gpus = asking.question.gpus or one.width
    return asking.rate_of(START * one.replica_users * max(gpus // one.width, 1))


def _held(asking: Asked, one: Bound, gpus: int, folder: Path, options: dict[str, Any]) -> float:
    """Sessions of the mix a second that the fleet of this width holds by one run; 0 where it meets at no load."""
    start = _start(asking, one)
    made = _fixed(asking.scenario(start, one.width, gpus // one.width), folder, options)
    capacity = made["capacity"] and made["capacity"]["slo_capacity_per_s"]
    return start * capacity / made["capacity"]["offered_rate_per_s"] if capacity else 0.0


def _fixed(scenario: Scenario, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    return plan(scenario, (), folder, fixed=True, growth=None, **options)


def _without_folders(made: dict[str, Any]) -> dict[str, Any]:
    """The runs are gone with the temporary folder."""
    rows = [{**row, "run": None} for row in made["candidates"]]
    return {**made, "answer": {**made["answer"], "run": None}, "candidates": rows}
