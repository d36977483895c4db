"""Sparse latent attention (DeepSeek-V3.2, GLM-5): an indexer scores all tokens, attention works on the best of them.

The one idea: as with MLA, the tables time a whole module; its projections go by the tokens of a step, what the module
takes beyond them is indexer and attention. Over a cached prefix the indexer goes on growing and attention does not.
SGLang's tables hold prefixes, vLLM's none to speak of: there a chunk takes at least what it takes alone and at least
what SGLang's kernels on the same GPU take over that prefix.

    python -c "from calibrate.atlas.price import Pricer; from calibrate.atlas.sparse import sparse_decode as f;
    from calibrate.atlas.tables import load; from calibrate.models import resolve_model as m;
    model = m('deepseek-v3.2'); print(f(Pricer(load('h200')), model.layer_groups[0].attention, model.hidden, 16,
    'fp8_block', 'bf16'))"
"""

from __future__ import annotations

import numpy as np

from calibrate.atlas.mla import LEAST_ATTENTION
from calibrate.atlas.price import (
    CALL_S,
    EFFICIENCY,
    GEMM_NAMES,
    KV_NAMES,
    WEIGHT_BYTES,
    Pricer,
    causal_pairs,
    measured_limits,
)
from calibrate.atlas.shapes import FORM_ERROR, Priced, along, blend, completed, covered, neighbours
from calibrate.atlas.tables import Table
from calibrate.layer_groups import INDEX_SCALE_BYTES, Attention
from calibrate.step import EXTRAPOLATED, INTERPOLATED

MODELS = {
    128: ("deepseek-ai/DeepSeek-V3.2",),
    192: ("zai-org/GLM-5", "zai-org/GLM-5-FP8", "zai-org/GLM-5.2", "zai-org/GLM-5.2-FP8", "nvidia/GLM-5.2-NVFP4"),
}
"""The measured models by their heads' width without position. Layers that share another's indexer (GLM-5.2) are priced
with one of their own, as the modules are measured."""
SPARSE_ERROR = 0.06
"""Held-out mean error of a number of heads that was not measured; half of it for one that was."""
PREFIX_ERROR = 0.15
"""Of a chunk over a prefix that was measured with the other backend's kernels."""
STEPS = 3
"""Cached prefixes that a table holds at least if it is to say how they count."""


def sparse_projections(price: Pricer, a: Attention, hidden: int, heads: int, gemm: str) -> Priced:
    """Times by token count of the projections of one layer on one rank, the indexer's included."""
    parts = _products(price, a, hidden, heads, gemm)
    worst = max(parts, key=lambda part: part.cover)
    return Priced(_projections(price, a, hidden, heads, gemm), worst.cover, worst.error, worst.basis)


def sparse_prefill(
    price: Pricer, a: Attention, hidden: int, heads: int, gemm: str, kv_dtype: str, cached: np.ndarray
) -> tuple[np.ndarray, Priced]:
    """(lengths, times [lengths, cached]) of one sequence in one layer on one rank, projections left out."""
    own = _rows(price, "sparse_prefill", a, gemm, kv_dtype)
    if own is None:
        length = 2.0 ** np.arange(0, 15)
        bound = _prefill_bound(price, a, heads, length[:, None], cached)
        basis = "FLOPs of indexer and attention"
        return length, Priced(CALL_S + bound / EFFICIENCY, EXTRAPOLATED, FORM_ERROR, basis)
    length, alone, measured = _prefill_at(price, own, 0, a, hidden, heads, gemm)
    stepped = _rows(price, "sparse_prefill", a, gemm, kv_dtype, STEPS)
    cover, error, words = covered(*measured, _error(*measured))
    seconds = np.repeat(alone[:, None], len(cached), axis=1)
    if stepped is None:
        more = _prefill_bound(price, a, heads, length[:, None], cached) - _prefill_bound(
            price, a, heads, length[:, None], np.zeros(1)
        )
        seconds = seconds + more / EFFICIENCY
        cover, error, words = EXTRAPOLATED, FORM_ERROR, f"{words}, prefixes by FLOPs of the indexer"
    else:
        steps, over = _over_prefixes(price, stepped, a, hidden, heads, gemm, length)
        at = np.array([along(steps, row, cached) for row in over])
        seconds = np.maximum(seconds, at)
        if stepped.name != own.name:
            cover, error = max(cover, INTERPOLATED), max(error, PREFIX_ERROR)
            words = f"{words}, prefixes of {stepped.name}"
    seconds = np.maximum(seconds, CALL_S + _prefill_bound(price, a, heads, length[:, None], cached))
    seconds = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
    return length, Priced(seconds, cover, error, f"{own.name} {words}")


