"""Routers that look for a prompt's prefix, as products have them: weights, blocks and rules of the versions named in
docs/fleet.md.

The one idea: a replica is worth what it would save less what it has to do. Routers differ in how they know: from their
own decisions (an index that nobody tells of evictions) or from the caches themselves. A metrics page is read every
50 ms, so requests that come together see the same queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sim.fleet.routers.base import Router
from sim.fleet.routers.index import Paths, PrefixIndex
from sim.fleet.routers.load import in_flight

if TYPE_CHECKING:
    import numpy as np

    from sim.fleet.replica import Replica
    from workloads.columns import Workload

SCRAPE_S = 0.05
Runs = list[tuple[int, int, int]]


class Remembering(Router):
    """Keeps what it has sent to each replica that takes requests; of one that comes back, nothing."""

    any_list = True
    remembered: int | None = None  #: tokens of each replica; None: all

    def __init__(self, rng: np.random.Generator, workload: Workload) -> None:
        super().__init__(rng, workload)
        self.paths = Paths(workload)
        self._sent: dict[int, PrefixIndex] = {}

    def matches(self, request: int, replicas: Sequence[Replica]) -> list[int]:
        runs = self.paths.of(request)
        return [self.sent(replica).matched(runs) for replica in replicas]

    def sent(self, replica: Replica) -> PrefixIndex:
        if replica.index not in self._sent:
            self._sent[replica.index] = PrefixIndex(self.remembered)
        return self._sent[replica.index]

    def resized(self, replicas: Sequence[Replica]) -> None:
        self._sent = {replica.index: self.sent(replica) for replica in replicas}


class Scored(Router):
    """The highest sum of three scores from 0 to 1: prefix (share of the prompt's blocks it holds), kv (memory not in
    use) and queue (1 with the fewest waiting, 0 with the most, 1 where all are equal); ties at random."""

    draws = any_list = True
    prefix_weight, kv_weight, queue_weight = 1.0, 1.0, 1.0
    block = 16  #: tokens

    def __init__(self, rng: np.random.Generator, workload: Workload) -> None:
        super().__init__(rng, workload)
        self._pages: dict[int, tuple[int, float, float]] = {}  # replica -> (waiting, kv usage, seconds) when last read

    def of(self, request: int) -> int:
        """Tokens that a full match has."""
        return int(self.workload.prompt_tokens[request])

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        return replicas[highest(self.scores(request, replicas), self.rng)]

    def scores(self, request: int, replicas: Sequence[Replica]) -> list[float]:
        """Of each replica, in their order."""
        pages = self._read(replicas)
        waiting = [pages[replica.index][0] for replica in replicas]
        least, most, blocks = min(waiting), max(waiting), self.of(request) // self.block
        return [
            self.prefix_weight * (tokens // self.block / blocks if blocks else 0.0)
            + self.kv_weight * (1 - pages[replica.index][1])
            + self.queue_weight * ((most - queue) / (most - least) if most > least else 1.0)
            for replica, queue, tokens in zip(replicas, waiting, self.matches(request, replicas), strict=True)
        ]

    def _read(self, replicas: Sequence[Replica]) -> dict[int, tuple[int, float, float]]:
        now_s, never = replicas[0].now_s, (0, 0.0, -SCRAPE_S)
        if any(now_s >= self._pages.get(replica.index, never)[2] + SCRAPE_S for replica in replicas):
            self._pages |= {replica.index: (replica.waiting, replica.kv_usage, now_s) for replica in replicas}
        return self._pages


class PrefixApproximate(Scored, Remembering):
    """The best of 3 x prefix + 2 x kv + 2 x queue; prefixes as this router remembers having sent them (llm-d, 2026-05).

    Blocks of 16, of which only the first 256 of a prompt count; 31,250 blocks are remembered of each replica."""

    prefix_weight, kv_weight, queue_weight = 3.0, 2.0, 2.0
    blocks, remembered = 256, 31_250 * Scored.block

    def of(self, request: int) -> int:
        return min(super().of(request), self.blocks * self.block)

    def matches(self, request: int, replicas: Sequence[Replica]) -> list[int]:
        runs, of = self.paths.of(request), self.of(request)
        return [min(self.sent(replica).matched(runs), of) for replica in replicas]

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        chosen = super().choose(request, replicas)
        self.sent(chosen).insert(self.paths.of(request), self.of(request))
        return chosen


class PrefixPrecise(Scored):
    """The best of 2 x prefix + kv + queue; prefixes as the replicas' caches hold them now, in blocks of 64 (llm-d,
    2026-04).

    KV events take no time, or `cluster.kv_event_delay_ms`."""

    reads_caches = True
    prefix_weight, kv_weight, queue_weight = 2.0, 1.0, 1.0
    block = 64

    def matches(self, request: int, replicas: Sequence[Replica]) -> list[int]:
        return [replica.cached_tokens(request) for replica in replicas]


class KvCost(Router):
    """The least work: prompt tokens still to be computed there, its own among them, and the tokens that its active
    requests hold (Dynamo's KV router, 2026); ties at random.

    Prefill counts in full until the first token; what prompts share counts once, outputs not at all."""

    draws = reads_caches = any_list = True

    def __init__(self, rng: np.random.Generator, workload: Workload) -> None:
        super().__init__(rng, workload)
        self.paths = Paths(workload)
        self._active: dict[int, Active] = {}

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        runs, prompt = self.paths.of(request), int(self.workload.prompt_tokens[request])
        costs, new = [], []
        for replica, cached in zip(replicas, self.matches(request, replicas), strict=True):
            active = self._of(replica)
            new.append(max(0, prompt - cached))
            prefill = active.prefill(replica.has_answered) + new[-1]
            costs.append(prefill + active.tokens_with(runs, prompt))
        place = highest([-cost for cost in costs], self.rng)
        self._of(replicas[place]).begin(request, runs, prompt, new[place])
        return replicas[place]

    def matches(self, request: int, replicas: Sequence[Replica]) -> list[int]:
        return [replica.cached_tokens(request) for replica in replicas]

    def finished(self, request: int, replica: Replica) -> None:
        self._of(replica).end(request, self.paths.of(request), int(self.workload.prompt_tokens[request]))

    def _of(self, replica: Replica) -> Active:
        if replica.index not in self._active:
            self._active[replica.index] = Active()
        return self._active[replica.index]

    def resized(self, replicas: Sequence[Replica]) -> None:
        """What a failed replica had is not there when it comes back."""
        self._active = {replica.index: self._of(replica) for replica in replicas}


class Active:
    """Requests that a router has sent to one replica and that have not finished."""

    def __init__(self) -> None:
        self.tokens = 0  # of their prompts, what they share counted once
        self._users: dict[int, tuple[int, int]] = {}  # (requests, tokens) on each run of the tree
        self._here: set[int] = set()
        self._prefill: dict[int, int] = {}  # request without a first token -> tokens it has to compute

    def tokens_with(self, runs: Runs, prompt: int) -> int:
        """As `tokens`, with one more prompt."""
        here = self._users
        own = sum(max(0, end - start - (here[node][1] if node in here else 0)) for node, start, end in runs)
        return self.tokens + own + prompt - runs[-1][2]

    def prefill(self, answered: Callable[[int], bool]) -> int:
        for request in [request for request in self._prefill if answered(request)]:
            del self._prefill[request]
        return sum(self._prefill.values())

    def begin(self, request: int, runs: Runs, prompt: int, new: int) -> None:
        self._here.add(request)
        self.tokens = self.tokens_with(runs, prompt)
        self._prefill[request] = new
        for node, start, end in runs:
            users, tokens = self._users.get(node, (0, 0))
            self._users[node] = users + 1, max(tokens, end - start)

    def end(self, request: int, runs: Runs, prompt: int) -> None:
        if request not in self._here:  # sent before the replica failed, or drained and came back
            return
        self._here.remove(request)
        self._prefill.pop(request, None)
        self.tokens -= prompt - runs[-1][2]
        for node, _, _ in runs:
            users, tokens = self._users[node]
            if users > 1:
                self._users[node] = users - 1, tokens
            else:
                del self._users[node]
                self.tokens -= tokens


class CacheAware(Remembering):
    """The longest match among what was sent, where it is over 0.3 of the prompt; the fewest requests in flight
    otherwise, and whenever loads differ by more than 64 and 1.5 times (SGLang's cache_aware, 2026).

    2^24 tokens are remembered of each replica (2^26 characters of about four to a token)."""

    remembered, share, apart, times = 1 << 24, 0.3, 64, 1.5

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        runs, flying = self.paths.of(request), [in_flight(replica) for replica in replicas]
        place = flying.index(min(flying))
        if not (max(flying) - min(flying) > self.apart and max(flying) > self.times * min(flying)):
            matched = self.matches(request, replicas)
            if max(matched) > self.share * self.workload.prompt_tokens[request]:
                place = matched.index(max(matched))
        self.sent(replicas[place]).insert(runs)
        return replicas[place]


class PrefixSticky(Remembering):
    """The longest match among what was sent, in chunks of 32 tokens (128 characters), whatever the load; ties at random
    (vLLM production-stack's prefixaware, 2026-08).

    One shared first chunk goes to one replica for ever: here to be compared with."""

    draws = True
    chunk = 32

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        chunks = [tokens // self.chunk for tokens in self.matches(request, replicas)]
        replica = replicas[highest(chunks, self.rng)]
        self.sent(replica).insert(self.paths.of(request))
        return replica


def highest(scores: Sequence[float], rng: np.random.Generator) -> int:
    """The place of the highest score; of equal ones, any with equal probability."""
    best = max(scores)
    ties = [place for place, score in enumerate(scores) if score == best]
    return ties[int(rng.integers(len(ties)))] if len(ties) > 1 else ties[0]
