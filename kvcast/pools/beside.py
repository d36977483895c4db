"""One call beside this process, in a copy of it, where a core is free; otherwise here, when its answer is wanted.

>>> off = beside(lambda: run(without_cache(prepared)))
>>> on = run(prepared)
>>> off()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def core_free() -> bool:
    """Whether this machine lets a process be copied, and has a core that nobody uses."""
    return sys.platform == "linux" and os.getloadavg()[0] + 1 < len(os.sched_getaffinity(0))


def beside(call: Callable[[], T]) -> Callable[[], T]:
    """Begin `call`, where a core is free; what comes back waits for its answer, which must be picklable. Where it did
    not come, for whatever reason, the call is made here."""
    if not core_free():
        return call
    from multiprocessing import get_context

    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(call, theirs), daemon=True)  # it ends with this process
    child.start()
    theirs.close()

    def answer() -> T:
        try:
            found: T = ours.recv()
        except EOFError:
            found = call()
        child.join()
        return found

    return answer


def _answer(call: Callable[[], T], theirs: object) -> None:
    try:
        theirs.send(call())  # type: ignore[attr-defined]
        code = 0
    except BaseException:  # what went wrong is told by the call that is made instead
        code = 1
    os._exit(code)  # nothing of what this process was going to do at its end
