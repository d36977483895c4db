"""Questions about many requests' paths in the prefix tree at once, by climbing all of them together.

The one idea: a climb from the leaves is a loop over tree levels, not over requests; rows drop out as soon as they know
their answer, so a million requests cost a few gathers each.
"""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from workloads.columns import SCOPES, PrefixTree, Workload


class ScopeCount:
    """Tokens of each reuse scope in the first `depth` tokens of a request's path.

    `__call__(rows, depth)` gives int64 [rows, scopes]; depth may reach into the private tail, whose tokens have the
    scope of the request's `tail_layer`. Each row sums to its depth.
    """

    def __init__(self, workload: Workload) -> None:
        tree = workload.tree
        scope_of_layer = np.asarray(workload.layer_scopes, np.int64)
        self.tree, self.start, self.leaf = tree, tree.start, workload.leaf
        self.node_scope = scope_of_layer[tree.layer]
        self.tail_scope = scope_of_layer[workload.column("tail_layer")]
        self.present = np.unique(np.concatenate([self.node_scope, self.tail_scope])) if len(workload) else np.arange(1)
        self.above = _sums_above(tree, self.node_scope, self.present)

    def __call__(self, rows: np.ndarray, depth: np.ndarray) -> np.ndarray:
        node = self.leaf[rows]
        in_tail = np.maximum(depth - self.tree.end[node], 0)
        in_tree = depth - in_tail
        node = climb(self.tree, self.start, node, in_tree)
        here = in_tree - self.start[node]
        counts = np.zeros((len(rows), len(SCOPES)), np.int64)
        for column, scope in enumerate(self.present):
            inside = np.where(self.node_scope[node] == scope, here, 0) + np.where(self.tail_scope[rows] == scope, in_tail, 0)
            counts[:, scope] = self.above[node, column] + inside
        return counts


def climb(tree: PrefixTree, start: np.ndarray, node: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """The node of each path that holds its token number `depth` (start < depth <= end); a root for depth 0."""
    node = node.copy()
    active = np.flatnonzero((start[node] >= depth) & (tree.parent[node] >= 0))
    while len(active):
        up = tree.parent[node[active]]
        node[active] = up
        active = active[(start[up] >= depth[active]) & (tree.parent[up] >= 0)]
    return node


def nodes_beyond(tree: PrefixTree, leaf: np.ndarray, depth: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rows, nodes) of the path nodes that end beyond each row's depth, one tree level of every row at a time, deepest first."""
    rows = np.flatnonzero(tree.end[leaf] > depth)
    node = leaf[rows]
    while len(rows):
        yield rows, node
        node = tree.parent[node]
        more = tree.end[node] > depth[rows]  # a root ends at 0, so every climb stops
        rows, node = rows[more], node[more]


def _sums_above(tree: PrefixTree, node_scope: np.ndarray, present: np.ndarray) -> np.ndarray:
    """int64 [nodes, scopes present]: tokens per scope on the path above each node, by pointer doubling."""
    root = tree.parent < 0
    own = np.zeros((len(tree), len(present)), np.int64)
    own[np.arange(len(tree)), np.searchsorted(present, node_scope)] = tree.end - tree.start
    jump = np.where(root, np.arange(len(tree)), tree.parent)
    total = own  # of the nodes from each one up to, not including, its `jump`; a root holds no tokens
    while not root[jump].all():
        total = total + total[jump]
        jump = jump[jump]
    return total - own
