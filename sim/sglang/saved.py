"""SGLang's radix tree as a document, once nothing runs, and a fresh tree begun with it (sim.kvcache.saved)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.kvcache.saved import blank_beside, decode, encode
from sim.sglang.node import Node

if TYPE_CHECKING:
    from sim.sglang.radix import RadixCache

FIELDS = ("lo", "hi", "end", "key", "access", "creation", "priority", "hits", "history", "released")


def tree(cache: RadixCache) -> dict[str, Any]:
    rows: list[list[Any]] = []
    todo = [(child, -1, 0) for child in reversed(cache.root.children.values())]
    while todo:
        node, above, shared = todo.pop()  # `shared` static nodes of its path are its parent's
        todo += [(child, len(rows), node.end + 1) for child in reversed(node.children.values())]
        rows.append(
            [above, *(getattr(node, name) for name in FIELDS), encode(node.state), node.path[shared : node.end + 1]]
        )
    return {"nodes": rows, "clock": cache.clock, "root": [cache.root.access, cache.root.history]}


def fill(cache: RadixCache, kept: dict[str, Any]) -> None:
    cache.clock = kept["clock"]
    cache.root.access, cache.root.history = kept["root"]
    made: list[Node] = []
    for above, *values, state, path in kept["nodes"]:
        parent = cache.root if above < 0 else made[above]
        known = dict(zip(FIELDS, values, strict=True))
        whole = [*parent.path[: parent.end + 1], *map(tuple, path)]
        node = Node(parent, whole, known["end"], known["lo"], known["hi"], known["key"], 0, 0)
        for name, value in known.items():
            setattr(node, name, value)
        node.state = decode(state)
        parent.children[node.key] = node
        made.append(node)
        cache.idle += node.hi - node.lo
    cache.blank = blank_beside(cache.idle, cache.total)
    for node in made:
        if not node.children:
            cache._push(node)
