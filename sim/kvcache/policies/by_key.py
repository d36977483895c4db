"""Policies that are one sort key on the leaves: a line of state, a line of order.

kvcast run S.toml --set cache.policy=lfu
"""

from __future__ import annotations

from sim.kvcache.policies.base import Asking, Key, Policy, Run, World, expect


class Lru(Policy):
    """Least recently released leaf first. The engine's own `lru` is the same order over an exact free queue."""


class Mru(Policy):
    """Most recently released first."""

    def key(self, run: Run) -> Key:
        return (-run.released,)


class Fifo(Policy):
    """The leaf whose admission inserted it first goes first; a hit changes nothing."""

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = request.admission

    def key(self, run: Run) -> Key:
        return (run.state,)


class Filo(Fifo):
    """The leaf inserted last goes first."""

    def key(self, run: Run) -> Key:
        return (-run.state,)


class Lfu(Policy):
    """Fewest uses (insertion and hits by admissions) go first, ties by the oldest release. Uses are lost at
    eviction."""

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = 1

    def after_hits(self, state: int, n: int) -> int:
        return state + n

    def key(self, run: Run) -> Key:
        return run.state, run.released


class Slru(Lfu):
    """Two segments: leaves used once go first, then those used `protected_uses` times or more; each by the oldest
    release. As in SGLang a segment has no size of its own."""

    def __init__(self, world: World, protected_uses: int = 2) -> None:
        super().__init__(world)
        expect(protected_uses >= 1, "protected_uses", protected_uses, "1 or more")
        self.protected_uses = protected_uses

    def after_hits(self, state: int, n: int) -> int:
        return min(state + n, self.protected_uses)  # more are the same: neighbours become one run

    def key(self, run: Run) -> Key:
        return run.state >= self.protected_uses, run.released


class Priority(Policy):
    """Leaves used only by requests that may wait longest go first (vLLM: a lower number is served earlier), then
    LRU."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.priority = world.workload.column("priority").data

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = self.priority[request.id]

    def on_hit(self, run: Run, request: Asking) -> None:
        run.state = min(run.state, self.priority[request.id])

    def key(self, run: Run) -> Key:
        return -run.state, run.released


class LruK(Policy):
    """LRU-K: the leaf whose k-th last use is oldest. Leaves with fewer than k uses go before all others, first in first
    out.

    O'Neil, O'Neil, Weikum, SIGMOD 1993, without a retained history: uses before an eviction are forgotten.
    """

    def __init__(self, world: World, k: int = 2) -> None:
        super().__init__(world)
        expect(k >= 1, "k", k, "1 or more")
        self.k = k

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = (request.admission,)

    def on_hit(self, run: Run, request: Asking) -> None:
        run.state = (*run.state, request.admission)[-self.k :]

    def key(self, run: Run) -> Key:
        return len(run.state) == self.k, run.state[0]


class Gdsf(Policy):
    """Greedy-dual: clock + uses x cost, where the clock is the highest value evicted so far (old worth fades) and the
    cost of recomputing a block grows with its depth: 1 + tokens before it / `depth_tokens`.

    Cherkasova, HPL-98-69R1, with unit sizes. 30,720 tokens is where attention doubles a token's FLOPs in Llama-3.1-8B.
    """

    def __init__(self, world: World, depth_tokens: float = 30_720.0) -> None:
        super().__init__(world)
        expect(depth_tokens > 0, "depth_tokens", depth_tokens, "above 0")
        self.per_block = world.block_size / depth_tokens
        self.clock = 0.0

    def on_insert(self, run: Run, request: Asking) -> None:
        run.state = (1, 0.0)

    def on_hit(self, run: Run, request: Asking) -> None:
        run.state = (run.state[0] + 1, 0.0)

    def on_release(self, run: Run, request: Asking) -> None:
        run.state = (run.state[0], self.clock)

    def key(self, run: Run) -> Key:
        uses, clock = run.state
        return clock + uses * (1.0 + self.per_block * (run.hi - 1)), run.released

    def on_evict(self, run: Run, n: int) -> None:
        self.clock = max(self.clock, self.key(run)[0])


class Tlru(Policy):
    """Tail-optimised LRU: first the blocks whose loss keeps the next turn's prefill within `threshold_tokens`, then
    LRU.

    A conversation of L tokens whose next prompt adds about `next_prompt_tokens` needs only its first L + next -
    threshold tokens cached; deeper ones go first. L is prompt and answer of the request that let go last.
    Zhang et al., "Tail-Optimized Caching for LLM Inference", arXiv 2510.15152.
    """

    def __init__(self, world: World, threshold_tokens: int = 2048, next_prompt_tokens: int = 256) -> None:
        super().__init__(world)
        expect(threshold_tokens >= 0, "threshold_tokens", threshold_tokens, "0 or more")
        expect(next_prompt_tokens >= 0, "next_prompt_tokens", next_prompt_tokens, "0 or more")
        self.slack = next_prompt_tokens - threshold_tokens
        self.prompt, self.output = world.workload.prompt_tokens.data, world.workload.output_tokens.data

    def on_release(self, run: Run, request: Asking) -> None:
        known = self.prompt[request.id] + self.output[request.id]
        run.state = max(0, -(-(known + self.slack) // self.world.block_size))  # blocks worth keeping

    def key(self, run: Run) -> Key:
        return run.hi <= run.state, run.released

    def span(self, run: Run) -> int:
        return run.hi - max(run.lo, run.state) if run.hi > run.state else len(run)


class Random(Policy):
    """Every leaf equally likely, from the run's own random stream; a chosen leaf goes whole, deepest first.

    A leaf's life is exponential on a clock that stands at the last one taken: without memory, so each is as likely.
    """

    by_node = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.clock = 0.0

    def on_hit(self, run: Run, request: Asking) -> None:
        run.state = None

    def key(self, run: Run) -> Key:
        if run.state is None:
            run.state = self.clock + self.world.rng.expovariate(1.0)
        return run.state, run.released

    def on_evict(self, run: Run, n: int) -> None:
        self.clock = run.state
