"""Paths of requests through the prefix tree, in blocks and with tree nodes that nothing parts as one chain.

>>> Paths(workload, block_size=16).build(request)
[(1, 128), (2, 940), (5731, 951)]
"""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from workloads.columns import Workload

Path = list[tuple[int, int]]
"""(chain id, end block) of every chain that owns blocks of a request, shallow to deep. Caches call a chain a node."""
end_block = itemgetter(1)


class Paths:
    """Paths of requests in blocks of one size; shared by all replicas.

    The one idea: tree nodes that nothing parts are one *chain*, so a turn of a long session walks one, not a node for
    every turn before. A chain has the id of its first node; where a request's blocks end in it is the path's to say.
    Within a chain every node but the last has one child and no request's private tail hangs on it: what is cached below
    a chain hangs on its end. A request's private tail is the node `n_nodes + request id`, which no other request can
    have on its path."""

    def __init__(self, workload: Workload, block_size: int, chains: bool = True) -> None:
        """chains=False: every tree node stands for itself, for who counts something by node."""
        tree = workload.tree
        self.block_size = block_size
        self.n_shared = len(tree)
        first = first_of_chain(workload, block_size) if chains else np.arange(self.n_shared, dtype=np.int32)
        self._first = first.data
        self._above = tree.parent[first].data
        self._end_block = (tree.end // block_size).data
        self._leaf = workload.leaf.data
        self._total = (workload.prompt_tokens + workload.output_tokens).data

    def build(self, request: int) -> Path:
        """The path of prompt and output, without chains that own no block of it."""
        first, above, end_block = self._first, self._above, self._end_block
        node = self._leaf[request]
        deep = end_block[node]
        tail = self._total[request] // self.block_size
        path: Path = []
        if tail > deep:
            path.append((self.n_shared + request, tail))
        up = above[node]
        while up >= 0:
            shallow = end_block[up]
            if deep > shallow:
                path.append((first[node], deep))
            node, deep = up, shallow
            up = above[node]
        path.reverse()
        return path


def first_of_chain(workload: Workload, block_size: int) -> np.ndarray:
    """int32 [nodes]: the shallowest node of each one's chain."""
    tree = workload.tree
    parent, n = tree.parent, len(tree)
    below = np.bincount(parent[parent >= 0], minlength=n)
    ends_in_tail = (workload.prompt_tokens + workload.output_tokens) // block_size > tree.end[
        workload.leaf
    ] // block_size
    below[workload.leaf[ends_in_tail]] += 1
    up = np.maximum(parent, 0)
    goes_on = (parent >= 0) & (parent[up] >= 0) & (below[up] == 1)  # a root owns no block
    first = np.where(goes_on, up, np.arange(n)).astype(np.int32)
    while not np.array_equal(jump := first[first], first):  # pointer doubling
        first = jump
    return first
