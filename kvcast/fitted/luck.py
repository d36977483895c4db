"""What chance alone does to a run: the same server once more, each of its steps a little quicker or slower.

The one idea: whom a request meets in its steps decides its times, and a step that ends a little later is enough to
change that for everybody after it. So two runs of one server differ by more than their noise, in ways that no
resampling of one run shows; simulated runs with uneven steps show it.

    Uneven(step_time, np.random.default_rng(0))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrate.scaled import Multiplied
from calibrate.step import StepTime

DEVIATION = 0.02
"""Standard deviation of a step. How large it is hardly matters: runs part after some steps anyway."""


@dataclass
class Uneven(Multiplied):
    """Each step takes a share more or less than the base's."""

    base: StepTime
    rng: np.random.Generator
    deviation: float = DEVIATION

    def share(self) -> float:
        return max(1 + self.deviation * float(self.rng.standard_normal()), 0.1)

    def shares(self, k: int) -> np.ndarray:
        return np.maximum(1 + self.deviation * self.rng.standard_normal(k), 0.1)
