"""Replays recorded engine cases step by step: what the engine did against what the simulator does.

The one idea: with a step time of one second the clock at a step's start is its recorded number, so schedules,
preemptions, block counts and every request's milestones must be equal, not close; so must what is cached at the end:
vLLM's free queue in order, SGLang's radix tree, and the counts of the case's summary.

    $ kvcast validate engine-cases --cases DIR

A case counts as one mismatch however much of it differs; the first differing step and request are shown. Cases of
engines or features that are not simulated are skipped, counted by reason; a file that is no case fails with a line that
names it, and the others are replayed all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvcast.validation import Outcome
from sim import sglang
from sim.fleet.replica import Replica
from sim.recording import COMPLETED, STATUS, Recording
from sim.scenario import EngineParams
from sim.simulate import run as simulate
from sim.vllm.waiting import QUEUES
from workloads.errors import InputError
from workloads.readers.engine_case import read_case, to_workload, unknown_settings

EXPECTED = (
    "id",
    "first_admission_cached_tokens",
    "all_admission_cached_tokens",
    "admit_step",
    "first_token_step",
    "finish_step",
)
"""Fields of an expected request, beside its preemptions or retractions."""


class UnitStep:
    """One second a step, whatever it holds."""

    def step(self, chunks: Any, n_decode: int, sum_context: int, max_context: int, n_sampled: int) -> tuple[float, int]:
        return 1.0, 0

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(k), np.zeros(k, np.int8)


def run(data_dir: Path | None, cases: Path | str | None = None, **_: Any) -> Outcome:
    """Replay every case of the folder `cases`, by default `engine_cases` of the reference data."""
    files = _case_files(data_dir, cases)
    lines: list[str] = []
    skipped: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {}
    malformed = 0
    for path in files:
        try:
            case = read_case(path)
            reason = not_simulated(case)
            found = [] if reason else differences(case)
        except InputError as problem:
            malformed += 1
            lines.append(str(problem) if path.name in str(problem) else f"{path}: {problem}")
            continue
        if reason:
            skipped[reason] += 1
            continue
        count = counts.setdefault(case["engine"], Counter())
        count.update(
            cases=1, requests=len(case["requests"]), steps=len(case["expected"]["steps"]), mismatches=int(bool(found))
        )
        lines += [f"{case['case']}: {line}" for line in found]
        unknown = unknown_settings(case)
        if unknown:
            lines.append(f"{case['case']}: replayed without {', '.join(unknown)}, which kvcast does not know")
    if skipped:
        lines.append(
            f"skipped {sum(skipped.values())}: " + ", ".join(f"{n} {reason}" for reason, n in sorted(skipped.items()))
        )
    total = sum(counts.values(), Counter())
    if len(counts) > 1:
        lines += [f"{engine}: {_counted(count)}" for engine, count in sorted(counts.items())]
    if malformed:
        lines.append(f"{malformed} of {len(files)} files could not be replayed")
    lines.append(_counted(total))
    figures: dict[str, Any] = {key: total[key] for key in ("cases", "requests", "steps", "mismatches")}
    figures |= {
        "skipped": sum(skipped.values()),
        "malformed": malformed,
        "engines": {engine: dict(count) for engine, count in sorted(counts.items())},
    }
    return Outcome("engine-cases", total["mismatches"] == 0 and total["cases"] > 0 and not malformed, lines, figures)


def _counted(count: Counter[str]) -> str:
    return f"{count['cases']} cases, {count['requests']} requests, {count['mismatches']} mismatches"


def not_simulated(case: dict[str, Any]) -> str:
    """Why a case cannot be replayed; empty when it can."""
    config = case["config"] if isinstance(case["config"], dict) else {}
    engine = case["engine"]
    if engine not in REPLAYED:
        return f"{engine} (its semantics are not simulated)"
    if config.get("sliding_window"):
        return "sliding window (rules not simulated)"
    for key, known in REPLAYED[engine].known.items():
        if isinstance(config.get(key), str) and config[key] not in known:
            return f"{engine} {key} {config[key]} (rules not simulated)"
    return ""


def differences(case: dict[str, Any], fast_forward: bool = True) -> list[str]:
    """Replay one case; the first differing step, request and tree node, in words."""
    workload, params = to_workload(case)
    _check_expected(case)
    log: list[tuple] = []
    replicas: list[Replica] = []
    recording = simulate(
        workload, EngineParams(**params), UnitStep(), fast_forward=fast_forward, step_log=log, on_end=replicas.extend
    )
    expected, replayed = case["expected"], REPLAYED[case["engine"]]
    return [
        *_step_differences(log, expected["steps"], replayed.columns),
        *_request_differences(recording, expected["requests"]),
        *replayed.at_end(replicas[0].scheduler, case),
    ]


def _check_expected(case: dict[str, Any]) -> None:
    """InputError unless the case says of every step and request what is compared."""
    name, expected = case["case"], case["expected"]
    columns = len(REPLAYED[case["engine"]].columns)
    steps, rows = (expected.get(key) if isinstance(expected, dict) else None for key in ("steps", "requests"))
    if not isinstance(steps, list) or not all(isinstance(step, list) and len(step) == columns for step in steps):
        raise InputError(f"{name}: expected steps is no list of rows with {columns} columns")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{name}: expected requests is no list of objects")
    for position, row in enumerate(rows):
        missing = [key for key in EXPECTED if key not in row]
        if missing or not ("preemptions" in row or "retractions" in row):
            raise InputError(
                f"{name}: expected requests, row {position}: field {(missing or ['preemptions'])[0]!r} is missing"
            )
    if sorted(row["id"] for row in rows) != sorted(request["id"] for request in case["requests"]):
        raise InputError(f"{name}: expected requests has other ids than requests")


def _step_differences(log: list[tuple], expected: list[list], columns: tuple[str, ...]) -> Iterator[str]:
    for (_, *row), want in zip(log, expected, strict=False):
        got = [
            [list(pair) for pair in field] if name == "scheduled" else field
            for name, field in zip(columns, row, strict=True)
        ]
        if got != want:
            column = next(name for name, a, b in zip(columns, got, want, strict=True) if a != b)
            yield f"step {want[0]}: {column} differs: expected {want}, got {got}"
            return
    if len(log) != len(expected):
        yield f"{len(log)} steps, expected {len(expected)}"


def _queue_differences(scheduler: Any, case: dict[str, Any]) -> Iterator[str]:
    """vLLM's cache at the end: the full blocks in its free queue, in order; a case names a block by a request with its
    text and an index."""
    if not scheduler.p.caching or scheduler.p.policy != "lru":
        return  # another policy has no queue
    ids, summary = sorted(request["id"] for request in case["requests"]), case["expected"].get("summary", {})
    got, paths = scheduler.cache.free_queue(), [scheduler.paths.build(row) for row in range(len(ids))]
    want = summary.get("final_cached_blocks", len(got))
    if want != len(got):
        yield f"cached blocks at the end: expected {want}, got {len(got)}"
    path = dict(zip(ids, paths, strict=True))
    for place, (block, (request, index)) in enumerate(
        zip(got, filter(None, summary.get("final_free_queue") or ()), strict=False)
    ):
        if block != next(((node, index) for node, end in path.get(request, ()) if index < end), None):
            yield f"free queue at the end: cached block {place} is not block {index} of request {request}"
            return


def _tree_differences(scheduler: Any, case: dict[str, Any]) -> Iterator[str]:
    """SGLang's state at the end: its tree, node by node with the logical clock, and the ratio its admission had come
    to."""
    summary = case["expected"].get("summary", {})
    ratio = summary.get("final_new_token_ratio")
    if ratio is not None and abs(scheduler.new_token_ratio.value() - ratio) > 1e-6:
        yield f"new token ratio at the end: expected {ratio}, got {scheduler.new_token_ratio.value():.6f}"
    if not scheduler.cache.caching:
        return
    got = scheduler.cache.rows(scheduler.b)
    for key, value in (("final_nodes", len(got)), ("final_cached_tokens", sum(row[1] for row in got))):
        if summary.get(key, value) != value:
            yield f"{key} expected {summary[key]}, got {value}"
    rows = summary.get("final_tree")
    if rows is None:
        return
    want = [
        [parent, tokens, *rest] for parent, tokens, _, *rest in rows[1:]
    ]  # the root has no pages; tokens have no values here
    for index, (a, b) in enumerate(zip(want, got, strict=False), 1):
        if a != b:
            yield f"tree node {index} (parent, tokens, hits, priority, access, creation, lock): expected {a}, got {b}"
            return
    if len(want) != len(got):
        yield f"a tree of {len(got)} nodes, expected {len(want)}"


class Replayed(NamedTuple):
    """What the cases of one engine record beside its requests."""

    columns: tuple[str, ...]  #: of a step
    known: dict[str, Collection[str]]  #: values of its settings whose rules are simulated
    at_end: Callable[[Any, dict[str, Any]], Iterator[str]]  #: its scheduler's differences from the case, in words


REPLAYED = {
    "vllm": Replayed(
        (
            "step number",
            "scheduled",
            "preempted",
            "blocks allocated",
            "blocks evicted",
            "free blocks",
            "running",
            "waiting",
        ),
        {"policy": QUEUES, "preemption_victim": ("fcfs", "lcf")},
        _queue_differences,
    ),
    "sglang": Replayed(
        (
            "step number",
            "kind",
            "scheduled",
            "retracted",
            "tokens evicted",
            "available",
            "evictable",
            "protected",
            "waiting",
        ),
        {"schedule_policy": sglang.ORDERS, "eviction_policy": sglang.POLICIES, "retraction_policy": sglang.RETRACTION},
        _tree_differences,
    ),
}


def _request_differences(recording: Recording, expected: list[dict[str, Any]]) -> Iterator[str]:
    for row, want in enumerate(sorted(expected, key=lambda r: r["id"])):
        got = request_row(recording, row)
        wanted = {name: want[name] for name in got if name in want}
        wanted["preemptions"] = want.get("preemptions", want.get("retractions"))
        wanted["readmission_cached_tokens"] = sum(want["all_admission_cached_tokens"][1:])
        wanted["status"] = STATUS[COMPLETED]
        wrong = [name for name in got if got[name] != wanted[name]]
        if wrong:
            yield f"request {want['id']}: " + ", ".join(
                f"{name} expected {wanted[name]}, got {got[name]}" for name in wrong
            )
            return


def request_row(recording: Recording, row: int) -> dict[str, Any]:
    """One request in the terms of a recorded case (steps of one second)."""
    return {
        "first_admission_cached_tokens": int(recording.hit_tokens[row]),
        "readmission_cached_tokens": int(recording.readmission_hit_tokens[row]),
        "preemptions": int(recording.preemptions[row]),
        "admit_step": float(recording.admit_s[row]),
        "first_token_step": float(recording.first_token_s[row]) - 1.0,
        "finish_step": float(recording.finish_s[row]) - 1.0,
        "status": STATUS[int(recording.status[row])],
    }


def _case_files(data_dir: Path | None, cases: Path | str | None) -> list[Path]:
    if cases is None and data_dir is None:
        raise InputError("engine-cases: no folder given, expected --cases DIR or KVCAST_DATA set to the reference data")
    folder = Path(cases) if cases is not None else Path(data_dir or "", "engine_cases")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder, expected one with engine cases (*.json, *.json.xz)")
    files = sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.xz")))
    if not files:
        raise InputError(f"{folder}: no *.json or *.json.xz file, expected engine cases")
    return files
