"""The best any eviction can do on tiny worlds, by trying every state a cache can be in. Slow, and short enough to
believe."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import combinations
from operator import or_

import numpy as np

from workloads.columns import PrefixTree, Workload


def leading(order: list[int], state: int) -> int:
    return next((i for i, block in enumerate(order) if not state >> block & 1), len(order))


def subsets(bits: int, size: int) -> Iterable[int]:
    blocks = [b for b in range(bits.bit_length()) if bits >> b & 1]
    for chosen in combinations(blocks, min(size, len(blocks))):
        yield sum(1 << b for b in chosen)


def closed(state: int, parent: list[int], ever: int) -> bool:
    """A block's parent is resident too (blocks outside `ever` do not matter)."""
    return all(not state >> b & 1 or not parent[b] or state >> parent[b] & 1 for b in range(1, ever.bit_length()))


def best_by_search(
    parent: list[int],
    orders: list[list[int]],
    limits: list[int],
    capacity: int,
    rule: str,
    strict: bool,
    slope: float = 0.0,
) -> float:
    """Most hits over all states: after each request keep any subset (strict: only subsets closed upwards) that fits.
    A hit at depth k is worth 1 + slope k.

    must-insert: the path, cut to the capacity, is resident while it is served, beside what is carried across.
    """
    paths = [sum(1 << b for b in order) for order in orders]
    states = {0: 0.0}
    for t, order in enumerate(orders):
        later = union(paths[t + 1 :])
        following: dict[int, float] = {}
        for state, hits in states.items():
            depth = min(leading(order, state), limits[t])
            gain = hits + depth + slope * depth * (depth - 1) / 2
            for kept in carried(state, order, capacity, rule, later):
                if not strict or closed(kept, parent, later | kept):
                    following[kept] = max(following.get(kept, -1), gain)
        states = following
    return max(states.values())


def carried(state: int, order: list[int], capacity: int, rule: str, later: int) -> Iterable[int]:
    """States after a request; only what is asked for again matters."""
    sizes = range(capacity, -1, -1)
    if rule == "bypass":
        everything = (state | sum(1 << b for b in order)) & later
        return {s for size in sizes for s in subsets(everything, size)}
    own = sum(1 << b for b in order[:capacity])
    room = capacity - min(capacity, len(order))
    crossing = (state & ~sum(1 << b for b in order)) & later
    across = {s for size in range(room + 1) for s in subsets(crossing, size)}
    return {s | o for s in across for size in range(len(order) + 1) for o in subsets(own & later, size)}


def tiny(rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """(parent of every block, deepest block of each request): one block is one node."""
    n_blocks, n_requests = int(rng.integers(3, 8)), int(rng.integers(4, 9))
    parent = [0] * (n_blocks + 1)
    for block in range(2, n_blocks + 1):
        parent[block] = int(rng.integers(max(0, block - 3), block))
    return parent, rng.integers(1, n_blocks + 1, n_requests).tolist()


def order_of(parent: list[int], leaf: int) -> list[int]:
    order = []
    while leaf:
        order.append(leaf)
        leaf = parent[leaf]
    return order[::-1]


def as_workload(parent: list[int], leaves: list[int], b: int, extra: np.ndarray) -> Workload:
    """Blocks of b tokens as nodes; `extra` tokens (< b) after each request's last block are its own."""
    depth = [0] * len(parent)
    for block in range(1, len(parent)):
        depth[block] = depth[parent[block]] + 1
    tree = PrefixTree(
        np.array([-1, *parent[1:]], np.int32), np.array(depth, np.int64) * b, np.zeros(len(parent), np.int16)
    )
    prompt = np.array([depth[leaf] for leaf in leaves], np.int64) * b + extra
    return Workload(
        tree, np.arange(len(leaves), dtype=float), prompt, np.ones(len(leaves), np.int64), np.array(leaves, np.int32)
    )


# ---- pinned: a schedule of acquisitions and releases
# --------------------------------------------------------------------


def union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def best_pinned(
    orders: list[list[int]],
    events: list[tuple[bool, int]],
    in_use: list[int],
    capacity: int,
    strict: list[int] | None = None,
) -> int:
    """Most hits given who holds its path when: events are (is an acquisition, request), in_use the blocks in use before
    each.

    Between two events any subset of the idle cached blocks that fits beside what is in use by the end may be kept
    (strict, the parent of every block: only subsets whose parents are kept or in use).
    """
    paths = [sum(1 << b for b in order) for order in orders]
    states, holders = {0: 0}, []
    for j, (acquires, request) in enumerate(events):
        others = union(paths[holder] for holder in holders if holder != request)
        (holders.append if acquires else holders.remove)(request)
        held = union(paths[holder] for holder in holders)
        room = capacity - in_use[j + 1] if j + 1 < len(events) else 0
        later = union(paths[other] for again, other in events[j + 1 :] if again)
        following: dict[int, int] = {}
        for state, hits in states.items():
            gain = hits + (leading(orders[request], state | others) if acquires else 0)
            idle = (state | paths[request]) & ~held & later
            for size in range(room + 1):
                for kept in subsets(idle, size):
                    if strict is None or closed(kept | held, strict, kept | held | later):
                        following[kept] = max(following.get(kept, -1), gain)
        states = following
    return max(states.values())
