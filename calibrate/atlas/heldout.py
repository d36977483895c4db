"""How far off a shape is that was never measured: every measured one left out in turn and predicted from the others.

The one idea: the error a price states is the error found here, per operator and weight type, by the same code that
prices. The exporter writes it into the file; `kvcast validate atlas` finds it again. Truth here is the levelled rows of
the file: against the package's unlevelled ones it is larger by what levelling moved (2 to 4 % on H200's products).

    python -c "from calibrate.atlas.heldout import held_out; from calibrate.atlas.tables import load;
    print(held_out(load('h200'), 'vllm'))"
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from calibrate.atlas.experts import measured
from calibrate.atlas.price import CALL_S, MOE_NAMES, ROUTING, Pricer
from calibrate.atlas.shapes import blend, neighbours
from calibrate.atlas.tables import Atlas, Table

OURS = {"bfloat16": "bf16", "int4_wo": "int4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4"}


@dataclass(frozen=True)
class HeldOut:
    """Errors of one operator and type over all shapes left out, as shares of the measured time."""

    operator: str
    dtype: str
    shapes: int
    mean: float
    p90: float


def held_out(atlas: Atlas, backend: str) -> list[HeldOut]:
    """Every operator of a backend that has shapes between others."""
    price = Pricer(atlas, backend)
    found = []
    for operator, cases in (
        ("gemm", _gemms(price)),
        ("prefill", _heads(price, "prefill")),
        ("decode", _heads(price, "decode")),
        ("moe", _experts(price)),
        ("mla_prefill", _mla(price, "mla_prefill")),
        ("mla_decode", _mla(price, "mla_decode")),
    ):
        by_dtype: dict[str, list[np.ndarray]] = {}
        for dtype, estimate, truth in cases:
            there = np.isfinite(truth) & np.isfinite(estimate)
            if there.any():
                by_dtype.setdefault(dtype, []).append(np.abs(estimate[there] / truth[there] - 1.0))
        for dtype, errors in by_dtype.items():
            every = np.concatenate(errors)
            found.append(HeldOut(operator, dtype, len(errors), float(every.mean()), float(np.quantile(every, 0.9))))
    return found


Case = tuple[str, np.ndarray, np.ndarray]


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
            guesses = []
            for a, b in sides:
                if a[:2] in place and b[:2] in place:
                    along_n = a[1] == b[1]
                    x, low, high = (np.log(v) for v in (a[2], a[0] if along_n else a[1], b[0] if along_n else b[1]))
                    w = (x - low) / (high - low)
                    guesses.append((1 - w) * ratios[place[a[:2]]] + w * ratios[place[b[:2]]])
            if guesses:
                yield dtype, np.mean(guesses, axis=0) * (CALL_S + price.gemm_bound(dtype, n, k)), rows.seconds[i]


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
            yield OURS.get(dtype, dtype), np.where(both, estimate, 1.0), np.where(both, truth, np.nan)


def _experts(price: Pricer) -> Iterator[Case]:
    """An expert shape (hidden, inter, top-k, experts) left out at all its splits, from the nearest other shapes."""
    table = _own(price, "moe")
    if table is None:
        return
    named = "moe_dtype" in table.columns
    for name in table.values("moe_dtype") if named else [_constant(price, table, "moe_dtype")]:
        dtype = OURS.get(name, name)
        if name not in MOE_NAMES.get(dtype, ())[:1]:
            continue
        rows = (table.where(moe_dtype=name) if named else table).where(distribution=ROUTING)
        if len(np.unique(rows.keys[:, :4], axis=0)) < 2:
            continue
        for key, truth in zip(rows.keys.tolist(), rows.seconds, strict=True):
            shape = measured(dtype, key)
            tokens, priced = price.moe(shape, without=key[:4])
            yield dtype, priced.seconds, np.maximum(truth, np.maximum(*price.moe_times(shape, tokens)))


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
            yield OURS.get(label, label), np.where(both, estimate, 1.0), np.where(both, truth, np.nan)
