"""Builders of the static prefix tree: from block hashes, from token ids and from pieces of named text.

The one idea: number every (parent, block) pair of every prompt, count who visits it, and keep one node per run of
blocks that the same requests visit. What a single request visits alone is its private tail and needs no node.

    >>> from workloads.prefix_tree import from_token_ids
    >>> tree, leaf = from_token_ids([[1, 2, 3], [1, 2, 9, 9]])
    >>> tree.end[leaf].tolist()                      # both prompts share their first two tokens
    [2, 2]
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from workloads.columns import PrefixTree
from workloads.numbering import changes, codes_in, hashables_numbered, integer, numbered, numbered_pairs, positions

PART = 1 << 20  #: ids that are looked at at a time
EndOf = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(entries, their rows) -> the tokens at which they end."""


def from_block_ids(
    ids: np.ndarray,
    offsets: np.ndarray,
    block_tokens: int,
    prompt_tokens: np.ndarray,
    output_tokens: np.ndarray | None = None,
    namespace: np.ndarray | None = None,
) -> tuple[PrefixTree, np.ndarray]:
    """Tree of prompts given as block hashes; returns (tree, leaf int32 [n]).

    `ids` int32 or int64 [sum of blocks] holds the rows of all requests, `offsets` int64 [n + 1] where each begins.
    Block i of a row covers tokens [i * block_tokens, (i + 1) * block_tokens), cut at the prompt's end, or at the end of
    prompt + output when `output_tokens` is given. Tokens beyond a row's last block are private. Requests of different
    `namespace` (int64 [n]) share nothing, whatever their ids.

    A block is identified by (what precedes it, id, its length), as an engine's chained hash does: an id seen after two
    different prefixes is two blocks, and a partial last block is shared only with an identical partial last block.
    Memory beside the ids: 8 bytes a distinct id, and 4 an id where they are not small numbers from about 0.
    """
    n, covered = len(offsets) - 1, prompt_tokens if output_tokens is None else prompt_tokens + output_tokens
    blocks = np.diff(offsets)
    if np.any((blocks - 1) * block_tokens >= np.maximum(covered, 1)):
        row = int(np.flatnonzero((blocks - 1) * block_tokens >= np.maximum(covered, 1))[0])
        raise ValueError(
            f"request {row}: {blocks[row]} blocks of {block_tokens} reach beyond its {covered[row]} tokens"
        )
    root = np.zeros(n, np.int64) if namespace is None else np.unique(namespace, return_inverse=True)[1]
    code = numbered(ids) if namespace is None else numbered_pairs(np.repeat(root, blocks), numbered(ids))
    if not _one_parent_each(code, offsets):
        code = _numbered_by_parent(code, offsets, root)

    def end_of(entry: np.ndarray, row: np.ndarray) -> np.ndarray:
        return np.minimum((entry - offsets[row] + 1) * block_tokens, covered[row])

    if not _one_end_each(code, offsets, block_tokens, covered):  # a partial block of an id is another block
        code = numbered_pairs(code, end_of(np.arange(len(code)), np.repeat(np.arange(n), blocks)))
    return _compress(code, offsets, end_of, root)[:2]


def from_token_ids(
    prompts: Sequence[Sequence[int] | np.ndarray], namespaces: Sequence[Hashable] | None = None
) -> tuple[PrefixTree, np.ndarray]:
    """Tree of prompts (or prompts with their outputs) given token by token; returns (tree, leaf int32 [n]).

    Sorting puts every prompt next to the one it shares most with, so the tree follows from the common prefixes of
    neighbours alone: O(total tokens) plus one sort of byte strings.
    """
    roots = hashables_numbered(namespaces if namespaces is not None else [0] * len(prompts))
    arrays = [np.asarray(p, np.int64) for p in prompts]
    narrow = all(a.min(initial=0) >= 0 and a.max(initial=0) < 2**32 for a in arrays)
    texts = [a.astype(">u4" if narrow else ">i8").tobytes() for a in arrays]  # byte by byte, in the order of the tokens
    order = sorted(range(len(texts)), key=lambda r: (roots[r], texts[r]))
    parent, end = [-1] * (max(roots, default=0) + 1), [0] * (max(roots, default=0) + 1)
    leaf = np.zeros(len(texts), np.int32)
    stack: list[int] = []  # nodes from the root to the deepest prefix shared with the previous prompt
    for before, r in zip([-1, *order], order, strict=False):
        common = 0
        if before < 0 or roots[before] != roots[r]:
            stack = [roots[r]]
        else:
            common = _common_prefix(texts[before], texts[r]) // (4 if narrow else 8)
            below = -1
            while end[stack[-1]] > common:
                below = stack.pop()
            if end[stack[-1]] < common:
                parent.append(stack[-1])
                end.append(common)
                stack.append(len(parent) - 1)
                if below >= 0:
                    parent[below] = stack[-1]
                if end[leaf[before]] < common:
                    leaf[before] = stack[-1]
        leaf[r] = stack[-1]
    return _parents_first(np.array(parent, np.int32), np.array(end, np.int64), leaf)


