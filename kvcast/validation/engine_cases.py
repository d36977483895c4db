"""Replays recorded engine cases step by step: what the engine did against what the simulator does.

The one idea: with a step time of one second the clock at a step's start is its recorded number, so schedules, preemptions,
block counts and every request's milestones must be equal, not close.

    $ kvcast validate engine-cases --cases DIR

A case counts as one mismatch however much of it differs; the first differing step and request are shown. Cases of
engines or features that are not simulated are skipped, counted by reason.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.validation import Outcome
from sim.recording import COMPLETED, STATUS, Recording
from sim.scenario import EngineParams
from sim.simulate import run as simulate
from workloads.errors import InputError
from workloads.readers.engine_case import read_case, to_workload, unknown_settings

COLUMNS = ("step number", "scheduled", "preempted", "blocks allocated", "blocks evicted", "free blocks", "running", "waiting")


class UnitStep:
    """One second a step, whatever it holds."""

    def step(self, chunks: Any, n_decode: int, sum_context: int, max_context: int, n_sampled: int) -> tuple[float, int]:
        return 1.0, 0

    def decode_stretch(self, n_decode: int, sum_context: int, max_context: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(k), np.zeros(k, np.int8)


def run(data_dir: Path | None, cases: Path | str | None = None, **_: Any) -> Outcome:
    """Replay every case of the folder `cases`, by default `engine_cases` of the reference data."""
    files = _case_files(data_dir, cases)
    lines: list[str] = []
    skipped: Counter[str] = Counter()
    n_requests = n_steps = mismatches = 0
    for path in files:
        case = read_case(path)
        reason = not_simulated(case)
        if reason:
            skipped[reason] += 1
            continue
        n_requests += len(case["requests"])
        n_steps += len(case["expected"]["steps"])
        found = differences(case)
        mismatches += bool(found)
        lines += [f"{case['case']}: {line}" for line in found]
        unknown = unknown_settings(case)
        if unknown:
            lines.append(f"{case['case']}: replayed without {', '.join(unknown)}, which kvcast does not know")
    n_cases = len(files) - sum(skipped.values())
    if skipped:
        lines.append(f"skipped {sum(skipped.values())}: " + ", ".join(f"{n} {reason}" for reason, n in sorted(skipped.items())))
    lines.append(f"{n_cases} cases, {n_requests} requests, {mismatches} mismatches")
    figures = {
        "cases": n_cases, "requests": n_requests, "steps": n_steps, "mismatches": mismatches, "skipped": sum(skipped.values()),
    }  # fmt: skip
    return Outcome("engine-cases", mismatches == 0 and n_cases > 0, lines, figures)


def not_simulated(case: dict[str, Any]) -> str:
    """Why a case cannot be replayed; empty when it can."""
    if case["engine"] != "vllm":
        return f"{case['engine']} (its semantics are not simulated)"
    if case["config"].get("async_scheduling"):
        return "asynchronous scheduling (rules not simulated)"
    if case["config"].get("sliding_window"):
        return "sliding window (rules not simulated)"
    return ""


def differences(case: dict[str, Any], fast_forward: bool = True) -> list[str]:
    """Replay one case; the first differing step and the first differing request, in words."""
    workload, params = to_workload(case)
    log: list[tuple] = []
    recording = simulate(workload, EngineParams(**params), UnitStep(), fast_forward=fast_forward, step_log=log)
    found = [*_step_differences(log, case["expected"]["steps"]), *_request_differences(recording, case["expected"]["requests"])]
    return found


def _step_differences(log: list[tuple], expected: list[list]) -> Iterator[str]:
    for (_, start_s, scheduled, preempted, *counts), want in zip(log, expected, strict=False):
        got = [start_s, [list(pair) for pair in scheduled], list(preempted), *counts]
        if got != want:
            column = next(name for name, a, b in zip(COLUMNS, got, want, strict=True) if a != b)
            yield f"step {want[0]}: {column} differs: expected {want}, got {got}"
            return
    if len(log) != len(expected):
        yield f"{len(log)} steps, expected {len(expected)}"


def _request_differences(recording: Recording, expected: list[dict[str, Any]]) -> Iterator[str]:
    for row, want in enumerate(sorted(expected, key=lambda r: r["id"])):
        got = request_row(recording, row)
        wanted = {name: want[name] for name in got if name in want}
        wanted["readmission_cached_tokens"] = sum(want["all_admission_cached_tokens"][1:])
        wanted["status"] = STATUS[COMPLETED]
        wrong = [name for name in got if got[name] != wanted[name]]
        if wrong:
            yield f"request {want['id']}: " + ", ".join(f"{name} expected {wanted[name]}, got {got[name]}" for name in wrong)
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
