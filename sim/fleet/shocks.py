"""Shocks of a scenario as processes beside its run: replicas that fail, restart, or become slow.

The one idea: a shock of the fleet is a generator over simulated time (sim.fleet.processes); one of load is sessions
more in the workload (workloads.surges), made before the run.

    simulate.run(workload, params, step_time, processes=processes_of(scenario.shock, begins_s=600.0))
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import simpy

from sim.fleet.processes import Fleet, Process
from sim.fleet.replica import Replica
from sim.scenario import CACHE_LOST, REPLICA_DOWN, SLOW, Shock


def processes_of(shocks: Sequence[Shock], begins_s: float) -> list[Process]:
    """A process for every shock of the fleet. begins_s: the end of the warm-up, from which their times count."""
    kinds = {CACHE_LOST: _restart, REPLICA_DOWN: _down, SLOW: _slow}
    return [_process(kinds[shock.kind], shock, begins_s) for shock in shocks if shock.kind in kinds]


def _process(what: object, shock: Shock, begins_s: float) -> Process:
    def run(fleet: Fleet) -> Generator[simpy.Event, None, None]:
        yield fleet.sleep(begins_s + shock.at_s)
        yield from what(fleet, shock)  # type: ignore[operator]

    return run


def _restart(fleet: Fleet, shock: Shock) -> Generator[simpy.Event, None, None]:
    """Every replica begins again with nothing in its memory."""
    for replica in fleet.replicas:
        replica.fail()
    for replica in fleet.replicas:
        replica.start(shock.duration_s)
    yield fleet.sleep(0.0)


def _down(fleet: Fleet, shock: Shock) -> Generator[simpy.Event, None, None]:
    hit = _hit(fleet, shock)
    for replica in hit:
        replica.fail()
    yield fleet.sleep(shock.duration_s)
    for replica in hit:
        replica.start(shock.load_s)


def _slow(fleet: Fleet, shock: Shock) -> Generator[simpy.Event, None, None]:
    hit = _hit(fleet, shock)
    for replica in hit:
        replica.slow_down(shock.how_much)
    yield fleet.sleep(shock.duration_s)
    for replica in hit:
        replica.slow_down(1.0)


def _hit(fleet: Fleet, shock: Shock) -> Sequence[Replica]:
    return fleet.replicas[-shock.replicas :]