def sparse_decode(
    price: Pricer, a: Attention, hidden: int, heads: int, gemm: str, kv_dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Priced]:
    """(batch sizes, contexts, longest measured context by batch size, times [batch, context]) of one layer on one rank,
    projections left out."""
    rows = _rows(price, "sparse_decode", a, gemm, kv_dtype)
    if rows is None:
        batch, context = 2.0 ** np.arange(0, 11), 2.0 ** np.arange(1, 18)
        bound = batch[:, None] * _decode_bound(price, a, heads, context, kv_dtype)
        basis = "bytes of indexer and latent"
        form = Priced(CALL_S + bound / EFFICIENCY, EXTRAPOLATED, FORM_ERROR, basis)
        return batch, context, np.full(len(batch), context[-1]), form
    batch, context = rows.axes[0][1].astype(float), rows.axes[1][1].astype(float)
    weights, octaves = neighbours(rows.keys.astype(float), (heads,))
    each = _decode_bound(price, a, heads, context, kv_dtype) / EFFICIENCY
    grid = np.array([completed([batch, context], _longer(batch, each, row)) for row in rows.seconds])
    around = [_at(price, batch, _projections(price, a, hidden, int(h), gemm)) for h in rows.keys[:, 0]]
    seconds = blend(grid - np.array(around)[:, :, None], weights, lambda row: 1.0)
    seconds = np.maximum(seconds, CALL_S + batch[:, None] * _decode_bound(price, a, heads, context, kv_dtype))
    seconds = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
    limits = np.min([measured_limits(context, rows.seconds[row]) for row, _ in weights], axis=0)
    cover, error, words = covered(weights, octaves, _error(weights, octaves))
    return batch, context, limits, Priced(seconds, cover, error, f"{rows.name} {words}")


def _error(weights: list[tuple[int, float]], octaves: float) -> float:
    return SPARSE_ERROR if len(weights) > 1 or octaves else SPARSE_ERROR / 2