def from_pieces(
    paths: Sequence[Sequence[tuple[Hashable, int, int]]],
    roots: Sequence[Hashable] | None = None,
    layers: Sequence[Sequence[int]] | None = None,
) -> tuple[PrefixTree, np.ndarray]:
    """Tree of paths given as pieces (key, offset, length) of named texts; returns (tree, leaf int32 [n]).

    Token i of a piece is the token (key, offset + i); two tokens are the same when both agree, so consecutive pieces
    of one text are one longer piece. A path may hold prompt and output. Paths of different `roots` share nothing.
    `layers` gives every piece a layer code: a node is of one layer, the one its first visitor names.

    Every text is cut wherever some piece of it begins or ends; between two cuts it is one block of its own length,
    and the paths are then rows of block ids. O(pieces log pieces) when paths are few pieces long.
    """
    n = len(paths)
    pieces = [piece for path in paths for piece in path]
    offsets = np.concatenate(([0], np.cumsum([len(path) for path in paths], dtype=np.int64)))
    key = np.array(hashables_numbered([k for k, _, _ in pieces]), np.int64)
    low = np.array([o for _, o, _ in pieces], np.int64)
    high = low + np.array([c for _, _, c in pieces], np.int64)
    if np.any(high < low) or np.any(low < 0):
        i = int(np.flatnonzero((high < low) | (low < 0))[0])
        raise ValueError(f"piece {pieces[i]}: offset and length must not be negative")
    layer = (
        np.zeros(len(pieces), np.int16)
        if layers is None
        else np.array([code for row in layers for code in row], np.int16)
    )

    stretch = int(high.max(initial=0)) + 1  # text `key` lies at [key * stretch, (key + 1) * stretch)
    cuts = np.unique(np.concatenate((key * stretch + low, key * stretch + high)))
    begin = np.searchsorted(cuts, key * stretch + low)
    parts = np.searchsorted(cuts, key * stretch + high) - begin  # a piece is cuts begin, begin + 1, ...
    part_offsets = np.concatenate(([0], np.cumsum(parts)))
    code = np.repeat(begin, parts) + positions(part_offsets)
    offsets = part_offsets[offsets]
    length = np.diff(cuts, append=0)[code]
    end = np.cumsum(length)
    end -= np.repeat(np.concatenate(([0], end))[offsets[:-1]], np.diff(offsets))

    root = np.array(hashables_numbered(roots if roots is not None else [0] * n), np.int64)
    code = _numbered_by_parent(code, offsets, root)
    layer = np.repeat(layer, parts)[code]  # a code is the entry of its first visitor
    tree, leaf, first = _compress(code, offsets, lambda entry, _row: end[entry], root, split=changes(layer))
    node_layer = np.zeros(len(tree), np.int16)
    node_layer[len(tree) - len(first) :] = layer[first]
    return replace(tree, layer=node_layer), leaf


# ---- part by part ----


class Part(NamedTuple):
    """Some rows of all: what is computed of every entry is computed part by part, so that it needs no memory of its
    own."""

    rows: slice
    at: slice  #: their entries
    offsets: np.ndarray  #: [rows + 1], within `at`
    first: np.ndarray  #: where rows with an entry begin, within `at`


def _parts(offsets: np.ndarray) -> Iterator[Part]:
    ends = np.searchsorted(offsets, np.arange(PART, offsets[-1] + PART, PART), side="left")
    bounds = np.unique(np.concatenate(([0], np.minimum(ends, len(offsets) - 1), [len(offsets) - 1])))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        local = offsets[low : high + 1] - offsets[low]
        at = slice(int(offsets[low]), int(offsets[high]))
        yield Part(slice(low, high), at, local, local[:-1][np.diff(local) > 0])


# ---- identity: a block is (what precedes it, its id) ----


def _one_parent_each(code: np.ndarray, offsets: np.ndarray) -> bool:
    """True when every code always follows the same code, so that code alone names the whole prefix."""

    def before(part: Part) -> np.ndarray:
        codes = code[part.at]
        found = np.empty_like(codes)
        found[1:] = codes[:-1]
        found[part.first] = -1
        return found

    last = np.zeros(codes_in(code), np.int64)
    for part in _parts(offsets):
        last[code[part.at]] = before(part)
    return all(np.array_equal(last[code[part.at]], before(part)) for part in _parts(offsets))


def _one_end_each(code: np.ndarray, offsets: np.ndarray, block_tokens: int, covered: np.ndarray) -> bool:
    """True when every code, which has one place in all its rows, always ends at the same token: all who visit the last
    block of a row that covers less than all of it end there as well."""
    blocks = np.diff(offsets)
    partial = np.flatnonzero((blocks > 0) & (covered < blocks * block_tokens))
    ends = covered[partial]
    codes, first, inverse, count = np.unique(
        code[offsets[partial + 1] - 1], return_index=True, return_inverse=True, return_counts=True
    )
    return np.array_equal(ends, ends[first][inverse]) and np.array_equal(count, _visits(code, offsets)[codes])


