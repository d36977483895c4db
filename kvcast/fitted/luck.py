"""What chance alone does to a run: the same server once more, each of its steps a little quicker or slower.

The one idea: whom a request meets in its steps decides its times, and a step that ends a little later is enough to
change that for everybody after it. So two runs of one server differ by more than their noise, in ways that no
resampling of one run shows; simulated runs with uneven steps show it.

    Uneven(step_time, np.random.default_rng(0))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.step import Shape, StepTime, TogetherTime

SHARE = 0.02
"""Standard deviation of a step. How large it is hardly matters: runs part after some steps anyway."""


@dataclass
class Uneven:
    """A StepTime each of whose steps takes a share more or less than the base's."""

    base: StepTime
    rng: np.random.Generator
    share: float = SHARE

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        seconds, covered = self.base.step(chunks, n_decode, sum_context, max_context, n_sampled)
        return seconds * self._factor(), covered

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        seconds, covered = self.base.decode_stretch(n_decode, sum_context, max_context, k)
        return seconds * self._factors(k), covered

    @property
    def ranks(self) -> int:
        return self._together.ranks

    @property
    def _together(self) -> TogetherTime:
        return self.base  # type: ignore[return-value]

    def together(self, shapes: Sequence[Shape]) -> tuple[float, int]:
        seconds, covered = self._together.together(shapes)
        return seconds * self._factor(), covered

    def together_stretch(self, shapes: Sequence[Shape], k: int) -> tuple[np.ndarray, np.ndarray]:
        seconds, covered = self._together.together_stretch(shapes, k)
        return seconds * self._factors(k), covered

    def _factor(self) -> float:
        return max(1 + self.share * float(self.rng.standard_normal()), 0.1)

    def _factors(self, k: int) -> np.ndarray:
        return np.maximum(1 + self.share * self.rng.standard_normal(k), 0.1)
