"""SGLang's radix cache for tests.reference_sglang: token lists on edges, loops over tokens, a fresh heap for every
eviction.

Every walk and every new node take ticks of one logical clock, as the recorded trees do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Namespace = tuple[str | None, str | None]


class Node:
    """An edge and its lower end: `key` holds the tokens of the edge. A clock tick each for access and creation."""

    def __init__(self, clock: Clock, parent: Node | None, key: list[int], priority: int):
        self.access = clock.tick()
        self.creation = clock.tick()
        self.parent = parent
        self.key = key
        self.priority = priority
        self.hits = 0
        self.lock = 0
        self.children: dict[tuple, Node] = {}


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def tick(self) -> int:
        self.now += 1
        return self.now


KEYS: dict[str, Callable[[Node], tuple]] = {
    "lru": lambda n: (n.access,),
    "lfu": lambda n: (n.hits, n.access),
    "slru": lambda n: (n.hits >= 2, n.access),
    "fifo": lambda n: (n.creation,),
    "filo": lambda n: (-n.creation,),
    "mru": lambda n: (-n.access,),
    "priority": lambda n: (n.priority, n.access),
}


class Radix:
    def __init__(self, page: int, policy: str, clock: Clock):
        self.page = page
        self.rank = KEYS[policy]
        self.clock = clock
        self.root = Node(clock, None, [], 0)
        self.root.lock = 1
        self.evictable = self.protected = self.evicted = 0

    def child(self, node: Node, space: Namespace, tokens: list[int]) -> Node | None:
        return node.children.get((space, tuple(tokens[: self.page])))

    def common(self, a: list[int], b: list[int]) -> int:
        n = min(len(a), len(b))
        if a[:n] != b[:n]:
            n = next(i for i in range(n) if a[i] != b[i])
        return n // self.page * self.page

    def match(self, space: Namespace, tokens: list[int]) -> tuple[Node, int]:
        """The longest cached start, as (node, tokens); touches every visited node and splits a partly matched one."""
        tokens = tokens[: len(tokens) // self.page * self.page]
        if not tokens:
            return self.root, 0
        now = self.clock.tick()
        node, done = self.root, 0
        node.access = now
        while done < len(tokens):
            child = self.child(node, space, tokens[done:])
            if child is None:
                break
            child.access = now
            shared = self.common(child.key, tokens[done:])
            done += shared
            if shared < len(child.key):
                return self.split(space, child, shared), done
            node = child
        return node, done

    def insert(self, space: Namespace, tokens: list[int], priority: int, inserted: int) -> int:
        """Put the tokens (whole pages) in; how many of them were there already. `inserted`: those this request put in
        before."""
        now = self.clock.tick()
        node, done = self.root, 0
        node.access = now
        while done < len(tokens):
            child = self.child(node, space, tokens[done:])
            if child is None:
                break
            child.access = now
            shared = self.common(child.key, tokens[done:])
            done += shared
            if shared < len(child.key):
                child = self.split(space, child, shared)
            child.priority = max(child.priority, priority)
            if done > inserted:
                child.hits += 1
            node = child
        if done < len(tokens):
            leaf = Node(self.clock, node, tokens[done:], priority)
            leaf.hits = 1
            node.children[(space, tuple(tokens[done : done + self.page]))] = leaf
            self.evictable += len(leaf.key)
        return done

    def split(self, space: Namespace, node: Node, at: int) -> Node:
        """Cut an edge; the upper part is a new node that inherits all but the times, `node` stays the lower part."""
        parent = node.parent
        upper = Node(self.clock, parent, node.key[:at], node.priority)
        upper.hits, upper.lock = node.hits, node.lock
        parent.children[(space, tuple(upper.key[: self.page]))] = upper
        node.key = node.key[at:]
        node.parent = upper
        upper.children[(space, tuple(node.key[: self.page]))] = node
        return upper

    def lock(self, node: Node) -> None:
        while node is not self.root:
            if node.lock == 0:
                self.evictable -= len(node.key)
                self.protected += len(node.key)
            node.lock += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        while node is not self.root:
            node.lock -= 1
            if node.lock == 0:
                self.evictable += len(node.key)
                self.protected -= len(node.key)
            node = node.parent

    def evict(self, n: int) -> int:
        """Drop whole leaves until at least n tokens are free or nothing is left to drop; the tokens dropped."""
        heap = [(self.rank(node), node.creation, node) for node in self.nodes() if not node.children and not node.lock]
        heapq.heapify(heap)
        freed = 0
        while heap and freed < n:
            *_, node = heapq.heappop(heap)
            freed += len(node.key)
            parent = node.parent
            parent.children = {key: child for key, child in parent.children.items() if child is not node}
            if not parent.children and not parent.lock:
                heapq.heappush(heap, (self.rank(parent), parent.creation, parent))
        self.evictable -= freed
        self.evicted += freed
        return freed

    def nodes(self) -> list[Node]:
        found, todo = [], list(self.root.children.values())
        while todo:
            node = todo.pop()
            found.append(node)
            todo += node.children.values()
        return found

    def check(self) -> None:
        nodes = self.nodes()
        assert self.evictable == sum(len(n.key) for n in nodes if not n.lock)
        assert self.protected == sum(len(n.key) for n in nodes if n.lock)
        assert all(n.key and len(n.key) % self.page == 0 for n in nodes)
        assert all(child.lock <= n.lock for n in nodes for child in n.children.values())
