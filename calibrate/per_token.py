"""Steps that take longer by so much for each of their tokens, as LoRA adapters make them.

PerToken(step_time, 2e-6)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.step import StepTime


@dataclass(frozen=True)
class PerToken:
    """The base's steps, `token_s` longer for every token that they compute; not of attention_dp ranks together."""

    base: StepTime
    token_s: float

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        seconds, covered = self.base.step(chunks, n_decode, sum_context, max_context, n_sampled)
        return seconds + self.token_s * (sum(new for new, _ in chunks) + n_decode), covered

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        seconds, covered = self.base.decode_stretch(n_decode, sum_context, max_context, k)
        return seconds + self.token_s * n_decode, covered
