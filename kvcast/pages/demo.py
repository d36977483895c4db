"""What the first page shows: the bundled example's run and plan, computed when the server starts.

    >>> prepare(Runner(Path("runs/dashboard")))
"""
from __future__ import annotations

from kvcast.config import load_scenario
from kvcast.pages.runner import ROOT, Runner
from kvcast.toml import dumps
from sim.scenario import Scenario


def scenario() -> Scenario:
    """The bundled example."""
    return load_scenario(ROOT / "examples" / "demo.toml")


def prepare(runner: Runner) -> None:
    """Run the example, then its plan; what is there already is not computed again."""
    from kvcast.pages import plan

    toml = dumps(scenario())
    runner.submit(toml).wait()
    runner.submit(plan.start_of(toml, {}), *plan.command({}))
