"""A sweep: a grid of scenarios, each simulated once, kept, and read back as one table.

    DIR/sweep.json       the grid as it was asked for, and the names of its runs
    DIR/workload/KEY/    the requests as numpy columns, loaded once and shared by all processes through memory maps
    DIR/runs/HASH/       one run folder for each scenario, in place when it is complete
    DIR/sweep.parquet    one row a run: varied keys, seed, every number of its summary, hashes

The one idea: `kvcast.store.simulations` names a run's folder by a hash of all that decides its result, so a folder that
is there needs no second run: after a kill, or with a larger grid, the same command goes on where it stopped.

    >>> from kvcast import sweep
    >>> done = sweep("examples/demo.toml", {"cache.policy": ["lru", "lfu"], "engine.kv_blocks": [2000, 8000]}, "sweeps/demo", jobs=2)
    >>> done.table["prefix_hit_rate"]
"""  # noqa: E501

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvcast import text
from kvcast.config import apply_overrides
from kvcast.pools import Jobs
from kvcast.store import parquet
from kvcast.store.simulations import Lab, OnDone, Task
from kvcast.studies import compare
from kvcast.studies.compare import Refused, Result, Variant
from kvcast.studies.replications import read_back
from sim.fleet.router import name_of as router_name_of
from sim.kvcache.policies import name_of
from sim.scenario import Scenario
from workloads.errors import InputError
from workloads.files import replace_file, replacing

FORMAT = 1
Vary = Mapping[str, Sequence[Any]] | Sequence[str]


@dataclass(frozen=True)
class Sweep:
    folder: Path
    results: list[Result]  #: in the order of the grid, all variants of a seed together
    table: dict[str, np.ndarray]  #: the columns of sweep.parquet
    reused: int  #: runs that were there already
    refused: Refused = field(default_factory=dict)  #: label -> why, of variants that do not fit


@dataclass(frozen=True)
class _Job:
    variant: Variant
    task: Task

    @property
    def run(self) -> Path:
        return self.task.run


def sweep(
    scenario: str | Path | Scenario,
    vary: Vary,
    out: str | Path,
    *,
    seeds: int = 1,
    jobs: Jobs = 1,
    overrides: Sequence[str] = (),
    on_done: OnDone | None = None,
) -> Sweep:
    """Simulate every combination of `vary` ({"a.b": [v1, v2]} or ["a.b=v1,v2"]) for each seed, in `jobs` processes
    or on the workers of `kvcast.workers`.

    Raises InputError for anything wrong in the grid before the first run; a variant that does not fit is in `refused`.
    What is finished stays finished.
    """
    folder = Path(out)
    axes = axes_of(vary)
    source = str(scenario) if not isinstance(scenario, Scenario) else "scenario"
    doc = doc_of(scenario, overrides)
    fit, refused = compare.that_fit(compare.variants(doc, axes, seeds, source))
    variants = compare.alike(fit)
    asked = {"format": FORMAT, "vary": axes, "seeds": seeds, "scenario": _what_stays(doc, axes)}
    _claim(folder, asked)
    lab = Lab(folder)
    grid = [_Job(variant, lab.task(variant.scenario)) for variant in variants]
    distinct = {job.run: job.task for job in grid}.values()
    _write_claim(folder, {**asked, "runs": sorted(task.run.name for task in distinct)})
    todo = [task for task in distinct if not task.done]
    lab.simulate(todo, jobs, on_done)
    results = [read_back(job.variant, job.task) for job in grid]
    table = _table(grid, results)
    _replace_parquet(folder / "sweep.parquet", table)
    return Sweep(folder, results, table, len(distinct) - len(todo), refused)


def axes_of(vary: Vary) -> list[str]:
    """{"a.b": [v1, v2]} as ["a.b=v1,v2"]."""
    if not isinstance(vary, Mapping):
        return list(vary)
    return [f"{key}={','.join(_written(key, value) for value in values)}" for key, values in vary.items()]


def _written(key: str, value: Any) -> str:
    if isinstance(value, type):
        return (router_name_of if key == "cluster.router" else name_of)(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def doc_of(scenario: str | Path | Scenario, overrides: Sequence[str]) -> dict:
    """The tables of a scenario, however it is given."""
    from kvcast.config import load_doc
    from kvcast.scenario.toml import dumps

    if isinstance(scenario, Scenario):
        return apply_overrides(tomllib.loads(dumps(scenario)), overrides)
    return load_doc(scenario, overrides)


def _what_stays(doc: dict, axes: Sequence[str]) -> str:
    """A hash of the scenario without its name and what is varied: the same for every grid of one sweep."""
    rest = apply_overrides(doc, ["name=", *(f"{axis.partition('=')[0]}=" for axis in axes)])
    return hashlib.sha256(json.dumps(text.plain(rest), sort_keys=True, default=str).encode()).hexdigest()[:16]


def _claim(folder: Path, grid: dict[str, Any]) -> None:
    """The folder is new, empty or the same sweep: of this scenario over these keys, whatever the values and seeds; what
    it is asked for now is written down."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / "sweep.json").exists())):
        raise InputError(
            f"--out {folder}: holds something else than a sweep; expected a new folder or an earlier sweep to go on"
            " with"
        )
    before = _read_claim(folder / "sweep.json")
    other = [", ".join(axis.partition("=")[0] for axis in asked.get("vary", ())) for asked in (before, grid)]
    if before and other[0] != other[1]:
        raise InputError(f"--out {folder}: holds a sweep over {other[0]}, not over {other[1]}; expected a new folder")
    if before.get("scenario", grid["scenario"]) != grid["scenario"]:
        raise InputError(f"--out {folder}: holds a sweep of another scenario; expected a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    _write_claim(folder, grid)


def _write_claim(folder: Path, grid: dict[str, Any]) -> None:
    replace_file(folder / "sweep.json", (text.to_json(grid) + "\n").encode())


def _read_claim(path: Path) -> dict[str, Any]:
    """What a sweep was last asked for; nothing of a file that is missing or damaged."""
    try:
        asked = json.loads(path.read_text(encoding="utf-8"))
        return asked if isinstance(asked, dict) and all(isinstance(axis, str) for axis in asked["vary"]) else {}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}


# -- reading back ------------------------------------------------------------------------------------------------------


def _table(grid: Sequence[_Job], results: Sequence[Result]) -> dict[str, np.ndarray]:
    """One row a run: the varied keys as typed values, then every single value of the summaries, then what it came
    from."""
    from kvcast.config import literal

    keys = grid[0].variant.keys
    columns: dict[str, list[Any]] = {key: [literal(job.variant.label[i]) for job in grid] for i, key in enumerate(keys)}
    columns["seed"] = [job.variant.scenario.seed for job in grid]
    single = dict.fromkeys(
        name for r in results for name, value in r.summary.items() if not isinstance(value, dict | list)
    )
    for name in (name for name in single if name not in columns):
        columns[name] = [r.summary.get(name) for r in results]
    for name in (
        "usd",
        "usd_per_request",
        *(f"usd_per_million_{tokens}_tokens" for tokens in ("input", "output", "total")),
    ):
        columns[name] = [r.summary["cost"][name] for r in results]
    columns["run"] = [job.run.name for job in grid]
    columns["workload_key"] = [job.task.workload.name for job in grid]
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
    with replacing(path) as partial:
        parquet.write(partial, columns)


def watched() -> OnDone:
    """An `on_done` that tells how many runs are done, to whoever watches."""
    return lambda done, total: text.progress_share(done, total, f"{done:,} of {total:,} runs")
