"""Trees of sessions whose block ids are local: one tree a session, joined over the tools and system prompt they share.
Sessions whose ids are global have one tree together.

The one idea: two phantom requests that read just the tools, and tools + system, force the session's tree to end nodes
there; those chains are then laid over one common chain per (model, tool tokens, system tokens).

    trees = SessionTrees(block_tokens=64, share=True); trees.add(...); tree, leaf = trees.merged()
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from workloads.columns import PrefixTree
from workloads.prefix_tree import from_block_ids

TOOLS, SYSTEM, SESSION = 0, 1, 2
"""Layer codes."""


class Chain(NamedTuple):
    """A standard text: tools, or (system_tokens >= 0) the system prompt that follows them."""

    owner: int  #: the session it is local to; -1 when sessions share it
    model: str
    tool_tokens: int
    system_tokens: int

    @property
    def above(self) -> Chain | None:
        """The tools before a system prompt."""
        return None if self.system_tokens < 0 else self._replace(system_tokens=-1)


class StandardPrefix:
    """Tools and system prompt of one agent: token counts from the file, block ids from most of its requests."""

    def __init__(self, model: str, tool_tokens: int, system_tokens: int, block_tokens: int) -> None:
        self.model, self.tool_tokens, self.system_tokens = model, tool_tokens, system_tokens
        self.tool_blocks = tool_tokens // block_tokens
        self.blocks = (tool_tokens + system_tokens) // block_tokens
        self.ids = np.zeros(0, np.int64)

    def settle(self, rows: list[np.ndarray]) -> None:
        """Take as the standard text the first blocks that most requests begin with."""
        begin = Counter(row[: self.blocks].tobytes() for row in rows if len(row) >= self.blocks)
        if begin:
            self.ids = np.frombuffer(begin.most_common(1)[0][0], np.int64)

    def chain(self, depth_blocks: int, owner: int) -> Chain:
        """The text that the block ending at this depth belongs to."""
        return Chain(
            owner, self.model, self.tool_tokens, -1 if depth_blocks <= self.tool_blocks else self.system_tokens
        )


class SessionTrees:
    """Collects one tree a session and joins them."""

    def __init__(self, block_tokens: int, share: bool) -> None:
        self.block_tokens, self.share = block_tokens, share
        self._trees: list[PrefixTree] = []
        self._leaves: list[np.ndarray] = []
        self._standard: list[dict[int, Chain]] = []  # standard nodes of each session's tree
        self._together: list[tuple[int, list[np.ndarray], np.ndarray]] = []  # sessions of global ids: number, rows
        self._tree_of: dict[int, int] = {}  # session of global ids -> the one that has their tree

    def add_global(self, paths: list[np.ndarray], tokens: np.ndarray) -> None:
        """One session whose ids mean the same text in all sessions that are added so; as `add` otherwise."""
        self._together.append((len(self._trees), paths, tokens))
        self._trees.append(PrefixTree(np.array([-1], np.int32), np.zeros(1, np.int64), np.zeros(1, np.int16)))
        self._leaves.append(np.zeros(len(paths), np.int32))
        self._standard.append({})

    def _settle_global(self) -> None:
        """One tree of all sessions of global ids: it becomes the first one's, and the leaves of all lie in it."""
        together, self._together = self._together, []
        if not together:
            return
        rows = [row for _, paths, _ in together for row in paths]
        offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64)))
        covered = np.concatenate([tokens for _, _, tokens in together])
        tree, leaf = from_block_ids(np.concatenate(rows), offsets, self.block_tokens, covered)
        first, at = together[0][0], 0
        self._trees[first] = tree
        for number, paths, _ in together:
            self._leaves[number] = leaf[at : at + len(paths)]
            self._tree_of[number], at = first, at + len(paths)

    def add(self, paths: list[np.ndarray], tokens: np.ndarray, prefixes: list[StandardPrefix]) -> None:
        """One session: id rows (prompt and known answers) covering at most `tokens` int64 [n] of each request."""
        phantoms = [p.ids[:depth] for p in prefixes for depth in (p.tool_blocks, p.blocks) if len(p.ids)]
        rows = [*paths, *phantoms, *phantoms]
        covered = np.concatenate((tokens, [len(p) * self.block_tokens for p in phantoms * 2])).astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum([len(r) for r in rows], dtype=np.int64)))
        tree, leaf = from_block_ids(np.concatenate(rows), offsets, self.block_tokens, covered)
        self._trees.append(tree)
        self._leaves.append(leaf[: len(paths)])
        self._standard.append(self._standard_nodes(tree, leaf[len(paths) :], [p for p in prefixes if len(p.ids)]))

    def _standard_nodes(self, tree: PrefixTree, ends: np.ndarray, prefixes: list[StandardPrefix]) -> dict[int, Chain]:
        """Nodes of the session's tree that are standard text, with the chain each belongs to."""
        owner = -1 if self.share else len(self._trees)
        found: dict[int, Chain] = {}
        for i, prefix in enumerate(prefixes):
            nodes, node = [], int(ends[2 * i + 1])
            while tree.parent[node] >= 0:
                nodes.append(node)
                node = int(tree.parent[node])
            if found.keys() & set(nodes):
                continue  # a sub-agent that begins with the main agent's text: that text is the main agent's
            found |= {node: prefix.chain(int(tree.end[node]) // self.block_tokens, owner) for node in nodes}
        return found

    def merged(self) -> tuple[PrefixTree, np.ndarray]:
        """(tree with one root, leaf int32 [n]) of all sessions in the order they were added."""
        self._settle_global()
        parent, end, layer, place = self._common_chains()
        leaves = []
        parents, ends, layers = [np.array(parent)], [np.array(end)], [np.array(layer)]
        n = len(parent)
        placed: dict[int, np.ndarray] = {}
        for i, (tree, leaf, standard) in enumerate(zip(self._trees, self._leaves, self._standard, strict=True)):
            if self._tree_of.get(i, i) in placed:
                leaves.append(placed[self._tree_of[i]][leaf])
                continue
            new = np.zeros(len(tree), np.int64)
            own = np.ones(len(tree), bool)
            own[0] = False
            for node, chain in standard.items():
                new[node], own[node] = place[chain, int(tree.end[node])], False
            new[own] = n + np.arange(own.sum())
            parents.append(new[tree.parent[own]])
            ends.append(tree.end[own])
            layers.append(np.full(int(own.sum()), SESSION))
            leaves.append(new[leaf])
            n += int(own.sum())
            if i in self._tree_of:
                placed[i] = new
        tree = PrefixTree(
            np.concatenate(parents).astype(np.int32),
            np.concatenate(ends).astype(np.int64),
            np.concatenate(layers).astype(np.int16),
        )
        return tree, np.concatenate(leaves).astype(np.int32)

    def _common_chains(self) -> tuple[list[int], list[int], list[int], dict[tuple[Chain, int], int]]:
        """(parent, end, layer) of the root and all common chains, and the node of each (chain, end)."""
        cuts: dict[Chain, set[int]] = {}
        for tree, standard in zip(self._trees, self._standard, strict=True):
            for node, chain in standard.items():
                cuts.setdefault(chain, set()).add(int(tree.end[node]))
        parent, end, layer = [-1], [0], [SESSION]
        place: dict[tuple[Chain, int], int] = {}
        for chain in sorted(cuts):  # the tools (-1 system tokens) come before the system prompts below them
            above = chain.above
            at = place[above, max(cuts[above])] if above in cuts else 0
            for cut in sorted(cuts[chain]):
                parent.append(at)
                end.append(cut)
                layer.append(TOOLS if above is None else SYSTEM)
                at = place[chain, cut] = len(parent) - 1
        return parent, end, layer, place
