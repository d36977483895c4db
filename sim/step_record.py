"""What a replica keeps of its steps and of its state while it runs: flat arrays of numbers, turned into columns at the
end.

The one idea: a stretch is recorded once, however many steps it has; only the ends of steps are kept one by one
(sim.step_times).
"""

from __future__ import annotations

from array import array

import numpy as np

from sim.recording import Samples, Steps, StepsByStretch, StepShapes
from sim.step_times import StepTimes

STRETCH = 6
"""Numbers recorded of each stretch: start, steps, decodes, prefill tokens, sum of contexts and rows sampled."""
SAMPLE = 5
"""Numbers of each sample: time, blocks in use, blocks idle, running, waiting."""


class StepRecord:
    """Of one replica."""

    def __init__(self, packs: bool = False) -> None:
        """packs: keep the ends of steps packed."""
        self.times = StepTimes(packs)
        self.sent_s = array("d")  # when their tokens have left the front end, where that takes time
        self.emitted = array("q")  # output tokens of each step, where they are not the rows it samples
        self._stretches = array("d")
        self._chunks = array("q")  # (stretch, new, cached) of each prefill chunk
        self._samples = array("d")

    def stretch(
        self,
        start_s: float,
        ends_s: array[float],
        codes: bytes,
        chunks: list[tuple[int, int]],
        decodes: int,
        sum_context: int,
        sampled: int,
    ) -> None:
        """Steps that ended then; what they have in common is the shape of the first."""
        self.times.extend(ends_s, codes)
        prefill = 0
        for new, cached in chunks:
            prefill += new
            self._chunks.extend((len(self._stretches) // STRETCH, new, cached))
        self._stretches.extend((start_s, len(ends_s), decodes, prefill, sum_context, sampled))

    def told_s(self, step: int) -> float:
        """When the clients have the tokens of a step."""
        return self.sent_s[step] if self.sent_s else self.times.end_s(step)

    def sample(self, t_s: float, in_use: int, idle: int, running: int, waiting: int) -> None:
        self._samples.extend((t_s, in_use, idle, running, waiting))

    @property
    def last_in_use(self) -> int:
        """Blocks in use at the last sample."""
        return int(self._samples[-SAMPLE + 1]) if self._samples else 0

    def steps(self) -> Steps:
        """Columns of all steps so far."""
        stretches = np.array(self._stretches).reshape(-1, STRETCH)
        k, decodes, prefill, sum_context, sampled = stretches[:, 1:].T.astype(
            np.int64
        )  # whole numbers below 2**53: exact
        work = StepShapes(k, decodes, sum_context, sampled, np.array(self._chunks, np.int64).reshape(-1, 3))
        return StepsByStretch(
            self.times, stretches[:, 0].copy(), k, decodes.astype(np.int32), prefill.astype(np.int32), work
        )

    def samples(self) -> Samples:
        rows = np.array(self._samples).reshape(-1, SAMPLE)
        in_use, idle = rows[:, 1].astype(np.int64), rows[:, 2].astype(np.int64)
        return Samples(rows[:, 0], in_use, idle, rows[:, 3].astype(np.int32), rows[:, 4].astype(np.int32))
