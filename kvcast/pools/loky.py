"""Processes of this machine.

>>> with Loky(4) as pool: dict(pool.finished(divmod, [(7, 2), (9, 4)]))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Any

from joblib.externals.loky import get_reusable_executor

from kvcast.pools.places import Calls, Pool
from kvcast.system import uninterrupted
from workloads.errors import InputError

THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class Loky(Pool):
    """So many processes, started with the first call and kept until `close`: with the modules and the import path of
    that call."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.said = f"{processes} jobs"
        self._executor: Any = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        with uninterrupted():  # processes start here; a terminal's Ctrl-C is this one's, which ends them
            return self._executor.submit(function, *arguments)

    def finished(self, function: Callable[..., Any], calls: Calls) -> Iterator[tuple[int, Any]]:
        resource_tracker.ensure_running()  # its start would unblock what `uninterrupted` blocks
        self._executor = get_reusable_executor(max_workers=self.processes, env=_threads(self.processes))
        try:
            yield from super().finished(function, calls)
        except BrokenProcessPool:
            raise InputError(
                f"--jobs {self.processes}: a process was killed, most likely for want of memory; run it again with"
                " fewer jobs (what is finished is kept where there is an --out)"
            ) from None

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(kill_workers=True)
            self._executor = None


def _threads(processes: int) -> dict[str, str]:
    """The processors, shared out: a numerical library takes all of them in every process."""
    share = max((os.cpu_count() or 1) // processes, 1)
    return {name: os.environ.get(name, str(share)) for name in THREADS}
