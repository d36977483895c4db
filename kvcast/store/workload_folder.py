"""A loaded workload on disk, opened by any number of processes without a copy each.

The one idea: a workload is numpy columns, so a folder of .npy files opened with a memory map is the same workload, and
the processes of one machine share its pages.

    >>> workload_folder.save(workload, folder)
    >>> workload = workload_folder.load(folder)    # in another process
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.store import checksums
from workloads.columns import PrefixTree, Workload
from workloads.files import is_locked, lock, locked, naming, on_disk, unlock

META = "workload.json"


def save(workload: Workload, folder: Path) -> None:
    """Write `folder`, whole or not at all. One that is there already, whole, is kept: its name says what is in it."""
    if is_whole(folder):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent):
        _remove_leftovers(folder)
        if folder.exists() and not is_whole(folder):
            shutil.rmtree(folder)
        partial = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
        partial.mkdir()
        writing = lock(partial)
    try:
        with naming(folder):
            for prefix, part in (("", workload), ("tree.", workload.tree)):
                for name, column in _values(part, arrays=True).items():
                    _save(partial / f"{prefix}{name}.npy", column)
            meta = {name: value for name, value in _values(workload, arrays=False).items() if name != "tree"}
            (partial / META).write_text(json.dumps({**meta, "files": checksums.of(partial)}), encoding="utf-8")
            for path in (*partial.iterdir(), partial):
                on_disk(path)
        try:
            os.rename(partial, folder)
        except OSError:
            if not folder.exists():  # else another process was first, with the same
                raise
    finally:
        unlock(writing)
        shutil.rmtree(partial, ignore_errors=True)


def _save(path: Path, column: np.ndarray) -> None:
    """As np.save, whose error on a full disk gives no reason."""
    column = np.ascontiguousarray(column)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(column))
        file.write(column.data)


def _remove_leftovers(folder: Path) -> None:
    """What killed writers of `folder` left beside it: nobody holds its lock. The caller holds the lock of the parent
    folder."""
    for path in folder.parent.glob(f".{folder.name}.*"):
        if (
            path.is_dir()
            and all(inner.suffix == ".npy" or inner.name == META for inner in path.iterdir())
            and not is_locked(path)
        ):
            shutil.rmtree(path, ignore_errors=True)


_whole: set[Path] = set()  #: folders that this process has looked at


def is_whole(folder: Path) -> bool:
    """Whether a workload is there as it was written, every byte; looked at once by each process."""
    if folder not in _whole:
        try:
            files = checksums.listed(json.loads((folder / META).read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError):
            return False
        if files is None or checksums.broken(folder, files) is not None:
            return False
        _whole.add(folder)
    return True


def load(folder: Path) -> Workload:
    """The workload in a folder of `save`; its columns are read-only and stay on disk until they are read."""
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    meta.pop("files")
    columns: dict[str, Any] = {path.name.removesuffix(".npy"): _open(path) for path in folder.glob("*.npy")}
    tree = PrefixTree(
        **{name.removeprefix("tree."): column for name, column in columns.items() if name.startswith("tree.")}
    )
    rest: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in meta.items()}
    return Workload(
        tree=tree, **{name: column for name, column in columns.items() if not name.startswith("tree.")}, **rest
    )


def _values(part: Workload | PrefixTree, arrays: bool) -> dict[str, Any]:
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    return {
        name: value for name, value in values.items() if value is not None and isinstance(value, np.ndarray) == arrays
    }


def _open(path: Path) -> np.ndarray:
    column = np.load(path, mmap_mode="r")
    return np.asarray(column)  # the same pages, without what numpy's memmap class costs at every slice
