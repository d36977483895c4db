"""What systems do each in their own way: processes that are bounded and ended as a group, and pipes.

The one idea: everything works without them (only Linux has prlimit, Windows has no process groups), only less guarded:
a job is then bounded by its time alone.

    bound(process, cpu_s=60, memory_bytes=2**30, file_bytes=2**30)
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workloads.errors import InputError

PROCESSES = Path("/proc")
CONTAINER_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")

try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the body is done; processes that start in it never heed it: one that is still importing would
    print a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(parent: int) -> None:
    """Have Linux kill this process when the thread of `parent` that began it ends, however that does."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def bound(process: subprocess.Popen, cpu_s: int, memory_bytes: int, file_bytes: int) -> None:
    """Let the system end the process beyond so much processor time, memory, or size of one file."""
    if not hasattr(resource, "prlimit"):
        return
    limits = {resource.RLIMIT_CPU: cpu_s, resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_FSIZE: file_bytes}
    for what, limit in limits.items():
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            resource.prlimit(process.pid, what, (limit, limit))


def machine_bytes() -> int:
    """Memory of this machine, or of the container that this is where that has a limit; 0 where nobody says."""
    try:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):
        return 0
    for limit in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(limit.read_text()))
    return min(found)


def memory_bytes(group: int) -> int:
    """Memory that the processes of a group hold, what several of them share counted once; 0 where /proc is not."""
    total = 0
    for status in PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            if int(status.read_text().rsplit(")", 1)[1].split()[2]) == group:
                held = re.search(r"^Pss:\s+(\d+) kB", (status.parent / "smaps_rollup").read_text(), re.MULTILINE)
                total += int(held[1]) << 10 if held else 0
    return total


def end(process: subprocess.Popen) -> None:
    """End a process that was started with start_new_session, and what it started itself."""
    if not hasattr(os, "killpg"):
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def available_bytes() -> int | None:
    """Memory that a process may still take: what the system says is available, or less where a control group bounds it;
    None where nobody says."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = open("/proc/meminfo", encoding="ascii").read().splitlines()  # noqa: SIM115
        found.append(next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError):
        limit, used = (
            int(open(f"/sys/fs/cgroup/memory.{name}", encoding="ascii").read())  # noqa: SIM115
            for name in ("max", "current")
        )
        found.append(max(limit - used, 0))
    return min(found, default=None)


PIPE_S = 3.0
"""How long a reader of a named pipe is waited for."""


@functools.cache
def refuse_dead_pipes() -> None:
    """From now on InputError instead of waiting for ever: for a named pipe that is to be read (<(command) is none, and
    is read), or written while nobody reads it. A hook of the interpreter, since files are opened in many places."""
    if hasattr(os, "mkfifo"):
        sys.addaudithook(_before_open)


def _before_open(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not isinstance(arguments[0], str) or arguments[2] & os.O_NONBLOCK:
        return
    path, _, flags = arguments
    try:
        waits = stat.S_ISFIFO(os.stat(path).st_mode) and "pipe:[" not in os.path.realpath(path)
    except (OSError, ValueError):
        return
    if waits and not flags & os.O_WRONLY:
        raise InputError(f"{path}: a named pipe, expected a file (or <(command) in its place)")
    if waits and not _has_reader(path):
        raise InputError(f"{path}: a named pipe that nobody reads from, expected a file")


def _has_reader(path: str) -> bool:
    """Whether somebody reads from a pipe, or does within PIPE_S. It stays open: closed, it would end for its reader."""
    until = time.monotonic() + PIPE_S
    while time.monotonic() < until:
        try:
            os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            return True
        except OSError as error:
            if error.errno != errno.ENXIO:
                return True  # opening it will say what is wrong
        time.sleep(0.02)
    return False
