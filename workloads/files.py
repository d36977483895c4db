"""Files and folders that are whole or not there: written beside their place and renamed, guarded by locks.

The one idea: what a process writes gets its name when it is complete and on the disk. A lock is on the thing itself, so
what a killed writer left is known by its free lock. Where there is no flock (Windows), it is known by its age.

    with replacing(Path("report.html")) as partial:
        partial.write_text(page)
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

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
        if error.filename not in (None, str(partial)):
            raise  # of another file
        raise type(error)(error.errno or 0, error.strerror or str(error), str(path)) from None
    finally:
        unlock(writing)
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """What a full disk says within names no file, or one that nobody knows: say that it is `path`."""
    try:
        yield
    except OSError as error:
        said = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno or errno.EIO, said, str(path)) from None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def on_disk(path: Path) -> None:
    """Return once a file, or a folder's names, would survive a loss of power."""
    held = os.open(path, os.O_RDONLY)
    try:
        os.fsync(held)
    except OSError as error:
        if error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
            errno.EBADF,
        ):  # a file system without; a full one says it here
            raise
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
