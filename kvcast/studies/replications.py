"""Every variant on every seed, simulated: the requests of a seed are made once and shared by all processes.

>>> simulate_all(variants(doc, ["cache.policy=lru,lfu"]), seeds=[0, 1, 2], jobs=2)
"""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvcast import text
from kvcast.studies import intervals
from sim.scenario import Scenario, SloClass
from workloads.errors import InputError

NOT_DRAWN = "nothing here is drawn: every seed gives the same run, so it counts once, with the interval of one run"
STOPS = (signal.SIGINT, signal.SIGTERM)


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


def simulate_all(variants: Sequence[Variant], jobs: int = 1) -> list[Result]:
    """Simulate every variant, in the order given; with jobs > 1 in that many processes, which share each loaded
    workload."""
    variants = alike(variants)
    if jobs == 1:
        return _simulate_some(variants)
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder:
        _share(variants, Path(folder))
        with ProcessPoolExecutor(jobs, initializer=_stop_with_the_parent) as pool:
            try:
                signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until every worker says how it takes them
                try:
                    pending = pool.map(_simulate_shared, variants, itertools.repeat(Path(folder)))
                finally:
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
                results = []
                for result in pending:
                    results.append(result)
                    text.progress_share(len(results), len(variants), f"{len(results)} of {len(variants)} simulations")
                return results
            except BrokenProcessPool:
                raise InputError(
                    f"--jobs {jobs}: a process was killed, most likely for want of memory; expected fewer jobs"
                ) from None
            except BaseException:  # do not wait for what nobody will read
                for child in multiprocessing.active_children():
                    child.terminate()
                raise


def _share(variants: Iterable[Variant], folder: Path) -> None:
    """Every workload of the variants in a folder of its own, loaded once."""
    from kvcast import api
    from kvcast.store import workload_folder

    for variant in variants:
        scenario = variant.scenario
        at = _shared_at(scenario, folder)
        if not at.exists():
            workload_folder.save(api.load_workload(scenario.workload, scenario.seed), at)


def _shared_at(scenario: Scenario, folder: Path) -> Path:
    from kvcast.store.simulations import workload_key

    return folder / workload_key(scenario.workload, scenario.seed)


def _stop_with_the_parent() -> None:
    """Ctrl-C reaches a worker too, but is its parent's to answer, which ends its workers by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _simulate_shared(variant: Variant, folder: Path) -> Result:
    from kvcast.store import workload_folder

    return _result(variant, workload_folder.load(_shared_at(variant.scenario, folder)))


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
