"""A sweep: a grid of scenarios, each simulated once, kept, and read back as one table.

    DIR/sweep.json       the grid as it was asked for
    DIR/workload/KEY/    the requests as numpy columns, loaded once and shared by all processes through memory maps
    DIR/runs/HASH/       one run folder for each scenario, in place when it is complete
    DIR/sweep.parquet    one row a run: varied keys, seed, every number of its summary, hashes

The one idea: a run's folder is named by a hash of all that decides its result (scenario, model, profile, requests, the
simulator's own code), so a folder that is there needs no second run: after a kill, or with a larger grid, the same
command goes on where it stopped.

    >>> from kvcast import sweep
    >>> done = sweep("examples/demo.toml", {"cache.policy": ["lru", "lfu"], "engine.kv_blocks": [2000, 8000]}, "sweeps/demo", jobs=2)
    >>> done.table["prefix_hit_rate"]
"""
from __future__ import annotations

import functools
import hashlib
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from kvcast import api, compare, intervals, runs, shared, text
from kvcast.compare import Result, Variant
from sim.scenario import Scenario
from workloads.config import WorkloadConfig
from workloads.errors import InputError

FORMAT = 1
Vary = Mapping[str, Sequence[Any]] | Sequence[str]
OnDone = Callable[[int, int], None]
"""(runs done, runs to do) after each."""


@dataclass(frozen=True)
class Sweep:
    folder: Path
    results: list[Result]  #: in the order of the grid, all variants of a seed together
    table: dict[str, np.ndarray]  #: the columns of sweep.parquet
    reused: int  #: runs that were there already


@dataclass(frozen=True)
class _Job:
    variant: Variant
    workload: Path
    run: Path


def sweep(
    scenario: str | Path | Scenario, vary: Vary, out: str | Path, *, seeds: int = 1, jobs: int = 1,
    overrides: Sequence[str] = (), on_done: OnDone | None = None,
) -> Sweep:  # fmt: skip
    """Simulate every combination of `vary` ({"a.b": [v1, v2]} or ["a.b=v1,v2"]) for each seed, in `jobs` processes.

    Raises InputError for anything wrong in the grid before the first run. What is finished stays finished.
    """
    folder = Path(out)
    axes = _axes(vary)
    variants = compare.variants(_doc(scenario, overrides), axes, seeds, str(scenario) if not isinstance(scenario, Scenario) else "scenario")
    _claim(folder, {"format": FORMAT, "vary": axes, "seeds": seeds})
    grid = _jobs(variants, folder)
    distinct = list({job.run: job for job in grid}.values())
    todo = [job for job in distinct if not (job.run / "run.json").exists()]
    _simulate(todo, jobs, on_done)
    results = [_read(job) for job in grid]
    table = _table(grid, results)
    _replace_parquet(folder / "sweep.parquet", table)
    return Sweep(folder, results, table, len(distinct) - len(todo))


def _axes(vary: Vary) -> list[str]:
    if not isinstance(vary, Mapping):
        return list(vary)
    return [f"{key}={','.join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)}" for key, values in vary.items()]


def _doc(scenario: str | Path | Scenario, overrides: Sequence[str]) -> dict:
    from kvcast.config import apply_overrides, load_doc
    from kvcast.toml import dumps

    if isinstance(scenario, Scenario):
        return apply_overrides(tomllib.loads(dumps(scenario)), overrides)
    return load_doc(scenario, overrides)


def _claim(folder: Path, grid: dict[str, Any]) -> None:
    """The folder is new, empty or a sweep; what it is asked for now is written down."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / "sweep.json").exists())):
        raise InputError(f"--out {folder}: holds something else than a sweep; expected a new folder or an earlier sweep to go on with")
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "sweep.json", (text.to_json(grid) + "\n").encode())


# -- what decides a result ---------------------------------------------------------------------------------------------


def _jobs(variants: Iterable[Variant], folder: Path) -> list[_Job]:
    """Resolve every scenario, so that what is wrong is said before anything runs, and load each workload once."""
    loaded: dict[str, Path] = {}
    jobs = []
    for variant in variants:
        resolved = api.resolve(variant.scenario)
        key = workload_key(resolved.scenario.workload, resolved.scenario.seed)
        if key not in loaded:
            loaded[key] = folder / "workload" / key
            if not loaded[key].exists():
                text.progress("loading the workload")
                shared.save(api.load_workload(resolved.scenario.workload, resolved.scenario.seed), loaded[key])
        identity = {
            "scenario": asdict(resolved.scenario), "model": repr(resolved.model), "profile": resolved.profile.content_hash,
            "workload": key, "code": _code_hash(), "policy": _policy_hash(resolved.scenario.cache.policy),
        }  # fmt: skip
        jobs.append(_Job(variant, loaded[key], folder / "runs" / _hash(identity)))
    return jobs


def workload_key(config: WorkloadConfig, seed: int) -> str:
    """Names the requests of a [workload] section: its keys, the seed, the reader's code, and size and time of a trace's files."""
    from workloads.load import trace_path

    files: list[Any] = []
    if config.trace is not None:
        path = trace_path(config.trace, Path.cwd())
        found = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        files = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in found if p.exists()]
    return _hash({"workload": asdict(config), "seed": seed, "files": files, "code": _code_hash()})


@functools.cache
def _code_hash() -> str:
    """Of everything a run executes or reads beside its inputs: another version's result is not this version's."""
    import calibrate
    import sim
    import workloads

    digest = hashlib.sha256()
    for package in (calibrate, sim, workloads):
        root = Path(package.__path__[0])
        for path in sorted(p for kind in ("*.py", "*.toml") for p in root.rglob(kind)):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _policy_hash(policy: str) -> str:
    """Of the file of a user's own policy, module:Class."""
    module, separator, _ = policy.partition(":")
    spec = find_spec(module) if separator else None
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest() if spec and spec.origin else ""


