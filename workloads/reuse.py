"""How much text of a workload repeats: hits of an infinite cache, distinct blocks, gaps between uses. No simulation.

The one idea: on the prefix tree, what request r can reuse is the path down to the deepest node that an earlier request
visited; the first visitor of every node follows from one pass up the tree, so all requests are answered at once.

    >>> reuse = infinite_cache(workload, block_size=16)
    >>> reuse.hit_tokens.sum() / workload.prompt_tokens.sum()
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.columns import SCOPES, Workload


@dataclass(frozen=True)
class Reuse:
    """Per request, requests taken in row order, an infinite cache of full blocks, nothing in flight."""

    hit_tokens: np.ndarray  #: int64 [n], full blocks that an earlier request left, at most the input - 1
    shared_tokens: np.ndarray  #: int64 [n], the same without block rounding and without the limit of input - 1
    hit_by_scope: np.ndarray  #: int64 [n, len(SCOPES)], hit_tokens by the scope of the layer they lie in
    node: np.ndarray  #: int32 [n], deepest node that an earlier request visited


def infinite_cache(workload: Workload, block_size: int) -> Reuse:
    """Hits of a cache that never evicts. An earlier request leaves prompt + output - 1 tokens: its last one is never
    computed."""
    tree, leaf, n = workload.tree, workload.leaf, len(workload)
    levels = _levels(tree.parent)
    row, total = np.arange(n), workload.prompt_tokens + workload.output_tokens
    first = np.full(len(tree), n, np.int64)  # first request on the node
    np.minimum.at(first, leaf, row)
    whole = np.full(len(tree), n, np.int64)  # first request that computes the node's last token too
    reaches = total > tree.end[leaf]
    np.minimum.at(whole, leaf[reaches], row[reaches])
    above = np.zeros(len(tree), np.int32)  # nearest ancestor whose first request is another one
    for nodes in reversed(levels[1:]):
        np.minimum.at(whole, tree.parent[nodes], first[nodes])
        np.minimum.at(first, tree.parent[nodes], first[nodes])
    above[levels[0]] = levels[0]  # a root ends at 0: nothing is shared there
    for nodes in levels[1:]:
        parents = tree.parent[nodes]
        above[nodes] = np.where(first[parents] == first[nodes], above[parents], parents)
    node = np.where(first[leaf] < row, leaf, above[leaf])
    shared = np.where(tree.end[node] > 0, tree.end[node] - (whole[node] >= row), 0)
    hit = np.minimum(shared, workload.prompt_tokens - 1) // block_size * block_size
    if not workload.prefix_identity:
        hit[:] = shared[:] = 0
    return Reuse(
        hit, np.minimum(shared, workload.prompt_tokens), _by_scope(workload, levels, node, hit), node.astype(np.int32)
    )


def distinct_blocks(workload: Workload, block_size: int) -> tuple[int, int]:
    """(blocks, distinct blocks) of all prompts; a prompt's partial last block counts, and repeats only when wholly
    identical."""
    tree, leaf, prompt = workload.tree, workload.leaf, workload.prompt_tokens
    longest = np.zeros(len(tree), np.int64)  # longest prompt through the node
    np.maximum.at(longest, leaf, prompt)
    for nodes in reversed(_levels(tree.parent)[1:]):
        np.maximum.at(longest, tree.parent[nodes], longest[nodes])
    start = tree.start
    in_tree = np.maximum(np.minimum(tree.end, longest) // block_size - start // block_size, 0).sum()
    private = np.maximum(prompt // block_size - tree.end[leaf] // block_size, 0).sum()
    partial = prompt % block_size > 0
    inside = partial & (prompt <= tree.end[leaf])
    last = _node_at(workload, leaf, prompt)
    partials = int((partial & ~inside).sum()) + len(np.unique(np.stack((last[inside], prompt[inside])), axis=1).T)
    return int((-(-prompt // block_size)).sum()), int(in_tree + private) + partials


def reuse_gaps_s(workload: Workload, reuse: Reuse) -> tuple[np.ndarray, np.ndarray] | None:
    """(seconds since the last use, tokens) of every node that a request shares with an earlier one; None when arrivals
    are decided by completions."""
    if not np.all(np.isfinite(workload.arrival_s)):
        return None
    tree = workload.tree
    parent, end, last_use = tree.parent.tolist(), tree.end.tolist(), [0.0] * len(tree)
    gaps, tokens = [], []
    columns = (workload.arrival_s, workload.leaf, reuse.node, reuse.shared_tokens)
    for arrival, node, shared_node, shared in zip(*(column.tolist() for column in columns), strict=True):
        reused = False
        while parent[node] >= 0:
            reused = reused or (node == shared_node and shared > 0)
            if reused:
                gaps.append(arrival - last_use[node])
                tokens.append(end[node] - end[parent[node]])
            last_use[node] = arrival
            node = parent[node]
    return np.array(gaps), np.array(tokens)


def _levels(parent: np.ndarray) -> list[np.ndarray]:
    """Node ids by depth, roots first."""
    depth = np.zeros(len(parent), np.int32)
    unknown = np.flatnonzero(parent >= 0)
    while len(unknown):  # after k rounds every node of depth k or less is right
        known = depth[parent[unknown]] + 1
        changed = known != depth[unknown]
        depth[unknown] = known
        unknown = unknown[changed]
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.cumsum(np.bincount(depth))[:-1])


def _node_at(workload: Workload, node: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """int [n]: the ancestor-or-self of `node` that holds token number `tokens` (1-based) of the path, or node itself if
    deeper."""
    start, node = workload.tree.start, node.copy()
    while True:
        climb = (start[node] >= tokens) & (workload.tree.parent[node] >= 0)
        if not climb.any():
            return node
        node[climb] = workload.tree.parent[node[climb]]


def _by_scope(workload: Workload, levels: list[np.ndarray], node: np.ndarray, hit: np.ndarray) -> np.ndarray:
    """Tokens [n, scopes]: how much of each request's first hit[r] tokens lies in layers of each scope."""
    tree = workload.tree
    scope, start = np.array(workload.layer_scopes)[tree.layer], tree.start
    above = np.zeros((len(tree), len(SCOPES)), np.int64)  # tokens of each scope before the node
    for nodes in levels[1:]:
        parents = tree.parent[nodes]
        above[nodes] = above[parents]
        above[nodes, scope[parents]] += tree.end[parents] - start[parents]
    last = _node_at(workload, node, hit)
    result = above[last]
    result[np.arange(len(hit)), scope[last]] += hit - start[last]
    result[hit == 0] = 0
    return result
