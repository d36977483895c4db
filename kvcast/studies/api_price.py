"""What a workload would cost on a hosted API that sells prompt caching.

The one idea: such a cache is a rule of time, not of memory. A prompt is cached up to breakpoints, each of which is an
entry; an entry lives for the retention after its last use, whoever used it. So a request's tokens split into reads (up
to its deepest live entry), writes (from there to its last breakpoint) and plain input, and each has a price.

    bill = price(workload, at_s, prices, Retention("5 minutes", 300, 1.25))
    bill.usd["read"].sum(), bill.hit_tokens.sum()

Simplifications, all in the API's favour or neutral: an entry can be read as soon as the request that writes it arrives;
a prompt reads its longest live entry wherever that was marked; reading refreshes the entries that the prompt marks
itself, and the one it read. Answers are not cached until a later prompt contains them. Every number in Prices is an
input."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np

from workloads.columns import Workload

COMPONENTS = ("uncached", "write", "read", "output")


@dataclass(frozen=True)
class Prices:
    """What an API charges, and what it caches. Prices are USD per million tokens."""

    input_usd_per_mtok: float
    output_usd_per_mtok: float
    read_multiplier: float  #: a cache read's price / input price
    minimum_tokens: int  #: a prefix shorter than this is not cached
    breakpoints: str | int = "layers"  #: "layers": where the prompt's layers end; or every so many tokens
    max_breakpoints: int = 4  #: with "layers": at most this many, the first ones and the prompt's end
    prompt_end: bool = True  #: with "layers": the prompt's end is a breakpoint too, as a conversation needs


@dataclass(frozen=True)
class Retention:
    """One kind of cache entry that the API sells."""

    name: str
    seconds: float  #: an entry used again within this time (inclusive) is read, and lives as long again
    write_multiplier: float  #: a cache write's price / input price; 1: no premium


NO_CACHING = Retention("no caching", -1.0, 1.0)


@dataclass(frozen=True)
class Bill:
    """Columns of all requests, in workload order; those that were never sent are zero."""

    hit_tokens: np.ndarray  #: int64 [n], read from the cache
    write_tokens: np.ndarray  #: int64 [n]
    uncached_tokens: np.ndarray  #: int64 [n]; the three sum to the prompt
    output_tokens: np.ndarray  #: int64 [n]
    usd: dict[str, np.ndarray]  #: component -> float64 [n]

    @property
    def total_usd(self) -> np.ndarray:
        """float64 [n]"""
        return np.sum([self.usd[name] for name in COMPONENTS], axis=0)


def price(workload: Workload, at_s: np.ndarray, prices: Prices, retention: Retention) -> Bill:
    """The bill of requests sent at `at_s` (float64 [n], NaN: never sent), which are taken in order of time, ties by
    row.

    O(nodes on the paths). Raises ValueError for impossible prices.
    """
    _check(prices)
    sent = ~np.isnan(at_s)
    hit, cached = np.zeros(len(workload), np.int64), np.zeros(len(workload), np.int64)
    if retention.seconds >= 0:
        entries = (_AtLayerEnds if prices.breakpoints == "layers" else _AtMultiples)(
            workload, prices, retention.seconds
        )
        for r in np.flatnonzero(sent)[np.argsort(at_s[sent], kind="stable")].tolist():
            hit[r], cached[r] = entries.send(r, float(at_s[r]))
    prompt = np.where(sent, workload.prompt_tokens, 0)
    tokens = {
        "uncached": prompt - np.maximum(cached, hit),
        "write": np.maximum(cached - hit, 0),
        "read": hit,
        "output": np.where(sent, workload.output_tokens, 0),
    }
    rate = {
        "uncached": prices.input_usd_per_mtok,
        "write": prices.input_usd_per_mtok * retention.write_multiplier,
        "read": prices.input_usd_per_mtok * prices.read_multiplier,
        "output": prices.output_usd_per_mtok,
    }
    return Bill(
        tokens["read"],
        tokens["write"],
        tokens["uncached"],
        tokens["output"],
        {name: tokens[name] * rate[name] / 1e6 for name in COMPONENTS},
    )


def _check(prices: Prices) -> None:
    if prices.breakpoints != "layers" and not (isinstance(prices.breakpoints, int) and prices.breakpoints >= 1):
        raise ValueError(f"breakpoints = {prices.breakpoints!r}, expected 'layers' or a number of tokens of at least 1")
    if prices.max_breakpoints < 1:
        raise ValueError(f"max_breakpoints = {prices.max_breakpoints}, expected at least 1")


class _Tree:
    """A request's path as tree nodes."""

    def __init__(self, workload: Workload, prices: Prices, seconds: float) -> None:
        tree = workload.tree
        self.parent, self.end, self.layer = tree.parent.tolist(), tree.end.tolist(), tree.layer.tolist()
        self.leaf, self.prompt = workload.leaf.tolist(), workload.prompt_tokens.tolist()
        self.tail_layer = workload.column("tail_layer").tolist()
        self.prices, self.seconds = prices, seconds

    def path(self, r: int) -> list[int]:
        """Nodes that hold tokens of the prompt, shallow to deep."""
        nodes, node, prompt = [], self.leaf[r], self.prompt[r]
        while self.parent[node] >= 0:
            if self.end[self.parent[node]] < prompt:
                nodes.append(node)
            node = self.parent[node]
        return nodes[::-1]


