"""aisimulate: an independent simulator of the same engines, on the same requests and the same step times.

AISimulate (NVIDIA's, in Rust; the core 0.13 that ai-dynamo-runtime 1.6.1 carries, which Dynamo calls its mocker and
DynoSim) has step times of its own that a formula says: a prefill by its tokens, a decode by the contexts of its batch.
Given to kvcast, they leave nothing to differ but who is scheduled, what is cached and what is evicted. Small worlds are
compared request by request, a public trace by its means. `python benchmarks/bench_peers.py --export` recorded it.

    $ kvcast validate aisimulate
"""

from __future__ import annotations

import csv
import json
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.step import INTERPOLATED, StepTime
from kvcast.validation import Outcome, required
from sim.fleet.pools import Pools
from sim.fleet.router import find as find_router
from sim.fleet.transfer import Link
from sim.recording import Recording
from sim.scenario import EngineParams
from workloads.columns import Workload
from workloads.config import WorkloadConfig

HERE = Path(__file__).parent
EQUAL_MS = 0.001
"""Two times of one request are the same; both simulators add up nanoseconds in doubles."""
LIMIT = 0.01
"""Largest relative error of a mean where the two need not be equal: KV on its way from pool to pool, SGLang's
evictions, and recomputed answers, which the peer's step times leave out."""
DRAWN_LIMIT = 0.03
"""The same of a router that draws among ties: the peer's own runs of one trace differ by so much in hits."""
BLOCK, TRACE_BLOCK = 16, 512
FIRST_OWN = 10**6
"""Block ids from here on are one request's own."""
MEANS = ("ttft_ms", "tpot_ms", "e2e_ms")


# ---- step times -----------------------------------------------------------------------------------------------


