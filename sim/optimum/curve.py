"""The optimum of a cache-only replay at several capacities, as rows beside those of
`sim.kvcache.replay.hit_rate_curve`.

The capacity rule of the flat replay's own policies is bypass: after a request anything may be evicted. Under the
counting rule leaf-first it is must-insert, for the engine holds what it serves, answer included. There a request whose
last block is never hit may want a block less than one below it, and the best choice for hits could leave a hole: then
the row is a bound, and its gap is what the clairvoyant, a leaf-first policy that knows the future, falls short of it.
Every row states counting rule, block size, capacity rule, objective and proved gap; a share of an optimum means nothing
without them.

    >>> optimum_curve(workload, [10_000, None], "full-blocks", 16)[0]["hit_ratio_tokens"]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.kvcache.leaf_first import CLAIRVOYANT
from sim.kvcache.replay import replay
from sim.kvcache.rows import LEAF_FIRST, hit_row
from sim.kvcache.visits import node_visits
from sim.optimum.check import check, feasible
from sim.optimum.hits import most_hits
from sim.optimum.items import CAPACITY_RULES, Items, must_insert, touches, touches_in_order
from sim.optimum.prices import Work
from sim.optimum.work import block_work, most_work
from workloads.columns import Workload
from workloads.errors import InputError
from workloads.transform import order_taken, picked

HITS, WORK = "hit tokens", "prefill work"


def optimum_curve(
    workload: Workload,
    capacities: Iterable[int | None],
    rule: str,
    block_size: int | None = None,
    capacity_rule: str = "bypass",
    depth_weight: float | None = None,
    order: str = "time",
) -> list[dict[str, Any]]:
    """One row per capacity (None = unlimited) for the most hits, and with a depth weight another for the most prefill
    work.

    rule: of sim.kvcache.replay; leaf-first has the capacity rule must-insert, whatever capacity_rule says. block_size:
    tokens; None takes that of the trace's own hashes. depth_weight: extra cost of a token per 512 tokens before it, as
    a share of the first one's (`work.block_work`). order: as in the replay. Raises InputError."""
    capacities = list(capacities)
    taken, how = order_taken(workload, order)
    workload = picked(workload, taken)
    block_size = _checked(workload, capacities, block_size, capacity_rule, depth_weight)
    leaf_first = rule == LEAF_FIRST
    used = None if leaf_first else touches(workload, rule, block_size)
    total = int((workload.prompt_tokens // block_size).sum() if used is None else used.length.sum())
    rows = []
    for capacity in capacities:
        served = np.arange(len(workload))
        if used is None:
            served, (items, slots) = _one_at_a_time(workload, capacity, block_size)
        else:
            items, slots = CAPACITY_RULES[capacity_rule](used, total + 1 if capacity is None else capacity)
        best = most_hits(items, slots)
        if check(items, slots, best.kept, best.checkpoints) != best.hits:
            raise RuntimeError(f"capacity {capacity}: the certificate does not prove {best.hits} hits")
        row = _Row(
            workload,
            rule,
            block_size,
            total,
            capacity,
            "must-insert" if leaf_first else capacity_rule,
            depth_weight,
            served,
            how,
        )
        gap = _leaf_gap(workload, capacity, block_size, best.hits) if leaf_first else 0.0
        rows.append(row.of(HITS, best.depth, gap, len(best.checkpoints)))
        if depth_weight is not None:
            rows.append(_work_row(row, items, slots, block_work(block_size, depth_weight), best.checkpoints))
    return rows


def _one_at_a_time(
    workload: Workload, capacity: int | None, block_size: int
) -> tuple[np.ndarray, tuple[Items, np.ndarray]]:
    """Rows that the leaf-first replay serves with the cache, and what it could keep between them: all that a request
    computes is held while it is served, and what is longer than the cache is served without it."""
    computed = workload.prompt_tokens + workload.output_tokens - 1
    blocks = int((-(-computed // block_size)).sum()) if capacity is None else capacity
    rows = np.flatnonzero(computed <= blocks * block_size)
    visits = node_visits(workload, rows, computed[rows] // block_size, block_size)
    used = touches_in_order(
        [visits], -(-computed[rows] // block_size), (workload.prompt_tokens[rows] - 1) // block_size
    )
    return rows, must_insert(used, blocks)


def _leaf_gap(workload: Workload, capacity: int | None, block_size: int, bound: int) -> float:
    """Share of the bound that is not shown to be reachable by taking leaves only."""
    if not bound:
        return 0.0
    return 1 - replay(workload, CLAIRVOYANT, capacity, LEAF_FIRST, block_size, order="file").hit_blocks / bound


def _checked(
    workload: Workload,
    capacities: list[int | None],
    block_size: int | None,
    capacity_rule: str,
    depth_weight: float | None,
) -> int:
    """The block size, or one clear line about what is wrong."""
    if capacity_rule not in CAPACITY_RULES:
        raise InputError(f"capacity rule {capacity_rule!r}, expected one of {', '.join(CAPACITY_RULES)}")
    for capacity in capacities:
        if capacity is not None and capacity < 1:
            raise InputError(f"capacity_blocks = {capacity}, expected at least 1, or None for an unlimited cache")
    if depth_weight is not None and not 0 <= depth_weight < float("inf"):
        raise InputError(f"depth weight {depth_weight}, expected a number of at least 0")
    size = workload.hash_block_tokens if block_size is None else block_size
    if size is None or size < 1:
        raise InputError(f"block_size = {size}, expected a number of tokens, at least 1")
    return size


def _work_row(row: _Row, items: Items, slots: np.ndarray, work: Work, checkpoints: np.ndarray) -> dict[str, Any]:
    result = most_work(items, slots, work, checkpoints)
    feasible(items, slots, result.kept)
    found = row.of(WORK, items.depth(result.kept), result.gap, int((result.prices > 0).sum()))
    return found | {"work_ratio": result.bound / row.prompt_work()}


@dataclass(frozen=True)
class _Row:
    """What the rows of one capacity have in common."""

    workload: Workload
    rule: str
    block_size: int
    total_blocks: int
    capacity: int | None
    capacity_rule: str
    depth_weight: float | None
    served: np.ndarray  #: int64, the workload's row of every request of the items
    order: str

    def prompt_work(self) -> float:
        return prompt_work(self.workload, self.block_size, self.depth_weight or 0.0)

    def of(self, objective: str, depth: np.ndarray, gap: float, checkpoints: int) -> dict[str, Any]:
        size, prompt, found = self.block_size, self.workload.prompt_tokens, depth
        depth = np.zeros(len(self.workload), np.int64)
        depth[self.served] = found
        blocks, tokens = int(depth.sum()), int(np.minimum(depth * size, prompt).sum())
        work = None if self.depth_weight is None else work_ratio(self.workload, depth, size, self.depth_weight)
        row = hit_row(
            self.workload, "optimal", self.rule, size, self.capacity, blocks, self.total_blocks, tokens, self.order
        )
        return row | {
            "capacity_rule": self.capacity_rule,
            "objective": objective,
            "proved_gap": gap,
            "checkpoints": checkpoints,
            "depth_weight": self.depth_weight,
            "work_ratio": work,
        }


def prompt_work(workload: Workload, block_size: int, depth_weight: float) -> float:
    """Prefill work of all prompts without a cache, in units of a block at depth 0."""
    blocks = workload.prompt_tokens / block_size
    return float(block_work(block_size, depth_weight).of(np.zeros_like(blocks), blocks).sum())


def work_ratio(workload: Workload, depth: np.ndarray, block_size: int, depth_weight: float) -> float:
    """Share of all prefill work that hits of `depth` blocks (int64 [n]) save."""
    saved = block_work(block_size, depth_weight).of(np.zeros_like(depth), depth).sum()
    return float(saved) / prompt_work(workload, block_size, depth_weight)


def shares(row: dict[str, Any], optima: Iterable[dict[str, Any]]) -> list[str]:
    """What a policy's row is of the optima of the same capacity, rule and block size; of prefill work when it has a
    work_ratio.

    Under must-insert only LRU's in a flat replay: its other policies may drop blocks of the request they have just
    served."""
    found = []
    for best in optima:
        if any(best[key] != row[key] for key in ("rule", "block_size", "capacity_blocks")):
            continue
        if best["capacity_rule"] != "bypass" and row["policy"] != "lru" and row["rule"] != LEAF_FIRST:
            continue
        if best["objective"] == HITS:
            part, whole, what = row["hit_tokens"], best["hit_tokens"], HITS
        else:
            part, whole, what = (
                row["work_ratio"],
                best["work_ratio"],
                f"{WORK}, depth weight {best['depth_weight']:.4g}",
            )
        share = f"{100 * part / whole:.1f} %" if whole else "nothing could be hit:"
        found.append(
            f"{share} of the optimum ({what}, {best['capacity_rule']}, proved gap {100 * best['proved_gap']:.2f} %)"
        )
    return found
