"""Cache-only replay by the engine's rules: leaves go first, and what a request uses is pinned while it is served.

The one idea: requests come one after another through the engine's own cache, without time: look up, pin, make room for
the rest of the prompt, enter it, let go. So every policy of the engine can be replayed, `module:Class` included.
Counted as an engine counts: full blocks, and never the whole prompt. As in the engine the answer is entered too (all
but its last token, which is never computed), and memory is held for the partial last block. What is longer than the
cache is served without it.

    >>> leaf_first(workload, "s3fifo", capacity_blocks=200_000, block_size=16).hit_ratio_tokens
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sim.kvcache.base import BlockCache
from sim.kvcache.chains import Path, Paths
from sim.kvcache.clairvoyant import ClairvoyantCache, Forecast
from sim.kvcache.policies import World, find, make, name_of
from sim.kvcache.ranked import RankedCache
from sim.kvcache.release_order import ReleaseOrderCache
from sim.kvcache.rows import LEAF_FIRST, ReplayResult, checked_size
from sim.scenario import EngineParams
from workloads.columns import Workload
from workloads.transform import nominal_start_s, order_taken, picked

CLAIRVOYANT = "clairvoyant"
LONGEST = 1 << 62


class Visit:
    """A request while it is served: what a cache reads and writes on it."""

    __slots__ = (
        "admission",
        "ahead",
        "base",
        "decoding",
        "entered",
        "handles",
        "held",
        "id",
        "order",
        "path",
        "path_index",
        "private",
        "writing",
    )

    def __init__(self, request: int, path: Path) -> None:
        self.id = request
        self.path = path
        self.handles: list[Any] = []
        self.writing: list[Any] = []
        self.admission = self.ahead = self.base = self.entered = self.held = self.order = self.path_index = (
            self.private
        ) = 0
        self.decoding = False


def serve(cache: BlockCache, visit: Visit, tokens: int, limit: int) -> int:
    """Serve a request that computes `tokens`, of which `limit` blocks may be hit; the blocks hit."""
    hit, _, handles = cache.lookup(visit.path, limit)
    cache.acquire(visit, handles)
    blocks = -(-tokens // cache.block_size)
    cache.take(blocks - hit)
    visit.held = blocks
    cache.enter(visit, tokens // cache.block_size)
    cache.release(visit)
    return hit


def build(
    workload: Workload, policy: str, capacity_blocks: int, block_size: int, params: Mapping[str, Any] | None = None
) -> BlockCache:
    """The engine's cache of that policy; clairvoyant knows that requests come in row order. Raises InputError."""
    if policy == CLAIRVOYANT:
        in_order = replace(workload, arrival_s=np.arange(float(len(workload))), after=None, concurrency=None)
        forecast = Forecast(
            in_order, EngineParams(kv_blocks=capacity_blocks, block_size=block_size, max_model_len=LONGEST)
        )
        return ClairvoyantCache(capacity_blocks, block_size, len(workload.tree), {}, forecast)
    if policy == "lru" and not params:
        return ReleaseOrderCache(capacity_blocks, block_size, len(workload.tree), {})
    world = World(workload, capacity_blocks, block_size)
    return RankedCache(capacity_blocks, block_size, len(workload.tree), {}, make(policy, world, params))


def leaf_first(
    workload: Workload,
    policy: str | type,
    capacity_blocks: int | None,
    block_size: int | None = None,
    params: Mapping[str, Any] | None = None,
    order: str = "time",
) -> ReplayResult:
    """Replay prompts; capacity None = unlimited, block size None = that of the trace's own hashes, order as in
    `replay`.

    Time stands at each request's nominal start (`ttl` and `workload` read it). Raises InputError.
    """
    policy, block_size = name_of(policy), checked_size(workload, capacity_blocks, block_size)
    rows, how = order_taken(workload, order)
    starts_s = np.maximum.accumulate(nominal_start_s(workload)[rows])
    workload = picked(workload, rows)
    paths = Paths(workload, block_size, chains=policy != CLAIRVOYANT and not find(policy).by_node)
    computed = workload.prompt_tokens + workload.output_tokens - 1
    size = int(capacity_blocks if capacity_blocks is not None else (-(-computed // block_size)).sum())
    cache = build(workload, policy, size, block_size, params)
    depth = np.zeros(len(workload), np.int64)
    for i, (tokens, prompt, now_s) in enumerate(
        zip(computed.tolist(), workload.prompt_tokens.tolist(), starts_s.tolist(), strict=True)
    ):
        if tokens <= size * block_size:
            cache.now_s = now_s
            depth[rows[i]] = serve(cache, Visit(i, paths.build(i)), tokens, (prompt - 1) // block_size)
    hits, prompts = int(depth.sum()), int(workload.prompt_tokens.sum())
    total = int((workload.prompt_tokens // block_size).sum())
    return ReplayResult(
        policy, capacity_blocks, LEAF_FIRST, block_size, hits, total, hits * block_size, prompts, depth, how
    )