class PeerStepTime:
    """The peer's own step times, where it has no table: of a step the time of its prefill chunks and the time of its
    decodes, added. The first is quadratic in the new tokens, the second in the share of the KV memory that the batch's
    contexts would fill (the polynomial timing model of aisimulate-core). Both are whole nanoseconds."""

    def __init__(self, kv_tokens: int, decodes_ones: bool = False) -> None:
        """kv_tokens: of a replica's KV memory. decodes_ones: of a replica that only decodes, where one token over a
        context that came from elsewhere is a decode."""
        self.kv_tokens, self.decodes_ones = float(kv_tokens), decodes_ones

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        """Seconds and coverage code; see `StepTime.step`. Of several chunks the peer takes the whole part of their
        mean, times their number."""
        if self.decodes_ones:
            ones = [cached + 1 for new, cached in chunks if new == 1]
            chunks = [chunk for chunk in chunks if chunk[0] > 1]
            n_decode, sum_context = n_decode + len(ones), sum_context + sum(ones)
        ns = 0
        if chunks:
            n, cached = len(chunks), sum(cached for _, cached in chunks)
            tokens = float(n * ((sum(new for new, _ in chunks) + cached) // n - cached // n))
            if tokens:
                ns += round(1e6 * (4.209989e-07 * (tokens * tokens) + 1.518344e-02 * tokens + 1.650142e01))
        if n_decode:
            ns += round(1e6 * _decode_ms(min(sum_context / self.kv_tokens, 1.0)))  # to even, as np.rint
        return ns * 1e-9, INTERPOLATED

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds [k] and coverage codes [k]; see `StepTime.decode_stretch`."""
        contexts = np.arange(sum_context, sum_context + k * n_decode, n_decode)
        ns = np.rint(1e6 * _decode_ms(np.minimum(contexts / self.kv_tokens, 1.0)))
        return ns * 1e-9, np.full(k, INTERPOLATED, dtype=np.int8)


def _decode_ms(share: Any) -> Any:
    """Of the KV memory."""
    return -25.74 * (share * share) + 54.01 * share + 5.74


# ---- what is simulated -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One run of both simulators: a fleet and its step times. `aisimulate.toml` has them, with what the peer said."""

    name: str
    kv_blocks: int
    engine: str = "vllm"
    block_size: int = BLOCK
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192  #: SGLang: chunked_prefill_size
    caching: bool = True
    replicas: int = 1
    router: str = "round-robin"
    prefill_replicas: int = 0  #: of `replicas`
    gb_per_s: float = 50.0  #: between pools, of each replica

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Case:
        """From a table of the file; what it says of results is left out."""
        return cls(**{key: value for key, value in row.items() if key in cls.__dataclass_fields__})

    @property
    def params(self) -> EngineParams:
        common: dict[str, Any] = {
            "kv_blocks": self.kv_blocks,
            "block_size": self.block_size,
            "max_num_seqs": self.max_num_seqs,
            "caching": self.caching,
            "semantics": self.engine,
        }
        if self.engine == "sglang":
            return EngineParams(**common, chunked_prefill_size=self.max_num_batched_tokens, overlap_schedule=False)
        return EngineParams(**common, max_num_batched_tokens=self.max_num_batched_tokens, async_scheduling=False)

    def step_time(self, decodes_ones: bool = False) -> StepTime:
        return PeerStepTime(self.kv_blocks * self.block_size, decodes_ones)

    def simulate(self, workload: Workload) -> Recording:
        """kvcast's run of it."""
        from sim.simulate import run

        fleet: dict[str, Any] = {"replicas": self.replicas, "router": self.router}
        if not self.prefill_replicas:
            return run(workload, self.params, self.step_time(), **fleet)
        bytes_s = 1e9 * self.gb_per_s
        link = Link(KV_TOKEN_BYTES * self.block_size, 1, bytes_s, bytes_s)
        pools = Pools(self.prefill_replicas, self.params, self.step_time(), self.router, link, decode_first=False)
        return run(workload, self.params, self.step_time(decodes_ones=True), pools=pools, **fleet)


KV_TOKEN_BYTES = 131072
"""Llama-3.1-8B's, in 16 bits."""


@dataclass(frozen=True)
class Request:
    """One request of a small world, and what became of it in the peer. A row of `aisimulate.csv`."""

    world: str
    arrival_ms: int
    prompt_tokens: int
    output_tokens: int
    prefix: int  #: whose first blocks its prompt begins with
    prefix_blocks: int
    replica: int = 0
    first_token_ms: float = 0.0
    last_token_ms: float = 0.0
    hit_tokens: int = 0
    readmissions: int = 0

    @classmethod
    def read(cls, row: Mapping[str, str]) -> Request:
        kinds = {"world": str, "first_token_ms": float, "last_token_ms": float}
        return cls(**{key: kinds.get(key, int)(value) for key, value in row.items()})


def write_trace(requests: Sequence[Request], path: Path) -> None:
    """A world as both simulators read it: Mooncake's rows, in blocks of 16 tokens."""
    rows = []
    for i, request in enumerate(requests):
        shared = [1000 * request.prefix + block for block in range(request.prefix_blocks)]
        own = range(FIRST_OWN + 1000 * i, FIRST_OWN + 1000 * i - (-request.prompt_tokens // BLOCK) - len(shared))
        lengths = {"input_length": request.prompt_tokens, "output_length": request.output_tokens}
        rows.append(json.dumps({"timestamp": request.arrival_ms, **lengths, "hash_ids": [*shared, *own]}) + "\n")
    path.write_text("".join(rows), encoding="utf-8")


def read_trace(path: Path, block_tokens: int = BLOCK) -> Workload:
    from kvcast.api import load_workload

    return load_workload(
        WorkloadConfig(trace=str(path), format="mooncake", block_tokens=block_tokens, timestamp_unit="ms")
    )


# ---- the comparison --------------------------------------------------------------------------------------------------


class Recorded:
    """What the peer said: the two files beside this module."""

    def __init__(self, folder: Path = HERE) -> None:
        self.folder = folder

    @cached_property
    def told(self) -> dict[str, Any]:
        return tomllib.loads((self.folder / "aisimulate.toml").read_text(encoding="utf-8"))

    def worlds(self) -> Iterator[tuple[Case, list[Request]]]:
        with (self.folder / "aisimulate.csv").open(encoding="utf-8", newline="") as file:
            rows = [Request.read(row) for row in csv.DictReader(line for line in file if not line.startswith("#"))]
        for table in self.told["world"]:
            yield Case.of(table), [row for row in rows if row.world == table["name"]]

    def traces(self) -> Iterator[tuple[Case, dict[str, Any]]]:
        for table in self.told["trace"]:
            yield Case.of(table), table


def run(data_dir: Path, **_: Any) -> Outcome:
    recorded = Recorded()
    lines: list[str] = []
    figures: dict[str, Any] = {}
    fine = True
    for name, of in (("worlds", score_worlds(recorded)), ("traces", score_traces(recorded, data_dir))):
        fine = fine and of.passed
        lines += of.lines
        figures[name] = of.figures
    return Outcome("aisimulate", fine, [*lines, verdict(recorded, figures)], figures)


def verdict(recorded: Recorded, figures: Mapping[str, Any]) -> str:
    """The set in a sentence."""
    groups, traces = figures["worlds"].values(), figures["traces"].values()
    n, equal = sum(g["requests"] for g in groups), sum(g["equal"] for g in groups)
    worst = max(abs(error) for trace in traces for error in trace["errors"].values())
    return (
        f"{recorded.told['source']['name']}: {equal} of {n} requests of {sum(g['worlds'] for g in groups)} small worlds"
        f" to the microsecond, means of {len(traces)} runs of a public trace within {100 * worst:.2f} %"
    )


def score_worlds(recorded: Recorded) -> Outcome:
    """Small worlds, request by request. Where nobody was preempted both must be equal; where somebody was, as often in
    both, and the means within the limit."""
    groups: dict[str, dict[str, Any]] = {}
    for case, requests in recorded.worlds():
        found = compare_world(case, requests)
        kind = group_of(case, found["preempted"])
        group = groups.setdefault(kind, {"worlds": 0, "requests": 0, "equal": 0, "hits_equal": 0, "fine": True})
        group["worlds"] += 1
        for key in ("requests", "equal", "hits_equal"):
            group[key] += found[key]
        group["fine"] = group["fine"] and found["fine"]
        group["worst"] = max(group.get("worst", 0.0), *(abs(error) for error in found["errors"].values()))
    lines = [
        f"{kind}: {group['worlds']} worlds, {group['equal']} of {group['requests']} requests to the microsecond, hits"
        f" of {group['hits_equal']}, means within {100 * group['worst']:.2f} %{'' if group['fine'] else '  DIFFERS'}"
        for kind, group in groups.items()
    ]
    return Outcome("aisimulate", all(group["fine"] for group in groups.values()), lines, groups)


def group_of(case: Case, preempted: int) -> str:
    title = {"vllm": "vLLM's rules", "sglang": "SGLang's rules"}[case.engine]
    return f"{title}{', with preemption' if preempted else ''}"


def compare_world(case: Case, requests: Sequence[Request]) -> dict[str, Any]:
    """One world in both: how many of its requests are equal, and how far off its means are."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "world.jsonl"
        write_trace(requests, path)
        workload = read_trace(path)
    recording = case.simulate(workload)
    ours = times_ms(recording, workload)
    theirs = {
        "first": np.array([request.first_token_ms for request in requests]),
        "last": np.array([request.last_token_ms for request in requests]),
    }
    equal = np.ones(len(requests), bool)
    for key, values in theirs.items():
        equal &= np.abs(values - ours[key]) <= EQUAL_MS
    hits = np.array([request.hit_tokens for request in requests]) == recording.hit_tokens
    again, preempted = sum(request.readmissions for request in requests), int(recording.preemptions.sum())
    errors = relative(means_ms(**ours), means_ms(**{**ours, **theirs}))
    if again or preempted:
        fine = again == preempted and all(abs(error) <= LIMIT for error in errors.values())
    else:
        fine = bool(equal.all() and hits.all())
    return {
        "requests": len(requests),
        "equal": int(equal.sum()),
        "hits_equal": int(hits.sum()),
        "preempted": again,
        "errors": errors,
        "fine": fine,
    }


def score_traces(recorded: Recorded, data_dir: Path) -> Outcome:
    """The public trace, by its means, hits and preemptions."""
    trace = required(data_dir / "traces" / "mooncake" / recorded.told["source"]["trace"])
    workload = read_trace(trace, TRACE_BLOCK)
    lines: list[str] = []
    figures: dict[str, Any] = {}
    for case, theirs in recorded.traces():
        ours = trace_figures(case.simulate(workload), workload)
        errors = relative(ours, theirs)
        limit = DRAWN_LIMIT if find_router(case.router).draws else LIMIT
        fine = ours["preemptions"] == theirs["preemptions"] and all(abs(error) <= limit for error in errors.values())
        figures[case.name] = {"simulated": ours, "peer": {key: theirs[key] for key in ours}, "errors": errors}
        words = [f"{key[:-3].upper()} {ours[key]:,.3f} ms ({100 * errors[key]:+.3f} %)" for key in MEANS]
        lines.append(
            f"{case.name}: {', '.join(words)}, hits {ours['hit_tokens']:,} ({100 * errors['hit_tokens']:+.3f} %),"
            f" {ours['preemptions']} preemptions (peer {theirs['preemptions']}){'' if fine else '  DIFFERS'}"
        )
        figures[case.name]["fine"] = fine
    return Outcome("aisimulate", all(figure["fine"] for figure in figures.values()), lines, figures)


def times_ms(recording: Recording, workload: Workload) -> dict[str, np.ndarray]:
    """Arrival, first and last token in ms, and output tokens, float64 or int64 [n]."""
    return {
        "arrival": 1e3 * workload.arrival_s,
        "first": 1e3 * recording.first_token_s,
        "last": 1e3 * recording.finish_s,
        "tokens": workload.output_tokens,
    }


def means_ms(arrival: np.ndarray, first: np.ndarray, last: np.ndarray, tokens: np.ndarray) -> dict[str, float]:
    """Mean TTFT, TPOT (of answers of two tokens or more) and E2E, ms."""
    several = tokens > 1
    tpot = (last[several] - first[several]) / (tokens[several] - 1)
    return dict(zip(MEANS, map(_mean, (first - arrival, tpot, last - arrival)), strict=True))


def trace_figures(recording: Recording, workload: Workload) -> dict[str, Any]:
    """What of a run of the trace is compared."""
    return {
        **means_ms(**times_ms(recording, workload)),
        "hit_tokens": int(recording.hit_tokens.sum()),
        "preemptions": int(recording.preemptions.sum()),
    }


def relative(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    """Relative errors of the means, and of hit tokens where both have them."""
    keys = [key for key in (*MEANS, "hit_tokens") if key in ours and key in theirs]
    return {key: ours[key] / theirs[key] - 1 if theirs[key] else 0.0 for key in keys}


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else 0.0
