"""Hits of LRU at every capacity, in one pass.

The one idea: a block is hit exactly when fewer blocks than the capacity were used since its own last use (its stack
distance). After request s its blocks are most recent shallow to deep, so a run of blocks last used by s and used again
by t has consecutive distances that begin at the number of distinct blocks used between s and t:

    blocks of the paths between s and t - those of them that were used again before t

The second sum is over runs nested in (s, t); all of them are found at once, bit by bit of s, as in a wavelet matrix.

    >>> curve = lru_curve(workload, "full-blocks", 16)
    >>> curve.hit_blocks_at([10_000, 20_000])        # = replay(workload, "lru", ...).hit_blocks, for any capacity
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.kvcache.rows import hit_row
from sim.optimum.items import touches
from workloads.columns import Workload
from workloads.transform import order_taken, picked


@dataclass(frozen=True)
class LruCurve:
    """Hits of a replay under LRU: exact at `capacities`, and linear between them, so exact at every whole capacity."""

    capacities: np.ndarray  #: int64 [k], blocks, ascending from 0; beyond the last one nothing changes
    hit_blocks: np.ndarray  #: int64 [k]
    hit_tokens: np.ndarray  #: int64 [k]
    rule: str
    block_size: int
    total_blocks: int
    prompt_tokens: int
    order: str  #: in which requests came, in words

    def hit_blocks_at(self, capacities: Sequence[int] | np.ndarray) -> np.ndarray:
        """int64, for any capacities in blocks."""
        return np.rint(np.interp(capacities, self.capacities, self.hit_blocks)).astype(np.int64)

    def hit_tokens_at(self, capacities: Sequence[int] | np.ndarray) -> np.ndarray:
        return np.rint(np.interp(capacities, self.capacities, self.hit_tokens)).astype(np.int64)

    def spread(self, n: int) -> list[int]:
        """n capacities in equal ratios, from 1/256 of the one at which LRU hits all it can to that one."""
        most = max(int(self.capacities[-1]), 1)
        return sorted({max(1, round(most * 256 ** (i / (n - 1) - 1))) for i in range(n)})

    def rows(self, workload: Workload, capacities: Sequence[int | None]) -> list[dict[str, Any]]:
        """Those of sim.kvcache.replay.hit_rate_curve for lru (None = unlimited)."""
        at = [int(self.capacities[-1]) if capacity is None else capacity for capacity in capacities]
        blocks, tokens = self.hit_blocks_at(at).tolist(), self.hit_tokens_at(at).tolist()
        return [
            hit_row(
                workload,
                "lru",
                self.rule,
                self.block_size,
                capacity,
                hit_blocks,
                self.total_blocks,
                hit_tokens,
                self.order,
            )
            for capacity, hit_blocks, hit_tokens in zip(capacities, blocks, tokens, strict=True)
        ]


def lru_curve(workload: Workload, rule: str, block_size: int, order: str = "time") -> LruCurve:
    """The whole curve of sim.kvcache.replay's LRU under a counting rule, order as there. O(runs log requests)."""
    rows, how = order_taken(workload, order)
    workload = picked(workload, rows)
    used = touches(workload, rule, block_size)
    before = np.append(0, np.cumsum(used.length))  # blocks of all earlier paths
    between = before[used.request] - before[used.previous + 1]
    distance = between - _nested(used.request, used.previous, used.hi - used.lo)
    hi = np.minimum(used.hi, used.limit[used.request])
    some = used.lo < hi
    request, distance, count = used.request[some], distance[some], (hi - used.lo)[some]
    tail = workload.prompt_tokens[request] - hi[some] * block_size  # below 0: the last block is partial
    partial = tail < 0
    distance = np.concatenate((distance, (distance + count - 1)[partial]))
    tokens = np.concatenate((np.full(len(count), block_size), block_size + tail[partial]))
    last = np.concatenate((np.zeros(len(count), np.int64), np.ones(int(partial.sum()), np.int64)))
    count = np.concatenate((count - partial, last[len(count) :]))
    return LruCurve(
        *_curve(distance, count, tokens),
        rule,
        block_size,
        int(used.length.sum()),
        int(workload.prompt_tokens.sum()),
        how,
    )


def _nested(end: np.ndarray, start: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """For each span (start, end): the sum of the amounts of the spans that begin after its start and end before its
    end.

    `end` ascends. A wavelet matrix: the spans are partitioned by one bit of their start at a time, every query at once.
    """
    low, high = np.zeros(len(end), np.int64), np.searchsorted(end, end, side="left")
    value, weight, total = start, amount, np.zeros(len(end), np.int64)
    for bit in range(int(start.max(initial=0)).bit_length() - 1, -1, -1):
        one = value >> bit & 1
        ones = np.append(0, np.cumsum(one))
        weights = np.append(0, np.cumsum(weight * one))
        begins_lower = (start >> bit & 1) == 0
        total += np.where(begins_lower, weights[high] - weights[low], 0)
        zeros = len(value) - int(ones[-1])
        low, high = (np.where(begins_lower, at - ones[at], zeros + ones[at]) for at in (low, high))
        order = np.concatenate((np.flatnonzero(one == 0), np.flatnonzero(one)))
        value, weight = value[order], weight[order]
    return total


def _curve(distance: np.ndarray, count: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(capacities, hit blocks, hit tokens) of blocks with the distances distance, distance + 1, ..., `count` of
    them."""
    at, which = np.unique(np.concatenate(([0], distance, distance + count)), return_inverse=True)
    begin, end = which[1 : len(distance) + 1], which[len(distance) + 1 :]
    sums = []
    for each in (np.ones(len(count), np.int64), tokens):
        slope = np.zeros(len(at), np.int64)
        np.add.at(slope, begin, each)
        np.subtract.at(slope, end, each)
        sums.append(np.append(0, np.cumsum(np.cumsum(slope)[:-1] * np.diff(at))))
    return at, sums[0], sums[1]
