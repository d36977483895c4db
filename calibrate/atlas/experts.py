"""Routed experts: what of them a batch reaches on the fullest rank, and which measured shapes are near.

The one idea: the tables were measured with routing as uneven as a power law, so a rank's bound goes by the experts and
rows that such routing gives the fullest rank; measured shapes then lie at nearly the same multiple of it. With even
routing the multiples of one kernel range from 0.6 to 7 over splits, with this from 1.1 to 3.

    python -c "from calibrate.atlas.experts import reached; print(reached(256, 8, 8, (1, 64, 4096)))"
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

ALPHA = 1.2
DEALS = 8
"""Ways of dealing experts to ranks that are averaged."""
NO_GATE = {(2688, 1856), (1024, 2688), (4096, 2688), (2048, 5120), (8192, 5120)}
"""(hidden, inter) of measured shapes with two matrices instead of three: Nemotron's squared ReLU. TensorRT-LLM's tables
name their kernel for it; in the others three matrices could not be read as fast as they ran."""
COUNTS = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0])
"""What an octave of hidden size, width a rank, top-k, experts a rank, ranks and alignment of the width, and a gate,
count in the distance of shapes. Chosen on vLLM's tables of H200, B200 and L40S, all others held back; halving or
doubling one moves the held-out error by less than half a percent of the time."""
ROUGH = 0.2
"""Octaves that two measured shapes at the same place differ by, as it were: how far a surface may pass them by."""
NEAREST = 64
"""Rows that a surface is laid through."""
NEAR = 2.0
"""Octaves up to which a shape lies among the measured ones: 85 % of those left out do."""
OTHER_KERNEL = {
    ("vllm", "bf16"): {(2816, 704), (6144, 3072)},
    ("vllm", "fp8"): {(2816, 704)},
    ("vllm", "nvfp4"): {(6144, 3072)},
    ("vllm", "mxfp4"): {(3584, 3072)},
}
"""(hidden, inter) of measured models that did not run on the kernel of the type's others, as the tables' kernel_source
says: on the GPUs of TWO_KERNELS those whose activation is not SiLU ran on CUTLASS, the others on TensorRT-LLM's
kernels; mxfp4 that is not gpt-oss's ran on Marlin everywhere. One kernel says nothing of the other."""
TWO_KERNELS = ("b200", "b300", "gb200")
APART = 20.0
"""Octaves between kernels."""
ALIGNED = 64
"""Columns from which on a power of two in a width makes no difference to a kernel."""


