"""kvcast and KVCache.AI's kvcache-simulator: which blocks of a trace hit, without time.

The one idea: its command line as it is, which counts hit tokens over the second half of a trace, and kvcast's replay of
the same trace in the order of the file, whose requests are counted from there on.

>>> from benchmarks.peer_cache import compared, of_kvcast, of_peer
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import Workload

GIB = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096)
BLOCKS_PER_GIB = 16
"""Of 512 tokens of Llama-3.1-8B in 16 bits: 64 MiB."""
POLICIES = ("lru", "fifo")


def of_peer(python: str, trace: Path, out: Path) -> list[str]:
    """The command that writes its answer to `out`."""
    budgets, policies = ",".join(map(str, GIB)), ",".join(POLICIES)
    command = [python, "-m", "kvcache_sim", "run", "--trace", str(trace), "--block-size", "512", "--no-progress"]
    model = ["--model", "llama-3.1-8b", "--budgets-gib", budgets, "--policies", policies]
    return [*command, *model, "--format", "json", "--output", str(out)]


def of_kvcast(python: str, trace: Path) -> list[str]:
    """kvcast's, on the same trace, capacities and policies."""
    capacities, policies = ",".join(str(BLOCKS_PER_GIB * gib) for gib in GIB), ",".join(POLICIES)
    command = [python, "-m", "kvcast", "cache", str(trace), "--format", "mooncake", "--rule", "all-ids", "--json"]
    return [*command, "--order", "file", "--policy", policies, "--capacity-blocks", capacities]


def compared(workload: Workload, said: Mapping[str, Any]) -> dict[str, Any]:
    """Of every policy at how many capacities the hit tokens are equal, and the largest difference in points of the hit
    rate."""
    from sim.kvcache.replay import replay

    begin, total = said["metadata"]["warmupRequests"], said["metadata"]["totalMeasuredTokens"]
    prompt = workload.prompt_tokens[begin:]
    if int(prompt.sum()) != total:
        raise SystemExit(f"kvcache-simulator counted {total:,} tokens, kvcast {int(prompt.sum()):,}: not the same work")
    found: dict[str, Any] = {}
    for policy in POLICIES:
        apart = []
        for point in said["points"]:
            depth = replay(workload, policy, point["cacheBlocks"], "all-ids", order="file").depth_blocks[begin:]
            ours = int(np.minimum(512 * depth, prompt).sum())
            apart.append(abs(ours - point["results"][policy]["hitTokens"]))
        found[policy] = {
            "equal": sum(tokens == 0 for tokens in apart),
            "of": len(apart),
            "points": 100 * max(apart) / total,
        }
    return found
