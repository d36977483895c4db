"""Shapes that were never measured, from those that were.

The one idea: what carries over between shapes is not the time but how far it lies from the hardware's own bound, so
neighbours are weighted linearly in the logarithm of each shape field, and each neighbour's time is scaled by the bound
of the asked shape over its own. Outside the measured shapes the nearest edge carries the bound on.

    python -c "from calibrate.atlas.shapes import neighbours; import numpy as np;
    print(neighbours(np.array([[64, 8], [128, 8]]), (96, 8)))"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.sources.tables import last_slope
from calibrate.step import EXTRAPOLATED, INTERPOLATED, MEASURED

FORM_ERROR = 0.30
"""Expected error where only the operator's form is known, as for a roofline."""


@dataclass(frozen=True)
class Priced:
    """What an operator takes: seconds float64 over its run axes, a coverage code, the share it is expected to err by,
    in words what it rests on, and how far along the run axis it was measured."""

    seconds: np.ndarray
    cover: int
    error: float
    basis: str
    reach: float = math.inf


def neighbours(keys: np.ndarray, asked: Sequence[float], even: bool = False) -> tuple[list[tuple[int, float]], float]:
    """([(row, weight)], octaves the asked shape lies outside) of the measured rows around a shape, field by field.

    keys: [rows, fields], fields in the order of `asked`; the grid may be ragged. even: the last field's weights are
    linear in it instead of its logarithm, for times that are. Weights add up to 1."""
    return _around(keys, np.arange(len(keys)), [float(x) for x in asked], even)


def _around(
    keys: np.ndarray, rows: np.ndarray, asked: list[float], even: bool
) -> tuple[list[tuple[int, float]], float]:
    if not asked:
        return [(int(rows[0]), 1.0)], 0.0
    column, x = keys[rows, 0], asked[0]
    values = np.unique(column)
    inside = min(max(x, float(values[0])), float(values[-1]))
    outside = abs(math.log2(x / inside))
    j = int(np.searchsorted(values, inside))
    picked = [(float(values[j]), 1.0)]
    if values[j] != inside:
        low, high = float(values[j - 1]), float(values[j])
        weight = math.log(inside / low) / math.log(high / low)
        if even and len(asked) == 1:
            weight = (inside - low) / (high - low)
        picked = [(low, 1.0 - weight), (high, weight)]
    found: list[tuple[int, float]] = []
    further = 0.0
    for value, weight in picked:
        inner, octaves = _around(keys[:, 1:], rows[column == value], asked[1:], even)
        found += [(row, weight * w) for row, w in inner]
        further = max(further, octaves)
    return found, outside + further


def blend(
    seconds: np.ndarray,
    weights: Sequence[tuple[int, float]],
    scale: Callable[[int], np.ndarray | float],
    geometric: bool = False,
) -> np.ndarray:
    """Weighted times of rows: the launch of each, its first time, stays as it is; the work above it is scaled by
    `scale(row)`. geometric: their logarithms are weighted."""
    total = np.zeros(seconds.shape[1:])
    for row, weight in weights:
        launch = float(seconds[row].flat[0])
        scaled = launch + (seconds[row] - launch) * scale(row)
        total = total + weight * (np.log(scaled) if geometric else scaled)
    return np.exp(total) if geometric else total


def covered(weights: Sequence[tuple[int, float]], octaves: float, error: float) -> tuple[int, float, str]:
    """(coverage, expected error, basis) of a blend. error: held out, at this distance from a measured shape; with every
    octave outside the measured ones it grows by itself, up to the error of the form."""
    if octaves > 0:
        return EXTRAPOLATED, min(error * (1.0 + octaves), max(FORM_ERROR, error)), "beyond measured shapes"
    if len(weights) > 1:
        return INTERPOLATED, error, "between measured shapes"
    return MEASURED, error, "measured shape"


def octaves_to(keys: np.ndarray, asked: Sequence[float]) -> float:
    """Octaves from a shape to the nearest measured one, in the field that is furthest. keys: [rows, fields]."""
    apart = np.abs(np.log2(np.asarray(keys, dtype=float) / np.asarray(asked, dtype=float)))
    return float(apart.max(axis=1).min())


def completed(axes: Sequence[np.ndarray], grid: np.ndarray) -> np.ndarray:
    """A grid of times [batch, length] or [length] without holes: between points linear, beyond the last one work in
    proportion to the length above the row's first time, a row without points in proportion to the one before. Never
    falling along either axis."""
    if grid.ndim == 1:
        return np.maximum.accumulate(_completed_row(axes[0].astype(float), grid))
    filled = np.empty_like(grid)
    for i, row in enumerate(grid):
        if np.isfinite(row).any():
            filled[i] = _completed_row(axes[1].astype(float), row)
        else:
            filled[i] = filled[i - 1] * (axes[0][i] / axes[0][i - 1])
    return np.maximum.accumulate(np.maximum.accumulate(filled, axis=0), axis=1)


def _completed_row(x: np.ndarray, row: np.ndarray) -> np.ndarray:
    there = np.flatnonzero(np.isfinite(row))
    first, last = there[0], there[-1]
    filled = np.interp(x, x[there], row[there])
    beyond = row[first] + (row[last] - row[first]) * (x / x[last])
    return np.where(np.arange(len(x)) > last, np.maximum(beyond, row[last]), filled)


def along(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Linear through points; level before the first, beyond the last as `last_slope` goes on."""
    inside = np.interp(at, x, y)
    slope = last_slope(x.tolist(), y.tolist())
    return np.where(at > x[-1], y[-1] + (at - x[-1]) * slope, inside)
