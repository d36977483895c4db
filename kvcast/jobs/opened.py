"""Runs that the command line made, opened in the dashboard: each becomes a finished job of the server's.

The one idea: a run folder is what a job leaves, so it is linked (or copied) under the name that its scenario has here.

    >>> opened(Runner(Path("runs/dashboard")), [Path("runs/a"), Path("plans/b")])
    {'runs/a': '4f0c...', 'plans/b': '09ab...'}
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from kvcast.config import naming
from kvcast.jobs.runner import Runner, key_of
from kvcast.store.runs import load_run
from workloads.errors import InputError

RUNS = "KVCAST_OPENED"
"""Environment: {name: key} of the runs that `kvcast dashboard RUN` was given, JSON."""


def opened(runner: Runner, folders: Sequence[Path]) -> dict[str, str]:
    """{folder as given: key of its job}. Raises InputError for one that is no run's, nor a plan's with its runs."""
    return {str(folder): _adopted(runner, run_in(folder)) for folder in folders}


def run_in(folder: Path) -> Path:
    """The run folder itself, or the one that a plan's answer rests on."""
    plan = folder / "plan.json"
    if not plan.is_file():
        return folder
    try:
        return folder / "runs" / str(json.loads(plan.read_text(encoding="utf-8"))["answer"]["run"])
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{folder}: a plan whose answer has no run, expected a run folder (kvcast run --out)"
        ) from None


def _adopted(runner: Runner, folder: Path) -> str:
    with naming(str(folder)):
        load_run(folder)
    scenario = (folder / "scenario.toml").read_text(encoding="utf-8")
    key = key_of(scenario, ("run",))
    place = runner.root / key
    if not (place / "run.json").is_file():
        shutil.rmtree(place, ignore_errors=True)
        partial = runner.root / f".{key}.{os.getpid()}"
        shutil.copytree(folder, partial, copy_function=_linked)
        os.replace(partial, place)
    place.with_suffix(".toml").write_text(scenario, encoding="utf-8")
    return key


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without
        shutil.copy2(source, target)


def listed() -> dict[str, str]:
    """{name: key} of the runs that the server was started with."""
    return dict(json.loads(os.environ.get(RUNS, "{}")))
