"""A mix's load over time: a named day, factors, or a recorded curve, as the curve that every class arrives by.

The one idea: time runs as fast as the demand says. A class's arrivals are those of a load that never changes, moved by
the inverse of the cumulative demand; of a Poisson process that is exactly the Poisson process of that changing rate,
and session i has the same texts, turns and answers under every curve.

    [workload.demand]
    shape = "working-day"        # or file = "demand.csv" (time_s,factor), or factors = [0.5, 1, 2, 1]

A factor is times the mix's own rate; with a rate of 1 it is sessions per second.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from workloads.config import MAX_FACTOR, Demand, WorkloadConfig
from workloads.errors import InputError
from workloads.limits import MAX_SECONDS, Limit, check_values
from workloads.table import Kind, number, read_table

DAY_S = 86400.0
# fmt: off
WORKING_DAY = (
    0.2, 0.15, 0.1, 0.1, 0.1, 0.15, 0.25, 0.5, 1.1, 2.0, 2.66, 2.3,
    1.4, 1.6, 2.2, 2.3, 1.9, 1.4, 1.0, 0.8, 0.7, 0.5, 0.35, 0.24,
)
# fmt: on
"""An hour each, mean 1. The peak is measured (ServeGen's DeepSeek-R1 clients, 2.66 times the mean), the shape judged:
the curve of the preset "reasoning"."""
SINE = tuple(round(1 - 0.5 * math.cos(2 * math.pi * (hour + 0.5) / 24), 6) for hour in range(24))
"""Half the mean at midnight, one and a half times it at noon: a formula, nobody's measurement."""
SHAPES = {"working-day": WORKING_DAY, "sine": SINE}
MAX_SLOTS = 100_000  #: of a curve
TICK_S = 1e-3  #: times of a file are whole milliseconds
COLUMNS = {
    "time_s": Kind(number, Limit(0, MAX_SECONDS, f"seconds from 0 to {MAX_SECONDS:g}"), "seconds of 0 or more"),
    "factor": Kind(
        number, Limit(0, MAX_FACTOR, f"times the load, 0 to {MAX_FACTOR:g}"), f"times the load, 0 to {MAX_FACTOR:g}"
    ),
}


def applied(config: WorkloadConfig) -> WorkloadConfig:
    """The mix whose classes arrive by its demand, and which has none any more. Raises InputError."""
    if config.demand is None:
        return config
    curve, period_s = curve_of(config.demand)
    for c in config.class_:
        if c.arrival.curve or c.arrival.kind == "trace" or c.arrival.ramp_to is not None or c.arrival.exact:
            raise InputError(
                f"[workload.demand] with class {c.name!r}: expected classes that arrive at one rate (poisson, gamma or"
                " onoff), this one has times of its own"
            )
    if config.concurrency is not None:
        raise InputError("[workload.demand] with a concurrency: expected a mix whose sessions arrive at a rate")
    kinds = {"poisson": "diurnal"}
    classes = tuple(
        replace(
            c,
            arrival=replace(c.arrival, kind=kinds.get(c.arrival.kind, c.arrival.kind), curve=curve, period_s=period_s),
        )
        for c in config.class_
    )
    return replace(config, demand=None, class_=classes, rate_scale=config.rate_scale * float(np.mean(curve)))


def curve_of(demand: Demand) -> tuple[tuple[float, ...], float]:
    """(factors, period in seconds): slots of equal length over a period that repeats. Raises InputError."""
    check_values(demand, "[workload.demand]")
    given = [name for name in ("shape", "file", "factors") if getattr(demand, name)]
    if len(given) != 1:
        raise InputError(
            f"[workload.demand] has {' and '.join(given) or 'none of shape, file and factors'}: expected exactly one"
            " of shape, file and factors"
        )
    if demand.file is not None:
        return recorded(_path_of(demand.file), demand.period_s)
    curve = SHAPES[demand.shape] if demand.shape else demand.factors
    for i, factor in enumerate(curve):
        if not 0 <= factor <= MAX_FACTOR:
            raise InputError(
                f"[workload.demand] factors[{i}] = {factor!r}: expected times the load, 0 to {MAX_FACTOR:g}"
            )
    if len(curve) > MAX_SLOTS or not sum(curve) > 0:
        raise InputError(
            f"[workload.demand] factors: {len(curve):,} that sum to {sum(curve):g}, expected at most {MAX_SLOTS:,},"
            " one of them above 0"
        )
    return curve, demand.period_s or DAY_S


def recorded(path: Path, period_s: float | None = None) -> tuple[tuple[float, ...], float]:
    """A file's curve as slots of equal length: a row's factor holds from its time to the next one's; the last one's as
    long as the one before it, or to the end of period_s. Raises InputError."""
    rows = read_table(path, COLUMNS)
    times_s = [float(row["time_s"]) for row in rows]
    for i, (before, after) in enumerate(pairwise(times_s), 3):
        if after - before < TICK_S:
            raise InputError(f"{path}, row {i}: time_s = {after:g}, expected a time after {before:g}")
    if times_s[0] != 0:
        raise InputError(f"{path}, row 2: time_s = {times_s[0]:g}, expected 0: the curve begins there")
    if period_s is None and len(rows) < 2:
        raise InputError(f"{path}: one row, expected two at least, or [workload.demand] period_s with it")
    end_s = period_s if period_s is not None else times_s[-1] + (times_s[-1] - times_s[-2])
    if end_s - times_s[-1] < TICK_S:
        raise InputError(
            f"[workload.demand] period_s = {end_s:g}: expected a time after the last row of {path}, {times_s[-1]:g} s"
        )
    edges = [round(one / TICK_S) for one in (*times_s, end_s)]
    lengths = np.diff(edges)
    slot = math.gcd(*lengths.tolist())
    n = edges[-1] // slot
    if n > MAX_SLOTS:
        raise InputError(
            f"{path}: its times are multiples of {slot * TICK_S:g} s only, {n:,} slots, expected at most"
            f" {MAX_SLOTS:,}: round the times"
        )
    curve = np.repeat([float(row["factor"]) for row in rows], lengths // slot)
    if not curve.sum() > 0:
        raise InputError(f"{path}: every factor is 0, expected one above")
    return tuple(curve.tolist()), edges[-1] * TICK_S


def with_curve(config: WorkloadConfig) -> WorkloadConfig:
    """With the numbers of its demand's file in the file's place, so that a scenario holds all that decides its run."""
    if config.demand is None or config.demand.file is None:
        return config
    factors, period_s = curve_of(config.demand)
    return replace(config, demand=Demand(factors=factors, period_s=period_s))


def _path_of(text: str) -> Path:
    return Path(os.path.expandvars(text)).expanduser()
