"""What a replay says: the rule that blocks are counted by, what was hit, and a row of a hit-rate curve.

The one idea: a hit ratio means nothing without its rule, block size and order, so they stand beside it everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.errors import InputError

RULES = ("all-ids", "full-blocks")
LEAF_FIRST = "leaf-first"
"""R1 counts every block of a prompt, the partial tail too (which hits only a wholly identical one). R2 counts what an
engine can reuse: full blocks, and never the whole prompt (hit tokens <= prompt - 1). A third rule, leaf-first, is the
engine's own cache and every policy of it, one request at a time: sim.kvcache.leaf_first."""


@dataclass(frozen=True)
class ReplayResult:
    """What a replay hit. A hit ratio means nothing without `rule` and `block_size`: keep them together."""

    policy: str
    capacity_blocks: int | None  #: None = unlimited
    rule: str
    block_size: int  #: tokens
    hit_blocks: int
    total_blocks: int
    hit_tokens: int
    prompt_tokens: int
    depth_blocks: np.ndarray  #: int64 [n_requests], blocks hit by each request, in the rows of the workload
    order: str  #: in which requests came, in words

    @property
    def hit_ratio_blocks(self) -> float:
        return self.hit_blocks / self.total_blocks if self.total_blocks else 0.0

    @property
    def hit_ratio_tokens(self) -> float:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def checked_size(workload: Workload, capacity: int | None, block_size: int | None) -> int:
    """The block size in tokens; InputError for one that is missing or impossible, and for an impossible capacity."""
    if capacity is not None and (not isinstance(capacity, int | np.integer) or capacity < 1):
        raise InputError(
            f"capacity_blocks = {capacity}, expected a whole number of at least 1, or None for an unlimited cache"
        )
    size = workload.hash_block_tokens if block_size is None else block_size
    if size is None:
        raise InputError("block_size is missing, and this workload has no block size of its own: give one in tokens")
    if not isinstance(size, int | np.integer) or size < 1:
        raise InputError(f"block_size = {size}, expected a whole number of tokens, at least 1")
    return size


def hit_row(
    workload: Workload,
    policy: str,
    rule: str,
    block_size: int,
    capacity_blocks: int | None,
    hit_blocks: int,
    total_blocks: int,
    hit_tokens: int,
    order: str,
) -> dict[str, Any]:
    """capacity_blocks: None = unlimited; counts over all requests of the workload; order: in which they came, in
    words."""
    prompt_tokens = int(workload.prompt_tokens.sum())
    return {
        "policy": policy,
        "rule": rule,
        "block_size": block_size,
        "capacity_blocks": capacity_blocks,
        "capacity_tokens": None if capacity_blocks is None else capacity_blocks * block_size,
        "hit_blocks": hit_blocks,
        "total_blocks": total_blocks,
        "hit_ratio_blocks": hit_blocks / total_blocks if total_blocks else 0.0,
        "hit_tokens": hit_tokens,
        "prompt_tokens": prompt_tokens,
        "hit_ratio_tokens": hit_tokens / prompt_tokens if prompt_tokens else 0.0,
        "order": order,
        "prefix_identity": workload.prefix_identity,
    }
