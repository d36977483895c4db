"""Is another seed another run? Where nothing is drawn, repeats of a run are the run.

The one idea: whether a seed draws requests is not looked up but tried: the requests of two seeds are compared.

    >>> drawn(scenario, lambda seed: load_workload(scenario.workload, seed))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np

from sim.fleet.router import ROUTERS
from sim.scenario import Scenario
from workloads.columns import Workload

RANDOM = "random"


def drawn(scenario: Scenario, workload_of: Callable[[int], Workload]) -> bool:
    """Whether requests, routing or eviction depend on the seed. A user's own policy or router may draw; equal runs are
    found later."""
    router, policy = scenario.cluster.router, scenario.cache.policy
    if router not in ROUTERS or ROUTERS[router].draws or policy == RANDOM or ":" in policy:
        return True
    return scenario.workload.trace is None or not _alike(workload_of(scenario.seed), workload_of(scenario.seed + 1))


def _alike(a: Workload, b: Workload) -> bool:
    columns = [f.name for f in fields(a) if isinstance(getattr(a, f.name), np.ndarray)]
    return len(a) == len(b) and all(
        np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in columns
    )
