"""Simulate scenarios into a folder, in several processes or on a cluster, and never twice.

    DIR/workload/KEY/    the requests as numpy columns, loaded once and shared by all processes through memory maps
    DIR/runs/HASH/       one run folder for each simulation, in place when it is complete

The one idea: a folder is named by a hash of all that decides its content (scenario, model, profile, requests, the
simulator's own code), so one that is there needs no second run: what was killed goes on where it stopped.

    >>> lab = Lab(Path("sweeps/demo"))
    >>> lab.simulate([lab.task(scenario)], jobs=2)
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcast import api, pools, text
from kvcast.pools import Jobs
from kvcast.pools.code import DECIDES, code_hash
from kvcast.scenario.own_code import check_importable, read_again, router_read_again
from kvcast.store import checksums, elsewhere, runs, workload_folder
from sim.fleet.router import ROUTERS
from sim.scenario import Scenario
from workloads.config import WorkloadConfig
from workloads.errors import InputError
from workloads.files import replace_file

if TYPE_CHECKING:
    from sim.recording import Recording
    from workloads.columns import Workload

STEPS = "steps x "
"""Begins the what_if of a run at scaled step times, see `steps_times`."""
UNTIL_BACK = "until back"
"""The what_if of a run that stops once the fleet is back from its shock (sim.fleet.back)."""
OnDone = Callable[[int, int], None]
"""(runs done, runs to do) after each."""
STOPPED = "stopped.json"
SKETCH, SKETCHED = "sketch.json", "sketch.npz"
"""The second is in place when the first is."""


@dataclass(frozen=True)
class Task:
    """One simulation and where its result lies.

    what_if: what is 20 % faster than the scenario's GPU (calibrate.faster), steps_times(factor) for steps that all take
    `factor` times as long, "oracle" for a router that knows everything, UNTIL_BACK, or "". hopeless: give up once the
    target is certainly out of reach (sim.fleet.hopeless). light: keep only what a verdict needs (sim.measure.sketch),
    not a run folder."""

    scenario: Scenario
    workload: Path
    run: Path
    what_if: str = ""
    hopeless: bool = False
    own_code: str = ""  #: hash of the sources of a user's own policy and router
    router: type | None = None  #: one that the user entered in sim.fleet.router.ROUTERS
    light: bool = False
    resolved: str = ""  #: hash of the profile and the model that its names meant to whoever made it

    @property
    def done(self) -> bool:
        """Whether its result is there, whole. What is damaged there is removed: it is simulated again."""
        if not self.run.exists():
            return False
        wrong = damage(self.run)
        if wrong is not None:
            if wrong:
                text.progress(f"{self.run}: {wrong}; simulated again")
            shutil.rmtree(self.run)
        return wrong is None


class Lab:
    """A folder of runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def task(self, scenario: Scenario, what_if: str = "", hopeless: bool = False, light: bool = False) -> Task:
        """Resolve the scenario, so that what is wrong is said before anything runs, and load its workload once."""
        resolved = api.resolve(scenario)
        workload, own = self.workload(resolved.scenario), _own_code(resolved.scenario)
        identity: dict[str, Any] = {
            "scenario": asdict(resolved.scenario),
            "model": repr(resolved.model),
            "profile": resolved.profile.content_hash,
            **({"pools": [_one_kind(kind) for kind in resolved.each]} if len(resolved.each) > 1 else {}),
            "workload": workload.name,
            "code": code_hash(*DECIDES),
            "own": own,
        }
        if what_if or hopeless or light:
            identity |= {"what_if": what_if, "hopeless": hopeless, "light": light}
        kind = "sketches" if light else "what-if" if what_if else "runs"
        scenario = replace(scenario, workload=resolved.scenario.workload, run=resolved.scenario.run)
        return Task(
            scenario,
            workload,
            self.folder / kind / _hash(identity),
            what_if,
            hopeless,
            own,
            _own_router(scenario),
            light,
            _resolved(resolved),
        )

    def workload(self, scenario: Scenario) -> Path:
        """The folder of its requests, written if need be."""
        folder = self.folder / "workload" / workload_key(scenario.workload, scenario.seed)
        if not workload_folder.is_whole(folder):
            text.progress("loading the workload")
            workload_folder.save(api.load_workload(scenario.workload, scenario.seed), folder)
        return folder

    def simulate(self, todo: Sequence[Task], jobs: Jobs = 1, on_done: OnDone | None = None) -> float:
        """Simulate what is not done yet; CPU seconds that took."""
        todo = [task for task in {task.run: task for task in todo}.values() if not task.done]
        if not todo:
            return 0.0
        cpu_s = 0.0
        with pools.opened(jobs, len(todo)) as workers:
            if workers.said != pools.HERE:
                for task in todo:
                    check_importable(task.scenario, workers.said)
            for done, took_s in enumerate(elsewhere.finished(workers, _one, todo, self.folder), start=1):
                cpu_s += took_s
                if on_done is not None:
                    on_done(done, len(todo))
        return cpu_s


def steps_times(factor: float) -> str:
    """The what_if of a task whose steps take `factor` times as long: "steps x 1.045"."""
    return f"{STEPS}{factor:g}"


