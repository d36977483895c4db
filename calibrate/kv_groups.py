"""KV groups: how vLLM packs layers that keep different things into one pool of equal blocks.

The one idea: layers that keep the same form a bucket, every bucket is cut into groups of equally many layers, and a
block belongs to a group. Any block can then serve any group, so the groups share one free list.

    python -c "from calibrate.kv_groups import groups_of; from calibrate.models import resolve_model as m;
    print(groups_of(m('gpt-oss-20b').layer_groups, 2, 1, 16))"
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from calibrate.layer_groups import LayerGroup

FULL, WINDOW, CHUNKED, STATE, CONSTANT = "full", "window", "chunked", "state", "constant"
FEWER_LAYERS = 1.5
"""Where the largest bucket has less than so many times the layers of the smallest, groups are as large as it."""


class KvGroup(NamedTuple):
    """Layers of one kind that share their blocks."""

    kind: (
        str  #: full, window (the last `window` tokens), chunked (from its last multiple on), state (one a chunk, to be
    )
    #: cached) or constant (one state a request, nothing is cached)
    block_size: int  #: tokens
    window: int = 0  #: tokens of a window or chunk
    layers: int = 0


class KvLayers(NamedTuple):
    """Layers that keep the same."""

    kind: str
    layers: int
    token_bytes: int  #: of one layer on one rank; of a state or constant layer, of the whole state
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
    pages = [part.token_bytes if part.kind in (STATE, CONSTANT) else block_size * part.token_bytes for part in layers]
    page, groups = max(pages), []
    for part, its in zip(layers, pages, strict=True):
        longer = page // its if part.kind not in (STATE, CONSTANT) and page % its == 0 else 1
        n = -(-part.layers // size)
        groups += [
            KvGroup(part.kind, block_size * longer, part.window, len(range(i, part.layers, n))) for i in range(n)
        ]
    return Packed(tuple(groups), page * size)


def layers_of(model: Sequence[LayerGroup], item: float, tp: int, cached: bool = True) -> list[KvLayers]:
    """What a model's layers keep on one of `tp` ranks, equal ones together. item: bytes of a KV element; cached: states
    can be hit again.

    Layers that keep everything come last: in every published model the first layer is another."""
    found: dict[tuple[str, int, int], int] = {}
    for group in model:
        a = group.attention
        if a.kind == "linear":
            kind, size = STATE if cached else CONSTANT, a.state_bytes(tp)
        else:
            kind, size = a.kind if a.kind in (WINDOW, CHUNKED) else FULL, a.kv_bytes(item, tp)
        if size:
            key = (kind, size, a.window if kind in (WINDOW, CHUNKED) else 0)
            found[key] = found.get(key, 0) + group.count
    layers = [KvLayers(kind, count, size, window) for (kind, size, window), count in found.items()]
    return sorted(layers, key=lambda part: part.kind == FULL)


def groups_of(model: Sequence[LayerGroup], item: float, tp: int, block_size: int, cached: bool = True) -> Packed | None:
    """A model's pool; None where all layers keep everything."""
    layers = layers_of(model, item, tp, cached)
    return None if all(part.kind == FULL for part in layers) else plan_groups(layers, block_size)


def most_blocks(group: KvGroup, tokens: int, step_tokens: int) -> int:
    """Blocks that one request of so many tokens can hold at once in a group; step_tokens: of the steps under way."""
    if group.kind == WINDOW:
        return -(-min(group.window - 1 + step_tokens, tokens) // group.block_size) + 1
    if group.kind == CHUNKED:
        return -(-min(group.window + step_tokens, tokens) // group.block_size)
    if group.kind in (STATE, CONSTANT):
        return 2 if group.kind == STATE else 1
    return -(-tokens // group.block_size)


def request_blocks(groups: Sequence[KvGroup], tokens: int, step_tokens: int) -> int:
    """Blocks that one request of so many tokens can hold at once in all groups."""
    return sum(most_blocks(group, tokens, step_tokens) for group in groups)


def longest_request(groups: Sequence[KvGroup], blocks: int, step_tokens: int, most: int) -> int:
    """Tokens of the longest request, at most `most`, whose blocks in all groups a pool holds; 0 when none does."""
    return bisect_right(range(1, most + 1), blocks, key=lambda tokens: request_blocks(groups, tokens, step_tokens))


def blocks_of(groups: Sequence[KvGroup], tokens: int) -> int:
    """Blocks of a pool of which vLLM prints so many tokens."""
    return tokens // min(group.block_size for group in groups) * len(groups)


def token_count(groups: Sequence[KvGroup], blocks: int) -> int:
    """Tokens of a pool as vLLM prints them at its start: as if every group kept every token."""
    return blocks // len(groups) * min(group.block_size for group in groups)
