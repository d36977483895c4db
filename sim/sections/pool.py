"""Replicas that are not alike behind one router: the [[pool]] tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workloads.limits import MAX_REPLICAS, from_0, from_1, key


@dataclass(frozen=True)
class PoolConfig:
    """Some replicas of a fleet, and what differs from the rest of the file for them (docs/mixed-fleets.md)."""

    name: str = key(help="a label, unique among the pools")
    replicas: int = key(1, "its engine replicas", from_1(MAX_REPLICAS))
    hardware: dict[str, Any] = key(
        {},
        'keys of [hardware] that differ here, a table such as {gpu = "a100-80g", tensor_parallel = 2}; what belongs to'
        " one GPU and model (kv_blocks, weights_gib, overhead_gib, link, the factors) is not taken over to others",
    )
    model: dict[str, Any] = key({}, 'keys of [model] that differ here, such as {kv_dtype = "fp8"}, or another name')
    engine: dict[str, Any] = key({}, "keys of [engine] that differ here, such as {max_num_seqs = 64}; not semantics")
    gpu_hour_usd: float | None = key(
        None,
        "price of one of its GPUs for one hour; default: its GPU's in [cost.prices], or [cost] gpu_hour_usd on the same"
        " GPU as the rest of the file",
        from_0(1e6),
    )
