"""kvcast: what an LLM serving fleet would do, simulated from measured kernels.

    >>> from kvcast import Scenario, load_scenario, simulate
    >>> report = simulate(load_scenario("examples/demo.toml"))

The names are looked up on first use, so that `import kvcast` costs nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Scenario": "sim.scenario",
    "WorkloadConfig": "workloads.config",
    "InputError": "workloads.errors",
    "Router": "sim.fleet.router",
    "load_scenario": "kvcast.config",
    "simulate": "kvcast.api",
    "resolve": "kvcast.api",
    "sweep": "kvcast.studies.sweeps",
    "plan": "kvcast.planner",
    "load_run": "kvcast.store.runs",
    "save_run": "kvcast.store.runs",
}
__all__ = [
    "InputError",
    "Router",
    "Scenario",
    "WorkloadConfig",
    "load_run",
    "load_scenario",
    "plan",
    "resolve",
    "save_run",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"kvcast has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
