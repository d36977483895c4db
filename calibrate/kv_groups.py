"""KV groups: how vLLM packs layers that keep different things into one pool of equal blocks.

The one idea: layers that keep the same form a bucket, every bucket is cut into groups of equally many layers, and a
block belongs to a group. Any block can then serve any group, so the groups share one free list.

    python -c "from calibrate.kv_groups import KvLayers, plan_groups; print(*plan_groups([KvLayers('full', 12, 512),
    KvLayers('window', 12, 512, 128)], 16), sep='\\n')"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FULL, WINDOW, CHUNKED, STATE = "full", "window", "chunked", "state"
KINDS = (FULL, WINDOW, CHUNKED, STATE)
FEWER_LAYERS = 1.5
"""Where the largest bucket has less than so many times the layers of the smallest, groups are as large as it."""


class KvGroup(NamedTuple):
    """Layers of one kind that share their blocks."""

    kind: str  #: full, window (the last `window` tokens), chunked (from its last multiple on) or state (constant size)
    block_size: int  #: tokens
    window: int = 0  #: tokens of a window or chunk
    layers: int = 0


class KvLayers(NamedTuple):
    """Layers that keep the same."""

    kind: str
    layers: int
    token_bytes: int  #: of one layer on one rank; of a state layer, of the whole state
    window: int = 0


class Packed(NamedTuple):
    """A pool's groups, and what one of its blocks takes."""

    groups: tuple[KvGroup, ...]
    block_bytes: int  #: on one rank


def plan_groups(layers: Sequence[KvLayers], block_size: int) -> Packed:
    """vLLM 0.33's groups for layers in buckets of equal ones; block_size: tokens of the block with the most bytes.

    A group has as many layers as the smallest bucket; the last of a bucket may have fewer, and its blocks are as large.
    Pages are made equal by longer blocks where bytes divide, else padded."""
    smallest, largest = min(part.layers for part in layers), max(part.layers for part in layers)
    size = largest if largest < FEWER_LAYERS * smallest else smallest
    page = max(part.token_bytes if part.kind == STATE else block_size * part.token_bytes for part in layers)
    groups: list[KvGroup] = []
    for part in layers:
        own = block_size
        if part.kind != STATE:
            own *= max(1, page // (block_size * part.token_bytes)) if page % (block_size * part.token_bytes) == 0 else 1
        n = -(-part.layers // size)
        groups += [KvGroup(part.kind, own, part.window, len(range(i, part.layers, n))) for i in range(n)]
    return Packed(tuple(groups), page * size)
