"""Every variant on every seed, simulated: the requests of a seed are made once and shared by all processes.

>>> simulate_all(variants(doc, ["cache.policy=lru,lfu"]), seeds=[0, 1, 2], jobs=2)
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcast import text
from kvcast.pools import Jobs
from kvcast.store import parquet
from kvcast.studies import intervals
from sim.scenario import Scenario, SloClass
from workloads.errors import InputError

if TYPE_CHECKING:
    from kvcast.store.simulations import Task

NOT_DRAWN = "nothing here is drawn: every seed gives the same run, so it counts once, with the interval of one run"


@dataclass(frozen=True)
class Variant:
    label: tuple[str, ...]  #: the values of the varied keys, as written
    keys: tuple[str, ...]
    scenario: Scenario
    drawn: bool = True  #: whether another seed is another run


@dataclass(frozen=True)
class Result:
    variant: Variant
    summary: dict[str, Any]
    requests: Mapping[str, Any] | None = None  #: `kept` columns of the requests, for intervals and verdicts
    limits: Sequence[tuple[str, SloClass]] = ()  #: (name, limits) of every workload class


Refused = Mapping[tuple[str, ...], str]
"""Why a variant does not fit, by its label."""


def any_drawn(scenarios: Sequence[Scenario]) -> bool:
    from kvcast import api
    from kvcast.studies.drawn import drawn

    distinct = {str((one.workload, one.cluster.router, one.cache.policy)): one for one in scenarios}.values()
    return any(drawn(one, lambda seed, one=one: api.load_workload(one.workload, seed)) for one in distinct)  # type: ignore[misc]


def simulate_all(variants: Sequence[Variant], jobs: Jobs = 1) -> list[Result]:
    """Simulate every variant, in the order given; with several jobs, or on a cluster, kept in a temporary folder until
    they are read: the workers share each loaded workload."""
    from kvcast.api import BESIDE_SUMMARY
    from kvcast.store.simulations import Lab

    variants = alike(variants)
    if jobs == 1:
        return _simulate_some(variants)
    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder:
        lab = Lab(Path(folder))
        tasks = [lab.task(variant.scenario) for variant in variants]
        lab.simulate(tasks, jobs, lambda done, all_: text.progress_share(done, all_, f"{done} of {all_} simulations"))
        results = [read_back(variant, task) for variant, task in zip(variants, tasks, strict=True)]
        return [
            replace(
                one,
                summary={key: value for key, value in one.summary.items() if key not in BESIDE_SUMMARY},
                requests=kept(one.requests or {}),
            )
            for one in results
        ]


def read_back(variant: Variant, task: Task) -> Result:
    """A variant's kept run. Its requests are read from there whenever they are asked for."""
    from kvcast.store import workload_folder

    try:
        summary = json.loads((task.run / "summary.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{task.run / 'summary.json'}: damaged ({error}); remove the folder {task.run} to have it simulated again"
        ) from None
    limits = limits_in(variant, workload_folder.load(task.workload))
    return Result(variant, summary, Requests(task.run / "requests.parquet"), limits)


class Requests(parquet.Table):
    """The columns of requests.parquet that intervals and verdicts are made of, read each time they are asked for: a
    sweep of a hundred runs of a million requests does not fit in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._names = [name for name in self._names if name in intervals.KEPT]

    def __getitem__(self, name: str) -> np.ndarray:
        column = super().__getitem__(name)
        self._columns.clear()
        return column


def _simulate_some(variants: Sequence[Variant]) -> list[Result]:
    """One after another; the workload is loaded again only when it changes."""
    from kvcast import api

    results, loaded, workload = [], None, None
    for i, variant in enumerate(variants):
        scenario = variant.scenario
        if loaded != (scenario.workload, scenario.seed):
            loaded = (scenario.workload, scenario.seed)
            workload = api.load_workload(*loaded)
        results.append(
            _result(
                variant,
                workload,
                text.clock(f"simulating {', '.join(variant.label)}, seed {scenario.seed}", i, len(variants)),
            )
        )
    return results


def _result(variant: Variant, workload: Any, on_clock: Callable[[float, float], None] | None = None) -> Result:
    from kvcast import api

    report = api.run(api.prepare(variant.scenario, workload), on_clock=on_clock).report
    return Result(variant, report.summary, kept(report.requests), limits_in(variant, workload))


def limits_in(variant: Variant, workload: Any) -> list[tuple[str, SloClass]]:
    """(name, limits) of every class of the workload."""
    from sim.measure.metrics import limits_of
    from sim.measure.verdict import named_limits

    return named_limits(workload, limits_of(workload, variant.scenario.slo))


def that_fit(variants: Sequence[Variant]) -> tuple[list[Variant], Refused]:
    """The variants that the memory of their GPUs holds, and of the others their labels with why not.

    Raises DoesNotFitError when none of them does."""
    from calibrate.memory import DoesNotFitError
    from kvcast import api

    refused: dict[tuple[str, ...], str] = {}
    first: DoesNotFitError | None = None
    for label, scenario in {one.label: one.scenario for one in variants}.items():
        try:
            api.resolve(scenario)
        except DoesNotFitError as error:
            first = first or error
            refused[label] = str(error)
    fit = [one for one in variants if one.label not in refused]
    if first is not None and not fit:
        raise first
    return fit, refused


def alike(variants: Sequence[Variant]) -> list[Variant]:
    """The variants with one window, so that they serve the same requests; with one seed where nothing is drawn from
    it."""
    from kvcast.studies.windows import together

    cut = [
        replace(one, scenario=scenario)
        for one, scenario in zip(variants, together([one.scenario for one in variants]), strict=True)
    ]
    first = cut[0].scenario.seed
    if any(one.scenario.seed != first for one in cut) and not any_drawn(
        [one.scenario for one in cut if one.scenario.seed == first]
    ):
        return [replace(one, drawn=False) for one in cut if one.scenario.seed == first]
    return cut


def kept(requests: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that intervals and verdicts are made of."""
    return {name: requests[name] for name in intervals.KEPT if name in requests}
