"""Jobs of the dashboard: the command line in a subprocess, named by what it was asked.

The one idea: a job's files are named by a hash of the scenario's text, the command and the code that runs it, so a
reload, another session or the same question tomorrow find the finished answer, and equal requests wait for one process.

    KEY.toml  the scenario      KEY/      what --out wrote (run, plan, sweep)
    KEY.json  what --json said  KEY.log   stderr      KEY.progress  how far it is
    KEY.told  what `ask` knows so far: one JSON document a line; the last of one that was ended says why

`ask` has no scenario file: its question is in its words, and KEY.toml keeps them in a comment.

    >>> runner = Runner(Path("runs/dashboard"))
    >>> job = runner.submit(dumps(scenario)); job.wait(); load_run(job.folder)
    >>> runner.submit(dumps(scenario), "compare", "--vary", "cluster.replicas=1,2").document()
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kvcast
from kvcast import system, text
from kvcast.jobs import allowed
from kvcast.jobs.memory import Memory
from kvcast.jobs.tidy import KEY, tidy
from workloads.errors import InputError
from workloads.files import replace_file

ROOT = Path(kvcast.__file__).resolve().parent.parent
PACKAGES = ("kvcast", "sim", "workloads", "calibrate")
WITH_FOLDER = ("run", "plan", "sweep", "ask")
OF_POOLS = ("--set", "plan.pools=true")
"""What makes a plan one of mixes, which keeps no folder."""
"""Commands that keep what they find in a folder, --out."""
PREPARE = "KVCAST_PREPARE"
"""Environment variable that `kvcast dashboard` sets, unless it is there: compute the example's plan before anybody
asks."""
LIMIT_S, LOOK_S = 900, 0.25
GOES_ON = "started again, it goes on from what it has simulated"
TAKES_LESS = "fewer requests, or a lower rate, take less"
MEMORY_LIMIT_BYTES = 16 << 30
FILE_LIMIT_BYTES = 4 << 30
MAX_WAITING = 20
UPLOAD_LIMIT_BYTES = 64 << 20
UPLOAD_TYPES = (".jsonl", ".json", ".csv", ".tar", ".tar.xz")
UPLOADED = re.compile(r"\buploads/[0-9a-f]{24}/")
CANCELLED = "cancelled"
ENDED = "ended"
"""The stage of the last thing told by a question that came to no answer."""
ASKED = "# kvcast "


@dataclass(frozen=True)
class Progress:
    done: float  #: share of the command, 0 to 1
    left_s: float | None  #: seconds, when enough is done to tell
    says: str  #: what is being done


@dataclass
class Job:
    """One command: waiting for its turn, in progress, done (its answer is there) or failed (one line says why).

    A thread of its own starts the process, waits for it and puts the answer in place; pages only look.
    """

    folder: Path  #: of what --out writes; the job's other files lie beside it
    command: tuple[str, ...] = ("run",)
    thread: threading.Thread | None = None  #: None for one that was found finished
    process: subprocess.Popen | None = None
    why_not: str = ""  #: what went wrong, in one line
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def key(self) -> str:
        return self.folder.name

    @property
    def scenario_toml(self) -> str:
        return self.file(".toml").read_text(encoding="utf-8")

    @property
    def keeps_folder(self) -> bool:
        """Whether what it has done is kept, so that it goes on from there when it is asked again."""
        return self.command[0] in WITH_FOLDER and self.command[1:3] != OF_POOLS

    @property
    def running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    @property
    def done(self) -> bool:
        return not self.running and self.answered

    @property
    def answered(self) -> bool:
        """Whether the answer is on the disk: both files appear in one piece, when there is nothing more to come."""
        return (self.folder / "run.json").is_file() if self.command[0] == "run" else self.file(".json").is_file()

    @property
    def progress(self) -> Progress | None:
        """How far it is; None before it has said anything."""
        if self.process is None:
            return Progress(0.0, None, "waiting for a free processor") if self.running else None
        try:
            told = json.loads(self.file(".progress").read_text(encoding="utf-8"))
            return Progress(float(told["done"]), told["left_s"], without_paths(str(told["says"]), self.folder.parent))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def told(self) -> list[dict[str, Any]]:
        """What the command knew so far, oldest first; a line that is being written is left for the next look."""
        try:
            lines = self.file(".told").read_text(encoding="utf-8").split("\n")
        except OSError:
            return []
        return [json.loads(line) for line in lines[:-1]]

    @property
    def ended(self) -> str:
        """Why a question came to no answer, where it knew something by then; also found on the disk, after a
        restart."""
        told = [] if self.running or self.answered else self.told
        return str(told[-1]["why"]) if told and told[-1]["stage"] == ENDED else ""

    def wait(self) -> None:
        if self.thread is not None:
            self.thread.join()

    def failure(self) -> str:
        """The command's one line about what is wrong, without this machine's paths; empty when nothing is."""
        return "" if self.running or self.answered else self.why_not

    def document(self) -> dict[str, Any]:
        """What the command's --json printed; of a run, its summary.json. Only of a job that is done."""
        path = self.folder / "summary.json" if self.command[0] == "run" else self.file(".json")
        return json.loads(path.read_text(encoding="utf-8"))

    def file(self, suffix: str) -> Path:
        return self.folder.with_suffix(suffix)

    def delete(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for file in self.folder.parent.glob(f"{self.key}.*"):
            file.unlink(missing_ok=True)


class Runner:
    """Starts jobs under one folder. Owned by the server and shared by its sessions; the lock guards `_jobs`."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._free = threading.Semaphore(os.cpu_count() or 1)  # jobs at once
        self._free_for_short = threading.Semaphore(
            os.cpu_count() or 1
        )  # estimates and readings do not wait behind runs
        self._memory = Memory()
        (self.root / "uploads").mkdir(parents=True, exist_ok=True)
        atexit.register(self.close)

    def submit(self, scenario_toml: str, *command: str) -> Job:
        """The job `kvcast COMMAND SCENARIO ...` (default: run): finished earlier, in progress, or started now (again,
        when it failed before).

        Raises InputError when too many are waiting already.
        """
        command = command or ("run",)
        key = key_of(scenario_toml, command)
        with self._lock:
            job = self._jobs.get(key)
            if job is not None and (job.running or job.done):
                return job
            found = Job(self.root / key, command)
            if not found.answered:
                if sum(j.running and j.process is None for j in self._jobs.values()) >= MAX_WAITING:
                    raise InputError("the server is busy with other runs; try again in a moment")
                self._prune()
                found.file(".toml").write_text(scenario_toml, encoding="utf-8")
                found.thread = threading.Thread(
                    target=self._work, args=(found,), name=f"kvcast {command[0]} {key}", daemon=True
                )
                found.thread.start()
            self._jobs[key] = found
            return found

    def existing(self, scenario_toml: str, *command: str) -> Job | None:
        """The job of this scenario and command as it stands, started by whom ever; None when nobody has asked yet."""
        command = command or ("run",)
        key = key_of(scenario_toml, command)
        with self._lock:
            job = self._jobs.get(key)
            if job is None and ((found := Job(self.root / key, command)).answered or found.ended):
                job = self._jobs[key] = found
            return job

    def find(self, key: str) -> Job | None:
        """The run that a link names: in progress or finished. Anything that is no key of a run here is None."""
        if not KEY.fullmatch(key):
            return None
        with self._lock:
            job = self._jobs.get(key)
        if job is not None and job.command == ("run",):
            return job
        found = Job(self.root / key)
        return found if found.answered and found.file(".toml").is_file() else None

    def ask(self, words: Sequence[str]) -> Job:
        """The job `kvcast ask WORDS`, as `submit` has it."""
        return self.submit(asked_in(words), "ask", *words)

    def asked(self, words: Sequence[str]) -> Job | None:
        """That job as it stands; None when nobody has asked yet."""
        return self.existing(asked_in(words), "ask", *words)

    def find_asked(self, key: str) -> Job | None:
        """The question that a link names: in progress, answered, or ended with something found. Anything that is no key
        of a question here is None."""
        if not KEY.fullmatch(key):
            return None
        with self._lock:
            job = self._jobs.get(key)
        if job is None:
            job = Job(self.root / key)
            line = job.scenario_toml.partition("\n")[0] if job.file(".toml").is_file() else ""
            job.command = tuple(shlex.split(line.removeprefix(ASKED))) if line.startswith(ASKED) else ()
        return job if job.command[:1] == ("ask",) and (job.running or job.answered or job.ended) else None

    def cancel(self, job: Job) -> None:
        if job.running:
            job.why_not = CANCELLED
            job.stop.set()

    def close(self) -> None:
        """End every job: when the server ends, nobody waits for them any more."""
        for job in list(self._jobs.values()):
            if job.running:
                job.stop.set()
                if job.process is not None:
                    system.end(job.process)

    def _work(self, job: Job) -> None:
        """Wait for a free processor, run the command, put its answer in place. In the job's own thread."""
        free = self._free_for_short if job.command[0] in ("estimate", "workload") else self._free
        while not free.acquire(timeout=0.1):
            if job.stop.is_set():
                return
        try:
            if not job.stop.is_set():
                self._run(job)
        except Exception as error:  # whatever it is, the page must not wait for ever
            job.why_not = f"the server could not run it: {type(error).__name__}"
            raise
        finally:
            free.release()

    def _run(self, job: Job) -> None:
        name = job.command[0]
        words = 2 if name == "workload" else 1  # kvcast workload describe
        argv = [*job.command[:words], *([] if name == "ask" else [str(job.file(".toml"))]), *job.command[words:]]
        argv += ["--out", str(job.folder)] if job.keeps_folder else []
        for suffix in (".progress", ".told"):
            job.file(suffix).unlink(missing_ok=True)
        said = job.file(f".{os.getpid()}-{threading.get_ident()}.out")  # another server may be at the same question
        with said.open("wb") as out, job.file(".log").open("wb") as log:
            job.process = _kvcast(*argv, "--json", stdout=out, stderr=log, job=job)
            why_ended = self._wait(job, job.process)
        answered = job.process.returncode == 0 or (
            name in ("plan", "ask") and job.process.returncode == text.NO_FLEET and said.stat().st_size > 0
        )
        if answered and name != "run":  # a run's is its summary.json
            os.replace(said, job.file(".json"))
        said.unlink(missing_ok=True)
        if not answered and not job.stop.is_set():
            job.why_not = why_ended or self._reason(job)
        if not answered and (why_ended or job.stop.is_set()):
            _keep_told(job, job.why_not or "the server was stopped")

    def _wait(self, job: Job, process: subprocess.Popen) -> str:
        """Wait until the process ends; end it, and whatever it started, when it is to stop, takes too long or holds
        too much memory, and say why in the last two."""
        began_s = looked_s = time.monotonic()
        why = ""
        try:
            while process.poll() is None:
                stopped, now_s = job.stop.wait(0.05), time.monotonic()
                if now_s - began_s > LIMIT_S:
                    goes_on = job.keeps_folder and job.command[0] != "run"
                    why = f"stopped after {LIMIT_S} s: {GOES_ON if goes_on else TAKES_LESS}"
                elif now_s - looked_s > LOOK_S:
                    looked_s = now_s
                    if self._memory.beyond(job.key, process.pid):
                        most = self._memory.most_bytes / 2**30
                        why = f"stopped: all runs here may hold {most:.1f} GiB of memory, and this one held the most"
                if stopped or why:
                    system.end(process)
                    process.wait()
        finally:
            self._memory.ended(job.key)
        return why

    def _reason(self, job: Job) -> str:
        assert job.process is not None
        lines = job.file(".log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if job.process.returncode == 2 and lines:
            line = without_paths(lines[-1].removeprefix("kvcast: "), self.root)
            return line.removeprefix(f"{job.key}.toml: ")
        return (
            f"the simulation stopped unexpectedly (exit code {job.process.returncode}); the server's log has the"
            " details"
        )

    def _prune(self) -> None:
        """Forget the oldest jobs and uploads."""
        for key in tidy(self.root, {key for key, job in self._jobs.items() if job.running}):
            self._jobs.pop(key, None)

    # -- uploads -------------------------------------------------------------------------------------------------------

    def keep_upload(self, name: str, content: bytes) -> Path:
        """Store an uploaded trace in a folder named by its content; its own name is cut to harmless characters."""
        if len(content) > UPLOAD_LIMIT_BYTES:
            raise InputError(
                f"{name}: {len(content) / 2**20:.0f} MiB, expected at most {UPLOAD_LIMIT_BYTES >> 20} MiB (use kvcast"
                " run for larger traces)"
            )
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[-80:].lstrip(".")
        if not safe.endswith(UPLOAD_TYPES):
            raise InputError(f"{name}: expected a name that ends in {', '.join(UPLOAD_TYPES)}")
        path = self.root / "uploads" / hashlib.sha256(content).hexdigest()[:24] / safe
        if path.exists():
            os.utime(path)  # it is wanted again
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        return path


def _keep_told(job: Job, why: str) -> None:
    """Of a question that is ended: what it knew by then, and why that is all."""
    if told := job.told:
        lines = [json.dumps(one, ensure_ascii=False) for one in [*told, {"stage": ENDED, "why": why}]]
        replace_file(job.file(".told"), "".join(f"{line}\n" for line in lines).encode())


def key_of(scenario_toml: str, command: tuple[str, ...]) -> str:
    said = (code_version(), scenario_toml, *command, *allowed.versions(scenario_toml))
    return hashlib.sha256("\0".join(said).encode()).hexdigest()[:24]


def asked_in(words: Sequence[str]) -> str:
    """The text of KEY.toml of a question: its words, in a comment."""
    return f"{ASKED}{shlex.join(('ask', *words))}\n"


def without_paths(line: str, folder: Path) -> str:
    """The line with files of the server named by their last part only, whether it has them whole or from where the
    server runs."""
    line = allowed.without_paths(line)
    for place in (os.path.relpath(folder), str(folder), str(folder.parent), str(ROOT)):
        line = line.replace(f"{place}{os.sep}", "")
    return UPLOADED.sub("", line)


def code_version() -> str:
    """A fingerprint of the files that decide a run's numbers; it changes when one of them does."""
    digest = hashlib.sha256(kvcast.__version__.encode())
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in (".py", ".json", ".toml"):
                stat = path.stat()
                digest.update(f"{path.relative_to(ROOT)} {stat.st_mtime_ns} {stat.st_size}\n".encode())
    return digest.hexdigest()


def _kvcast(*arguments: str, job: Job, **streams: Any) -> subprocess.Popen:
    """The command line in a process group of its own, within bounds that no honest run meets."""
    path = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)}
    environment[text.PROGRESS_FILE], environment[text.TOLD_FILE] = str(job.file(".progress")), str(job.file(".told"))
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcast", *arguments],
        stdin=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
        **streams,
    )
    cpu_s = int(LIMIT_S) * (os.cpu_count() or 1) + 60  # of a process whose server is gone; otherwise LIMIT_S ends it
    system.bound(process, cpu_s, MEMORY_LIMIT_BYTES, FILE_LIMIT_BYTES)
    return process
