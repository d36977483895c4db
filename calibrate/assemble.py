"""From a points file to a device profile: fits, tables, what was measured and what stands in for it.

The one idea: inside the measured grid a profile holds the measured times and a simulation interpolates between them; a
hole in the grid and everything beyond it is the fitted form, scaled to agree with the nearest measured point, and the
profile says where that begins.

    python -c "from pathlib import Path; from calibrate.assemble import from_points;
    print(from_points(Path('points.jsonl')).lines())"
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.fit import Fitted, Sample, as_json, fit_form, fit_operators
from calibrate.forms import AXES, STREAMING, TERMS, Form, kernel_of
from calibrate.models import ModelSpec
from calibrate.operators import ELEMENT_BYTES, Point, StepOperator, attention_shape, features, step_operators
from calibrate.points_file import DRIFT, failed_lines, read_points
from calibrate.profile import DeviceProfile
from workloads.errors import InputError

BEYOND = (2, 4, 16, 64)
"""How far past the last measured value of an axis the fitted form is tabulated, as multiples of it."""


@dataclass(frozen=True)
class Calibration:
    """Measured points of one device and the forms fitted to them."""

    header: dict[str, Any]
    rows: list[dict[str, Any]]
    sessions: list[dict[str, Any]]
    fitted: list[Fitted]
    common: dict[str, Form]  #: per operator, over all its kernel shapes
    failed: dict[str, str] = field(default_factory=dict)  #: why a point has no time, by key

    def form(self, op: str, shape: dict[str, int]) -> tuple[Form, bool]:
        """The form of a kernel shape, and whether that shape was measured (else the operator's common form)."""
        kernel = kernel_of(op, shape)
        for fitted in self.fitted:
            if fitted.op == op and fitted.kernel == kernel:
                return fitted.form, True
        if op not in self.common and TERMS[op] == STREAMING and "rms_norm" in self.common:
            return self.common["rms_norm"], False
        if op not in self.common:
            raise InputError(
                f"the points file holds no {op} points; expected them before a profile can be made (kvcast calibrate"
                " --resume)"
            )
        return self.common[op], False

    def values(self, op: str, shape: dict[str, int]) -> dict[tuple[int, ...], float]:
        """Measured values of a kernel shape by the op's axes."""
        kernel = kernel_of(op, shape)
        return {
            tuple(s.shape[a] for a in AXES[op]): s.value
            for f in self.fitted
            if f.op == op and f.kernel == kernel
            for s in f.samples
        }

    def single(self, op: str) -> float | None:
        return next((r["value"] for r in self.rows if r["op"] == op), None)

    def lines(self) -> list[str]:
        """The fits, for people: parameters and errors."""
        out = []
        for f in self.fitted:
            parameters = ", ".join(f"{name} {value:.4g}" for name, value in f.form.described().items())
            held = "too few points to hold any out" if f.held_out is None else f"held out {100 * f.held_out:.1f} %"
            between = (
                "" if f.held_out_interpolation is None else f", between points {100 * f.held_out_interpolation:.1f} %"
            )
            out.append(f"{f.name}: {len(f.samples)} points, {held}{between}; {parameters}")
        return out

    def drifts(self) -> list[str]:
        """Anchors that moved by more than 3 % since they were first measured."""
        changes = [change for session in self.sessions for change in (session.get("drift") or {}).items()]
        return [
            f"DRIFT {100 * change:+.1f} % in {key}: the clocks moved while measuring"
            for key, change in changes
            if abs(change) > DRIFT
        ]

    def failures(self) -> list[str]:
        """Points that the grid lacks, the form standing in for them; a line per reason."""
        return failed_lines(self.failed)


def from_points(path: Path) -> Calibration:
    """Reads a points file and fits every operator."""
    header, points, sessions = read_points(path)
    size = ELEMENT_BYTES[header["dtype"]]
    samples: dict[str, list[Sample]] = defaultdict(list)
    rows = [r for r in points.values() if "value" in r]
    failed = {key: r["error"] for key, r in points.items() if "error" in r}
    for r in rows:
        if r["op"] in TERMS and r["op"] in AXES and r["value"] > 0:
            samples[r["op"]].append(
                Sample(r["shape"], features(Point(r["op"], r["shape"]), size), r["value"], r["iqr"])
            )
    if not samples:
        raise InputError(f"{path}: no measured points; expected kvcast calibrate to have run longer (--resume)")
    common = {op: fit_form(op, rows) for op, rows in samples.items() if len(rows) > 1}
    return Calibration(
        header, rows, sessions, fit_operators({op: s for op, s in samples.items() if op in common}), common, failed
    )


# ---- tables ----------------------------------------------------------------------------------------------------


def profile_of(calibration: Calibration, model: ModelSpec, tp: int, name: str) -> DeviceProfile:
    """A device profile of one model and width. Shapes that were not measured are interpolated from the operator's
    common form and say so."""
    header = calibration.header
    device, dtype = header["device"], header["dtype"]
    size = ELEMENT_BYTES[dtype]
    notes: list[str] = []
    operators = step_operators(model, tp)
    dense = [_operator(calibration, o, size, notes) for o in operators if not o.per_row]
    per_sequence = [_operator(calibration, o, size, notes) for o in operators if o.per_row]
    overhead_us, host = _host(calibration)
    shape = attention_shape(model, tp)
    points: dict[str, Any] = {
        "dense": dense,
        "per_sequence": per_sequence + host,
        "prefill_attention": prefill_table(calibration, shape, model.layers, size, notes),
        "decode_attention": decode_table(calibration, shape, model.layers, size, notes),
        "step_overhead_us": overhead_us,
        "unequal": _unequal(calibration, shape, size),
        "launch_floor_us": calibration.single("launch") or 0.0,
        "forms": as_json(calibration.fitted),
        "memory": _memory(calibration),
        "raw": [[r["op"], r["shape"], r["value"], r["iqr"]] for r in calibration.rows],
    }
    mixed = _mixed(calibration, shape, model.layers)
    if mixed:
        points["mixed_attention"] = mixed
    if tp > 1:
        points["dense"].append(_all_reduce(model, tp, size, notes))
    provenance = {
        "source": "kvcast calibrate",
        "licence": "yours",
        "version": header["kernels"],
        "date": str(calibration.sessions[0].get("at", "unknown")),
        "kernels": header["kernels"],
        "measured_points": len(calibration.rows),
        "device": device,
        "measured_model": header["model"],
        "notes": [*sorted(set(notes)), *calibration.drifts(), *calibration.failures()],
    }
    return DeviceProfile(
        id=name,
        kind="tables",
        label=f"measured by kvcast calibrate on {device['name']} ({header['kernels']})",
        device={"name": device["name"], "memory_gib": device["memory_gib"]},
        model=model.name,
        dtype=dtype,
        kv_dtype=dtype,
        tensor_parallel=tp,
        provenance=provenance,
        points=points,
    )


def _operator(calibration: Calibration, operator: StepOperator, size: int, notes: list[str]) -> dict[str, Any]:
    """One operator along tokens or rows: measured points, then the anchored form."""
    axis = "rows" if operator.per_row else "tokens"
    form, known = calibration.form(operator.op, operator.point(1).shape)
    measured = (
        {at[0]: us for at, us in calibration.values(operator.op, operator.point(1).shape).items()} if known else {}
    )
    if len(measured) < 2:
        other = (
            f"other shapes of {operator.op}"
            if operator.op in calibration.common
            else "the bytes it moves, at the rate of rms_norm"
        )
        notes.append(f"{operator.name}: this shape was not measured; interpolated from {other}")
    at = sorted(measured) or [1, 16, 256, 4096]
    predicted = lambda x: form.us(features(operator.point(x), size))  # noqa: E731
    last = at[-1]
    anchor = measured[last] / predicted(last) if measured else 1.0
    us = [measured.get(x, predicted(x)) for x in at] + [predicted(last * k) * anchor for k in BEYOND]
    entry = {
        "name": operator.name,
        "repeat": operator.repeat,
        "basis": "measured" if measured else "interpolated from other shapes",
        axis: at + [last * k for k in BEYOND],
        "us": _rounded(us),
        "measured_to": last,
    }
    return entry


def _rounded(us: Sequence[float]) -> list[float]:
    return [float(f"{u:.6g}") for u in us]


class Filled:
    """A two-axis table: measured where it was, elsewhere the form times measured / form of the nearest measured
    point."""

    def __init__(self, measured: dict[tuple[int, int], float], form: Callable[[int, int], float]):
        self.measured, self.form = measured, form
        self._at = np.log1p(np.array(list(measured), dtype=float).reshape(-1, 2))
        self._ratio = [us / form(*at) for at, us in measured.items()]

    def us(self, a: int, b: int) -> float:
        if (a, b) in self.measured:
            return self.measured[a, b]
        if not self._ratio:
            return self.form(a, b)
        nearest = int(np.abs(self._at - np.log1p([a, b])).sum(axis=1).argmin())
        return self.form(a, b) * self._ratio[nearest]


def prefill_table(
    calibration: Calibration, shape: dict[str, int], layers: int, size: int, notes: list[str]
) -> dict[str, Any]:
    form, known = calibration.form("prefill", shape)
    measured = {(n, c): us for (n, c, seqs), us in calibration.values("prefill", shape).items() if seqs == 1}
    if not known:
        notes.append("prefill attention: these heads were not measured; interpolated from other head counts")
    at = Filled(
        measured, lambda n, c: form.us(features(Point("prefill", {**shape, "new": n, "cached": c, "seqs": 1}), size))
    )
    new, cached = (sorted({k[i] for k in measured}) or [16, 1024] for i in (0, 1))
    reach = max((n + c for n, c in measured), default=0)
    pairs = max((n * (c + (n + 1) / 2) for n, c in measured), default=0.0)
    table_new, table_cached = new + [new[-1] * k for k in BEYOND], cached + [(cached[-1] or 1024) * k for k in BEYOND]
    one = features(Point("prefill", {**shape, "new": 1, "cached": 0, "seqs": 1}), size)
    parts = {
        "overhead_us": form.overhead_us,
        "pair_us": form.compute["gflop"] * one["gflop"],
        "token_us": form.compute["tokens"],
        "kv_us": form.memory["mb"] * one["mb"],
    }
    return {
        "repeat": layers,
        "form": parts,
        "new": table_new,
        "cached": table_cached,
        "us": [_rounded([at.us(n, c) for c in table_cached]) for n in table_new],
        "max_new": new[-1] if measured else 0,
        "max_kv": reach,
        "max_pairs": pairs,
        "prefix_measured": True,
        "basis": "measured" if known else "interpolated from other head counts",
    }


def decode_table(
    calibration: Calibration, shape: dict[str, int], layers: int, size: int, notes: list[str]
) -> dict[str, Any]:
    form, known = calibration.form("decode", shape)
    measured = {(b, c): us for (b, c, longest), us in calibration.values("decode", shape).items() if longest == c}
    if not known:
        notes.append("decode attention: these heads were not measured; interpolated from other head counts")
    at = Filled(
        measured,
        lambda b, c: form.us(features(Point("decode", {**shape, "batch": b, "context": c, "longest": c}), size)),
    )
    batch, context = (sorted({k[i] for k in measured}) or [1, 1024] for i in (0, 1))
    limits = [max((c for b, c in measured if b == row), default=0) for row in batch]
    table_batch, table_context = (
        batch + [batch[-1] * k for k in BEYOND[:2]],
        context + [context[-1] * k for k in BEYOND],
    )
    return {
        "repeat": layers,
        "batch": table_batch,
        "context": table_context,
        "us": [_rounded([at.us(b, c) for c in table_context]) for b in table_batch],
        "measured_context": [*limits, 0, 0],
        "basis": "measured" if known else "interpolated from other head counts",
    }


def _mixed(calibration: Calibration, shape: dict[str, int], layers: int) -> dict[str, Any] | None:
    """The 4-D table of mixed calls when all of its points were measured."""
    found = {
        (s["new"], s["cached"], s["batch"], s["context"]): r["value"]
        for r in calibration.rows
        if r["op"] == "mixed"
        for s in [r["shape"]]
        if all(s[k] == shape[k] for k in shape)
    }
    axes = [sorted({k[i] for k in found}) for i in range(4)]
    if not found or len(found) < math.prod(len(a) for a in axes) or min(len(a) for a in axes) < 2:
        return None
    us = [[[[found[n, c, b, k] for k in axes[3]] for b in axes[2]] for c in axes[1]] for n in axes[0]]
    return {
        "repeat": layers,
        **dict(zip(("new", "cached", "batch", "context"), axes, strict=True)),
        "us": us,
        "basis": "measured",
    }


def _host(calibration: Calibration) -> tuple[float, list[dict[str, Any]]]:
    """Host microseconds of a step with no sequence, and what each sampled row adds."""
    measured = sorted((r["shape"]["seqs"], r["value"]) for r in calibration.rows if r["op"] == "host")
    if len(measured) < 2:
        return (measured[0][1] if measured else 0.0), []
    form = calibration.common["host"]
    base = min(form.overhead_us, measured[0][1])
    rows, us = [n for n, _ in measured], [max(value - base, 0.0) for _, value in measured]
    return base, [
        {
            "name": "host_per_sequence",
            "repeat": 1,
            "basis": "measured",
            "rows": rows,
            "us": _rounded(us),
            "measured_to": rows[-1],
        }
    ]


def _unequal(calibration: Calibration, shape: dict[str, int], size: int) -> dict[str, float]:
    """The decode form by sum of contexts, longest context and sequences, for batches of unequal contexts."""
    form, _ = calibration.form("decode", shape)
    per_token = features(Point("decode", {**shape, "batch": 1, "context": 1}), size)["mb"]
    return {
        "overhead_us": form.overhead_us,
        "longest_us": form.compute["longest"],
        "token_us": form.memory["mb"] * per_token,
        "sequence_us": form.memory["seqs"],
    }


def _memory(calibration: Calibration) -> dict[str, Any]:
    activation = sorted((r["shape"]["tokens"], r["value"]) for r in calibration.rows if r["op"] == "activation")
    return {
        "activation_tokens": [n for n, _ in activation],
        "activation_bytes": [int(v) for _, v in activation],
        "kv_blocks": calibration.single("kv_capacity"),
        "kv_block_size": 16,
    }


ALL_REDUCE = {2: (4.1, 231.0), 4: (5.5, 294.0), 8: (7.2, 369.0)}
"""Microseconds and GB/s by width: least squares (5 to 7 % error) of the all-reduce times in the bundled exports of H100
and H200 over NVLink."""


def _all_reduce(model: ModelSpec, tp: int, size: int, notes: list[str]) -> dict[str, Any]:
    """Two all-reduces a layer: alpha + 2 (tp - 1) / tp x bytes / beta. Assumed: one GPU cannot measure it."""
    alpha_us, gb_s = ALL_REDUCE[min((w for w in ALL_REDUCE if w >= tp), default=8)]
    notes.append(
        f"all-reduce: ASSUMED {alpha_us:g} us + 2 (tp-1)/tp x bytes / {gb_s:g} GB/s, as H100 and H200 take over NVLink;"
        " one GPU cannot measure it"
    )
    tokens = [1, 2**20]
    us = [alpha_us + 2 * (tp - 1) / tp * n * model.hidden * size / (gb_s * 1e3) for n in tokens]
    return {"name": "all_reduce", "repeat": 2 * model.layers, "basis": "assumed", "tokens": tokens, "us": _rounded(us)}
