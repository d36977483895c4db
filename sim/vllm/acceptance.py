"""How many drafted tokens the model accepts: one draw for each verification, whatever the schedule.

The one idea: a draw is a function of the seed, the request and the output token it is for, not of the order in which
draws are made. So a run is the same stepped or not, and two schedules of one workload accept the same tokens.

A draft's tokens are accepted up to the first that is not: with conditional acceptances a_1 .. a_k (a_j: of position j,
given that all before it were accepted) P(j or more) = a_1 x .. x a_j, so one uniform number says how many.

    >>> expected_tokens((0.8, 0.6, 0.5))
    2.52
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np

STREAM = 5
"""Of a simulation's seed: 1 is routing, 2 the policies."""
_MASK = 2**64 - 1


def expected_tokens(acceptance: Sequence[float]) -> float:
    """Mean output tokens of a verification: the model's own, and what it accepts of the draft."""
    return 1.0 + sum(accumulate(acceptance, mul))


class Acceptances:
    """The draws of one simulation."""

    def __init__(self, acceptance: Sequence[float], seed: int) -> None:
        """acceptance [k]: of each draft position, given that those before it were accepted; 0 to 1."""
        self._at_least = list(accumulate(acceptance, mul))
        (key,) = np.random.SeedSequence(seed, spawn_key=(STREAM,)).generate_state(1, np.uint64)
        self._key = int(key)

    def accepted(self, request: int, generated: int) -> int:
        """Drafted tokens accepted behind the first `generated` outputs of a request, 0 to k."""
        drawn = _mixed(_mixed(self._key ^ request) ^ generated) * 2.0**-64
        n = 0
        for share in self._at_least:
            if drawn >= share:
                break
            n += 1
        return n


def _mixed(x: int) -> int:
    """A 64-bit number whose every bit depends on every bit of x (the finaliser of SplitMix64)."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
