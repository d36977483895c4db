"""What a plan chooses from: every combination of the varied values, and what a fleet of it costs.

The one idea: a combination that cannot run (a model that does not fit, a policy the engine does not have) is a row with
its reason, not an error; only when none can run is that the user's answer.

    >>> combinations(load_doc("examples/demo.toml"), ["hardware.tensor_parallel=1,2"])
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvcast.config import override, scenario_from_doc
from kvcast.scenario.gpu_prices import priced
from kvcast.studies import compare
from sim.scenario import Scenario
from workloads.errors import InputError

AS_IT_IS = "as it is"
NEXT_TO_NOTHING = 1e-9  #: USD an hour


@dataclass(frozen=True)
class Combination:
    values: dict[str, str]  #: varied key -> value, as written
    scenario: Scenario | None  #: None: cannot run
    reason: str = ""

    @property
    def label(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.values.items()) or AS_IT_IS

    @property
    def gpus_per_replica(self) -> int:
        assert self.scenario is not None
        return self.scenario.hardware.gpus

    @property
    def usd_per_gpu_hour(self) -> float | None:
        assert self.scenario is not None
        return self.scenario.cost.gpu_hour_usd

    def with_replicas(self, n: int) -> Scenario:
        assert self.scenario is not None
        return fleet_of(self.scenario, n)

    def cost(self, replicas: int) -> float:
        """What fleets are ordered by: dollars an hour where there is a price, else GPUs. Of GPUs that are free, fewer
        are still cheaper."""
        gpus = replicas * self.gpus_per_replica
        return gpus if self.usd_per_gpu_hour is None else gpus * max(self.usd_per_gpu_hour, NEXT_TO_NOTHING)


def fleet_of(scenario: Scenario, n: int) -> Scenario:
    """n replicas of it; in pools at its own ratio, at least one of each kind. One replica alone does both."""
    pools, of = scenario.disaggregation, scenario.cluster.replicas
    if pools.on:
        prefills = min(max(round(n * pools.prefill_replicas / of), 1), n - 1)
        scenario = replace(scenario, disaggregation=replace(pools, prefill_replicas=prefills))
    return replace(scenario, cluster=replace(scenario.cluster, replicas=n))


def combinations(doc: dict, vary: Sequence[str], source: str = "scenario") -> list[Combination]:
    """Every combination of the values in `vary`. Raises InputError when an axis is wrong or no combination is a
    scenario."""
    axes, own = compare.axes(doc, vary), compare.given_in(doc, source)
    found = []
    for chosen in itertools.product(*axes.values()):
        values = dict(zip(axes, chosen, strict=True))
        if "cluster.replicas" in values:
            raise InputError(
                "--vary cluster.replicas: that is what the plan looks for; expected --max-replicas N to bound it"
            )
        try:
            scenario = scenario_from_doc(override(doc, [f"{key}={value}" for key, value in values.items()]), source)
            _check_alike(scenario)
            found.append(Combination(values, priced(scenario, None if "cost.gpu_hour_usd" in values else own)))
        except InputError as error:
            found.append(Combination(values, None, str(error)))
    if all(one.scenario is None for one in found):
        raise InputError(found[0].reason)
    return found


def _check_alike(scenario: Scenario) -> None:
    """Raise InputError where replicas that prefill are of another kind: a fleet is counted in replicas of one."""
    pools, width = scenario.disaggregation, scenario.hardware.tensor_parallel
    if pools.on and (pools.prefill_profile or pools.prefill_tensor_parallel not in (None, width)):
        raise InputError(
            "[disaggregation] prefill_tensor_parallel and prefill_profile: expected neither in a plan, whose replicas"
            " are all of one kind"
        )
