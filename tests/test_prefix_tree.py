"""The prefix tree against a naive reference: for every pair of requests the tree shares exactly what the texts
share."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads import numbering, prefix_tree
from workloads.prefix_tree import from_block_ids, from_pieces, from_token_ids


def shared_by_tree(tree, leaf, a: int, b: int) -> int:
    """Tokens two paths share: the end of the deepest node on both."""
    above_a = {leaf[a]}
    node = leaf[a]
    while tree.parent[node] >= 0:
        node = tree.parent[node]
        above_a.add(node)
    node = leaf[b]
    while node >= 0 and node not in above_a:
        node = tree.parent[node]
    return int(tree.end[node]) if node >= 0 else 0


def shared_by_text(a: list, b: list) -> int:
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    return same


def agree(tree, leaf, texts: list[list]) -> None:
    """Every pair shares as much in the tree as in the texts, and no node is superfluous."""
    tree.check()
    assert len(leaf) == len(texts)
    for a in range(len(texts)):
        assert tree.end[leaf[a]] <= len(texts[a])
        for b in range(a):
            assert shared_by_tree(tree, leaf, a, b) == shared_by_text(texts[a], texts[b]), (a, b)
        longest = max((shared_by_text(texts[a], t) for i, t in enumerate(texts) if i != a), default=0)
        assert tree.end[leaf[a]] == longest, "a leaf is the deepest node that a second request visits"


block_rows = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=8
)


@settings(max_examples=300, deadline=None)
@given(block_rows, st.booleans(), st.sampled_from([0, 1, 2**62, -(2**63)]), st.sampled_from([1, 5, prefix_tree.PART]))
def test_block_ids_share_what_their_blocks_share(rows, partial_tail, base, part) -> None:
    """Token of a block = (namespace, ids so far, the block's length, position): what a chained hash means. However many
    ids are looked at at a time."""
    block = 4
    ids = np.array([base + i for row, _, _ in rows for i in row], np.int64)
    offsets = np.concatenate(([0], np.cumsum([len(row) for row, _, _ in rows])))
    prompt, texts = [], []
    for row, extra, space in rows:
        tail_is_covered = partial_tail and row and extra
        tokens = len(row) * block - (block - extra if tail_is_covered else -extra)
        prompt.append(tokens)
        text = []
        for i in range(len(row)):
            length = min(block, tokens - i * block)
            text += [(space, tuple(row[: i + 1]), length, p) for p in range(length)]
        texts.append(text + [("private", len(texts), i) for i in range(tokens - len(text))])
    namespace = np.array([space for _, _, space in rows], np.int64)
    with patch.object(prefix_tree, "PART", part):
        tree, leaf = from_block_ids(ids, offsets, block, np.array(prompt, np.int64), namespace=namespace)
    agree(tree, leaf, texts)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([0, 1, 256, 2**32 - 1, 2**32, -1]), max_size=8), st.sampled_from(["a", "b"])
        ),
        min_size=1,
        max_size=8,
    )
)
def test_token_ids_share_their_longest_common_prefix(rows) -> None:
    tree, leaf = from_token_ids([tokens for tokens, _ in rows], [space for _, space in rows])
    agree(tree, leaf, [[(space, t) for t in tokens] for tokens, space in rows])


piece = st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 4), st.integers(0, 1))


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.tuples(st.lists(piece, max_size=5), st.sampled_from(["x", "y"])), min_size=1, max_size=7), st.booleans()
)
def test_pieces_share_their_common_tokens_and_a_node_is_of_one_layer(rows, layered) -> None:
    paths = [[(k, o, c) for k, o, c, _ in path] for path, _ in rows]
    layers = [[code for *_, code in path] for path, _ in rows] if layered else None
    tree, leaf = from_pieces(paths, [space for _, space in rows], layers)
    agree(tree, leaf, [[(space, k, o + i) for k, o, c, _ in path for i in range(c)] for path, space in rows])
    if not layered:
        assert not tree.layer.any()
        return
    first_layer: dict = {}  # every token prefix -> the layer its first reader gave its last token
    for path, space in rows:
        prefix: tuple = (space,)
        for k, o, c, code in path:
            for i in range(c):
                prefix += ((k, o + i),)
                first_layer.setdefault(prefix, code)
    start = tree.start
    for r, (path, space) in enumerate(rows):
        tokens, node = [(k, o + i) for k, o, c, _ in path for i in range(c)], leaf[r]
        while tree.parent[node] >= 0:
            for p in range(start[node], tree.end[node]):
                assert first_layer[(space, *tokens[: p + 1])] == tree.layer[node]
            node = tree.parent[node]


def test_a_session_costs_linear_time_in_its_pieces() -> None:
    """2,000 sessions of 20 turns, each turn repeating the history: 420,000 pieces in a few seconds at most."""
    paths = [
        [("tools", 0, 500), *[((s, t), 0, 30) for t in range(turn + 1)]] for s in range(2000) for turn in range(20)
    ]
    tree, leaf = from_pieces(paths)
    assert len(tree) == 2 + 2000 * 19  # root, tools, and every turn but a session's last
    assert tree.end[leaf[19]] == 500 + 19 * 30


def test_generated_tokens_are_shared_when_ids_cover_them() -> None:
    """The second turn's first three blocks hold the first turn's prompt (6) and answer (6)."""
    ids, offsets = np.array([1, 2, 3, 1, 2, 3, 4]), np.array([0, 3, 7])
    tree, leaf = from_block_ids(ids, offsets, 4, np.array([6, 16]), output_tokens=np.array([6, 2]))
    assert tree.end[leaf].tolist() == [12, 12]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 20)), min_size=1), st.integers(0, 2**62), st.booleans())
@settings(max_examples=60, deadline=None)
def test_equal_values_get_equal_numbers(clusters, base, narrow) -> None:
    """Clusters of values a hundred apart are too far spread to be taken as they are, and few enough to be paged."""
    values = np.array([100 * place + beyond for place, beyond in clusters], np.int64)
    values = values.astype(np.int32) if narrow else values + base
    low, high = int(values.min()), int(values.max())
    for numbers in (numbering.numbered(values), numbering.paged(values, low, high)):
        assert numbers is not None
        assert 0 <= numbers.min() <= numbers.max() < 4 * len(values) + 1024 + 16
        assert len(set(zip(values.tolist(), numbers.tolist(), strict=True))) == len(set(numbers.tolist()))
        assert len(set(numbers.tolist())) == len(set(values.tolist()))


def test_values_in_too_many_pages_are_not_paged() -> None:
    assert numbering.paged(np.arange(0, 16 * 2000, 16), 0, 16 * 2000 - 16) is None


def test_a_partial_block_is_another_block() -> None:
    """One id: whole in the first row, partial in the others, of which the last two end alike."""
    ids, offsets = np.array([1, 2, 1, 2, 1, 2, 1, 2]), np.array([0, 2, 4, 6, 8])
    tree, leaf = from_block_ids(ids, offsets, 4, np.array([8, 6, 7, 7]))
    assert tree.end[leaf].tolist() == [4, 4, 7, 7]
