"""A fleet that grows and shrinks by itself: a rule over its metrics, or a table of times, as a process beside a run.

The one idea: a controller keeps a wanted number of replicas, as Kubernetes does. What is missing starts (its GPUs are
held while its model loads), what is too much drains, and whatever fails is replaced where a replica is free.

    run(workload, params, step_time, replicas=8, processes=[autoscaler(AutoscaleConfig(rule="llm-d", start_s=278.0))])

The fleet has `replicas` places; at time 0 all of them are up, so that a warm-up ends in the number that the rule wants.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial

import numpy as np
import simpy

from sim.fleet.processes import Fleet, Process
from sim.fleet.replica import DOWN, DRAINING, STARTING, UP, Replica
from sim.recording import KV_TOO_SMALL, QUEUE_FULL, SESSION_TRUNCATED, SHED, TOO_LONG
from sim.scaling import Scaler, Seen, next_change_s, scheduled
from sim.scenario import SCHEDULE, AutoscaleConfig

SOON_S = 1e-6
"""Of two times that differ by rounding."""
TURNED_AWAY = (TOO_LONG, KV_TOO_SMALL, SESSION_TRUNCATED, QUEUE_FULL, SHED)
"""Who never had a time to first token to wait for."""


def autoscaler(config: AutoscaleConfig, clock_s: float = 0.0, share: float = 0.95) -> Process:
    """The process of an [autoscale] section that scales. clock_s: what a schedule's clock shows at time 0; share: of
    the TTFTs that are to be within a `ttft` target."""

    def run(fleet: Fleet) -> Generator[simpy.Event, None, None]:
        controller = Controller(fleet, config)
        fleet.controller = controller
        if config.rule == SCHEDULE:
            return _follows(controller, config, clock_s)
        return _scales(controller, config, share)

    return run


class Controller:
    """Keeps as many replicas as are wanted."""

    def __init__(self, fleet: Fleet, config: AutoscaleConfig) -> None:
        self.fleet, self.config = fleet, config
        self.wanted = len(fleet.replicas)
        self._drains: dict[int, int] = {}  # of each replica: how often it has been drained

    def keep(self, wanted: int) -> None:
        self.wanted = wanted
        self.reconcile()

    def reconcile(self) -> None:
        """Start what is missing, drain what is too much: of those that start first, then from the last one on."""
        fleet = self.fleet
        on = [replica for replica in fleet.replicas if replica.state in (UP, STARTING)]
        free = [one for one in fleet.replicas if one.state == DOWN and not fleet.out[one.index]]
        for replica in free[: max(self.wanted - len(on), 0)]:
            replica.start(self.config.start_s or 0.0)
        surplus = sorted(on, key=lambda one: (one.state == UP, -one.index))
        for replica in surplus[: max(len(on) - self.wanted, 0)]:
            self._drain(replica)

    def _drain(self, replica: Replica) -> None:
        grace_s, number = self.config.grace_s, self._drains.get(replica.index, 0) + 1
        self._drains[replica.index] = number
        replica.drain()
        if replica.state != DRAINING:
            return
        replica.gone().callbacks.append(lambda _: self._gone(replica))  # type: ignore[union-attr]
        if grace_s is not None:
            over = self.fleet.sleep(grace_s)
            over.callbacks.append(lambda _: self._ends(replica, number))  # type: ignore[union-attr]

    def _gone(self, replica: Replica) -> None:
        """It has served what it had: its place is free, and may be wanted by now."""
        self._drains[replica.index] += 1  # a grace that is not over is no longer of any drain
        self.reconcile()

    def _ends(self, replica: Replica, number: int) -> None:
        """Its grace is over: what still runs there begins again elsewhere."""
        if replica.state == DRAINING and self._drains[replica.index] == number:
            replica.fail()


def _follows(controller: Controller, config: AutoscaleConfig, clock_s: float) -> Generator[simpy.Event, None, None]:
    fleet, times_s, counts = controller.fleet, config.times_s, config.replicas
    while True:
        clock = clock_s + fleet.now_s + SOON_S
        controller.keep(min(scheduled(times_s, counts, config.cycle_s, clock), len(fleet.replicas)))
        yield fleet.sleep(next_change_s(times_s, config.cycle_s, clock) + SOON_S)


def _scales(controller: Controller, config: AutoscaleConfig, share: float) -> Generator[simpy.Event, None, None]:
    fleet, rule = controller.fleet, config.as_rule()
    least = min(config.min_replicas, len(fleet.replicas))
    scaler = Scaler(rule, least, len(fleet.replicas), tokens_per_s=config.prefill_tokens_per_s or math.nan)
    seen: deque[Seen] = deque()
    ttft_s = partial(_ttft_s, fleet, rule.lookback_s, share) if rule.metric == "ttft" else None
    scrapes = decisions = 1
    while True:
        scrape_s, decision_s = scrapes * rule.scrape_s, decisions * rule.period_s
        yield fleet.sleep(max(min(scrape_s, decision_s) - fleet.now_s, 0.0))
        now_s = fleet.now_s + SOON_S
        if scrape_s <= now_s:
            scrapes += 1
            seen.append(_seen(fleet))
        if decision_s <= now_s:
            decisions += 1
            known = _known(seen, now_s - config.delay_s, rule.lookback_s)
            controller.keep(scaler.decide(fleet.now_s, known, 0.0 if ttft_s is None else ttft_s(config.delay_s)))


def _known(seen: deque[Seen], until_s: float, lookback_s: float) -> Sequence[Seen]:
    """What has been scraped in the look-back before, the newest at least (mutates: forgets what is older)."""
    known = [one for one in seen if one.at_s <= until_s]
    within = [one for one in known if one.at_s > until_s - lookback_s] or known[-1:]
    while within and seen[0].at_s < within[0].at_s:
        seen.popleft()
    return within


def _seen(fleet: Fleet) -> Seen:
    here = fleet.replicas
    return Seen(
        fleet.now_s,
        sum(one.running for one in here),
        sum(one.waiting for one in here) + fleet.waiting,
        sum(one.kv_usage for one in here if one.state != DOWN),
        sum(one.waiting_tokens() for one in here) + fleet.waiting_tokens(),
    )


def _ttft_s(fleet: Fleet, lookback_s: float, share: float, delay_s: float) -> float:
    """The TTFT that `share` of the requests of the look-back have met, seconds; one without a first token counts with
    what it has waited, one that was turned away not at all. 0 where nobody came."""
    log, until_s = fleet.log, fleet.now_s - delay_s
    arrival_s = np.frombuffer(log.arrival_s)
    came = (arrival_s > until_s - lookback_s) & (arrival_s <= until_s)
    rows = np.flatnonzero(came & ~np.isin(np.frombuffer(log.status, np.int8), TURNED_AWAY))
    waited_s = until_s - arrival_s[rows]
    for i, row in enumerate(rows.tolist()):
        if log.first_step[row] >= 0:
            told_s = fleet.replicas[log.replica[row]].record.told_s(log.first_step[row])
            waited_s[i] = min(told_s, until_s) - arrival_s[row]
    return float(np.quantile(waited_s, share, method="inverted_cdf")) if len(rows) else 0.0
