"""A simulated run as the time series that a vLLM server's /metrics would have left in Prometheus (OpenMetrics text).

The one idea: a scrape is a moment of the run's clock. A gauge is the engine's state then; a counter and a histogram
hold what has happened up to then, each event at the moment at which vLLM counts it. All of it is exact, of the
simulation's own steps; what a simulation does not have (times of preemptions, aborts by clients) has no series.

    lines = openmetrics(recording, workload, Labels("llama-3.1-8b (simulated)"), scrapes(end_s, 15.0), start_unix_s)

Names, buckets and moments are those of vLLM 0.20's V1 engine, from its source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sim.measure import gaps
from sim.measure.metrics import entered_system
from sim.recording import COMPLETED, Recording
from workloads.columns import Workload

SIMULATED = " (simulated)"
"""Ends the model's name, so that no dashboard adds a simulation to a server of the same model."""
MOST_SCRAPES = 20_000
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Labels(NamedTuple):
    """What every series says, and what a server says of its cache."""

    model: str
    block_size: int
    prefix_caching: bool


class Events(NamedTuple):
    """Things that happened on one replica."""

    at_s: np.ndarray  #: float64 [n], seconds of the run
    value: np.ndarray  #: float64 [n]
    times: np.ndarray | None = None  #: float64 [n], how often each; None: once


def scrapes(end_s: float, every_s: float) -> np.ndarray:
    """float64 [n]: the moments of the run at which it is looked at: 0, then every so often until it has ended."""
    return np.arange(math.ceil(end_s / every_s - 1e-9) + 1) * every_s


def openmetrics(
    rec: Recording, workload: Workload, labels: Labels, at_s: np.ndarray, start_unix_s: float
) -> Iterator[str]:
    """The lines of an OpenMetrics 1.0 text, its end mark last.

    at_s: float64 [n], ascending, seconds of the run. start_unix_s: when the run began, for the timestamps.
    """
    stamps = [f"{start_unix_s + t:.3f}" for t in at_s.tolist()]
    replicas = range(len(rec.steps))
    model = _escaped(labels.model)
    named = [f'engine="{replica}",model_name="{model}"' for replica in replicas]
    kept = f'block_size="{labels.block_size}",enable_prefix_caching="{labels.prefix_caching}"'
    caches = [f'{kept},num_gpu_blocks="{blocks}"' for blocks in rec.kv_blocks_of.tolist()]
    yield from _family("vllm:cache_config", "info", "Cache of each engine, as its start-up says it.")
    for replica in replicas:
        yield from _samples(
            "vllm:cache_config_info", f'{caches[replica]},engine="{replica}"', np.ones(len(at_s), int), stamps
        )
    for name, told, gauge in _gauges(rec, at_s):
        yield from _family(name, "gauge", told)
        for replica in replicas:
            yield from _samples(name, named[replica], gauge[replica], stamps)
    finished = Finished(rec, workload)
    for name, told, label, counted in _counters(rec, workload, finished, labels.prefix_caching):
        yield from _family(name, "counter", told)
        for replica in replicas:
            grown = _summed(counted[replica], at_s, whole=True)
            yield from _samples(f"{name}_total", label + named[replica], grown, stamps)
    for name, told, ends, observed in _histograms(rec, workload, finished):
        yield from _family(name, "histogram", told)
        for replica in replicas:
            yield from _histogram(name, named[replica], ends, observed[replica], at_s, stamps)
    yield "# EOF"


class Finished:
    """The completed requests of each replica, and their columns."""

    def __init__(self, rec: Recording, workload: Workload) -> None:
        done = rec.status == COMPLETED
        self.rows = [np.flatnonzero(done & (rec.replica == replica)) for replica in range(len(rec.steps))]
        self.finish_s, self.output = rec.finish_s, workload.output_tokens

    def events(self, column: np.ndarray) -> list[Events]:
        """Of each replica, a column's values at its requests' last tokens; those that are not defined are left out."""
        kept = [rows[~np.isnan(column[rows])] for rows in self.rows]
        return [Events(self.finish_s[rows], column[rows]) for rows in kept]


# -- what there is -----------------------------------------------------------------------------------------------------


