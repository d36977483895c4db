"""Shocks of a scenario as processes beside its run: replicas that fail, restart, or become slow.

The one idea: a shock of the fleet is a generator over simulated time (sim.fleet.processes); one of load is sessions
more in the workload (workloads.surges), made before the run.

    simulate.run(workload, params, step_time, processes=processes_of(scenario.shock, begins_s=600.0))
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence

import simpy

from sim.fleet.processes import Fleet, Process
from sim.fleet.replica import Replica
from sim.scenario import CACHE_LOST, REPLICA_DOWN, SLOW, Shock


def processes_of(shocks: Sequence[Shock], begins_s: float) -> list[Process]:
    """A process for every shock of the fleet. begins_s: the end of the warm-up, from which their times count."""
    kinds = {CACHE_LOST: _restart, REPLICA_DOWN: _down, SLOW: _slow}
    now = _Now()
    return [_process(kinds[shock.kind], shock, now, begins_s) for shock in shocks if shock.kind in kinds]


class _Now:
    """What holds at the moment, by replica: shocks may overlap, and one that ends leaves the others as they are."""

    def __init__(self) -> None:
        self.down: dict[int, int] = defaultdict(int)  #: shocks that keep it down
        self.slow: dict[int, list[float]] = defaultdict(list)  #: factors that its steps take longer by

    def take_down(self, replica: Replica) -> None:
        self.down[replica.index] += 1
        replica.fail()

    def bring_up(self, replica: Replica, load_s: float) -> None:
        self.down[replica.index] -= 1
        if not self.down[replica.index]:
            replica.start(load_s)

    def slow_down(self, replica: Replica) -> None:
        replica.slow_down(math.prod(self.slow[replica.index]))


What = Callable[[Fleet, Shock, _Now], Generator[simpy.Event, None, None]]


def _process(what: What, shock: Shock, now: _Now, begins_s: float) -> Process:
    def run(fleet: Fleet) -> Generator[simpy.Event, None, None]:
        yield fleet.sleep(begins_s + shock.at_s)
        yield from what(fleet, shock, now)

    return run


def _restart(fleet: Fleet, shock: Shock, now: _Now) -> Generator[simpy.Event, None, None]:
    """Every replica begins again with nothing in its memory."""
    for replica in fleet.replicas:
        now.take_down(replica)
    for replica in fleet.replicas:
        now.bring_up(replica, shock.duration_s)
    yield fleet.sleep(0.0)


def _down(fleet: Fleet, shock: Shock, now: _Now) -> Generator[simpy.Event, None, None]:
    hit = _hit(fleet, shock)
    for replica in hit:
        now.take_down(replica)
    yield fleet.sleep(shock.duration_s)
    for replica in hit:
        now.bring_up(replica, shock.load_s)


def _slow(fleet: Fleet, shock: Shock, now: _Now) -> Generator[simpy.Event, None, None]:
    hit = _hit(fleet, shock)
    for replica in hit:
        now.slow[replica.index].append(shock.how_much)
        now.slow_down(replica)
    yield fleet.sleep(shock.duration_s)
    for replica in hit:
        now.slow[replica.index].remove(shock.how_much)
        now.slow_down(replica)


def _hit(fleet: Fleet, shock: Shock) -> Sequence[Replica]:
    return fleet.replicas[-shock.replicas :]
