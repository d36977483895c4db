"""Run folders: one simulation on disk, complete or not there at all.

    scenario.toml     the scenario with every default resolved; runs again as it is
    summary.json      every number, the document `kvcast run --json` prints
    requests.parquet  one row per request: times, tokens, hits, causes of missed tokens, GPU-hours
    cache.parquet     prompt tokens of the window by class, time, scope and fate (hit, or the cause of the miss)
    timeline.parquet  KV occupancy, queue, hit rate and causes of missed tokens over time sessions.parquet  requests and
    GPU-hours per session aggregates.json   latency curves by class and the slowest requests: what a page draws,
    whatever the number of requests
    twins.parquet     the window's requests of the runs beside it (its cache off; all steps slower, all faster), as far
                      as limits are judged by them
    steps.parquet     engine steps, when asked for
    access.parquet    every run of prompt tokens looked up in a cache, when asked for (sim.measure.access)
    run.json          when, which version, which machine kind, size and checksum of the others: the only file that
                      differs between equal runs

The folder is written beside its place and renamed, so a reader never sees half of one. A replaced run is moved aside
until the new one has its name; what a killed process leaves in between is put right by the next save or load. Of
several processes that write the same folder, the last one wins.

    >>> from kvcast import load_run
    >>> load_run("runs/demo").summary["prefix_hit_rate"]
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import kvcast
from kvcast import text
from kvcast.store import aggregates, checksums, parquet
from sim.measure import judged
from sim.measure.access import accesses, names
from sim.scenario import Scenario
from workloads.errors import InputError
from workloads.files import is_locked, lock, locked, naming, on_disk, unlock

if TYPE_CHECKING:
    from kvcast.api import Result
    from sim.measure.report import Report
    from workloads.columns import Workload

FORMAT = 2
SMALL = ("scenario.toml", "summary.json", "aggregates.json")
"""Looked at whenever a run is opened."""
CACHE_OFF = "cache off"
"""Name of the twin with the prefix cache off."""
TABLES = ("requests", "cache", "timeline", "sessions")
OPTIONAL = ("twins", "steps", "access")
AT_ONCE = 1 << 20
"""Steps that are a row group, or those of one replica where it has more."""
FILES = {
    "scenario.toml",
    "summary.json",
    "aggregates.json",
    "run.json",
    *(f"{name}.parquet" for name in (*TABLES, *OPTIONAL)),
}


@dataclass(frozen=True)
class Run:
    """A run folder, read back. Tables are numpy columns, read one by one when asked for; those of OPTIONAL are there
    when they were written."""

    folder: Path
    scenario: Scenario
    summary: dict[str, Any]
    info: dict[str, Any]
    aggregates: dict[str, Any]  #: kvcast.store.aggregates
    tables: Mapping[str, Mapping[str, np.ndarray]]


def save_run(
    folder: str | Path,
    result: Result,
    baseline: Result | None = None,
    steps: bool = False,
    access_of: Workload | None = None,
    twins: Mapping[str, Mapping[str, np.ndarray]] | None = None,
) -> Path:
    """Write a run folder, replacing an earlier run of the same name. Raises InputError rather than overwrite anything
    else.

    access_of: the run's workload, to write its access log as well. twins: columns of requests of the runs beside it, by
    the twin's name.
    """
    folder = Path(os.path.realpath(folder))
    check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with naming(folder), locked(folder.parent):
        _settle(folder)
        partial = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.new"
        partial.mkdir()
        writing = lock(partial)
    try:
        with naming(folder):
            _write(partial, result, baseline, steps)
            beside = {**({} if baseline is None else {CACHE_OFF: baseline.report.requests}), **(twins or {})}
            if beside:
                parquet.write(partial / "twins.parquet", _twins_table(beside))
            if access_of is not None:
                parquet.write_batches(
                    partial / "access.parquet", accesses(access_of, result.report.requests), names(access_of)
                )
            info = {**_info(result), "files": checksums.of(partial)}
            (partial / "run.json").write_text(text.to_json(info) + "\n", encoding="utf-8")  # last: the run is complete
            for path in (*partial.iterdir(), partial):
                on_disk(path)
            with locked(folder.parent):
                check_replaceable(folder)
                _put_in_place(partial, folder)
    finally:
        unlock(writing)
        with locked(folder.parent):
            _settle(folder)
    return folder


def _write(partial: Path, result: Result, baseline: Result | None, steps: bool) -> None:
    from kvcast.api import as_document
    from kvcast.scenario.toml import dumps

    (partial / "scenario.toml").write_text(dumps(result.scenario), encoding="utf-8")
    (partial / "summary.json").write_text(text.to_json(as_document(result, baseline)) + "\n", encoding="utf-8")
    for name, columns in _tables(result.report).items():
        parquet.write(partial / f"{name}.parquet", columns)
    if steps:
        parquet.write_batches(partial / "steps.parquet", _step_batches(result.report), {})
    (partial / "aggregates.json").write_text(text.to_json(aggregates.of(result.report)) + "\n", encoding="utf-8")


def load_run(folder: str | Path) -> Run:
    """Read a run folder. Raises InputError when it is none or is damaged."""
    from kvcast.config import load_scenario

    folder = Path(folder)
    if not folder.exists() and folder.parent.is_dir():
        with locked(folder.parent):
            _settle(Path(os.path.realpath(folder)))
    info = _read_json(folder / "run.json")
    if info.get("format") != FORMAT:
        raise InputError(
            f"{folder / 'run.json'}: format = {info.get('format')!r}: expected {FORMAT}, a run folder of this version"
            " of kvcast"
        )
    _check_told(folder / "run.json", info)
    if wrong := damage(folder, info, SMALL):
        raise InputError(f"{folder}: damaged, or edited since its run ({wrong}); expected the run as it was written")
    tables = {
        name: parquet.Table(folder / f"{name}.parquet")
        for name in (*TABLES, *OPTIONAL)
        if name in TABLES or (folder / f"{name}.parquet").exists()
    }
    summary, drawn = _read_json(folder / "summary.json"), _read_json(folder / "aggregates.json")
    return Run(folder, load_scenario(folder / "scenario.toml"), summary, info, drawn, tables)


def _check_told(path: Path, info: Mapping[str, Any]) -> None:
    """Raise InputError unless a run's own file says which version wrote it, and when."""
    if not isinstance(info.get("kvcast"), str):
        raise InputError(f"{path}: kvcast = {info.get('kvcast')!r:.80}, expected the version that wrote the run")
    try:
        datetime.fromisoformat(info.get("written_at", ""))
    except (TypeError, ValueError):
        raise InputError(
            f"{path}: written_at = {info.get('written_at')!r:.80}, expected a time such as 2026-11-30T09:00:00Z"
        ) from None


