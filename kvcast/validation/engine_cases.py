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
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.readers.engine_case import read_case, to_workload, unknown_settings

FOLDERS = ("engine_cases_v2", "engine_modes")
"""Of the reference data."""
NOT_SIMULATED = {"prefix_match_unit": "prefix_match_unit, hits inside a block"}
"""Settings of modes, and what they are called."""
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
    """Replay every case of the folder `cases`, by default those of the reference data."""
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
    for key, what in NOT_SIMULATED.items():
        if config.get(key):
            return f"{what} (rules not simulated)"
    for key, known in REPLAYED[engine].known.items():
        if isinstance(config.get(key), str) and config[key] not in known:
            return f"{engine} {key} {config[key]} (rules not simulated)"
    return ""


class Replay(NamedTuple):
    """What the simulator did with a case."""

    workload: Workload
    recording: Recording
    log: list[tuple]  #: its step log
    scheduler: Any  #: as it was at the end


def differences(case: dict[str, Any]) -> list[str]:
    """Replay one case; the first differing step, request and tree node, and every total that differs, in words."""
    return list(compare(case, replay(case)))


def replay(case: dict[str, Any]) -> Replay:
    workload, params = to_workload(case)
    log: list[tuple] = []
    replicas: list[Replica] = []
    recording = simulate(workload, EngineParams(**params), UnitStep(), step_log=log, on_end=replicas.extend)
    return Replay(workload, recording, log, replicas[0].scheduler)


def compare(case: dict[str, Any], did: Replay) -> Iterator[str]:
    """How a replay differs from what the case expects."""
    _check_expected(case)
    workload, recording, log, scheduler = did
    expected, replayed = case["expected"], REPLAYED[case["engine"]]
    ids = sorted(request["id"] for request in case["requests"])
    summary = expected.get("summary", {})
    yield from _step_differences(log, expected["steps"], replayed.columns, ids)
    yield from _request_differences(recording, scheduler, workload, expected["requests"])
    yield from _total_differences(_totals(recording, log) | replayed.totals(recording, scheduler, log), summary)
    yield from replayed.at_end(scheduler, ids, summary)


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


def _step_differences(
    log: list[tuple], expected: list[list], columns: tuple[str, ...], ids: list[int]
) -> Iterator[str]:
    named = {
        "scheduled": lambda pairs: [[ids[row], tokens] for row, tokens in pairs],
        "preempted": lambda rows: [ids[row] for row in rows],
        "retracted": lambda rows: [ids[row] for row in rows],
    }
    for (_, *row), want in zip(log, expected, strict=False):
        got = [named[name](field) if name in named else field for name, field in zip(columns, row, strict=True)]
        if got != want:
            column = next(name for name, a, b in zip(columns, got, want, strict=True) if a != b)
            yield f"step {want[0]}: {column} differs: expected {want}, got {got}"
            return
    if len(log) != len(expected):
        yield f"{len(log)} steps, expected {len(expected)}"


def _queue_differences(scheduler: Any, ids: list[int], summary: dict[str, Any]) -> Iterator[str]:
    """vLLM's free queue at the end, in order: blocks without content first, which a case writes as null; a case names a
    block by a request with its text and an index."""
    want, cache = summary.get("final_free_queue"), scheduler.cache
    if scheduler.p.policy != "lru":
        return  # no other cache is a queue
    named_by = _names(scheduler, ids)
    got = [None] * cache.blank + (cache.free_queue() if scheduler.p.caching else [])
    unique = len(set(filter(None, got)))
    if summary.get("final_unique_cached_hashes", unique) != unique:
        yield f"final_unique_cached_hashes expected {summary['final_unique_cached_hashes']}, got {unique}"
    if want is None:
        return
    if len(want) != len(got):
        yield f"free queue at the end: expected {len(want)} blocks, got {len(got)}"
    for place, (block, told) in enumerate(zip(got, want, strict=False)):
        named = None if told is None else named_by(*told)
        if block != named or (told is not None and named is None):
            yield f"free queue at the end: place {place} is not {told or 'empty'}"
            return


def _names(scheduler: Any, ids: list[int]) -> Callable[..., tuple[int, int] | None]:
    """(node, block) that a case names by a request and an index, with several KV groups by a request, the tokens up to
    the block's end, and a group."""
    row_of = {request: row for row, request in enumerate(ids)}
    if not hasattr(scheduler, "group_paths"):
        paths = {request: scheduler.paths.build(row) for request, row in row_of.items()}
        return lambda request, index: _block(paths.get(request, []), index)
    rules = scheduler.cache.rules
    grouped = {request: scheduler.group_paths.build(row) for request, row in row_of.items()}

    def name(request: int, index: int, group: int | None = None) -> tuple[int, int] | None:
        block = index if group is None else index // rules[group].b - 1
        return _block(grouped[request][group or 0], block) if request in grouped else None

    return name


def _block(path: list[tuple[int, int]], index: int) -> tuple[int, int] | None:
    return next(((node, index) for node, end in path if 0 <= index < end), None)


def _total_differences(totals: dict[str, Any], summary: dict[str, Any]) -> Iterator[str]:
    """Every total that a case states, against the run's own."""
    for name, got in totals.items():
        want = summary.get(name, got)
        if abs(want - got) > 1e-6 if isinstance(got, float) else want != got:
            yield f"{name} expected {want}, got {got}"


def _totals(recording: Recording, log: list[tuple]) -> dict[str, Any]:
    done = int((recording.status == COMPLETED).sum())
    return {"n": len(recording.status), "finished": done, "steps": len(log)}


