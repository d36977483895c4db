"""A model's step time on a GPU: its layers' operators priced by the atlas and added up once, at load.

The one idea: whatever a step needs later is a sum over operators that depends on one or two numbers only (tokens, rows,
new x cached, batch x context), so each sum is tabulated here in the layout of `calibrate.sources.tables` and a step
costs what a step of a measured profile costs.

    python -c "from calibrate.atlas.steps import operators; from calibrate.models import resolve_model as m;
    print(*operators('h200', m('llama-3.1-8b'), 'fp8', 'fp8'), sep='\\n')"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calibrate.atlas.exchange import deepep, gather_scatter, sends
from calibrate.atlas.experts import MoeShape
from calibrate.atlas.linear import linear_decode, linear_prefill
from calibrate.atlas.mla import mla_decode, mla_prefill, mla_projections
from calibrate.atlas.price import Pricer, causal_pairs
from calibrate.atlas.shapes import Priced, along
from calibrate.atlas.sparse import sparse_decode, sparse_prefill, sparse_projections
from calibrate.atlas.tables import Atlas, load
from calibrate.layer_groups import Attention, LayerGroup, Mlp, layer_groups
from calibrate.layout import COLLECTIVES, NODE_GPUS, Layout, as_layout
from calibrate.model_spec import ModelSpec
from calibrate.models import known_as
from calibrate.precision import Precision
from calibrate.profile import DeviceProfile
from calibrate.sources.tables import TableStepTime
from calibrate.step import COVERAGE, INTERPOLATED
from workloads.errors import InputError

CACHED = np.array([0, *(2.0**i for i in range(6, 21))])
"""Cached prefixes the prefill table is laid out at, tokens."""
LONG = 2.0 ** np.arange(15, 19)
"""Chunk lengths beyond the measured ones."""
PREFILL_CALL_S = 13.2e-6
"""What the package adds to the kernel of a prefill call in a layer (rotary embedding and KV write), however long the
prefix, and again for each of the norms of q and k."""
KV_KINDS = ("full", "window", "chunked")
"""Attention over keys and values of its own."""

Prefixes = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(new tokens, cached tokens, seconds [new, cached]) as measured."""


SECOND_STREAM_TOKENS = {"vllm": 256, "sglang": 1024, "trtllm": 128}
"""Steps of so many tokens at most run the shared expert beside the routed ones (the engines' own thresholds;
TensorRT-LLM does so in captured graphs, whose largest batch is 128 unless told otherwise)."""


@dataclass(frozen=True)
class Operator:
    """One operator of a step: `repeat` calls priced over `axis` (tokens, rows, new x cached, batch x context)."""

    name: str
    axis: str
    repeat: int
    cover: int
    error: float
    basis: str
    x: np.ndarray = field(repr=False)
    seconds: np.ndarray = field(repr=False)
    reach: float = np.inf  #: how far along x it was measured


def operators(
    gpu: str,
    model: ModelSpec,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    layout: Layout | None = None,
    backend: str = "vllm",
) -> list[Operator]:
    """Everything but attention that one rank runs in a step of the model on a bundled GPU."""
    return _Model(Pricer(load(gpu), backend), model, dtype, kv_dtype, layout or Layout()).dense()


