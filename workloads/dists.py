"""Distributions of token counts and seconds, and the named random streams they are drawn from.

The one idea: a `Dist` is its quantile function, so sampling, means and percentiles for previews come from one place.

    >>> sample(Dist(kind="lognormal", median=1020, p90=2735), 3, stream(0, "chat", "message"))
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from workloads import portable
from workloads.config import Dist
from workloads.errors import InputError, did_you_mean
from workloads.limits import MAX_SECONDS

P90_SIGMAS = NormalDist().inv_cdf(0.9)  # 1.2816: a lognormal's p90 is median * exp(1.2816 sigma)
LARGEST = MAX_SECONDS  # tokens or seconds; more is a slip of the pen, and would not fit the columns
FIELDS = {  # kind: (fields it needs, fields it may also have)
    "fixed": (("value",), ()),
    "lognormal": (("median",), ("p90", "sigma", "mean", "low", "high")),
    "exponential": (("mean",), ("low", "high")),
    "uniform": (("low", "high"), ()),
    "geometric": (("mean",), ("low", "high")),
    "empirical": (("values",), ("weights", "low", "high")),
}


def stream(seed: int, *names: str) -> np.random.Generator:
    """The random stream of this name: independent of every other name, so adding a class changes no other class."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=tuple("/".join(names).encode()))))


def expected(where: str, value: object, expectation: str) -> InputError:
    """`where` already names the field: "... field", giving "... field = value, expected ..."."""
    return InputError(f"{where} = {value!r}, expected {expectation}")


def one_of(where: str, value: str, options: tuple[str, ...]) -> None:
    """Raise InputError, with the closest right name, unless value is one of the options."""
    if value in options:
        return
    raise expected(where, value, f"one of {', '.join(options)}{did_you_mean(value, options)}")


def check(dist: Dist, where: str, lowest: float = 0.0, highest: float = LARGEST) -> None:
    """Raise InputError naming the field unless `dist` has exactly its kind's fields and values from `lowest` to
    `highest`."""
    one_of(f"{where}.kind", dist.kind, tuple(FIELDS))
    needed, allowed = FIELDS[dist.kind]
    given = {
        n
        for n in ("value", "mean", "median", "p90", "sigma", "low", "high", "values", "weights")
        if getattr(dist, n) not in (None, ())
    }
    for name in needed:
        if name not in given:
            raise InputError(f"{where}: {dist.kind} needs {name}")
    for name in sorted(given - set(needed) - set(allowed)):
        raise InputError(f"{where}.{name} has no meaning for {dist.kind}, which takes {', '.join(needed + allowed)}")
    for name in given - {"values", "weights"}:
        if not math.isfinite(getattr(dist, name)):
            raise expected(f"{where}.{name}", getattr(dist, name), "a finite number")
    _check_values(dist, where, given, lowest, highest)


def _check_values(dist: Dist, where: str, given: set[str], lowest: float, highest: float) -> None:
    for name in given - {"sigma", "values", "weights"}:
        if getattr(dist, name) < lowest:
            raise expected(f"{where}.{name}", getattr(dist, name), f"at least {lowest:g}")
    if dist.low is not None and dist.high is not None and dist.low > dist.high:
        raise expected(f"{where}.low", dist.low, f"at most high = {dist.high:g}")
    if dist.kind == "lognormal":
        _check_lognormal(dist, where, given)
    if dist.kind == "geometric" and dist.mean is not None and dist.mean < 1:
        raise expected(f"{where}.mean", dist.mean, "at least 1 (a geometric count starts at 1)")
    if dist.kind == "empirical":
        _check_empirical(dist, where, lowest, highest)
    with np.errstate(over="ignore", invalid="ignore"):
        top = float(quantile(dist, np.array([1 - 1e-9]))[0])
    if not top <= highest:
        raise InputError(
            f"{where}: this {dist.kind} reaches {top:.3g}, expected at most {highest:g}: set high, or a smaller spread"
        )


def _check_lognormal(dist: Dist, where: str, given: set[str]) -> None:
    spread = sorted(given & {"p90", "sigma", "mean"})
    if len(spread) != 1:
        raise InputError(
            f"{where}: lognormal needs exactly one of p90, sigma, mean beside median, got"
            f" {' and '.join(spread) or 'none'}"
        )
    assert dist.median is not None
    if dist.median <= 0:
        raise expected(f"{where}.median", dist.median, "more than 0")
    if dist.sigma is not None and dist.sigma < 0:
        raise expected(f"{where}.sigma", dist.sigma, "at least 0")
    for name in spread:
        if name != "sigma" and getattr(dist, name) < dist.median:
            raise expected(f"{where}.{name}", getattr(dist, name), f"at least the median, {dist.median:g}")


