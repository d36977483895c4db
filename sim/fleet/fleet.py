"""Fronts and replicas of one run, made of what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

from sim.engine import Common, Engine, Scheduler
from sim.fleet.arrivals import Arrivals
from sim.fleet.clients import Clients
from sim.fleet.clock import Clock
from sim.fleet.cluster import Cluster
from sim.fleet.doorway import Doorway
from sim.fleet.gate import Gate
from sim.fleet.kv_events import listeners
from sim.fleet.ranks import LockStepReplica, maker
from sim.fleet.replica import Front, Replica
from sim.fleet.router import Router
from sim.front_end import FrontEnd


class Told(Front, Protocol):
    """Whom replicas tell of their requests, on its clock."""

    env: Clock


@dataclass
class Fleet:
    """Of `sim.simulate.run`, which says what the last six are."""

    engine: Engine
    common: Common
    arrivals: Arrivals
    until_arrival_s: float | None
    on_clock: Callable[[float, float], None] | None
    fast_forward: bool
    life: list[list[tuple]] | None
    step_log: list | None
    kv_event_delay_s: float = 0.0

    def front(
        self,
        clock: Clock,
        router: Router,
        clients: Clients | None = None,
        gate: Gate | None = None,
        kind: Callable[..., Cluster] = Cluster,
    ) -> Cluster:
        """One without replicas."""
        common, engine = self.common, self.engine
        return kind(
            clock,
            common.workload,
            self.arrivals,
            common.params,
            common.log,
            router,
            partial(engine.holds, common.params),
            engine.longest_prompt(common.params),
            self.until_arrival_s,
            self.on_clock,
            clients=clients,
            gate=gate,
        )

    @cached_property
    def _scheduler(self) -> Callable[[int], Scheduler]:
        make, ranks = self.engine.fleet(self.common), self.common.params.ranks
        return make if ranks == 1 else maker(make, ranks, self.engine.ranks_in_turn)

    def replicas(self, front: Told, indices: Iterable[int]) -> list[Replica]:
        """Of these numbers, which tell that front of their requests."""
        common = self.common
        listen = listeners(front.env, self.kv_event_delay_s, common.params.caching)
        kind = Replica if common.params.ranks == 1 else LockStepReplica
        return [
            kind(
                index,
                front.env,
                self._scheduler,
                common.step_time,
                common.log,
                front,
                door=partial(Doorway, common.params, common.log),
                overhead_s=common.params.step_overhead_s,
                front_end=FrontEnd.of(common.params),
                max_loras=common.params.max_loras,
                fast_forward=self.fast_forward and self.step_log is None and listen is None and not common.stores,
                life=self.life,
                step_log=self.step_log,
                listen=listen,
            )
            for index in indices
        ]