def _longer(batch: np.ndarray, each: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Times [batch, context] with contexts beyond the last measured one: what every sequence reads more, `each` seconds
    by context. (In proportion to the context, as dense attention goes on, would count the best tokens again.)"""
    grid = grid.copy()
    for row, n in zip(grid, batch, strict=True):
        there = np.flatnonzero(np.isfinite(row))
        if len(there):
            last = there[-1]
            row[last + 1 :] = row[last] + n * (each[last + 1 :] - each[last])
    return grid


def _prefill_at(
    price: Pricer, rows: Table, step: int, a: Attention, hidden: int, heads: int, gemm: str
) -> tuple[np.ndarray, np.ndarray, tuple[list[tuple[int, float]], float]]:
    """(lengths, times of one sequence over a prefix of `step` tokens, the rows they lie between)."""
    length = rows.axes[1][1].astype(float)
    there = rows.where(step=step)
    finite = np.isfinite(there.seconds[:, 0]).any(axis=1)
    there = there.among(lambda _: finite)
    grid = np.array([completed([length], row[0]) for row in there.seconds])
    around = [_at(price, length, _projections(price, a, hidden, int(h), gemm)) for h in there.keys[:, 0]]
    grid = np.maximum.accumulate(np.maximum(grid - np.array(around), CALL_S), axis=1)
    measured = neighbours(there.keys.astype(float), (heads,))
    return length, blend(grid, measured[0], lambda row: 1.0), measured


def _over_prefixes(
    price: Pricer, rows: Table, a: Attention, hidden: int, heads: int, gemm: str, length: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(cached prefixes, times [length, cached]) at these lengths; longer chunks than measured go on with the last
    slope."""
    steps, columns = [], []
    for step in rows.values("step"):
        if not np.isfinite(rows.where(step=step).seconds[:, 0]).any():
            continue
        measured, seconds, _ = _prefill_at(price, rows, step, a, hidden, heads, gemm)
        steps.append(float(step))
        columns.append(along(measured, seconds, length))
    return np.array(steps), np.maximum.accumulate(np.array(columns), axis=0).T


def _rows(price: Pricer, operator: str, a: Attention, gemm: str, kv_dtype: str, steps: int = 1) -> Table | None:
    """The rows by heads (and cached prefix, at least so many) of the backend's own table, else of another's."""
    models = MODELS.get(a.qk_nope_head_dim, MODELS[128])
    for backend in (price.backend, *price.atlas.backends):
        table = price.atlas.table(backend, operator)
        if table is None or ("step" in table.columns and len(table.values("step")) < steps):
            continue
        for name in (*GEMM_NAMES.get(gemm, ()), "fp8_block", "bfloat16"):
            for kv in (KV_NAMES[kv_dtype], "bfloat16"):
                for model in models:
                    wanted = {"model": model, "gemm_type": name, "kv_cache_dtype": kv}
                    found = table.where(**{c: v for c, v in wanted.items() if c in table.columns})
                    if len(found):
                        return found
    return None


def _products(price: Pricer, a: Attention, hidden: int, heads: int, gemm: str) -> list[Priced]:
    q = a.q_lora_rank or hidden
    shapes = [
        (a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim, hidden),
        (heads * a.qk_head_dim, q),
        (hidden, heads * a.v_head_dim),
    ]
    if a.index_heads:
        shapes += [(a.index_heads * a.index_dim, q), (a.index_dim + a.index_heads, hidden)]
    return [price.gemm(gemm, n, k) for n, k in shapes]


def _projections(price: Pricer, a: Attention, hidden: int, heads: int, gemm: str) -> np.ndarray:
    """Times by token count; at most a share of the module with nothing to attend to."""
    total, tokens = np.sum([part.seconds for part in _products(price, a, hidden, heads, gemm)], axis=0), price.tokens
    for operator, axis in (("sparse_prefill", 1), ("sparse_decode", 0)):
        rows = _rows(price, operator, a, gemm, "bf16")
        if rows is None:
            continue
        rows = rows.where(step=0) if "step" in rows.columns else rows
        x = rows.axes[axis][1].astype(float)
        grid = np.array([completed([x], row[0] if axis else row[:, 0]) for row in rows.seconds])
        weights, _ = neighbours(rows.keys.astype(float), (heads,))
        module = np.interp(tokens, x, np.sum([weight * grid[row] for row, weight in weights], axis=0))
        total = np.where(tokens <= x[-1], np.minimum(total, (1 - LEAST_ATTENTION) * module), total)
    return np.maximum.accumulate(total)


def _at(price: Pricer, tokens: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    return np.interp(tokens, price.tokens, seconds)


def _prefill_bound(price: Pricer, a: Attention, heads: int, new: np.ndarray, cached: np.ndarray) -> np.ndarray:
    """Seconds [new, cached] at peak: attention over the best tokens in bf16, the indexer's scores in fp8."""
    pair = 2.0 * heads * (a.qk_head_dim + a.v_head_dim) / price.flops["bf16"]
    score = 2.0 * a.index_heads * a.index_dim / price.flops["fp8"]
    return np.asarray(pair * causal_pairs(new, cached, a.index_topk) + score * causal_pairs(new, cached))


def _decode_bound(price: Pricer, a: Attention, heads: int, context: np.ndarray, kv_dtype: str) -> np.ndarray:
    """Seconds by context of one sequence: the best tokens' latents, and every token's index key."""
    latent = np.minimum(context, a.index_topk) * (a.kv_lora_rank + a.qk_rope_head_dim) * WEIGHT_BYTES[kv_dtype]
    index = context * (a.index_dim + INDEX_SCALE_BYTES if a.index_heads else 0)
    return np.asarray((latent + index) / price.bandwidth)
