"""Step times of a GPU nobody measured: a roofline from its data sheet and stated efficiencies, say +-30 %.

The one idea: an operator takes the longer of its FLOPs at a share of peak and its bytes at a share of bandwidth; a step
adds a fixed cost and a cost per sequence. Every such step is marked extrapolated: nothing here was measured.

    python -c "from calibrate.latency import load_step_time as f; print(f('roofline:l40s').step([], 32, 65536, 4096,
    32))"
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibrate.host import NONE, HostTime
from calibrate.layout import Layout, as_layout
from calibrate.link import all_reduce_s, bandwidth_of
from calibrate.model_spec import ModelSpec
from calibrate.precision import of_dtype
from calibrate.profile import DeviceProfile
from calibrate.step import EXTRAPOLATED
from calibrate.steptime import CurveStepTime, DecodeCurve, Line
from workloads.errors import InputError


@dataclass(frozen=True)
class GpuSpec:
    """Data-sheet figures of one GPU: dense (not sparse) matrix FLOP/s, bytes/s, and usable memory as the driver reports
    it."""

    name: str
    memory_gib: float
    bandwidth: float
    bf16_flops: float
    fp8_flops: float  #: 0: no fp8 matrix units
    link: str  #: to the other GPUs of a node: one of calibrate.link.LINKS
    link_bandwidth: float  #: bytes/s per GPU and direction
    source: str
    mfu: float = 0.70  #: bf16 matrix multiplies of a prefill, share of peak; higher where operator tables show it


_NV = "NVIDIA data sheet"
GPUS = {
    "h100": GpuSpec("H100-SXM-80GB", 79.19, 3.35e12, 989e12, 1979e12, "nvlink", 450e9, f"{_NV}, H100 SXM5"),
    "h200": GpuSpec("H200-SXM", 139.81, 4.8e12, 989e12, 1979e12, "nvlink", 450e9, f"{_NV}, H200 SXM"),
    "a100": GpuSpec("A100-SXM4-80GB", 79.25, 2.039e12, 312e12, 0.0, "nvlink", 300e9, f"{_NV}, A100 80GB SXM"),
    "l40s": GpuSpec("L40S", 44.4, 864e9, 362e12, 733e12, "pcie4", 32e9, f"{_NV}, L40S; PCIe 4.0"),
    "b200": GpuSpec("B200", 178.4, 7.7e12, 2250e12, 4500e12, "nvlink", 900e9, f"{_NV}, HGX B200 (180 GB)"),
    "rtx-4090": GpuSpec(
        "RTX 4090",
        23.52,
        1008e9,
        165.2e12,
        330.3e12,
        "pcie4",
        32e9,
        "NVIDIA Ada architecture white paper, fp32 accumulation; PCIe 4.0; MFU: public operator tables reach 0.9",
        mfu=0.85,
    ),
    "rtx-5090": GpuSpec(
        "RTX 5090",
        31.36,
        1792e9,
        209.5e12,
        419e12,
        "pcie5",
        64e9,
        "NVIDIA RTX Blackwell architecture white paper, fp32 accumulation; PCIe 5.0",
    ),
    "rtx-pro-6000": GpuSpec(
        "RTX PRO 6000 Blackwell",
        94.97,
        1792e9,
        467.8e12,
        935.6e12,
        "pcie5",
        64e9,
        f"{_NV}, server edition at 2,430 MHz; PCIe 5.0",
    ),
    "l4": GpuSpec("L4", 22.03, 300e9, 121e12, 242.5e12, "pcie4", 32e9, f"{_NV}, L4; PCIe 4.0"),
    "a10": GpuSpec("A10", 22.07, 600e9, 125e12, 0.0, "pcie4", 32e9, f"{_NV}, A10; PCIe 4.0"),
    "t4": GpuSpec("T4", 14.74, 320e9, 65e12, 0.0, "pcie3", 16e9, f"{_NV}, T4: fp16, it has no bf16; PCIe 3.0"),
    "mi300x": GpuSpec(
        "MI300X", 191.98, 5.3e12, 1307.4e12, 2614.9e12, "nvlink", 448e9, "AMD data sheet, Instinct MI300X"
    ),
    "gaudi-3": GpuSpec(
        "Gaudi 3",
        128.0,
        3.7e12,
        1835e12,
        1835e12,
        "nvlink",
        525e9,
        "Intel data sheet, Gaudi 3 OAM; 21 ports of 200 Gb Ethernet to the node's others; nominal memory",
    ),
}

# When nobody calibrated the GPU: shares of the data sheet, chosen on the tables of H100 and A100; those of the other
# GPUs are held back (`kvcast validate roofline`).
WIDTHS = (1, 2, 4, 8)
FP8_TYPES, WIDE_TYPES = ("fp8", "fp8_block"), ("bf16", "fp16", "fp32")
FP8_MFU = 0.84  # of the bf16 share
MEMORY_SHARE = 0.75
ATTENTION_SHARE = 0.70  # of the bf16 share of matrix multiplies
LAYER_S = 30e-6
"""What the kernels of a layer take beside FLOPs and bytes of its large ones: launches, norms, rotary embedding."""


def roofline_profile(
    gpu: str, dtype: str = "bf16", tp: int = 1, kv_dtype: str | None = None, link: str | None = None
) -> DeviceProfile:
    """The profile of roofline:GPU; its points are the data-sheet figures and the assumed efficiencies. link: instead of
    the GPU's own (calibrate.link.LINKS)."""
    key = gpu.lower().replace("_", "-")
    if key not in GPUS:
        near = difflib.get_close_matches(key, GPUS, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(
            f"profile 'roofline:{gpu}': no such GPU in the spec table{hint} (known: {', '.join(GPUS)}; kvcast profile"
            " list)"
        )
    spec = GPUS[key]
    of_dtype(dtype)  # an InputError for a type that is not understood
    units = dtype in FP8_TYPES and spec.fp8_flops > 0  # else the weights are widened on the way to bf16 units
    if tp not in WIDTHS:
        raise InputError(f"profile 'roofline:{gpu}': tensor_parallel is {tp}; expected 1, 2, 4 or 8, a node's GPUs")
    named = link or spec.link
    points: dict[str, Any] = {
        "flops": spec.fp8_flops if units else spec.bf16_flops,
        "attention_flops": spec.bf16_flops,
        "bandwidth": spec.bandwidth,
        "mfu": spec.mfu * (FP8_MFU if units else 1.0),
        "attention_mfu": spec.mfu * ATTENTION_SHARE,
        "memory_efficiency": MEMORY_SHARE,
        "layer_s": LAYER_S,
        "link": named,
        "all_reduce_share": 1.0,
        "link_bandwidth": bandwidth_of(named, spec.link, spec.link_bandwidth, spec.name),
    }
    return DeviceProfile(
        id=f"roofline:{key}",
        kind="roofline",
        label=f"roofline of {spec.name} with assumed efficiencies (+-30 %), nothing measured",
        device={"name": spec.name, "memory_gib": spec.memory_gib},
        model=None,
        dtype=dtype,
        kv_dtype=kv_dtype or (dtype if dtype in WIDE_TYPES else "bf16"),
        tensor_parallel=tp,
        points=points,
        provenance={
            "source": spec.source,
            "licence": "facts",
            "version": "2",
            "date": "2026-11-30",
            "kernels": "none",
            "notes": [
                f"All-reduces go by latency and bytes over {named}, two a layer.",
                "Experts of a batch are assumed to be drawn evenly.",
            ],
        },
    )


def gpu_key(device: str) -> str:
    """The roofline's name for a device as a driver or a profile calls it. InputError when it has none."""
    words = re.sub(r"[^a-z0-9]+", "-", device.lower())
    found = [key for key in GPUS if re.search(rf"(^|-){re.escape(key)}($|-)", words)]  # a GB200 is no B200
    if not found:
        raise InputError(
            f"device {device!r} is not among the GPUs with a roofline ({', '.join(GPUS)}): what more compute or"
            " bandwidth would do is unknown"
        )
    return max(found, key=len)


class RooflineStepTime(CurveStepTime):
    """StepTime from a roofline profile's points and a model's shapes."""

    def __init__(self, profile: DeviceProfile, model: ModelSpec, overhead_s: float = 0.0, host: HostTime = NONE):
        p, tp = profile.points, profile.tensor_parallel
        self._model = model
        flops, attention_flops = p["flops"] * p["mfu"] * tp, p["attention_flops"] * p["attention_mfu"] * tp
        self._bandwidth = p["bandwidth"] * p["memory_efficiency"]
        kv_bandwidth = p["bandwidth"] * p.get("kv_memory_efficiency", p["memory_efficiency"])
        self._token_s = model.linear_flops_per_token / flops
        self._head_row_s = model.lm_head_flops / flops
        self._fixed_s = model.layers * p["layer_s"]
        reduces = (2 * model.layers + 1) * p["all_reduce_share"] if tp > 1 else 0
        sizes = np.array([1.0, 2.0]) * 2.0 * model.hidden
        one, two = (float(x) for x in all_reduce_s(p["link"], p["link_bandwidth"], tp, sizes))
        self._reduce_s, self._reduce_token_s = reduces * (2 * one - two), reduces * (two - one)
        read = step_weights(model, profile.dtype, tp)
        self._head_s = read.head / self._bandwidth
        self._expert_bytes, self._weight_bytes = read.expert, read.dense
        self._state_s = 2 * model.state_bytes(tp) / kv_bandwidth  # read and written
        self._reaches = [
            (
                reach,
                reach.count * reach.pair_flops / attention_flops,
                reach.count * reach.key_bytes / kv_bandwidth,
                reach.count * max(reach.key_bytes / kv_bandwidth, reach.decode_flops / attention_flops),
            )
            for reach in model.reaches(profile.kv_dtype, tp)
        ]
        super().__init__(overhead_s, None, float("inf"), host)

    def _dense(self, tokens: int) -> tuple[float, int]:
        read = self._weight_bytes + self._expert_bytes * experts_touched(self._model, tokens)
        work = max(tokens * self._token_s, read / self._bandwidth)
        return work + self._fixed_s + self._reduce_s + tokens * self._reduce_token_s, EXTRAPOLATED

    def _sampling(self, rows: int) -> tuple[float, int]:
        if rows == 0:
            return 0.0, EXTRAPOLATED
        return max(rows * self._head_row_s, self._head_s), EXTRAPOLATED

    def _decode_curve(self, n: int) -> DecodeCurve:
        """States of linear attention; then linear in the sum of contexts, with a knot where a window or chunk is
        full."""
        constant_s, cover = self._constant(n)
        most = {reach: float(n * (reach.window or reach.chunk or 0)) for reach, *_ in self._reaches}
        knots = [0.0, *sorted({edge for edge in most.values() if edge})]
        slopes = [sum(s for reach, _, _, s in self._reaches if not 0 < most[reach] <= knot) for knot in knots]
        values = [n * self._state_s]
        for i, knot in enumerate(knots[1:]):
            values.append(values[-1] + slopes[i] * (knot - knots[i]))
        return DecodeCurve(constant_s, Line(knots, values, slopes), float("inf"), cover)

    def _prefill_attention(self, chunks: Sequence[tuple[int, int]]) -> tuple[float, int]:
        seconds = len(chunks) * self._state_s
        for new, cached in chunks:
            for reach, pair_s, key_s, _ in self._reaches:
                seconds += max(float(reach.pairs(new, cached)) * pair_s, float(reach.kept(new, cached)) * key_s)
        return seconds, EXTRAPOLATED


class StepWeights(NamedTuple):
    """Bytes of weights that one GPU reads in a step. Rows of the embedding are not counted."""

    dense: int
    head: int  #: when the step samples
    expert: float  #: for every routed expert that the batch reaches, in all layers that have them


def step_weights(model: ModelSpec, dtype: str, tp: int | Layout) -> StepWeights:
    """tp: a tensor-parallel width or a whole layout, of which each pipeline stage reads as much as is asked of one."""
    parts = model.weights(dtype, as_layout(tp))
    table, head, experts = (parts.pop(name) for name in ("embedding", "head", "experts"))
    return StepWeights(sum(parts.values()), head or table, experts / model.experts if model.experts else 0.0)


def experts_touched(model: ModelSpec, tokens: int) -> float:
    """Experts a batch reads in one MoE layer when routing is even: E (1 - (1 - k/E)^tokens)."""
    if not model.experts:
        return 0.0
    missed = 1.0 - model.experts_per_token / model.experts
    return model.experts * (1.0 - missed**tokens)
