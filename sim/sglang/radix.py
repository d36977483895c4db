"""SGLang's radix cache on the static prefix tree: its own small tree, whose edges are intervals of pages on a request's
path.

The one idea: no token is looked at. A page is known by the static node that owns its last token (sim.kvcache.chains),
so two requests share a page exactly when their paths agree there, children are told apart by the static node of their
first page, and an edge costs a few comparisons however long it is. What SGLang's own boundaries are (chunk ends,
splits, prompt and output) decides what one eviction takes, so they are kept as they are.

Memory is three counts of pages: `blank` (free), `idle` (cached, not locked: may be evicted) and the rest, which is
locked or private to a running request. All positions are in pages.

    cache.match(request.path, limit)      touch, split, and how far the cache reaches
    cache.store(request, whole)           insert what is computed and lock it: SGLang's checkpoint
    cache.make_room(n)                    evict whole leaves until n pages are free
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from sim.kvcache.ceilings import Seen
from sim.kvcache.chains import Path
from sim.sglang.node import POLICIES, Node, RadixRequest


class RadixCache:
    """The tree, its eviction heap and the three counts of memory."""

    def __init__(
        self,
        total_pages: int,
        policy: str,
        n_shared: int,
        fleet_seen: dict[int, int],
        caching: bool = True,
        clock: int = 0,
        rank: Callable[[Node], Any] | None = None,
    ) -> None:
        """rank: the key of a leaf, where the policy's is not in `POLICIES`."""
        self.total = self.blank = total_pages
        self.idle = self.evicted = self.taken = 0
        self.now_s, self.turn = 0.0, -1  # written by the replica; SGLang's own policies know only the logical time
        self.caching = caching
        self.clock = clock  # SGLang's logical time
        self.root = self._new_root()
        self._rank = rank or POLICIES[policy]
        self._falls = policy in ("mru", "tlru")  # tlru: a split leaves a leaf that begins deeper
        self._heap: list[tuple[Any, int, Node]] = []
        self._pushed = 0
        self.seen = Seen(n_shared, fleet_seen)

    def _new_root(self) -> Node:
        root = Node(None, [], -1, 0, 0, -1, self.clock, 0)
        self.clock += 2
        root.lock = 1
        return root

    # -- walking ----------------------------------------------------------------------------------------------------
    def match(self, path: Path, limit: int) -> Node:
        """The node up to whose `hi` the first `limit` pages of the path are cached. Touches all it visits, splits the
        last."""
        node = self.root
        if limit <= 0:
            return node
        self.clock = now = self.clock + 1
        node.access = now
        at = i = 0
        while at < limit:
            while path[i][1] <= at:
                i += 1
            child = node.children.get(path[i][0])
            if child is None:
                break
            child.access = now
            at = _common(child, path, i, limit)
            if at < child.hi:
                if self._falls:
                    self._touched(child)
                return self._split(child, at)
            node, i = child, child.end
        if self._falls:
            self._touched(node)
        return node

    def insert(self, path: Path, whole: int, priority: int, inserted: int) -> tuple[int, Node]:
        """Put the first `whole` pages of the path in; (pages that were there, node of the last page).

        `inserted`: pages this request put in before; a node beyond them counts one more hit.
        """
        self.clock += 1
        node = self.root
        at = i = 0
        while at < whole:
            while path[i][1] <= at:
                i += 1
            child = node.children.get(path[i][0])
            if child is None:
                return at, self._add_leaf(node, path, i, at, whole, priority)
            at = _common(child, path, i, whole)
            if at < child.hi:
                child.access = self.clock
                if self._falls:
                    self._touched(child)
                child = self._split(child, at)
            if child.priority < priority:
                child.priority = priority
            if at > inserted:
                child.hits += 1
            if child.history < whole:
                child.history = whole
            node, i = child, child.end
        return at, node

    def _add_leaf(self, parent: Node, path: Path, i: int, lo: int, hi: int, priority: int) -> Node:
        end = i
        while path[end][1] < hi:
            end += 1
        leaf = Node(parent, path, end, lo, hi, path[i][0], self.clock, priority)
        self.clock += 2
        leaf.hits = 1
        parent.children[leaf.key] = leaf
        self.idle += hi - lo
        self.remember(path, i, hi)
        return leaf

    def _split(self, node: Node, at: int) -> Node:
        """Cut an edge; the upper part is a new node that inherits all but the times, `node` stays the lower part."""
        path, k = node.path, node.end
        while k and path[k - 1][1] > at:
            k -= 1
        end = k - 1 if k and path[k - 1][1] == at else k
        parent: Node = node.parent  # type: ignore[assignment]
        upper = Node(parent, path, end, node.lo, at, node.key, self.clock, node.priority)
        self.clock += 2
        upper.hits, upper.lock, upper.history = node.hits, node.lock, node.history
        upper.state, upper.released = node.state, node.released
        parent.children[node.key] = upper
        node.parent, node.lo, node.key = upper, at, path[k][0]
        upper.children[node.key] = node
        if self._falls:
            self._touched(node)
        return upper

    # -- a request's share ------------------------------------------------------------------------------------------
    def lock(self, node: Node, upto: Node | None = None) -> None:
        """Lock the path of `node`, below `upto` (which is locked already)."""
        stop = upto or self.root
        while node is not stop:
            if not node.lock:
                self.idle -= node.hi - node.lo
            node.lock += 1
            node = node.parent  # type: ignore[assignment]

    def unlock(self, node: Node) -> None:
        root = self.root
        if node.lock == 1 and not node.children and node is not root and (self._falls or not node.queued):
            self._push(node)
        while node is not root:
            node.lock -= 1
            if not node.lock:
                self.idle += node.hi - node.lo
            node = node.parent  # type: ignore[assignment]

    def admit(self, r: RadixRequest) -> None:
        """A request is admitted and its hit, `r.node`, is locked."""

    def release(self, r: RadixRequest) -> None:
        """A request lets go of its path."""
        if r.node is not None:
            self.unlock(r.node)

    def store(self, r: RadixRequest, whole: int, prompt: int) -> None:
        """Insert the request's first `whole` pages, its `prompt` ones with a higher priority, and lock them.

        Pages that another request had put there first are given back. One walk stands for SGLang's insert, insert,
        match and lock: every node of the path ends with the time of the match."""
        if not self.caching:
            self.remember(r.path, 0, whole)
            return
        there, node = self.insert(r.path, whole, r.priority, r.inserted)
        r.inserted = whole
        if whole > prompt:
            node = self._raise_prompt(node, prompt, r.priority + 1)
        self.blank += there - r.held
        self.lock(node, r.node)
        r.node, r.held = node, whole
        if whole:
            self.clock += 1
            self._touch_path(node)

    def _raise_prompt(self, node: Node, prompt: int, priority: int) -> Node:
        """SGLang's insertion of the prompt alone: it splits the output off and outranks it."""
        self.clock += 1
        deepest = node
        while node.lo >= prompt and node is not self.root:
            node = node.parent  # type: ignore[assignment]
        if node.hi > prompt:
            node = self._split(node, prompt)
        while node is not self.root:
            if node.priority < priority:
                node.priority = priority
            node = node.parent  # type: ignore[assignment]
        return deepest

    def _touch_path(self, node: Node | None) -> None:
        now = self.clock
        while node is not None:
            node.access = now
            node = node.parent

    def _touched(self, node: Node) -> None:
        if not node.lock and not node.children:
            self._push(node)

    # -- eviction ---------------------------------------------------------------------------------------------------
    def _push(self, node: Node) -> None:
        self._pushed += 1
        node.queued = True
        heappush(self._heap, (self._rank(node), self._pushed, node))

    def make_room(self, pages: int) -> None:
        """Evict whole leaves, smallest key first, until `pages` are free or nothing unlocked is left."""
        if self.blank >= pages:
            return
        heap, rank, falls = self._heap, self._rank, self._falls
        while self.blank < pages and heap:
            key, _, node = heappop(heap)
            if node.parent is None or node.lock or node.children:
                node.queued = False
                continue
            if rank(node) != key:
                if not falls:
                    self._push(node)
                continue
            self._drop(node)

    def _drop(self, leaf: Node) -> None:
        size = leaf.hi - leaf.lo
        self.blank += size
        self.idle -= size
        self.evicted += size
        parent: Node = leaf.parent  # type: ignore[assignment]
        leaf.parent = None
        del parent.children[leaf.key]
        if not parent.children and not parent.lock and (self._falls or not parent.queued):
            self._push(parent)

    def take(self, pages: int) -> None:
        """Pages for a request; the caller has made room."""
        self.taken += pages
        self.blank -= pages
        if self.blank < 0:
            raise RuntimeError(f"out of KV memory by {-self.blank} pages")

    # -- ceilings ---------------------------------------------------------------------------------------------------
    def remember(self, path: Path, i: int, hi: int) -> None:
        """The path's pages up to `hi`, from its i-th static node on, were here once."""
        for k in range(i, len(path)):
            node_id, end = path[k]
            self.seen.enter(node_id, end if end < hi else hi)
            if end >= hi:
                return

    def ceilings(self, path: Path, limit: int) -> tuple[int, int]:
        """Pages hit had this replica, and had all replicas as one cache, never evicted anything."""
        return self.seen.ceilings(path, 0, limit)

    # -- checks -----------------------------------------------------------------------------------------------------
    def nodes(self) -> list[Node]:
        """All but the root, parents first."""
        found: list[Node] = []
        todo = [self.root]
        while todo:
            node = todo.pop()
            found.append(node)
            todo += node.children.values()
        return found[1:]

    def rows(self, page: int) -> list[list[int]]:
        """All but the root, as recorded cases list them: parent's row, tokens, hits, priority, access, creation,
        lock."""
        rows: list[list[int]] = []
        todo = [(self.root, -1)]
        while todo:
            node, parent = todo.pop()
            todo += [(child, len(rows)) for child in node.children.values()]
            rows.append(
                [parent, (node.hi - node.lo) * page, node.hits, node.priority, node.access, node.creation, node.lock]
            )
        return rows[1:]

    def check(self, private: int) -> None:
        """Raise AssertionError on an impossible state; `private`: pages that running requests hold beyond the tree."""
        nodes = self.nodes()
        idle = sum(n.hi - n.lo for n in nodes if not n.lock)
        locked = sum(n.hi - n.lo for n in nodes if n.lock)
        if idle != self.idle or self.blank + idle + locked + private != self.total:
            raise AssertionError(
                f"pages: {self.blank} blank, {idle} idle (counted {self.idle}), {locked} locked, {private} private of"
                f" {self.total}"
            )
        for n in nodes:
            if (
                n.parent is None
                or n.lo != n.parent.hi
                or n.hi <= n.lo
                or n.parent.children.get(n.key) is not n
                or (n.lock > n.parent.lock and n.parent is not self.root)
            ):
                raise AssertionError(f"radix node [{n.lo}, {n.hi}) is out of place")
            if not n.lock and not n.children and not n.queued and not self._falls:
                raise AssertionError(f"unlocked leaf [{n.lo}, {n.hi}) is not queued for eviction")


def _common(node: Node, path: Path, i: int, limit: int) -> int:
    """Up to which page, at most `limit`, the edge of `node` and a path agree that agree at index i."""
    own, end = node.path, node.end
    if own is path or (end < len(path) and own[end][0] == path[end][0]):
        return node.hi if node.hi < limit else limit
    last = len(path) - 1
    while i < last and own[i + 1][0] == path[i + 1][0]:  # they part before `end`
        i += 1
    at = path[i][1]
    return at if at < limit else limit
