"""Attention data-parallel ranks of one engine: every rank computes its own step, and all wait for each other.

The one idea: a step takes as long as its slowest rank's own part (attention, dense layers, sampling) and what they do
together (experts and the way to them), which goes by the tokens of all. A rank with nothing to do runs a step of one
token beside the others.

>>> LockStepTime(points, ranks=8).together([([], 32, 65536, 4096, 32)] * 8)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrate.host import NONE, HostTime
from calibrate.sources.tables import US, TableStepTime, look_up, measured_to, sum_of_lines
from calibrate.step import Shape


class LockStepTime:
    """StepTime of one rank whose neighbours are idle, and of several together."""

    def __init__(
        self,
        points: dict[str, Any],
        ranks: int,
        overhead_s: float = 0.0,
        host: HostTime = NONE,
        kv_token_s: float = 0.0,
    ):
        """As `TableStepTime`; points with the operators of all ranks' tokens in "all_ranks". The least time of a
        prefill's launches holds for a rank's own part and what all do together."""
        self.ranks = ranks
        own = {**points, "launch_floor_us": 0.0}
        self._own = TableStepTime(own, overhead_s, replace(host, layer_s=0.0), kv_token_s)
        self._floor_s = self._own.overhead_s + max(points.get("launch_floor_us", 0.0) * US, host.prefill_s)
        self._shared = sum_of_lines(points["all_ranks"], "tokens")
        self._shared_to = measured_to(points["all_ranks"], "tokens")

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        """Seconds and coverage code of a step with work on one rank only; see `StepTime.step`."""
        return self.together([(chunks, n_decode, sum_context, max_context, n_sampled)])

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As k calls of `step`; see `StepTime.decode_stretch`."""
        return self.together_stretch([([], n_decode, sum_context, max_context, n_decode)], k)

    def together(self, shapes: Sequence[Shape]) -> tuple[float, int]:
        """Seconds and coverage code of one step; shapes: of the ranks with work, as `StepTime.step` takes them."""
        own_s, cover, tokens, prefills = 0.0, 0, self.ranks - len(shapes), False
        for chunks, n, sum_context, max_context, sampled in shapes:
            seconds, covered = self._own.step(chunks, n, sum_context, max_context, sampled)
            own_s, cover = max(own_s, seconds), max(cover, covered)
            tokens += n
            for new, _ in chunks:
                tokens += new
                prefills |= new > 1
        shared_s, shared_cover = look_up(self._shared, tokens, self._shared_to)
        total_s = own_s + shared_s
        return max(total_s, self._floor_s) if prefills else total_s, max(cover, shared_cover)

    def together_stretch(self, shapes: Sequence[Shape], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds float64 [k] and coverage codes int8 [k] of k pure-decode steps, as k calls of `together`."""
        tokens = self.ranks - len(shapes) + sum(n for _, n, _, _, _ in shapes)
        shared_s, shared_cover = look_up(self._shared, tokens, self._shared_to)
        each = [self._own.decode_stretch(n, total, longest, k) for _, n, total, longest, _ in shapes]
        seconds = np.maximum.reduce([one for one, _ in each]) + shared_s
        covers = np.maximum.reduce([np.asarray(one, np.int8) for _, one in each])
        return seconds, np.maximum(covers, np.int8(shared_cover))
