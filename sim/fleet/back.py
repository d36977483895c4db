"""Stop a simulation once its fleet is back from a shock, or can no longer be within its run.

The one idea: at a look, the arrivals of the last ten minutes but the very last, whose answers may be under way, are
counted; when every class of them attains its target the fleet is back since they began. The last ten minutes of the
window are the last chance: once more of them have missed than the target leaves of SURGE times as many as came in the
ten minutes before, it is over.

    back = Back(workload, scenario); run(workload, params, step_time, hopeless=back); back.back_s
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from simpy.core import StopSimulation

from sim.fleet.hopeless import REFUSED, Hopeless
from sim.fleet.replica import Replica
from sim.log import RequestLog
from sim.measure.shocks import JUDGED_S, MINUTE_S, span_s
from sim.scenario import Scenario
from workloads.columns import Workload

LOOKS = 400
SURGE = 1.5
"""Arrivals in ten minutes after ten minutes of the same load, at most so many times as many: they are hundreds."""


class Back(Hopeless):
    """Looks for the first ten minutes after the scenario's only shock in which the target is attained."""

    def __init__(self, workload: Workload, scenario: Scenario) -> None:
        super().__init__(workload, scenario.slo, scenario.run)
        self.every = max(100, 2 * len(workload) // LOOKS)
        self.back_s: float | None = None
        self.turned_away = 0
        self._since_s = span_s(scenario.shock[0], scenario.run.warmup_s or 0.0)[1]

    def look(self, now_s: float, log: RequestLog, replicas: Sequence[Replica]) -> None:
        """Stop the clock once it is back. Called inside an event."""
        begun_s = now_s - MINUTE_S - JUDGED_S
        if begun_s < self._since_s:
            return
        self._update(now_s, log, replicas)
        arrival_s = np.frombuffer(log.arrival_s)
        mine = self._counted & (arrival_s >= begun_s) & (arrival_s < begun_s + JUDGED_S)
        good = mine & ~np.isnan(self._finish_s) & ~self._missed["any"]
        if all((good & of).sum() >= target * (mine & of).sum() for _, target, of in self._groups):
            self.back_s = begun_s - self._since_s
        if self.back_s is not None or self._over(now_s, arrival_s):
            self.stopped_s, self.arrived = now_s, int(self._counted.sum())
            self.turned_away = int(REFUSED[np.frombuffer(log.status, np.int8)[self._counted]].sum())
            raise StopSimulation(None)

    def _over(self, now_s: float, arrival_s: np.ndarray) -> bool:
        """Whether no ten minutes that end within the window can attain the target. Those that a later look may take
        begin after the last look's; what came in a minute before this one is in none but the last of them."""
        last_s = self._end_s - JUDGED_S
        late = self._missed["any"] & (arrival_s >= last_s) & (arrival_s < now_s - MINUTE_S)
        came = self._counted & (arrival_s >= last_s - JUDGED_S) & (arrival_s < last_s)
        return any((late & of).sum() > (1 - target) * SURGE * (came & of).sum() > 0 for _, target, of in self._groups)

    def as_document(self) -> dict[str, Any]:
        """back_s: seconds after the shock from which the target is attained; None: not within the window.
        turned_away: of those that arrived, refused or given up by their clients."""
        return {
            "stopped_s": self.stopped_s,
            "back_s": self.back_s,
            "arrived": self.arrived,
            "turned_away": self.turned_away,
        }
