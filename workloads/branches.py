"""A prefix tree from texts that hang on one another: each begins somewhere in an earlier one and goes its own way.

The one idea: a text is (the text it hangs on, at which depth, where it ends). It is cut into nodes wherever another
text leaves it, so sharing is exact to the token, and no token and no hash is kept.

    >>> texts = Branches()
    >>> first = texts.add(-1, 0, 120)            # 120 tokens from the root
    >>> second = texts.add(first, 100, 180)      # the same first 100, then 80 of its own
    >>> tree, leaf = texts.tree([first, second])
    >>> tree.end.tolist(), leaf.tolist()         # what one request alone reads needs no node
    ([0, 100], [1, 1])
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from workloads.columns import PrefixTree

ROOT = -1


class Branches:
    """Collects texts; `tree` cuts them."""

    def __init__(self) -> None:
        self._on, self._layer = array("q"), array("q")
        self._hang = array("q")  # depth at which it leaves the text that it hangs on
        self.end = array("q")  #: depth of each text's last token

    def add(self, on: int, hang: int, end: int, layer: int = 0) -> int:
        """Number of a new text of layer code `layer`: the first `hang` tokens are those on the path of `on` (ROOT:
        none), the ones up to `end` its own. A text of no token is the one that it hangs on."""
        if hang < 0 or hang > (self.end[on] if on != ROOT else 0):
            raise ValueError(f"hang = {hang}, expected a depth on the path of text {on}")
        if end < hang:
            raise ValueError(f"end = {end}, expected at least {hang}, where the text begins")
        on = self._holder(on, hang)
        if end == hang and on != ROOT and self.end[on] == hang:
            return on
        self._on.append(on)
        self._hang.append(hang)
        self.end.append(end)
        self._layer.append(layer)
        return len(self.end) - 1

    def move(self, text: int, on: int, hang: int) -> None:
        """Let a text that was added begin on another one's path instead, deeper than before."""
        if not self._hang[text] <= hang <= min(self.end[text] - 1, self.end[on]):
            raise ValueError(f"hang = {hang}, expected a depth within text {text} and on the path of {on}")
        self._on[text], self._hang[text] = self._holder(on, hang), hang

    def _holder(self, on: int, depth: int) -> int:
        """The text on whose own tokens the path of `on` is at `depth`."""
        while on != ROOT and self._hang[on] >= depth:
            on = self._on[on]
        return on

    def tree(self, read: Sequence[int]) -> tuple[PrefixTree, np.ndarray]:
        """(tree, leaf int32 [n]) of requests that each read one text to its end; what only one reads has no node."""
        on, hang, end = (np.array(column, np.int64) for column in (self._on, self._hang, self.end))
        layer = np.array(self._layer, np.int16)
        stretch = int(end.max(initial=0)) + 1  # the tokens of text i have the keys i * stretch + depth
        hangs = on >= 0
        own = np.arange(len(end)) * stretch + end
        keys = np.unique(np.concatenate((on[hangs] * stretch + hang[hangs], own[end > hang])))
        text = keys // stretch
        above = np.where(on >= 0, np.searchsorted(keys, on * stretch + hang), -1)
        begins = np.append(True, text[1:] != text[:-1]) if len(text) else np.zeros(0, bool)
        parent = np.where(begins, above[text] + 1, np.arange(len(keys)))  # node 0 is the root
        node = np.where(end > hang, np.searchsorted(keys, own), above) + 1
        parent, end = np.concatenate(([-1], parent)), np.concatenate(([0], keys - text * stretch))
        leaf = node[np.array(read, np.int64)] if len(read) else np.zeros(0, np.int64)
        return _shared_only(parent, end, np.concatenate(([0], layer[text])).astype(np.int16), leaf)


def _shared_only(
    parent: np.ndarray, end: np.ndarray, layer: np.ndarray, leaf: np.ndarray
) -> tuple[PrefixTree, np.ndarray]:
    """(tree, leaf) without the nodes that fewer than two requests visit, parents first."""
    order = np.argsort(end, kind="stable")  # it grows from parent to child
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    above = np.where(parent[order] >= 0, place[parent[order]], -1).tolist()
    visits = np.bincount(place[leaf], minlength=len(order)).tolist()
    for i in range(len(above) - 1, 0, -1):
        visits[above[i]] += visits[i]
    new, kept = [0] * len(above), [0]
    for i in range(1, len(above)):
        if visits[i] > 1:
            new[i] = len(kept)
            kept.append(i)
        else:
            new[i] = new[above[i]]
    renumbered = np.array(new, np.int64)
    rows = order[kept]
    up = np.array(above, np.int64)[kept]
    return (
        PrefixTree(np.where(up >= 0, renumbered[up], -1).astype(np.int32), end[rows].astype(np.int64), layer[rows]),
        renumbered[place[leaf]].astype(np.int32),
    )
