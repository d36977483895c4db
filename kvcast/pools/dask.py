"""The workers of a Dask cluster.

Its scheduler gives the calls of a lost worker to another by itself, and gives up a call that kills them.

>>> with Dask("tcp://10.0.0.1:8786") as pool: dict(pool.finished(divmod, [(7, 2), (9, 4)]))
"""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

from kvcast.pools.places import CONNECT_S, NOT_INSTALLED, Calls, Pool, reachable
from workloads.errors import InputError


class Dask(Pool):
    """A connection to a running scheduler."""

    shares_files = False

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ModuleNotFoundError as error:
            raise InputError(f"--backend dask: {error}; expected pip install 'kvcast[dask]' here too") from None
        self.said = f"Dask at {address}"
        reachable(address, "tcp://10.0.0.1:8786")
        try:
            self._client = Client(address, timeout=int(CONNECT_S), set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"--address {address}: no Dask scheduler answers ({' '.join(str(error).split())[:200]}); expected the"
                " line that `dask scheduler` prints, such as tcp://10.0.0.1:8786"
            ) from None
        self._check_installed()
        self._executor = self._client.get_executor(pure=False)
        self._there: dict[str, int] = {}
        self._waiting = False

    def _check_installed(self) -> None:
        """A worker that cannot read a task because it knows none of its names ends itself."""
        try:
            self._client.run(pkgutil.resolve_name, "kvcast.pools.places:answer.__name__")
        except (ImportError, AttributeError) as error:
            self._client.close()
            raise InputError(f"{self.said}: a worker {NOT_INSTALLED} ({error})") from None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._executor.submit(function, *arguments)

    def put(self, value: Any) -> Any:
        """As a call, which is made again where the worker that holds its answer is lost; scattered data would be."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it is large
            return self._client.submit(_same, value, pure=False)

    def tidings(self) -> list[str]:
        before, self._there = self._there, dict(self._client.nthreads())
        lines = [
            f"{self.said}: worker {one} is gone; what it had begun is begun again"
            for one in before
            if one not in self._there
        ]
        lines += [
            f"{self.said}: worker {one} has {threads} threads in one process, which simulate no faster than one;"
            " expected --nthreads 1 and more --nworkers"
            for one, threads in self._there.items()
            if threads > 1 and one not in before
        ]
        if not self._there and not self._waiting:
            lines.append(f"{self.said}: no worker is there; waiting for one")
        self._waiting = not self._there
        return lines

    def finished(self, function: Callable[..., Any], calls: Calls) -> Iterator[tuple[int, Any]]:
        from distributed import KilledWorker

        self._say(self.tidings())
        try:
            yield from super().finished(function, calls)
        except KilledWorker as error:
            raise InputError(
                f"{self.said}: a run lost its worker {error.allowed_failures + 1} times, most likely for want of"
                " memory; expected workers with more memory; what is finished is kept"
            ) from None
        except (OSError, CancelledError) as error:
            if self._client.status == "running" and not isinstance(error, CancelledError):
                raise
            raise InputError(
                f"{self.said}: the connection to the scheduler was lost; what is finished is kept: run it again"
            ) from None

    def close(self) -> None:
        self._executor.shutdown(wait=False)
        self._client.close()


def _same(value: Any) -> Any:
    return value
