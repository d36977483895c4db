"""What one call of an operator takes on a GPU: seconds over its run axis, how well that is known, and what it rests on.

The one idea: measured rows at the asked shape, else neighbouring shapes at the hardware's bound (`shapes`), else the
bound alone at a stated error. Nothing here knows models; `steps` adds a model's operators up.

    python -c "from calibrate.atlas.price import Pricer; from calibrate.atlas.tables import load;
    print(Pricer(load('h200')).gemm('bf16', 6144, 4096).seconds[:4])"
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrate.atlas.errors import stated_error
from calibrate.atlas.experts import NEAR, TWO_KERNELS, MoeShape, measured, nearest_experts, other_kernel
from calibrate.atlas.shapes import FORM_ERROR, Priced, blend, completed, covered, neighbours, octaves_to
from calibrate.atlas.tables import Atlas, Table
from calibrate.link import ERROR as LINK_ERROR
from calibrate.link import all_reduce_s, bandwidth_of
from calibrate.precision import WEIGHT_BYTES
from calibrate.step import EXTRAPOLATED, INTERPOLATED
from workloads.errors import InputError

GEMM_NAMES = {
    "bf16": ("bfloat16",),
    "fp8": ("fp8",),
    "fp8_block": ("fp8_block", "fp8"),
    "nvfp4": ("nvfp4",),
    "int8": ("int8_wo",),
    "int4": ("int4_wo",),
}
MOE_NAMES = {
    "bf16": ("bfloat16",),
    "fp8": ("fp8",),
    "fp8_block": ("fp8_block",),
    "nvfp4": ("nvfp4",),
    "int4": ("int4_wo",),
    "mxfp4": ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8"),
}
MXFP8_FIRST = {"trtllm": ("rtx-pro-6000", *TWO_KERNELS), "sglang": TWO_KERNELS}
"""GPUs on which an engine by itself computes mxfp4 experts on activations in mxfp8. TensorRT-LLM from SM 10.0 on
(ModelConfig.get_mxfp4_quant_algo), SGLang on SM 10.x (moe_runner_backend flashinfer_mxfp4 in its default precision);
vLLM keeps 16 bits unless its environment asks (VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8)."""
WEIGHT_ONLY = ("int4", "int8")
"""Types whose products are kernels of each engine's own: one says nothing of another's."""
KV_NAMES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8"}
COMPUTE = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4"}
"""Matrix units a weight type computes on; the others compute in bf16."""
OWN_LINKS = {"l40s": "pcie4", "rtx-pro-6000": "pcie5"}
"""What joins the measured GPUs of a node; NVLink where nothing is said."""
TOKENS = 2.0 ** np.arange(16)
"""Tokens of a step that prices are laid out at where no matrix multiply was measured."""
EFFICIENCY = 0.7
"""Share of the bound that an unmeasured operator reaches."""
CALL_S = 5e-6
"""What a call takes beside its FLOPs and bytes, as far as comparing shapes goes: of 0, 2 and 5 us the one with the
least held-out error of matrix multiplies."""
MOE_CALL_S = 10e-6
"""The same for experts, of 2 to 30 us."""


HOST_BOUND_S = 20e-6
"""A table whose smallest product takes longer was timed with its launches by the host, which no captured graph spends
(vLLM 0.24's block fp8: 56 us on Hopper, 150 us on Blackwell, where the same kernel in SGLang's table takes 3 to 5)."""
FUSED = (("trtllm", "fp8"),)
"""Backends whose products of a type were timed with their input's quantization as calls of its own, where the engine
has it in the norm or activation before. TensorRT-LLM's smallest fp8 product takes 12 us, in 16 bits 2; without the
difference its [8192, 8192] product is vLLM's and SGLang's to 4 % on three GPUs."""


class Pricer:
    """Prices of operators on one GPU with one backend's kernels (the other backend's where it has none).

    as_tabled: products exactly as the tables have them, host launches and calls of their own included."""

    def __init__(self, atlas: Atlas, backend: str = "vllm", link: str | None = None, as_tabled: bool = False):
        if backend not in atlas.backends:
            raise InputError(f"backend {backend!r}: expected one of {', '.join(atlas.backends)}")
        self.atlas, self.backend, self.as_tabled = atlas, backend, as_tabled
        self.bandwidth = float(atlas.header["bandwidth"])
        flops = atlas.header["flops"]
        self.flops = {"bf16": flops["bf16"], "fp8": flops.get("fp8", flops["bf16"])}
        self.flops["fp4"] = flops.get("fp4", flops["bf16"])
        about, self.own_link = atlas.header["link"], OWN_LINKS.get(atlas.gpu.lower(), "nvlink")
        self.link = link or self.own_link
        self.link_bandwidth = bandwidth_of(self.link, self.own_link, about["bandwidth"], str(atlas.header.get("name")))
        self.mxfp8 = atlas.gpu.lower() in MXFP8_FIRST.get(backend, ())
        self._ratios: dict[tuple[str, str, tuple[int, ...]], tuple[np.ndarray, np.ndarray]] = {}
        gemm = next((t for b in (backend, *atlas.backends) if (t := atlas.table(b, "gemm")) is not None), None)
        self.tokens: np.ndarray = TOKENS if gemm is None else gemm.axes[0][1].astype(float)

    def _table(self, operator: str) -> Table:
        for backend in (self.backend, *self.atlas.backends):
            table = self.atlas.table(backend, operator)
            if table is not None:
                return table
        raise InputError(f"{self.atlas.header['name']}: no table of {operator}")

    def has(self, operator: str) -> bool:
        return any(self.atlas.table(b, operator) is not None for b in self.atlas.backends)

    def peak(self, dtype: str) -> float:
        """FLOP/s of the matrix units a weight type computes on."""
        if dtype == "mxfp4" and self.mxfp8:
            return float(self.flops["fp8"])
        return float(self.flops[COMPUTE.get(dtype, "bf16")])

    def error(self, operator: str, dtype: str = "", octaves: float = 1.0) -> float:
        """Held-out error of an operator so far from a measured shape; of a file without one, as the exporter found
        it between shapes."""
        ours = "bf16" if dtype == "fp16" else dtype
        stated = stated_error(self.atlas.gpu, (self.backend, *self.atlas.backends), operator, ours, octaves)
        if stated is not None or not octaves:
            return stated or 0.0
        for backend in (self.backend, *self.atlas.backends):
            for name in (f"{backend}/{operator}", f"{backend}/{operator}_core"):
                errors = self.atlas.header["tables"].get(name, {}).get("held_out", {})
                if errors:
                    return float(errors.get(dtype, max(errors.values())))
        return FORM_ERROR

    # ---- matrix multiplies -----------------------------------------------------------------------------------

    def gemm_bound(self, dtype: str, n: float, k: float) -> np.ndarray:
        """Seconds by token count that FLOPs at peak or bytes at full bandwidth take."""
        m, active = self.tokens, 1.0 if dtype.startswith("fp8") else 2.0
        moved = n * k * WEIGHT_BYTES[dtype] + m * (k * active + n * 2.0)
        return np.maximum(2.0 * m * n * k / self.peak(dtype), moved / self.bandwidth)

    def gemm(self, dtype: str, n: int, k: int) -> Priced:
        """Times over `tokens` of [tokens, k] x [k, n]. Wider than the widest measured: so many equal pieces; narrower
        than the narrowest: its time."""
        dtype = "bf16" if dtype == "fp16" else dtype
        others = () if dtype in WEIGHT_ONLY else self.atlas.backends
        found = self._products(dtype, others)
        if found is None:
            return self._borrowed_gemm(dtype, n, k)
        n, k = max(n, min(found.values("n"))), max(k, min(found.values("k")))
        pieces_n, pieces_k = (-(-x // max(found.values(axis))) for x, axis in ((n, "n"), (k, "k")))
        part = self._gemm_rows(dtype, found, n / pieces_n, k / pieces_k)
        pieces = pieces_n * pieces_k
        return Priced(part.seconds * pieces, part.cover, part.error, f"{found.name} {part.basis}")

    def _products(self, dtype: str, others: Sequence[str]) -> Table | None:
        """The rows of matrix multiplies of a type; those of another backend where the own ones are the host's time."""
        names = GEMM_NAMES.get(dtype, ())
        own = self._named("gemm", "gemm_dtype", names, others)
        if own is None or self.as_tabled or _smallest(own) <= HOST_BOUND_S:
            return own
        named = (self._of(backend, "gemm", "gemm_dtype", names) for backend in others)
        return next((rows for rows in named if rows is not None and _smallest(rows) <= HOST_BOUND_S), own)

    def _quantizing(self, dtype: str, rows: Table) -> float:
        """Seconds of each product that the engine does not spend beside it (FUSED)."""
        plain = self.atlas.table(self.backend, "gemm")
        if self.as_tabled or plain is None or (self.backend, dtype) not in FUSED or rows.name != plain.name:
            return 0.0
        return max(_smallest(rows) - _smallest(plain.where(gemm_dtype=GEMM_NAMES["bf16"][0])), 0.0)

    def _gemm_rows(self, dtype: str, rows: Table, n: float, k: float) -> Priced:
        weights, octaves = neighbours(rows.keys, (n, k))
        asked = self.gemm_bound(dtype, n, k)
        seconds = sum(
            w * completed([self.tokens], rows.seconds[i]) / (CALL_S + self.gemm_bound(dtype, *map(float, rows.keys[i])))
            for i, w in weights
        )
        cover, error, basis = covered(weights, octaves, self.error("gemm", dtype, octaves_to(rows.keys, (n, k))))
        seconds = seconds * (CALL_S + asked) - self._quantizing(dtype, rows)
        return Priced(np.maximum.accumulate(np.maximum(seconds, asked)), cover, error, basis)

    def _borrowed_gemm(self, dtype: str, n: int, k: int) -> Priced:
        """A weight type without a table: the bf16 kernel's time with this type's bytes, computed on its units."""
        bf16 = self.gemm("bf16", n, k)
        launch = float(np.nanmin(self._table("gemm").seconds[:, 0]))
        scale = self.gemm_bound(dtype, n, k) / self.gemm_bound("bf16", n, k)
        seconds = np.maximum.accumulate(launch + (bf16.seconds - launch) * scale)
        return Priced(seconds, EXTRAPOLATED, FORM_ERROR / 2, f"{dtype} bytes on the bf16 kernel")

    def _named(self, operator: str, column: str, names: tuple[str, ...], others: Sequence[str] = ()) -> Table | None:
        """The rows of the first of these types that a backend's table has, the engine's own backend first."""
        named = (self._of(backend, operator, column, names) for backend in (self.backend, *others))
        return next((rows for rows in named if rows is not None), None)

    def _of(self, backend: str, operator: str, column: str, names: tuple[str, ...]) -> Table | None:
        """The same of one backend."""
        table = self.atlas.table(backend, operator)
        if table is None:
            return None
        if column not in table.columns and self.atlas.header["tables"][table.name]["constant"].get(column) in names:
            return table
        wanted = names if column in table.columns else ()
        return next((rows for name in wanted if len(rows := table.where(**{column: name}))), None)

    # ---- attention -------------------------------------------------------------------------------------------

    def prefill(
        self, heads: int, kv_heads: int, head_dim: int, window: int, kv_dtype: str
    ) -> tuple[np.ndarray, Priced]:
        """(lengths, times) of one sequence over an empty cache in one layer."""
        rows, keys, asked, basis = self._heads("prefill", heads, kv_heads, head_dim, window, kv_dtype)
        length = rows.axes[1][1].astype(float)
        grid = np.array([completed([length], row[0]) for row in rows.seconds])
        weights, octaves = neighbours(keys, asked, even=True)

        def scale(row: int) -> np.ndarray:
            reach, dim = keys[row, :2]
            counts = keys[(keys[:, :3] == keys[row, :3]).all(axis=1), 3]  # between them times are linear in the heads
            beyond = heads / min(max(heads, counts.min()), counts.max())
            mine = head_dim * beyond * causal_pairs(length, 0.0, window)
            return np.asarray(mine / (dim * causal_pairs(length, 0.0, reach if window else 0)))

        seconds = blend(grid, weights, scale)
        bound = 4.0 * heads * head_dim * causal_pairs(length, 0.0, window) / self.flops["bf16"]
        apart = octaves_to(keys[:, 1:], asked[1:])
        cover, error, words = covered(weights, octaves, self.error("prefill", kv_dtype, apart))
        return length, Priced(np.maximum.accumulate(np.maximum(seconds, bound)), cover, error, f"{basis} {words}")

    def decode(
        self, heads: int, kv_heads: int, head_dim: int, window: int, kv_dtype: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Priced]:
        """(batch sizes, contexts, longest measured context by batch size, times [batch, context]) of one layer; a
        context counts the token computed in the step."""
        rows, keys, asked, basis = self._heads("decode", heads, kv_heads, head_dim, window, kv_dtype)
        batch, context = rows.axes[0][1].astype(float), rows.axes[1][1] + 1.0
        weights, octaves = neighbours(keys, asked)
        picked = {row: completed([batch, context], rows.seconds[row]) for row, _ in weights}
        grid = np.ones((len(keys), len(batch), len(context)))
        for row, values in picked.items():
            grid[row] = values

        def scale(row: int) -> np.ndarray:
            reach, dim, count, _ = keys[row]
            seen = np.minimum(context, window) if window else context
            theirs = np.minimum(context, reach) if window else context
            return np.asarray(kv_heads * head_dim * seen / (count * dim * theirs))

        seconds = blend(grid, weights, scale, geometric=True)
        bound = 2.0 * kv_heads * head_dim * WEIGHT_BYTES[kv_dtype] / self.bandwidth * batch[:, None]
        seconds = np.maximum(seconds, bound * (np.minimum(context, window) if window else context))
        seconds = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
        limits = np.min([measured_limits(context, rows.seconds[row]) for row, _ in weights], axis=0)
        apart = octaves_to(keys[:, 1:3], asked[1:3])
        cover, error, words = covered(weights, octaves, self.error("decode", kv_dtype, apart))
        return batch, context, limits, Priced(seconds, cover, error, f"{basis} {words}")

    def _heads(
        self, operator: str, heads: int, kv_heads: int, head_dim: int, window: int, kv_dtype: str
    ) -> tuple[Table, np.ndarray, tuple[float, ...], str]:
        """Rows of an attention table, their shapes as (window, head size, KV heads, heads), and the asked shape."""
        table = self._table(operator)
        fixed = {"kv_cache_dtype": KV_NAMES[kv_dtype], "attn_dtype": "bfloat16"}
        rows = table.where(**{c: v for c, v in fixed.items() if c in table.columns})
        if not len(rows):
            rows = table.where(
                **{c: v for c, v in {**fixed, "kv_cache_dtype": "bfloat16"}.items() if c in table.columns}
            )
        about = self.atlas.header["tables"][table.name]
        column = {
            c: rows.keys[:, rows.columns.index(c)]
            if c in rows.columns
            else np.full(len(rows), about["constant"].get(c, 0))
            for c in ("window_size", "head_dim", "num_key_value_heads", "num_heads")
        }
        windowed = column["window_size"] > 0
        keep = windowed if window and windowed.any() else ~windowed
        keys = np.stack([c[keep] for c in column.values()], axis=1).astype(float)
        if not (window and windowed.any()):
            keys[:, 0] = max(window, 1) if window == 0 else 2.0**40
        picked = rows.among(lambda _: keep)
        asked = (float(window) if window and windowed.any() else float(keys[0, 0]), head_dim, kv_heads, heads)
        return picked, keys, asked, table.name

    # ---- experts ---------------------------------------------------------------------------------------------

    def moe_names(self, dtype: str) -> tuple[str, ...]:
        """The tables' names of a weight type's kernels, the engine's own first."""
        names = MOE_NAMES.get(dtype, ())
        return names[::-1] if dtype == "mxfp4" and self.mxfp8 else names

    def moe_times(self, s: MoeShape, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Seconds by tokens that the FLOPs of the fullest rank's routed experts take at peak, and their bytes at full
        bandwidth: the weights of every expert reached, and what its rows read and write."""
        experts, rows = s.reached(tokens)
        moved = experts * s.weights * WEIGHT_BYTES[s.dtype] + 4.0 * rows * (s.hidden + s.inter / s.tp)
        return 2.0 * rows * s.weights / self.peak(s.dtype), moved / self.bandwidth

    def moe(self, shape: MoeShape, without: Sequence[int] = (0, 0, 0, 0)) -> tuple[np.ndarray, Priced]:
        """(token counts, times) of one layer's routed experts on one rank; of other shapes the ratio to the bound, half
        at the same tokens and half at the same rows an expert. without: (hidden, inter, topk, experts) to leave out,
        for held-out errors.

        Rows below the bound count at it: their weights stayed in cache, as no serving step finds them."""
        dtype = "bf16" if shape.dtype == "fp16" else shape.dtype
        rows = self._named("moe", "moe_dtype", self.moe_names(dtype), self.atlas.backends)
        tokens = (rows or self._table("moe")).axes[0][1].astype(float)
        if rows is not None:
            rows = rows.among(lambda keys: (keys[:, :4] != np.array(without)).any(axis=1))
        bound = self.moe_times(shape, tokens)
        if rows is None or not len(rows):
            seconds = np.maximum.accumulate(CALL_S + np.maximum(*bound) / EFFICIENCY)
            return tokens, Priced(
                seconds, EXTRAPOLATED, FORM_ERROR, f"experts in {dtype}: activated experts' bytes and FLOPs"
            )
        asked = (shape.hidden, shape.inter, shape.topk, shape.experts, shape.tp, shape.ep)
        exact = np.flatnonzero((rows.keys == np.array(asked)).all(axis=1))
        apart = other_kernel(self.atlas.gpu, rows.name, dtype)
        weights, octaves = ([(int(exact[0]), 1.0)], 0.0) if len(exact) else nearest_experts(rows.keys, shape, apart)
        over, load = np.zeros(len(tokens)), shape.load(tokens)
        for row, weight in weights:
            ratio, rows_each = self._over_bound(rows, row, dtype, tokens)
            alike = ratio if len(weights) == 1 else (ratio + np.interp(load, rows_each, ratio)) / 2
            over += weight * alike
        seconds = np.maximum(np.exp(over) * (MOE_CALL_S + np.hypot(*bound)), np.maximum(*bound))
        error = self.error("moe", dtype, octaves)
        cover, error, words = covered(weights, max(octaves - NEAR, 0.0), error)
        return tokens, Priced(np.maximum.accumulate(seconds), cover, error, f"{rows.name} {words}")

    def _over_bound(self, rows: Table, row: int, dtype: str, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(logarithm of a measured row's times over the call and its bound, its rows an expert), by tokens."""
        key = (rows.name, dtype, tuple(rows.keys[row].tolist()))
        if key not in self._ratios:
            one = measured(dtype, list(key[2]))
            bound = self.moe_times(one, tokens)
            seconds = np.maximum(completed([tokens], rows.seconds[row]), np.maximum(*bound))
            self._ratios[key] = np.log(seconds / (MOE_CALL_S + np.hypot(*bound))), one.load(tokens)
        return self._ratios[key]

    # ---- what moves between GPUs, and what only moves bytes --------------------------------------------------

    def all_reduce(self, gpus: int) -> tuple[np.ndarray, Priced]:
        """(16-bit elements, times) of one all-reduce: the engine's own in a graph, else NCCL's, else latency and bytes
        over the link, as where another link than the GPU's own is named. (The tables' message_size counts elements: as
        bytes NVLink would run at half its rate.)"""
        table = self._table("all_reduce")
        rows = table
        if "kernel_source" in table.columns:
            graph = next((k for k in table.labels["kernel_source"] if k.endswith("graph")), "")
            rows = table.where(kernel_source=graph)
        found = rows.where(num_gpus=gpus)
        nccl = self.atlas.table("nccl", "all")
        if not len(found) and nccl is not None:
            rows, found = nccl, nccl.where(op_name="all_reduce", num_gpus=gpus)
        size = rows.axes[0][1].astype(float)
        if len(found) and self.link == self.own_link:
            return size, Priced(completed([size], found.seconds[0]), 0, 0.0, f"{rows.name} measured")
        seconds = all_reduce_s(self.link, self.link_bandwidth, gpus, 2.0 * size)
        return size, Priced(seconds, EXTRAPOLATED, LINK_ERROR[self.link], f"latency and bytes over {self.link}")

    # ---- what a source of one's own may know beyond this (`own`) ---------------------------------------------

    def router_in_experts(self, shape: MoeShape) -> bool:
        """Whether the times of these experts hold the router's matrix multiply."""
        return False

    def streamed(self, name: str, bytes_per_token: float) -> Priced:
        """Times by token count of an operator that only moves bytes: a formula."""
        seconds = self.elementwise(bytes_per_token, self.tokens)
        return Priced(seconds, INTERPOLATED, FORM_ERROR, "bytes at a share of bandwidth")

    def measured(self, name: str, bytes_per_token: float) -> Priced | None:
        """The same of a small operator that the tables count within others or not at all, where it was measured."""
        return None

    def prefixes(
        self, heads: int, kv_heads: int, head_dim: int, window: int, kv_dtype: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """(new, cached, seconds [new, cached]) of one sequence, where prefixes were measured and not worked out."""
        return None

    def elementwise(self, bytes_per_token: float, tokens: np.ndarray) -> np.ndarray:
        """Norms, activations, embedding: bytes at a share of bandwidth and a launch; not measured."""
        about = self.atlas.header["elementwise"]
        return about["launch_s"] + tokens * bytes_per_token / about["bandwidth"]


def _smallest(products: Table) -> float:
    """Seconds of one token's product of the shape that takes least: what a call costs beside its work."""
    return float(np.nanmin(products.seconds[:, 0]))


def causal_pairs(new: np.ndarray | float, cached: np.ndarray | float, window: float = 0) -> np.ndarray:
    """(query, key) pairs of `new` tokens over `cached` ones; with a window a token sees that many at most."""
    new, cached = np.asarray(new, dtype=float), np.asarray(cached, dtype=float)
    if not window:
        return new * (cached + (new + 1.0) * 0.5)
    growing = np.minimum(np.maximum(window - cached, 0.0), new)
    return growing * (cached + (growing + 1.0) * 0.5) + (new - growing) * window


def measured_limits(context: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Longest measured context of each batch size, 0 for none."""
    return np.array([context[np.flatnonzero(np.isfinite(row))[-1]] if np.isfinite(row).any() else 0.0 for row in grid])
