"""Shocks of a scenario as processes beside its run: replicas that fail, restart, or become slow.

The one idea: a shock of the fleet is a generator over simulated time (sim.fleet.processes); one of load is sessions
more in the workload (workloads.surges), made before the run.

    simulate.run(workload, params, step_time, processes=processes_of(scenario.shock, begins_s=600.0))
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence

import numpy as np
import simpy

from sim.fleet.processes import Fleet, Process
from sim.fleet.replica import DOWN, STARTING, UP, Replica
from sim.scenario import CACHE_LOST, REPLICA_DOWN, ROLLING, SLOW, SPOT, Shock


def processes_of(shocks: Sequence[Shock], begins_s: float, seed: int = 0) -> list[Process]:
    """A process for every shock of the fleet. begins_s: the end of the warm-up, from which their times count; seed: of
    the random ones, each of which has a stream of its own."""
    kinds = {CACHE_LOST: _restart, REPLICA_DOWN: _down, SLOW: _slow, ROLLING: _roll, SPOT: _lose_some}
    now = _Now()
    return [
        _process(
            kinds[shock.kind], shock, now, begins_s, np.random.SeedSequence(seed, spawn_key=(4, place))
        )  # stream 4
        for place, shock in enumerate(shocks)
        if shock.kind in kinds
    ]


class _Now:
    """What holds at the moment, by replica: shocks may overlap, and one that ends leaves the others as they are."""

    def __init__(self) -> None:
        self.slow: dict[int, list[float]] = defaultdict(list)  #: factors that its steps take longer by

    def slow_down(self, replica: Replica) -> None:
        replica.slow_down(math.prod(self.slow[replica.index]))


Doing = Generator[simpy.Event, None, None]
What = Callable[[Fleet, Shock, _Now, np.random.Generator], Doing]


def _process(what: What, shock: Shock, now: _Now, begins_s: float, stream: np.random.SeedSequence) -> Process:
    def run(fleet: Fleet) -> Doing:
        yield fleet.sleep(begins_s + shock.at_s)
        yield from what(fleet, shock, now, np.random.default_rng(stream))

    return run


def _restart(fleet: Fleet, shock: Shock, now: _Now, rng: np.random.Generator) -> Doing:
    """Every replica begins again with nothing in its memory."""
    for replica in fleet.replicas:
        fleet.lose(replica)
    for replica in fleet.replicas:
        fleet.put_back(replica, shock.duration_s)
    yield fleet.sleep(0.0)


def _down(fleet: Fleet, shock: Shock, now: _Now, rng: np.random.Generator) -> Doing:
    hit = _hit(fleet, shock)
    for replica in hit:
        fleet.lose(replica)
    yield fleet.sleep(shock.duration_s)
    for replica in hit:
        fleet.put_back(replica, shock.load_s)


def _slow(fleet: Fleet, shock: Shock, now: _Now, rng: np.random.Generator) -> Doing:
    hit = _hit(fleet, shock)
    for replica in hit:
        now.slow[replica.index].append(shock.how_much)
        now.slow_down(replica)
    yield fleet.sleep(shock.duration_s)
    for replica in hit:
        now.slow[replica.index].remove(shock.how_much)
        now.slow_down(replica)


def _roll(fleet: Fleet, shock: Shock, now: _Now, rng: np.random.Generator) -> Doing:
    """One after the other, each in its part of the time: it drains, restarts and is cold."""
    part_s, begins_s = shock.duration_s / len(fleet.replicas), fleet.now_s
    for place, replica in enumerate(fleet.replicas, 1):
        if replica.takes:
            yield from fleet.take_out(replica, shock.notice_s)
            fleet.put_back(replica, shock.load_s)
        yield fleet.sleep(max(begins_s + place * part_s - fleet.now_s, 0.0))


def _lose_some(fleet: Fleet, shock: Shock, now: _Now, rng: np.random.Generator) -> Doing:
    """Losses of a Poisson process, of a replica each: of the rate of those that are there, as what hits one that is
    not is none."""
    n, ends_s = len(fleet.replicas), fleet.now_s + shock.duration_s
    while True:
        gap_s, hit = float(rng.exponential(3600 / (shock.losses_per_hour * n))), int(rng.integers(n))
        if fleet.now_s + gap_s >= ends_s:
            return
        yield fleet.sleep(gap_s)
        replica = fleet.replicas[hit]
        if replica.state in (UP, STARTING):
            fleet.also(_taken_away(fleet, shock, replica))


def _taken_away(fleet: Fleet, shock: Shock, replica: Replica) -> Doing:
    yield from fleet.take_out(replica, shock.notice_s)
    yield fleet.sleep(shock.away_s)
    fleet.put_back(replica, shock.load_s)


def _hit(fleet: Fleet, shock: Shock) -> Sequence[Replica]:
    """The last ones; of a fleet that scales, those that are there before places that are empty."""
    scales = fleet.controller is not None
    last = sorted(fleet.replicas, key=lambda one: scales and one.state != DOWN)[-shock.replicas :]
    return sorted(last, key=lambda one: one.index)
