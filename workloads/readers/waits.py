"""Requests that wait for others: names of requests -> the one that each follows, and how long after.

The one idea: a workload knows one request that releases another. Of several, those that must end before another of them
are left out; what then remains is one, or requests side by side, of which the one that ends last as recorded is
followed, with a count.

    graph = Waits(); graph.add("r2", [Wait("r1", 0.2)]); order, after, delay_s = graph.resolved(rows, start_s, took_s)
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from workloads.readers.common import Rows


class Wait(NamedTuple):
    """One request waits for another: until it is complete, or (`dispatched`) sent, and `delay_s` after that."""

    name: str
    delay_s: float
    dispatched: bool = False


def joined(session: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(session int64 [n], turn int32 [n]): a request that follows one of another session is of that session, so that
    agents and the agents they spawn are one, and whoever takes whole sessions takes all of them. after: int64 [n]."""
    of, turns = session.tolist(), [0] * len(session)
    count: dict[int, int] = {}
    for i, before in enumerate(after.tolist()):
        if before >= 0:
            of[i] = of[before]
        turns[i] = count.get(of[i], 0)
        count[of[i]] = turns[i] + 1
    return np.unique(of, return_inverse=True)[1].astype(np.int64), np.array(turns, np.int32)


@dataclass
class Waits:
    """Collects what each request waits for, in file order; `field_name` is what the file calls that."""

    field_name: str = "wait_for"
    names: list[str | None] = field(default_factory=list)
    waits: list[Sequence[Wait]] = field(default_factory=list)
    gone: dict[str, Sequence[Wait]] = field(default_factory=dict)  #: requests that are skipped: who waits for them
    together: int = 0  #: requests that wait for several side by side

    def add(self, name: str | None, waits: Sequence[Wait]) -> None:
        self.names.append(name)
        self.waits.append(waits)

    def skip(self, name: str | None, waits: Sequence[Wait]) -> None:
        """A request that is left out: whoever waits for it waits for what it waited for."""
        if name is not None:
            self.gone[name] = waits

    def resolved(
        self, rows: Rows, start_s: np.ndarray, took_s: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(order int64 [n]: file places, a request behind what it follows; and by file place: after int64 [n], the
        place of the request it follows or -1; delay_s float64 [n]; begins_s float64 [n], the recorded start, or for one
        that is sent when a request that waits for nobody is sent, that start and the delay).

        start_s, took_s: float64 [n], recorded start (NaN unknown) and about how long it took; they decide which of
        several ends last. InputError for a name that is not in the file and for requests that wait for each other."""
        place = self._distinct(rows) if any(self.waits) else {}
        needs = [self._places(rows, i, place) for i in range(len(self.names))]
        order = self._order(rows, needs)
        n = len(needs)
        after, delay_s, begins_s = np.full(n, -1, np.int64), np.zeros(n), start_s.copy()
        for i in order:
            chosen = self._last(needs[i], after, start_s + took_s) if needs[i] else None
            if chosen is None:
                continue
            other, wait_s, dispatched = chosen
            if not dispatched:
                after[i], delay_s[i] = other, wait_s
            elif after[other] >= 0:  # sent when that one is: it follows whom that one follows
                after[i], delay_s[i] = after[other], delay_s[other] + wait_s
            else:
                begins_s[i] = begins_s[other] + wait_s
        if self.together:
            rows.note(
                f"{self.field_name}: {self.together} requests wait for several that run side by side; each follows the"
                " one that ends last as recorded"
            )
        return np.array(order, np.int64), after, delay_s, begins_s

    def _distinct(self, rows: Rows) -> dict[str, int]:
        """The place of each name; InputError for one that two requests have."""
        place: dict[str, int] = {}
        for i, name in enumerate(self.names):
            if name is not None and place.setdefault(name, i) != i:
                other = rows.number[place[name]]
                rows.fail("request_id", name, f"another than that of row {other}", rows.number[i])
        return place

    def _places(self, rows: Rows, at: int, place: dict[str, int]) -> list[tuple[int, float, bool]]:
        """(place, delay, until it is sent) of all that request `at` waits for, through those that were skipped."""
        found: dict[int, tuple[float, bool]] = {}
        pending, seen = list(self.waits[at]), {wait.name for wait in self.waits[at]}
        while pending:
            wait = pending.pop()
            if wait.name in place:
                found[place[wait.name]] = (wait.delay_s, wait.dispatched)
            elif wait.name not in self.gone:
                rows.fail(self.field_name, wait.name, "the request_id of another request of the file", rows.number[at])
            else:
                through = [w for w in self.gone[wait.name] if w.name not in seen]
                seen |= {w.name for w in through}
                pending += [w._replace(delay_s=w.delay_s + wait.delay_s) for w in through]
        return [(other, delay_s, dispatched) for other, (delay_s, dispatched) in found.items()]

    def _order(self, rows: Rows, needs: list[list[tuple[int, float, bool]]]) -> list[int]:
        """File order, but for requests that stand before one that they wait for."""
        left = [len(need) for need in needs]
        followers: list[list[int]] = [[] for _ in needs]
        for i, need in enumerate(needs):
            for other, _, _ in need:
                followers[other].append(i)
        free, order = [i for i, count in enumerate(left) if not count], []
        heapq.heapify(free)
        while free:
            order.append(heapq.heappop(free))
            for follower in followers[order[-1]]:
                left[follower] -= 1
                if not left[follower]:
                    heapq.heappush(free, follower)
        if len(order) < len(needs):
            stuck = next(i for i, count in enumerate(left) if count)
            rows.fail(
                self.field_name,
                [wait.name for wait in self.waits[stuck]],
                "requests that do not wait for each other in a circle",
                rows.number[stuck],
            )
        return order

    def _last(
        self, need: list[tuple[int, float, bool]], after: np.ndarray, end_s: np.ndarray
    ) -> tuple[int, float, bool]:
        """The one of them to follow: those that another of them follows end earlier and do not count."""
        if len(need) > 1:
            before: set[int] = set()
            for other, _, _ in need:
                while (other := int(after[other])) >= 0 and other not in before:
                    before.add(other)
            need = [one for one in need if one[0] not in before]
            self.together += len(need) > 1
        return max(need, key=lambda one: (np.nan_to_num(end_s[one[0]], nan=-1.0) + one[1], one[0]))