def _visits(code: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """int32 [codes]: entries of each."""
    visits = np.zeros(codes_in(code), np.int32)
    for part in _parts(offsets):
        np.add.at(visits, code[part.at], np.int32(1))  # of another type it takes thirty times as long
    return visits


def _numbered_by_parent(code: np.ndarray, offsets: np.ndarray, root: np.ndarray) -> np.ndarray:
    """Numbers of (parent, code), level by level; a row leaves as soon as nobody shares its prefix."""
    number = np.arange(len(code), dtype=integer(len(code)))  # entries nobody shares keep a number of their own
    alive, parent = np.arange(len(offsets) - 1), root.astype(np.int64)
    level, size = 0, codes_in(code)
    while len(alive):
        has_block = offsets[alive] + level < offsets[alive + 1]
        alive, parent = alive[has_block], parent[has_block]
        at = offsets[alive] + level
        _, first, inverse, count = np.unique(
            parent * size + code[at], return_index=True, return_inverse=True, return_counts=True
        )
        number[at] = at[first][inverse]  # the first visitor's entry names the pair
        shared = count[inverse] > 1
        alive, parent, level = alive[shared], number[at][shared].astype(np.int64), level + 1
    return number


# ---- from numbered prefixes to nodes ----


def _compress(
    code: np.ndarray, offsets: np.ndarray, end_of: EndOf, root: np.ndarray, split: np.ndarray | None = None
) -> tuple[PrefixTree, np.ndarray, np.ndarray]:
    """(tree, leaf, entry at which each node that is no root first begins) from rows of codes that name whole prefixes.

    `split` bool: entries that must begin a node; equal for equal codes.
    """
    visits = _visits(code, offsets)
    runs = [_runs(visits[code[part.at]], part, None if split is None else split[part.at]) for part in _parts(offsets)]
    none = np.zeros(0, np.int64)
    at, row, stop = (np.concatenate((none, *found)) for found in zip(*runs, strict=True)) if runs else (none,) * 3
    n_roots = int(root.max()) + 1 if len(root) else 1

    first = np.zeros(codes_in(code), np.int32)
    first[code[at[::-1]]] = np.arange(len(at))[::-1]  # assignments run in order: the earliest visit stays
    is_first = first[code[at]] == np.arange(len(at))
    node = (n_roots - 1 + np.cumsum(is_first))[first[code[at]]] if len(at) else np.zeros(0, np.int64)
    above = np.concatenate(([0], node[:-1])) if len(at) else node
    begins_row = at == offsets[row]
    above[begins_row] = root[row[begins_row]]

    tree = PrefixTree(
        parent=np.concatenate((np.full(n_roots, -1), above[is_first])).astype(np.int32),
        end=np.concatenate((np.zeros(n_roots, np.int64), end_of(stop[is_first] - 1, row[is_first]))).astype(np.int64),
        layer=np.zeros(n_roots + int(is_first.sum()), np.int16),
    )
    leaf = root.copy()
    leaf[row] = node  # the row's last run is assigned last
    return tree, leaf.astype(np.int32), at[is_first]


def _runs(visits: np.ndarray, part: Part, split: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first entry, row, entry behind the last) of a part's runs that the same several requests visit, row after row;
    visits [entries of the part]: requests that visit each."""
    offsets = part.offsets
    shared = visits > 1  # in every row: a leading part
    running = np.concatenate(([0], np.cumsum(shared)))
    shared_end = offsets[:-1] + running[offsets[1:]] - running[offsets[:-1]]  # entry behind the row's shared part
    head = changes(visits)
    head[part.first] = True
    if split is not None:
        head |= split
    at = np.flatnonzero(head & shared)
    row = np.searchsorted(offsets, at, side="right") - 1
    stop = np.minimum(np.append(at[1:], len(visits)), shared_end[row])
    return at + part.at.start, row + part.rows.start, stop + part.at.start


# ---- token ids ----


def _common_prefix(a: bytes, b: bytes) -> int:
    """Length of the common prefix of two byte strings."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size
    differ = np.frombuffer(a, np.uint8, size) != np.frombuffer(b, np.uint8, size)
    return int(differ.argmax())


def _parents_first(parent: np.ndarray, end: np.ndarray, leaf: np.ndarray) -> tuple[PrefixTree, np.ndarray]:
    """Renumber so that a parent comes before its children: by end, which grows from parent to child."""
    order = np.argsort(end, kind="stable")
    new = np.empty(len(order), np.int32)
    new[order] = np.arange(len(order))
    moved = parent[order]
    tree = PrefixTree(np.where(moved < 0, -1, new[moved]).astype(np.int32), end[order], np.zeros(len(order), np.int16))
    return tree, new[leaf]