class _AtLayerEnds(_Tree):
    """Entries are single depths: (node, depth) -> when it was last used."""

    def __init__(self, workload: Workload, prices: Prices, seconds: float) -> None:
        super().__init__(workload, prices, seconds)
        self.used: dict[int, dict[int, float]] = defaultdict(dict)

    def send(self, r: int, now_s: float) -> tuple[int, int]:
        """(tokens read, tokens cached afterwards up to the last breakpoint) of request r, which uses its entries
        now."""
        path, prompt = self.path(r), self.prompt[r]
        marks, hit = self._breakpoints(r, path), 0
        for node in reversed(path):
            entries = {depth: t for depth, t in self.used[node].items() if now_s - t <= self.seconds}
            hit = max((depth for depth in entries if depth <= prompt), default=0)
            self.used[node] = entries
            if hit:
                entries[hit] = now_s
                break
        at = 0
        for depth in marks:
            while at < len(path) and self.end[path[at]] < depth:
                at += 1
            if at < len(path):  # beyond the tree nobody can share it
                self.used[path[at]][depth] = now_s
        return hit, marks[-1] if marks else 0

    def _breakpoints(self, r: int, path: list[int]) -> list[int]:
        """Ascending depths at which this prompt is cached."""
        prompt = self.prompt[r]
        below = [self.layer[node] for node in path[1:]] + (
            [self.tail_layer[r]] if path and self.end[path[-1]] < prompt else []
        )
        ends = [
            self.end[node]
            for node, layer in zip(path, below, strict=False)
            if self.layer[node] != layer and self.end[node] < prompt
        ]
        if self.prices.prompt_end:
            ends = [*ends[: self.prices.max_breakpoints - 1], prompt]
        return [d for d in ends[: self.prices.max_breakpoints] if d >= self.prices.minimum_tokens]


class _AtMultiples(_Tree):
    """Entries are all multiples of a block up to a depth, so a node keeps (depth, time) with depth falling and time
    rising."""

    def __init__(self, workload: Workload, prices: Prices, seconds: float) -> None:
        super().__init__(workload, prices, seconds)
        self.block = int(prices.breakpoints)
        self.used: dict[int, deque[tuple[int, float]]] = defaultdict(deque)

    def send(self, r: int, now_s: float) -> tuple[int, int]:
        """As above."""
        limit = self.prompt[r] // self.block * self.block
        if limit < self.prices.minimum_tokens or limit == 0:
            return 0, 0
        path = self.path(r)
        hit = self._deepest_live(path, limit, now_s)
        for node in path:
            depth = min(self.end[node], limit) // self.block * self.block
            if depth <= self.end[self.parent[node]] or depth < self.prices.minimum_tokens:
                continue
            uses = self.used[node]
            while uses and uses[-1][0] <= depth:
                uses.pop()
            uses.append((depth, now_s))
        return hit, limit

    def _deepest_live(self, path: list[int], limit: int, now_s: float) -> int:
        for node in reversed(path):
            uses = self.used[node]
            while uses and now_s - uses[0][1] > self.seconds:
                uses.popleft()
            if uses and self.end[self.parent[node]] < limit:
                return min(uses[0][0], limit)
        return 0
