"""Runs of the dashboard: the same command line in a subprocess, one run folder per scenario.

The one idea: a run folder is named by a hash of the scenario's text and of the code that runs it, so a reload, another
session or the same settings tomorrow find the finished run, and equal requests wait for one process.

    >>> runner = Runner(Path("runs/dashboard"))
    >>> job = runner.submit(dumps(scenario)); job.wait(); load_run(job.folder)
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvcast
from workloads.errors import InputError

ROOT = Path(kvcast.__file__).resolve().parent.parent
PACKAGES = ("kvcast", "sim", "workloads", "calibrate")
RUN_LIMIT_S = 600
READ_LIMIT_S = 120
MEMORY_LIMIT_BYTES = 16 << 30
FILE_LIMIT_BYTES = 4 << 30
KEEP_RUNS = 200
UPLOAD_LIMIT_BYTES = 64 << 20
UPLOAD_TYPES = (".jsonl", ".json", ".csv", ".tar", ".tar.xz")
RUN_NAME = re.compile(r"[0-9a-f]{24}")


@dataclass
class Job:
    """One `kvcast run`: in progress, done (its folder is there) or failed (one line says why)."""

    folder: Path
    process: subprocess.Popen | None = None
    started_s: float = 0.0  #: time.monotonic()
    cancelled: bool = False

    @property
    def running(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            return False
        if time.monotonic() - self.started_s > RUN_LIMIT_S:
            self.process.kill()
        return True

    @property
    def done(self) -> bool:
        return not self.running and (self.folder / "run.json").is_file()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def wait(self) -> None:
        while self.running:
            time.sleep(0.05)

    def failure(self) -> str:
        """The command's one line about what is wrong, without this machine's paths."""
        if self.cancelled:
            return "the run was cancelled"
        log = _log(self.folder)
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
        if self.process is not None and self.process.returncode == 2 and lines:
            line = without_paths(lines[-1].removeprefix("kvcast: "), self.folder.parent)
            return line.removeprefix(f"{self.folder.name}.toml: ")
        if self.elapsed_s > RUN_LIMIT_S:
            return f"the run was stopped after {RUN_LIMIT_S} s: fewer requests, or a lower rate, take less"
        code = None if self.process is None else self.process.returncode
        return f"the simulation stopped unexpectedly (exit code {code}); the server's log has the details"


class Runner:
    """Starts runs under one folder. Owned by the server and shared by its sessions; the lock guards `_jobs`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        (root / "uploads").mkdir(parents=True, exist_ok=True)

    def submit(self, scenario_toml: str) -> Job:
        """The job of this scenario: finished earlier, in progress, or started now (again, when it failed before).

        Raises InputError when the machine has as many runs as cores in progress.
        """
        key = hashlib.sha256(f"{code_version()}\n{scenario_toml}".encode()).hexdigest()[:24]
        with self._lock:
            job = self._jobs.get(key)
            if job is not None and (job.running or job.done):
                return job
            folder = self.root / key
            if (folder / "run.json").is_file():
                return self._jobs.setdefault(key, Job(folder))
            if sum(j.running for j in self._jobs.values()) >= (os.cpu_count() or 1):
                raise InputError("the server is busy with other runs; press Run again in a moment")
            self._prune()
            self._jobs[key] = self._start(folder, scenario_toml)
            return self._jobs[key]

    def cancel(self, job: Job) -> None:
        if job.running and job.process is not None:
            job.cancelled = True
            job.process.kill()

    def _start(self, folder: Path, scenario_toml: str) -> Job:
        scenario = folder.with_suffix(".toml")
        scenario.write_text(scenario_toml, encoding="utf-8")
        with _log(folder).open("wb") as log:
            process = _kvcast("run", str(scenario), "--out", str(folder), stdout=subprocess.DEVNULL, stderr=log)
        return Job(folder, process, time.monotonic())

    def _prune(self) -> None:
        """Forget the oldest finished runs beyond KEEP_RUNS; only folders this runner named."""
        folders = sorted((f for f in self.root.iterdir() if RUN_NAME.fullmatch(f.name) and f.is_dir()), key=lambda f: f.stat().st_mtime)
        for folder in folders[: max(0, len(folders) - KEEP_RUNS)]:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(".toml").unlink(missing_ok=True)
            _log(folder).unlink(missing_ok=True)
            self._jobs.pop(folder.name, None)

    # -- uploads -------------------------------------------------------------------------------------------------------

    def keep_upload(self, name: str, content: bytes) -> Path:
        """Store an uploaded trace in a folder named by its content; its own name is cut to harmless characters."""
        if len(content) > UPLOAD_LIMIT_BYTES:
            raise InputError(f"{name}: {len(content) / 2**20:.0f} MiB, expected at most {UPLOAD_LIMIT_BYTES >> 20} MiB (use kvcast run for larger traces)")
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[-80:].lstrip(".")
        if not safe.endswith(UPLOAD_TYPES):
            raise InputError(f"{name}: expected a name that ends in {', '.join(UPLOAD_TYPES)}")
        path = self.root / "uploads" / hashlib.sha256(content).hexdigest()[:24] / safe
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{safe}.{threading.get_ident()}.part")
            partial.write_bytes(content)
            os.replace(partial, path)
        return path

    def describe(self, trace: Path) -> dict:
        """`kvcast workload describe` of a stored upload: its reading report. Raises InputError with the command's line."""
        with _kvcast("workload", "describe", str(trace), "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                out, error = process.communicate(timeout=READ_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise InputError(f"{trace.name}: not read within {READ_LIMIT_S} s, expected a smaller trace") from None
        if process.returncode == 0:
            return json.loads(out)
        lines = error.decode(errors="replace").strip().splitlines()
        if process.returncode == 2 and lines:
            raise InputError(without_paths(lines[-1].removeprefix("kvcast: "), trace.parent))
        raise InputError(f"{trace.name}: cannot be read (exit code {process.returncode}), expected a trace in a known format")


def without_paths(line: str, folder: Path) -> str:
    """The line with files of the server named by their last part only."""
    return line.replace(f"{folder}{os.sep}", "").replace(f"{folder.parent}{os.sep}", "").replace(f"{ROOT}{os.sep}", "")


def code_version() -> str:
    """A fingerprint of the files that decide a run's numbers; it changes when one of them does."""
    digest = hashlib.sha256(kvcast.__version__.encode())
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in (".py", ".json", ".toml"):
                stat = path.stat()
                digest.update(f"{path.relative_to(ROOT)} {stat.st_mtime_ns} {stat.st_size}\n".encode())
    return digest.hexdigest()


def _kvcast(*arguments: str, **streams: Any) -> subprocess.Popen:
    """The command line in a process of its own, within bounds that no honest run meets."""
    path = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)}
    process = subprocess.Popen([sys.executable, "-m", "kvcast", *arguments], stdin=subprocess.DEVNULL, env=environment, **streams)
    if hasattr(resource, "prlimit"):  # Linux
        for what, limit in ((resource.RLIMIT_CPU, RUN_LIMIT_S), (resource.RLIMIT_AS, MEMORY_LIMIT_BYTES), (resource.RLIMIT_FSIZE, FILE_LIMIT_BYTES)):
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(process.pid, what, (limit, limit))
    return process


def _log(folder: Path) -> Path:
    return folder.with_suffix(".log")
