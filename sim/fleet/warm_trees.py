"""Caches with a history besides their release order, as documents: a policy's states and memory, SGLang's radix tree.

The one idea: a document holds what the code reads again. Blocks come back node by node, parents first, and whatever
else a policy keeps in its attributes comes back as the value it was; heaps are made anew, since no two leaves have
equal keys.

    >>> kept = document(cache)
    >>> fill(fresh_cache, kept)
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from sim.kvcache.clairvoyant import ClairvoyantCache
from sim.kvcache.policies.base import Policy, Run
from sim.kvcache.policies.ghosts import Ghosts
from sim.kvcache.ranked import Node, RankedCache
from sim.sglang.node import Node as RadixNode
from sim.sglang.radix import RadixCache
from sim.sglang.ranked import RankedRadixCache


def document(cache: Any) -> dict[str, Any]:
    """What a replica's cache holds and knows, JSON-able. Raises ValueError for a cache that cannot be kept."""
    if isinstance(cache, RadixCache):
        kept = _radix(cache)
    elif isinstance(cache, RankedCache) and not isinstance(cache, ClairvoyantCache):
        kept = _ranked(cache)
    else:
        raise ValueError(
            "a run without prefix caching, or whose policy is clairvoyant, has no cache that can be saved or begun with"
        )
    if isinstance(cache, RankedCache | RankedRadixCache):
        kept |= {
            "policy": _policy(cache.policy),
            "releases": _next(cache, "_releases"),
            "admissions": _next(cache, "_admissions"),
        }
    return kept


def fill(cache: Any, kept: dict[str, Any]) -> None:
    """Put a document into a cache that nothing has used yet."""
    if isinstance(cache, RankedCache | RankedRadixCache):
        rng = decode(kept["policy"].pop("rng"))
        cache.policy.world.rng.setstate(rng)
        vars(cache.policy).update({name: decode(value) for name, value in kept["policy"].items()})
        cache._releases, cache._admissions = count(kept["releases"]), count(kept["admissions"])
    if isinstance(cache, RadixCache):
        _fill_radix(cache, kept)
    else:
        _fill_ranked(cache, kept)
    if cache.blank < 0:
        raise ValueError(f"the saved cache holds {cache.idle} blocks, this one {cache.total}")


# -- the block cache ---------------------------------------------------------------------------------------------------


def _ranked(cache: RankedCache) -> dict[str, Any]:
    nodes = sorted((node for node in cache.nodes.values() if node.runs), key=lambda node: node.lo)  # parents first
    return {
        "nodes": [
            [n.id, n.lo, n.parent.id if n.parent else -1, [[r.lo, r.hi, r.released, encode(r.state)] for r in n.runs]]
            for n in nodes
        ]
    }


def _fill_ranked(cache: RankedCache, kept: dict[str, Any]) -> None:
    for node_id, lo, above, runs in kept["nodes"]:
        parent = cache.nodes.get(above)
        node = cache.nodes[node_id] = Node(node_id, lo, parent)
        node.runs = [Run(node_id, a, b, 0, released, decode(state)) for a, b, released, state in runs]
        if parent is not None:
            parent.live_children += 1
        cache.idle += runs[-1][1] - runs[0][0]
    cache.blank = cache.total - cache.idle
    for node in cache.nodes.values():
        cache._offer(node)


# -- SGLang's tree -----------------------------------------------------------------------------------------------------

FIELDS = ("lo", "hi", "end", "key", "access", "creation", "priority", "hits", "history", "released")


def _radix(cache: RadixCache) -> dict[str, Any]:
    rows: list[list[Any]] = []
    todo = [(child, -1) for child in reversed(cache.root.children.values())]
    while todo:
        node, above = todo.pop()
        todo += [(child, len(rows)) for child in reversed(node.children.values())]
        shared: int = node.parent.end + 1  # type: ignore[union-attr]
        rows.append(
            [above, *(getattr(node, name) for name in FIELDS), encode(node.state), node.path[shared : node.end + 1]]
        )
    return {"nodes": rows, "clock": cache.clock, "root": [cache.root.access, cache.root.history]}


def _fill_radix(cache: RadixCache, kept: dict[str, Any]) -> None:
    cache.clock = kept["clock"]
    cache.root.access, cache.root.history = kept["root"]
    made: list[RadixNode] = []
    for above, *values, state, path in kept["nodes"]:
        parent = cache.root if above < 0 else made[above]
        known = dict(zip(FIELDS, values, strict=True))
        whole = [*parent.path[: parent.end + 1], *map(tuple, path)]
        node = RadixNode(parent, whole, known["end"], known["lo"], known["hi"], known["key"], 0, 0)
        for name, value in known.items():
            setattr(node, name, value)
        node.state = decode(state)
        parent.children[node.key] = node
        made.append(node)
        cache.idle += node.hi - node.lo
    cache.blank = cache.total - cache.idle
    for node in made:
        if not node.children:
            cache._push(node)


# -- a policy's own memory ---------------------------------------------------------------------------------------------


def _policy(policy: Policy) -> dict[str, Any]:
    kept: dict[str, Any] = {"rng": encode(policy.world.rng.getstate())}
    for name, value in vars(policy).items():
        if name == "world" or isinstance(value, memoryview):  # columns of the workload
            continue
        try:
            kept[name] = encode(value)
        except TypeError as error:
            raise ValueError(
                f"policy {type(policy).__name__} keeps {error} in {name}, which cannot be saved; expected numbers,"
                " text, lists, tuples and dicts"
            ) from None
    return kept


def encode(value: Any) -> Any:
    """A value of plain types as JSON that tells tuples, dicts and arrays apart. Raises TypeError."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [encode(item) for item in value]
    parts: dict[type, tuple[str, Callable[[Any], Any]]] = {
        tuple: ("tuple", list),
        dict: ("dict", lambda d: [[key, inner] for key, inner in d.items()]),
        np.ndarray: (str(getattr(value, "dtype", "")), lambda a: a.tolist()),
        Ghosts: ("ghosts", lambda g: [list(piece) for piece in g._queue if piece[1]]),
    }
    if type(value) not in parts:
        raise TypeError(type(value).__name__)
    kind, as_list = parts[type(value)]
    return {kind: encode(as_list(value))}


def decode(value: Any) -> Any:
    """What `encode` made it from."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    items = decode(items)
    if kind == "tuple":
        return tuple(items)
    if kind == "dict":
        return dict(items)
    if kind != "ghosts":
        return np.array(items, dtype=kind)
    ghosts = Ghosts()
    for node, intervals in items:
        piece = (node, intervals)
        ghosts._queue.append(piece)
        ghosts._by_node.setdefault(node, []).append(piece)
        ghosts._pieces += 1
        ghosts.blocks += sum(hi - lo for lo, hi in intervals)
    return ghosts


def _next(cache: Any, name: str) -> int:
    """Where a counter goes on."""
    number = next(getattr(cache, name))
    setattr(cache, name, count(number))
    return number
