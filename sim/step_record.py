"""What a replica keeps of its steps and of its state while it runs: flat arrays of numbers, turned into columns at the
end.

The one idea: a stretch is recorded once, however many steps it has; only the ends of steps are kept one by one
(sim.step_times).
"""

from __future__ import annotations

from array import array

from sim.packed_rows import Rows
from sim.recording import Samples, SamplesByRow, Steps, StepsByStretch
from sim.step_times import StepTimes


class StepRecord:
    """Of one replica."""

    def __init__(self, packs: bool = False) -> None:
        """packs: keep all but the newest of it packed."""
        self.times = StepTimes(packs)
        self.sent_s = array("d")  # when their tokens have left the front end, where that takes time
        self.emitted = array("q")  # output tokens of each step, where they are not the rows it samples
        self._stretches = Rows(6, packs)
        self._chunks = Rows(3, packs)
        self._samples = Rows(5, packs)

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
            self._chunks.add(len(self._stretches), new, cached)
        self._stretches.add(start_s, len(ends_s), decodes, prefill, sum_context, sampled)

    def told_s(self, step: int) -> float:
        """When the clients have the tokens of a step."""
        return self.sent_s[step] if self.sent_s else self.times.end_s(step)

    def sample(self, t_s: float, in_use: int, idle: int, running: int, waiting: int) -> None:
        self._samples.add(t_s, in_use, idle, running, waiting)

    @property
    def last_in_use(self) -> int:
        """Blocks in use at the last sample."""
        return int(self._samples.last(1))

    def steps(self) -> Steps:
        """All steps so far."""
        return StepsByStretch(self.times, self._stretches, self._chunks)

    def samples(self) -> Samples:
        return SamplesByRow(self._samples)
