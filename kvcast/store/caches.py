"""Saved caches as files: `kvcast run --save-cache FILE`, later `--warm-cache FILE`.

The one idea: a cache's content means something only beside the requests it came from, so the file names them by a hash
of their columns, and a run with other requests, blocks, replicas or policy is refused.

    kvcast run S.toml --set run.duration_s=600 --save-cache warm.npz      # the first ten minutes, served to the end
    kvcast run S.toml --warm-cache warm.npz                               # what arrives after them
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.api import Prepared
from kvcast.scenario.own_code import read_again
from kvcast.scenario.steady import is_mix
from sim.fleet.warm import CacheState, saved
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.files import replacing

FORMAT = 3  # 2: runs lie on chains of nodes; 3: policies and SGLang's tree


def saver(path: Path, prepared: Prepared) -> Callable[[list], None]:
    """An `on_end` of `sim.simulate.run` that writes the caches. Raises InputError when there is no time to go on
    from."""
    until_s = prepared.scenario.run.duration_s
    if until_s is None:
        raise InputError(
            "--save-cache: run.duration_s is not set; expected the time up to which the cache stands for the arrivals"
        )
    if prepared.scenario.cache.tiers:  # said before the run, not after it
        raise InputError(f"--save-cache {path}: a cache with tiers below it cannot be saved; expected no cache.tiers")
    if path.exists():
        _read(path)  # anything but a saved cache is left alone
    meta = _identity(prepared)

    def save(replicas: list) -> None:
        try:
            state = saved(replicas, until_s)
        except ValueError as error:
            raise InputError(f"--save-cache {path}: {error}") from None
        columns: dict[str, Any] = {f.name: np.asarray(getattr(state, f.name)) for f in fields(state)}
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, meta=np.array(json.dumps(meta)), **columns)

    return save


def begin(path: Path, prepared: Prepared) -> tuple[Prepared, CacheState]:
    """The saved caches, and the run with its window opening after them. Raises InputError for another world's cache."""
    meta, state = _read(path)
    for name, value in _identity(prepared).items():
        if meta.get(name) != value:
            told = "" if name in ("requests", "policy_source") else f" {meta.get(name)!r}, here {value!r}"
            drawn = name == "requests" and is_mix(prepared.scenario)
            cut = ", which in a mix without [workload] duration_s and requests run.duration_s decides" if drawn else ""
            raise InputError(
                f"--warm-cache {path}: saved with other {name.replace('_', ' ')}{told}; expected the same{cut}"
            )
    if prepared.workload.concurrency is not None:
        raise InputError(
            "--warm-cache: a fixed concurrency has no time at which one part of its sessions ends; expected another"
            " workload.loop"
        )
    scenario = prepared.scenario
    measured = replace(scenario, run=replace(scenario.run, warmup_s=max(scenario.run.warmup_s or 0.0, state.until_s)))
    note = (
        f"begun with the cache of {path.name}: sessions up to {state.until_s:g} s were not simulated again, and the"
        " window opens there"
    )
    return (
        replace(
            prepared,
            resolved=replace(prepared.resolved, scenario=measured),
            workload=prepared.workload.with_notes(note),
        ),
        state,
    )


def _identity(prepared: Prepared) -> dict[str, Any]:
    scenario, params = prepared.scenario, prepared.resolved.params
    return {
        "format": FORMAT,
        "requests": requests_hash(prepared.workload),
        "semantics": params.semantics,
        "block_size": params.block_size,
        "kv_blocks": params.kv_blocks,
        "replicas": scenario.cluster.replicas,
        "caching": params.caching,
        "policy": params.policy,
        "policy_params": params.policy_params,
        "policy_source": read_again(params.policy),
    }


def requests_hash(workload: Workload) -> str:
    """Of every column of the requests and their prefix tree."""
    digest = hashlib.sha256()
    for part in (workload, workload.tree):
        for f in fields(part):
            column = getattr(part, f.name)
            if isinstance(column, np.ndarray):
                digest.update(f"{f.name} {column.dtype} {len(column)}\n".encode())
                digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()[:16]


def _read(path: Path) -> tuple[dict[str, Any], CacheState]:
    try:
        with np.load(path, allow_pickle=False) as file:
            meta = json.loads(str(file["meta"]))
            state = CacheState(file["runs"], file["seen"], float(file["until_s"]), int(file["routed"]), file["trees"])
    except OSError as error:
        raise InputError(
            f"{path}: {(error.strerror or 'cannot be read').lower()}; expected a file written by --save-cache"
        ) from None
    except (ValueError, RecursionError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        raise InputError(f"{path}: not a saved cache; expected a file written by kvcast run --save-cache") from None
    return meta, state
