"""What a cache holds and knows once nothing runs, and a fresh cache begun with it.

The one idea: vLLM's own cache is a list of runs in release order, so its state is five integer columns; a cache that
keeps more of the past is a document of what the code reads again. Blocks come back node by node, parents first, and
whatever else a policy keeps in its attributes comes back as the value it was; heaps are made anew, since no two leaves
have equal keys.

    >>> kept = save(cache)
    >>> fill(fresh_cache, kept)
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np

from sim.kvcache import release_order
from sim.kvcache.base import BlockCache
from sim.kvcache.policies.base import Policy, Run
from sim.kvcache.policies.ghosts import Ghosts
from sim.kvcache.ranked import Node, RankedCache
from sim.kvcache.release_order import ReleaseOrderCache

NO_RUNS = np.empty((0, 5), np.int64)
NO_RUNS.flags.writeable = False


class Saved(NamedTuple):
    """Of one replica."""

    seen: dict[int, int]  #: deepest block ever entered of each node
    runs: np.ndarray = NO_RUNS  #: int64 [n, 5]: node, first block, end block, 1 for a younger copy, place in the queue
    document: dict[str, Any] | None = None  #: JSON-able, of a cache that is no release order


NOT_KEPT = "a run without prefix caching, or whose policy is clairvoyant, has no cache that can be saved or begun with"


class Ranks(Protocol):
    """A cache whose evictions another policy ranks: what it knows besides its blocks."""

    policy: Policy
    _releases: count[int]
    _admissions: count[int]


def save(cache: BlockCache) -> Saved:
    """Raises ValueError for a cache that cannot be kept."""
    if type(cache) is ReleaseOrderCache:
        return Saved(cache.seen.here, runs=_rows(cache))
    if type(cache) is RankedCache:
        return Saved(cache.seen.here, document=_ranked(cache) | memory(cache))
    raise ValueError(NOT_KEPT)


def fill(cache: BlockCache, kept: Saved) -> None:
    """Put what was saved into a cache that nothing has used yet. Raises ValueError when it does not fit."""
    if type(cache) is ReleaseOrderCache:
        _fill_rows(cache, kept.runs)
    elif type(cache) is RankedCache and kept.document is not None:
        remember(cache, kept.document)
        _fill_ranked(cache, kept.document)
    else:
        raise ValueError(NOT_KEPT)
    cache.seen.here.update(kept.seen)
    cache.blank = blank_beside(cache.idle, cache.total)


def blank_beside(idle: int, total: int) -> int:
    """Blocks of a cache that holds `idle`. Raises ValueError when those are too many."""
    if idle > total:
        raise ValueError(f"the saved cache holds {idle} blocks, this one {total}")
    return total - idle


# -- vLLM's own cache --------------------------------------------------------------------------------------------------


def _rows(cache: ReleaseOrderCache) -> np.ndarray:
    """Runs node by node, copies of a block oldest first, with their places in the queue."""
    place: dict[int, int] = {}
    run = cache._queue.next
    while run is not cache._queue:
        place[id(run)] = len(place)
        run = run.next
    rows = []
    for node in cache.nodes.values():
        for run in [*node.main, *(copy for copies in node.extra.values() for copy in copies)]:
            rows.append((node.id, run.lo, run.hi, int(run.extra), place[id(run)]))
    return np.array(rows, np.int64).reshape(-1, 5)


def _fill_rows(cache: ReleaseOrderCache, rows: np.ndarray) -> None:
    queue: list[tuple[int, release_order.Run]] = []
    for node_id, lo, hi, extra, place in rows.tolist():
        node = cache.nodes.setdefault(node_id, release_order.Node(node_id))
        run = release_order.Run(node, lo, hi, 0, bool(extra))
        if extra:
            node.extra.setdefault(lo, []).append(run)
        else:
            node.main.append(run)
        queue.append((place, run))
    tail = cache._queue
    for _, run in sorted(queue, key=lambda entry: entry[0]):
        tail.next, run.prev = run, tail
        tail = run
    tail.next, cache._queue.prev = cache._queue, tail
    cache.idle = int((rows[:, 2] - rows[:, 1]).sum())


# -- the block cache ---------------------------------------------------------------------------------------------------


def _ranked(cache: RankedCache) -> dict[str, Any]:
    nodes = sorted((node for node in cache.nodes.values() if node.runs), key=lambda node: node.lo)  # parents first
    for node in nodes:
        for i in range(len(node.runs) - 1, -1, -1):
            cache.told(node, i)
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
        node.runs = [Run(node_id, a, b, released, decode(state)) for a, b, released, state in runs]
        if parent is not None:
            parent.live_children += 1
        cache.idle += runs[-1][1] - runs[0][0]
    for node in cache.nodes.values():
        cache._offer(node)


# -- a policy's own memory ---------------------------------------------------------------------------------------------


def memory(cache: Ranks) -> dict[str, Any]:
    """What the cache's policy knows. Raises ValueError when it keeps something of another kind."""
    policy = cache.policy
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
    return {"policy": kept, "releases": _next(cache, "_releases"), "admissions": _next(cache, "_admissions")}


def remember(cache: Ranks, kept: dict[str, Any]) -> None:
    """Give that to the policy of a fresh cache, before its blocks."""
    known = {name: decode(value) for name, value in kept["policy"].items()}
    cache.policy.world.rng.setstate(known.pop("rng"))
    vars(cache.policy).update(known)
    cache._releases, cache._admissions = count(kept["releases"]), count(kept["admissions"])


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
        Ghosts: ("ghosts", lambda g: g.pieces()),
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
    return Ghosts.of(items)


def _next(cache: Any, name: str) -> int:
    """Where a counter goes on."""
    number = next(getattr(cache, name))
    setattr(cache, name, count(number))
    return number
