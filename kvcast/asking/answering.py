"""From a question to its card: the first bound at once, then a plan of the scenario underneath.

The one idea: the answer is a plan's. What is asked for becomes a scenario and a few widths to choose from; the other
question, how many users some GPUs serve, is a plan of that fleet at the highest load at which it still is an answer.

A `tell` is given what is known as it becomes known: JSON-able documents, told apart by their "stage", in this order.

    {"stage": "bound", "first": ...}      a second after the question, before anything is simulated: the card's "first"
    {"stage": "candidate", "row": ...}    a fleet was judged: a row as those of plan.json's "candidates", and "users",
                                          the load that it was judged at; once more where a fleet is settled, with its
                                          interval ("runs" > 1). Any number of them
    {"stage": "headline", "card": ...}    fleet, verdict with its interval and cost are settled: the card, with null for
                                          what is looked at later ("gives_way", "one_down"; no rows in "helps")
    {"stage": "reach", "card": ...}       and "gives_way": how many users the fleet reaches
    {"stage": "done", "card": ...}        all of it, as `ask` returns it

    >>> ask(use="chat", users=300, price=3.5)["answer"]["gpus"]
    >>> ask(use="chat", users=300, tell=lambda document: print(document["stage"]))
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
from kvcast.planner.progress import CANDIDATE, DONE, HEADLINE, REACH, Tell, untold
from kvcast.planner.reaching import held, reached
from kvcast.pools import Jobs
from kvcast.scenario.toml import dumps
from sim.scenario import Scenario
from workloads.files import replace_file

SCENARIO = "scenario.toml"
START = 0.6
"""Of the load that arithmetic gives a fleet, where the search for the users it serves begins."""
STEP = 2.0 ** (-1 / 16)
TRIES = 12
"""Loads at which a fleet of given GPUs is settled, each 4.4 % below the one before."""
ANSWER_ONLY = dict.fromkeys(("why", "capacity", "binding", "advice", "n_plus_1", "model_error", "undisturbed"), False)
BOUND = "bound"
Card = Callable[[dict[str, Any]], dict[str, Any]]
"""From a plan to its card."""


def ask(
    question: Question | None = None,
    *,
    out: str | Path | None = None,
    jobs: Jobs = 1,
    seeds: int = Options.seeds,
    most: int = Options.most,
    recover: bool = True,
    tell: Tell | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """How many GPUs a load needs, or (gpus=) how many users some serve: one JSON-able card (docs/ask.md).

    asked: the fields of `kvcast.asking.question.Question`, in place of a question. out: a folder for the plan and its
    scenario.toml. seeds, jobs, most (replicas), recover: a plan's. tell: is given what is known as it becomes known,
    see above. Raises InputError for a question that cannot be asked."""
    asking = Asked(question or Question(**asked))
    found = bound.bounds(asking)
    widths = bound.chosen(asking, found)
    tell = tell or untold
    tell({"stage": BOUND, "first": card.first(asking, found, widths)})
    options = {"jobs": jobs, "seeds": seeds, "most": most, "recover": recover}
    if out is None:
        with tempfile.TemporaryDirectory(prefix="kvcast-ask-") as folder:
            made = _answered(asking, found, widths, Path(folder), options, tell)
        return {**made, "plan": _without_folders(made["plan"])}
    return _answered(asking, found, widths, Path(out), options, tell)


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
    asking: Asked, found: list[Bound], widths: list[Bound], folder: Path, options: dict[str, Any], tell: Tell
) -> dict[str, Any]:
    if asking.question.gpus is None:
        rate, scenario, varied = asking.rate, asking.scenario(asking.rate, widths[0].width), vary(widths)
    else:
        rate, scenario = _reach(asking, widths, asking.question.gpus, folder, options, tell)
        varied = []

    def carded(made: dict[str, Any]) -> dict[str, Any]:
        return card.card(asking, found, widths, rate, scenario, varied, made, options)

    told = _in_users(tell, asking.users(rate), carded)
    fixed = asking.question.gpus is not None
    made = plan(scenario, varied, folder, fixed=fixed, growth=None, tell=told, **options)
    replace_file(folder / SCENARIO, dumps(scenario).encode())
    done = carded(made)
    tell({"stage": DONE, "card": done})
    return done


def _in_users(tell: Tell, users: float, carded: Card) -> Tell:
    """What a plan tells, as a question is told it. The last is told once the plan is kept."""

    candidates = _candidates(tell, users)

    def told(document: dict[str, Any]) -> None:
        candidates(document)
        if document["stage"] in (HEADLINE, REACH):
            tell({"stage": document["stage"], "card": carded(document["plan"])})

    return told


# -- how far some GPUs reach -------------------------------------------------------------------------------------------


def _reach(
    asking: Asked, widths: list[Bound], gpus: int, folder: Path, options: dict[str, Any], tell: Tell
) -> tuple[float, Scenario]:
    """(sessions a second, scenario) of the width that holds most, at the highest load that it meets."""
    asked = Options(fixed=True, **options)

    def fleet(width: int, rate: float) -> Scenario:
        return asking.scenario(rate, width, gpus // width)

    width, rate = widths[0].width, 0.0
    for one in widths:
        start = rate or _start(asking, one)
        if more := held(fleet(one.width, start), folder, asked, at_least=rate > 0):
            width, rate = one.width, start * more
    if not rate:
        return _start(asking, widths[0]), fleet(width, _start(asking, widths[0]))
    rate *= reached(fleet(width, rate), folder, asked)
    told = {**options, **ANSWER_ONLY, "tell": untold}
    for _ in range(TRIES):
        told["tell"] = _candidates(tell, asking.users(rate))
        if plan(fleet(width, rate), (), folder, fixed=True, growth=None, **told)["answer"]["feasible"]:
            break
        rate *= STEP
    return rate, fleet(width, rate)


def _candidates(tell: Tell, users: float) -> Tell:
    """The candidates of a plan alone, with the users they were judged at."""
    return lambda document: tell({**document, "users": users}) if document["stage"] == CANDIDATE else None


def _start(asking: Asked, one: Bound) -> float:
    """Sessions of the mix a second that are worth beginning at."""
    gpus = asking.question.gpus or one.width
    return asking.rate_of(START * one.replica_users * max(gpus // one.width, 1))


def _without_folders(made: dict[str, Any]) -> dict[str, Any]:
    """The runs are gone with the temporary folder."""
    rows = [{**row, "run": None} for row in made["candidates"]]
    return {**made, "answer": {**made["answer"], "run": None}, "candidates": rows}
