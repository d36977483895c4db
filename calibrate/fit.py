"""Fits the physical form of every operator to measured points and says how well it predicts points it has not seen.

The one idea: a form is fitted twice. First over all shapes of an operator, where overhead, bandwidth and FLOP rate
separate; then per shape, with that overhead (a launch costs the same whatever the matrix) and its own rates, drawn
towards the first fit only where the shape's own points do not decide. Errors are relative everywhere.

    python -c "from pathlib import Path; from calibrate.fit import fit_file;
    print(*fit_file(Path('points.jsonl')).lines(), sep='\\n')"
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrate.forms import AXES, TERMS, Form, kernel_of

PRIOR = 0.01
"""Weight of the draw towards the operator's common form, per unit of log parameter."""
FOLDS = 5
Kernel = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Sample:
    """A measured point with its features."""

    shape: dict[str, int]
    features: dict[str, float]
    value: float
    iqr: float = 0.0


@dataclass(frozen=True)
class Fitted:
    """The form of one operator at one kernel shape. Errors are mean absolute relative ones; None with too few
    points."""

    op: str
    kernel: Kernel
    form: Form
    samples: tuple[Sample, ...]
    fit_error: float
    held_out: float | None  #: of the form, on points left out of its fit
    held_out_interpolation: (
        float | None
    )  #: of linear interpolation between the points left in; what a simulation uses inside the grid

    @property
    def name(self) -> str:
        return self.op + "".join(f" {k}={v}" for k, v in self.kernel)


def fit_operators(samples: Mapping[str, Sequence[Sample]]) -> list[Fitted]:
    """Fits every operator: {op: samples}."""
    fitted = []
    for op, rows in samples.items():
        groups: dict[Kernel, list[Sample]] = defaultdict(list)
        for row in rows:
            groups[kernel_of(op, row.shape)].append(row)
        common = fit_form(op, rows)
        for kernel, own in groups.items():
            form = fit_form(op, own, common) if len(groups) > 1 else common
            held = held_out_error(op, own, form, common if len(groups) > 1 else None)
            fitted.append(Fitted(op, kernel, form, tuple(own), _mape(form, own), held, interpolation_error(op, own)))
    return fitted


def fit_form(op: str, rows: Sequence[Sample], prior: Form | None = None, start: Form | None = None) -> Form:
    """The form of `op` that minimises relative errors (robustly: an outlier counts linearly).

    prior: keep its overhead and be drawn to its rates. start: look for the best form around this one only.
    """
    from scipy.optimize import least_squares

    compute, memory = TERMS[op]
    names = (*compute, *memory)
    x = np.array([[r.features[f] for f in names] for r in rows], dtype=float).reshape(len(rows), len(names))
    y = np.array([r.value for r in rows], dtype=float)
    scale = np.concatenate([[y.min()], [_typical(y, x[:, i]) for i in range(len(names))]])
    target = _flat(prior, names) if prior is not None else None

    def residuals(log: np.ndarray) -> np.ndarray:
        p = np.exp(log) * scale
        if prior is not None:
            p[0] = prior.overhead_us
        c = x[:, : len(compute)] @ p[1 : 1 + len(compute)]
        m = x[:, len(compute) :] @ p[1 + len(compute) :]
        error = np.log((p[0] + np.sqrt(c * c + m * m)) / y)
        if target is None:
            return error
        return np.concatenate([error, PRIOR * (log - np.log(np.maximum(target, 1e-12) / scale))])

    found = []
    around = target if start is None else _flat(start, names)
    for at in _starts(len(names), around, scale):
        found.append(least_squares(residuals, at, loss="soft_l1", f_scale=0.1, bounds=(-25.0, 8.0), max_nfev=300))
    best = min(found, key=lambda f: f.cost)
    p = np.exp(best.x) * scale
    if prior is not None:
        p[0] = prior.overhead_us
    p[1:][np.exp(best.x[1:]) < 1e-6] = 0.0  # a term that plays no part
    values = dict(zip(names, (float(f"{v:.6g}") for v in p[1:]), strict=True))
    return Form(float(f"{p[0]:.6g}"), {f: values[f] for f in compute}, {f: values[f] for f in memory})


def _typical(y: np.ndarray, x: np.ndarray) -> float:
    """Microseconds per unit if the feature alone explained its largest points."""
    top = x >= np.quantile(x, 0.8)
    return float(np.median(y[top] / np.maximum(x[top], 1e-12)))


def _starts(n: int, target: np.ndarray | None, scale: np.ndarray) -> list[np.ndarray]:
    if target is not None:
        return [np.clip(np.log(np.maximum(target, 1e-12) / scale), -24.0, 7.0)]
    starts = [np.full(n + 1, -0.7), np.concatenate([[-0.1], np.full(n, -2.0)])]
    for i in range(n):
        one = np.full(n + 1, -3.0)
        one[0], one[1 + i] = -0.3, -0.1
        starts.append(one)
    return starts


def _flat(form: Form, names: Sequence[str]) -> np.ndarray:
    terms = {**form.compute, **form.memory}
    return np.array([form.overhead_us, *(terms[f] for f in names)])


# ---- errors on points not seen -----------------------------------------------------------------------------------


def held_out_error(op: str, rows: Sequence[Sample], fitted: Form, prior: Form | None = None) -> float | None:
    """Mean absolute relative error on each fifth of the points, of a form fitted to the others."""
    if len(rows) < FOLDS + 2:
        return None
    ordered = sorted(rows, key=lambda r: tuple(sorted(r.shape.items())))
    errors: list[float] = []
    for fold in range(FOLDS):
        kept = [r for i, r in enumerate(ordered) if i % FOLDS != fold]
        form = fit_form(op, kept, prior, start=fitted)
        errors += [abs(form.us(r.features) / r.value - 1) for i, r in enumerate(ordered) if i % FOLDS == fold]
    return float(np.mean(errors))


def interpolation_error(op: str, rows: Sequence[Sample]) -> float | None:
    """Mean absolute relative error of predicting a point from its neighbours along each axis, linearly; inner points
    only."""
    errors = []
    for axis in AXES[op]:
        lines: dict[Kernel, dict[int, float]] = defaultdict(dict)
        for r in rows:
            if op == "decode" and axis == "context":  # equal contexts: the longest moves along
                if r.shape["longest"] == r.shape["context"]:
                    lines[tuple(sorted((k, v) for k, v in r.shape.items() if k not in ("context", "longest")))][
                        r.shape["context"]
                    ] = r.value
            elif op != "decode" or axis == "batch":
                lines[tuple(sorted((k, v) for k, v in r.shape.items() if k != axis))][r.shape[axis]] = r.value
        for line in lines.values():
            x = sorted(line)
            for a, b, c in zip(x, x[1:], x[2:], strict=False):
                guess = line[a] + (line[c] - line[a]) * (b - a) / (c - a)
                errors.append(abs(guess / line[b] - 1))
    return float(np.mean(errors)) if errors else None


def _mape(form: Form, rows: Sequence[Sample]) -> float:
    return float(np.mean([abs(form.us(r.features) / r.value - 1) for r in rows]))


def as_json(fitted: Sequence[Fitted]) -> list[dict[str, Any]]:
    """What a profile keeps of the fits."""
    return [
        {
            "op": f.op,
            "kernel": dict(f.kernel),
            **f.form.to_json(),
            "points": len(f.samples),
            "fit_error": _round(f.fit_error),
            "held_out": _round(f.held_out),
            "held_out_interpolation": _round(f.held_out_interpolation),
        }
        for f in fitted
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
