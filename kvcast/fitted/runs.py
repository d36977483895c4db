"""Measured runs of a server, each with the same requests to simulate.

The one idea: a result says who was sent when and how long it was, so the simulation is asked the same: recorded sending
times where the benchmark did not wait for answers, its fixed number in flight where it did. Prefixes are in no result;
where a scenario's own trace holds the same requests, they are taken from there.

    >>> run = read_run(Path("R.json"), prepared)
    >>> run.simulated(prepared.resolved)["ttft_s"]
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvcast import api
from kvcast.benchmarks.against import read_truth
from kvcast.benchmarks.engine_clock import NOTE
from kvcast.fitted.luck import Uneven
from kvcast.scenario.resolve import Resolved
from sim.measure.metrics import per_request
from sim.recording import COMPLETED, STATUS
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.readers.common import nothing_shared

if TYPE_CHECKING:
    from workloads.readers.measured import Measured

METRICS = ("ttft_s", "tpot_s", "e2e_s")
MOST_LOST = 0.02
"""Share of the requests that a simulation may leave without an answer."""


@dataclass(frozen=True)
class ServerRun:
    """A result and its load."""

    name: str
    sha256: str
    truth: Measured
    workload: Workload
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.workload)

    @property
    def measured(self) -> dict[str, np.ndarray]:
        """Seconds of every request by metric, float64 [n] each; NaN where it was not measured."""
        return {metric: getattr(self.truth, metric) for metric in METRICS}

    @property
    def by_engine(self) -> bool:
        """Whether the engine's own clock measured, without a front end."""
        return NOTE in self.truth.notes

    @property
    def in_flight(self) -> float:
        """Requests in flight, mean; by the sum of their times where no clock tells how long they took together."""
        e2e_s, start_s = self.truth.e2e_s, self.truth.start_s
        known = np.isfinite(e2e_s)
        ends = start_s[known] + e2e_s[known]
        lasted = float(np.nanmax(ends)) if np.isfinite(ends).any() else self.truth.summary.get("duration", 0.0)
        return float(e2e_s[known].sum()) / lasted if lasted else float(self.workload.concurrency or 0)

    def simulated(self, resolved: Resolved, luck: int | None = None) -> dict[str, np.ndarray]:
        """The same of the same requests, simulated; with a number, with steps that are uneven in its own way.
        InputError where many get no answer."""
        steps = resolved.engine_step_time()
        if luck is not None:
            steps = Uneven(steps, np.random.default_rng(luck))
        prepared = api.Prepared(resolved, self.workload, steps)
        recording = api.record(prepared)
        lost = recording.status != COMPLETED
        if lost.mean() > MOST_LOST:
            why = STATUS[int(np.bincount(recording.status[lost]).argmax())]
            raise InputError(
                f"{self.name}: {int(lost.sum())} of {len(self)} requests that the server answered get no answer in the"
                f" simulation ({why}); expected the server's own engine keys (--log, --scenario)"
            )
        return {metric: per_request(recording, self.workload)[metric] for metric in METRICS}


CLOCK_S = 1e-3
"""What two times of one request may be apart by rounding."""


def read_run(path: Path, own: Workload | None = None, run: str | None = None) -> ServerRun:
    """A result with its requests in the order in which they were sent. own: a scenario's trace, whose prefixes are
    taken where it is the same requests."""
    truth = read_truth(path, run)
    n = len(truth.prompt_tokens)
    if not n:
        raise InputError(
            f"{path}: holds aggregates only, a fit needs its requests; expected a result with them (vllm bench serve"
            " --save-result --save-detailed, sglang.bench_serving --output-details)"
        )
    if not any(np.isfinite(getattr(truth, metric)).any() for metric in METRICS):
        raise InputError(f"{path}: no request of it has a measured time, expected TTFT or end-to-end times")
    _check_times(truth, path)
    if own is not None and not _same(own, truth):
        own = None
    if own is None and np.isfinite(truth.start_s).all():
        truth = _in_order(truth, np.argsort(truth.start_s, kind="stable"))
    load, notes = _load(truth, own, path)
    return ServerRun(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), truth, load, notes)


def _check_times(truth: Measured, path: Path) -> None:
    """Raise InputError for a request whose answer was complete before it began."""
    early = np.flatnonzero((truth.e2e_s <= 0) | (truth.e2e_s < truth.ttft_s - CLOCK_S))
    if len(early):
        i = early[0]
        raise InputError(
            f"{path}, request {i + 1}: end-to-end time {truth.e2e_s[i]:g} s, expected more than 0 and at least its TTFT"
            f" ({truth.ttft_s[i]:g} s)"
        )


def _same(own: Workload, truth: Measured) -> bool:
    return np.array_equal(own.prompt_tokens, truth.prompt_tokens) and np.array_equal(
        own.output_tokens, truth.output_tokens
    )


def _in_order(truth: Measured, order: np.ndarray) -> Measured:
    names = ("start_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s")
    return replace(truth, **{name: getattr(truth, name)[order] for name in names})


def _load(truth: Measured, own: Workload | None, path: Path) -> tuple[Workload, tuple[str, ...]]:
    """The requests as the benchmark sent them, and what there is to know about that."""
    if own is None:
        tree, leaf = nothing_shared(len(truth.prompt_tokens))
        load = Workload(
            tree, truth.start_s, truth.prompt_tokens, truth.output_tokens, leaf, prefix_identity=False, source=str(path)
        )
        notes: tuple[str, ...] = ("prompts are taken to share nothing: a result does not say what they share",)
    else:
        load, notes = own, ("prompts share what they share in the scenario's trace",)
    if load.after is not None and (load.after >= 0).any():
        return load, (*notes, "sent as the scenario's sessions send them")
    if places := closed_places(truth):
        pause_s = _turnaround_s(truth, places)
        closed = replace(load, concurrency=places, turnaround_s=pause_s, arrival_s=np.zeros(len(load)))
        return closed, (*notes, f"{places} requests in flight, the next {1e3 * pause_s:.1f} ms after one ends")
    if np.isfinite(truth.start_s).all():
        return replace(load, arrival_s=truth.start_s), (*notes, "sent when the result says they were")
    if load.concurrency is not None or np.isfinite(load.arrival_s).all():
        return load, (*notes, "sent as the scenario sends them: the result has no times")
    raise InputError(
        f"{path}: neither times of sending nor a number in flight, expected start_times (vllm bench serve 0.11 or"
        " later) or max_concurrency"
    )


def closed_places(truth: Measured) -> int | None:
    """Requests in flight of a benchmark that sends the next one when one has ended; None of one that does not wait."""
    places = truth.summary.get("max_concurrency")
    return min(int(places), len(truth.prompt_tokens)) if places and "request_rate" not in truth.summary else None


def _turnaround_s(truth: Measured, places: int) -> float:
    """Median time from an answer to the next request in its place; 0 where no clock tells."""
    starts, ends = np.sort(truth.start_s), np.sort(truth.start_s + truth.e2e_s)
    pauses = starts[places:] - ends[: len(starts) - places]
    pauses = pauses[np.isfinite(pauses)]
    return max(float(np.median(pauses)), 0.0) if len(pauses) else 0.0
