"""Latency, throughput and SLO statistics of a Recording; docs/metrics.md has one definition for each.

Inter-token gaps are those of sim.measure.gaps.

    python -m pytest tests/test_metrics.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sim.measure.columns import Columns, minus
from sim.recording import ABANDONED, ABORTED, COMPLETED, NOT_ARRIVED, UNFINISHED, Recording, Samples, Steps, by_replica
from sim.scenario import SloClass, SloConfig
from workloads import portable
from workloads.columns import Workload

AT_ONCE = 1 << 20
"""Steps or gaps worked out together: only a bound on memory."""
PERCENTILES = (50, 90, 95, 99)
CENSORED_SHARE = 0.001  # percentiles leave the unfinished out; beyond this share that must be said


@dataclass(frozen=True)
class Window:
    """The measured stretch of the clock. Requests that arrive in it are counted; tokens are counted when emitted in
    it."""

    start_s: float
    end_s: (
        float  #: duration_s when given, else the end of the run (as `vllm bench serve` does: a drain tail is included)
    )
    last_arrival_s: float  #: of the window
    drained: bool  #: end_s is the end of the run, not a duration the user chose

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def holds(self, t_s: np.ndarray) -> np.ndarray:
        return (t_s >= self.start_s) & (t_s <= self.end_s)


FILLING = 2
"""Sessions of every slot of a fixed concurrency that begin before its window: the first ones run in step."""


def closed_window(rec: Recording, workload: Workload) -> tuple[float, float | None]:
    """Begin and end of the window of a fixed concurrency: from when its sessions no longer run in step (two of every
    slot have begun, or a third of all) to when the last one begins, after which fewer are active. (0, None) when all
    begin at once."""
    starts_s = np.sort(rec.arrival_s[(workload.column("after") < 0) & ~np.isnan(rec.arrival_s)])
    slots = workload.concurrency or 1
    if len(starts_s) <= slots:
        return 0.0, None
    return float(starts_s[min(FILLING * slots, len(starts_s) // 3)]), float(starts_s[-1])


def window_of(rec: Recording, warmup_s: float, duration_s: float | None) -> tuple[Window, np.ndarray]:
    """The window and a bool column of the arrivals that count. Raises ValueError when warm-up leaves nothing.

    Without warm-up a window may have no length: all that arrived was refused at once, or nothing arrived at all.
    A row that arrived without a recorded time (a session cut before its turn) counts: it cannot be placed.
    """
    run_end = run_end_s(rec)
    end = (
        run_end
        if duration_s is None
        else max(duration_s, warmup_s)
        if run_end <= warmup_s
        else min(duration_s, run_end)
    )
    if end <= warmup_s and warmup_s > 0 and len(rec.arrival_s):
        raise ValueError(f"run.warmup_s = {warmup_s:g} leaves nothing to measure: the window ends at {end:g} s")
    arrived = rec.status != NOT_ARRIVED
    inside = arrived & (np.isnan(rec.arrival_s) | ((rec.arrival_s >= warmup_s) & (rec.arrival_s <= end)))
    times = rec.arrival_s[inside & ~np.isnan(rec.arrival_s)]
    last = float(times.max()) if len(times) else warmup_s
    return Window(warmup_s, end, last, duration_s is None or duration_s >= run_end), inside


def run_end_s(rec: Recording) -> float:
    """When the last work ended or the last request came: a horizon after everything has been served adds no time to the
    run."""
    if np.isin(rec.status, (UNFINISHED, NOT_ARRIVED)).any() or np.isnan(rec.finish_s).all():
        return rec.end_s
    return float(max(np.nanmax(rec.finish_s), np.nanmax(rec.arrival_s)))


def per_request(rec: Recording, workload: Workload) -> Columns:
    """ttft_s, tpot_s, e2e_s and queue_s, float64 [n]; NaN where undefined (TPOT of a single output token). A request
    that was prefilled elsewhere has waited in the queues of both replicas."""
    waited_s = None if rec.handed is None else rec.handed.waited_s
    return Columns(
        {
            "ttft_s": partial(minus, rec.first_token_s, rec.arrival_s),
            "tpot_s": partial(_tpot_s, rec.first_token_s, rec.finish_s, workload.output_tokens),
            "e2e_s": partial(minus, rec.finish_s, rec.arrival_s),
            "queue_s": partial(_queue_s, rec.arrival_s, rec.admit_s, waited_s),
        }
    )


def _tpot_s(first_token_s: np.ndarray, finish_s: np.ndarray, output_tokens: np.ndarray, part: slice) -> np.ndarray:
    """float64 [part]"""
    tpot_s, out = minus(finish_s, first_token_s, part), output_tokens[part]
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot_s /= out - 1
    tpot_s[out <= 1] = np.nan
    return tpot_s


def _queue_s(arrival_s: np.ndarray, admit_s: np.ndarray, waited_s: np.ndarray | None, part: slice) -> np.ndarray:
    """float64 [part]"""
    queue_s = minus(admit_s, arrival_s, part)
    return queue_s if waited_s is None else queue_s + waited_s[part]


def describe(values: np.ndarray) -> dict[str, float | None]:
    """mean, median, std (population) and p50 to p99 of the values that are not NaN; None when there are none. Leaves
    the values in another order."""
    known = ~np.isnan(values)
    values = values if known.all() else values[known]
    if not len(values):
        return named(None, None, None)
    mean, std = portable.mean(values), portable.std(values)
    return named(mean, std, np.percentile(values, PERCENTILES, overwrite_input=True))


def dot(a: np.ndarray, b: np.ndarray) -> float:
    """Sum of a x b; not `@`, whose result may depend on the number of BLAS threads and which copies integers."""
    return float(np.einsum("i,i", a, b))


def named(mean: float | None, std: float | None, percentiles: np.ndarray | None) -> dict[str, float | None]:
    ps = {f"p{p}": None if percentiles is None else float(percentiles[i]) for i, p in enumerate(PERCENTILES)}
    return {"mean": mean, "median": ps["p50"], "std": std, **ps}


def emitting_steps(rec: Recording, replica: int) -> np.ndarray | None:
    """Its steps in which whoever decodes emits a token, int64; None: all of them."""
    return np.flatnonzero(rec.steps[replica].n_decode > 0) if rec.prefill_pauses else None


def limits_of(workload: Workload, slo: SloConfig) -> list[tuple[str, SloClass]]:
    """(SLO class name, limits) of every workload class. A class that [slo.classes] does not name has the default
    limits."""
    return limits_by(padded_slo(workload), slo)


def padded_slo(workload: Workload) -> list[str]:
    """The SLO class that every workload class names; "" where it names none."""
    return [*workload.class_slo, *[""] * (len(workload.class_names) - len(workload.class_slo))]


def limits_by(class_slo: Sequence[str], slo: SloConfig) -> list[tuple[str, SloClass]]:
    """`limits_of` workload classes by the SLO class that each of them names."""
    default = SloClass(slo.ttft_s, slo.tpot_s, slo.e2e_s, slo.attainment)
    return [(name, slo.classes[name]) if name in slo.classes else ("", default) for name in class_slo]


def has_limit(limits: SloClass) -> bool:
    return any(v is not None for v in (limits.ttft_s, limits.tpot_s, limits.e2e_s))


def good(
    times: Mapping[str, np.ndarray], completed: np.ndarray, class_id: np.ndarray, limits: Sequence[SloClass]
) -> np.ndarray:
    """bool [n]: completed within every limit of its class. An undefined TPOT (one output token) meets its limit."""
    ok = completed.copy()
    for key in ("ttft_s", "tpot_s", "e2e_s"):
        limit = np.array([np.inf if getattr(lim, key) is None else getattr(lim, key) for lim in limits])
        ok &= ~(times[key] > limit[class_id])
    return ok


def tokens_emitted(rec: Recording, window: Window) -> int:
    """Output tokens that clients had inside the window, of all requests."""
    if rec.verified is not None:
        return sum(
            int(emitted[window.holds(rec.told_s(replica))].sum())
            for replica, emitted in enumerate(rec.verified.emitted)
        )
    total = 0
    listed_of = by_replica(rec.replica[rec.gaps_request], len(rec.steps))
    for replica, rows in enumerate(by_replica(rec.replica, len(rec.steps))):
        sampled, listed, steps = rows[rec.first_step[rows] >= 0], listed_of[replica], rec.steps[replica]
        if not len(sampled):
            continue
        told_s, emitting = rec.told_s(replica), emitting_steps(rec, replica)
        before = int(np.searchsorted(told_s, window.start_s, side="left"))  # first step whose tokens are of the window
        after = int(np.searchsorted(told_s, window.end_s, side="right"))
        first, last = rec.first_step[sampled], rec.last_step[sampled]
        last = np.where(last < 0, len(steps) - 1, last)  # unfinished: still at it when the run stopped
        silent_first, silent_last = rec.gaps_from_step[listed] + 1, rec.gaps_to_step[listed] - 1
        if emitting is not None:  # what prefills sampled is counted here, what decodes sampled below
            resumed = silent_last + 1
            sampled_at = np.concatenate([first, resumed[steps.n_decode[resumed] == 0]])
            total += int(((sampled_at >= before) & (sampled_at < after)).sum())
            first, last = np.searchsorted(emitting, first + 1), np.searchsorted(emitting, last, side="right") - 1
            silent_first, silent_last = (
                np.searchsorted(emitting, silent_first),
                np.searchsorted(emitting, silent_last, side="right") - 1,
            )
            before, after = np.searchsorted(emitting, [before, after]).tolist()
        total += _emitted_between(first, last, before, after)
        total -= _emitted_between(silent_first, silent_last, before, after)
    return total


def _emitted_between(first: np.ndarray, last: np.ndarray, before: int, after: int) -> int:
    return int(np.maximum(np.minimum(last, after - 1) - np.maximum(first, before) + 1, 0).sum())


def time_mean(samples: Samples, column: str, window: Window) -> float:
    """Mean over the window of one step-function column of one replica; 0 before its first sample."""
    if not len(samples.t_s) or window.seconds <= 0:
        return 0.0
    t = np.clip(np.append(samples.t_s, window.end_s), window.start_s, window.end_s)
    return dot(np.diff(t), getattr(samples, column)) / window.seconds


def lost_with_session(rec: Recording, workload: Workload) -> int:
    """Requests that never came because their session ended before: at one that no replica could serve."""
    gone = rec.status == NOT_ARRIVED
    if workload.session_id is None or not gone.any():
        return 0
    refused = ~np.isin(rec.status, (COMPLETED, UNFINISHED, ABORTED, NOT_ARRIVED))
    return int(np.isin(workload.session_id[gone], workload.session_id[refused]).sum())


def in_system_mean(rec: Recording, window: Window) -> float:
    """Mean over the window of the number of requests between arrival and last token, exact (Little's law holds)."""
    if window.seconds <= 0:
        return 0.0
    entered, left_s = np.flatnonzero(entered_system(rec)), rec.left_s

    def stay_s(part: slice) -> np.ndarray:
        leave_s = left_s[entered[part]]
        leave_s = np.where(np.isnan(leave_s), np.inf, leave_s)
        stay = np.minimum(leave_s, window.end_s) - np.maximum(rec.arrival_s[entered[part]], window.start_s)
        return np.maximum(stay, 0)

    return portable.total_of(stay_s, len(entered)) / window.seconds


def entered_system(rec: Recording) -> np.ndarray:
    """bool [n]: requests an engine worked on or meant to; not the rejected, the cut and the never arrived."""
    return np.isin(rec.status, (COMPLETED, UNFINISHED, ABANDONED)) | ((rec.status == ABORTED) & ~np.isnan(rec.finish_s))


def step_shares(all_steps: Sequence[Steps], window: Window) -> dict[str, float]:
    """Time-weighted figures over the window; a step that reaches over its edge counts with the part inside.

    busy_s (summed over replicas), mean decode batch and tokens per step, and the shares of busy time whose step time
    was measured, interpolated and extrapolated.
    """
    busy = decode = tokens = 0.0
    by_code = np.zeros(3)
    for steps in all_steps:
        here, d = inside(steps, window)
        n_decode = steps.n_decode[here]
        busy += portable.total(d)
        decode += dot(d, n_decode)
        tokens += dot(d, n_decode) + dot(d, steps.prefill_tokens[here])
        by_code += np.bincount(steps.coverage[here], weights=d, minlength=3)[:3]
    part = busy or 1.0
    return {
        "busy_s": busy,
        "decode_batch": decode / part,
        "tokens_per_step": tokens / part,
        "measured": by_code[0] / part,
        "interpolated": by_code[1] / part,
        "extrapolated": by_code[2] / part,
    }


def inside(steps: Steps, window: Window) -> tuple[slice, np.ndarray]:
    """The steps that reach into the window, and the seconds of each that lie in it."""
    end_s = steps.end_s
    lo = int(np.searchsorted(end_s, window.start_s, side="right"))
    hi = int(np.searchsorted(end_s, window.end_s, side="left")) + 1
    d = steps.duration_s[lo:hi].copy()
    if len(d):  # only its first and last step can reach over an edge
        d[0] = min(d[0], float(end_s[lo]) - window.start_s)
        d[-1] = max(0.0, d[-1] - max(0.0, float(end_s[lo:hi][-1]) - window.end_s))
    return slice(lo, hi), d
