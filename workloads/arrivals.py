"""Arrival processes of sessions: Poisson, Gamma, on/off bursts, a diurnal curve, recorded times.

The one idea: every process is its first n times from one stream, so a longer run starts with the shorter run's
arrivals, and another rate stretches the same randomness.

    >>> first(Arrival(kind="gamma", cv=2.0), rate=3.0, n=5, rng=stream(0, "chat", "arrivals"))
"""

from __future__ import annotations

import math

import numpy as np

from workloads import portable
from workloads.config import Arrival
from workloads.dists import LARGEST, expected, one_of
from workloads.errors import InputError
from workloads.limits import MAX_SECONDS, check_values

KINDS = ("poisson", "gamma", "onoff", "diurnal", "trace")
BOUNDS = {  # kind: {field: (lowest, highest)}
    "gamma": {"cv": (0.01, 100.0)},  # beyond these, gaps are even to 1 %, or 99.9 % of them are 0
    "onoff": {"on_s": (1e-3, MAX_SECONDS), "off_s": (1e-3, MAX_SECONDS)},
    "diurnal": {"period_s": (1e-3, MAX_SECONDS)},
}
CURVED = ("gamma", "onoff")
"""Kinds, beside diurnal, that may have a curve: their own time runs by it."""
MAX_BURSTS = 1_000_000  #: of an on/off process
MAX_ARRIVALS = 100_000_000


def check(arrival: Arrival, where: str) -> None:
    """Raise InputError naming the impossible field."""
    one_of(f"{where}.kind", arrival.kind, KINDS)
    for name, (lowest, highest) in BOUNDS.get(arrival.kind, {}).items():
        value = getattr(arrival, name)
        if not lowest <= value <= highest:
            raise expected(f"{where}.{name}", value, f"a number from {lowest:g} to {highest:g}")
    check_values(arrival, where)
    for name, needed_by, other in (("curve", "diurnal", CURVED), ("times_s", "trace", ())):
        values = getattr(arrival, name)
        if bool(values) != (arrival.kind == needed_by) and not (values and arrival.kind in other):
            raise expected(
                f"{where}.{name}",
                list(values),
                f"numbers for {needed_by}" if not values else f"none for {arrival.kind}",
            )
        for i, value in enumerate(values):
            if not 0 <= value <= LARGEST:
                raise expected(f"{where}.{name}[{i}]", value, f"a number from 0 to {LARGEST:g}")
    if arrival.curve and sum(arrival.curve) <= 0:
        raise expected(f"{where}.curve", list(arrival.curve), "at least one rate above 0")


def first(arrival: Arrival, rate: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """The first n arrival times in seconds, float64 [n], non-decreasing. `rate` is the long-run mean per second.

    A trace has its own times: rate then divides them (1 = as recorded) and fewer than n may come back.
    """
    if arrival.kind == "trace":
        return np.sort(np.array(arrival.times_s, float))[:n] / rate
    if arrival.kind == "gamma":  # shape 1/cv^2 and mean 1/rate: the gaps' coefficient of variation is cv
        times_s = np.cumsum(rng.gamma(1 / arrival.cv**2, arrival.cv**2 / rate, n))
    elif arrival.kind == "onoff":
        times_s = _on_off(arrival, rate, n, rng)
    else:
        unit = np.cumsum(rng.standard_exponential(n))
        return _by_curve(arrival, rate, unit) if arrival.curve else unit / rate
    return _by_curve(arrival, rate, times_s * rate) if arrival.curve else times_s


def _on_off(arrival: Arrival, rate: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """Poisson during exponential bursts, nothing between them (an interrupted Poisson process).

    The rate inside a burst is rate * (on + off) / on, so the long-run mean is `rate`. The process starts in its
    steady state: inside a burst with probability on / (on + off).
    """
    arrivals, bursts, silences, start = rng.spawn(4)
    share_on = arrival.on_s / (arrival.on_s + arrival.off_s)
    on_time = np.cumsum(arrivals.standard_exponential(n)) * (share_on / rate)  # seconds of burst before each arrival
    if not on_time[-1] / arrival.on_s <= MAX_BURSTS:
        raise InputError(
            f"arrival.on_s = {arrival.on_s:g}, off_s = {arrival.off_s:g} at {rate:g} arrivals/s:"
            f" {on_time[-1] / arrival.on_s:.3g} bursts for {n} arrivals, expected at most {MAX_BURSTS:,}"
        )
    lengths = bursts.exponential(arrival.on_s, 16)
    while lengths.sum() <= on_time[-1]:
        lengths = np.append(lengths, bursts.exponential(arrival.on_s, len(lengths)))
    off = silences.exponential(arrival.off_s, len(lengths) + 1)
    if start.random() < share_on:
        off[0] = 0.0
    return on_time + np.cumsum(off)[np.searchsorted(np.cumsum(lengths), on_time, side="right")]


def _by_curve(arrival: Arrival, rate: float, unit: np.ndarray) -> np.ndarray:
    """Times of a process of rate 1 (`unit`) by time change: the curve's slots share the period evenly, its mean is
    scaled to `rate`. Of a Poisson process it is the non-homogeneous one, exactly."""
    curve = np.array(arrival.curve, float)
    expected_by = (
        np.concatenate([[0.0], np.cumsum(curve / curve.sum())]) * rate * arrival.period_s
    )  # arrivals up to each slot's end
    periods, rest = np.divmod(unit, expected_by[-1])
    return periods * arrival.period_s + np.interp(rest, expected_by, np.linspace(0, arrival.period_s, len(curve) + 1))


def paced(arrival: Arrival, rate: float, times_s: np.ndarray) -> np.ndarray:
    """Arrival times of a process's first sessions, float64 [n] in seconds, as its `ramp_to` and `exact` have them.

    The rate at session i of n is that of vLLM's ramp-up: i / (n - 1) of the way from `rate` to `ramp_to`."""
    if arrival.ramp_to is not None:
        way = np.arange(len(times_s)) / max(len(times_s) - 1, 1)
        growth = arrival.ramp_to / rate
        times = portable.power(growth, way) if arrival.ramp == "exponential" else 1 + (growth - 1) * way
        with np.errstate(all="ignore"):  # a rate of nearly 0: a time that no workload may have, which the reader says
            times_s = np.cumsum(np.diff(times_s, prepend=0.0) / times)
    if arrival.exact and len(times_s) and times_s[-1] > 0:
        times_s = times_s * (len(times_s) / rate / times_s[-1])
    return times_s


def until(arrival: Arrival, rate: float, end_s: float, make_rng) -> np.ndarray:
    """All arrivals before end_s, float64. `make_rng()` gives the stream from its start each time it is called."""
    if rate == 0:
        return np.zeros(0)
    if arrival.kind == "trace":
        times = first(arrival, rate, len(arrival.times_s), make_rng())
        return times[times < end_s]
    mean = rate * end_s
    if not mean <= MAX_ARRIVALS:
        raise InputError(
            f"[workload]: {rate:g} sessions/s for {end_s:g} s are {mean:.3g} sessions, expected at most"
            f" {MAX_ARRIVALS:,}"
        )
    n = int(mean + 6 * math.sqrt(mean) + 16)
    while (times := first(arrival, rate, n, make_rng()))[-1] < end_s:
        n *= 2
    return times[: int(np.searchsorted(times, end_s))]
