"""Layered prompts as a prefix tree, built as columns.

The one idea: a prompt is a list of text ids in order. Two prompts share their leading layers as long as the ids
agree, so the tree is, level by level, the distinct (parent node, text id) pairs; then each session's history hangs
below its last layer, one node for each turn's input and output.

    >>> from workloads.mix import build      # puts the two classes below to work, see docs/workloads.md
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from workloads import dists, portable
from workloads.columns import PrefixTree
from workloads.config import Layer, MixClass


class Parts(NamedTuple):
    """A class's layers by the part they play."""

    shared: tuple[Layer, ...]  #: nodes of the tree
    private: tuple[
        Layer, ...
    ]  #: what no other request can share: session and dynamic layers that end a single turn's prompt
    message: Layer | None  #: a final dynamic layer: the session's first message, which later turns carry as history

    @classmethod
    def of(cls, c: MixClass) -> Parts:
        message = c.layers[-1] if c.layers[-1].scope == "dynamic" else None
        head = c.layers[:-1] if message else c.layers
        keep = len(head)
        while keep and not dists.can_exceed(c.turns, 1) and head[keep - 1].scope in ("session", "dynamic"):
            keep -= 1
        return cls(head[:keep], head[keep:], message)


@dataclass(frozen=True)
class Use:
    """A layer as the requests of one class read it, in row order."""

    class_name: str
    layer: Layer
    rows: np.ndarray  #: int64 [m], the requests
    session: np.ndarray  #: int64 [m], number of the session within its class
    clock_s: np.ndarray  #: float64 [m], nominal time, for texts that change with the clock

    def per_session(self, seed: int, what: str, draw: Callable[[int, np.random.Generator], np.ndarray]) -> np.ndarray:
        """draw(n sessions, rng), spread over the requests [m]."""
        rng = dists.stream(seed, self.class_name, self.layer.name, what)
        return draw(int(self.session.max()) + 1, rng)[self.session]

    def ticks(self, every_s: float) -> np.ndarray:
        return np.floor(self.clock_s / every_s).astype(np.int64)

    def item(self, seed: int) -> np.ndarray:
        """Which of the layer's texts each request reads, before any churn, int64 [m]."""
        layer = self.layer
        if layer.scope == "global":
            return np.zeros(len(self.session), np.int64)
        if layer.scope == "session":
            return self.session
        if layer.scope == "dynamic":
            return np.arange(len(self.session), dtype=np.int64)
        cdf = np.cumsum(portable.power(np.arange(1, layer.items + 1), -layer.zipf))
        return self.per_session(
            seed,
            "item",
            lambda n, rng: np.minimum(np.searchsorted(cdf / cdf[-1], rng.random(n), side="right"), layer.items - 1),
        )


def _pairs(major: np.ndarray, minor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Dense ids [m] of the distinct (major, minor) pairs in sorted order, and the minor of each id."""
    width = int(minor.max()) + 1
    if int(major.max()) >= 2**62 // width:  # a clock of milliseconds that has run for years, times many items
        major = np.unique(major, return_inverse=True)[1]
    distinct, ids = np.unique(major * width + minor, return_inverse=True)
    return ids, distinct % width


@dataclass
class Texts:
    """The distinct texts of a mix, numbered as they are added; a text's length is drawn once."""

    seed: int
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  #: int64 [n_texts]
    layer: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int16))  #: int16 [n_texts]

    def add(self, uses: list[Use], layer_id: int) -> list[np.ndarray]:
        """Text ids int32 [m] of every use. The uses are of one layer, or of layers that share their texts.

        A redeployed text is another text with a length of its own; a shuffled one and one with another timestamp
        are other texts of the same length.
        """
        layer = uses[0].layer
        base = np.concatenate([u.item(self.seed) for u in uses])
        if layer.redeploy_s:
            base, _ = _pairs(np.concatenate([u.ticks(layer.redeploy_s) for u in uses]), base)
        name = ("share", layer.share) if layer.share else (uses[0].class_name, layer.name)
        lengths = dists.counts(layer.tokens, int(base.max()) + 1, dists.stream(self.seed, *name, "tokens"))
        text = base
        for variant in self._variants(uses):
            text, parent = _pairs(variant, text)
            lengths = lengths[parent]
        offset = len(self.tokens)
        self.tokens = np.concatenate([self.tokens, lengths])
        self.layer = np.concatenate([self.layer, np.full(len(lengths), layer_id, np.int16)])
        return np.split((text + offset).astype(np.int32), np.cumsum([len(u.session) for u in uses])[:-1])

    def _variants(self, uses: list[Use]) -> list[np.ndarray]:
        layer, found = uses[0].layer, []
        if layer.shuffle > 1:
            found.append(
                np.concatenate(
                    [
                        u.per_session(self.seed, "shuffle", lambda n, rng: rng.integers(layer.shuffle, size=n))
                        for u in uses
                    ]
                )
            )
        if layer.timestamp_s:
            found.append(np.concatenate([u.ticks(layer.timestamp_s) for u in uses]))
        return found


