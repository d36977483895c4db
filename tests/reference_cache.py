"""Per-block caches of the reference engine: vLLM's free list with a hash map, and leaf-first eviction by a policy key.

Every block is an object and hashes chain over real tokens, so nothing can be wrong by cleverness.

cache_policy `lru` (the default) is vLLM's own free list with real duplicates. The others rank leaves: `lfu`, `fifo`,
`slru`, `mru`, `filo`, `lruk`, `gdsf`, and LRU by the rules below under the name of its class in the simulator.
- One cached block per hash. A block that becomes full while its hash is cached stays private memory of its request,
  which
  also pins the cached copy until it lets go (the pin comes after the blocks of that request and step were popped).
- Uses = 1 at insertion, + 1 for each (re)admission whose lookup hit the block; a duplicate's pin is no use. Lost at
  eviction.
- Candidates: cached, no pin, no cached child. Victim: smallest key, where `release` numbers the release (finish or
  preemption) that took its last pin, and `inserted` the (re)admission whose request entered it: LRU (release), lfu
  (uses, release), slru (uses >= protected_uses, release), fifo (inserted), mru (-release), filo (-inserted), lruk (used
  k times or more, admission of the k-th last use, or of the first), gdsf (clock at release + uses x cost by depth; the
  clock is the highest value evicted); one block at a time, the parent competes again with its own key. Two candidates
  never tie: equal numbers lie on one path.
- Policies that ask who used a block, when: tests.reference_policies.
- Unused memory (never used, partial blocks, duplicates given back) goes before any eviction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

BLOCK_COST = 0.0
"""How much dearer each block is to recompute than the one before it, for gdsf; a test sets both sides alike."""


class Hasher:
    """Chained block hashes: equal numbers mean equal parent, equal tokens, equal salt and LoRA (no collisions)."""

    def __init__(self) -> None:
        self.numbers: dict[tuple, int] = {}

    def chain(self, tokens: list[int], block_size: int, salt: str | None, lora: str | None) -> list[int]:
        keys: list[int] = []
        for end in range(block_size, len(tokens) + 1, block_size):
            extra = (("lora", lora), ("salt", salt if not keys else None))
            content = (keys[-1] if keys else None, tuple(tokens[end - block_size : end]), extra)
            keys.append(self.numbers.setdefault(content, len(self.numbers)))
        return keys


@dataclass(eq=False)
class Block:
    """One KV block. `key` is its chained hash while it is in the map."""

    key: int | None = None
    refs: int = 0
    parent: Block | None = None  # ranked policies only, from here on
    children: int = 0
    uses: int = 0
    release: int = 0
    inserted: int = 0
    used: list[int] = field(default_factory=list)  # admissions that inserted or hit it
    depth: int = 0
    clock: float = 0.0
    twin: Block | None = None  # cached copy pinned by this private duplicate


class FreeListPool:
    """vLLM's block pool: allocate from the head; freed blocks go to the tail, or to the head when they hold no hash."""

    def __init__(self, num_blocks: int):
        self.free: OrderedDict[Block, None] = OrderedDict((Block(), None) for _ in range(num_blocks))
        self.cached: dict[int, list[Block]] = {}  # hash -> copies, oldest first
        self.allocated = self.evicted = 0

    def available(self) -> int:
        return len(self.free)

    def lookup(self, keys: Iterable[int]) -> list[Block]:
        hits: list[Block] = []
        for key in keys:
            if key not in self.cached:
                break
            hits.append(self._copy(key))
        return hits

    def _copy(self, key: int) -> Block:
        return self.cached[key][0]

    def touch(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.refs == 0:
                del self.free[block]
            block.refs += 1

    def allocate(self, n: int) -> list[Block]:
        return [self._pop() for _ in range(n)]

    def _pop(self) -> Block:
        block, _ = self.free.popitem(last=False)
        if block.key is not None:
            self._forget(block)
            self.evicted += 1
        block.refs = 1
        self.allocated += 1
        return block

    def _forget(self, block: Block) -> None:
        assert block.key is not None
        copies = self.cached[block.key]
        copies.remove(block)
        if not copies:
            del self.cached[block.key]
        block.key = None

    def enter(self, blocks: list[Block], i: int, key: int, admission: int) -> None:
        """blocks[i] is full: put it in the map."""
        blocks[i].key = key
        self.cached.setdefault(key, []).append(blocks[i])

    def release(self, blocks: list[Block]) -> None:
        for block in reversed(blocks):
            block.refs -= 1
            if block.refs == 0:
                self.free[block] = None
                self.free.move_to_end(block, last=block.key is not None)

    def check(self, held: list[list[Block]], total: int) -> None:
        refs: dict[Block, int] = {}
        for blocks in held:
            for block in blocks:
                refs[block] = refs.get(block, 0) + 1
        assert all(block.refs == n for block, n in refs.items())
        assert all(block.refs == 0 for block in self.free)
        assert len(refs) + len(self.free) == total


class RankedPool:
    """Leaf-first eviction by a policy key; scans every cached block for each victim."""

    KEYS: ClassVar[dict[str, Callable[[Block, dict[str, Any]], tuple]]] = {
        "sim.kvcache.policies.by_key:Lru": lambda b, p: (b.release,),
        "lfu": lambda b, p: (b.uses, b.release),
        "slru": lambda b, p: (b.uses >= p.get("protected_uses", 2), b.release),
        "fifo": lambda b, p: (b.inserted,),
        "mru": lambda b, p: (-b.release,),
        "filo": lambda b, p: (-b.inserted,),
        "lruk": lambda b, p: (len(b.used) >= p.get("k", 2), b.used[-p.get("k", 2) :][0]),
        "gdsf": lambda b, p: (b.clock + b.uses * (1 + b.depth * p.get("block_cost", BLOCK_COST)), b.release),
    }

    def __init__(self, num_blocks: int, policy: str, params: dict[str, Any] | None = None):
        self.unused = num_blocks
        self.cached: dict[int, Block] = {}
        self.allocated = self.evicted = self.releases = self.admissions = 0
        self.clock = 0.0
        self.policy, self.params = policy, params or {}

    # ---- what a policy may keep on a block, and whom it chooses (tests.reference_policies)
    # -------------------------------
    def _hit(self, block: Block) -> None:
        block.uses += 1
        block.used.append(self.admissions)

    def _inserted(self, block: Block) -> None:
        block.uses = 1

    def _freed(self, block: Block) -> None:
        block.clock = self.clock

    def _victim(self, candidates: list[Block]) -> Block:
        return min(candidates, key=lambda block: self.KEYS[self.policy](block, self.params))

    def _evicted(self, block: Block) -> None:
        if self.policy == "gdsf":
            self.clock = max(self.clock, self.KEYS["gdsf"](block, self.params)[0])

    # ---- as vLLM's
    # ------------------------------------------------------------------------------------------------------
    def available(self) -> int:
        return self.unused + sum(block.refs == 0 for block in self.cached.values())

    def lookup(self, keys: Iterable[int]) -> list[Block]:
        hits: list[Block] = []
        for key in keys:
            if key not in self.cached:
                break
            hits.append(self.cached[key])
        return hits

    def touch(self, blocks: list[Block]) -> None:
        """Once for every admission, also one that hits nothing."""
        self.admissions += 1
        for block in blocks:
            block.refs += 1
            self._hit(block)

    def allocate(self, n: int) -> list[Block]:
        for _ in range(n):
            if self.unused == 0:
                self._evict()
            self.unused -= 1
            self.allocated += 1
        return [Block(refs=1) for _ in range(n)]

    def _evict(self) -> None:
        victim = self._victim([b for b in self.cached.values() if b.refs == 0 and b.children == 0])
        assert victim.key is not None
        self._evicted(victim)
        del self.cached[victim.key]
        if victim.parent:
            victim.parent.children -= 1
        self.unused += 1
        self.evicted += 1

    def enter(self, blocks: list[Block], i: int, key: int, admission: int) -> None:
        block = blocks[i]
        if key in self.cached:
            block.twin = self.cached[key]
            block.twin.refs += 1
            return
        block.key, block.inserted, block.used, block.depth = key, admission, [admission], i
        self._inserted(block)
        if i > 0:
            block.parent = blocks[i - 1].twin or blocks[i - 1]
            block.parent.children += 1
        self.cached[key] = block

    def release(self, blocks: list[Block]) -> None:
        self.releases += 1
        for block in reversed(blocks):
            cached = block.twin or block
            cached.refs -= 1
            if cached.refs == 0:
                cached.release = self.releases
                if cached.key is not None:
                    self._freed(cached)
            if block.key is None:
                self.unused += 1

    def check(self, held: list[list[Block]], total: int) -> None:
        private = sum(block.key is None for blocks in held for block in blocks)
        assert self.unused >= 0
        assert self.unused + len(self.cached) + private == total
        for block in self.cached.values():
            assert block.parent is None or (block.parent.key in self.cached and block.parent.refs >= (block.refs > 0))


def make_pool(num_blocks: int, policy: str) -> Any:
    return FreeListPool(num_blocks) if policy == "lru" else RankedPool(num_blocks, policy)
