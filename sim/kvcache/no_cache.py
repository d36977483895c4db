"""Prefix caching off: every block becomes blank when its request lets go. Ceilings are still counted."""

from __future__ import annotations

from typing import Any

from sim.kvcache.base import BlockCache, Holder
from sim.kvcache.chains import Path


class Node:
    """Who writes to a tree node; it holds nothing."""

    __slots__ = ("id", "writers")
    hi = 0

    def __init__(self, node_id: int) -> None:
        self.id = node_id
        self.writers: list[Holder] = []


class NoCache(BlockCache):
    """No block is ever hit, and none is idle."""

    def lookup(self, path: Path, limit: int) -> tuple[int, int, list[Any]]:
        return 0, 0, []

    def acquire(self, request: Holder, handles: list[Any]) -> None:
        pass

    def release(self, request: Holder) -> None:
        self.enter_generated(request)
        self.stop_writing(request)
        self.blank += request.held
        request.held = request.entered = request.path_index = 0

    def _place(self, request: Holder, node: Any, lo: int, hi: int) -> None:
        pass

    def _new_node(self, request: Holder, index: int) -> Any:
        node_id = request.path[index][0]
        node = Node(node_id)
        if node_id < self._n_shared:
            self.nodes[node_id] = node
        return node

    def _drop_if_empty(self, node: Any) -> None:
        if not node.writers:
            self.nodes.pop(node.id, None)

    def being_written(self, path: Path) -> bool:
        return False

    def check(self) -> None:
        if self.idle or self.evicted or not 0 <= self.blank <= self.total:
            raise AssertionError("a cache that is off holds idle blocks")
