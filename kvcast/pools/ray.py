"""The workers of a Ray cluster.

>>> with Ray("auto") as pool: dict(pool.finished(divmod, [(7, 2), (9, 4)]))
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from kvcast.pools.places import NOT_INSTALLED, Calls, Pool, reachable
from workloads.errors import InputError


class Ray(Pool):
    """A connection to a running cluster, or the one that this session has."""

    shares_files = False

    def __init__(self, address: str) -> None:
        try:
            import ray
            from ray import exceptions
        except ModuleNotFoundError as error:
            raise InputError(f"--backend ray: {error}; expected pip install 'kvcast[ray]' here too") from None
        self.said = f"Ray at {address}"
        self._ours = not ray.is_initialized()
        if self._ours:
            if address != "auto":
                reachable(address, "10.0.0.1:6379 of `ray start --head`")
            try:
                with _own_signals():
                    ray.init(address=address, log_to_driver=False, logging_level="error")
            except Exception as error:  # of many classes, none of them in its documentation
                raise InputError(
                    f"--address {address}: no Ray cluster answers ({' '.join(str(error).split())[:200]}); expected"
                    " host:6379 of `ray start --head`, or auto on one of its machines"
                ) from None
        self._ray = ray
        self._failed = exceptions.RayTaskError
        self.lost = (
            exceptions.WorkerCrashedError,
            exceptions.NodeDiedError,
            exceptions.LocalRayletDiedError,
            exceptions.OutOfMemoryError,
            exceptions.ObjectLostError,
        )
        self._made: WeakKeyDictionary[Future[Any], Any] = WeakKeyDictionary()  #: what Ray knows a call by
        self._waiting = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        made = self._ray.remote(max_retries=0)(function).remote(*arguments)
        future: Future[Any] = made.future()
        self._made[future] = made
        return future

    def cancel(self, futures: Sequence[Future[Any]]) -> None:
        for future in futures:
            self._ray.cancel(self._made[future])

    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    def tidings(self) -> list[str]:
        there = self._ray.cluster_resources().get("CPU", 0) >= 1
        lines = [] if there or self._waiting else [f"{self.said}: no worker is there; waiting for one"]
        self._waiting = not there
        return lines

    def finished(self, function: Callable[..., Any], calls: Calls) -> Iterator[tuple[int, Any]]:
        try:
            yield from super().finished(function, calls)
        except self._failed as error:
            cause = getattr(error, "cause", error)
            if "failed to import on the worker" in str(cause):
                raise InputError(f"{self.said}: a worker {NOT_INSTALLED}") from None
            raise cause from None

    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM; afterwards it is answered as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