class _Model:
    """A model at a layout on a GPU, as priced operators."""

    def __init__(self, price: Pricer, model: ModelSpec, dtype: str, kv_dtype: str, layout: Layout):
        _check(model, layout, dtype, kv_dtype)
        self.price, self.model = price, model
        self.layout, self.tp = layout, layout.tensor_parallel
        self.by: Precision = model.precision(dtype)
        self.kv_dtype = "bf16" if kv_dtype == "fp16" else kv_dtype
        self.groups = layer_groups(model)

    # ---- everything but attention ----------------------------------------------------------------------------

    def dense(self) -> list[Operator]:
        """Operators over the tokens of a rank's step or ("all tokens") of all data ranks', then those over its sampled
        rows."""
        found = [self._bytes("embedding", 1, 2.0 * self.model.hidden)]
        halves = 0
        for group in self.groups:
            own = group.count * ((group.attention.kind != "none") + (group.mlp.kind != "none"))
            found += [self._bytes("norm", own, 8.0 * self.model.hidden)]
            found += self._projections(group.count, group.attention)
            found += self._mlp(group)
            halves += own
        if self.tp > 1:
            found.append(self._all_reduce(halves + 1))
        if self.layout.pipeline_parallel > 1:
            hops = self.layout.pipeline_parallel - 1
            send = sends(self.price, self.model.hidden)
            found.append(_operator("pipeline_send", "tokens", hops, self.price.tokens, send))
        head = self.price.gemm("bf16", -(-self.model.vocab // self.tp), self.model.hidden)
        found.append(_operator("lm_head", "rows", 1, self.price.tokens, head))
        return [*found, *self._small()]

    def _small(self) -> list[Operator]:
        """Operators that tables count within others or not at all, where they were measured by themselves. A norm of q
        and k is one of them wherever rotary embedding is, measured or not."""
        model, price = self.model, self.price
        wanted = [("final_norm", "tokens", 1, price.measured("norm", 8.0 * model.hidden))]
        for group in self.groups:
            a = group.attention
            q, kv = a.heads // self.tp * a.head_dim, -(-a.kv_heads // self.tp) * a.head_dim
            rope = price.measured("rope_kv_write", 4.0 * q + 8.0 * kv) if a.kind in KV_KINDS else None
            wanted.append(("rope_kv_write", "tokens", group.count, rope))
            if rope is not None and model.qk_norm:
                wanted.append(("qk_norm", "tokens", group.count, price.streamed("qk_norm", 4.0 * (q + kv))))
        wanted.append(("sampler", "rows", 1, price.measured("sample", 2.0 * -(-model.vocab // self.tp))))
        return [_operator(name, axis, n, price.tokens, found) for name, axis, n, found in wanted if found is not None]

    def _projections(self, count: int, a: Attention) -> list[Operator]:
        """An attention layer's matrix multiplies on one rank."""
        hidden, heads, kv_heads = self.model.hidden, a.heads // self.tp, -(-a.kv_heads // self.tp)
        if a.kind == "none":
            return []
        if a.index_topk:
            priced = sparse_projections(self.price, a, hidden, heads, self.by.type_of("attention"))
            return [_operator("sparse_projections", "tokens", count, self.price.tokens, priced)]
        if a.kind == "mla":
            priced = mla_projections(self.price, a, hidden, heads, self.by.type_of("attention"), self.kv_dtype)
            return [_operator("mla_projections", "tokens", count, self.price.tokens, priced)]
        if a.kind == "linear":
            value, key = heads * a.head_dim, kv_heads * a.state_dim
            steps = heads * (2 if a.mixer == "gdn" else 1)
            return [
                self._gemm("linear_in", "linear", count, 2 * value + 2 * key + steps, hidden),
                self._gemm("linear_out", "linear", count, hidden, value),
            ]
        queries = heads * (2 if a.gated else 1)
        return [
            self._gemm("qkv", "attention", count, (queries + 2 * kv_heads) * a.head_dim, hidden),
            self._gemm("attention_out", "attention", count, hidden, heads * a.head_dim),
        ]

    def _mlp(self, group: LayerGroup) -> list[Operator]:
        mlp, hidden, tokens = group.mlp, self.model.hidden, self.price.tokens
        if mlp.kind == "none":
            return []
        if mlp.kind == "dense":
            return self._feed_forward("", "mlp", group.count, mlp.inter // self.tp, mlp.gated)
        found = []
        if not self.price.router_in_experts(self._experts(mlp)):
            router = self.price.gemm("bf16", mlp.experts, hidden)
            found.append(_operator("router", "tokens", group.count, tokens, router))
        if mlp.latent:
            found.append(self._gemm("latent_down", "shared", group.count, mlp.latent, hidden))
            found.append(self._gemm("latent_up", "shared", group.count, hidden, mlp.latent))
        axis = "all tokens" if self.layout.attention_dp > 1 else "tokens"
        experts = _operator("experts", axis, group.count, *self.price.moe(self._experts(mlp)))
        if mlp.shared_inter:
            shared = self._feed_forward("shared_", "shared", group.count, mlp.shared_inter // self.tp, mlp.gated)
            found += self._beside(shared, experts)
        found.append(experts)
        return found + ([self._exchange(group.count, mlp)] if self.layout.attention_dp > 1 else [])

    def _beside(self, shared: list[Operator], experts: Operator) -> list[Operator]:
        """Of the shared expert what takes longer than the routed ones: steps of few tokens run it on a second
        stream."""
        x, limit = self.price.tokens, SECOND_STREAM_TOKENS.get(self.price.backend, 0)
        own = np.sum([o.seconds for o in shared], axis=0)
        hidden = np.interp(x * self.layout.attention_dp, experts.x, experts.seconds)
        left = np.where(x <= limit, np.maximum(own - hidden, 0.0) / own, 1.0)
        words = f", up to {limit} tokens beside the routed experts"
        return [replace(o, seconds=o.seconds * left, basis=o.basis + words) for o in shared]

    def _exchange(self, repeat: int, mlp: Mlp) -> Operator:
        """Tokens to the experts of other data ranks and back. Ranks of one tensor-parallel group hold the same tokens
        and need no all-to-all."""
        layout, hidden = self.layout, mlp.latent or self.model.hidden
        if layout.all_to_all == COLLECTIVES:
            priced = gather_scatter(self.price, layout.attention_dp, hidden)
            return _operator("all_gather_reduce_scatter", "all tokens", repeat, *priced)
        ranks = (layout.expert_ranks, hidden, mlp.topk, mlp.experts)
        return _operator("all_to_all", "tokens", repeat, *deepep(self.price, layout.all_to_all, *ranks))

    def _experts(self, mlp: Mlp) -> MoeShape:
        return MoeShape(
            self.by.type_of("experts"),
            mlp.latent or self.model.hidden,
            mlp.expert_inter,
            mlp.topk,
            mlp.experts,
            self.layout.expert_slices,
            self.layout.expert_ranks // self.layout.expert_slices,
            3 if mlp.gated else 2,
        )

    def _feed_forward(self, prefix: str, part: str, repeat: int, width: int, gated: bool) -> list[Operator]:
        hidden = self.model.hidden
        return [
            self._gemm(prefix + ("gate_up" if gated else "up"), part, repeat, (2 if gated else 1) * width, hidden),
            self._bytes(prefix + ("silu_mul" if gated else "relu2"), repeat, (6.0 if gated else 4.0) * width),
            self._gemm(prefix + "down", part, repeat, hidden, width),
        ]

    def _gemm(self, name: str, part: str, repeat: int, n: int, k: int) -> Operator:
        return _operator(name, "tokens", repeat, self.price.tokens, self.price.gemm(self.by.type_of(part), n, k))

    def _bytes(self, name: str, repeat: int, bytes_per_token: float) -> Operator:
        return _operator(name, "tokens", repeat, self.price.tokens, self.price.streamed(name, bytes_per_token))

    def _all_reduce(self, repeat: int) -> Operator:
        size, priced = self.price.all_reduce(self.tp)
        x = self.price.tokens
        seconds = along(size / self.model.hidden, priced.seconds, x)
        return Operator("all_reduce", "tokens", repeat, priced.cover, priced.error, priced.basis, x, seconds)

    # ---- attention -------------------------------------------------------------------------------------------

    def attention(self) -> tuple[dict[str, Any], dict[str, Any], list[Operator]]:
        """(prefill table, decode table, what they rest on), each summed over all layers, in microseconds."""
        by_kind: dict[Attention, int] = {}
        for group in self.groups:
            if group.attention.kind != "none":
                by_kind[group.attention] = by_kind.get(group.attention, 0) + group.count
        prefills, decodes, about = [], [], []
        for attention, count in by_kind.items():
            prefill, decode = self._layer(attention)
            prefills.append((count, attention, *prefill))
            decodes.append((count, *decode))
            kind = "sparse" if attention.index_topk else attention.kind
            about += [_operator(f"{kind}_prefill", "new x cached", count, *prefill)]
            about += [_operator(f"{kind}_decode", "batch x context", count, decode[0], decode[3])]
        decode_table = _decode_table(decodes)
        call_s = 0.0 if self.price.measured("rope_kv_write", 1.0) else PREFILL_CALL_S * (3 if self.model.qk_norm else 1)
        prefixes = [self._prefixes(part[1]) for part in prefills]
        return _prefill_table(prefills, decode_table, call_s, prefixes), decode_table, about

    def _prefixes(self, a: Attention) -> Prefixes | None:
        if a.kind in ("mla", "linear"):
            return None
        heads, kv_heads = a.heads // self.tp, -(-a.kv_heads // self.tp)
        return self.price.prefixes(heads, kv_heads, a.head_dim, a.window, self.kv_dtype)

    def _layer(
        self, a: Attention
    ) -> tuple[tuple[np.ndarray, Priced], tuple[np.ndarray, np.ndarray, np.ndarray, Priced]]:
        heads, kv_heads = a.heads // self.tp, -(-a.kv_heads // self.tp)
        if a.kind == "linear":
            return linear_prefill(self.price, a, self.tp), linear_decode(self.price, a, self.tp)
        if a.index_topk:
            sparse = (self.price, a, self.model.hidden, heads, self.by.type_of("attention"), self.kv_dtype)
            return sparse_prefill(*sparse, CACHED), sparse_decode(*sparse)
        if a.kind == "mla":
            given = (self.price, a, heads, self.by.type_of("attention"), self.kv_dtype)
            return mla_prefill(*given), mla_decode(*given)
        shape = (heads, kv_heads, a.head_dim, a.window, self.kv_dtype)
        return self.price.prefill(*shape), self.price.decode(*shape)


def unpriced(model: ModelSpec, dtype: str, kv_dtype: str) -> str:
    """What of a model no atlas has a price for; "" when all has one."""
    wrong = next((name for name in (dtype, kv_dtype) if name == "fp32"), "")
    return f"{wrong} weights or KV" if wrong else ""


def _check(model: ModelSpec, layout: Layout, dtype: str, kv_dtype: str) -> None:
    model.check(layout)
    if layout.expert_ranks > NODE_GPUS:
        raise InputError(
            f"tensor_parallel {layout.tensor_parallel} x attention_dp {layout.attention_dp} = {layout.expert_ranks}"
            f" GPUs: expected at most {NODE_GPUS}, those of one node"
        )
    if lacking := unpriced(model, dtype, kv_dtype):
        raise InputError(f"atlas: {model.name}: {lacking} has no price yet; expected roofline:GPU for it")


def _operator(name: str, axis: str, repeat: int, x: np.ndarray, priced: Priced) -> Operator:
    return Operator(name, axis, repeat, priced.cover, priced.error, priced.basis, x, priced.seconds, priced.reach)


def _decode_table(parts: list[tuple[int, np.ndarray, np.ndarray, np.ndarray, Priced]]) -> dict[str, Any]:
    """Decode attention of all layers over batch x context. A grid of its own for every kind of layer; their sum stands
    on the union of the axes."""
    batch = np.unique(np.concatenate([part[1] for part in parts]))
    context = np.unique(np.concatenate([part[2] for part in parts]))
    total, limits = np.zeros((len(batch), len(context))), np.full(len(batch), np.inf)
    for count, b, c, limit, priced in parts:
        by_context = np.array([along(c, row, context) for row in priced.seconds])
        total += count * np.array([along(b, column, batch) for column in by_context.T]).T
        limits = np.minimum(
            limits, np.where(batch <= b[-1], limit[np.minimum(np.searchsorted(b, batch), len(b) - 1)], 0.0)
        )
    return {
        "repeat": 1,
        "batch": batch.astype(int).tolist(),
        "context": context.astype(int).tolist(),
        "us": (total * 1e6).tolist(),
        "measured_context": limits.tolist(),
    }


def _prefill_table(
    parts: list[tuple[int, Attention, np.ndarray, Priced]],
    decode: dict[str, Any],
    call_s: float,
    prefixes: list[Prefixes | None],
) -> dict[str, Any]:
    """Prefill attention of all layers over new x cached, one sequence. Where prefixes were measured, those; else

    t(new, cached) = launch + (t(full) - launch) x pairs(new, cached) / pairs(full), full = new + cached; never below
    t(new, 0) nor below one decode over the same KV, never falling along either axis."""
    measured = [prefix for prefix in prefixes if prefix is not None]
    new = np.unique(np.concatenate([*(part[2] for part in parts), *(prefix[0] for prefix in measured), LONG]))
    cached = np.unique(np.concatenate([CACHED, *(prefix[1] for prefix in measured)]))
    n, c = new[:, None], cached[None, :]
    full, total, launch = n + c, np.zeros((len(new), len(cached))), 0.0
    for (count, attention, length, priced), prefix in zip(parts, prefixes, strict=True):
        start = float(priced.seconds.flat[0])
        if attention.index_topk:  # its prefixes are in its table, at CACHED
            by_new = np.array([along(length, column, new) for column in priced.seconds.T]).T
            total += count * np.array([np.interp(cached, CACHED, row) for row in by_new])
            launch += count * start
            continue
        if prefix is not None:
            total += count * (call_s + _over(prefix, n, c, attention.window))
            launch += count * (call_s + start)
            continue
        if attention.kind == "linear":  # a state has no prefix to attend to
            total += count * (start + along(length, priced.seconds - start, n))
            launch += count * start
            continue
        work = _work(length, priced.seconds - start, attention.window)
        share = causal_pairs(n, c, attention.window) / causal_pairs(full, 0.0, attention.window)
        total += count * (call_s + start + work(full) * share)
        launch += count * (call_s + start)
    alone = along(np.array(decode["context"], dtype=float), np.array(decode["us"][0]) / 1e6, full)
    total = np.maximum(total, alone)
    total = np.maximum.accumulate(np.maximum.accumulate(total, axis=0), axis=1)
    longest = float(max(part[2][-1] for part in parts if part[1].kind != "linear"))
    table = {
        "repeat": 1,
        "new": new.astype(int).tolist(),
        "cached": cached.astype(int).tolist(),
        "us": (total * 1e6).tolist(),
        "launch_us": launch * 1e6,
        "max_new": longest,
        "max_kv": max(decode["measured_context"]),
        "max_pairs": longest * (longest + 1) / 2,
    }
    if len(measured) < len(parts):
        return table
    reach = [(prefix[0][:, None] + prefix[1], causal_pairs(prefix[0][:, None], prefix[1])) for prefix in measured]
    return table | {
        "max_kv": float(min(kv.max() for kv, _ in reach)),
        "max_pairs": float(min(p.max() for _, p in reach)),
    }


def _over(prefix: Prefixes, n: np.ndarray, c: np.ndarray, window: int) -> np.ndarray:
    """Seconds [n, c] of a measured grid: linear inside; outside the nearest point grows with the pairs."""
    new, cached, seconds = prefix
    by_new = np.array([np.interp(n[:, 0], new, column) for column in seconds.T])
    inside = np.array([np.interp(c[0], cached, row) for row in by_new.T])
    edge = causal_pairs(np.minimum(n, new[-1]), np.minimum(c, cached[-1]), window)
    return np.asarray(inside * np.maximum(causal_pairs(n, c, window) / edge, 1.0))


def _work(length: np.ndarray, work: np.ndarray, window: int) -> Callable[[np.ndarray], np.ndarray]:
    """Seconds above the launch of a whole prompt by its length: linear between measured ones, by pairs beyond."""

    def at(full: np.ndarray) -> np.ndarray:
        inside = np.interp(full, length, work)
        beyond = causal_pairs(full, 0.0, window) / causal_pairs(length[-1], 0.0, window)
        return np.where(full > length[-1], work[-1] * beyond, inside)

    return at


def points(
    atlas: Atlas,
    model: ModelSpec,
    dtype: str,
    kv_dtype: str,
    layout: Layout,
    backend: str = "vllm",
    link: str | None = None,
    as_tabled: bool = False,
) -> dict[str, Any]:
    """The tables of a whole step in the layout of `calibrate.sources.tables`; "rests_on" says what each operator's time
    is. No host time in them. link: between the GPUs, instead of their own. as_tabled: as `Pricer` has it."""
    return points_at(Pricer(atlas, backend, link, as_tabled), model, dtype, kv_dtype, layout)


def points_at(price: Pricer, model: ModelSpec, dtype: str, kv_dtype: str, layout: Layout) -> dict[str, Any]:
    """`points` at the prices of any source, no host time in them."""
    priced = _Model(price, model, dtype, kv_dtype, layout)
    dense = priced.dense()
    prefill, decode, attention = priced.attention()
    by_axis = {axis: [_row(o) for o in dense if o.axis == axis] for axis in ("tokens", "all tokens", "rows")}
    return {
        "dense": by_axis["tokens"],
        **({"all_ranks": by_axis["all tokens"]} if by_axis["all tokens"] else {}),
        "per_sequence": by_axis["rows"],
        "prefill_attention": prefill,
        "decode_attention": decode,
        "cover": max(INTERPOLATED, *(o.cover for o in (*dense, *attention))),
        "rests_on": [
            {"name": o.name, "repeat": o.repeat, "coverage": COVERAGE[o.cover], "error": o.error, "basis": o.basis}
            for o in (*dense, *attention)
        ],
    }


def with_host(table: dict[str, Any], step_s: float, sequence_s: float, launch_floor_s: float) -> dict[str, Any]:
    """The tables with host time: of a step, of each sampled sequence, and the least time of a step with a prefill."""
    rows = table["per_sequence"]
    us = [sequence_s * 1e6, sequence_s * 2e6]
    host = {"name": "host_per_sequence", "repeat": 1, "rows": [1, 2], "us": us, "measured_to": rows[0]["measured_to"]}
    return {
        **table,
        "per_sequence": [*rows, host],
        "step_overhead_us": step_s * 1e6,
        "launch_floor_us": launch_floor_s * 1e6,
    }


def _row(o: Operator) -> dict[str, Any]:
    x, us = o.x.astype(int).tolist(), (o.seconds * 1e6).tolist()
    axis = "rows" if o.axis == "rows" else "tokens"
    return {"name": o.name, "repeat": o.repeat, "basis": o.basis, axis: x, "us": us, "measured_to": min(x[-1], o.reach)}


def atlas_step_time(
    gpu: str,
    model: ModelSpec,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    layout: Layout | None = None,
    **options: Any,
) -> TableStepTime:
    """StepTime of a model on a bundled GPU; options as `points` takes them."""
    return TableStepTime(points(load(gpu), model, dtype, kv_dtype, layout or Layout(), **options))


def atlas_profile(
    spec: str,
    model: ModelSpec,
    dtype: str = "bf16",
    tp: int | Layout = 1,
    kv_dtype: str | None = None,
    link: str | None = None,
) -> DeviceProfile:
    """The profile of atlas:GPU or atlas:GPU:BACKEND for a model at a layout: its points are priced here and now, its
    provenance names the atlas file by content hash."""
    gpu, _, backend = spec.partition(":")
    atlas, kv = load(gpu), kv_dtype or model.kv_dtype(dtype)
    layout = as_layout(tp)
    table = points(atlas, model, dtype, kv, layout, backend or "vllm", link)
    tables = atlas.header["tables"]
    return DeviceProfile(
        id=f"atlas:{spec}",
        kind="atlas",
        label=f"priced from measured operators of {atlas.header['name']} ({backend or 'vllm'}), not measured by kvcast",
        device={"name": atlas.header["name"], "memory_gib": atlas.header["memory_gib"]},
        model=known_as(model),
        dtype=dtype,
        kv_dtype=kv,
        tensor_parallel=layout.tensor_parallel,
        spread=None if layout.plain else layout,
        provenance={
            **atlas.header["provenance"],
            "version": tables[f"{backend or 'vllm'}/gemm"]["version"],
            "date": "2026-11-30",
            "kernels": ", ".join(sorted({o["basis"].split()[0] for o in table["rests_on"] if "/" in o["basis"]})),
            "content_hash": atlas.content_hash,
            "notes": [
                "Times of shapes that were not measured lie between measured ones; points.rests_on states the expected"
                " error of each operator.",
                "Norms, activations, the embedding and attention over a cached prefix are formulas.",
            ],
        },
        points=table,
    )
