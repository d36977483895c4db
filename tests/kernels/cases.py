"""Which kernel cases the tests run: every combination, or a pairwise choice of them.

    KVCAST_KERNELS=all python -m pytest tests/kernels        # every combination; without it, the pairwise choice

Pairwise: every value of a dimension meets every value of every other dimension in at least one chosen case.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from kernels.configs import BLOCK_SIZES, CANDIDATES, HEAD_DIMS, Config
from tests.kernels.aot import TARGETS, Case

EVERYTHING = os.environ.get("KVCAST_KERNELS", "") == "all"
GROUPS = (1, 4, 7, 8)  # 7: 28 query heads over 4 KV heads, not a power of two


@dataclass(frozen=True)
class Run:
    """One interpreted run. `shape`: prefill's cached prefixes, decode's contexts, or the routing of an expert GEMM."""

    op: str
    dtype: str
    head_dim: int
    block_size: int
    group: int
    shape: str
    splits: int | None
    layout: str  # of the cache in memory: "nhd" (block, slot, head) or "hnd" (block, head, slot)

    @property
    def id(self) -> str:
        return f"{self.op}-{self.dtype}-d{self.head_dim}-b{self.block_size}-g{self.group}-{self.shape}-s{self.splits or 'auto'}-{self.layout}"  # noqa: E501


def pairwise(dimensions: Sequence[Sequence[Any]]) -> list[tuple]:
    """Greedy cover of all pairs of values: each new case starts from an uncovered pair and takes the values that cover
    most others."""
    pairs = {((i, a), (j, b)) for (i, x), (j, y) in combinations(enumerate(dimensions), 2) for a in x for b in y}
    left, chosen = set(pairs), []
    order = sorted(pairs, key=repr)
    while left:
        (i, a), (j, b) = next(p for p in order if p in left)
        case = {i: a, j: b}
        for k, values in enumerate(dimensions):
            if k not in case:
                # Rotating the start spreads equal choices, so that the values left free vary too.
                turned = [values[(n + len(chosen)) % len(values)] for n in range(len(values))]
                case[k] = max(
                    turned, key=lambda v, k=k, case=case: sum(_pair((k, v), other) in left for other in case.items())
                )
        row = tuple(case[k] for k in range(len(dimensions)))
        left -= set(combinations(enumerate(row), 2))
        chosen.append(row)
    return chosen


def _pair(a: tuple, b: tuple) -> tuple:
    return (a, b) if a[0] < b[0] else (b, a)


def choose(dimensions: Sequence[Sequence[Any]], everything: bool = EVERYTHING) -> list[tuple]:
    return list(product(*dimensions)) if everything else pairwise(dimensions)


def interpreted(everything: bool = EVERYTHING) -> list[Run]:
    dtypes, layouts = ("float32", "float16"), ("nhd", "hnd")
    attention = (dtypes, HEAD_DIMS, BLOCK_SIZES, GROUPS)
    runs = [
        Run("prefill", *c)
        for c in choose((*attention, ("fresh", "cached", "mixed", "long"), (None, 1, 3), layouts), everything)
    ]
    runs += [
        Run("decode", *c)
        for c in choose((*attention, ("equal", "skewed", "edges", "long"), (None, 1, 4), layouts), everything)
    ]
    runs += [Run("rope", *c, "edges", None, layout) for *c, layout in choose((*attention, layouts), everything)]
    runs += [
        Run("moe", dtype, 128, 16, 1, shape, None, "nhd")
        for dtype, shape in product(dtypes, ("even", "skewed", "empty", "padded", "ragged"))
    ]
    if not everything:
        return runs
    # The whole product of the attention cases takes a quarter of an hour; memory layout changes only strides, so it
    # alternates.
    return [r for n, r in enumerate(runs) if r.op not in ("prefill", "decode") or r.layout == layouts[n // 2 % 2]]


def compiled(everything: bool = EVERYTHING) -> list[Case]:
    dtypes = ("bfloat16", "float16")
    cases = [
        Case(op, *c)
        for op, *c in choose((("prefill", "decode"), TARGETS, dtypes, HEAD_DIMS, BLOCK_SIZES, GROUPS), everything)
    ]
    cases += [
        Case("prefill", t, "bfloat16", d) for t in TARGETS for d in HEAD_DIMS
    ]  # Llama and Qwen shapes of every row, always
    cases += [Case("decode", t, "bfloat16", d) for t in TARGETS for d in HEAD_DIMS]
    cases += [
        Case(op, t, "bfloat16", d, config=c)
        for t, rows in CANDIDATES.items()
        if t in TARGETS
        for (op, d), configs in rows.items()
        for c in configs
    ]
    cases += [Case("merge", t, "bfloat16", d) for t, d in choose((TARGETS, HEAD_DIMS), everything)]
    cases += [
        Case("rope", t, dt, d, b)
        for t, dt, d, b in (
            choose((TARGETS, dtypes, HEAD_DIMS, BLOCK_SIZES), everything)
            if everything
            else [(t, "bfloat16", 128, 16) for t in TARGETS]
        )
    ]
    cases += [
        Case("moe", t, dt)
        for t, dt in (product(TARGETS, dtypes) if everything else [(t, dtypes[n % 2]) for n, t in enumerate(TARGETS)])
    ]
    return list({c.id: c for c in cases}.values())


def spilling() -> list[Case]:
    """Configs known to spill on every CUDA target: prefill 128x64 with 4 warps."""
    return [Case("prefill", t, "bfloat16", 128, config=Config(128, 64, 4, 2)) for t in ("sm_80", "sm_90", "sm_100")]