def _check_empirical(dist: Dist, where: str, lowest: float, highest: float) -> None:
    for i, value in enumerate(dist.values):
        if not math.isfinite(value) or value < lowest:
            raise expected(f"{where}.values[{i}]", value, f"a number of at least {lowest:g}")
        if value > highest:
            raise expected(f"{where}.values[{i}]", value, f"at most {highest:g}")
    if dist.weights and len(dist.weights) != len(dist.values):
        raise InputError(
            f"{where}.weights has {len(dist.weights)} entries, expected one for each of the {len(dist.values)} values"
        )
    for i, weight in enumerate(dist.weights):
        if not math.isfinite(weight) or not 0 <= weight <= LARGEST:
            raise expected(f"{where}.weights[{i}]", weight, f"a number of at least 0 and at most {LARGEST:g}")
    if dist.weights and sum(dist.weights) <= 0:
        raise InputError(f"{where}.weights are all 0, expected at least one above 0")


def sigma(dist: Dist) -> float:
    """Standard deviation of the log of a lognormal, from whichever of sigma, p90 and mean it gives."""
    assert dist.median is not None
    if dist.sigma is not None:
        return dist.sigma
    if dist.p90 is not None:
        return math.log(dist.p90 / dist.median) / P90_SIGMAS
    assert dist.mean is not None
    return math.sqrt(2 * math.log(dist.mean / dist.median))


def quantile(dist: Dist, u: np.ndarray) -> np.ndarray:
    """Values float64 [n] at the probabilities u [n] in (0, 1), clipped to low and high."""
    if dist.kind == "fixed":
        return np.full(len(u), float(dist.value))  # type: ignore[arg-type]
    if dist.kind == "uniform":
        return dist.low + (dist.high - dist.low) * u  # type: ignore[operator]
    if dist.kind == "empirical":
        weights = np.array(dist.weights or [1.0] * len(dist.values))
        cdf = np.cumsum(weights) / weights.sum()
        x = np.array(dist.values, float)[np.minimum(np.searchsorted(cdf, u, side="right"), len(cdf) - 1)]
    elif dist.kind == "lognormal":
        inv = NormalDist().inv_cdf
        x = dist.median * portable.exp(sigma(dist) * np.array([inv(p) for p in u]))
    elif dist.kind == "exponential":
        x = -dist.mean * portable.log1p(-u)  # type: ignore[operator]
    elif dist.mean == 1:
        x = np.ones(len(u))
    else:  # geometric on 1, 2, ... with success probability 1 / mean
        x = np.maximum(1.0, np.ceil(portable.log1p(-u) / math.log1p(-1 / dist.mean)))  # type: ignore[operator]
    return _clip(dist, x)


def _clip(dist: Dist, x: np.ndarray) -> np.ndarray:
    return x if dist.low is None and dist.high is None else np.clip(x, dist.low, dist.high)


def sample(dist: Dist, n: int, rng: np.random.Generator) -> np.ndarray:
    """n independent values, float64 [n]. The first k of a longer sample are the sample of k."""
    if dist.kind == "lognormal":  # a vectorised normal is much faster than its quantile function
        return _clip(dist, dist.median * portable.exp(sigma(dist) * rng.standard_normal(n)))
    return quantile(dist, rng.random(n))


def counts(dist: Dist, n: int, rng: np.random.Generator) -> np.ndarray:
    """n whole numbers of at least 1 (tokens, turns), int64 [n]."""
    return np.maximum(1, np.rint(sample(dist, n, rng))).astype(np.int64)


def moments(dist: Dist, whole: bool = True) -> tuple[float, float]:
    """Mean and mean square, by the midpoint rule over 4,000 quantiles (within 1 % for the tails seen in LLM traces)."""
    x = quantile(dist, (np.arange(4000) + 0.5) / 4000)
    if whole:
        x = np.maximum(1, np.rint(x))
    return float(x.mean()), float((x * x).mean())


def scaled(dist: Dist, mean: float) -> Dist:
    """The distribution stretched so that its mean is this one; what has mean 0 becomes fixed."""
    before = moments(dist)[0]
    if dist.kind == "fixed" or before <= 0:
        return Dist(value=mean)
    factor = mean / before
    stretched = {
        name: getattr(dist, name) * factor
        for name in ("value", "mean", "median", "p90", "low", "high")
        if getattr(dist, name) is not None
    }
    return replace(dist, **stretched, values=tuple(v * factor for v in dist.values))


def longer(dist: Dist, tokens: float) -> Dist:
    """The distribution with a mean that is this much greater, its shape kept."""
    return scaled(dist, moments(dist)[0] + tokens)


def can_exceed(dist: Dist, limit: float) -> bool:
    """Whether the distribution has values above `limit` (rounded to whole numbers)."""
    if dist.kind in ("fixed", "empirical"):
        top = float(dist.value) if dist.kind == "fixed" else max(dist.values)  # type: ignore[arg-type]
    else:
        degenerate = dist.kind == "geometric" and dist.mean == 1
        top = 1.0 if degenerate else math.inf
    return min(top, math.inf if dist.high is None else dist.high) >= limit + 0.5
