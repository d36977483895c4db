"""Which nodes of the prefix tree many requests visit, all climbing together.

>>> request, node, lo, hi = node_visits(workload, rows, workload.prompt_tokens[rows] // 16, 16)
"""

from __future__ import annotations

import numpy as np

from workloads.columns import Workload


def node_visits(workload: Workload, rows: np.ndarray, depth: np.ndarray, block_size: int) -> tuple[np.ndarray, ...]:
    """(index into rows, node, first block, end block) of the shared nodes that own some of the first `depth` blocks of
    rows' paths."""
    tree = workload.tree
    lo, hi = tree.start // block_size, tree.end // block_size
    index, node = np.arange(len(rows)), workload.leaf[rows].astype(np.int64)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    while len(index):
        some = (lo[node] < hi[node]) & (lo[node] < depth[index])
        found.append((index[some], node[some]))
        node = tree.parent[node].astype(np.int64)
        inner = node >= 0
        index, node = index[inner], node[inner]
    index, node = (
        (np.concatenate(columns) for columns in zip(*found, strict=True)) if found else (np.empty(0, np.int64),) * 2
    )
    return index, node, lo[node], np.minimum(hi[node], depth[index])
