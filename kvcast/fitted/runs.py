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
from sim.recording import COMPLETED, STATUS, Recording
from workloads.columns import PrefixTree, Workload
from workloads.errors import InputError
from workloads.readers.common import nothing_shared

if TYPE_CHECKING:
    from workloads.readers.measured import Measured

METRICS = ("ttft_s", "tpot_s", "e2e_s")
MOST_LOST = 0.02
"""Share of the requests that a simulation may leave without an answer."""
SOON, LEAST_PAUSES = 0.02, 8
"""Share of a request's time within which the next one follows where a benchmark waits, and how often at least."""


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
        recording = self.recording(resolved, luck)
        lost = recording.status != COMPLETED
        if lost.mean() > MOST_LOST:
            why = STATUS[int(np.bincount(recording.status[lost]).argmax())]
            raise InputError(
                f"{self.name}: {int(lost.sum())} of {len(self)} requests that the server answered get no answer in the"
                f" simulation ({why}); expected the server's own engine keys (--log, --scenario)"
            )
        return {metric: per_request(recording, self.workload)[metric] for metric in METRICS}

    def recording(self, resolved: Resolved, luck: int | None = None) -> Recording:
        steps = resolved.engine_step_time()
        if luck is not None:
            steps = Uneven(steps, np.random.default_rng(luck))
        return api.record(api.Prepared(resolved, self.workload, steps))


CLOCK_S = 1e-3
"""What two times of one request may be apart by rounding."""


def read_run(
    path: Path, own: Workload | None = None, run: str | None = None, hit_rate: float = 0.0, block_size: int = 16
) -> ServerRun:
    """A result with its requests in the order in which they were sent. own: a scenario's trace, whose prefixes are
    taken where it is the same requests; where it is not, each prompt begins with the same text, so long that a cache
    which keeps it hits this share of the tokens."""
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
    load, notes = _load(truth, own, path, _shared(truth.prompt_tokens, hit_rate, block_size))
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


def _shared(prompt_tokens: np.ndarray, hit_rate: float, block_size: int) -> np.ndarray:
    """int64 [n]: tokens that each prompt begins with and that others begin with too: whole blocks, and never all."""
    most = (prompt_tokens - 1) // block_size
    return np.minimum(np.round(hit_rate * prompt_tokens / block_size), most).astype(np.int64) * block_size


def _one_text(shared: np.ndarray) -> tuple[PrefixTree, np.ndarray]:
    """(tree, leaf int32 [n]) of requests that begin with so many tokens of one text."""
    ends, leaf = np.unique(np.append(0, shared), return_inverse=True)
    n = len(ends)
    return PrefixTree(np.arange(-1, n - 1, dtype=np.int32), ends, np.zeros(n, np.int16)), leaf[1:].astype(np.int32)


def _load(truth: Measured, own: Workload | None, path: Path, shared: np.ndarray) -> tuple[Workload, tuple[str, ...]]:
    """The requests as the benchmark sent them, and what there is to know about that."""
    if own is None:
        some = bool(shared.any())
        tree, leaf = _one_text(shared) if some else nothing_shared(len(truth.prompt_tokens))
        load = Workload(
            tree, truth.start_s, truth.prompt_tokens, truth.output_tokens, leaf, prefix_identity=some, source=str(path)
        )
        notes: tuple[str, ...] = ("prompts are taken to share nothing: a result does not say what they share",)
        if some:
            share = shared.sum() / truth.prompt_tokens.sum()
            notes = (f"every prompt is taken to begin with one text, {share:.1%} of it: the hit rate that was seen",)
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
    """Requests in flight of a benchmark that sends the next one when one has ended; None of one that does not wait.
    What the file does not say its times show: then each is sent soon after one before it has ended."""
    places = truth.summary.get("max_concurrency")
    if places:
        return min(int(places), len(truth.prompt_tokens)) if "request_rate" not in truth.summary else None
    if "request_rate" in truth.summary or not len(truth.start_s) or not np.isfinite(truth.start_s + truth.e2e_s).all():
        return None
    soon_s = SOON * float(truth.e2e_s.mean())
    at_s = np.concatenate([truth.start_s + truth.e2e_s - soon_s, truth.start_s])  # a client's clocks are not exact
    change = np.repeat([-1, 1], len(truth.start_s))[np.argsort(at_s, kind="stable")]
    most = int(np.cumsum(change).max(initial=0))
    pauses_s = _pauses_s(truth, most)
    if len(pauses_s) < max(most, LEAST_PAUSES):
        return None
    return most if pauses_s.min() > -soon_s and np.percentile(pauses_s, 90) < soon_s else None


def _turnaround_s(truth: Measured, places: int) -> float:
    """Median time from an answer to the next request in its place; 0 where no clock tells."""
    pauses_s = _pauses_s(truth, places)
    pauses_s = pauses_s[np.isfinite(pauses_s)]
    return max(float(np.median(pauses_s)), 0.0) if len(pauses_s) else 0.0


def _pauses_s(truth: Measured, places: int) -> np.ndarray:
    starts, ends = np.sort(truth.start_s), np.sort(truth.start_s + truth.e2e_s)
    return starts[places:] - ends[: len(starts) - places]
