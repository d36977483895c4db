"""Pipeline-parallel stages: several batches in flight, each through all stages.

The one idea: the simulated step is a round in which every running request advances once. Its decodes are dealt out
evenly over as many batches as there are stages; its prompts fill batches of the engine's token budget. A batch takes
the sum of its stages (`whole`, all layers and the sends between stages); a stage takes an equal share of that. So a
round of decodes takes what one batch takes, a lone prompt its own time through all stages, and of several prefill
batches one leaves a stage after the other.

Not modelled: batches of the next round that enter before the last of this one has left. With a backlog of prompts that
understates prefill throughput by up to (stages - 1) / (2 x stages - 1): 33 % at two stages, 43 % at four. Nor is it
modelled that an engine's batches are rarely of equal size.

>>> PipelineStepTime(whole, stages=2, layers=80, batched_tokens=8192).step([], 64, 131072, 4096, 64)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrate.step import StepTime


class PipelineStepTime:
    """StepTime of the rounds of a pipeline."""

    def __init__(self, whole: StepTime, stages: int, layers: int, batched_tokens: int):
        """whole: of one batch through all stages; layers: of the model, of which the largest stage has the rounded-up
        share; batched_tokens: a batch holds at most."""
        self._whole, self._stages, self._budget = whole, stages, batched_tokens
        self._uneven = -(-layers // stages) * stages / layers

    def step(
        self, chunks: Sequence[tuple[int, int]], n_decode: int, sum_context: int, max_context: int, n_sampled: int
    ) -> tuple[float, int]:
        """Seconds and coverage code of one round; see `StepTime.step`."""
        n, total, longest = self._share(n_decode, sum_context, max_context)
        if not chunks:
            sampled = n if n_sampled == n_decode else min(n_sampled, max(n, 1))
            seconds, cover = self._whole.step([], n, total, longest, sampled)
            return seconds * self._uneven, cover
        first = max(n_sampled - n_decode, 0)
        prefills = [self._whole.step(batch, n, total, longest, n + first) for batch in in_batches(chunks, self._budget)]
        times = [seconds * self._uneven for seconds, _ in prefills]
        cover = max(covered for _, covered in prefills)
        slowest = max(times)
        one_after_another = slowest + (sum(times) - slowest) / self._stages
        others = max(min(self._stages, n_decode) - len(times), 0)
        if not others:
            return one_after_another, cover
        decode_s, covered = self._whole.step([], n, total, longest, n)
        busy = (sum(times) + others * decode_s * self._uneven) / self._stages
        return max(one_after_another, busy), max(cover, covered)

    def decode_stretch(
        self, n_decode: int, sum_context: int, max_context: int, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As k calls of `step`; see `StepTime.decode_stretch`."""
        seconds, covers = self._whole.decode_stretch(*self._share(n_decode, sum_context, max_context), k)
        return seconds * self._uneven, covers

    def _share(self, n: int, sum_context: int, max_context: int) -> tuple[int, int, int]:
        """(decodes, sum and maximum of contexts) of one of the batches that the decodes are dealt out to."""
        if not n:
            return 0, 0, 0
        each = -(-n // self._stages)
        return each, max_context if each == 1 else sum_context * each // n, max_context


def in_batches(chunks: Sequence[tuple[int, int]], budget: int) -> list[list[tuple[int, int]]]:
    """Chunks (new, cached) in order, in batches of `budget` new tokens; a chunk that does not fit goes on in the
    next."""
    batches: list[list[tuple[int, int]]] = [[]]
    left = budget
    for new, cached in chunks:
        while new:
            if not left:
                batches.append([])
                left = budget
            part = min(new, left)
            batches[-1].append((part, cached))
            new, cached, left = new - part, cached + part, left - part
    return batches