def _sglang_totals(recording: Recording, scheduler: Any, log: list[tuple]) -> dict[str, Any]:
    cache, b = scheduler.cache, scheduler.b
    return {
        "retractions": int(recording.preemptions.sum()),
        "evicted_tokens": cache.evicted * b,
        "final_available": cache.blank * b,
        "final_evictable": cache.idle * b,
        "final_protected": (cache.total - cache.blank - cache.idle - scheduler.private_pages()) * b,
        "final_new_token_ratio": float(scheduler.new_token_ratio.value()),
    }


def _vllm_totals(recording: Recording, scheduler: Any, log: list[tuple]) -> dict[str, Any]:
    cache, again = scheduler.cache, _readmissions(scheduler)
    counts = int(scheduler.p.caching)  # without a prefix cache vLLM counts no look-up
    return {
        "preemptions": int(recording.preemptions.sum()),
        "total_scheduled_tokens": sum(tokens for row in log for _, tokens in row[2]),
        "allocated_blocks": cache.taken,
        "evicted_blocks": cache.evicted,
        "final_free_blocks": cache.blank + cache.idle,
        "final_cached_blocks": cache.idle,
        "stats": {
            "requests": len(recording.status) * counts,
            "queries": sum(scheduler.log.prompt) * counts,
            "hits": int(recording.hit_tokens.sum()),
            "preempted_requests": len(again) * counts,
            "preempted_queries": int(again[:, 2].sum()) * counts,
            "preempted_hits": int(again[:, 1].sum()),
        },
    }


def _readmissions(scheduler: Any) -> np.ndarray:
    """int64 [n, 3]: request, hit and known tokens of every admission after a preemption."""
    return np.array(scheduler.log.readmissions, np.int64).reshape(-1, 3)


def _tree_differences(scheduler: Any, ids: list[int], summary: dict[str, Any]) -> Iterator[str]:
    """SGLang's tree at the end, node by node. Of its logical times only the order matters."""
    got = scheduler.cache.rows(scheduler.b) if scheduler.cache.caching else []
    for key, value in (("final_nodes", len(got)), ("final_cached_tokens", sum(row[1] for row in got))):
        if summary.get(key, value) != value:
            yield f"{key} expected {summary[key]}, got {value}"
    if summary.get("final_tree") is None:
        return
    # the root has no pages; tokens have no values here
    want = [[parent, tokens, *rest] for parent, tokens, _, *rest in summary["final_tree"][1:]]
    for index, (a, b) in enumerate(zip(_ranked(want), _ranked(got), strict=False), 1):
        if a != b:
            yield f"tree node {index} (parent, tokens, hits, priority, access, creation, lock): expected {a}, got {b}"
            return
    if len(want) != len(got):
        yield f"a tree of {len(got)} nodes, expected {len(want)}"


def _ranked(rows: list[list[Any]]) -> list[list[Any]]:
    """With their times of access and creation as ranks among all of them."""
    times = sorted({time for row in rows for time in row[4:6]})
    rank = {time: place for place, time in enumerate(times)}
    return [[*row[:4], rank[row[4]], rank[row[5]], *row[6:]] for row in rows]


class Replayed(NamedTuple):
    """What the cases of one engine say beside their requests."""

    columns: tuple[str, ...]  #: of a step
    known: dict[str, Collection[str]]  #: values of its settings whose rules are simulated
    totals: Callable[[Recording, Any, list[tuple]], dict[str, Any]]  #: of a recording, its scheduler and its step log
    at_end: Callable[[Any, list[int], dict[str, Any]], Iterator[str]]  #: how what is cached differs from the summary


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
        _vllm_totals,
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
        _sglang_totals,
        _tree_differences,
    ),
}


def _request_differences(
    recording: Recording, scheduler: Any, workload: Workload, expected: list[dict[str, Any]]
) -> Iterator[str]:
    again: dict[int, list[int]] = {}
    for row, hit, _ in _readmissions(scheduler).tolist():
        again.setdefault(row, []).append(hit)
    for row, want in enumerate(sorted(expected, key=lambda r: r["id"])):
        got = request_row(recording, row)
        got |= {
            "all_admission_cached_tokens": [got["first_admission_cached_tokens"], *again.get(row, [])],
            "prompt_tokens": int(workload.prompt_tokens[row]),
            "output_tokens": int(workload.output_tokens[row]),
        }
        wanted = {name: want.get(name, got[name]) for name in got}
        wanted["preemptions"] = want.get("preemptions", want.get("retractions"))
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
        "preemptions": int(recording.preemptions[row]),
        "admit_step": float(recording.admit_s[row]),
        "first_token_step": float(recording.first_token_s[row]) - 1.0,
        "finish_step": float(recording.finish_s[row]) - 1.0,
        "status": STATUS[int(recording.status[row])],
    }


def _case_files(data_dir: Path | None, cases: Path | str | None) -> list[Path]:
    if cases is None and data_dir is None:
        raise InputError("engine-cases: no folder given, expected --cases DIR or KVCAST_DATA set to the reference data")
    folders = [Path(cases)] if cases is not None else [Path(data_dir or "", folder) for folder in FOLDERS]
    return [path for folder in folders for path in _files_of(folder)]


def _files_of(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder, expected one with engine cases (*.json, *.json.xz)")
    files = sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.xz")))
    if not files:
        raise InputError(f"{folder}: no *.json or *.json.xz file, expected engine cases")
    return files
