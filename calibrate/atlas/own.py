"""A model's step time from operator rows of one's own, over the atlas of the same GPU.

The one idea: every operator is asked of the rows first; where they cover its shape they win, and where they do not, it
rests on the atlas below. What neither holds is an error that names the operator. Which it was stands in
`points.rests_on`, operator by operator.

    kvcast profile show FOLDER --model qwen3-8b
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrate.atlas.experts import MoeShape
from calibrate.atlas.own_tables import OWN, US, atlas_of, header_of, plain, rows_of
from calibrate.atlas.price import GEMM_NAMES, KV_NAMES, MOE_NAMES, TOKENS, Pricer, causal_pairs
from calibrate.atlas.shapes import FORM_ERROR, Priced, along, blend, covered, neighbours
from calibrate.atlas.steps import Prefixes, points_at, with_host
from calibrate.atlas.tables import Table, load
from calibrate.layout import Layout
from calibrate.model_spec import ModelSpec
from calibrate.models import known_as
from calibrate.operators import attention_shape
from calibrate.precision import WEIGHT_BYTES
from calibrate.profile import DeviceProfile
from calibrate.rows import AXES, HEADS, Rows
from calibrate.step import EXTRAPOLATED, INTERPOLATED, MEASURED
from workloads.errors import InputError


class Own(Pricer):
    """Prices of rows over the prices of an atlas (base; None: nothing below). `tokens` holds the points of both, so
    that no measured time is moved between two of them."""

    def __init__(self, rows: Rows, base: Pricer | None):
        own = atlas_of(rows, base.atlas.header if base else header_of(rows))
        super().__init__(base.atlas if base else own, base.backend if base else OWN)
        self.own, self.base, self.rows = Pricer(own, OWN), base, rows
        points = [
            np.array([row[axis] for row in rows_of(rows, operator)])
            for operator, axis in (("gemm", "m"), ("elementwise", "num_tokens"))
        ]
        self.tokens = np.unique(np.concatenate([base.tokens if base else TOKENS, *points])).astype(float)
        self._held_out: dict[str, float] = {}

    def _lower(self, operator: str) -> Pricer:
        if self.base is None:
            have = ", ".join(sorted(self.rows.operators))
            raise InputError(
                f"{self.rows.name}: the model needs {operator}, which these rows lack (they have {have}), and"
                f" {self.rows.device['name']} has no atlas that it could rest on"
            )
        return self.base

    def _wins(self, inside: bool) -> bool:
        """Rows are taken where they cover a shape, and where there is nothing else."""
        return inside or self.base is None

    # ---- matrix multiplies -------------------------------------------------------------------------------------------

    def gemm(self, dtype: str, n: int, k: int) -> Priced:
        kind = "bf16" if dtype == "fp16" else dtype
        rows = self.own._named("gemm", "gemm_dtype", GEMM_NAMES.get(kind, ())) if self._has("gemm") else None
        if rows is not None:
            weights, octaves = neighbours(rows.keys, (n, k))
            if self._wins(octaves == 0):
                error = self._gemm_error(kind, rows) if len(weights) > 1 or octaves else 0.0
                return self._from_own(kind, rows, n, k, covered(weights, octaves, error))
        if self.base is None and self._has("gemm") and self.own._named("gemm", "gemm_dtype", GEMM_NAMES["bf16"]):
            return self._laid_out(self.own.tokens, self.own.gemm(dtype, n, k))
        lower = self._lower(f"gemm in {kind}")
        return self._laid_out(lower.tokens, lower.gemm(dtype, n, k))

    def _from_own(self, dtype: str, rows: Table, n: int, k: int, known: tuple[int, float, str]) -> Priced:
        priced = self.own._gemm_rows(dtype, rows, float(n), float(k))
        weights, _ = neighbours(rows.keys, (n, k))
        cover, error, words = known
        reach = min(float(self.own.tokens[np.flatnonzero(np.isfinite(rows.seconds[i]))[-1]]) for i, _ in weights)
        at = self.own.tokens <= reach
        seconds = along(self.own.tokens[at], priced.seconds[at], self.tokens)
        return Priced(seconds, cover, error, f"{rows.name} {words}", reach)

    def _gemm_error(self, dtype: str, rows: Table) -> float:
        """Mean error of predicting a shape from the others, over those that lie between others; a form's where none
        does."""
        if dtype not in self._held_out:
            errors = []
            for i, key in enumerate(rows.keys):
                others = rows.among(lambda keys, i=i: np.arange(len(keys)) != i)  # type: ignore[misc]
                if len(others) and neighbours(others.keys, key)[1] == 0:
                    there = np.isfinite(rows.seconds[i])
                    guess = self.own._gemm_rows(dtype, others, float(key[0]), float(key[1])).seconds
                    errors.append(float(np.mean(np.abs(guess[there] / rows.seconds[i][there] - 1.0))))
            self._held_out[dtype] = float(np.mean(errors)) if errors else FORM_ERROR
        return self._held_out[dtype]

    def _has(self, operator: str) -> bool:
        return self.own.atlas.table(OWN, operator) is not None

    def _laid_out(self, x: np.ndarray, priced: Priced) -> Priced:
        return replace(priced, seconds=along(x, priced.seconds, self.tokens), reach=min(priced.reach, float(x[-1])))

    # ---- attention ---------------------------------------------------------------------------------------------------

    def _has_cache(self, operator: str, kv_dtype: str) -> bool:
        """Whether there are rows over a cache of this type, or of 16 bits in its place."""
        table = self.own.atlas.table(OWN, operator)
        return table is not None and bool({KV_NAMES[kv_dtype], "bfloat16"} & set(table.values("kv_cache_dtype")))

    def _inside(self, operator: str, heads: int, kv_heads: int, head_dim: int, window: int, kv_dtype: str) -> bool:
        """Whether the rows have these heads, or lie around them, with this window and cache type."""
        table = self.own.atlas.table(OWN, operator)
        if table is None or KV_NAMES[kv_dtype] not in table.values("kv_cache_dtype"):
            return False
        rows = table.where(kv_cache_dtype=KV_NAMES[kv_dtype])
        windows = rows.keys[:, rows.columns.index("window_size")]
        if not ((windows > 0) == (window > 0)).any():
            return False
        keys = rows.keys[(windows > 0) == (window > 0)]
        return (
            neighbours(keys, (window, head_dim, kv_heads, heads))[1] == 0
            if window
            else (neighbours(keys[:, 1:], (head_dim, kv_heads, heads))[1] == 0)
        )

    def prefill(
        self, heads: int, kv_heads: int, head_dim: int, window: int, kv_dtype: str
    ) -> tuple[np.ndarray, Priced]:
        shape = (heads, kv_heads, head_dim, window, kv_dtype)
        inside = self._inside("prefill", *shape)
        if not (self._has_cache("prefill", kv_dtype) and self._wins(inside)):
            return self._lower(f"prefill over a {kv_dtype} cache").prefill(*shape)
        length, priced = self.own.prefill(*shape)
        return length, priced if inside else _unknown(priced)

    def decode(
        self, heads: int, kv_heads: int, head_dim: int, window: int, kv_dtype: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Priced]:
        shape = (heads, kv_heads, head_dim, window, kv_dtype)
        inside = self._inside("decode", *shape)
        if not (self._has_cache("decode", kv_dtype) and self._wins(inside)):
            return self._lower(f"decode over a {kv_dtype} cache").decode(*shape)
        batch, context, limits, priced = self.own.decode(*shape)
        return batch, context, limits, priced if inside else _unknown(priced)

    def prefixes(self, heads: int, kv_heads: int, head_dim: int, window: int, kv_dtype: str) -> Prefixes | None:
        """Of the rows that price these heads, where they measured two prefixes or more; work scales with the heads."""
        table = self.own.atlas.table(OWN, "prefixes")
        shape = (heads, kv_heads, head_dim, window, kv_dtype)
        if table is None or window or len(table.axes[1][1]) < 2 or not self._wins(self._inside("prefill", *shape)):
            return None
        rows, keys, asked, _ = self.own._heads("prefixes", *shape)
        weights, _ = neighbours(keys, asked)
        new, cached = (axis.astype(float) for _, axis in rows.axes)
        grids = np.array([_without_holes(new, cached, row) for row in rows.seconds])
        seconds = blend(grids, weights, lambda row: head_dim * heads / float(keys[row][1] * keys[row][3]))
        return new, cached, seconds

    # ---- experts, all-reduce, what only moves bytes ------------------------------------------------------------------

    def moe(self, shape: MoeShape, without: Sequence[int] = (0, 0, 0, 0)) -> tuple[np.ndarray, Priced]:
        if self._experts_are_own(shape):
            return self.own.moe(shape, without)
        return self._lower("moe").moe(shape, without)

    def _experts_are_own(self, shape: MoeShape) -> bool:
        """Experts lie on no grid: rows are taken for the shape they measured, and where nothing else is."""
        if not self._has("moe"):
            return False
        rows = self.own._named("moe", "moe_dtype", MOE_NAMES.get(shape.dtype, ()))
        asked = (shape.hidden, shape.inter, shape.topk, shape.experts, shape.tp, shape.ep)
        return self._wins(rows is not None and bool((rows.keys == np.array(asked)).all(axis=1).any()))

    def router_in_experts(self, shape: MoeShape) -> bool:
        return self._experts_are_own(shape) and self.rows.operators["moe"].about.get("router") == "included"

    def all_reduce(self, gpus: int) -> tuple[np.ndarray, Priced]:
        table = self.own.atlas.table(OWN, "all_reduce")
        if table is not None and gpus in table.values("num_gpus"):
            return self.own.all_reduce(gpus)
        return self._lower(f"all_reduce of {gpus} GPUs").all_reduce(gpus)

    def streamed(self, name: str, bytes_per_token: float) -> Priced:
        return self.measured(name, bytes_per_token) or super().streamed(name, bytes_per_token)

    def measured(self, name: str, bytes_per_token: float) -> Priced | None:
        """At equal bytes: what only moves bytes takes as long over half as many tokens twice as wide."""
        table, name = self.own.atlas.table(OWN, "elementwise"), name.removeprefix("shared_")
        if table is None or name not in table.labels["name"]:
            return None
        rows = table.where(name=name)
        weights, _ = neighbours(rows.keys, (bytes_per_token,))
        tokens, total, reach = rows.axes[0][1].astype(float), np.zeros(len(self.tokens)), np.inf
        for row, weight in weights:
            there = np.flatnonzero(np.isfinite(rows.seconds[row]))
            width = float(rows.keys[row, 0]) / bytes_per_token
            seconds = np.maximum.accumulate(rows.seconds[row][there])
            total = total + weight * along(tokens[there] * width, seconds, self.tokens)
            reach = min(reach, float(tokens[there[-1]]) * width)
        if len(weights) == 1 and rows.keys[weights[0][0], 0] == bytes_per_token:
            return Priced(total, MEASURED, 0.0, f"{rows.name} measured shape", reach)
        return Priced(total, INTERPOLATED, FORM_ERROR, f"{rows.name} at equal bytes", reach)


def _unknown(priced: Priced) -> Priced:
    """Rows of other heads, with nothing better below: a form."""
    return replace(priced, cover=EXTRAPOLATED, error=FORM_ERROR, basis=f"{priced.basis.split()[0]} of other heads")


def _without_holes(new: np.ndarray, cached: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """[new, cached] with what was too large to measure grown by its pairs, and linear between two measured prefixes."""
    filled = np.empty_like(grid)
    for i, row in enumerate(grid):
        there = np.flatnonzero(np.isfinite(row))
        if not len(there):
            filled[i] = filled[i - 1] * causal_pairs(new[i], cached) / causal_pairs(new[i - 1], cached)
            continue
        pairs = causal_pairs(new[i], cached) / causal_pairs(new[i], cached[there[-1]])
        filled[i] = np.interp(cached, cached[there], row[there]) * np.maximum(pairs, 1.0)
    return filled


# ---- a profile -------------------------------------------------------------------------------------------------------


def own_profile(
    rows: Rows, model: ModelSpec, dtype: str = "bf16", tp: int = 1, kv_dtype: str | None = None
) -> DeviceProfile:
    """The profile of a folder's rows for any model at any width. InputError names an operator that is nowhere."""
    price = Own(rows, Pricer(load(rows.gpu)) if rows.gpu else None)
    _check_kinds(price, model)
    kv = kv_dtype or model.kv_dtype(dtype)
    table = points_at(price, model, dtype, kv, Layout(tp))
    if "step_us" in rows.host:
        floor = rows.host.get("launch_us_per_layer", 0.0) * US
        table = with_host(table, rows.host["step_us"] * US, rows.host["sequence_us"] * US, model.layers * floor)
    table |= _measured_mixes(price, model, tp, kv) | ({"host_inside": rows.host_inside} if rows.host_inside else {})
    mine = [o for o in table["rests_on"] if o["basis"].startswith(OWN)]
    kernels = sorted({f"{k}: {found.about.get('kernels', 'unknown')}" for k, found in rows.operators.items()})
    note = f"{len(mine)} of {len(table['rests_on'])} operators are priced from rows of {rows.name}"
    rest = f", the others rest on atlas:{rows.gpu}" if rows.gpu else ", the others are formulas"
    note += rest if len(mine) < len(table["rests_on"]) else ""
    return DeviceProfile(
        id=rows.name,
        kind="atlas",
        label=_label(rows, note),
        device={"name": rows.device["name"], "memory_gib": rows.device["memory_gib"]},
        model=known_as(model),
        dtype=dtype,
        kv_dtype=kv,
        tensor_parallel=tp,
        provenance={
            "source": _joined(rows, "source") + (f" over atlas:{rows.gpu}" if rows.gpu else ""),
            "licence": next((f.about["licence"] for f in rows.operators.values() if "licence" in f.about), "yours"),
            "version": _joined(rows, "version"),
            "date": min((f.about["date"] for f in rows.operators.values() if "date" in f.about), default="unknown"),
            "kernels": "; ".join(kernels),
            "device": dict(rows.device),
            "rows_hash": rows.content_hash,
            "notes": [f"{note}.", *_host_notes(rows), *rows.notes],
        },
        points=table,
    )


