"""Linear attention (Gated DeltaNet, Mamba-2): a state of constant size instead of KV.

The one idea: a decode reads and writes its sequence's state, whatever the context; a prefill does so once a call and
computes on it token by token. Both are the operator's form at a share of the hardware: the tables' own times (gdn) are
not priced yet.

    python -c "from calibrate.atlas.linear import linear_prefill as f; from calibrate.atlas.price import Pricer;
    from calibrate.atlas.tables import load; print(f(Pricer(load('h200')), 2**20, 3e6))"
"""

from __future__ import annotations

import numpy as np

from calibrate.atlas.price import CALL_S, EFFICIENCY, Pricer
from calibrate.atlas.shapes import FORM_ERROR, Priced
from calibrate.step import EXTRAPOLATED

BASIS = "bytes and FLOPs of the state"


def linear_prefill(price: Pricer, state_bytes: float, token_flops: float) -> tuple[np.ndarray, Priced]:
    """(lengths, times) of one sequence in one layer. state_bytes: of one rank; token_flops: on it, of one token."""
    length = 2.0 ** np.arange(0, 15)
    bound = 2.0 * state_bytes / price.bandwidth + length * token_flops / price.flops["bf16"]
    return length, Priced(CALL_S + bound / EFFICIENCY, EXTRAPOLATED, FORM_ERROR, BASIS)


def linear_decode(
    price: Pricer, state_bytes: float, token_flops: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Priced]:
    """(batch sizes, contexts: one stands for all, longest context by batch size: no end, times [batch, context]) of one
    layer."""
    batch, context = 2.0 ** np.arange(0, 11), np.array([2048.0])
    bound = batch * np.maximum(2.0 * state_bytes / price.bandwidth, token_flops / price.flops["bf16"])
    seconds = (CALL_S + bound / EFFICIENCY)[:, None]
    return batch, context, np.full(len(batch), np.inf), Priced(seconds, EXTRAPOLATED, FORM_ERROR, BASIS)
