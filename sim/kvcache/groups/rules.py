"""What one KV group forgets, needs and remembers: numbers only, nothing here holds a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from calibrate.kv_groups import CHUNKED, CONSTANT, FULL, STATE, WINDOW, KvGroup, most_blocks
from sim.scenario import EngineParams

DENSE = -1
"""prefix_cache_retention_interval of vLLM's null: every block that a window's end needs is hashed."""
Span = tuple[int, int]
"""Blocks [lo, hi) of a group."""


class GroupRules:
    """One group's arithmetic, in blocks of its own size. `aligned`: tokens that hits are multiples of."""

    def __init__(self, index: int, group: KvGroup, aligned: int, interval: int) -> None:
        self.index = index
        self.kind, self.b, self.window = group.kind, group.block_size, group.window
        self.spec = (self.kind, self.b, self.window)
        self.aligned = aligned
        self.need = {WINDOW: -(-(self.window - 1) // self.b), STATE: 1}.get(self.kind, 0)  # blocks of a hit
        self.interval = interval
        self.every = aligned if interval == DENSE else interval  # tokens between ends that are kept
        self.keeps_all = self.kind in (FULL, CHUNKED) or (interval == DENSE and self.kind == STATE)
        self.keeps_all |= 0 < self.every <= self.need * self.b

    def skipped(self, tokens: int) -> int:
        """Blocks that no later token looks at once so many tokens are processed."""
        if self.kind == WINDOW:
            return max(0, tokens - self.window + 1) // self.b
        if self.kind == CHUNKED:
            return tokens // self.window * self.window // self.b
        return max(0, tokens - 1) // self.b if self.kind == STATE else 0

    def blocks(self, tokens: int) -> int:
        """Places in a table for so many tokens."""
        return -(-tokens // self.b) if self.kind != CONSTANT else int(tokens > 0)

    def beats(self, lag: int) -> Iterator[Span]:
        """(modulus, residue) of the computed tokens at which a decode takes, gives back or hashes a block here."""
        yield self.b, 0
        yield self.aligned, (lag - 1) % self.aligned
        if self.kind == WINDOW:
            yield self.b, (lag + self.window - 1) % self.b
        if self.kind == CHUNKED:
            yield self.window, lag % self.window
        if self.kind == STATE:
            yield self.b, (lag + 1) % self.b

    def kept(self, lo: int, hi: int, marks: Iterable[int]) -> list[Span]:
        """Of the blocks [lo, hi), those that are hashed. marks: tokens whose aligned position before is kept too."""
        if self.keeps_all:
            return [(lo, hi)] if lo < hi else []
        ends = {mark // self.aligned * self.aligned // self.b for mark in marks} if self.interval != DENSE else set()
        if self.every:
            first = lo * self.b // self.every + 1
            ends.update(m * self.every // self.b for m in range(first, (hi + self.need) * self.b // self.every + 1))
        spans: list[Span] = []
        for end in sorted(ends):
            a, e = max(end - self.need, lo, spans[-1][1] if spans else 0), min(end, hi)
            if a < e:
                spans.append((a, e))
        return spans


def rules_of(params: EngineParams) -> list[GroupRules]:
    """The groups of an engine."""
    return [
        GroupRules(i, group, params.hit_block, params.prefix_cache_retention_interval)
        for i, group in enumerate(params.kv_groups)
    ]


def caps_of(params: EngineParams) -> list[int]:
    """Blocks that a request can hold at once in each group, with all that may be under way of it."""
    under_way = params.max_num_batched_tokens * (2 if params.async_scheduling else 1)
    return [most_blocks(group, params.max_model_len, under_way) for group in params.kv_groups]
