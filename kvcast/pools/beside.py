"""Calls in copies of this process, where cores are free.

One call beside it; otherwise here, when its answer is wanted:

>>> with beside(lambda: run(without_cache(prepared))) as off:
...     on, without = run(prepared), off()

Many calls, so many at a time, answered in their order:

>>> list(copies(4)(lambda i: i * i, range(10)))
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from kvcast.system import end_with, uninterrupted
from workloads.errors import InputError

T = TypeVar("T")
A = TypeVar("A")


def core_free() -> bool:
    """Whether this machine lets a process be copied, and has a core that nobody uses."""
    return cores_free() > 1


def cores_free() -> int:
    """How many processes this machine has cores for, this one and copies of it; 1 where a process cannot be copied."""
    if sys.platform != "linux":
        return 1
    return max(int(len(os.sched_getaffinity(0)) - os.getloadavg()[0] + 0.999), 1)


def copies(processes: int) -> Callable[[Callable[[A], T], Iterable[A]], Iterator[T]] | None:
    """A `map` whose calls are made in so many copies of this process at a time, each in one of its own; answers must be
    picklable. What a call raises is raised here. None: one process needs none."""

    def answers(call: Callable[[A], T], items: Iterable[A]) -> Iterator[T]:
        left, begun = iter(items), deque[tuple[Any, Any]]()
        try:
            begun.extend(_begin(_told, call, item) for item in islice(left, processes))
            while begun:
                answer = _received(*begun[0])
                begun.popleft()
                begun.extend(_begin(_told, call, item) for item in islice(left, 1))
                yield answer
        finally:
            for child, ours in begun:
                _end(child, ours)

    return answers if processes > 1 else None


def _begin(function: Callable[..., object], *arguments: Any) -> tuple[Any, Any]:
    """A copy of this process that makes the call and sends its answer, and where to receive it."""
    from multiprocessing import get_context

    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(function, arguments, theirs, os.getpid()), daemon=True)
    with uninterrupted():  # a terminal's Ctrl-C is this process's, which ends them
        child.start()
    theirs.close()
    return child, ours


def _end(child: Any, ours: Any) -> None:
    child.kill()
    child.join()
    ours.close()


def _told(call: Callable[[A], T], item: A) -> tuple[T | None, BaseException | None]:
    try:
        return call(item), None
    except Exception as error:
        return None, error


def _received(child: Any, ours: Any) -> Any:
    try:
        answer, error = ours.recv()
    except EOFError:
        child.join()
        raise InputError(
            f"a process that simulated a part of the fleet was ended ({_why(child.exitcode)}); expected"
            " memory for it: run it again on fewer cores (taskset -c 0), or where more memory is free"
        ) from None
    child.join()
    ours.close()
    if error is not None:
        raise error
    return answer


def _why(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with code {code}"


@contextmanager
def beside(call: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Begin `call`, where a core is free; what the body is given waits for its answer, which must be picklable. Where
    it did not come, for whatever reason, the call is made here. It ends with the body."""
    if not core_free():
        yield call
        return
    child, ours = _begin(call)

    def answer() -> T:
        try:
            found: T = ours.recv()
        except EOFError:
            found = call()
        return found

    try:
        yield answer
    finally:
        _end(child, ours)


def _answer(function: Callable[..., object], arguments: tuple[Any, ...], theirs: Any, parent: int) -> None:
    end_with(parent)
    try:
        theirs.send(function(*arguments))
        code = 0
    except BaseException:  # what went wrong is told by the call that is made instead
        code = 1
    os._exit(code)  # nothing of what this process was going to do at its end
