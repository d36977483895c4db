"""What all places where calls run have in common, and this process, the first of them.

>>> [answer for _, answer in Here().finished(divmod, [(7, 2), (9, 4)])]
[(3, 1), (2, 1)]
"""

from __future__ import annotations

import pickle
import platform
import queue
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

from kvcast import text
from kvcast.pools.code import everything
from workloads.errors import InputError

Calls = Sequence[tuple[Any, ...]]
LOOK_S = 2.0
"""Between two looks at who is there, while nothing is answered."""
CONNECT_S = 10.0
TRIES = 4
"""Of a call whose worker is lost each time; then the call itself is what kills them."""
NOT_INSTALLED = "has no kvcast, or one of another version; expected the same on every worker"
HERE = "this process"
CODE_SHOWN = 12  #: hexadecimal digits


class Workers(ABC):
    """Whoever makes calls."""

    said = HERE  #: in a message
    shares_files = True  #: whether a folder of this machine is surely theirs too

    @abstractmethod
    def finished(self, function: Callable[..., Any], calls: Calls) -> Iterator[tuple[int, Any]]:
        """(place of the call, its answer) as they come. What a call raises is raised here, and the rest is dropped."""

    def put(self, value: Any) -> Any:
        """A handle of a large value: given as the last of a call's arguments, the worker finds the value there."""
        return value

    def close(self) -> None:  # noqa: B027 (nothing is to be done here)
        """Leave the workers, or end those that were started here."""

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Here(Workers):
    """This process: one call after another, each when its answer is asked for."""

    def finished(self, function: Callable[..., Any], calls: Calls) -> Iterator[tuple[int, Any]]:
        for i, call in enumerate(calls):
            yield i, function(*call)


class Pool(Workers):
    """Other processes, wherever they are."""

    lost: tuple[type[BaseException], ...] = ()
    """What a call raises whose worker is gone."""

    @abstractmethod
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call."""

    def tidings(self) -> list[str]:
        """What is to be said of the workers since the last look."""
        return []

    def finished(self, function: Callable[..., Any], calls: Calls) -> Iterator[tuple[int, Any]]:
        made: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        pending: dict[Future[Any], int] = {}
        tries: Counter[int] = Counter()

        def begin(i: int) -> None:
            *plain, last = calls[i]
            future = self.submit(answer, everything(), pickle.dumps((function, plain)), last)
            pending[future] = i
            tries[i] += 1
            future.add_done_callback(made.put)

        try:
            for i in range(len(calls)):
                begin(i)
            looked_s = time.monotonic()
            while pending:
                try:
                    future = made.get(timeout=LOOK_S)
                except queue.Empty:
                    future = None
                if time.monotonic() - looked_s >= LOOK_S or len(pending) == 1:
                    self._say(self.tidings())
                    looked_s = time.monotonic()
                if future is None:
                    continue
                i = pending.pop(future)
                try:
                    result = future.result()
                except self.lost as error:
                    if tries[i] == TRIES:
                        raise InputError(
                            f"{self.said}: one run was begun {TRIES} times and each time its worker was lost"
                            f" ({_first_line(error)}), most likely for want of memory; what is finished is kept"
                        ) from None
                    self._say([f"{self.said}: a worker was lost ({_first_line(error)}); its run is begun again"])
                    begin(i)
                    continue
                yield i, result
        finally:
            self.cancel(list(pending))

    def cancel(self, futures: Sequence[Future[Any]]) -> None:
        """Calls whose answers nobody waits for any more."""
        for future in futures:
            future.cancel()

    def _say(self, lines: Sequence[str]) -> None:
        for line in lines:
            text.note(line)


def reachable(address: str, example: str) -> None:
    """Raise InputError unless something listens at "scheme://host:port" or "host:port": what a cluster's own package
    takes minutes to say."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise InputError(f"--address {address}: expected HOST:PORT, such as {example}")
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"--address {address}: nothing answers there ({error}); expected a running cluster, such as {example}"
        ) from None


def _first_line(error: BaseException) -> str:
    """The first sentence of what went wrong."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0][:200]


def answer(code: str, call: bytes, last: Any) -> Any:
    """On a worker: what the call gives. The code is compared before anything of the call is read."""
    mine = everything()
    if mine != code:
        raise InputError(
            f"worker {platform.node()}: has another kvcast (code {mine[:CODE_SHOWN]}, here {code[:CODE_SHOWN]});"
            " expected the same version on every worker, started after it was installed"
        )
    function, plain = pickle.loads(call)
    return function(*plain, last)