def damage(folder: Path, info: Mapping[str, Any], read: Collection[str] | None = None) -> str | None:
    """What is wrong with a run's files, or None. read: those whose content is looked at (None: all); of the others the
    size alone. A run that was written before sizes were kept is taken as it is."""
    files = checksums.listed(info)
    return checksums.broken(folder, files, read) if files is not None else None


def check_replaceable(folder: Path) -> None:
    """Raise InputError unless the folder can be made, is empty, or is an earlier run with nothing else in it."""
    if folder.is_symlink() and os.path.realpath(folder) == str(folder.absolute()):
        raise InputError(f"--out {folder}: a link to itself; expected a folder to write")
    if not folder.exists():
        above = next(path for path in folder.absolute().parents if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise InputError(f"--out {folder}: {above} is not a folder that can be written to")
        return
    try:
        names = {path.name for path in folder.iterdir()}
    except FileNotFoundError:  # another process is about to put its run in place
        return
    except NotADirectoryError:
        raise InputError(
            f"--out {folder}: is {'a file' if folder.is_file() else 'not a folder'}; expected a folder to write"
        ) from None
    if names and "run.json" not in names:
        raise InputError(
            f"--out {folder}: holds something else than a run; expected a new folder or an earlier run to replace"
        )
    if names - FILES:
        raise InputError(
            f"--out {folder}: holds {min(names - FILES)} beside a run; expected nothing that replacing the run would"
            " delete"
        )


# -- one run replaces another ------------------------------------------------------------------------------------------


def _put_in_place(partial: Path, folder: Path) -> None:
    """Give the name to the new run; `_settle` removes the earlier one. The caller holds the lock of the parent
    folder."""
    if folder.exists():
        os.rename(folder, partial.with_suffix(".old"))
    os.rename(partial, folder)


def _settle(folder: Path) -> None:
    """Put right what a stopped writer of `folder` left beside it. The caller holds the lock of the parent folder.

    A run without its name gets it back, the newest complete one first; then whatever has no writer any more is removed.
    """
    left = [path for path in folder.parent.iterdir() if _is_leftover(path, folder)]
    if not folder.exists():
        complete = [path for path in left if _is_complete(path)]
        if complete:
            newest = max(complete, key=lambda path: (path / "run.json").stat().st_mtime_ns)
            left.remove(newest)
            os.rename(newest, folder)
    for path in left:
        shutil.rmtree(path)


def _is_leftover(path: Path, folder: Path) -> bool:
    """Whether this is a folder of ours, moved aside (.old) or being written (.new), that no process is at work on:
    a writer holds the lock of its folder."""
    name = re.fullmatch(rf"\.{re.escape(folder.name)}\.[a-z0-9_]{{8}}\.(new|old)", path.name)
    if not name or not path.is_dir() or not {inner.name for inner in path.iterdir()} <= FILES:
        return False
    return name[1] == "old" or not is_locked(path)


def _is_complete(folder: Path) -> bool:
    """run.json is written last."""
    try:
        return bool(_read_json(folder / "run.json"))
    except InputError:
        return False


def _info(result: Result) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kvcast": kvcast.__version__,
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": version("scipy"),  # the ends of intervals rest on its quantiles
        "platform": platform.system(),
        "profile": result.report.summary["profile"],
        "profile_hash": result.report.summary["profile_hash"],
        "name": result.scenario.name,
    }


