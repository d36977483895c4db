"""Questions about many requests' paths in the prefix tree at once, by climbing all of them together.

The one idea: a climb from the leaves is a loop over tree levels, not over requests; rows drop out as soon as they know
their answer, so a million requests cost a few gathers each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from workloads.columns import SCOPES, PrefixTree, Workload

AT_ONCE = 1 << 16
"""Requests worked out together: only a bound on memory."""


class ScopeCount:
    """Tokens of each reuse scope in the first `depth` tokens of requests' paths, summed by group.

    `__call__(rows, group, depth)` gives int64 [groups, len(SCOPES)]. rows: requests int [m]; group: int [m] below
    n_groups; depth: int [m], may reach into the private tail, whose tokens have the scope of the request's
    `tail_layer`.
    """

    def __init__(self, workload: Workload, n_groups: int) -> None:
        tree = self.tree = workload.tree
        self.start, self.leaf, self.n_groups = tree.start.astype(np.int32), workload.leaf, n_groups
        self.scope_of_layer, self.tail_layer = np.asarray(workload.layer_scopes, np.int8), workload.column("tail_layer")
        self.node_scope = self.scope_of_layer[tree.layer]
        self.present = np.unique(np.concatenate([np.unique(self.node_scope), self._tail_scopes()]))
        tokens = (tree.end - self.start).astype(np.int32)
        self.above = []  # of the nodes above each one, by scope; a path is shorter than 2**31 tokens
        for code in self.present:
            own = np.where(self.node_scope == code, tokens, np.int32(0))
            self.above.append(path_sums(tree, [own])[0] - own)

    def _tail_scopes(self) -> np.ndarray:
        layers = np.unique(self.tail_layer)
        return np.unique(self.scope_of_layer[layers])

    def __call__(self, rows: np.ndarray, group: np.ndarray, depth: np.ndarray) -> np.ndarray:
        sums = np.zeros((self.n_groups, len(SCOPES)), np.int64)
        for at in range(0, len(depth), AT_ONCE):
            part = slice(at, at + AT_ONCE)
            self._add(sums, rows[part], group[part], depth[part])
        return sums

    def _add(self, sums: np.ndarray, rows: np.ndarray, group: np.ndarray, depth: np.ndarray) -> None:
        leaf = self.leaf[rows]
        in_tree = np.minimum(depth, self.tree.end[leaf])
        node = climb(self.tree, self.start, leaf, in_tree)
        here, in_tail = in_tree - self.start[node], depth - in_tree
        scope, tail_scope = self.node_scope[node], self.scope_of_layer[self.tail_layer[rows]]
        for column, code in enumerate(self.present):
            tokens = self.above[column][node] + here * (scope == code) + in_tail * (tail_scope == code)
            # whole numbers below 2**53: exact
            sums[:, code] += np.bincount(group, weights=tokens, minlength=self.n_groups).astype(np.int64)


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
    """(rows, nodes) of the path nodes that end beyond each row's depth, one tree level of every row at a time, deepest
    first."""
    rows = np.flatnonzero(tree.end[leaf] > depth)
    node = leaf[rows]
    while len(rows):
        yield rows, node
        node = tree.parent[node]
        more = tree.end[node] > depth[rows]  # a root ends at 0, so every climb stops
        rows, node = rows[more], node[more]


def path_sums(tree: PrefixTree, values: list[np.ndarray]) -> list[np.ndarray]:
    """For each int [nodes], its sums from the root's child to every node, by pointer doubling; roots count
    nothing."""
    root = tree.parent < 0
    totals = [
        np.where(root, value.dtype.type(0), value) for value in values
    ]  # of the nodes from each one up to, not including, its `jump`
    jump = np.where(root, np.arange(len(tree), dtype=np.int32), tree.parent)
    while not root[jump].all():
        totals = [total + total[jump] for total in totals]
        jump = jump[jump]
    return totals
