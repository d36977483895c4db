"""Routed experts: what of them a batch reaches on the fullest rank, and which measured shapes are near.

The one idea: the tables were measured with routing as uneven as a power law, so a rank's bound goes by the experts and
rows that such routing gives the fullest rank; measured shapes then lie at nearly the same multiple of it. With even
routing the multiples of one kernel range from 0.6 to 7 over splits, with this from 1.1 to 3.

    python -c "from calibrate.atlas.experts import reached; print(reached(256, 8, 8, (1, 64, 4096)))"
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

ALPHA = 1.2
DEALS = 8
"""Ways of dealing experts to ranks that are averaged."""
NO_GATE = {(2688, 1856), (1024, 2688), (2048, 5120)}
"""(hidden, inter) of measured shapes with two matrices instead of three: Nemotron's squared ReLU. The tables do not
say so; three matrices could not be read as fast as they ran."""
NEIGHBOURS = 8
WEIGHTS = np.array([1.0, 1.0, 0.5, 1.0, 0.5, 1.0])
"""What an octave of hidden size, width a rank, top-k, experts a rank, experts and alignment of the width counts in the
distance of shapes; chosen on H200, B200 and L40S, the other GPUs held back."""
TWO_KERNELS, OTHER_KERNEL = ("b200", "b300", "gb200"), {(2816, 704), (6144, 3072)}
"""On these GPUs measured shapes whose activation is not SiLU ran on CUTLASS, all others on TensorRT-LLM's kernels: the
tables' kernel_source says so, and one says nothing of the other."""
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
    rows = np.array([_rows(experts, topk, t) for t in tokens])
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


@lru_cache(maxsize=64)
def _deals(experts: int) -> tuple[np.ndarray, ...]:
    chance = random.Random(experts)
    deals = []
    for _ in range(DEALS):
        order = list(range(experts))
        chance.shuffle(order)
        deals.append(np.array(order))
    return tuple(deals)


def _rows(experts: int, topk: int, tokens: int) -> np.ndarray:
    """Rows of each expert [experts], most first: quantiles of a power law, at most one row a token. Few tokens (not
    more rows than experts) are drawn from a range below one row."""
    low, high = (1.0, max(0.8 * tokens, 1.001)) if tokens * topk > experts else (0.01, 2.0)
    u, power = 1.0 - (np.arange(experts) + 0.5) / experts, 1.0 - ALPHA
    drawn = ((high**power - low**power) * u + low**power) ** (1.0 / power)
    rows = drawn / drawn.sum() * tokens * topk
    for _ in range(20):
        over = float(np.maximum(rows - tokens, 0.0).sum())
        rows = np.minimum(rows, tokens)
        room = tokens - rows
        if over < 1e-6 or room.sum() <= 0:
            break
        rows = rows + room * min(over / float(room.sum()), 1.0)
    return rows


def nearest_experts(
    keys: np.ndarray, asked: tuple[int, ...], apart: bool = False
) -> tuple[list[tuple[int, float]], float]:
    """The nearest measured expert shapes, weighted by the inverse square of their distance in octaves, and how far the
    nearest lies. apart: those that ran on the other kernel are the last."""
    distance = np.sqrt(((_place(keys) - _place(np.array([asked]))) ** 2).sum(axis=1))
    if apart:
        other = np.array([(hidden, inter) in OTHER_KERNEL for hidden, inter in keys[:, :2].tolist()])
        distance = distance + 100.0 * (other != (tuple(asked[:2]) in OTHER_KERNEL))
    rows = np.argsort(distance, kind="stable")[:NEIGHBOURS]
    weights = 1.0 / (distance[rows] ** 2 + 1e-2)
    weights = weights / weights.sum()
    return list(zip(rows.tolist(), weights.tolist(), strict=True)), float(distance[rows[0]])


def _place(keys: np.ndarray) -> np.ndarray:
    hidden, inter, topk, experts, tp, ep = keys.T.astype(float)
    width = inter / tp
    aligned = np.array([math.gcd(int(w), ALIGNED) for w in width])
    return np.log2(np.stack([hidden, width, topk, experts / ep, experts, aligned], axis=1)) * WEIGHTS
