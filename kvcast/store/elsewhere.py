"""Tasks simulated by workers that may not see the caller's folder: requests go there, run folders come back.

The one idea: nobody has to say whether the file system is shared. The caller puts a file of a random name in its
folder; a worker that finds it under the same path opens the requests there and writes the run in its place. One that
does not says so, is sent the requests, simulates in a folder of its own, and its answer holds the run's files.

    >>> for cpu_s in finished(workers, simulate, tasks, Path("sweeps/demo")): ...
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvcast import text
from kvcast.pools import Workers
from kvcast.store import workload_folder
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.files import is_locked, lock, replace_file, unlock

if TYPE_CHECKING:
    from kvcast.store.simulations import Task

LAST = ("run.json", "sketch.json", "stopped.json")
"""One of them is the file of a kept simulation that is written last."""
MARK = ".seen-"
VISIBLE_S = 90.0
"""A network file system may show a new folder so late."""
Simulate = Callable[["Task", Workload], float]
"""Into the task's folder; CPU seconds."""


@dataclass(frozen=True)
class _Answer:
    cpu_s: float
    files: dict[str, bytes] | None  #: of the run folder, where the worker did not see its place


def finished(workers: Workers, simulate: Simulate, tasks: Sequence[Task], folder: Path) -> Iterator[float]:
    """CPU seconds of every task, whose run is then in its place."""
    with contextlib.nullcontext() if workers.shares_files else _mark(folder) as mark:
        calls = [
            (simulate, replace(task, run=_whole(task.run), workload=_whole(task.workload)), mark) for task in tasks
        ]
        unseen = []
        for i, answer in workers.finished(_on_worker, [(*call, None) for call in calls]):
            if answer is None:
                unseen.append(i)
            else:
                yield _in_place(workers, tasks[i], answer)
        if not unseen:
            return
        text.progress(f"{workers.said}: does not see {folder}: requests are sent, runs come back")
        sent = {at: workers.put(workload_folder.load(at)) for at in {tasks[i].workload for i in unseen}}
        for i, answer in workers.finished(_on_worker, [(*calls[i], sent[tasks[i].workload]) for i in unseen]):
            yield _in_place(workers, tasks[unseen[i]], answer)


def _on_worker(simulate: Simulate, task: Task, mark: Path | None, sent: Workload | None) -> _Answer | None:
    """None: the requests are not there, and were not sent."""
    seen = mark is None or mark.exists()
    if sent is None and not seen:
        return None
    workload = workload_folder.load(task.workload) if sent is None else sent
    if seen:
        return _Answer(simulate(task, workload), None)
    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder:
        run = Path(folder) / task.run.name
        cpu_s = simulate(replace(task, run=run), workload)
        return _Answer(cpu_s, {path.name: path.read_bytes() for path in run.iterdir()})


def _in_place(workers: Workers, task: Task, answer: _Answer) -> float:
    if answer.files is not None:
        task.run.mkdir(parents=True, exist_ok=True)
        for name in sorted(answer.files, key=lambda name: name in LAST):
            replace_file(task.run / name, answer.files[name])
    elif not workers.shares_files:
        _await(task.run, workers)
    return answer.cpu_s


def _await(run: Path, workers: Workers) -> None:
    """Until the folder that a worker wrote is seen here too."""
    until_s = time.monotonic() + VISIBLE_S
    while not any((run / name).exists() for name in LAST):
        if time.monotonic() > until_s:
            raise InputError(
                f"{run}: {workers.said} wrote it, and it is not seen here {VISIBLE_S:g} s later; expected --out on a"
                " file system that all machines share under this path, or on none"
            )
        time.sleep(0.2)
        for above in (run.parent, run):  # which asks the server, not the cache
            with contextlib.suppress(OSError):
                os.listdir(above)


@contextlib.contextmanager
def _mark(folder: Path) -> Iterator[Path]:
    """A file that only this folder has, while the body runs."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{MARK}*"):  # of callers that were killed
        if not is_locked(left):
            left.unlink(missing_ok=True)
    held, name = tempfile.mkstemp(prefix=MARK, dir=_whole(folder))
    os.close(held)
    writing = lock(Path(name))
    try:
        yield Path(name)
    finally:
        unlock(writing)
        Path(name).unlink(missing_ok=True)


def _whole(path: Path) -> Path:
    """The path from the root: a worker stands in another folder."""
    return Path(os.path.abspath(path))
