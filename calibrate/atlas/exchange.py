"""What tokens and weights' shares take on their way between the GPUs of a replica.

The one idea: a collective is a table of times over the elements it moves, or, where none was measured, a latency and
bytes over the link at a stated error. All-reduce is `price`'s; here are the all-to-alls of experts and the sends of
pipeline stages.

    python -c "from calibrate.atlas.exchange import gather_scatter as f; from calibrate.atlas.price import Pricer;
    from calibrate.atlas.tables import load; print(f(Pricer(load('h200')), 8, 7168))"
"""

from __future__ import annotations

import numpy as np

from calibrate.atlas.price import Pricer
from calibrate.atlas.shapes import FORM_ERROR, Priced, along, completed
from calibrate.layout import LOW_LATENCY
from calibrate.step import EXTRAPOLATED, INTERPOLATED, MEASURED

HOP_S = 10e-6
"""Latency of a send, or of a collective per doubling of its GPUs, where none was measured."""
LOW_LATENCY_TOKENS = 256
"""Tokens a rank that DeepEP's low-latency kernels take in one call; more go in several."""
DEEPEP_ERROR = 0.14
"""Held-out mean error of a hidden size, top-k or number of experts that was not measured."""


def gather_scatter(price: Pricer, gpus: int, hidden: int) -> tuple[np.ndarray, Priced]:
    """(tokens of all ranks, times) of one all-gather of their hidden states and one reduce-scatter of the results, 16
    bits: how engines bring tokens to experts when nothing else is asked for."""
    tokens = price.tokens
    size = tokens * hidden
    nccl = price.atlas.table("nccl", "all") if price.link == price.own_link else None
    rows = (
        [] if nccl is None else [nccl.where(op_name=name, num_gpus=gpus) for name in ("all_gather", "reduce_scatter")]
    )
    if nccl is not None and all(len(table) for table in rows):
        x = nccl.axes[0][1].astype(float)
        seconds = np.sum([along(x, completed([x], table.seconds[0]), size) for table in rows], axis=0)
        return tokens, Priced(seconds, INTERPOLATED, 0.0, "nccl/all measured (all_gather and reduce_scatter)")
    moved = 2.0 * (gpus - 1) / gpus * 2.0 * size / price.link_bandwidth
    seconds = 2.0 * HOP_S * np.ceil(np.log2(gpus)) + moved
    return tokens, Priced(seconds, EXTRAPOLATED, FORM_ERROR, "latency and bytes over the link")


def deepep(price: Pricer, backend: str, gpus: int, hidden: int, topk: int, experts: int) -> tuple[np.ndarray, Priced]:
    """(tokens of one rank, times) of one dispatch and one combine by DeepEP's kernels. Of other sizes the work above
    the call's constant goes by the elements that a token sends; of other numbers of GPUs by the share that leaves."""
    low = backend == LOW_LATENCY
    tokens, latency = price.tokens, 2.0 * HOP_S * np.ceil(np.log2(gpus))
    table = price.atlas.table(price.backend, "all_to_all") if price.link == price.own_link else None
    if table is None:
        leaves = tokens * min(topk, gpus - 1) * hidden * (1.0 + 2.0)  # fp8 there, bf16 back
        form = Priced(
            latency + leaves / price.link_bandwidth, EXTRAPOLATED, FORM_ERROR, "latency and bytes over the link"
        )
        return tokens, form
    rows = table.where(comm_backend="deepep_ll" if low else "deepep_ht")
    measured_gpus = int(price.atlas.header["tables"][table.name]["constant"]["ep_size"])
    asked = (hidden, topk, experts)
    shapes = [c for c in rows.columns if c != "phase"]
    keys = rows.where(phase="dispatch").keys.astype(float)
    distance = np.abs(np.log2(keys / np.array(asked))).sum(axis=1)
    nearest = int(np.argmin(distance))
    scale = hidden * topk / (keys[nearest][shapes.index("hidden_size")] * keys[nearest][shapes.index("topk")])
    scale *= (1 - 1 / gpus) / (1 - 1 / measured_gpus)
    x = rows.axes[0][1].astype(float)
    total = np.zeros(len(tokens))
    calls = np.ceil(tokens / LOW_LATENCY_TOKENS) if low else np.ones(len(tokens))
    for phase in ("dispatch", "combine"):
        times = rows.where(phase=phase).seconds[nearest]
        there = np.isfinite(times)
        times = completed([x[there]], times[there])
        times = times[0] + (times - times[0]) * scale
        total += calls * along(x[there], times, tokens / calls)
    exact, same = distance[nearest] == 0, gpus == measured_gpus
    cover = MEASURED if exact and same else INTERPOLATED if same else EXTRAPOLATED
    error = 0.0 if exact and same else DEEPEP_ERROR if same else FORM_ERROR
    words = f"{table.name} {'low latency' if low else 'high throughput'}"
    return tokens, Priced(np.maximum.accumulate(total), cover, error, f"{words}, {measured_gpus} GPUs")


def sends(price: Pricer, hidden: int) -> Priced:
    """Times over `price.tokens` of one stage's hidden states to the next; not measured."""
    seconds = HOP_S + price.tokens * hidden * 2.0 / price.link_bandwidth
    return Priced(seconds, EXTRAPOLATED, FORM_ERROR, "latency and bytes over the link")
