"""Quantiles that the ends of intervals rest on, to the last bit those of `scipy.stats`.

The one idea: `scipy.stats` asks `scipy.special` and adds a framework, which takes half a second and 46 MiB of every
process that imports it.

    >>> round(two_sided_normal(0.95), 6)
    1.959964
"""

from __future__ import annotations


def two_sided_normal(confidence: float) -> float:
    """The z within which a standard normal number is, either way, with that probability."""
    from scipy.special import ndtri

    return float(ndtri((1 + confidence) / 2))


def two_sided_t(n: int, confidence: float) -> float:
    """The same of Student's t with n - 1 degrees of freedom; NaN for one observation."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, (1 + confidence) / 2))


def chi2(probability: float, freedom: float) -> float:
    """What a chi-square number with so many degrees of freedom (any number above 0) is below with that probability."""
    from scipy.special import gammaincinv

    return 2 * float(gammaincinv(freedom / 2, probability))
