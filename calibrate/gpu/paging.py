"""KV blocks of the real engine: a free queue, reference counts, and a map from prefix hashes to cached blocks.

The one idea: a freed block keeps its content and its hash until somebody takes it from the head of the free queue, so
the free queue *is* the eviction order (vLLM V1's block pool).

    python -m calibrate.gpu.engine --model tiny --device cpu --out recording
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np


def chained_hashes(tokens: Sequence[int], block_size: int, known: list[bytes] | None = None) -> list[bytes]:
    """One hash per full block, each over the one before and the block's tokens; `known` hashes are extended in
    place."""
    hashes = known if known is not None else []
    for i in range(len(hashes), len(tokens) // block_size):
        block = np.asarray(tokens[i * block_size : (i + 1) * block_size], np.int64).tobytes()
        hashes.append(hashlib.blake2b((hashes[-1] if hashes else b"") + block, digest_size=16).digest())
    return hashes


class BlockPool:
    """`blocks` KV blocks. take and release come in pairs, as do touch and release for hits."""

    def __init__(self, blocks: int):
        self.total = blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._refs = [0] * blocks
        self._hash: list[bytes | None] = [None] * blocks
        self._cached: dict[bytes, OrderedDict[int, None]] = {}  # copies of a block, oldest first
        self.evicted = 0

    @property
    def free(self) -> int:
        return len(self._free)

    def lookup(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest cached prefix."""
        hits = []
        for h in hashes:
            copies = self._cached.get(h)
            if not copies:
                break
            hits.append(next(iter(copies)))
        return hits

    def idle(self, blocks: Sequence[int]) -> int:
        """How many of these are in the free queue."""
        return sum(1 for b in blocks if self._refs[b] == 0)

    def touch(self, blocks: Sequence[int]) -> None:
        """Pin hits."""
        for b in blocks:
            if self._refs[b] == 0:
                del self._free[b]
            self._refs[b] += 1

    def take(self, count: int) -> list[int]:
        """Blocks from the head of the free queue; what they held is forgotten."""
        if count > len(self._free):
            raise ValueError(f"take {count} blocks: {len(self._free)} are free; expected the caller to have checked")
        taken = []
        for _ in range(count):
            b, _none = self._free.popitem(last=False)
            self._forget(b)
            self._refs[b] = 1
            taken.append(b)
        return taken

    def enter(self, block: int, h: bytes) -> None:
        """A full block can be hit from now on."""
        if self._hash[block] is None:
            self._hash[block] = h
            self._cached.setdefault(h, OrderedDict())[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """Give back, deepest first: full ones to the tail of the queue, partial ones to its head."""
        for b in reversed(blocks):
            self._refs[b] -= 1
            if self._refs[b] == 0:
                self._free[b] = None
                if self._hash[b] is None:
                    self._free.move_to_end(b, last=False)

    def _forget(self, block: int) -> None:
        h = self._hash[block]
        if h is not None:
            del self._cached[h][block]
            if not self._cached[h]:
                del self._cached[h]
            self._hash[block] = None
            self.evicted += 1

    def check(self) -> None:
        """Raise when a block is both free and used, or lost."""
        for b, refs in enumerate(self._refs):
            if (refs == 0) != (b in self._free):
                raise ValueError(f"block {b} has {refs} references and is {'' if b in self._free else 'not '}free")
