"""How far off a shape is that was never measured: every measured one left out in turn and predicted from the others.

The one idea: the error a price states is the error found here, per operator, weight type and distance from the nearest
measured shape, by the same code that prices. It stands in errors.json (`python -m calibrate.atlas.heldout` writes it);
`kvcast validate atlas` finds it again. At distance 0, a measured shape, it is that of the points of its own axes: each
left out and predicted from those beside it, halved, since a price bridges half of that gap.
Truth here is the levelled rows of
the file: against the package's unlevelled ones it is larger by what levelling moved (2 to 4 % on H200's products).

    python -c "from calibrate.atlas.heldout import held_out; from calibrate.atlas.tables import load;
    print(held_out(load('h200'), 'vllm'))"
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrate.atlas.errors import ERRORS
from calibrate.atlas.experts import measured, nearest_experts, other_kernel
from calibrate.atlas.price import CALL_S, Pricer
from calibrate.atlas.shapes import blend, neighbours
from calibrate.atlas.tables import Atlas, Table, bundled_gpus, load

OURS = {"bfloat16": "bf16", "int8_wo": "int8", "int4_wo": "int4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4"}


@dataclass(frozen=True)
class HeldOut:
    """Errors of one operator and type over all shapes left out, as shares of the measured time."""

    operator: str
    dtype: str
    shapes: int
    mean: float
    p90: float
    along: float = 0.0  #: mean over the points of the axes, each left out
    near: tuple[tuple[float, float], ...] = ()  #: (octaves from the nearest measured shape, mean error up to there)

    @property
    def by_distance(self) -> list[list[float]]:
        """[octaves, error] ascending in both: what a price at that distance states."""
        found = [(0.0, self.along / 2), *self.near]
        worst = np.maximum.accumulate([error for _, error in found])
        return [[octaves, round(float(error), 4)] for (octaves, _), error in zip(found, worst, strict=True)]


STEPS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Octaves at which errors are told apart; what lies further counts with the last."""
ENOUGH = 8
"""Shapes that a distance needs to have an error of its own."""


def held_out(atlas: Atlas, backend: str) -> list[HeldOut]:
    """Every operator of a backend that has shapes between others."""
    price = Pricer(atlas, backend, as_tabled=True)
    found = []
    for operator, cases in CASES.items():
        by_dtype: dict[str, list[tuple[float, np.ndarray]]] = {}
        inside: dict[str, list[np.ndarray]] = {}
        table = _own(price, operator) or _own(price, operator + "_core")
        for dtype, distance, estimate, truth in cases(price):
            there = np.isfinite(truth) & np.isfinite(estimate)
            if there.any() and table is not None:
                by_dtype.setdefault(dtype, []).append((distance, np.abs(estimate[there] / truth[there] - 1.0)))
                inside.setdefault(dtype, []).append(_between(table.axes[-1][1].astype(float), truth))
        for dtype, errors in by_dtype.items():
            every, along = np.concatenate([error for _, error in errors]), np.concatenate(inside[dtype])
            found.append(
                HeldOut(
                    operator,
                    dtype,
                    len(errors),
                    float(every.mean()),
                    float(np.quantile(every, 0.9)),
                    float(along.mean()) if len(along) else 0.0,
                    tuple(_near(errors)),
                )
            )
    return found


def _near(errors: list[tuple[float, np.ndarray]]) -> Iterator[tuple[float, float]]:
    """Mean error of the shapes at each distance, where there are enough of them; of all where there never are."""
    low = 0.0
    for high in STEPS:
        there = [error for distance, error in errors if low < distance and (distance <= high or high == STEPS[-1])]
        if len(there) >= ENOUGH:
            yield high, float(np.concatenate(there).mean())
            low = high
    if not low:
        yield STEPS[-1], float(np.concatenate([error for _, error in errors]).mean())