def _one(task: Task, workload: Workload) -> float:
    """Simulate it into its folder; CPU seconds."""
    began_s = time.process_time()
    if task.router is not None:
        ROUTERS.setdefault(task.scenario.cluster.router, task.router)  # another process knows only the simulator's
    if _own_code(task.scenario) != task.own_code:
        raise InputError(
            f"[cache] policy = {task.scenario.cache.policy!r}, [cluster] router = {task.scenario.cluster.router!r}: a"
            " file of yours has changed since the first run began, or a worker has another one; run it again"
        )
    prepared = api.prepare(task.scenario, workload)
    if _resolved(prepared.resolved) != task.resolved:
        raise InputError(
            f"[hardware] profile = {task.scenario.hardware.profile!r}, [model] {task.scenario.model.name}: worker"
            f" {platform.node()} has another profile or model of this name; expected the same files on every worker"
        )
    options: dict[str, Any] = {}
    if task.what_if == UNTIL_BACK:
        from sim.fleet.back import Back

        options["hopeless"] = Back(prepared.workload, prepared.scenario)
    elif task.what_if == "oracle":
        options["oracle"] = True
    elif task.what_if.startswith(STEPS):
        prepared = api.at_step_times(prepared, float(task.what_if.removeprefix(STEPS)))
    elif task.what_if:
        from calibrate.faster import faster

        prepared = api.with_steps(
            prepared,
            lambda of, step_time: faster(
                step_time, of.profile, of.model, of.scenario.model.dtype, task.what_if, of.host
            ),
        )
    if task.hopeless:
        from sim.fleet.hopeless import Hopeless

        options["hopeless"] = Hopeless(prepared.workload, prepared.scenario.slo, prepared.scenario.run)
    recording = api.record(prepared, **options)
    if "hopeless" in options and options["hopeless"].stopped_s is not None:
        _save_stopped(task.run, options["hopeless"].as_document())
    elif task.light:
        _save_sketch(task.run, prepared, recording)
    else:
        runs.save_run(task.run, api.measure(prepared, recording))
    return time.process_time() - began_s


_whole: set[Path] = set()  #: kept simulations that this process has looked at


def damage(folder: Path) -> str | None:
    """What is wrong with a kept simulation: None where it is whole, "" where there is none."""
    if folder in _whole:
        return None
    at = next((folder / name for name in elsewhere.LAST if (folder / name).exists()), None)
    if at is None:
        return ""
    try:
        document = json.loads(at.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return f"{at.name} is damaged ({error})"
    files = checksums.listed(document)
    if not isinstance(document, dict) or (files is None and at.name != STOPPED):
        return f"{at.name} is damaged"
    wrong = checksums.broken(folder, files or {})
    if wrong is None:
        _whole.add(folder)
    return wrong


def _save_stopped(folder: Path, document: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / STOPPED, (text.to_json(document) + "\n").encode())


def _save_sketch(folder: Path, prepared: api.Prepared, recording: Recording) -> None:
    from kvcast.scenario.steady import offered_per_s
    from sim.measure.sketch import sketch

    offered = offered_per_s(prepared.scenario, prepared.workload)
    columns, summary = sketch(recording, prepared.workload, prepared.scenario, offered)
    packed = io.BytesIO()
    np.savez(packed, **columns)  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    content = packed.getvalue()
    replace_file(folder / SKETCHED, content)
    summary = {**summary, "files": {SKETCHED: [len(content), zlib.crc32(content)]}}
    replace_file(folder / SKETCH, (text.to_json(summary) + "\n").encode())


# -- what decides a result ---------------------------------------------------------------------------------------------


def workload_key(config: WorkloadConfig, seed: int) -> str:
    """Names the requests of a [workload] section: its keys, the seed, the reader's code, and size and time of a trace's
    files and its tokenizer's."""
    from workloads.load import file_path

    files: list[Any] = []
    for name in ("trace", "tokenizer"):
        if (given := getattr(config, name)) is None:
            continue
        path = file_path(given, Path.cwd(), name)
        found = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        files += [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in found if p.exists()]
    return _hash({"workload": asdict(config), "seed": seed, "files": files, "code": code_hash(*DECIDES)})


def _own_code(scenario: Scenario) -> str:
    """Of the user's own policy, router and what they import, as their files are now."""
    own = (read_again(scenario.cache.policy), router_read_again(scenario.cluster.router))
    return _hash({"policy": own[0], "router": own[1]}) if any(own) else ""


def _resolved(resolved: api.Resolved) -> str:
    each = [_one_kind(kind) for kind in resolved.each]
    return _hash({"pools": each} if len(each) > 1 else each[0])


def _one_kind(resolved: api.Resolved) -> dict[str, str]:
    return {"model": repr(resolved.model), "profile": resolved.profile.content_hash}


def _own_router(scenario: Scenario) -> type | None:
    """Of those in ROUTERS; module:Class is found by its name."""
    made = ROUTERS.get(scenario.cluster.router)
    return None if made is None or made.__module__ == "sim.fleet.router" else made


def _hash(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]
