"""The step-time interface: one function of a step's shape, whatever the numbers come from.

Roofline, operator tables and calibrated profiles all implement `StepTime`. The simulator knows nothing else
about a GPU. Arithmetic inside must be + - * / max min sqrt and table look-ups only (no pow, exp or log), so that
`decode_stretch` (vectorised) and `step` (scalar) agree to the last bit: fast-forward depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

MEASURED, INTERPOLATED, EXTRAPOLATED = 0, 1, 2
COVERAGE = ("measured", "interpolated", "extrapolated")
"""What a step's time rests on; a step takes the worst of its parts."""


Shape = tuple[Sequence[tuple[int, int]], int, int, int, int]
"""What a step's time goes by: the arguments of `StepTime.step`."""


class StepTime(Protocol):
    """Seconds one engine step takes on one replica (all its tensor-parallel ranks together)."""

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        """Seconds and coverage code of one step.

        chunks: (new tokens, tokens already in the KV cache) of every prefill chunk in the step.
        n_decode, sum_context, max_context: decoding sequences, and the sum and maximum of their contexts in
        tokens, the token computed in this step included. n_sampled: rows that go through LM head and sampling.
        """
        ...

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds float64 [k] and coverage codes int8 [k] of k pure-decode steps in a row.

        Step i has the contexts sum_context + i * n_decode and max_context + i, and samples n_decode rows.
        Bit-identical to k calls of `step`.
        """
        ...


class TogetherTime(StepTime, Protocol):
    """Of a replica with attention data-parallel ranks, which begin and end their steps together."""

    ranks: int

    def together(self, shapes: Sequence[Shape]) -> tuple[float, int]:
        """Seconds and coverage code of one step; shapes: of the ranks that have work."""
        ...

    def together_stretch(self, shapes: Sequence[Shape], k: int) -> tuple[np.ndarray, np.ndarray]:
        """As k calls of `together` with pure decodes, bit-identical."""
        ...
