"""A node of SGLang's radix tree, the eviction policies that rank its leaves, and a request that stands in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.kvcache.chains import Path
from sim.kvcache.policies.base import expect
from sim.request import Request


class Node:
    """An edge [lo, hi) of pages and its lower end."""

    __slots__ = (
        "access",
        "children",
        "creation",
        "end",
        "entry",
        "hi",
        "history",
        "hits",
        "key",
        "lo",
        "lock",
        "parent",
        "path",
        "priority",
        "queued",
        "released",
        "state",
    )

    def __init__(
        self, parent: Node | None, path: Path, end: int, lo: int, hi: int, key: int, clock: int, priority: int
    ) -> None:
        self.parent = parent  # None: the root, or evicted
        self.path = path  # of a request that went through here
        self.end = end  # index in it of the owner of page hi - 1
        self.lo, self.hi = lo, hi
        self.key = key  # owner of page lo
        self.access = clock + 1
        self.creation = clock + 2
        self.priority = priority
        self.hits = 0  # requests that inserted through it
        self.lock = 0
        self.children: dict[int, Node] = {}
        self.queued = False  # the eviction heap holds an entry of it
        self.history = hi  # pages of the longest insertion through it
        self.state: Any = None  # of a policy that is not SGLang's own (sim.sglang.ranked), as are the next two
        self.released = 0
        self.entry = -1


POLICIES: dict[str, Callable[[Node], Any]] = {
    "lru": lambda n: n.access,
    "lfu": lambda n: (n.hits, n.access),
    "slru": lambda n: (n.hits >= 2, n.access),
    "fifo": lambda n: n.creation,
    "filo": lambda n: -n.creation,
    "mru": lambda n: -n.access,
    "priority": lambda n: (n.priority, n.access),
}
"""cache.policy -> key of a leaf; the smallest goes first. Of these only mru's may fall while a leaf waits for
eviction."""


def tail_optimized(page: int, threshold_tokens: int = 2048, next_prompt_tokens: int = 256) -> Callable[[Node], Any]:
    """T-LRU (Zhang et al., arXiv 2510.15152) as SGLang's unified cache has it: the key of a leaf.

    A branch whose longest insertion was L tokens needs its first L + next_prompt - threshold tokens; a leaf that begins
    beyond those goes before all others, then by last access. Raises ValueError.
    """
    for name, value in (("threshold_tokens", threshold_tokens), ("next_prompt_tokens", next_prompt_tokens)):
        expect(value >= 0, name, value, "0 or more")

    def key(n: Node) -> Any:
        return (n.lo * page < n.history * page + next_prompt_tokens - threshold_tokens, n.access)

    return key


class RadixRequest(Request):
    """A request and where it stands in the radix cache."""

    __slots__ = ("asked", "inserted", "node")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.node: Node | None = None  # deepest node it locks; `held` pages up to there
        self.inserted = 0  # pages it has put in itself
        self.asked = self.output  # output tokens the client allowed: what admission reserves for

    @property
    def longest_step(self) -> int:
        """Decoding: the step count at which it would have all the output it asked for."""
        return self.base + self.prompt + self.asked - 1
