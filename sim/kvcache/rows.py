"""One row of a hit-rate curve, ready for a table: a ratio means nothing without its rule, block size and order beside
it."""

from __future__ import annotations

from typing import Any

from workloads.columns import Workload


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
