"""Stops a call of somebody's own code that does not end.

The one idea: every such call has a number, kept by thread; a watching thread looks once a second, and raises `Endless`
in a thread whose call has been the same one for CALL_CPU_S of that thread's own CPU time. A busy machine stops nobody,
and a call costs two entries in a dictionary. A loop inside a C function is not reached.

    >>> outer = begin()
    >>> end(outer)
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from itertools import count

CALL_CPU_S = 20.0
LOOK_S = 1.0


class Endless(BaseException):
    """No Exception, so that a loop with `except Exception` does not live on it."""

    def __str__(self) -> str:
        return f"one call took {CALL_CPU_S:g} s of CPU time, expected it to end"


_numbers = count(1)
_running: dict[int, int] = {}  #: thread -> number of the call it is in
_watching = 0  #: process whose thread watches: a fork has none


def begin() -> int:
    """The number of the call that this one is inside, 0 for none: what `end` wants back."""
    if _watching != os.getpid():
        _watch()
    thread = threading.get_ident()
    outer = _running.get(thread, 0)
    _running[thread] = next(_numbers)
    return outer


def end(outer: int) -> None:
    if outer:
        _running[threading.get_ident()] = outer
    else:
        _running.pop(threading.get_ident(), None)


def _watch() -> None:
    global _watching
    _watching = os.getpid()
    _running.clear()
    threading.Thread(target=_look, daemon=True, name="endless calls").start()


def _look() -> None:
    seen: dict[int, tuple[int, float]] = {}  # thread -> its call, and the CPU time when it was first seen
    while True:
        time.sleep(LOOK_S)
        for thread, number in list(_running.items()):
            used_s = _cpu_s(thread)
            if seen.get(thread, (0, 0.0))[0] != number:
                seen[thread] = number, used_s
            elif used_s - seen[thread][1] > CALL_CPU_S and _running.get(thread) == number:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Endless))
                del seen[thread]


def _cpu_s(thread: int) -> float:
    """CPU time of a thread; the clock on the wall where a system does not tell."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    except OSError:  # it has ended
        return 0.0
