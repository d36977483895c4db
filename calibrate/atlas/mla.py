"""Latent attention (MLA): the part of a layer that is not a shared matrix multiply.

The one idea: vLLM's tables time a whole MLA module. Its projections go by the tokens of a step, as all other matrix
multiplies do; what the module takes beyond them is attention. Small block-scaled products take longer alone in their
table than the whole module takes in its graph, so the projections are at most a share of the module. SGLang's tables
time attention alone.

    python -c "from calibrate.atlas.price import Pricer; from calibrate.atlas.tables import load;
    print(Pricer(load('h200')).has('mla_decode'))"
"""

from __future__ import annotations

import numpy as np

from calibrate.atlas.price import CALL_S, EFFICIENCY, GEMM_NAMES, KV_NAMES, Pricer, causal_pairs, measured_limits
from calibrate.atlas.shapes import FORM_ERROR, Priced, blend, completed, covered, neighbours, octaves_to
from calibrate.atlas.tables import Table
from calibrate.layer_groups import Attention
from calibrate.precision import WEIGHT_BYTES
from calibrate.step import EXTRAPOLATED

# The model the tables were measured on: DeepSeek-V3's widths, with 1 to 128 heads a rank.
LEAST_ATTENTION = 0.2
"""Share of a module without context that is attention at least."""
HIDDEN, Q_RANK, KV_RANK, ROPE, NOPE, V = 7168, 1536, 512, 64, 128, 128


def mla_prefill(price: Pricer, a: Attention, heads: int, gemm: str, kv_dtype: str) -> tuple[np.ndarray, Priced]:
    """(lengths, times) of one sequence over an empty cache in one layer, projections left out."""
    width = heads * (a.qk_nope_head_dim + a.qk_rope_head_dim + a.v_head_dim)
    found = _rows(price, "mla_prefill", gemm, kv_dtype)
    if found is None:
        length = 2.0 ** np.arange(0, 15)
        bound = 2.0 * width * causal_pairs(length, 0.0) / price.flops["bf16"]
        return length, Priced(CALL_S + bound / EFFICIENCY, EXTRAPOLATED, FORM_ERROR, "MLA's FLOPs")
    rows, module = found
    length = rows.axes[1][1].astype(float)
    grid = np.array([completed([length], row[0]) for row in rows.seconds])
    if module:
        grid = np.array(
            [
                t - _at(price, length, _projections(price, gemm, h, kv_dtype))
                for t, h in zip(grid, rows.keys[:, 0].tolist(), strict=True)
            ]
        )
    bounds = np.array([2.0 * h * (NOPE + ROPE + V) for h in rows.keys[:, 0]])
    bounds = bounds[:, None] * causal_pairs(length, 0.0) / price.flops["bf16"]
    grid = np.maximum.accumulate(np.maximum(grid, CALL_S + bounds), axis=1)
    weights, octaves = neighbours(rows.keys.astype(float), (heads,))
    theirs = rows.keys[:, 0] * float(NOPE + ROPE + V)
    seconds = blend(grid, weights, lambda row: width / float(theirs[row]))
    cover, error, words = covered(
        weights, octaves, price.error("mla_prefill", gemm, octaves_to(rows.keys[:, :1], (heads,)))
    )
    return length, Priced(seconds, cover, error, f"{rows.name} {words}")


def mla_decode(
    price: Pricer, a: Attention, heads: int, gemm: str, kv_dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Priced]:
    """(batch sizes, contexts, longest measured context by batch size, times [batch, context]) of one layer, the
    absorbed products with the latent included, projections left out."""
    latent = a.kv_lora_rank + a.qk_rope_head_dim
    byte = WEIGHT_BYTES[kv_dtype]
    found = _rows(price, "mla_decode", gemm, kv_dtype)
    if found is None:
        batch, context = 2.0 ** np.arange(0, 11), 2.0 ** np.arange(1, 18)
        seen = batch[:, None] * context
        bound = np.maximum(seen * latent * byte / price.bandwidth, 4.0 * heads * latent * seen / price.flops["bf16"])
        form = Priced(CALL_S + bound / EFFICIENCY, EXTRAPOLATED, FORM_ERROR, "MLA's latent bytes and FLOPs")
        return batch, context, np.full(len(batch), context[-1]), form
    rows, module = found
    batch, context = rows.axes[0][1].astype(float), rows.axes[1][1].astype(float)
    grid = np.array([completed([batch, context], row) for row in rows.seconds])
    floor = CALL_S + batch[:, None] * context * (KV_RANK + ROPE) * byte / price.bandwidth
    if module:
        around = [_at(price, batch, _projections(price, gemm, h, kv_dtype)) for h in rows.keys[:, 0].tolist()]
        grid = grid - np.array(around)[:, :, None]
    else:
        grid = grid + np.array([_absorbed(price, h, batch) for h in rows.keys[:, 0].tolist()])[:, :, None]
    grid = np.maximum(grid, floor)
    grid = np.maximum.accumulate(np.maximum.accumulate(grid, axis=1), axis=2)
    weights, octaves = neighbours(rows.keys.astype(float), (heads,))
    scale = latent / (KV_RANK + ROPE)
    seconds = blend(grid, weights, lambda row: scale)
    limits = np.min([measured_limits(context, rows.seconds[row]) for row, _ in weights], axis=0)
    cover, error, words = covered(
        weights, octaves, price.error("mla_decode", gemm, octaves_to(rows.keys[:, :1], (heads,)))
    )
    return batch, context, limits, Priced(seconds, cover, error, f"{rows.name} {words}")