@dataclass(frozen=True)
class MoeShape:
    """Routed experts of one layer and their split."""

    dtype: str
    hidden: int
    inter: int
    topk: int
    experts: int
    tp: int = 1
    ep: int = 1
    matrices: int = 3  #: gate, up and down; 2 without a gate

    @property
    def weights(self) -> float:
        """Weights of one expert on one rank."""
        return float(self.matrices) * self.hidden * self.inter / self.tp

    def reached(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(experts, rows) on the fullest rank, by tokens of all ranks."""
        return reached(self.experts, self.topk, self.ep, tuple(int(t) for t in tokens))

    def load(self, tokens: np.ndarray) -> np.ndarray:
        """Rows of an expert that has some, on the fullest rank: what its kernel's efficiency goes by. Ascending."""
        experts, rows = self.reached(tokens)
        return np.maximum.accumulate(rows / np.maximum(experts, 1.0)) + 1e-9 * tokens


def measured(dtype: str, key: list[int]) -> MoeShape:
    """The shape of a row of the tables: hidden, inter, top-k, experts, tensor and expert parallel width."""
    hidden, inter, topk, experts, tp, ep = key
    return MoeShape(dtype, hidden, inter, topk, experts, tp, ep, 2 if (hidden, inter) in NO_GATE else 3)


@lru_cache(maxsize=1024)
def reached(experts: int, topk: int, ep: int, tokens: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(experts with a row, rows), float64 by token count, of the rank that gets most rows, averaged over deals."""
    rows = _drawn(experts, topk, tokens)
    hit = np.round(rows) > 0
    left = np.array(tokens, dtype=float) * topk - np.round(rows).sum(axis=1)
    none = np.maximum((~hit).sum(axis=1), 1)
    share = np.where(hit, 1.0, np.clip(left / none, 0.0, 1.0)[:, None])  # what rounding left goes to those without
    if ep == 1:
        return share.sum(axis=1), rows.sum(axis=1)
    held, at, found = experts // ep, np.arange(len(tokens)), []
    for deal in _deals(experts):
        ranks = deal[: held * ep].reshape(ep, held)
        total = rows[:, ranks].sum(axis=2)
        fullest = total.argmax(axis=1)
        found.append((share[:, ranks].sum(axis=2)[at, fullest], total[at, fullest]))
    hits, most = np.mean(found, axis=0)
    return hits, most


@lru_cache(maxsize=256)
def _drawn(experts: int, topk: int, tokens: tuple[int, ...]) -> np.ndarray:
    return _rows(experts, topk, np.array(tokens, dtype=float))


@lru_cache(maxsize=64)
def _deals(experts: int) -> tuple[np.ndarray, ...]:
    chance = random.Random(experts)
    deals = []
    for _ in range(DEALS):
        order = list(range(experts))
        chance.shuffle(order)
        deals.append(np.array(order))
    return tuple(deals)


def _rows(experts: int, topk: int, tokens: np.ndarray) -> np.ndarray:
    """Rows of each expert [tokens, experts], most first: quantiles of a power law, at most one row a token. Few tokens
    (not more rows than experts) are drawn from a range below one row."""
    limit = tokens[:, None]
    many = limit * topk > experts
    low, high = np.where(many, 1.0, 0.01), np.where(many, np.maximum(0.8 * limit, 1.001), 2.0)
    u, power = 1.0 - (np.arange(experts) + 0.5) / experts, 1.0 - ALPHA
    drawn = ((high**power - low**power) * u + low**power) ** (1.0 / power)
    rows = drawn / drawn.sum(axis=1, keepdims=True) * limit * topk
    for _ in range(20):
        over = np.maximum(rows - limit, 0.0).sum(axis=1, keepdims=True)
        if (over < 1e-6).all():
            break
        rows = np.minimum(rows, limit)
        room = limit - rows
        free = room.sum(axis=1, keepdims=True)
        rows = rows + room * np.minimum(over / np.where(free > 0, free, np.inf), 1.0)
    return np.minimum(rows, limit)


def nearest_experts(
    keys: np.ndarray, shape: MoeShape, apart: Iterable[tuple[int, int]] = ()
) -> tuple[list[tuple[int, float]], float]:
    """([(row, weight)], octaves to the nearest) of the measured shapes around an asked one. apart: (hidden, inter) of
    those that ran on the other kernel.

    Kriging with a linear variogram: what two shapes differ by is expected to grow with the octaves between them, so a
    cluster of alike rows counts once and a trend goes on. Weights add up to 1; some may be below 0."""
    asked = np.array([[shape.hidden, shape.inter, shape.topk, shape.experts, shape.tp, shape.ep]])
    places, place = _place(keys, apart, None), _place(asked, apart, shape.matrices)
    distance = np.sqrt(((places - place) ** 2).sum(axis=1))
    rows = np.argsort(distance, kind="stable")[:NEAREST]
    between = np.sqrt(((places[rows, None] - places[rows]) ** 2).sum(axis=2))
    system = np.ones((len(rows) + 1, len(rows) + 1))
    system[:-1, :-1] = between - ROUGH * np.eye(len(rows))
    system[-1, -1] = 0.0
    weights = np.linalg.solve(system, np.append(distance[rows], 1.0))[:-1]
    return list(zip(rows.tolist(), weights.tolist(), strict=True)), float(distance[rows[0]])


def other_kernel(gpu: str, table: str, dtype: str) -> set[tuple[int, int]]:
    """(hidden, inter) that ran on another kernel than the rest of a table's rows of this type."""
    two = dtype == "mxfp4" or gpu.lower() in TWO_KERNELS
    return OTHER_KERNEL.get((table.split("/")[0], dtype), set()) if two else set()


def _place(keys: np.ndarray, apart: Iterable[tuple[int, int]], matrices: int | None) -> np.ndarray:
    """Where shapes lie, in octaves [shapes, coordinates]."""
    hidden, inter, topk, experts, tp, ep = keys.T.astype(float)
    width, other = inter / tp, set(apart)
    aligned = np.array([math.gcd(int(w), ALIGNED) for w in width])
    sizes = [(h, i) for h, i in keys[:, :2].tolist()]
    gate = np.array([(matrices or (2 if size in NO_GATE else 3)) - 2.0 for size in sizes])
    kernel = np.array([APART * (size in other) for size in sizes])
    octaves = np.log2(np.stack([hidden, width, topk, experts / ep, ep, aligned], axis=1))
    return np.column_stack([np.column_stack([octaves, gate]) * COUNTS, kernel])
