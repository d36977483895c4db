"""Step times that are all wrong by the same share: what does a run make of that?

The one idea: near saturation a few percent of a step become many of a latency, so the error of a profile is moved
through the simulation: once more with every step longer by it, once more with every step shorter.

    Scaled(step_time, 1.045)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.step import Shape, StepTime, TogetherTime


class Multiplied:
    """A StepTime whose steps take shares of the base's, with the base's coverage."""

    base: StepTime

    def share(self) -> float:
        """Of one step."""
        raise NotImplementedError

    def shares(self, k: int) -> np.ndarray | float:
        """Of k steps: float64 [k], or one for all."""
        raise NotImplementedError

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        seconds, covered = self.base.step(chunks, n_decode, sum_context, max_context, n_sampled)
        return seconds * self.share(), covered

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        seconds, covered = self.base.decode_stretch(n_decode, sum_context, max_context, k)
        return seconds * self.shares(k), covered

    @property
    def ranks(self) -> int:
        return self._together.ranks

    @property
    def _together(self) -> TogetherTime:
        return self.base  # type: ignore[return-value]

    def together(self, shapes: Sequence[Shape]) -> tuple[float, int]:
        seconds, covered = self._together.together(shapes)
        return seconds * self.share(), covered

    def together_stretch(self, shapes: Sequence[Shape], k: int) -> tuple[np.ndarray, np.ndarray]:
        seconds, covered = self._together.together_stretch(shapes, k)
        return seconds * self.shares(k), covered


@dataclass(frozen=True)
class Scaled(Multiplied):
    """Every step takes `factor` times as long as the base's."""

    base: StepTime
    factor: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ValueError(f"factor is {self.factor}; expected a number above 0")

    def share(self) -> float:
        return self.factor

    def shares(self, k: int) -> float:
        return self.factor