class TreeBuilder:
    """Grows the tree for all requests at once; `node` arrays hold the deepest node so far of every request."""

    def __init__(self, salt: np.ndarray):
        """salt: int64 [n], isolation domain of each request; every domain is its own root."""
        salts, root = np.unique(salt, return_inverse=True)
        k = len(salts)
        self.node = root.astype(np.int32)
        self.parent = np.full(k, -1, np.int32)
        self.end = np.zeros(k, np.int64)
        self.layer = np.zeros(k, np.int16)
        self.content = np.full(k, -1, np.int64)
        self.twin = np.zeros(k, np.int32)  # without isolation there is one root

    def _append(
        self, parent: np.ndarray, end: np.ndarray, layer: np.ndarray, content: np.ndarray, twin: np.ndarray
    ) -> None:
        self.parent = np.concatenate([self.parent, parent.astype(np.int32)])
        self.end = np.concatenate([self.end, end])
        self.layer = np.concatenate([self.layer, layer.astype(np.int16)])
        self.content = np.concatenate([self.content, content])
        self.twin = np.concatenate([self.twin, twin.astype(np.int32)])

    def extend(self, rows: np.ndarray, text: np.ndarray, texts: Texts) -> None:
        """Append text[i] to the prompt of request rows[i]: one node for each distinct (node so far, text)."""
        width, first = len(texts.tokens), len(self.parent)
        distinct, which = np.unique(self.node[rows].astype(np.int64) * width + text, return_inverse=True)
        parent, content = distinct // width, distinct % width
        _, at, same = np.unique(
            self.twin[parent].astype(np.int64) * width + content, return_index=True, return_inverse=True
        )
        self._append(parent, self.end[parent] + texts.tokens[content], texts.layer[content], content, first + at[same])
        self.node[rows] = first + which

    def histories(
        self, turn: np.ndarray, piece_tokens: np.ndarray, layer: np.ndarray, first_content: int
    ) -> np.ndarray:
        """Hang every session's turns below its requests' last layers; returns each request's leaf, int32 [n].

        Rows are session by session in turn order. Piece i of a session, its turn's input and output, is one node of
        the paths of turns i, i + 1, ... as long as they read the same layers. When the layers changed at turn t (a
        dynamic layer, a redeploy), everything said before is a new path with the old content. A session's last
        piece is nobody else's: it stays a private tail.
        """
        n = len(turn)
        row = np.arange(n)
        has_next = np.append(turn[1:] > 0, False)
        fresh = (turn == 0) | np.append(True, self.node[1:] != self.node[:-1])
        count = np.where(fresh, turn, 0) + has_next
        stop = np.cumsum(count)
        owner = np.repeat(row, count)
        place = np.arange(len(owner)) - (stop - count)[owner]
        piece = np.where(fresh[owner], place, turn[owner])
        said = row[owner] - turn[owner] + piece  # the row whose input and output this piece is
        total = np.cumsum(piece_tokens)
        before = (total - piece_tokens)[row - turn]  # tokens of all earlier sessions
        first = len(self.parent)
        ids = first + np.arange(len(owner))
        head = self.node[owner]
        parent = np.where(piece == 0, head, ids - 1)
        self._append(parent, self.end[head] + (total[said] - before[owner]), layer[owner], first_content + said, ids)
        return np.where(fresh & (count == 0), self.node, first + stop - 1).astype(np.int32)

    def tree(self, isolated: bool) -> PrefixTree:
        return PrefixTree(self.parent, self.end, self.layer, twin=self.twin if isolated else None, content=self.content)