def _label(rows: Rows, note: str) -> str:
    mark = f"NOT A MEASUREMENT OF A GPU ({rows.rehearsal}); " if rows.rehearsal else ""
    return mark + note


def _joined(rows: Rows, key: str) -> str:
    return ", ".join(sorted({str(found.about.get(key, "unknown")) for found in rows.operators.values()}))


def _host_notes(rows: Rows) -> list[str]:
    if "step_us" in rows.host:
        step, sequence = rows.host["step_us"], rows.host["sequence_us"]
        return [f"Host time was measured: {step:.0f} us a step, {sequence:.1f} us a sequence."]
    return [] if rows.host_inside else ["Host time was not measured: a run adds the engine's."]


def _check_kinds(price: Own, model: ModelSpec) -> None:
    """Attention that has no rows of its own needs an atlas below."""
    words = {"mla": "latent attention (MLA)", "linear": "linear attention"}
    for group in model.layer_groups:
        if group.attention.kind in words:
            price._lower(words[group.attention.kind])


def _measured_mixes(price: Own, model: ModelSpec, tp: int, kv_dtype: str) -> dict[str, Any]:
    """What was measured of calls that hold both kinds, and of unequal contexts, for the very heads of a model of equal
    layers."""
    kinds = {group.attention for group in model.layer_groups}
    (attention, *others) = kinds
    if others or attention.kind != "full":
        return {}
    heads = attention_shape(model, tp)
    asked = (heads["heads"], heads["kv_heads"], heads["head_dim"], 0, kv_dtype)
    if not (price._inside("prefill", *asked) and price._inside("decode", *asked)):
        return {}
    shape = dict(zip(HEADS, (None, 0, heads["head_dim"], heads["kv_heads"], heads["heads"]), strict=True))
    found = {
        tuple(row[axis] for axis in AXES["mixed"]): row["us"]
        for row in rows_of(price.rows, "mixed")
        if all(row[c] == v for c, v in shape.items() if v is not None)
        and plain(row["kv_cache_dtype"]) == KV_NAMES[kv_dtype]
    }
    axes = [sorted({k[i] for k in found}) for i in range(4)]
    more: dict[str, Any] = {}
    if found and all(len(axis) > 1 for axis in axes):
        us = [[[[found.get((n, c, b, k)) for k in axes[3]] for b in axes[2]] for c in axes[1]] for n in axes[0]]
        new, cached, batch, step = axes
        more["mixed_attention"] = {
            "repeat": model.layers,
            "new": new,
            "cached": cached,
            "batch": batch,
            "context": [s + 1 for s in step],
            "us": us,
        }
    form = price.rows.form
    if "skew" in form:
        more["skew"] = form["skew"]
    elif form:
        mb = 2e-6 * WEIGHT_BYTES[kv_dtype] * heads["kv_heads"] * heads["head_dim"]
        more["unequal"] = {
            "overhead_us": form["overhead_us"],
            "longest_us": form["longest_us"],
            "token_us": form["mb_us"] * mb,
            "sequence_us": form["sequence_us"],
        }
    return more