def _rows(price: Pricer, operator: str, gemm: str, kv_dtype: str) -> tuple[Table, bool] | None:
    """(rows by heads, whether they time the whole module) of the backend's own table, else of the other's."""
    for backend in (price.backend, *price.atlas.backends):
        for name, module in ((operator, True), (operator + "_core", False)):
            table = price.atlas.table(backend, name)
            if table is None:
                continue
            wanted = {
                "gemm_type": [*GEMM_NAMES.get(gemm, ()), "fp8_block", "bfloat16"],
                "kv_cache_dtype": [KV_NAMES[kv_dtype], "bfloat16"],
                "mla_dtype": ["bfloat16"],
            }
            for column, names in wanted.items():
                if column in table.columns:
                    value = next((n for n in names if n in table.values(column)), None)
                    table = table.where(**{column: value})
            if len(table):
                return table, module
    return None


def mla_projections(price: Pricer, a: Attention, hidden: int, heads: int, gemm: str, kv_dtype: str) -> Priced:
    """Times by token count of the projections of one layer on one rank."""
    latent, q_width = a.kv_lora_rank + a.qk_rope_head_dim, heads * (a.qk_nope_head_dim + a.qk_rope_head_dim)
    down = [(a.q_lora_rank + latent, hidden), (q_width, a.q_lora_rank or hidden)]
    parts = [price.gemm(gemm, n, k) for n, k in (*down, (hidden, heads * a.v_head_dim))]
    own = np.sum([part.seconds for part in parts], axis=0)
    limited = _projections(price, gemm, heads, kv_dtype) / _products(price, gemm, heads)
    worst = max(parts, key=lambda part: part.cover)
    return Priced(np.maximum.accumulate(own * limited), worst.cover, worst.error, worst.basis)


def _at(price: Pricer, tokens: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    return np.interp(tokens, price.tokens, seconds)


def _products(price: Pricer, gemm: str, heads: float) -> np.ndarray:
    """Times by token count of the measured model's own projections as its products are priced alone. What prefill
    expands of the latent stays with attention."""
    shapes = [(Q_RANK + KV_RANK + ROPE, HIDDEN), (heads * (NOPE + ROPE), Q_RANK), (HIDDEN, heads * V)]
    return np.sum([price.gemm(gemm, int(n), int(k)).seconds for n, k in shapes], axis=0)


def _projections(price: Pricer, gemm: str, heads: float, kv_dtype: str) -> np.ndarray:
    """The same, at most a share of the module with nothing to attend to."""
    total, tokens = _products(price, gemm, heads), price.tokens
    for operator, axis in (("mla_prefill", 1), ("mla_decode", 0)):
        found = _rows(price, operator, gemm, kv_dtype)
        if found is None or not found[1]:
            continue
        rows = found[0]
        x = rows.axes[axis][1].astype(float)
        grid = np.array([completed([x], row[0] if axis else row[:, 0]) for row in rows.seconds])
        weights, _ = neighbours(rows.keys.astype(float), (heads,))
        module = np.interp(tokens, x, np.sum([weight * grid[row] for row, weight in weights], axis=0))
        total = np.where(tokens <= x[-1], np.minimum(total, (1 - LEAST_ATTENTION) * module), total)
    return np.maximum.accumulate(total)


def _absorbed(price: Pricer, heads: int, tokens: np.ndarray) -> np.ndarray:
    """Seconds of the two products with the latent (W_UK into the query, W_UV out of it) at so many tokens."""
    table = price.atlas.table(price.backend, "mla_bmm")
    if table is None:
        work = 4.0 * heads * NOPE * KV_RANK
        return 2 * CALL_S + np.maximum(work * tokens / price.flops["bf16"], work / price.bandwidth) / EFFICIENCY
    rows = table.where(bmm_dtype="bfloat16") if "bmm_dtype" in table.columns else table
    total, x = np.zeros(len(tokens)), rows.axes[0][1].astype(float)
    for name in rows.labels["op_name"]:
        one = rows.where(op_name=name)
        weights, _ = neighbours(one.keys.astype(float), (heads,))
        for row, weight in weights:
            total = total + weight * np.interp(tokens, x, completed([x], one.seconds[row])) * heads / one.keys[row, 0]
    return total
