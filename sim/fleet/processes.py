"""Processes beside a run: failures, repairs, autoscalers, whatever a generator can say.

The one idea: a process is a SimPy generator that is handed the fleet and waits in simulated time.

    def fails_once(fleet):
        yield fleet.sleep(60)
        fleet.replicas[0].fail()
        yield fleet.sleep(120)
        fleet.replicas[0].start(load_s=60)

    simulate(scenario, processes=[fails_once])

It acts before what arrives at the same time, and never keeps a run alive: that ends with its last request. Examples:
examples/failure.py, examples/autoscaler.py; rules: docs/fleet.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import simpy

from sim.fleet.cluster import Cluster
from sim.fleet.replica import DOWN, Replica
from sim.log import RequestLog
from workloads.errors import InputError

Process = Callable[["Fleet"], Generator[simpy.Event, None, None]]


class Controller(Protocol):
    """Keeps a wanted number of replicas."""

    def reconcile(self) -> None:
        """Something has come or gone: start what is missing, drain what is too much."""


class Fleet:
    """What a process sees, and may do.

    A replica has `fail(retried=True)`, `drain()`, `start(load_s=0)`, `index`, `state` (up, draining, down or starting),
    and its load: `running`, `waiting` (requests) and `load_tokens()`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.replicas: Sequence[Replica] = cluster.replicas
        self.log: RequestLog = cluster.log  #: columns by request, as far as they have come: arrival_s, status, replica
        self.out: Counter[int] = Counter()  #: by replica, how many processes keep it from starting
        self.controller: Controller | None = None  #: that keeps a wanted number of replicas (sim.fleet.autoscaler)

    @property
    def now_s(self) -> float:
        return self._cluster.env.now

    @property
    def waiting(self) -> int:
        """Requests that wait because no replica takes any."""
        return len(self._cluster.waiting)

    def waiting_tokens(self) -> int:
        """Prompt tokens of those."""
        return sum(self.log.prompt[request] for request in self._cluster.waiting)

    @property
    def taking(self) -> Sequence[Replica]:
        """The replicas that take requests."""
        return self._cluster.taking

    def sleep(self, seconds: float) -> simpy.Event:
        """To be yielded: the process goes on so much later."""
        return self._cluster.env.wait(seconds, "a process sleeps")

    def also(self, process: Generator[simpy.Event, None, None]) -> None:
        """Begin another process beside this one."""
        self._cluster.env.process(process)

    def lose(self, replica: Replica) -> None:
        """It fails, and nothing starts it until it is put back; a controller replaces it where another is free."""
        self.out[replica.index] += 1
        replica.fail()
        self._reconcile()

    def take_out(self, replica: Replica, notice_s: float) -> Generator[simpy.Event, None, None]:
        """The same with notice, to be yielded from: it drains, and what it has not served by then begins again
        elsewhere."""
        self.out[replica.index] += 1
        replica.drain()
        self._reconcile()
        yield replica.gone() | self.sleep(notice_s)
        if replica.state != DOWN:
            replica.fail()

    def put_back(self, replica: Replica, load_s: float) -> None:
        """It may start again, and does unless others keep it down, or a controller wants no more replicas."""
        self.out[replica.index] -= 1
        if self.controller is None and not self.out[replica.index]:
            replica.start(load_s)
        self._reconcile()

    def _reconcile(self) -> None:
        if self.controller is not None:
            self.controller.reconcile()


def begin(processes: Sequence[Process], cluster: Cluster) -> None:
    """Start them at time 0."""
    fleet = Fleet(cluster)
    for process in processes:
        made = process(fleet) if callable(process) else None
        if not isinstance(made, Generator):
            raise InputError(
                f"process {getattr(process, '__name__', process)!r}: expected a generator function of one argument, the"
                " fleet"
            )
        cluster.env.process(made)