# -- tables ------------------------------------------------------------------------------------------------------------


def _tables(report: Report) -> dict[str, Mapping[str, np.ndarray]]:
    return {
        "requests": report.requests,
        "cache": report.cache,
        "timeline": report.timeline,
        "sessions": report.sessions,
    }


def _twins_table(twins: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One below the other."""
    rows = {name: np.flatnonzero(columns["in_window"]) for name, columns in twins.items()}
    stacked = {
        column: np.concatenate([columns[column][rows[name]] for name, columns in twins.items()])
        for column in judged.COLUMNS
    }
    names = np.array(list(twins), dtype=object)
    return {"twin": np.repeat(names, [len(rows[name]) for name in twins]), **stacked}


def _step_batches(report: Report) -> Iterator[dict[str, np.ndarray]]:
    """The steps of all replicas in their order, of so many together that they are AT_ONCE or one replica's."""
    batch: list[dict[str, np.ndarray]] = []
    rows, shaped = 0, all(steps.work is not None for steps in report.steps)
    for replica, steps in enumerate(report.steps):
        names = ("end_s", "duration_s", "coverage", "n_decode", "prefill_tokens")
        columns = {"replica": np.full(len(steps), replica, np.int32), **{name: getattr(steps, name) for name in names}}
        if shaped:
            columns |= {name: getattr(steps.work, name) for name in ("sum_context", "n_sampled")}
        batch.append(columns)
        rows += len(steps)
        if rows >= AT_ONCE or replica == len(report.steps) - 1:
            yield {name: np.concatenate([one[name] for one in batch]) for name in columns}
            batch, rows = [], 0


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or 'cannot be read').lower()}; expected a run folder") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected a JSON object")
    return document
