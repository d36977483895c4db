"""What is judged, and what was judged of it: a scenario over its runs.

>>> Trial(scenario, full=True)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcast.planner.words.phrases import DOES_NOT_FIT as DOES_NOT_FIT
from kvcast.trust.model_error import attains
from sim.measure.verdict import MEETS, Interval, Verdict
from sim.scenario import Scenario

CANNOT_RUN, PRUNED = "cannot run", "pruned"


@dataclass(frozen=True)
class Trial:
    """What is judged. full: to the end, however hopeless; what_if: see kvcast.store.simulations.Task; keep: the first
    run as a folder to look into; share: of the fleet's load, on as many of its replicas, where the
    scenario is a sample of the fleet (kvcast.planner.sampled)."""

    scenario: Scenario
    what_if: str = ""
    full: bool = False
    keep: bool = False
    share: float | None = None


@dataclass(frozen=True)
class Judged:
    """A trial over its runs. Numbers of a run that was stopped early are None: they would only say when it was
    stopped."""

    trial: Trial
    judged: Verdict
    attainment: Interval | None  #: of all requests that have a limit; classes have their own in `judged`
    at_most: float | None  #: of a trial stopped early: what its attainment can have been at most
    served: float  #: share of the requests that had come when it was stopped; 1 when it was not
    per_slo: dict[str, float | None]  #: share of the arrivals within each limit; None where nobody has one
    attained: tuple[bool, ...]  #: by run: whether every class's share reached its target and the fleet kept up
    stable: bool | None
    offered_per_s: float | None  #: nominal
    ttft_ms: dict[
        str, float | None
    ]  #: p50, p99 of the runs' requests together, p99_low and p99_high where there are several
    tpot_ms: dict[str, float | None]
    extrapolated: float | None  #: share of the simulated time whose step times are extrapolated
    runs: tuple[Path, ...]  #: one folder a run
    summaries: tuple[dict[str, Any], ...] = field(repr=False)

    @property
    def verdict(self) -> str:
        return self.judged.word

    @property
    def run(self) -> str | None:
        """The first run's folder, where one was kept."""
        return self.runs[0].name if (self.runs[0] / "run.json").exists() else None

    @property
    def meets(self) -> bool:
        return self.verdict == MEETS

    @property
    def attains(self) -> bool:
        """Whether the shares themselves reach their targets, sure or not: what a search goes by."""
        return self.at_most is None and attains(self.judged, self.stable)

    @property
    def margin(self) -> float | None:
        """Of the class that is farthest below its target; None of a trial that was stopped early, or whose fleet does
        not keep up: its shares say how long it was watched."""
        if self.attainment is None or self.stable is False:
            return None
        rows = self.judged.classes
        return min((row.attainment.mean - row.target for row in rows if row.attainment is not None), default=None)

    @property
    def goodput_per_s(self) -> float | None:
        """Good requests a second while they come: attainment x offered rate."""
        return (
            None if self.attainment is None or self.offered_per_s is None else self.attainment.mean * self.offered_per_s
        )