def _hash(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]


# -- running -----------------------------------------------------------------------------------------------------------


def _simulate(todo: Sequence[_Job], jobs: int, on_done: OnDone | None) -> None:
    from concurrent.futures.process import BrokenProcessPool

    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    jobs = min(jobs, max(len(todo), 1))
    try:
        finished = Parallel(n_jobs=jobs, return_as="generator_unordered")(
            delayed(_one)(job.variant.scenario, job.workload, job.run) for job in todo
        )
        for done, _ in enumerate(finished, start=1):
            if on_done is not None:
                on_done(done, len(todo))
    except BrokenProcessPool:  # joblib's own error is a kind of it
        raise InputError(f"--jobs {jobs}: a process was killed, most likely for want of memory; finished runs are kept: run it again, with fewer jobs") from None
    finally:
        if jobs > 1:  # joblib keeps its processes for the next call, with the modules and the import path of this one
            get_reusable_executor().shutdown(kill_workers=True)


def _one(scenario: Scenario, workload: Path, run: Path) -> None:
    runs.save_run(run, api.run(api.prepare(scenario, shared.load(workload))))


# -- reading back ------------------------------------------------------------------------------------------------------


def _read(job: _Job) -> Result:
    summary = json.loads((job.run / "summary.json").read_text(encoding="utf-8"))
    return Result(job.variant, summary, Requests(job.run / "requests.parquet"))


class Requests(Mapping[str, np.ndarray]):
    """The columns of requests.parquet that an interval is made of, each read when it is asked for: a sweep of a hundred
    runs of a million requests does not fit in memory."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._path = path
        self._names = [name for name in pq.read_schema(path).names if name in intervals.KEPT]

    def __getitem__(self, name: str) -> np.ndarray:
        import pyarrow.parquet as pq

        if name not in self._names:
            raise KeyError(name)
        return pq.read_table(self._path, columns=[name])[name].to_numpy()

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _table(grid: Sequence[_Job], results: Sequence[Result]) -> dict[str, np.ndarray]:
    """One row a run: the varied keys as typed values, then every single value of the summaries, then what it came from."""
    from kvcast.config import literal

    keys = grid[0].variant.keys
    columns: dict[str, list[Any]] = {key: [literal(job.variant.label[i]) for job in grid] for i, key in enumerate(keys)}
    columns["seed"] = [job.variant.scenario.seed for job in grid]
    single = dict.fromkeys(name for r in results for name, value in r.summary.items() if not isinstance(value, dict | list))
    for name in (name for name in single if name not in columns):
        columns[name] = [r.summary.get(name) for r in results]
    for name in ("usd", "usd_per_request", "usd_per_million_output_tokens"):
        columns[name] = [r.summary["cost"][name] for r in results]
    columns["run"] = [job.run.name for job in grid]
    columns["workload_key"] = [job.workload.name for job in grid]
    return {name: _column(values) for name, values in columns.items()}


def _column(values: list[Any]) -> np.ndarray:
    """Numbers as numbers, unknown ones NaN; anything mixed as text."""
    known = {type(v) for v in values if v is not None}
    if known == {bool} and None not in values:
        return np.array(values)
    if known == {int} and None not in values:
        return np.array(values, dtype=np.int64)
    if known <= {int, float, bool}:
        return np.array([np.nan if v is None else float(v) for v in values])
    return np.array(["" if v is None else str(v) for v in values], dtype=object)


def _replace_parquet(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    partial = path.with_suffix(f".{os.getpid()}.new")
    runs._write_parquet(partial, columns)
    os.replace(partial, path)


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_suffix(f".{os.getpid()}.new")
    partial.write_bytes(content)
    os.replace(partial, path)


def watched() -> OnDone:
    """An `on_done` that tells how many runs are done, to whoever watches."""
    return lambda done, total: text.progress_share(done, total, f"{done:,} of {total:,} runs")
