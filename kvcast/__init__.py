"""kvcast: what an LLM serving fleet would do, simulated from measured kernels.

    >>> from kvcast import Scenario, load_scenario, simulate
    >>> report = simulate(load_scenario("examples/demo.toml"))

The names are looked up on first use, so that `import kvcast` costs nothing. A type checker reads them below.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvcast import compiled

__version__ = "0.1.0"
core = compiled.use()  #: what simulates, pure Python or what `make fast` has compiled

_PUBLIC = {
    # a scenario, and what it comes to
    "Scenario": "sim.scenario",
    "WorkloadConfig": "workloads.config",
    "InputError": "workloads.errors",
    "Report": "sim.measure.report",
    "load_scenario": "kvcast.config",
    "scenario_from_doc": "kvcast.config",
    "simulate": "kvcast.api",
    "resolve": "kvcast.api",
    # questions that take many runs
    "ask": "kvcast.asking",
    "compare": "kvcast.studies.side_by_side",
    "sweep": "kvcast.studies.sweeps",
    "plan": "kvcast.planner",
    "together": "kvcast.studies.windows",
    "workers": "kvcast.pools",
    # a run's folder
    "load_run": "kvcast.store.runs",
    "save_run": "kvcast.store.runs",
    # the parts, without a scenario
    "PrefixTree": "workloads.columns",
    "Workload": "workloads.columns",
    "from_pieces": "workloads.prefix_tree",
    "StepTime": "calibrate.step",
    "load_step_time": "calibrate.latency",
    "EngineParams": "sim.scenario",
    "run": "sim.simulate",
    "build_report": "sim.measure.report",
    # a cache without time, and the most it could hit
    "replay": "sim.kvcache.replay",
    "leaf_first": "sim.kvcache.leaf_first",
    "hit_rate_curve": "sim.kvcache.replay",
    "lru_curve": "sim.optimum.lru_curve",
    "order_optimum": "sim.optimum.schedule",
    # a policy or a router of your own
    "Policy": "sim.kvcache.policies",
    "Run": "sim.kvcache.policies",
    "World": "sim.kvcache.policies",
    "Router": "sim.fleet.router",
}
__all__ = [
    "EngineParams",
    "InputError",
    "Policy",
    "PrefixTree",
    "Report",
    "Router",
    "Run",
    "Scenario",
    "StepTime",
    "Workload",
    "WorkloadConfig",
    "World",
    "ask",
    "build_report",
    "compare",
    "from_pieces",
    "hit_rate_curve",
    "leaf_first",
    "load_run",
    "load_scenario",
    "load_step_time",
    "lru_curve",
    "order_optimum",
    "plan",
    "replay",
    "resolve",
    "run",
    "save_run",
    "scenario_from_doc",
    "simulate",
    "sweep",
    "together",
    "workers",
]

if TYPE_CHECKING:
    from calibrate.latency import load_step_time
    from calibrate.step import StepTime
    from kvcast.api import resolve, simulate
    from kvcast.asking import ask
    from kvcast.config import load_scenario, scenario_from_doc
    from kvcast.planner import plan
    from kvcast.pools import workers
    from kvcast.store.runs import load_run, save_run
    from kvcast.studies.side_by_side import compare
    from kvcast.studies.sweeps import sweep
    from kvcast.studies.windows import together
    from sim.fleet.router import Router
    from sim.kvcache.leaf_first import leaf_first
    from sim.kvcache.policies import Policy, Run, World
    from sim.kvcache.replay import hit_rate_curve, replay
    from sim.measure.report import Report, build_report
    from sim.optimum.lru_curve import lru_curve
    from sim.optimum.schedule import order_optimum
    from sim.scenario import EngineParams, Scenario
    from sim.simulate import run
    from workloads.columns import PrefixTree, Workload
    from workloads.config import WorkloadConfig
    from workloads.errors import InputError
    from workloads.prefix_tree import from_pieces
else:

    def __getattr__(name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"kvcast has no {name!r}; it has {', '.join(__all__)}")
        return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
