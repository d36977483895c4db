"""What systems do each in their own way: locks on folders, and processes that are bounded and ended as a group.

The one idea: everything works without them (Windows has no flock, and only Linux has prlimit), only less guarded: two
processes that write one folder are then the user's to keep apart, and a job is bounded by its time alone.

    with locked(folder):
        os.rename(partial, folder / "run")
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import os
import secrets
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workloads.errors import InputError

try:
    import fcntl
    import resource
except ImportError:
    fcntl = resource = None  # type: ignore[assignment]

Held = int | None
"""A lock, or that there is none."""


LEFT_S = 86_400.0
"""A half-written file of this age has no writer any more, where locks do not say it."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path` to write. It takes the name when the body ends well, whole and on the disk; otherwise
    nothing of it stays. OSError names `path`. A pipe or a device is written, not replaced."""
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    if not path.name:  # "." or "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    writing: Held = None
    try:
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
            if not is_locked(left) or time.time() - left.stat().st_mtime > LEFT_S:
                left.unlink(missing_ok=True)
        partial.touch()
        writing = lock(partial)
        yield partial
        on_disk(partial)
        os.replace(partial, path)
    except OSError as error:
        raise type(error)(error.errno or 0, error.strerror or str(error), str(path)) from None
    finally:
        unlock(writing)
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def on_disk(path: Path) -> None:
    """Return once a file, or a folder's names, would survive a loss of power."""
    held = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without
            os.fsync(held)
    finally:
        os.close(held)


def lock(folder: Path) -> Held:
    """Wait for the lock of a folder or a file, until `unlock`. It is on the thing itself, so no lock file stays; the
    system frees it when the process ends, however it ends."""
    if fcntl is None:
        return None
    held = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(held, fcntl.LOCK_EX)
    return held


def unlock(held: Held) -> None:
    if held is not None:
        os.close(held)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder's lock while the body runs."""
    held = lock(folder)
    try:
        yield
    finally:
        unlock(held)


def is_locked(folder: Path) -> bool:
    """Whether somebody holds the folder's lock; True where nobody can tell."""
    if fcntl is None:
        return True
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(held)
    return False


def bound(process: subprocess.Popen, cpu_s: int, memory_bytes: int, file_bytes: int) -> None:
    """Let the system end the process beyond so much processor time, memory, or size of one file."""
    if not hasattr(resource, "prlimit"):
        return
    limits = {resource.RLIMIT_CPU: cpu_s, resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_FSIZE: file_bytes}
    for what, limit in limits.items():
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            resource.prlimit(process.pid, what, (limit, limit))


def end(process: subprocess.Popen) -> None:
    """End a process that was started with start_new_session, and what it started itself."""
    if not hasattr(os, "killpg"):
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


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
