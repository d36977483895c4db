"""A SimPy environment that schedules at absolute times.

`env.timeout(t - now)` wakes at now + (t - now), which is not always t in floating point; engine step ends must be
exact, so that fast-forward and stepping agree to the last bit. At equal times arrivals come first, in request order,
then replicas in theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

import simpy

from workloads.errors import InputError

ARRIVAL, STEP_END = 2, 3  # after SimPy's own URGENT and NORMAL
A_DAY_S = 86400.0


class Clock(simpy.Environment):
    def __init__(self) -> None:
        super().__init__()
        self.turn = -1  # the last replica, in their order, that has had its turn at the present time
        self._moved: set[simpy.Event] = set()  # still queued, but nobody waits for them: they must not move the clock

    def step(self) -> None:
        queue = self._queue
        if self._moved:
            self._drop_moved()
        if queue:
            time_s, priority, order, _ = queue[0]
            if time_s > self._now:
                self.turn = -1
            if priority == STEP_END and order[0] > self.turn:  # type: ignore[index]
                self.turn = order[0]  # type: ignore[index]
        super().step()

    def _drop_moved(self) -> None:
        queue = self._queue
        while queue and queue[0][3] in self._moved:
            self._moved.discard(heappop(queue)[3])

    def peek(self) -> float:
        """When the next event is that anybody waits for; inf for none."""
        self._drop_moved()
        return super().peek()

    def wait(self, seconds: float, what: str) -> simpy.Event:
        """An event so much later, before whatever else happens then. Raises InputError for no such time."""
        if not (isinstance(seconds, int | float) and 0 <= seconds < inf):
            raise InputError(f"{what} {seconds!r} s: expected a number of at least 0")
        return self.timeout(seconds)

    def trigger_at(self, event: simpy.Event, time_s: float, replica: int) -> simpy.Event:
        """Make an untriggered event of a replica happen at `time_s`."""
        return self._push(event, time_s, STEP_END, (replica, next(self._eid)))

    def event_at(self, time_s: float, replica: int) -> simpy.Event:
        return self._push(simpy.Event(self), time_s, STEP_END, (replica, next(self._eid)))

    def move(self, event: simpy.Event, time_s: float, replica: int) -> simpy.Event:
        """Let whoever waits for `event` wait for an earlier moment; the old event never happens."""
        moved = self.event_at(time_s, replica)
        moved.callbacks, event.callbacks = event.callbacks, []
        self._moved.add(event)
        return moved

    def cancel(self, event: simpy.Event | None) -> None:
        """Nobody waits for `event` any more; it does not move the clock."""
        if event is not None and event.callbacks is not None:
            event.callbacks = []
            if event.triggered:
                self._moved.add(event)

    def run_beside(self, until_s: float | None, wanted: Callable[[], bool]) -> None:
        """Run while requests are under way, or `wanted()` says that some wait for a replica: processes beside them keep
        no run alive, and a day on which they do nothing for those that wait is the last."""
        last_s = self.now
        try:
            while (next_s := self.peek()) < (inf if until_s is None else until_s):
                if self._serves():
                    last_s = self.now
                elif not wanted() or next_s > last_s + A_DAY_S:
                    break
                self.step()
        except simpy.core.StopSimulation:  # given up: the clock stands where that was
            return
        if until_s is not None:
            self._now = until_s

    def _serves(self) -> bool:
        """Whether an arrival or the end of a step is to come."""
        return self._queue[0][1] >= ARRIVAL or any(
            entry[1] >= ARRIVAL and entry[3] not in self._moved for entry in self._queue
        )

    def call_at(self, time_s: float, request: int, callback: Callable[[int], Any], place: int = 0) -> simpy.Event:
        """Call back with a request at `time_s`; at most one call per request and place is pending at any time."""
        event = simpy.Event(self)
        event.callbacks.append(lambda _: callback(request))  # type: ignore[union-attr]
        return self._push(event, time_s, ARRIVAL, (request, place))

    def _push(self, event: simpy.Event, time_s: float, priority: int, order: tuple[int, int]) -> simpy.Event:
        if time_s < self._now:
            raise ValueError(f"cannot schedule at {time_s} s: it is {self.now} s already")
        event._ok = True
        event._value = None
        heappush(self._queue, (time_s, priority, order, event))  # type: ignore[misc, arg-type]
        return event
