"""Elementary functions and sums whose last digit does not depend on numpy's version.

The one idea: numpy's own exp, log1p and power are SIMD code that changes with version and processor, and its sums of
more than 8,192 numbers are added in another order since numpy 2.3; the C library's functions, and sums of fewer
numbers, have stayed the same. So equal scenarios give equal runs, to the last byte of summary.json, with numpy 1.26 and
2.4 (tests/test_portable.py).

    >>> exp(np.array([0.0, 1.0]))
    array([1.        , 2.71828183])
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

AT_ONCE = 8192
"""So many numbers every numpy adds in one order."""
LARGEST_EXP = 709.0  #: beyond it, exp is taken to be infinite


def _each(function: Callable[[float], float], x: np.ndarray) -> np.ndarray:
    return np.fromiter(map(function, x.tolist()), np.float64, len(x))


def exp(x: np.ndarray) -> np.ndarray:
    """e ** x, float64 [n]; infinite above LARGEST_EXP."""
    return np.where(x > LARGEST_EXP, np.inf, _each(math.exp, np.minimum(x, LARGEST_EXP)))


def log1p(x: np.ndarray) -> np.ndarray:
    """log(1 + x), float64 [n], of x > -1."""
    return _each(math.log1p, x)


def power(base: np.ndarray | float, exponent: np.ndarray | float) -> np.ndarray:
    """base ** exponent, float64 [n] of two [n] or of one and a number; base is at least 0, and nothing overflows."""
    bases, exponents = np.broadcast_arrays(base, exponent)
    return np.fromiter(map(math.pow, bases.tolist(), exponents.tolist()), np.float64, len(bases))


def total(x: np.ndarray) -> float:
    """Sum of x, [n]."""
    return total_of(lambda part: x[part], len(x))


def total_of(x: Callable[[slice], np.ndarray], n: int) -> float:
    """The same of x that is made a part at a time, [n] in all."""
    return math.fsum(float(x(slice(at, min(at + AT_ONCE, n))).sum()) for at in range(0, n, AT_ONCE))


def mean(x: np.ndarray) -> float:
    """Mean of x, [n] of at least one."""
    return total(x) / len(x)


def std(x: np.ndarray) -> float:
    """Standard deviation of the population, of x [n] of at least one."""
    middle = mean(x)

    def squares(part: slice) -> np.ndarray:
        apart = x[part] - middle
        return apart * apart

    return math.sqrt(total_of(squares, len(x)) / len(x))