def _between(x: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Errors of the inner points of the last axis, each predicted linearly from those beside it. truth: [..., n]."""
    weight = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    with np.errstate(invalid="ignore"):
        error = np.abs((truth[..., :-2] * (1 - weight) + truth[..., 2:] * weight) / truth[..., 1:-1] - 1.0)
    return error[np.isfinite(error)]


Case = tuple[str, float, np.ndarray, np.ndarray]
"""Weight or cache type, octaves to the nearest measured shape, estimate, measured."""


def _own(price: Pricer, operator: str) -> Table | None:
    return price.atlas.table(price.backend, operator)


def _constant(price: Pricer, table: Table, column: str) -> str:
    return str(price.atlas.header["tables"][table.name]["constant"][column])


def _gemms(price: Pricer) -> Iterator[Case]:
    """A pair (n, k) from the nearest pairs on both sides in n and in k, where it has some."""
    table = _own(price, "gemm")
    if table is None:
        return
    for name in (
        table.values("gemm_dtype") if "gemm_dtype" in table.columns else [_constant(price, table, "gemm_dtype")]
    ):
        rows = table.where(gemm_dtype=name) if "gemm_dtype" in table.columns else table
        dtype = OURS.get(name, name)
        place = {tuple(key): i for i, key in enumerate(rows.keys.tolist())}
        wide, deep = rows.values("n"), rows.values("k")
        ratios = np.array(
            [
                t / (CALL_S + price.gemm_bound(dtype, *map(float, key)))
                for key, t in zip(rows.keys.tolist(), rows.seconds, strict=True)
            ]
        )
        for (n, k), i in place.items():
            sides = [[(low, k, n), (high, k, n)] for low, high in _around(wide, n)] + [
                [(n, low, k), (n, high, k)] for low, high in _around(deep, k)
            ]
            guesses, gaps = [], []
            for a, b in sides:
                if a[:2] in place and b[:2] in place:
                    along_n = a[1] == b[1]
                    x, low, high = (np.log(v) for v in (a[2], a[0] if along_n else a[1], b[0] if along_n else b[1]))
                    w = (x - low) / (high - low)
                    guesses.append((1 - w) * ratios[place[a[:2]]] + w * ratios[place[b[:2]]])
                    gaps.append(min(x - low, high - x) / math.log(2))
            if guesses:
                yield (
                    dtype,
                    min(gaps),
                    np.mean(guesses, axis=0) * (CALL_S + price.gemm_bound(dtype, n, k)),
                    rows.seconds[i],
                )


def _around(values: list[int], x: int) -> list[tuple[int, int]]:
    i = values.index(x)
    return [(values[i - 1], values[i + 1])] if 0 < i < len(values) - 1 else []


def _heads(price: Pricer, operator: str) -> Iterator[Case]:
    """A head count left out among those of the same window, head size, KV heads and cache type."""
    table = _own(price, operator)
    if table is None:
        return
    head = table.columns.index("num_heads")
    rest = [i for i in range(len(table.columns)) if i != head]
    types = table.labels.get("kv_cache_dtype")
    for key in np.unique(table.keys[:, rest], axis=0):
        rows = np.flatnonzero((table.keys[:, rest] == key).all(axis=1))
        heads = table.keys[rows, head]
        order = np.argsort(heads)
        dtype = types[int(table.keys[rows[0], table.columns.index("kv_cache_dtype")])] if types else "bfloat16"
        for j in range(1, len(rows) - 1):
            left = np.array([i for i in order if i != order[j]])
            asked = float(heads[order[j]])
            grid = table.seconds[rows[left]]
            grid = grid[:, 0] if operator == "prefill" else grid
            weights, _ = neighbours(heads[left][:, None].astype(float), (asked,), even=operator == "prefill")
            estimate = blend(grid, weights, lambda row: 1.0, geometric=operator == "decode")
            truth = table.seconds[rows[order[j]]]
            truth = truth[0] if operator == "prefill" else truth
            both = np.isfinite(estimate)
            gap = float(np.abs(np.log2(heads[left] / asked)).min())
            yield OURS.get(dtype, dtype), gap, np.where(both, estimate, 1.0), np.where(both, truth, np.nan)


def expert_models(atlas: Atlas, backend: str) -> dict[str, int]:
    """How many models' experts were measured, by weight type."""
    found = _expert_rows(Pricer(atlas, backend, as_tabled=True))
    return {dtype: len(np.unique(rows.keys[:, :4], axis=0)) for dtype, rows in found}


def _expert_rows(price: Pricer) -> Iterator[tuple[str, Table]]:
    """(weight type, the rows that price it) of a backend's own experts."""
    table = _own(price, "moe")
    if table is None:
        return
    named = "moe_dtype" in table.columns
    for name in table.values("moe_dtype") if named else [_constant(price, table, "moe_dtype")]:
        dtype = OURS.get(name, name)
        if name in price.moe_names(dtype)[:1]:
            yield dtype, table.where(moe_dtype=name) if named else table


def _experts(price: Pricer) -> Iterator[Case]:
    """An expert shape (hidden, inter, top-k, experts) left out at all its splits, from the nearest other shapes."""
    for dtype, rows in _expert_rows(price):
        if len(np.unique(rows.keys[:, :4], axis=0)) < 2:
            continue
        apart = other_kernel(price.atlas.gpu, rows.name, dtype)
        for key, truth in zip(rows.keys.tolist(), rows.seconds, strict=True):
            shape = measured(dtype, key)
            tokens, priced = price.moe(shape, without=key[:4])
            others = rows.keys[(rows.keys[:, :4] != np.array(key[:4])).any(axis=1)]
            distance = nearest_experts(others, shape, apart)[1]
            yield dtype, distance, priced.seconds, np.maximum(truth, np.maximum(*price.moe_times(shape, tokens)))


def _mla(price: Pricer, operator: str) -> Iterator[Case]:
    """A head count of a whole MLA module (or its core) left out."""
    table = _own(price, operator) or _own(price, operator + "_core")
    if table is None:
        return
    head = table.columns.index("num_heads")
    rest = [i for i in range(len(table.columns)) if i != head]
    for key in np.unique(table.keys[:, rest], axis=0):
        rows = np.flatnonzero((table.keys[:, rest] == key).all(axis=1))
        rows = rows[np.argsort(table.keys[rows, head])]
        heads = table.keys[rows, head].astype(float)
        types = dict(zip([table.columns[i] for i in rest], key.tolist(), strict=True))
        label = table.labels["gemm_type"][types["gemm_type"]] if "gemm_type" in types else "bfloat16"
        for j in range(1, len(rows) - 1):
            low, high = table.seconds[rows[j - 1]], table.seconds[rows[j + 1]]
            w = (heads[j] - heads[j - 1]) / (heads[j + 1] - heads[j - 1])
            estimate, truth = low + (high - low) * w, table.seconds[rows[j]]
            if operator == "mla_prefill":
                estimate, truth = estimate[0], truth[0]
            both = np.isfinite(estimate)
            gap = float(np.abs(np.log2(heads[[j - 1, j + 1]] / heads[j])).min())
            yield OURS.get(label, label), gap, np.where(both, estimate, 1.0), np.where(both, truth, np.nan)


CASES: dict[str, Callable[[Pricer], Iterator[Case]]] = {
    "gemm": _gemms,
    "prefill": lambda price: _heads(price, "prefill"),
    "decode": lambda price: _heads(price, "decode"),
    "moe": _experts,
    "mla_prefill": lambda price: _mla(price, "mla_prefill"),
    "mla_decode": lambda price: _mla(price, "mla_decode"),
}


def stated() -> dict[str, Any]:
    """What errors.json says: {gpu: {backend/operator: {type: [[octaves, error], ...]}}}."""
    return {
        gpu: {
            name: {one.dtype: one.by_distance for one in found}
            for backend in load(gpu).backends
            for name, found in _by_operator(backend, held_out(load(gpu), backend))
        }
        for gpu in bundled_gpus()
    }


def _by_operator(backend: str, found: list[HeldOut]) -> Iterator[tuple[str, list[HeldOut]]]:
    for operator in dict.fromkeys(one.operator for one in found):
        yield f"{backend}/{operator}", [one for one in found if one.operator == operator]


if __name__ == "__main__":
    ERRORS.write_text(json.dumps(stated(), separators=(",", ":"), indent=0).replace("\n", "") + "\n")