def _gauges(rec: Recording, at_s: np.ndarray) -> Iterator[tuple[str, str, list[np.ndarray]]]:
    running, usage = [], []
    for samples, blocks in zip(rec.samples, rec.kv_blocks_of.tolist(), strict=True):
        place = np.searchsorted(samples.t_s, at_s, side="right") - 1
        running.append(_stepped(samples.running, place))
        usage.append(_stepped(samples.blocks_in_use, place) / blocks)
    here, left_s = entered_system(rec), rec.left_s
    waiting = []
    for replica, busy in enumerate(running):
        mine = here & (rec.replica == replica)
        arrived = np.searchsorted(np.sort(rec.arrival_s[mine]), at_s, side="right")
        left = np.searchsorted(np.sort(left_s[mine]), at_s, side="right")  # NaN, still there, sorts last
        waiting.append(np.maximum(arrived - left - busy, 0))
    yield "vllm:num_requests_running", "Requests in the batch of the engine.", running
    yield "vllm:num_requests_waiting", "Requests that wait for a place in the batch.", waiting
    yield "vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 1 is all of them.", usage


def _stepped(column: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The values of a step function at these places; 0 before the first."""
    return np.where(place >= 0, column[np.maximum(place, 0)], 0) if len(column) else np.zeros(len(place), int)


def _counters(
    rec: Recording, workload: Workload, finished: Finished, caching: bool
) -> Iterator[tuple[str, str, str, list[Events]]]:
    """(family, help, labels of its own, events of each replica)."""
    prompt = workload.prompt_tokens.astype(float)
    hits = rec.hit_tokens.astype(float)
    if rec.tier_hit_tokens is not None:  # what a tier had is no hit of the GPU's cache
        hits = hits - rec.tier_hit_tokens.sum(axis=1)
    first, admitted = rec.first_token_s, rec.admit_s
    looked_up = prompt if caching else np.zeros(len(prompt))
    ones = np.ones(len(prompt))
    yield "vllm:prompt_tokens", "Prompt tokens of requests that have their first token.", "", _by(rec, first, prompt)
    yield "vllm:generation_tokens", "Output tokens.", "", _output_tokens(rec)
    yield (
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache, at the first admission.",
        "",
        _by(rec, admitted, looked_up),
    )
    yield "vllm:prefix_cache_hits", "Prompt tokens found in it.", "", _by(rec, admitted, hits)
    yield "vllm:request_success", "Requests that finished.", 'finished_reason="stop",', finished.events(ones)


def _by(rec: Recording, at_s: np.ndarray, value: np.ndarray) -> list[Events]:
    """The events of each replica, of the requests to which they happened."""
    rows = [np.flatnonzero((rec.replica == r) & ~np.isnan(at_s)) for r in range(len(rec.steps))]
    return [Events(at_s[mine], value[mine]) for mine in rows]


def _output_tokens(rec: Recording) -> list[Events]:
    """Of each replica; of requests that did not complete only the first tokens are known, without speculation."""
    if rec.verified is not None:
        return [Events(rec.told_s(i), emitted.astype(float)) for i, emitted in enumerate(rec.verified.emitted)]
    first = _by(rec, rec.first_token_s, np.ones(len(rec.first_token_s)))
    later = _gaps(rec)
    return [
        Events(np.concatenate([one.at_s, two.at_s]), np.concatenate([one.value, np.asarray(two.times)]))
        for one, two in zip(first, later, strict=True)
    ]


def _gaps(rec: Recording) -> list[Events]:
    """Of each replica, every gap between output tokens of completed requests, when the later token is there."""
    return [
        Events(at_s[many > 0], length_s[many > 0], many[many > 0])
        for at_s, length_s, many in gaps.events(rec, rec.status == COMPLETED)
    ]


def _histograms(
    rec: Recording, workload: Workload, finished: Finished
) -> Iterator[tuple[str, str, Sequence[float], list[Events]]]:
    """(family, help, upper ends of its buckets, events of each replica)."""
    out = workload.output_tokens
    entered_s = rec.arrival_s if rec.frontend_s is None else rec.arrival_s + rec.frontend_s
    decode_s = rec.finish_s - rec.first_token_s
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token_s = np.where(out > 1, decode_s / (out - 1), np.nan)
    longest = int(max(workload.prompt_tokens.max(initial=1), out.max(initial=1)))
    lengths = _one_two_five(longest)
    first = rec.first_token_s
    yield (
        "vllm:time_to_first_token_seconds",
        "TTFT, from the arrival at the router.",
        FIRST_TOKEN_S,
        _by(rec, first, first - rec.arrival_s),
    )
    yield "vllm:inter_token_latency_seconds", "Gaps between output tokens of a request.", TOKEN_S, _gaps(rec)
    of_requests = (
        ("request_time_per_output_token", "TPOT; none of a single output token.", TOKEN_S, per_token_s),
        ("e2e_request_latency", "Arrival to last token.", REQUEST_S, rec.finish_s - rec.arrival_s),
        ("request_queue_time", "Waiting for the batch.", REQUEST_S, rec.admit_s - entered_s),
        ("request_inference_time", "First schedule to last token.", REQUEST_S, rec.finish_s - rec.admit_s),
        ("request_prefill_time", "First schedule to first token.", REQUEST_S, first - rec.admit_s),
        ("request_decode_time", "First to last token.", REQUEST_S, decode_s),
    )
    for name, told, ends, column in of_requests:
        yield f"vllm:{name}_seconds", told, ends, finished.events(column)
    for name, told, tokens in (
        ("request_prompt_tokens", "Prompt tokens of a request.", workload.prompt_tokens),
        ("request_generation_tokens", "Output tokens of a request.", out),
        ("request_max_num_generation_tokens", "The same: each has one sequence.", out),
    ):
        yield f"vllm:{name}", told, lengths, finished.events(tokens.astype(float))


def _one_two_five(longest: int) -> list[float]:
    """1, 2, 5, 10, 20... the last at least `longest`."""
    steps = [float(m * 10**power) for power in range(len(str(longest)) + 1) for m in (1, 2, 5)]
    return steps[: int(np.searchsorted(steps, longest)) + 1]


# -- how it is written -------------------------------------------------------------------------------------------------


def _summed(events: Events, at_s: np.ndarray, whole: bool = False) -> np.ndarray:
    """[n]: the sum of the values (x how often) that have happened at each moment."""
    weights = events.value if events.times is None else events.value * events.times
    place = np.searchsorted(at_s, events.at_s, side="left")  # the first scrape that sees it
    total = np.bincount(place, weights=weights, minlength=len(at_s) + 1)[: len(at_s)].cumsum()
    return total.round().astype(np.int64) if whole else total


def _histogram(
    name: str, label: str, ends: Sequence[float], events: Events, at_s: np.ndarray, stamps: list[str]
) -> Iterator[str]:
    width = len(ends) + 1
    bucket = np.searchsorted(ends, events.value, side="left")
    place = np.searchsorted(at_s, events.at_s, side="left")
    counts = np.bincount(place * width + bucket, weights=events.times, minlength=(len(at_s) + 1) * width)
    up_to = counts.reshape(-1, width)[: len(at_s)].cumsum(axis=0).cumsum(axis=1).round().astype(np.int64)
    total = _summed(events, at_s)
    heads = [f'{name}_bucket{{{label},le="{end}"}}' for end in [*map(float, ends), "+Inf"]]
    for row, seconds, stamp in zip(up_to.tolist(), total.tolist(), stamps, strict=True):
        for head, count in zip(heads, row, strict=True):
            yield f"{head} {count} {stamp}"
        yield f"{name}_count{{{label}}} {row[-1]} {stamp}"
        yield f"{name}_sum{{{label}}} {seconds!r} {stamp}"


def _family(name: str, kind: str, told: str) -> Iterable[str]:
    return (f"# TYPE {name} {kind}", f"# HELP {name} {told}")


def _samples(name: str, label: str, values: np.ndarray, stamps: list[str]) -> Iterator[str]:
    for value, stamp in zip(values.tolist(), stamps, strict=True):
        yield f"{name}{{{label}}} {value!r} {stamp}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
