"""What the first page shows: the bundled example's run and plan, computed when the server starts, and once for all.

>>> prepare(Runner(Path("runs/dashboard")))
"""

from __future__ import annotations

from kvcast.config import load_scenario
from kvcast.jobs.runner import ROOT, Job, Runner
from kvcast.scenario.toml import dumps
from sim.scenario import Scenario


def scenario() -> Scenario:
    """The bundled example."""
    return load_scenario(ROOT / "examples" / "demo.toml")


def prepare(runner: Runner) -> Job:
    """The example's run: finished by the time the server answers."""
    job = runner.submit(dumps(scenario()))
    job.wait()
    return job


def prepare_plan(runner: Runner) -> Job:
    """The example's plan, in the background: it takes a minute, and the first page shows how far it is."""
    from kvcast.pages import plan_question

    return runner.submit(plan_question.start_of(dumps(scenario()), {}), *plan_question.command({}))
