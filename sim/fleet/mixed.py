"""A fleet of replicas that are not alike, behind one router: other GPUs, engine keys or models.

The one idea: a kind of replica is its engine and its step times; log, arrivals and router are the fleet's. A request
may go to the kinds that its class asks for and that have room for all of it, and the router chooses among the replicas
of these. It sees what it would see of any replica (requests, tokens, share of its own KV memory) and not how fast one
is, as the products' routers do not.

    run(workload, kinds[0].params, kinds[0].step_time, mixed=Mixed(kinds), replicas=sum of theirs)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from calibrate.latency import StepTime
from sim.alone import prefill_alone
from sim.engine import Common, Engine
from sim.engines import engine_of
from sim.fleet.clock import Clock
from sim.fleet.cluster import Cluster
from sim.fleet.fleet import Fleet
from sim.fleet.replica import Replica
from sim.fleet.router import Router
from sim.front_end import FrontEnd
from sim.kvcache.ceilings import UnderWay
from sim.recording import KV_TOO_SMALL, TOO_LONG
from sim.scenario import EngineParams
from workloads.columns import Workload
from workloads.errors import InputError


@dataclass(frozen=True)
class Kind:
    """Replicas that are alike."""

    name: str
    replicas: int
    params: EngineParams
    step_time: StepTime
    shares: str = ""  #: kinds with the same word could share a cache: their models and KV are the same


@dataclass(frozen=True)
class Mixed:
    """The kinds of a fleet, in the order of its replicas."""

    kinds: Sequence[Kind]
    asks: np.ndarray | None = None  #: bool [classes, kinds]: whose requests may go where; None: everybody's anywhere

    @property
    def replicas(self) -> int:
        return sum(kind.replicas for kind in self.kinds)


def check(mixed: Mixed, engine: Engine) -> None:
    """Raise InputError for kinds that are not simulated together."""
    first = mixed.kinds[0].params
    for kind in mixed.kinds:
        for wrong, what in _apart(first, kind.params):
            if wrong:
                raise InputError(
                    f"[pool.{kind.name}] {what} than in pool {mixed.kinds[0].name!r}: not simulated together, expected"
                    " the same"
                )
        if kind.params.policy == "clairvoyant":
            raise InputError(
                "[[pool]] with cache.policy = 'clairvoyant' or 'optimal': not simulated together, expected another"
                " policy"
            )


def _apart(a: EngineParams, b: EngineParams) -> Iterator[tuple[bool, str]]:
    """(whether two kinds differ in it, it) of all that the columns of one recording have in common."""
    yield engine_of(a) is not engine_of(b), f"{engine_of(b).title}, another engine"
    yield a.hit_block != b.hit_block, f"blocks of {b.hit_block} tokens, others"
    yield a.ranks != b.ranks, f"attention_dp = {b.ranks}, another number"
    yield a.caching != b.caching, "prefix caching otherwise"
    yield [tier.name for tier in a.tiers] != [tier.name for tier in b.tiers], "other cache tiers"
    yield a.speculative != b.speculative, "other drafts"
    yield _front_end(a) != _front_end(b), "a front end (frontend_*) otherwise"


def _front_end(params: EngineParams) -> tuple[bool, bool]:
    """Whether it takes time, and whether tokens wait in it."""
    front = FrontEnd.of(params)
    return front is not None, front is not None and front.delays_outputs


class _Everybody(Router):
    """The routers of one fleet: one for each list of replicas that requests may go to, or where `any_list` one for
    all."""

    def __init__(self, make: Callable[[], Router], any_list: bool) -> None:
        self._make, self._any_list = make, any_list
        self._of: dict[int, Router] = {}

    def of(self, kinds: int) -> Router:
        """The router of requests that may go to these kinds, a bit each."""
        kinds = 0 if self._any_list else kinds
        if kinds not in self._of:
            self._of[kinds] = self._make()
        return self._of[kinds]

    def finished(self, request: int, replica: Replica) -> None:
        for router in self._of.values():
            router.finished(request, replica)


class MixedCluster(Cluster):
    """The front of a fleet of several kinds."""

    def __init__(self, env: Clock, workload: Workload, *given: Any, mixed: Mixed, engine: Engine, **more: Any) -> None:
        """given, more: as of a Cluster."""
        super().__init__(env, workload, *given, **more)
        self._mixed, self._engine = mixed, engine
        every = (1 << len(mixed.kinds)) - 1
        self._class = workload.column("class_id").data
        self._asked = [every] if mixed.asks is None else [_bits(row) for row in mixed.asks.tolist()]
        self._open: dict[int, list[Replica]] = {}  # kinds, a bit each -> their replicas

    def cannot_serve(self, request: int) -> int:
        return 0 if self.kinds_of(request) else max(self._reasons(request))

    def kinds_of(self, request: int) -> int:
        """The kinds that may serve a request, a bit each."""
        asked = self._asks(request)
        return sum(
            1 << k for k, kind in enumerate(self._mixed.kinds) if asked >> k & 1 and not self._refuses(kind, request)
        )

    def _asks(self, request: int) -> int:
        return self._asked[self._class[request] if len(self._asked) > 1 else 0]

    def _reasons(self, request: int) -> list[int]:
        kinds = self._mixed.kinds
        return [self._refuses(kind, request) for k, kind in enumerate(kinds) if self._asks(request) >> k & 1]

    def _refuses(self, kind: Kind, request: int) -> int:
        """As cannot_serve, of the replicas of one kind."""
        prompt = self.log.prompt[request]
        tokens = prompt + self.log.output[request]
        if tokens > kind.params.max_model_len or prompt > self._engine.longest_prompt(kind.params):
            return TOO_LONG
        return 0 if self._engine.holds(kind.params, tokens) else KV_TOO_SMALL

    def open_to(self, request: int) -> list[Replica]:
        kinds = self.kinds_of(request)
        if kinds not in self._open:
            of = [k for k, kind in enumerate(self._mixed.kinds) for _ in range(kind.replicas)]
            self._open[kinds] = [replica for replica, k in zip(self.replicas, of, strict=True) if kinds >> k & 1]
        return self._open[kinds]

    def choose(self, request: int, replicas: list[Replica]) -> Replica:
        return cast(_Everybody, self.router).of(self.kinds_of(request)).choose(request, replicas)


def _bits(row: Sequence[bool]) -> int:
    return sum(1 << k for k, asked in enumerate(row) if asked)


def _of_kind(common: Common, kind: Kind, seen: dict[str, tuple[dict[int, int], UnderWay]]) -> Common:
    """What the replicas of a kind share among themselves, given what all do."""
    params = kind.params
    fleet_seen, under_way = seen.setdefault(kind.shares, ({}, UnderWay()))
    prefill_s = prefill_alone(kind.step_time, params.max_num_batched_tokens, params.step_overhead_s)
    return replace(
        common, params=params, step_time=kind.step_time, prefill_s=prefill_s, fleet_seen=fleet_seen, under_way=under_way
    )


def mixed_front(
    fleet: Fleet, clock: Clock, routing: Callable[[], Router], any_list: bool, mixed: Mixed, **more: Any
) -> MixedCluster:
    """The front of a fleet of several kinds, with its replicas. routing: makes a router. any_list: Router.any_list of
    those."""
    kind = partial(MixedCluster, mixed=mixed, engine=fleet.engine)
    cluster = cast(MixedCluster, fleet.front(clock, _Everybody(routing, any_list), kind=kind, **more))
    seen: dict[str, tuple[dict[int, int], UnderWay]] = {}
    at = 0
    for one in mixed.kinds:
        of = replace(fleet, common=_of_kind(fleet.common, one, seen))
        cluster.replicas += of.replicas(cluster, range(at, at + one.replicas))
        at += one.replicas
    return cluster
