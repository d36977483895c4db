"""Examines a folder that kvcast wrote: part by part, every byte against the sizes and checksums written with it.

>>> [(one.path, one.wrong, one.remedy) for one in examine(Path("plans/agent")) if one.wrong]
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcast.store import parquet, runs, simulations, workload_folder
from workloads.errors import InputError
from workloads.files import is_locked

MADE_OF_RUNS = ("runs", "sketches", "what-if", "workload")
"""Folders of parts inside what a sweep, a plan or kvcast resilience writes."""
SWEEP, TABLE = "sweep.json", "sweep.parquet"
ANSWERS = ("plan.json", "resilience.json")
"""What a plan and kvcast resilience write last; a sweep writes its table last."""


@dataclass(frozen=True)
class Part:
    """A run, a kept simulation, a workload or a file, and what is wrong with it: "" where it is whole."""

    path: Path
    wrong: str = ""
    remedy: str = ""


def examine(folder: Path) -> list[Part]:
    """Every part of a folder. Raises InputError for one that kvcast did not write."""
    if not folder.is_dir():
        raise InputError(f"{folder}: {'not a' if folder.exists() else 'no such'} folder; expected what --out wrote")
    names = {path.name for path in folder.iterdir()}
    if names & runs.FILES and not names & set(MADE_OF_RUNS):
        return [_run(folder, "run its scenario again")]
    if not names & {*MADE_OF_RUNS, SWEEP}:
        raise InputError(
            f"{folder}: holds no run; expected a folder of kvcast run, sweep, plan, compare or resilience --out"
        )
    found = [_of_a_lab(part) for kind in MADE_OF_RUNS for part in _inside(folder / kind)]
    files = [_file(path) for path in sorted(folder.iterdir()) if path.is_file()]
    missing = _unfinished_sweep(folder) if SWEEP in names else _without_answer(names)
    return [*found, *files, *([Part(folder, f"not finished: {missing}", AGAIN)] if missing else ())]


def as_document(folder: Path, found: list[Part]) -> dict[str, Any]:
    """The answer as --json prints it."""
    sick = [{"path": str(one.path), "wrong": one.wrong, "remedy": one.remedy} for one in found if one.wrong]
    return {"folder": str(folder), "whole": not sick, "parts": len(found), "damaged": sick}


AGAIN = "give the same command again: only what is missing is simulated"


def _unfinished_sweep(folder: Path) -> str:
    """What the sweep last asked for still lacks; "" for nothing, and where sweep.json is damaged."""
    try:
        asked = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
        names = {str(name) for name in asked.get("runs", ())}
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return ""
    there = sum((folder / "runs" / name).is_dir() for name in names)
    lacks = [f"{there:,} of {len(names):,} runs"] if names else []
    if not (folder / TABLE).exists():
        return ", ".join([*lacks, f"no {TABLE}"])
    if names and _tabled(folder / TABLE) not in (names, None):
        return ", ".join([*lacks, f"{TABLE} is of an earlier grid"])
    return ", ".join(lacks) if there < len(names) else ""


def _tabled(path: Path) -> set[str] | None:
    """The runs of a sweep's table; None of a damaged one, which is said of the file."""
    try:
        return {str(name) for name in parquet.Table(path)["run"]}
    except (OSError, ValueError, KeyError):
        return None


def _without_answer(names: set[str]) -> str:
    return "" if names & {*ANSWERS, TABLE} else f"no {' or '.join(ANSWERS)}"


def _inside(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(folder.iterdir())


def _of_a_lab(part: Path) -> Part:
    again = f"remove {part} and give the same command again: only what is missing is simulated"
    if part.name.startswith("."):
        if part.is_dir() and is_locked(part):
            return Part(part)  # being written
        return Part(part, "left by a killed writer", f"remove {part}, or give the same command again")
    if part.parent.name == "workload":
        return Part(part) if workload_folder.is_whole(part) else Part(part, "damaged", again)
    wrong = simulations.damage(part)
    if wrong is not None:
        return Part(part, wrong or "no result in it", again)
    return _run(part, again) if (part / "run.json").exists() else Part(part)


def _run(folder: Path, remedy: str) -> Part:
    """A run folder, each table read whole."""
    try:
        run = runs.load_run(folder)
        wrong = runs.damage(folder, run.info)
        for name in run.tables if wrong is None else ():
            parquet.Table(folder / f"{name}.parquet").check()
    except InputError as error:
        wrong = str(error).removeprefix(f"{folder}: ").removeprefix(f"{folder}/")
    return Part(folder, wrong or "", remedy if wrong else "")


def _file(path: Path) -> Part:
    """A file beside the runs: it is written anew by the same command."""
    try:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".toml":
            tomllib.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".parquet":
            parquet.Table(path).check()
    except (OSError, ValueError, RecursionError) as error:
        return Part(path, f"damaged ({error})", "give the same command again: it is written anew")
    return Part(path)
