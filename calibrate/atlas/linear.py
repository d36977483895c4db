"""Linear attention (Gated DeltaNet, Mamba-2): a state of constant size instead of KV.

The one idea: a decode reads and writes its sequence's state, whatever the context; a prefill does so once a call and
computes on it token by token. The tables time two kernels of a layer, the convolution and the recurrence; where one of
them is missing (Mamba-2's recurrence, gdn's prefill on an A100) its form at a share of the hardware takes its place.

    python -c "from calibrate.atlas.linear import linear_prefill as f; from calibrate.atlas.price import Pricer;
    from calibrate.atlas.tables import load; from calibrate.models import resolve_model as m;
    print(f(Pricer(load('h200')), m('qwen3-next-80b-a3b').layer_groups[0].attention, 1))"
"""

from __future__ import annotations

import numpy as np

from calibrate.atlas.price import CALL_S, EFFICIENCY, Pricer
from calibrate.atlas.shapes import FORM_ERROR, Priced, blend, completed, covered, neighbours
from calibrate.atlas.tables import Table
from calibrate.layer_groups import Attention
from calibrate.step import EXTRAPOLATED

BASIS = "bytes and FLOPs of the state"
LENGTHS, BATCHES = 2.0 ** np.arange(0, 15), 2.0 ** np.arange(0, 11)
GDN_ERROR = {"context": 0.05, "generation": 0.06}
"""Held-out mean error of a pair of head counts that was not measured, over the GPUs; half of it for one that was."""
CONVOLUTION, RECURRENCE = "causal_conv1d", ""


def linear_prefill(price: Pricer, a: Attention, tp: int) -> tuple[np.ndarray, Priced]:
    """(lengths, times) of one sequence in one layer of one of tp ranks."""
    length, measured = _measured(price, a, tp, "context")
    form = CALL_S + _prefill_bound(price, a, tp, length) / EFFICIENCY
    return length, _priced(measured, form, _prefill_bound(price, a, tp, length))


def linear_decode(price: Pricer, a: Attention, tp: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, Priced]:
    """(batch sizes, contexts: one stands for all, longest context by batch size: no end, times [batch, context]) of one
    layer of one of tp ranks."""
    batch, measured = _measured(price, a, tp, "generation")
    bound = batch * max(2.0 * a.state_bytes(tp) / price.bandwidth, a.state_flops / tp / price.flops["bf16"])
    priced = _priced(measured, CALL_S + bound / EFFICIENCY, bound)
    by_context = Priced(priced.seconds[:, None], priced.cover, priced.error, priced.basis)
    return batch, np.array([2048.0]), np.full(len(batch), np.inf), by_context


def _prefill_bound(price: Pricer, a: Attention, tp: int, length: np.ndarray) -> np.ndarray:
    state_s = 2.0 * a.state_bytes(tp) / price.bandwidth
    return np.asarray(np.maximum(state_s, length * (a.state_flops / tp) / price.flops["bf16"]))


def _priced(measured: dict[str, Priced], form: np.ndarray, bound: np.ndarray) -> Priced:
    """The sum of both kernels, the recurrence by its form where it was not measured; never below the hardware."""
    if not measured:
        return Priced(form, EXTRAPOLATED, FORM_ERROR, BASIS)
    seconds = np.sum([one.seconds for one in measured.values()], axis=0)
    worst = max(measured.values(), key=lambda one: (one.cover, one.error))
    if RECURRENCE not in measured:
        worst = Priced(form, EXTRAPOLATED, FORM_ERROR, f"{worst.basis} (convolution), {BASIS}")
        seconds = seconds + form
    return Priced(np.maximum.accumulate(np.maximum(seconds, bound)), worst.cover, worst.error, worst.basis)


def _measured(price: Pricer, a: Attention, tp: int, phase: str) -> tuple[np.ndarray, dict[str, Priced]]:
    """(lengths or batch sizes, times of each kernel that was measured)."""
    axis = LENGTHS if phase == "context" else BATCHES
    backends = (price.backend, *price.atlas.backends)
    table = next((t for b in backends if (t := price.atlas.table(b, a.mixer)) is not None), None)
    if table is None:
        return axis, {}
    rows = table.where(phase=phase)
    axis = rows.axes[1 if phase == "context" else 0][1].astype(float)
    kernels = [name for name in rows.labels["kernel_source"] if len(rows.where(kernel_source=name))]
    found = {}
    for name in kernels:
        part = CONVOLUTION if name.startswith(CONVOLUTION) else RECURRENCE
        found[part] = _kernel(rows.where(kernel_source=name), a, tp, phase, axis, rows.name)
    return axis, found


def _kernel(rows: Table, a: Attention, tp: int, phase: str, axis: np.ndarray, name: str) -> Priced:
    """One kernel at the layer's heads: gdn's tables go by key and value heads, Mamba-2's by what is convolved."""
    grid = np.array([completed([axis], row[0] if phase == "context" else row[:, 0]) for row in rows.seconds])
    column = {c: rows.keys[:, i].astype(float) for i, c in enumerate(rows.columns)}
    heads, kv_heads = -(-a.heads // tp), -(-a.kv_heads // tp)
    if a.mixer == "gdn":
        key_heads = column.get("num_k_heads", np.full(len(rows), float(kv_heads)))
        keys, asked = np.stack([key_heads, column["num_v_heads"]], axis=1), (kv_heads, heads)
        width, mine = column["num_v_heads"], float(heads)
    else:
        width = column["nheads"] * 64 + 2 * column["n_groups"] * column["d_state"]
        mine = float(heads * a.head_dim + 2 * kv_heads * a.state_dim)
        keys, asked = width[:, None], (mine,)  # type: ignore[assignment]
    weights, octaves = neighbours(keys, asked)
    seconds = blend(grid, weights, lambda row: mine / float(width[row]))
    cover, error, words = covered(weights, octaves, GDN_ERROR[phase] / (1 if len(weights) > 1 or octaves else 2))
    return Priced(seconds, cover, error, f"{name} {words}")
