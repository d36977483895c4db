"""The order in which SGLang serves the waiting: first come, by priority, longest output, longest cached prefix,
subtree.

The one idea: a pass sorts the queue in place, with a stable sort, so ties keep what earlier passes left; whoever is
admitted was at the front, since the first rejection ends a pass. First come, first served never sorts and keeps bare
ids until a request comes near the front, so that a long queue costs little. With scheduler_recv_interval above 1 who
has come waits unread, in order, until the engine looks (`look`)."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable

from sim.kvcache.chains import Path
from sim.sglang.node import Node, RadixRequest
from sim.sglang.radix import RadixCache

REFRESH_PASSES = 32
REFRESH_REQUESTS = 128
LPM_LONGEST_QUEUE = 128
IN_BATCH_SHARED = 32
"""Tokens: who hits no more than this in the cache and shares at least this with somebody ahead is put last (lpm)."""
DECODE, PREFILL, IDLE = 1, 1000, 0
"""What a pass counts for towards scheduler_recv_interval, by the step before it. An idle engine counts 1 a pass too,
but makes thousands a second: it looks at once."""


class Waiting:
    """The queue; `arrange` is called once a pass, before the scan from the front."""

    def __init__(
        self,
        cache: RadixCache,
        page: int,
        order: str,
        by_priority: bool,
        refreshes: bool,
        build: Callable[[int], RadixRequest],
        token_path: Callable[[int], Path],
        interval: int = 1,
    ) -> None:
        self.cache = cache
        self.page = page
        self.by_priority = by_priority
        self.token_path = token_path
        self._build = build
        # a queue that is too long for longest-prefix order is first come, first served
        self._refreshed_from = {"fcfs": 1, "lof": 1, "lpm": LPM_LONGEST_QUEUE + 1}.get(order, 0) if refreshes else 0
        self._order = ORDERS[order] if order != "fcfs" or by_priority else None
        self.interval = interval
        self.unread: list[int] = []  # have come, and the engine has not looked
        self._counted = 0  # since it last has
        self.passes = 0  # of the refresh
        self._sorted = 0  # leading requests that an earlier pass has put in order
        self.queue: deque[RadixRequest] | list[RadixRequest] = (
            deque() if self._order is None else []
        )  # bare ids under first come, first served

    def __len__(self) -> int:
        """Everybody who has come, read or not."""
        return len(self.queue) + len(self.unread)

    def come(self, request: int) -> None:
        if self.interval > 1:
            self.unread.append(request)
        else:
            self._add(request)

    def look(self, step_before: int) -> None:
        """A pass begins, after a step that was IDLE, DECODE or PREFILL: read who has come, when it is time."""
        self._counted += step_before
        if step_before == IDLE or self._counted >= self.interval:
            self._counted = 0
            for request in self.unread:
                self._add(request)
            self.unread.clear()

    def decodes_until_look(self) -> int:
        """How many passes from here, this one included, read nobody though each follows a decode."""
        return self.interval - self._counted

    def skip(self, passes: int) -> None:
        """So many passes after decodes, in which nobody who has come is unread, or none looks."""
        self._counted = (self._counted + passes) % self.interval

    def _add(self, request: int) -> None:
        self.queue.append(request if self._order is None else self._build(request))  # type: ignore[arg-type]

    def ids(self) -> list[int]:
        """Everybody in it, in order."""
        return [r if isinstance(r, int) else r.id for r in self.queue] + self.unread

    def put_last(self, r: RadixRequest) -> None:
        """A retracted request."""
        self.queue.append(r)

    def cancel(self, request: int) -> RadixRequest | None:
        """A request leaves, by its id; None when it is not here."""
        if request in self.unread:
            self.unread.remove(request)
            return self._build(request)
        for i, r in enumerate(self.queue):
            if r == request or (not isinstance(r, int) and r.id == request):
                del self.queue[i]
                self._sorted -= i < self._sorted
                return self._build(request) if isinstance(r, int) else r
        return None

    def at(self, i: int) -> RadixRequest:
        r = self.queue[i]
        if isinstance(r, int):
            r = self.queue[i] = self._build(r)
        return r

    def pop(self) -> None:
        if isinstance(self.queue, deque):
            self.queue.popleft()
        else:
            del self.queue[0]
            self._sorted -= 1

    def arrange(self) -> None:
        if self._order is not None:
            self._order(self)
        if len(self.queue) >= self._refreshed_from > 0:
            self._refresh()

    def _refresh(self) -> None:
        """Every 32nd pass touches the prefixes of the first 128, so that they are not evicted before their turn."""
        if self.passes % REFRESH_PASSES == 0:
            for i in range(min(len(self.queue), REFRESH_REQUESTS) - 1, -1, -1):
                r = self.at(i)
                self.cache.match(r.path, r.known // self.page)
        self.passes += 1

    def sort(self, key: Callable[[RadixRequest], tuple]) -> None:
        """By a key that no request changes while it waits: those that came since the last pass find their places."""
        queue: list[RadixRequest] = self.queue  # type: ignore[assignment]
        came = queue[self._sorted :]
        del queue[self._sorted :]
        for r in came:
            insort(queue, r, key=key)
        self._sorted = len(queue)


def first_come(waiting: Waiting) -> None:
    """Larger priority first, then by arrival."""
    waiting.sort(lambda r: (-r.priority, r.arrival_s, r.id))


def longest_output(waiting: Waiting) -> None:
    """Most output tokens allowed first."""
    by_priority = waiting.by_priority
    waiting.sort(lambda r: (-r.priority if by_priority else 0, -r.asked))


def longest_prefix(waiting: Waiting) -> None:
    """Most cached tokens first; who shares a prefix with somebody ahead that nothing has cached yet comes last."""
    if not waiting.cache.caching or len(waiting.queue) > LPM_LONGEST_QUEUE:
        return
    nodes, postponed = _match_all(waiting)
    hits = {r: min(node.hi * waiting.page, r.known - 1) for r, node in zip(waiting.queue, nodes, strict=True)}
    waiting.queue = sorted(waiting.queue, key=lambda r: (r in postponed, 0 if r in postponed else -hits[r]))


def subtree_weight(waiting: Waiting) -> None:
    """Depth first through the cache: the child with most waiting requests below it first, a node's own after its
    children's."""
    if not waiting.cache.caching:
        return
    nodes, _ = _match_all(waiting)
    at: dict[Node, list[RadixRequest]] = {}
    weight: dict[Node, int] = {}
    for r, node in zip(waiting.queue, nodes, strict=True):
        at.setdefault(node, []).append(r)
        up: Node | None = node
        while up is not None:
            weight[up] = weight.get(up, 0) + 1
            up = up.parent
    waiting.queue = []
    todo: list[tuple[Node, bool]] = [(waiting.cache.root, False)]
    while todo:
        node, served = todo.pop()
        if served:
            waiting.queue.extend(at.get(node, ()))
            continue
        todo.append((node, True))
        below = sorted((child for child in node.children.values() if child in weight), key=lambda child: -weight[child])
        todo += [(child, False) for child in reversed(below)]


def _match_all(waiting: Waiting) -> tuple[list[Node], set[RadixRequest]]:
    """Where each one's whole prompt ends in the cache, and who shares a prefix with one ahead that no cache holds
    yet."""
    cache, page = waiting.cache, waiting.page
    ahead = RadixCache(
        0, "lru", 0, {}, clock=cache.clock
    )  # of single tokens; its operations advance SGLang's one clock
    cache.clock = ahead.clock
    nodes, postponed = [], set()
    for r in waiting.queue:
        node = cache.match(r.path, r.known // page)
        nodes.append(node)
        if node.hi * page <= IN_BATCH_SHARED:
            ahead.clock = cache.clock
            path = waiting.token_path(r.id)
            if ahead.match(path, r.known).hi >= IN_BATCH_SHARED:
                postponed.add(r)
            else:
                ahead.insert(path, r.known, 0, 0)
            cache.clock = ahead.clock
    return nodes, postponed


ORDERS: dict[str, Callable[[Waiting], None]] = {
    "fcfs": first_come,
    "lof": longest_output,
    "lpm": longest_prefix,
    "dfs-weight": subtree_weight,
}
"""engine.schedule_policy -> its order."""
